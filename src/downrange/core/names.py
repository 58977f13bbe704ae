"""Names with a meaning: system topics, prefixes, and the namespace that is put before names."""

from __future__ import annotations
