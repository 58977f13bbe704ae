"""Outages: times in which a broker got no message while others did, and what became of the sends.

Traces do not say that a broker was down. They show it: its messages stop, and those of the other
brokers go on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from downrange.pipelines.trace.measures import measure_sends

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame

    from downrange.pipelines.trace.figures import Series, Span

#: The sends during this many outages are counted, the longest ones.
COUNTED_MAX: Final = 12
#: A broker is silent if it has this many buckets in a row without a message, in which it would
#: usually have got this many messages.
_SILENT_BUCKETS_MIN: Final = 2
_MISSED_MIN: Final = 20


@dataclass(frozen=True)
class Outage:
    """A time in which a broker got no message while others did.

    Attributes:
        broker: The broker.
        begin_ms: The begin of its first bucket without a message.
        end_ms: The end of its last one.
        during: The measures of the sends to the other brokers in this time; None if not counted.
        otherwise: The measures of all sends at other times; None if there were none.
    """

    broker: str
    begin_ms: int
    end_ms: int
    during: dict[str, Any] | None = None
    otherwise: dict[str, Any] | None = None


def find_outages(span: Span, heat: Sequence[Series]) -> Iterator[Outage]:
    """Yield the outages.

    Before its first message a broker is not silent, as it may not have existed yet. A gap must be
    long enough that it is not random.

    Args:
        span: The time range.
        heat: The messages of each broker and bucket.
    """
    counts = [[value or 0.0 for value in one.values] for one in heat]
    totals = [sum(values) for values in zip(*counts, strict=True)]
    end = max((index + 1 for index, total in enumerate(totals) if total), default=0)
    for one, values in zip(heat, counts, strict=True):
        busy = [index for index, value in enumerate(values) if value]
        for last, following in pairwise([*busy, end]):
            gap = range(last + 1, following)
            missed = len(gap) * sum(values) / len(busy)
            is_alone = all(totals[index] for index in gap)
            if len(gap) >= _SILENT_BUCKETS_MIN and missed >= _MISSED_MIN and is_alone:
                yield Outage(
                    one.name,
                    span.begin_ms + gap.start * span.bucket_ms,
                    span.begin_ms + gap.stop * span.bucket_ms,
                )


def longest(outages: Sequence[Outage]) -> list[Outage]:
    """Return the longest outages, whose sends are counted."""
    return sorted(outages, key=lambda one: one.begin_ms - one.end_ms)[:COUNTED_MAX]


def measure_outage(sends: DataFrame, outage: Outage) -> DataFrame:
    """Measure the sends during an outage, and those at other times, by `is_during`."""
    at = F.unix_millis("time")
    is_during = (at >= outage.begin_ms) & (at < outage.end_ms)
    return measure_sends(sends, [is_during.alias("is_during")])


def with_sends(outage: Outage, lines: Sequence[dict[str, Any]]) -> Outage:
    """Return the outage with the rows of `measure_outage`."""
    by_time = {line["is_during"]: line for line in lines}
    return replace(outage, during=by_time.get(True), otherwise=by_time.get(False))
