"""Fixtures of the contract suite.

A test uses `server` (each cluster in turn) or `embedded` (only ours, where faults can be injected),
and `producer` or `make`, which make clients of each front end in turn. It is plain sync code; with
"async" the objects are asyncio objects inside a `Blocking`.

    def test_a_message_arrives(server: Server, producer: MakeProducer) -> None:
        topic = server.topic()
        producer(server).send(Message(topic, b"1"))
        assert [message.body for message in server.read_all(topic, 1)] == [b"1"]
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import threading
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

import pytest

import downrange
from downrange import Client, Producer, TransactionProducer
from downrange.embedded import Cluster
from downrange.options import ClientOptions, ProducerOptions
from tests.apache.artifacts import VERSIONS
from tests.apache.cluster import ApacheCluster
from tests.apache.fixtures import ACCOUNTS, cluster_or_skip
from tests.contract.blocking import LONG_TIMEOUT, Blocking, LoopThread, unwrapped
from tests.contract.servers import Server
from tests.support.options import SHORT_TIMES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from downrange.server.outputs import Peer
    from downrange.wire.command import Command
    from tests.apache.fixtures import ApacheVersions

Kind = Literal["sync", "async"]
#: Seconds for each send and call of a test that sets no limit; less than `LoopThread.run` waits.
PATIENCE = 20.0
ThingT = TypeVar("ThingT")

_APACHE = [pytest.param(name, marks=pytest.mark.apache, id=f"apache-{name}") for name in VERSIONS]
#: The parameters of `server`, and of other fixtures that exist for all three servers.
SERVERS = ["embedded", *_APACHE]
#: For a test of something that only Apache's servers have.
only_apache = pytest.mark.parametrize("server", _APACHE, indirect=True, scope="session")
#: For a test of something that only one front end has.
only_sync = pytest.mark.parametrize("kind", ["sync"], indirect=True)
only_async = pytest.mark.parametrize("kind", ["async"], indirect=True)


class Embedded(Server):
    """Our cluster; `cluster` injects faults, which end with the test."""

    def __init__(self, cluster: Cluster) -> None:
        """Use a running cluster."""
        super().__init__(cluster.name_server, cluster.brokers, None, _unique_name)
        self.cluster = cluster

    @contextlib.contextmanager
    def held(self, code: int) -> Generator[Callable[[], None]]:
        """Stop all servers at the next request of one code, until the block ends.

        Unlike a delay, this does not depend on how fast the test is. Gives the function that lets
        the servers go on before the end of the block.
        """
        is_over = threading.Event()

        def wait(request: Command, peer: Peer) -> None:
            is_over.wait(LONG_TIMEOUT)  # on the event loop of the servers

        self.cluster.intercept(code, wait)
        try:
            yield is_over.set
        finally:
            is_over.set()
            self.cluster.intercept(code, None)


class Make:
    """Makes clients of one front end, and closes them at the end of the test.

    They wait longer than by default, unless the test sets another limit: on a busy machine a server
    may stop for some seconds. Then a send would fail or be repeated, and a commit be lost.
    """

    def __init__(self, kind: Kind, loop: LoopThread) -> None:
        """Take the front end, and the loop of its asyncio objects."""
        self.kind: Kind = kind
        self._loop = loop
        self._ends = contextlib.ExitStack()

    def __call__(self, thing: Callable[..., ThingT], *args: Any, **settings: Any) -> ThingT:
        """Make an object of a sync class, or of its `Async…` counterpart; it is not started."""
        settings = _patient(thing, args, settings)
        made: Any
        if self.kind == "sync":
            made = thing(*args, **settings)
        else:
            twin = getattr(downrange, f"Async{thing.__name__}")
            inner = twin(
                *map(unwrapped, args),
                **{name: unwrapped(value) for name, value in settings.items()},
            )
            made = Blocking(inner, self._loop)
        self._ends.callback(made.close)
        return made  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close all clients, the newest first."""
        self._ends.close()


def patient(options: ProducerOptions | None) -> ProducerOptions:
    """Return options with a long timeout in place of the default one."""
    return cast("ProducerOptions", _with_long(options, ProducerOptions(), "timeout"))


def _patient(
    thing: Callable[..., Any], args: tuple[Any, ...], settings: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings of a client with long limits in place of the default ones."""
    long = dict(settings)
    if thing in (Producer, TransactionProducer):
        long["options"] = patient(settings.get("options"))
    is_shared = any(isinstance(unwrapped(arg), Client | downrange.AsyncClient) for arg in args[:1])
    if not is_shared:
        name = "options" if thing is Client else "client_options"
        limits = ("call_timeout", "connect_timeout")
        long[name] = _with_long(settings.get(name), ClientOptions(), *limits)
    return long


def _with_long(options: Any, default: Any, *limits: str) -> Any:
    """Return options in which each limit that has its default is long."""
    options = default if options is None else options
    if type(options) is not type(default):
        return options  # a test of wrong options
    unset = [name for name in limits if getattr(options, name) == getattr(default, name)]
    return dataclasses.replace(options, **dict.fromkeys(unset, PATIENCE))


class MakeProducer(Protocol):
    """Starts a producer on a server or on a shared client; closed at the end of the test."""

    def __call__(
        self, servers: Server | Client | str | None, *, group: str | None = None, **settings: Any
    ) -> Producer:
        """See the class; the settings are those of `Producer`."""
        ...


def _unique_name(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(5)}"


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test with both front ends, unless it selects one.

    This hook is used instead of fixture parameters: the front end comes first in a test's name but
    changes faster than the server, so no cluster is started twice.
    """
    marks = metafunc.definition.iter_markers("parametrize")
    if "kind" in metafunc.fixturenames and not any(mark.args[0] == "kind" for mark in marks):
        metafunc.parametrize("kind", ["sync", "async"], indirect=True)


@pytest.fixture(autouse=True)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Give each front end in turn."""
    return request.param  # type: ignore[no-any-return]


@contextlib.contextmanager
def embedded_server(**settings: Any) -> Generator[Embedded]:
    """Start our cluster; the settings are those of `Cluster`."""
    # A half is not set aside while a slow machine starts the producer that is asked about it.
    settings.setdefault("broker", dataclasses.replace(SHORT_TIMES, transaction_checks_max=1000))
    with Cluster(**settings) as cluster:
        own = Embedded(cluster)
        try:
            yield own
        finally:
            own.close()


@pytest.fixture(scope="session")
def embedded_session() -> Iterator[Embedded]:
    """Give our shared cluster, for other fixtures."""
    with embedded_server(vip=True) as shared:
        yield shared


@pytest.fixture
def embedded(embedded_session: Embedded) -> Iterator[Embedded]:
    """Give our shared cluster; faults injected with `cluster.intercept` end with the test."""
    yield embedded_session
    for code in range(400):
        embedded_session.cluster.intercept(code, None)


@pytest.fixture(scope="session", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Give each cluster in turn; it is shared, so do not stop it, and use unique names."""
    if request.param == "embedded":
        yield request.getfixturevalue("embedded_session")
        return
    versions: ApacheVersions = request.getfixturevalue("apache_versions")
    shared = server_of(versions.cluster(request.param))
    yield shared
    shared.close()


@contextlib.contextmanager
def apache_server(make: Callable[[], ApacheCluster]) -> Generator[Server]:
    """Start an Apache cluster; skip the tests when it cannot run here."""
    with cluster_or_skip(make) as cluster:
        own = server_of(cluster)
        try:
            yield own
        finally:
            own.close()


def server_of(cluster: ApacheCluster) -> Server:
    """Return an Apache cluster with the interface that all clusters have here."""
    addresses = [broker.address for broker in cluster.brokers]
    return Server(cluster.name_server, addresses, cluster.version, _unique_name)


@pytest.fixture(scope="module", params=SERVERS)
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Give the name server of a cluster with access control; its accounts are `ACCOUNTS`."""
    if request.param == "embedded":
        file = tmp_path_factory.mktemp("guarded") / "plain_acl.yml"
        file.write_text(ACCOUNTS.plain_acl_yaml(), encoding="utf-8")
        with Cluster(access=file) as cluster:
            yield cluster.name_server
        return
    with cluster_or_skip(lambda: ApacheCluster(request.param, acl=ACCOUNTS)) as apache:
        yield apache.name_server


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    """Give the event loop of the asyncio objects."""
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def make(kind: Kind, loop_thread: LoopThread) -> Iterator[Make]:
    """Give the factory for clients of the front end."""
    making = Make(kind, loop_thread)
    yield making
    making.close()


@pytest.fixture
def producer(make: Make) -> MakeProducer:
    """Give the function that starts producers of the front end."""

    def start(
        servers: Server | Client | str | None, *, group: str | None = None, **settings: Any
    ) -> Producer:
        where = servers.name_server if isinstance(servers, Server) else servers
        return make(Producer, where, group=group or _unique_name("group"), **settings).start()

    return start
