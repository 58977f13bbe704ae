"""The command line of the simulation: run new seeds for a time, or repeat one."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from random import SystemRandom
from typing import TYPE_CHECKING

from tests.simulation.group_world import GroupWorld
from tests.simulation.pop_world import PopWorld
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

#: How many lines of a failed run are printed.
_LINES_SHOWN = 60
#: The kinds of runs; without a choice each seed is used for all of them.
_WORLDS: dict[str, type[World]] = {"pull": World, "pop": PopWorld, "group": GroupWorld}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one seed after the other; return 1 if a run fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to start new runs")
    parser.add_argument("--seed", type=int, help="of the first run; random if not given")
    parser.add_argument("--whole", action="store_true", help="print every line of each run")
    parser.add_argument("--world", choices=_WORLDS, help="one kind of run; all if not given")
    parser.add_argument("--runs", type=int, default=0, help="end after so many seeds")
    options = parser.parse_args(arguments)
    kinds = list(_WORLDS) if options.world is None else [options.world]
    first = seed = SystemRandom().randrange(2**32) if options.seed is None else options.seed
    end = time.monotonic() + options.seconds
    fingerprint = ""
    figures: Counter[str] = Counter()
    while True:
        for kind in kinds:
            world = _WORLDS[kind](seed)
            try:
                world.run()
            except BaseException:
                traceback.print_exc()
                print("\n".join(world.lines[0 if options.whole else -_LINES_SHOWN :]))
                command = f"python -m tests.simulation --seconds 0 --whole --seed {seed}"
                print(f"FAILED: {command} --world {kind}")
                return 1
            fingerprint = world.fingerprint()
            figures.update(world.figures)
            if options.whole:
                print("\n".join(world.lines))
        seed += 1
        if time.monotonic() >= end or seed - first == options.runs:
            break
    count = seed - first
    names = " and ".join(kinds)
    print(f"{count} runs of a broker ({names}), seeds {first} to {seed - 1}: all passed")
    for name, figure in sorted(figures.items()):
        print(f"  {figure:>9,} {name}")
    print(f"fingerprint of the last run: {fingerprint}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
