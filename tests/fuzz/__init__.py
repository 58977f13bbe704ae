"""A mutation fuzzer for the wire layer: `python -m tests.fuzz --seconds 60 --seed random`."""
