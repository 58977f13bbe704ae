"""Notable facts in the figures as sentences, the worst first; holds the thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from downrange.pipelines.trace import formats
from downrange.pipelines.trace.figures import MESSAGES_PER_PLACE_MIN
from downrange.pipelines.trace.outages import longest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange.pipelines.trace.figures import Figures, Line
    from downrange.pipelines.trace.outages import Outage

Weight: TypeAlias = Literal["bad", "warn", "note", "good"]
_ORDER: Final[tuple[Weight, ...]] = ("bad", "warn", "note", "good")
_FAILED_SHARE_WARN: Final = 0.01
_FAILED_SHARE_BAD: Final = 0.05
_RETRIED_SHARE_WARN: Final = 0.02
#: How far a broker or queue may be from the mean of all: this share of it, or with few messages as
#: far as chance takes it (three standard deviations). A limit on the maximum alone would depend on
#: their number: with two brokers, the maximum never exceeds twice the mean.
_DEVIATION_MAX: Final = 0.25
_SIGMAS: Final = 3
#: With more uneven topics, a finding does not name them all.
_NAMED_MAX: Final = 4
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
        *_about_outages(figures),
        *_about_consumers(figures),
        *_about_sends(figures),
        *_about_traces(figures),
    ]
    if not any(one.weight in ("bad", "warn") for one in found) and figures.span is not None:
        found.append(Finding("good", "No problem found: no failures, no outage, even queues."))
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
    if line["used_count"] < line["place_count"] or _deviation(line) > _allowed_deviation(line):
        return "warn", f"uneven over {line['level']}s"
    return "good", "even"


def _deviation(line: Line) -> float:
    """Return how far the fullest or the emptiest place is from the mean, as a share of it."""
    most, least = float(line["max_over_mean"]), float(line["min_over_mean"])
    return max(most - 1, 1 - least)


def _allowed_deviation(line: Line) -> float:
    mean = line["message_count"] / line["place_count"]
    return max(_DEVIATION_MAX, _SIGMAS / sqrt(mean))


def _about_balance(figures: Figures) -> Iterator[Finding]:
    yield from _about_uneven_brokers(figures)
    for line in figures.balance:
        weight, _verdict = balance_verdict(line)
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


def _about_uneven_brokers(figures: Figures) -> Iterator[Finding]:
    """Yield a finding for each broker that has most of some topics, and not for each topic."""
    by_broker: dict[str, list[Line]] = {}
    for line in figures.balance:
        if balance_verdict(line)[0] == "warn":
            by_broker.setdefault(line["top_place"], []).append(line)
    for broker, lines in by_broker.items():
        shares = sorted(line["top_share"] for line in lines)
        names = [f"<b>{formats.name(line['topic'])}</b>" for line in lines[:_NAMED_MAX]]
        if len(lines) > _NAMED_MAX:
            names.append(f"{len(lines) - _NAMED_MAX} more")
        topics = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        verb = "is" if len(lines) == 1 else "are"
        least, most = formats.share(shares[0]), formats.share(shares[-1])
        share = least if least == most else f"{least} to {most}"
        yield Finding(
            "warn",
            f"{topics} {verb} uneven over brokers: {share} on <b>{formats.name(broker)}</b>."
            + _why_uneven(figures, broker),
        )


def _why_uneven(figures: Figures, top_place: str) -> str:
    down = list(dict.fromkeys(one.broker for one in figures.outages if one.broker != top_place))
    return (
        f" The outage of <b>{formats.name(down[0])}</b> contributes to it."
        if len(down) == 1
        else ""
    )


def _about_outages(figures: Figures) -> Iterator[Finding]:
    step = figures.span.bucket_ms if figures.span else 0
    for one in longest(figures.outages):
        yield Finding(
            "bad",
            f"<b>{formats.name(one.broker)}</b> got no message from "
            f"{formats.clock(one.begin_ms, step)} to {formats.clock(one.end_ms, step)} UTC "
            f"({formats.duration(one.end_ms - one.begin_ms)}) while others did."
            + _about_sends_during(one),
        )


def _about_sends_during(outage: Outage) -> str:
    """Return what became of the sends while a broker was down."""
    during, otherwise = outage.during, outage.otherwise
    if during is None:
        return ""
    compared = (
        f" ({formats.duration(otherwise['p99_ms'])} at other times)"
        if otherwise is not None and otherwise["p99_ms"] is not None
        else ""
    )
    return (
        f" The other brokers got {formats.count(during['message_count'])} messages in this time: "
        f"{formats.count(during['failed_count'])} not stored cleanly, "
        f"{formats.count(during['retried_count'])} sent again after an answer, "
        f"latency p99 {formats.duration(during['p99_ms'])}{compared}."
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
    ends = {
        "without an end": figures.totals.get("transactions_open_count") or 0,
        "ended as unknown": figures.totals.get("transactions_unknown_count") or 0,
    }
    if any(ends.values()):
        parts = [f"{formats.count(count)} {words}" for words, count in ends.items() if count]
        yield Finding("warn", f"Transactions without a known outcome: {' and '.join(parts)}.")


def _about_traces(figures: Figures) -> Iterator[Finding]:
    unknown = figures.totals.get("unknown_line_count")
    if unknown:
        yield Finding(
            "note", f"Lines of the trace topic that cannot be decoded: {formats.count(unknown)}."
        )
