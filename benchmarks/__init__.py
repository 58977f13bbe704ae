"""What things cost; each module is a command, and `make bench` runs them."""
