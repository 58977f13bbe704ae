"""The `downrange` command. Commands print tables for people, or JSON for programs (`--json`)."""

from downrange.cli.app import app

__all__ = ["app"]
