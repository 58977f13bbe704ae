"""Draw all plots of the docs again, from the stored results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.growth import charts as growth
from benchmarks.matrix import charts as matrix

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS: Final = Path(__file__).parents[1] / "results"

#: File of stored results -> function that draws its plots.
DRAW_FUNCTIONS: Final[dict[str, Callable[[Path], None]]] = {
    "growth.json": growth.draw,
    "matrix.json": matrix.draw,
}


def main() -> None:
    for name, draw in DRAW_FUNCTIONS.items():
        if (RESULTS / name).exists():
            draw(RESULTS / name)


if __name__ == "__main__":
    main()
