"""The text format of Prometheus: families of samples, and the pieces in which a page is written.

A page is an iterator of texts. The one that writes it may pause between any two of them, so each
text takes little time to make; an empty one marks a place where work was done and nothing is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from downrange.server.broker.tables.histogram import Histogram

SourceT = TypeVar("SourceT")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(frozen=True, slots=True)
class Family(Generic[SourceT]):
    """A metric with all its samples.

    Attributes:
        name: The name, with the unit last.
        kind: What Prometheus calls its type.
        text: What it shows.
        samples: Takes a source, such as a broker, and yields lines; each text has whole lines.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    text: str
    samples: Callable[[SourceT], Iterable[str]]


def escaped(value: str) -> str:
    """Return the value of a label as it stands between quotes."""
    return value.translate(_ESCAPES)


def labels(**values: str) -> str:
    """Return labels with their values, without the braces."""
    return ",".join([f'{name}="{escaped(value)}"' for name, value in values.items()])


def bucket_lines(name: str, labelled: str, histogram: Histogram) -> str:
    """Return the lines of a histogram.

    Args:
        name: The family's name.
        labelled: The labels, not empty.
        histogram: The values.
    """
    lines = [
        f'{name}_bucket{{{labelled},le="{bound}.0"}} {count}\n'
        for bound, count in zip(histogram.bounds, histogram.cumulative(), strict=True)
    ]
    count = histogram.count
    lines.append(
        f'{name}_bucket{{{labelled},le="+Inf"}} {count}\n'
        f"{name}_count{{{labelled}}} {count}\n{name}_sum{{{labelled}}} {histogram.sum:.15g}\n"
    )
    return "".join(lines)


def write_families(
    families: Iterable[Family[SourceT]],
    sources: list[SourceT],
    series_max: int,
    dropped: dict[str, int],
) -> Iterator[str]:
    """Yield the text of families, each over all sources; a family without samples is left out.

    Args:
        families: The families.
        sources: What they show.
        series_max: How many texts of a family are shown.
        dropped: Gets the number of texts that are left out, by family; see `write_dropped`.
    """
    for family in families:
        head = f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n"
        shown = 0
        for source in sources:
            for lines in family.samples(source):
                if not lines:
                    yield ""
                elif shown >= series_max:
                    dropped[family.name] = dropped.get(family.name, 0) + 1
                    yield ""
                else:
                    yield head + lines
                    head = ""
                    shown += 1


def write_dropped(dropped: dict[str, int]) -> Iterator[str]:
    """Yield the number of series that the families left out."""
    name = "downrange_metrics_dropped_series"
    yield f"# HELP {name} Series that are left out, because a metric has more than series_max.\n"
    yield f"# TYPE {name} gauge\n"
    yield f'{name}{{metric=""}} {sum(dropped.values())}\n'
    for metric, count in dropped.items():
        yield f'{name}{{metric="{metric}"}} {count}\n'
