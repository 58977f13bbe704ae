"""The servers behind the fixtures: one embedded cluster per run, one per test, or a real cluster.

Each process of a run has its own embedded cluster, so the workers of pytest-xdist do not meet.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from downrange import Client
from downrange.embedded import Cluster
from downrange.errors import CannotListen, RocketMQError
from downrange.testing.cleaning import clean
from downrange.testing.rocketmq import OWN_REQUESTS, RocketMQ, RocketMQCluster
from downrange.testing.topic_reader import find_log_ends

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from contextlib import AbstractContextManager

_CALL_TIMEOUT: Final = 10.0


class Servers(Protocol):
    """A cluster that tests use one after the other."""

    def lend(self) -> AbstractContextManager[RocketMQ]:
        """Give the cluster to one test."""
        ...

    def close(self) -> None:
        """End the connections, and the servers if they are embedded."""
        ...


def open_servers(name_servers: str | None) -> Servers:
    """Connect to a real cluster, or start an embedded one if no address is given.

    Raises:
        RocketMQError: The cluster cannot be reached, or cannot start.
    """
    return EmbeddedServers() if name_servers is None else RealServers(name_servers)


class RealServers:
    """A cluster that was there before, and may have other users.

    Nothing is deleted except what `RocketMQ.topic` and `RocketMQ.group` made.

    Args:
        name_servers: Addresses, "host:port", separated by ";".
    """

    def __init__(self, name_servers: str) -> None:
        self._name_servers = name_servers
        self._client = Client(name_servers, hooks=OWN_REQUESTS).start()

    @contextmanager
    def lend(self) -> Generator[RocketMQ]:
        """Give the cluster to one test, with the ends of its logs now."""
        rocketmq = RocketMQ(self._client, self._name_servers, _log_ends(self._client), None)
        try:
            yield rocketmq
        finally:
            rocketmq.end()
            rocketmq.delete_own()

    def close(self) -> None:
        """End the connections."""
        self._client.close()


class EmbeddedServers:
    """An embedded cluster that every test finds empty.

    After a test its topics and groups are deleted. If that is not enough, because messages wait for
    their delivery, a new cluster takes the place of the old one, on the same port if it is free.
    """

    def __init__(self) -> None:
        self._cluster, self._client = self._start(0)

    @contextmanager
    def lend(self) -> Generator[RocketMQ]:
        """Give the cluster to one test, and clean it afterwards."""
        cluster, client = self._cluster, self._client
        rocketmq = RocketMQ(client, cluster.name_server, _log_ends(client), cluster)
        try:
            yield rocketmq
        finally:
            if not self._clean(rocketmq):
                self._replace()

    def close(self) -> None:
        """Stop the cluster."""
        self._client.close()
        self._cluster.stop()

    def _clean(self, rocketmq: RocketMQ) -> bool:
        """Delete what a test left; return False if the cluster is still not as new."""
        core = self._client.core
        try:
            rocketmq.end()
            return self._client.run(clean(core, deadline=core.clock.now() + _CALL_TIMEOUT))
        except RocketMQError:
            return False

    def _replace(self) -> None:
        self.close()
        try:
            self._cluster, self._client = self._start(self._port)
        except CannotListen:  # another process has taken the port
            self._cluster, self._client = self._start(0)

    def _start(self, port: int) -> tuple[Cluster, Client]:
        cluster = Cluster(nameserver_port=port)
        cluster.start()
        self._port = int(cluster.name_server.rpartition(":")[2])
        return cluster, Client(cluster.name_server, hooks=OWN_REQUESTS).start()


@contextmanager
def own_cluster(settings: Mapping[str, Any]) -> Generator[RocketMQCluster]:
    """Start a cluster for one test; of two brokers, so that one can be killed.

    Args:
        settings: Arguments of `Cluster`.

    Raises:
        RocketMQError: A setting is invalid, or the cluster cannot start.
    """
    arguments: dict[str, Any] = {"brokers": 2, **settings}
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(**arguments))
        client = stack.enter_context(Client(cluster.name_server, hooks=OWN_REQUESTS))
        rocketmq = RocketMQCluster(client, cluster)
        stack.callback(rocketmq.end)
        yield rocketmq


def _log_ends(client: Client) -> dict[str, int]:
    core = client.core
    return client.run(find_log_ends(core, deadline=core.clock.now() + _CALL_TIMEOUT))
