"""Clusters: which brokers there are, and requests to all of their masters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from downrange.checks import check_flag, check_optional_text
from downrange.client.flows.admin.reports import Unanswered
from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.routing.routes import MASTER
from downrange.errors import BrokerNotFound, OptionError, PartlyDone, RocketMQError
from downrange.wire.bodies import ClusterBody, KeyValueBody, decode_body
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from downrange.client.flows.client_core import ClientCore


class BrokerFacts(msgspec.Struct, frozen=True):
    """One broker.

    Attributes:
        name: Its name.
        cluster: Its cluster.
        addresses: Address of each replica by its id; 0 is the master.
        version: Its release, such as "5.5.0"; None when it was not asked, or did not answer.
    """

    name: str
    cluster: str
    addresses: dict[int, str]
    version: str | None = None


class ClusterFacts(msgspec.Struct, frozen=True):
    """The clusters and brokers of a name server.

    Attributes:
        clusters: Cluster -> names of its brokers, sorted.
        brokers: All of them, by name.
    """

    clusters: dict[str, tuple[str, ...]]
    brokers: tuple[BrokerFacts, ...]


def cluster_facts(
    core: ClientCore, *, deadline: float, with_versions: bool = False
) -> Flow[ClusterFacts]:
    """Return the clusters and brokers that are registered at the name server.

    Args:
        core: The client.
        deadline: When to give up.
        with_versions: Ask each broker for its release, too.
    """
    check_flag("with_versions", with_versions)
    body = yield from _ask_cluster(core, deadline)
    clusters = {
        name: tuple(sorted(body.cluster_addr_table[name])) for name in body.cluster_addr_table
    }
    homes = {broker: name for name, brokers in clusters.items() for broker in brokers}
    replicas = sorted(body.broker_addr_table.items())
    versions: list[object] = [None] * len(replicas)
    if with_versions:
        asked = [_ask_version(core, each.broker_addrs, deadline) for _, each in replicas]
        versions = yield Gather(asked, CALLS_AT_ONCE)
    brokers = tuple(
        BrokerFacts(
            name,
            each.cluster or homes.get(name, ""),
            each.broker_addrs,
            version if isinstance(version, str) else None,
        )
        for (name, each), version in zip(replicas, versions, strict=True)
    )
    return ClusterFacts(clusters, brokers)


def _ask_cluster(core: ClientCore, deadline: float) -> Flow[ClusterBody]:
    command = Command(int(RequestCode.GET_BROKER_CLUSTER_INFO))
    reply = yield from core.ask_name_server(command, deadline)
    return decode_body(ClusterBody, reply.body)


def _ask_version(
    core: ClientCore, addresses: Mapping[int, str], deadline: float
) -> Flow[str | None]:
    command = Command(int(RequestCode.GET_BROKER_RUNTIME_INFO))
    reply = yield from core.ask(addresses[min(addresses)], command, deadline)
    version = decode_body(KeyValueBody, reply.body).table.get("brokerVersionDesc")
    return None if version is None else version.removeprefix("V").replace("_", ".")


def find_masters(
    core: ClientCore,
    *,
    cluster: str | None,
    brokers: Iterable[str] | None,
    topic: str,
    deadline: float,
) -> Flow[dict[str, str]]:
    """Return the masters that a change goes to: broker -> address.

    Args:
        core: The client.
        cluster: The cluster; None when there is only one.
        brokers: Only these brokers, instead of a cluster.
        topic: The topic of the change, for the error's text.
        deadline: When to give up.

    Raises:
        OptionError: There is no such cluster or broker, or none was given and there are several.
        BrokerNotFound: No broker has a master.
    """
    facts = yield from cluster_facts(core, deadline=deadline)
    return _masters_of(core, facts, _choose_brokers(facts, cluster, brokers), topic)


def _masters_of(
    core: ClientCore, facts: ClusterFacts, chosen: set[str], topic: str
) -> dict[str, str]:
    masters = {
        broker.name: broker.addresses[MASTER]
        for broker in facts.brokers
        if broker.name in chosen and MASTER in broker.addresses
    }
    if not masters:
        problem = "no broker with a master is registered; start one, or wait until it is there"
        raise BrokerNotFound(core.name_servers.addresses[0], problem, topic)
    return masters


def _choose_brokers(
    facts: ClusterFacts, cluster: str | None, brokers: Iterable[str] | None
) -> set[str]:
    known = {broker.name for broker in facts.brokers}
    if brokers is not None:
        chosen = set(brokers)
        if not chosen or not chosen <= known:
            raise OptionError(f"brokers={sorted(chosen)} are not among {sorted(known)}")
        return chosen
    if cluster is not None and cluster not in facts.clusters:
        raise OptionError(f"cluster={cluster!r} is not one of {sorted(facts.clusters)}")
    if cluster is None and len(facts.clusters) > 1:
        raise OptionError(f"there are several clusters, give one: {sorted(facts.clusters)}")
    return known if cluster is None else set(facts.clusters[cluster])


def ask_each(
    core: ClientCore,
    masters: Mapping[str, str],
    make: Callable[[], Command],
    deadline: float,
    topic: str | None = None,
) -> Flow[dict[str, Command]]:
    """Send the same request to all masters; return each reply, or raise the first failure."""
    asked = [core.ask(address, make(), deadline, topic) for address in masters.values()]
    outcomes: list[Command | RocketMQError] = yield Gather(asked, CALLS_AT_ONCE)
    replies: dict[str, Command] = {}
    for broker, outcome in zip(masters, outcomes, strict=True):
        if isinstance(outcome, RocketMQError):
            raise outcome
        replies[broker] = outcome
    return replies


def all_masters(
    core: ClientCore, *, cluster: str | None = None, deadline: float
) -> Flow[dict[str, str]]:
    """Return the masters that a question goes to: of one cluster, or of all clusters.

    Raises:
        OptionError: There is no such cluster.
        BrokerNotFound: No broker has a master.
    """
    check_optional_text("cluster", cluster)
    facts = yield from cluster_facts(core, deadline=deadline)
    brokers = None if cluster is not None else [broker.name for broker in facts.brokers]
    return _masters_of(core, facts, _choose_brokers(facts, cluster, brokers or None), "")


def change_each(
    core: ClientCore,
    masters: Mapping[str, str],
    make: Callable[[], Command],
    deadline: float,
    what: str,
) -> Flow[dict[str, Command]]:
    """Send the same change to all masters; return each reply.

    Args:
        core: The client.
        masters: Broker -> address.
        make: Makes the request.
        deadline: When to give up.
        what: What is to be done, for the error.

    Raises:
        PartlyDone: Some of them did it, others did not.
        RocketMQError: None did it.
    """
    replies, failures = yield from ask_some(core, masters, make, deadline)
    if failures:
        raise PartlyDone(what, list(replies), failures)
    return replies


def ask_some(
    core: ClientCore,
    masters: Mapping[str, str],
    make: Callable[[], Command],
    deadline: float,
    *,
    nothing: int | None = None,
) -> Flow[tuple[dict[str, Command], dict[str, RocketMQError]]]:
    """Send the same request to all masters; return the replies, and the errors of the others.

    Args:
        core: The client.
        masters: Broker -> address.
        make: Makes the request.
        deadline: When to give up.
        nothing: A code that means "there is nothing here": neither a reply nor an error.

    Raises:
        RocketMQError: None answered.
    """
    asked = [core.ask(address, make(), deadline) for address in masters.values()]
    outcomes: list[Command | RocketMQError] = yield Gather(asked, CALLS_AT_ONCE)
    replies: dict[str, Command] = {}
    failures: dict[str, RocketMQError] = {}
    for broker, outcome in zip(masters, outcomes, strict=True):
        if not isinstance(outcome, RocketMQError):
            replies[broker] = outcome
        elif nothing is None or outcome.code != nothing:
            failures[broker] = outcome
    if len(failures) == len(masters):
        raise next(iter(failures.values()))
    return replies, failures


def unanswered_of(
    masters: Mapping[str, str], failures: Mapping[str, RocketMQError]
) -> tuple[Unanswered, ...]:
    """Return the brokers that failed, for a result."""
    return tuple(
        Unanswered(broker, masters[broker], error.brief) for broker, error in failures.items()
    )
