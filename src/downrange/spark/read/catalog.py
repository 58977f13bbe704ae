"""The driver's view of queues: which exist, and where they begin and end.

Spark asks about every 11 ms while a stream is idle, so answers are cached for a while. A failed
request is repeated a few times and then raises, because Spark does not repeat it.
"""

from __future__ import annotations

import logging
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from downrange.client.flows.admin import topics
from downrange.client.flows.consuming.offsets import (
    group_offset,
    max_offset,
    min_offset,
    search_offset,
    set_group_offset,
)
from downrange.client.flows.consuming.pull import check_filter
from downrange.client.flows.effects import Flow, Gather
from downrange.client.flows.names import shown_queue, with_namespace
from downrange.client.flows.routing.lookup import refresh_route
from downrange.errors import OptionError, RocketMQError, RouteNotFound
from downrange.spark.connection import client_for
from downrange.spark.read.offsets import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from downrange import Client
    from downrange.client.flows.routing.routes import Route
    from downrange.model import QueueId
    from downrange.spark.read.read_options import Bound, Edge, ReadOptions

_log = logging.getLogger("downrange.spark")
ResultT = TypeVar("ResultT")
#: Requests at a time.
_CONCURRENT_MAX: Final = 32


class Catalog:
    """The queues of one read.

    Args:
        options: The options of the read.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._queues: frozenset[QueueId] = frozenset()
        self._queues_until = 0.0
        self._ends: dict[QueueId, int] = {}
        self._asked: frozenset[QueueId] = frozenset()  # the queues of the last request for ends
        self._ends_until = 0.0
        self._is_filter_checked = False

    @property
    def _client(self) -> Client:
        return client_for(self._options.connection)

    # ---- which queues --------------------------------------------------------------------------

    def queues(self, known: Collection[QueueId] | None = ()) -> frozenset[QueueId]:
        """Return the queues to read, as name servers know them now or knew them recently.

        Args:
            known: The queues that were read before. If one is missing, the lookup is repeated;
                the caller decides whether it may be missing after that. None if the caller does
                not know yet what was read before; then no queue counts as missing.

        Raises:
            OptionError: Options name queues or brokers that do not exist.
            RouteNotFound: A named topic does not exist and was not read before.
            RocketMQError: No name server answered.
        """
        if time.monotonic() >= self._queues_until:
            try:
                found = self._find_known_queues(known)
            except RocketMQError as error:
                if not self._queues or not error.retryable:
                    raise
                # Brokers still serve reads while no name server does.
                _log.warning("name servers do not answer, using the last known queues: %s", error)
                found = self._queues
            self._check_filter(found)
            self._queues = found
            self._queues_until = time.monotonic() + self._options.route_interval
        return self._queues

    def _find_known_queues(self, known: Collection[QueueId] | None) -> frozenset[QueueId]:
        found = self._retrying(lambda: self._find_queues(known))
        for _ in range(self._options.fetch_retries):
            if found >= set(known or ()):
                break
            time.sleep(self._options.retry_interval)
            found = self._retrying(lambda: self._find_queues(known))
        return found

    def invalidate(self) -> None:
        """Drop cached answers."""
        self._queues_until = self._ends_until = 0.0

    def _find_queues(self, known: Collection[QueueId] | None) -> frozenset[QueueId]:
        selection = self._options.selection
        if selection.pattern is None:
            routes = self._routes(selection.named_topics)
            known_topics = {queue.topic for queue in known or ()}
            for topic, route in routes.items():
                if route is None and known is not None and topic not in known_topics:
                    problem = f".\n  Create it with `downrange topic create {topic}`."
                    raise RouteNotFound(topic, self._client.core.name_servers.addresses, problem)
        else:
            routes = self._routes(self._matching_topics(selection.pattern))
        for topic, route in routes.items():
            if route is not None and route.hosts:
                # Records have the numbers and offsets of the brokers' own queues, not the logical.
                raise OptionError(
                    f"topic {topic!r} is a static topic, which this data source cannot read; read "
                    "it with a PullConsumer"
                )
        found = {
            shown_queue(queue, self._client.options.namespace)
            for route in routes.values()
            if route is not None
            for queue in route.readable
        }
        taken = frozenset(queue for queue in found if selection.includes(queue))
        if found and known is not None and not known:
            if missing := selection.missing(found):
                raise OptionError(
                    f"not found: {', '.join(missing)}; existing queues: {_queue_names(found)}"
                )
            if not taken:
                raise OptionError(
                    f"assign, queueIds and brokers match none of the queues: {_queue_names(found)}"
                )
        return taken

    def _matching_topics(self, pattern: str) -> list[str]:
        client = self._client
        listed = client.run(topics.list_topics(client.core, deadline=self._deadline()))
        names = [topic.name for topic in listed if topic.kind == "normal"]
        return [name for name in names if re.fullmatch(pattern, name)]

    def _routes(self, names: Iterable[str]) -> dict[str, Route | None]:
        core = self._client.core
        full = {name: with_namespace(name, core.options.namespace) for name in names}
        flows = [refresh_route(core, topic, self._deadline()) for topic in full.values()]
        return dict(zip(full, self._run_all(flows), strict=True))

    def _check_filter(self, queues: Iterable[QueueId]) -> None:
        """Have a broker check an SQL expression once: in a pull, a broken one matches all."""
        message_filter = self._options.message_filter
        if message_filter.kind != "SQL92" or self._is_filter_checked:
            return
        client = self._client
        for topic in sorted({queue.topic for queue in queues}):
            client.run(
                check_filter(
                    client.core, topic, self._options.group, message_filter, self._deadline()
                )
            )
        self._is_filter_checked = True

    # ---- where they begin and end --------------------------------------------------------------

    def ends(self, queues: Iterable[QueueId], *, is_fresh: bool = False) -> dict[QueueId, int]:
        """Return the offset of the next message of each queue.

        A queue that no server knows is left out, after some attempts.

        Args:
            queues: The queues.
            is_fresh: Whether to ask brokers even if there is a recent answer.

        Raises:
            RocketMQError: A broker did not answer.
        """
        asked = frozenset(queues)
        if is_fresh or time.monotonic() >= self._ends_until or not asked <= self._asked:
            self._ends = self._offsets_of(asked, max_offset)
            self._asked = asked
            self._ends_until = time.monotonic() + self._options.metadata_interval
        return {queue: self._ends[queue] for queue in asked if queue in self._ends}

    def begins(self, queues: Iterable[QueueId]) -> dict[QueueId, int]:
        """Return the offset of the oldest message of each queue; see `ends`."""
        return self._offsets_of(queues, min_offset)

    def resolve(
        self, bound: Bound, queues: Iterable[QueueId], *, others: Edge
    ) -> dict[QueueId, int]:
        """Return the offset that a bound stands for in each queue now.

        Args:
            bound: The start or end that the user gave.
            queues: The queues that are read.
            others: The bound of queues that `bound` does not cover.

        Raises:
            OptionError: The bound names queues or topics that are not read.
            RouteNotFound, RocketMQError: A queue does not exist, or its broker did not answer.
        """
        read = sorted(queues)
        unknown = [_queue_names([queue]) for queue in sorted(bound.named_queues - set(read))]
        unknown += sorted(bound.named_topics - {queue.topic for queue in read})
        if unknown:
            raise OptionError(
                f"offsets or times are given for {', '.join(unknown[:8])}, which is not read; "
                f"the read has {_queue_names(read)}"
            )
        named = {queue: bound.of(queue) for queue in read}
        places = {queue: others if place is None else place for queue, place in named.items()}
        found = self._retrying(
            lambda: self._run_all(
                [self._resolve_one(queue, place) for queue, place in places.items()]
            )
        )
        return dict(zip(places, found, strict=True))

    def _resolve_one(self, queue: QueueId, place: str | datetime | int) -> Flow[int]:
        """Return the offset of an edge, of a time, or of the group's position."""
        options, core = self._options, self._client.core
        if place == "group":
            committed = yield from group_offset(
                core, options.group, queue, deadline=self._deadline()
            )
            if committed is not None:
                return committed
            place = options.group_fallback
        if isinstance(place, datetime):
            return (yield from search_offset(core, queue, place, deadline=self._deadline()))
        if place in ("earliest", EARLIEST):
            return (yield from min_offset(core, queue, deadline=self._deadline()))
        if place in ("latest", LATEST):
            return (yield from max_offset(core, queue, deadline=self._deadline()))
        return cast("int", place)

    def commit(self, offsets: Mapping[QueueId, int]) -> None:
        """Commit offsets for the group, for monitoring; a failure is only logged."""
        core, group = self._client.core, self._options.group
        flows = [
            set_group_offset(core, group, queue, offset, deadline=self._deadline())
            for queue, offset in offsets.items()
        ]
        for queue, outcome in zip(offsets, self._gathered(flows), strict=True):
            if isinstance(outcome, RocketMQError):
                _log.warning("offset of %s not committed for %s: %s", queue, group, outcome)

    # ---- requests ------------------------------------------------------------------------------

    def _offsets_of(
        self, queues: Iterable[QueueId], ask: Callable[..., Flow[Any]]
    ) -> dict[QueueId, int]:
        core = self._client.core
        known: dict[QueueId, int] = {}
        left = sorted(queues)

        def attempt() -> None:
            flows = [ask(core, queue, deadline=self._deadline()) for queue in left]
            failures: dict[QueueId, RocketMQError] = {}
            for queue, outcome in zip(left, self._gathered(flows), strict=True):
                if isinstance(outcome, RocketMQError):
                    failures[queue] = outcome
                else:
                    known[queue] = outcome
            left[:] = failures
            # Which error is raised: a silent broker matters more than a queue that does not exist.
            for failure in sorted(failures.values(), key=_is_gone):
                raise failure

        try:
            self._retrying(attempt)
        except RouteNotFound as error:  # no server knows the queues: the caller decides
            _log.info("%s: %s", _queue_names(left), error)
        return known

    def _run_all(self, flows: list[Flow[Any]]) -> list[Any]:
        """Run flows concurrently; raise the first error."""
        outcomes = self._gathered(flows)
        for outcome in outcomes:
            if isinstance(outcome, RocketMQError):
                raise outcome
        return outcomes

    def _gathered(self, flows: list[Flow[Any]]) -> list[Any]:
        return self._client.run(_gather(flows)) if flows else []

    def _deadline(self) -> float:
        client = self._client
        return client.core.clock.now() + client.options.call_timeout

    def _retrying(self, attempt: Callable[[], ResultT]) -> ResultT:
        options = self._options
        for number in range(options.fetch_retries + 1):
            try:
                return attempt()
            except RocketMQError as error:
                is_last = number == options.fetch_retries
                if is_last or (not error.retryable and not isinstance(error, RouteNotFound)):
                    error.add_note(
                        f"Asked {number + 1} times about queues of "
                        f"{', '.join(self._options.selection.names)}; fetchOffset.numRetries and "
                        "fetchOffset.retryIntervalMs give servers more time."
                    )
                    raise
                _log.info("repeating a request in %.1f s: %s", options.retry_interval, error)
                time.sleep(options.retry_interval)
                self._refresh_routes()
        raise AssertionError("the last attempt returns or raises")

    def _refresh_routes(self) -> None:
        """Look up routes again; a restarted broker may have a new address."""
        core = self._client.core
        names = core.routes.topics()
        self._gathered([refresh_route(core, name, self._deadline()) for name in names])


def _is_gone(error: RocketMQError) -> bool:
    return isinstance(error, RouteNotFound)


def _gather(flows: list[Flow[Any]]) -> Flow[list[Any]]:
    outcomes: list[Any] = yield Gather(flows, _CONCURRENT_MAX)
    return outcomes


def _queue_names(queues: Iterable[QueueId]) -> str:
    names = [f"{queue.topic}/{queue.broker}/{queue.number}" for queue in sorted(queues)]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
