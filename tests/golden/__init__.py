"""Bytes captured from the Apache servers, and the tests that need nothing else."""
