"""All metrics of brokers: those of Apache's exporter, and a few of our own (`downrange_`)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from downrange.server.broker.tables.group_table import is_system_group
from downrange.server.metrics import storage, traffic
from downrange.server.metrics.exposition import Family, bucket_lines, labels
from downrange.server.metrics.request_times import reply_name, request_name
from downrange.wire.codes import release_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from downrange.server.broker.tables.client_table import Client
    from downrange.server.metrics.scrape import BrokerScrape

#: How many kinds of clients are told apart; clients choose their language and release.
_CLIENT_KINDS_MAX: Final = 1_000
_PULLING: Final = "CONSUME_ACTIVELY"


def _gauge(name: str, text: str, figure: Callable[[BrokerScrape], float]) -> Family[BrokerScrape]:
    def samples(scrape: BrokerScrape) -> Iterator[str]:
        yield f"{name}{{{scrape.base}}} {figure(scrape)}\n"

    return Family(name, "gauge", text, samples)


def _counter(name: str, text: str, figure: Callable[[BrokerScrape], float]) -> Family[BrokerScrape]:
    gauge = _gauge(name, text, figure)
    return Family(name, "counter", text, gauge.samples)


# ---- clients -----------------------------------------------------------------------------------


def _client_kind(client: Client) -> dict[str, str]:
    language = (client.language or "unknown").lower()
    version = f"v{release_name(client.version)}".replace(".", "_").replace("-", "_").lower()
    return {"language": language, "version": version, "protocol_type": "remoting"}


def _producers(scrape: BrokerScrape) -> Iterator[str]:
    kinds = Counter[str]()
    seen: set[tuple[str, int]] = set()
    for group, clients in list(scrape.state.clients.producer_groups()):
        for client in clients:
            if (group, client.connection) not in seen and len(kinds) < _CLIENT_KINDS_MAX:
                seen.add((group, client.connection))
                kinds[labels(**_client_kind(client))] += 1
        yield ""
    for kind, count in kinds.items():
        yield f"rocketmq_producer_connections{{{scrape.base},{kind}}} {count}\n"


def _consumers(scrape: BrokerScrape) -> Iterator[str]:
    for group in scrape.state.clients.consumer_groups():
        kinds = Counter[str]()
        for client in list(group.members.values()):
            if len(kinds) < _CLIENT_KINDS_MAX:
                kinds[labels(**_client_kind(client))] += 1
        mode = "pull" if group.type == _PULLING else "push"
        system = "true" if is_system_group(group.name) else "false"
        own = labels(consume_mode=mode, consumer_group=group.name, is_system=system)
        for kind, count in kinds.items():
            yield f"rocketmq_consumer_connections{{{scrape.base},{own},{kind}}} {count}\n"
        yield ""


# ---- requests ----------------------------------------------------------------------------------


def _requests(scrape: BrokerScrape) -> Iterator[str]:
    for (code, reply_code, is_held, result), times in list(scrape.requests.kinds.items()):
        own = labels(
            protocol_type="remoting",
            request_code=request_name(code),
            response_code=reply_name(reply_code),
            is_long_polling="true" if is_held else "false",
            result=result,
        )
        yield bucket_lines("rocketmq_rpc_latency_milliseconds", f"{scrape.base},{own}", times)


def _creations(name: str, created: str, *, has_system: bool) -> Family[BrokerScrape]:
    def samples(scrape: BrokerScrape) -> Iterator[str]:
        for (what, is_done), times in list(scrape.requests.creations.items()):
            if what == created:
                status = {"invocation_status": "success" if is_done else "failure"}
                if has_system:
                    status["is_system"] = "false"
                yield bucket_lines(name, f"{scrape.base},{labels(**status)}", times)

    text = f"Time that creating or changing a {created} took."
    return Family(name, "histogram", text, samples)


FAMILIES: Final[list[Family[BrokerScrape]]] = [
    _gauge(
        "rocketmq_broker_permission",
        "What clients may do: 4 for pulls plus 2 for sends.",
        lambda scrape: scrape.state.options.permission,
    ),
    _gauge("rocketmq_topic_number", "Topics.", lambda scrape: len(scrape.state.topics)),
    _gauge(
        "rocketmq_consumer_group_number",
        "Consumer groups.",
        lambda scrape: len(scrape.state.groups),
    ),
    Family(
        "rocketmq_producer_connections", "gauge", "Connections of producers, by kind.", _producers
    ),
    Family(
        "rocketmq_consumer_connections",
        "gauge",
        "Connections of the members of a consumer group, by kind.",
        _consumers,
    ),
    *traffic.FAMILIES,
    *storage.FAMILIES,
    Family(
        "rocketmq_rpc_latency_milliseconds",
        "histogram",
        "Time from a request to its reply.",
        _requests,
    ),
    _creations("rocketmq_topic_create_execution_time_milliseconds", "topic", has_system=True),
    _creations(
        "rocketmq_consumer_group_create_execution_time_milliseconds", "group", has_system=False
    ),
    # ---- our own ----
    _gauge(
        "downrange_broker_writable",
        "1 if sends are accepted, 0 if the disk is full or the broker stops.",
        lambda scrape: int(scrape.state.unwritable is None),
    ),
    _gauge(
        "downrange_disk_used_ratio",
        "The used part of the disk at the last look, 0 to 1.",
        lambda scrape: scrape.state.disk_used,
    ),
    _gauge(
        "downrange_held_pulls",
        "Pulls that wait for messages.",
        lambda scrape: len(scrape.state.held_pulls),
    ),
    _gauge(
        "downrange_held_pops",
        "Pops that wait for messages.",
        lambda scrape: len(scrape.state.held_pops),
    ),
    _gauge("downrange_connections", "Open connections.", lambda scrape: scrape.connection_count),
    _counter(
        "downrange_refused_connections_total",
        "Connections that were refused because of a limit.",
        lambda scrape: scrape.refused_count,
    ),
    _counter(
        "downrange_denied_requests_total",
        "Requests that the access rules denied.",
        lambda scrape: scrape.denied_count,
    ),
    _gauge(
        "downrange_start_time_seconds",
        "When the broker started, in seconds since 1970.",
        lambda scrape: scrape.state.boot_ms / 1000,
    ),
]
