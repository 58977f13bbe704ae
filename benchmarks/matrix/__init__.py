"""The matrix: clients, servers, works and sizes of bodies, measured side by side in one run."""
