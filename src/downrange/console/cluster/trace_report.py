"""A report on the newest trace records. `downrange pipeline trace` makes one of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.console.cluster import limits
from downrange.console.cluster.actions.action import shell_line
from downrange.console.cluster.message_search import Budget, stop_note
from downrange.console.cluster.pages.traces import TraceReport
from downrange.console.cluster.scan import read_end
from downrange.console.cluster.trace_steps import TraceFigures
from downrange.errors import RouteNotFound
from downrange.wire.system_names import TRACE_TOPIC

if TYPE_CHECKING:
    from downrange import AsyncAdmin


async def trace_report(admin: AsyncAdmin, name_servers: str, report: str | None) -> TraceReport:
    """Return what the newest trace records say.

    Args:
        admin: Asks the cluster.
        name_servers: For the command line.
        report: The address of the pipeline's report, if there is one.

    Raises:
        RocketMQError: A server did not answer.
    """
    words = ("pipeline", "trace", "--output", "traces")
    command = shell_line(words, name_servers, admin.client.options.namespace)
    try:
        states = await admin.topic_stats(TRACE_TOPIC)
    except RouteNotFound:
        return TraceReport(
            is_on=False,
            topic=TRACE_TOPIC,
            stored=0,
            begin=None,
            end=None,
            records=0,
            stopped="complete",
            rows=(),
            report=report,
            command=command,
        )
    budget = Budget()
    count = max(limits.SCAN_MAX // max(sum(state.count > 0 for state in states), 1), 1)
    traces, stopped = await read_end(admin, states, count, budget)
    figures = TraceFigures()
    for trace in traces:
        if figures.records >= limits.TRACE_RECORDS_MAX:
            stopped = "rows"
            break
        figures.add(trace)
    return TraceReport(
        is_on=True,
        topic=TRACE_TOPIC,
        stored=sum(state.count for state in states),
        begin=figures.begin,
        end=figures.end,
        records=figures.records,
        stopped=stopped,
        rows=figures.rows(),
        report=report,
        command=command,
        notes=(stop_note(budget.scanned, stopped),),
    )
