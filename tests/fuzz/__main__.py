"""The command line of the fuzzer."""

from __future__ import annotations

import argparse
import sys
import time
from random import SystemRandom
from typing import TYPE_CHECKING

from tests.fuzz.runner import Campaign, steps, summary
from tests.fuzz.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz for a time; return 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run")
    parser.add_argument("--seed", default="random", help="a number, or: random")
    parser.add_argument("--target", default="", help="only targets whose name holds this text")
    options = parser.parse_args(arguments)
    seed = SystemRandom().randrange(2**32) if options.seed == "random" else int(options.seed)
    campaigns = [Campaign(t, seed) for t in TARGETS if options.target in t.name]
    if not campaigns:
        parser.error(f"no target's name holds {options.target!r}")
    print(f"seed {seed}", flush=True)
    end = time.monotonic() + options.seconds
    for failure in steps(campaigns):
        if failure is not None:
            print(f"{summary(campaigns)}\n\nFAILED with seed {seed}\n{failure}")
            return 1
        if time.monotonic() >= end:
            break
    print(summary(campaigns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
