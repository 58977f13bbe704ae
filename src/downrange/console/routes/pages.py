"""Pages that show the cluster: overview, topics, groups, waiting messages, clients, brokers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from downrange.console.routes.queries import list_request

if TYPE_CHECKING:
    from starlette.responses import Response

    from downrange.console.visits import Visit


async def overview(visit: Visit) -> Response:
    """The overview; also while the cluster does not answer."""
    return visit.page("overview.html", await visit.console.view.overview())


async def topics(visit: Visit) -> Response:
    """The list of topics."""
    return visit.page("topics.html", await visit.console.view.topics(list_request(visit)))


async def topic(visit: Visit) -> Response:
    """One topic."""
    name = visit.request.path_params["topic"]
    return visit.page("topic.html", await visit.console.view.topic(name))


async def groups(visit: Visit) -> Response:
    """The list of groups, the largest lag first."""
    request = list_request(visit, sort="lag", is_descending=True)
    return visit.page("groups.html", await visit.console.view.groups(request))


async def group(visit: Visit) -> Response:
    """One group."""
    name = visit.request.path_params["group"]
    return visit.page("group.html", await visit.console.view.group(name))


async def waiting(visit: Visit) -> Response:
    """Delayed messages, timed messages and halves of transactions."""
    page = await visit.console.view.waiting()
    # Brokers keep the topics of these messages as they know them, with the namespace.
    may_read = visit.known_visitor.may_read_named
    halves = tuple(each for each in page.newest_halves if may_read(each.topic))
    delayed = tuple(each for each in page.delayed if may_read(each.topic))
    return visit.page("waiting.html", replace(page, newest_halves=halves, delayed=delayed))


async def clients(visit: Visit) -> Response:
    """The connected clients."""
    return visit.page("clients.html", await visit.console.view.clients(list_request(visit)))


async def brokers(visit: Visit) -> Response:
    """Brokers and name servers."""
    return visit.page("brokers.html", await visit.console.view.brokers())


async def broker(visit: Visit) -> Response:
    """One broker."""
    name = visit.request.path_params["broker"]
    return visit.page("broker.html", await visit.console.view.broker(name))


async def traces(visit: Visit) -> Response:
    """What the newest trace records say."""
    return visit.page("traces.html", await visit.console.view.trace_report())


async def audit(visit: Visit) -> Response:
    """The actions that were taken here and that the visitor may see, the newest first."""
    log = visit.console.audit
    page = {
        "file": None if log.path is None else str(log.path),
        "problem": log.problem,
        "records": [each for each in log.newest() if visit.known_visitor.may_see(each)],
    }
    return visit.page("audit.html", page)
