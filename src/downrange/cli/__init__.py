"""The `downrange` command. Every command has tables for people and `--json` for programs."""

from downrange.cli.app import app

__all__ = ["app"]
