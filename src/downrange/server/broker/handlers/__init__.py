"""A broker's answers, one module per family of requests."""
