"""Settings of Java processes that live for seconds."""

from __future__ import annotations

from typing import Final

#: An optimising compiler and a concurrent collector would cost more than they save.
SHORT_LIVED: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
