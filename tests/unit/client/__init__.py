"""Unit tests of the client."""
