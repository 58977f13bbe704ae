"""The sections of the page below its head: cards, findings, tables, charts, queues."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from downrange.pipelines.trace import charts, formats
from downrange.pipelines.trace.figures import LINES_MAX
from downrange.pipelines.trace.findings import balance_verdict, findings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from downrange.pipelines.trace.figures import Figures, Line

#: A column of a table: its heading, and the function that formats a cell.
Column: TypeAlias = "tuple[str, Callable[[Line], str]]"
_EMPTY: Final = '<p class="empty-state">{}</p>'
_CUT: Final = '<p class="cut">Only the {} are shown.</p>'


def cards(figures: Figures) -> str:
    """Return the numbers at the top."""
    totals = figures.totals
    seconds = max((figures.last_ms - figures.first_ms) / 1000, 0.001)
    sent, consumed = totals.get("sent_message_count"), totals.get("consumed_delivery_count")
    peak = max(
        (
            sum(v or 0 for v in values)
            for values in zip(*(s.values for s in figures.sent), strict=True)
        ),
        default=0.0,
    )
    lacking = totals.get("unconsumed_count") or 0
    failed = totals.get("sent_failed_count")
    shown = [
        _card(
            "Sent, with a trace", formats.count(sent), _number(totals.get("topic_count"), "topic")
        ),
        _card("Rate", formats.rate((sent or 0) / seconds), f"peak {formats.rate(peak)}"),
        _card(
            "Send latency, p50",
            formats.duration(totals.get("sent_p50_ms")),
            f"p99 {formats.duration(totals.get('sent_p99_ms'))}",
        ),
        _card(
            "Not stored cleanly",
            formats.share(totals.get("sent_failed_share")),
            _number(failed, "send"),
            "warn" if failed else "",
        ),
        _card(
            "Deliveries",
            formats.count(consumed),
            f"{_number(totals.get('group_count'), 'group')}, "
            f"{formats.share(totals.get('consumed_failed_share'))} failed",
        ),
        _card(
            "End to end, p50",
            formats.duration(totals.get("consumed_end_to_end_p50_ms")),
            f"p99 {formats.duration(totals.get('consumed_end_to_end_p99_ms'))}",
        ),
        _card(
            "Never consumed",
            formats.count(lacking) if consumed else formats.NONE,
            "by a group of the topic" if consumed else "no consumer traced",
            "warn" if lacking else "",
        ),
        _card("Brokers", formats.count(totals.get("broker_count")), _balance_words(figures)),
    ]
    return "".join(shown)


def findings(figures: Figures) -> str:
    """Return the findings as a list."""
    items = "".join(
        f'<li class="{one.weight}"><span>{one.html}</span></li>' for one in findings_of(figures)
    )
    return (
        f'<ul class="findings">{items}</ul>' if items else _EMPTY.format("There are no traces yet.")
    )


def sends(figures: Figures) -> str:
    """Return charts and tables of sends."""
    span = figures.span
    if span is None or not figures.tables["topics"]:
        return _EMPTY.format("No producer sent a trace in this time.")
    every = formats.duration(span.bucket_ms)
    rate = charts.line_chart(
        span,
        figures.sent,
        title="Messages sent per second",
        note=f"by topic; each point is the mean of {formats.bare(every)}",
        value=formats.rate,
        outages=figures.outages,
    )
    latency = (
        charts.line_chart(
            span,
            figures.send_latency,
            title="Send latency",
            note="percentiles of all requests; the scale is logarithmic",
            value=formats.duration,
            outages=figures.outages,
            is_logarithmic=True,
            style="rank",
        )
        if figures.send_latency
        else charts.empty_chart("Send latency", "No trace has the duration of a send.")
    )
    groups = {
        "By topic": ("Topic", "topic", "topics"),
        "By producer group": ("Group", "producer_group", "producer_groups"),
        "By broker": ("Broker", "broker", "brokers"),
        "By client": ("Client", "client", "clients"),
    }
    seconds = max((figures.last_ms - figures.first_ms) / 1000, 0.001)
    folded = "".join(
        _folded(title, _send_table(head, column, figures, name, seconds), index == 0)
        for index, (title, (head, column, name)) in enumerate(groups.items())
    )
    return rate + latency + folded


def brokers(figures: Figures) -> str:
    """Return the heat map of brokers over time."""
    if figures.span is None or not figures.heat:
        return _EMPTY.format("No broker was sent to in this time.")
    return charts.heat_map(
        figures.span,
        figures.heat,
        title="Messages by broker and time",
        note="a gap is time without a message: the broker was down, or avoided",
        value=formats.count,
        outages=figures.outages,
    )


def balance(figures: Figures) -> str:
    """Return the distribution of each topic over its queues."""
    if not figures.balance:
        return _EMPTY.format("No trace has the broker of a message.")
    note = (
        "Each bar is a queue, with the messages that it stores; brokers without a message of the "
        "topic are shown empty."
        if figures.has_queues
        else "Traces have the broker of a message, not its queue: each bar is a broker. Give the "
        "business topics to the pipeline to see queues."
    )
    names = [one.name for one in figures.heat]
    shown = "".join(_topic_balance(line, figures, names) for line in figures.balance)
    cut = _CUT.format(f"{LINES_MAX} least even topics") if "balance" in figures.cut else ""
    return f'<p>{note}</p><div class="balances">{shown}</div>{cut}'


def consumptions(figures: Figures) -> str:
    """Return charts and tables of consumptions."""
    span = figures.span
    lines = figures.tables.get("consumers", [])
    if span is None or not lines:
        return _EMPTY.format(
            "No consumer sent a trace in this time. Consumers send traces only if it is enabled."
        )
    rate = charts.line_chart(
        span,
        figures.consumed,
        title="Deliveries per second",
        note="by consumer group, retries included",
        value=formats.rate,
        outages=figures.outages,
    )
    elapsed = (
        charts.line_chart(
            span,
            figures.end_to_end,
            title="End-to-end time",
            note="from the send to the end of a successful consumption; the scale is logarithmic",
            value=formats.duration,
            outages=figures.outages,
            is_logarithmic=True,
            style="rank",
        )
        if figures.end_to_end
        else charts.empty_chart(
            "End-to-end time", "No consumption could be matched with the send of its message."
        )
    )
    clients = _delivery_table(
        [("Client", lambda line: formats.name(line["client"], "not known"))],
        figures,
        "consumer_clients",
    )
    groups = _delivery_table(
        [
            ("Topic", lambda line: formats.name(line["topic"], "not known")),
            ("Group", lambda line: formats.name(line["consumer_group"])),
        ],
        figures,
        "consumers",
    )
    return (
        rate + elapsed + _folded("By topic and group", groups, True) + _folded("By client", clients)
    )


def unconsumed(figures: Figures) -> str:
    """Return the messages that a group has not consumed."""
    by_group = figures.tables.get("unconsumed_groups", [])
    unknown = _unknown_consumers(figures)
    if not by_group:
        return unknown or _EMPTY.format(
            "Every message that was sent was consumed by every group of its topic."
        )
    total = formats.count(figures.totals["unconsumed_count"])
    note = (
        f"<p>{total} in all. The groups of a topic are those with a trace of a consumption; a "
        "message counts once for each group that did not consume it.</p>"
    )
    groups = _top_table(
        [
            ("Topic", lambda line: formats.name(line["topic"])),
            ("Group", lambda line: formats.name(line["consumer_group"])),
            ("Not consumed", lambda line: formats.count(line["unconsumed_count"])),
            ("Never delivered", lambda line: formats.count(line["undelivered_count"])),
            (
                "Delivered without success",
                lambda line: formats.count(line["unconsumed_count"] - line["undelivered_count"]),
            ),
            ("Sent with a delay", lambda line: formats.count(line["delayed_count"])),
            ("Oldest (UTC)", lambda line: formats.timestamp(line["oldest_at"])),
        ],
        figures,
        "unconsumed_groups",
        text_columns=2,
    )
    oldest = _table(
        [
            ("Message", lambda line: _id(line["message_id"])),
            ("Topic", lambda line: formats.name(line["topic"])),
            ("Group", lambda line: formats.name(line["consumer_group"])),
            ("Last outcome", lambda line: formats.safe(line["last_outcome"])),
            ("Keys", lambda line: formats.name(line["keys"], "none")),
            ("Broker", lambda line: formats.name(line["broker"])),
            ("Deliveries", lambda line: formats.count(line["delivery_count"])),
            ("Sent (UTC)", lambda line: formats.timestamp(line["sent_at"])),
        ],
        figures.tables["unconsumed"],
        text_columns=6,
    )
    return note + groups + _folded("The oldest of them", oldest) + unknown


def _unknown_consumers(figures: Figures) -> str:
    """Return the topics without a traced consumer; whether it was consumed is not known."""
    if not figures.tables.get("groupless_topics"):
        return ""
    total = formats.count(figures.totals["groupless_count"])
    topics = _top_table(
        [
            ("Topic", lambda line: formats.name(line["topic"])),
            ("Messages", lambda line: formats.count(line["unconsumed_count"])),
            ("Sent with a delay", lambda line: formats.count(line["delayed_count"])),
            ("Oldest (UTC)", lambda line: formats.timestamp(line["oldest_at"])),
        ],
        figures,
        "groupless_topics",
    )
    note = f"<p>{total} messages. It is not known whether they were consumed.</p>"
    return _folded("Topics whose consumers sent no trace", note + topics, True)


def transactions(figures: Figures) -> str:
    """Return the outcomes of transactions, and recalls."""
    lines = figures.tables.get("transactions", [])
    recalls = figures.totals.get("recall_count") or 0
    taken = (
        f"<p>Recalls of timed messages: {formats.count(recalls)}, of which "
        f"{formats.count(figures.totals['recall_failed_count'])} came too late.</p>"
        if recalls
        else ""
    )
    if not lines:
        return taken or _EMPTY.format("There were no transactions and no recalls.")
    return taken + _top_table(
        [
            ("Topic", lambda line: formats.name(line["topic"])),
            ("Group", lambda line: formats.name(line["producer_group"])),
            ("Transactions", lambda line: formats.count(line["transaction_count"])),
            ("Committed", lambda line: formats.count(line["committed_count"])),
            ("Rolled back", lambda line: formats.count(line["rolled_back_count"])),
            ("Unknown", lambda line: formats.count(line["unknown_count"])),
            ("Open", lambda line: formats.count(line["open_count"])),
            ("Checks", lambda line: formats.count(line["check_count"])),
            ("p50", lambda line: formats.duration(line["p50_ms"])),
            ("p99", lambda line: formats.duration(line["p99_ms"])),
        ],
        figures,
        "transactions",
        text_columns=2,
    )


def errors(figures: Figures) -> str:
    """Return the most frequent failures."""
    lines = figures.tables.get("errors", [])
    if not lines:
        return _EMPTY.format("The traces show no failure.")
    most = max(line["error_count"] for line in lines)
    return _top_table(
        [
            (
                "What",
                lambda line: formats.safe(line["what"]) + _bar(line["error_count"] / most),
            ),
            ("Topic", lambda line: formats.name(line["topic"], "none")),
            ("Broker or group", lambda line: formats.name(line["who"], "not known")),
            ("Example", lambda line: _id(line["example"])),
            ("Count", lambda line: formats.count(line["error_count"])),
            ("First (UTC)", lambda line: formats.timestamp(line["first_at"])),
            ("Last (UTC)", lambda line: formats.timestamp(line["last_at"])),
        ],
        figures,
        "errors",
        text_columns=4,
    )


def slowest(figures: Figures) -> str:
    """Return the slowest sends, and the slowest messages from send to consumption."""
    slow_sends = _table(
        [
            ("Message", lambda line: _id(line["message_id"])),
            ("Topic", lambda line: formats.name(line["topic"])),
            ("Broker", lambda line: formats.name(line["broker"])),
            ("Client", lambda line: formats.name(line["client"], "not known")),
            ("Keys", lambda line: formats.name(line["keys"], "none")),
            ("Took", lambda line: formats.duration(line["cost_ms"])),
            ("Size", lambda line: formats.size(line["body_bytes"])),
            ("Messages", lambda line: formats.count(line["batch_count"])),
            ("At (UTC)", lambda line: formats.timestamp(line["time"])),
        ],
        figures.tables.get("slowest_sends", []),
        text_columns=5,
    )
    deliveries = _table(
        [
            ("Message", lambda line: _id(line["message_id"])),
            ("Topic", lambda line: formats.name(line["topic"])),
            ("Group", lambda line: formats.name(line["consumer_group"])),
            ("Outcome", lambda line: formats.safe(line["outcome"])),
            ("End to end", lambda line: formats.duration(line["end_to_end_ms"])),
            ("Handling", lambda line: formats.duration(line["cost_ms"])),
            ("Retries", lambda line: formats.count(line["retry_count"])),
            ("Ended (UTC)", lambda line: formats.timestamp(line["ended_at"])),
        ],
        figures.tables.get("slowest_deliveries", []),
        text_columns=4,
    )
    return _folded("Sends", slow_sends, True) + _folded(
        "From send to consumption", deliveries, True
    )


# ---- pieces --------------------------------------------------------------------------------------


def _card(title: str, value: str, below: str, weight: str = "") -> str:
    return (
        f'<div class="card {weight}"><dt>{formats.safe(title)}</dt>'
        f"<dd><b>{value}</b><small>{below}</small></dd></div>"
    )


def _balance_words(figures: Figures) -> str:
    uneven = sum(
        any(
            one is not None and balance_verdict(one)[0] in ("bad", "warn")
            for one in (line, line["over_queues"])
        )
        for line in figures.balance
    )
    if uneven == LINES_MAX and "balance" in figures.cut:  # the least even topics come first
        return f"{uneven} or more uneven topics"
    return _number(uneven, "uneven topic") if uneven else "topics are even"


def _number(value: int | None, noun: str) -> str:
    return f"{formats.count(value)} {noun}{'' if value == 1 else 's'}"


def _send_table(head: str, column: str, figures: Figures, name: str, seconds: float) -> str:
    return _top_table(
        [
            (head, lambda line: formats.name(line[column], "not known")),
            ("Messages", lambda line: formats.count(line["message_count"])),
            ("Rate", lambda line: formats.rate(line["message_count"] / seconds)),
            ("Bytes", lambda line: formats.size(line["body_bytes"])),
            ("p50", lambda line: formats.duration(line["p50_ms"])),
            ("p90", lambda line: formats.duration(line["p90_ms"])),
            ("p99", lambda line: formats.duration(line["p99_ms"])),
            ("Max", lambda line: formats.duration(line["max_ms"])),
            ("Not stored cleanly", lambda line: formats.share(line["failed_share"])),
            ("Repeated", lambda line: formats.share(line["retried_share"])),
        ],
        figures,
        name,
    )


def _delivery_table(heads: list[Column], figures: Figures, name: str) -> str:
    columns: list[Column] = [
        ("Deliveries", lambda line: formats.count(line["delivery_count"])),
        ("Failed", lambda line: formats.share(line["failed_share"])),
        ("Retries", lambda line: formats.share(line["retried_share"])),
        ("Not finished", lambda line: formats.count(line["unfinished_count"])),
        ("Handling p50", lambda line: formats.duration(line["p50_ms"])),
        ("p99", lambda line: formats.duration(line["p99_ms"])),
        ("End to end p50", lambda line: formats.duration(line["end_to_end_p50_ms"])),
        ("p99", lambda line: formats.duration(line["end_to_end_p99_ms"])),
    ]
    if len(heads) > 1:
        columns.append(("Not consumed", lambda line: formats.count(line["unconsumed_count"] or 0)))
    return _top_table([*heads, *columns], figures, name, text_columns=len(heads))


def _topic_balance(line: Line, figures: Figures, brokers: list[str]) -> str:
    weight, verdict = balance_verdict(line)
    over_queues = line["over_queues"]
    queues = figures.queues.get(line["topic"], [])
    counted = "stored" if any(one["queue_id"] is not None for one in queues) else "sent"
    facts = [f"{formats.count(line['message_count'])} messages {counted}"]
    facts.append(_evenness("brokers", line))
    if over_queues is not None:
        queue_weight, queue_verdict = balance_verdict(over_queues)
        if weight == "good" and queue_weight in ("warn", "bad"):
            weight, verdict = queue_weight, queue_verdict
        facts.append(_evenness("queues", over_queues))
    if not queues:
        facts.append("too many queues to show")
    most = max((queue["message_count"] for queue in queues), default=0) or 1
    blocks: list[str] = []
    seen: set[Any] = set()
    for broker, found in groupby(queues, key=lambda queue: queue["broker"]):
        seen.add(broker)
        bars = list(found)
        total = sum(queue["message_count"] for queue in bars)
        drawn = "".join(
            f'<i style="height:{max(queue["message_count"] / most, 0.012):.1%}" '
            f'title="{_queue_title(queue)}"></i>'
            for queue in bars
        )
        blocks.append(_broker_block(formats.name(broker), formats.count(total), drawn))
    blocks += [
        _broker_block(formats.name(broker), "none", "", is_empty=True)
        for broker in brokers
        if seen and broker not in seen and len(brokers) <= len(seen) + 8
    ]
    label = f"{formats.safe(line['topic'])}: {verdict}"
    return (
        f'<article class="balance"><header><h3>{formats.name(line["topic"])}</h3>'
        f'<span class="chip {weight}">{formats.safe(verdict)}</span></header>'
        f'<p class="facts">{"".join(f"<span>{fact}</span>" for fact in facts)}</p>'
        f'<div class="queues" role="img" aria-label="{label}">{"".join(blocks)}</div></article>'
    )


def _evenness(what: str, line: Line) -> str:
    least, most = f"{line['min_over_mean']:.2f}", f"{line['max_over_mean']:.2f}"
    return f"over {what}: {least} to {most} of the mean, Gini {line['gini']:.2f}"


def _queue_title(queue: Line) -> str:
    number = "" if queue["queue_id"] is None else f" queue {queue['queue_id']}"
    messages = formats.bare(formats.count(queue["message_count"]))
    return formats.safe(f"{queue['broker']}{number}: {messages} messages")


def _broker_block(broker: str, total: str, bars: str, *, is_empty: bool = False) -> str:
    kind = "broker none-there" if is_empty else "broker"
    return (
        f'<div class="{kind}"><div class="bars">{bars}</div>'
        f"<p><span>{broker}</span><b>{total}</b></p></div>"
    )


def _folded(title: str, inner: str, is_open: bool = False) -> str:
    shown = " open" if is_open else ""
    return f'<details class="fold"{shown}><summary>{formats.safe(title)}</summary>{inner}</details>'


def _top_table(
    columns: Sequence[Column], figures: Figures, name: str, text_columns: int = 1
) -> str:
    """Return a small table of the figures; if rows are missing, their sum is not the total."""
    lines = figures.tables.get(name, [])
    cut = _CUT.format(f"{len(lines)} largest") if name in figures.cut else ""
    return _table(columns, lines, text_columns) + cut


def _table(columns: Sequence[Column], lines: Sequence[Line], text_columns: int = 1) -> str:
    if not lines:
        return _EMPTY.format("No data.")

    def kind(index: int) -> str:
        return ' class="text"' if index < text_columns else ""

    head = "".join(
        f'<th scope="col"{kind(index)}>{formats.safe(title)}</th>'
        for index, (title, _cell) in enumerate(columns)
    )
    rows: list[str] = []
    for line in lines:
        first, *rest = [cell(line) for _title, cell in columns]
        cells = "".join(f"<td{kind(index)}>{cell}</td>" for index, cell in enumerate(rest, 1))
        rows.append(f'<tr><th scope="row" class="text">{first}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _bar(part: float) -> str:
    return f'<i class="bar" style="width:{part:.1%}"></i>'


def _id(text: str | None) -> str:
    if text is None:
        return formats.NONE
    short = text if len(text) <= 20 else f"{text[:8]}…{text[-8:]}"
    return f'<code title="{formats.safe(text)}">{formats.safe(short)}</code>'
