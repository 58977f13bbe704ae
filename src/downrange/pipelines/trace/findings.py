"""Notable facts in the figures as sentences, the worst first; holds the thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from downrange.pipelines.trace import formats
from downrange.pipelines.trace.figures import MESSAGES_PER_PLACE_MIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.pipelines.trace.figures import Figures, Line, Series, Span

Weight: TypeAlias = Literal["bad", "warn", "note", "good"]
_ORDER: Final[tuple[Weight, ...]] = ("bad", "warn", "note", "good")
_FAILED_SHARE_WARN: Final = 0.01
_FAILED_SHARE_BAD: Final = 0.05
_RETRIED_SHARE_WARN: Final = 0.02
_MAX_OVER_MEAN_WARN: Final = 1.5
#: A broker is silent if it has this many buckets in a row without a message, in which it would
#: usually have got this many messages.
_SILENT_BUCKETS_MIN: Final = 2
_MISSED_MIN: Final = 20
_FINDINGS_MAX: Final = 12


@dataclass(frozen=True)
class Finding:
    """One sentence; `html` is safe."""

    weight: Weight
    html: str


def findings_of(figures: Figures) -> list[Finding]:
    """Return the findings, the worst first; a positive one if there is nothing to report."""
    found = [
        *_about_balance(figures),
        *_about_silence(figures),
        *_about_consumers(figures),
        *_about_sends(figures),
        *_about_traces(figures),
    ]
    if not any(one.weight in ("bad", "warn") for one in found) and figures.span is not None:
        found.append(
            Finding("good", "No problem found: no failures, no silent broker, even queues.")
        )
    found.sort(key=lambda one: _ORDER.index(one.weight))
    return found[:_FINDINGS_MAX]


def balance_verdict(line: Line) -> tuple[Weight, str]:
    """Return how evenly a topic is distributed over brokers, or over queues.

    Args:
        line: A row of the measure `balance`.
    """
    if line["place_count"] < 2:
        return "note", f"one {line['level']} only"
    if line["message_count"] < line["place_count"] * MESSAGES_PER_PLACE_MIN:
        return "note", "too few messages"
    if line["used_count"] == 1:
        return "bad", f"all on one {line['level']}"
    if line["used_count"] < line["place_count"] or line["max_over_mean"] > _MAX_OVER_MEAN_WARN:
        return "warn", "uneven"
    return "good", "even"


def silences(span: Span, heat: list[Series]) -> Iterator[tuple[str, int, int]]:
    """Yield when a broker got no message while others did: its name, begin and end.

    Before its first message a broker is not silent, as it may not have existed yet. A gap must be
    long enough that it is not random.
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
                yield (
                    one.name,
                    span.begin_ms + gap.start * span.bucket_ms,
                    span.begin_ms + gap.stop * span.bucket_ms,
                )


def _about_balance(figures: Figures) -> Iterator[Finding]:
    for line in figures.balance:
        weight, verdict = balance_verdict(line)
        topic = f"<b>{formats.name(line['topic'])}</b>"
        if weight == "bad":
            others = line["place_count"] - 1
            rest = (
                "the other broker has none" if others == 1 else f"{others} other brokers have none"
            )
            yield Finding(
                "bad",
                f"All {formats.count(line['message_count'])} messages of {topic} are on "
                f"<b>{formats.name(line['top_place'])}</b>; {rest}. A topic that its first send "
                "created is on one broker only: create it on all of them.",
            )
        elif weight == "warn":
            yield Finding(
                "warn",
                f"{topic} is {verdict} over brokers: {formats.share(line['top_share'])} on "
                f"<b>{formats.name(line['top_place'])}</b>, {line['max_over_mean']:.2f} times the "
                "mean.",
            )
        queues = line.get("over_queues")
        if (
            weight == "good"
            and queues is not None
            and balance_verdict(queues)[0] in ("bad", "warn")
        ):
            yield Finding(
                "warn",
                f"{topic} is uneven over queues: {formats.share(queues['top_share'])} in "
                f"<b>{formats.name(queues['top_place'])}</b>, {queues['max_over_mean']:.2f} times "
                "the mean.",
            )


def _about_silence(figures: Figures) -> Iterator[Finding]:
    if figures.span is None:
        return
    step = figures.span.bucket_ms
    for name, begin, end in silences(figures.span, figures.heat):
        yield Finding(
            "bad",
            f"<b>{formats.name(name)}</b> got no message from {formats.clock(begin, step)} to "
            f"{formats.clock(end, step)} UTC ({formats.duration(end - begin)}) while others did.",
        )


def _about_consumers(figures: Figures) -> Iterator[Finding]:
    totals = figures.totals
    for line in figures.tables.get("consumers", []):
        who = f"<b>{formats.name(line['consumer_group'])}</b>"
        what = f"<b>{formats.name(line['topic'], 'an unknown topic')}</b>"
        if (line["failed_share"] or 0) > _FAILED_SHARE_WARN:
            weight: Weight = "bad" if line["failed_share"] > _FAILED_SHARE_BAD else "warn"
            yield Finding(
                weight,
                f"{formats.share(line['failed_share'])} of the deliveries of {what} to {who} "
                f"failed ({formats.count(line['failed_count'])} of "
                f"{formats.count(line['delivery_count'])}).",
            )
    if totals.get("unconsumed_count"):
        never = totals["undelivered_count"]
        failed = totals["unconsumed_count"] - never
        parts = [f"{formats.count(never)} never delivered"] if never else []
        parts += [f"{formats.count(failed)} delivered without success"] if failed else []
        yield Finding(
            "warn", f"Messages not consumed by a group of their topic: {' and '.join(parts)}."
        )
    if totals.get("groupless_count"):
        yield Finding(
            "note",
            f"{formats.count(totals['groupless_count'])} messages are in topics whose consumers "
            "sent no trace; it is not known whether they were consumed.",
        )
    if totals.get("backward_count"):
        yield Finding(
            "note",
            f"{formats.count(totals['backward_count'])} consumptions ended before their message "
            "was sent: the clocks of producers and consumers differ.",
        )


def _about_sends(figures: Figures) -> Iterator[Finding]:
    for line in figures.tables.get("topics", []):
        topic = f"<b>{formats.name(line['topic'])}</b>"
        if line["failed_share"] > _FAILED_SHARE_WARN:
            weight: Weight = "bad" if line["failed_share"] > _FAILED_SHARE_BAD else "warn"
            yield Finding(
                weight,
                f"{formats.share(line['failed_share'])} of the sends to {topic} were answered, but "
                "not stored cleanly.",
            )
        if line["retried_share"] > _RETRIED_SHARE_WARN:
            yield Finding(
                "warn",
                f"{formats.share(line['retried_share'])} of the sends to {topic} repeat a message.",
            )
    opened = sum(line["open_count"] for line in figures.tables.get("transactions", []))
    if opened:
        yield Finding("warn", f"Transactions without a known outcome: {formats.count(opened)}.")


def _about_traces(figures: Figures) -> Iterator[Finding]:
    unknown = figures.totals.get("unknown_count")
    if unknown:
        yield Finding(
            "note", f"Lines of the trace topic that cannot be decoded: {formats.count(unknown)}."
        )
