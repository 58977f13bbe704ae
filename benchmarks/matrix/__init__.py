"""The matrix: all combinations of clients, servers, works and body sizes, measured in one run."""
