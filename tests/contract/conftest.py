"""Fixtures of the contract suite.

A test asks for `server` (each cluster in turn) or `embedded` (ours alone, for faults made on
purpose), and for `producer` or `make`, which make clients of the front end in turn. It is plain
sync code; under "async" the objects are the asyncio ones behind a `Blocking`.

    def test_a_message_arrives(server: Server, producer: MakeProducer) -> None:
        topic = server.topic()
        producer(server).send(Message(topic, b"1"))
        assert [message.body for message in server.read_all(topic, 1)] == [b"1"]
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import pytest

import downrange
from downrange import Producer
from downrange.embedded import Cluster
from downrange.options import BrokerOptions
from tests.apache.artifacts import VERSIONS, ApacheUnavailable
from tests.apache.fixtures import give_up
from tests.contract.blocking import Blocking, LoopThread, unwrapped
from tests.contract.servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from downrange import Client
    from tests.apache.cluster import ApacheCluster
    from tests.apache.fixtures import ApacheVersions

Kind = Literal["sync", "async"]
ThingT = TypeVar("ThingT")

_APACHE = [pytest.param(name, marks=pytest.mark.apache, id=f"apache-{name}") for name in VERSIONS]
#: The parameters of `server`, and of other fixtures that run on all servers.
SERVERS = ["embedded", *_APACHE]
#: For a test of a feature that only Apache's servers have.
only_apache = pytest.mark.parametrize("server", _APACHE, indirect=True, scope="session")
#: For a test of a feature that only one front end has.
only_sync = pytest.mark.parametrize("kind", ["sync"], indirect=True)
only_async = pytest.mark.parametrize("kind", ["async"], indirect=True)
#: Short times, so that tests are quick.
OPTIONS = BrokerOptions(
    delay_levels="1s 2s 3s 4s 5s",
    transaction_timeout=0.5,
    transaction_check_interval=0.5,
    is_trace_topic_created=True,
)


class Embedded(Server):
    """Our cluster; faults made with `cluster` end with the test."""

    def __init__(self, cluster: Cluster) -> None:
        """Wrap a started cluster."""
        super().__init__(cluster.name_server, cluster.brokers, None, _unique_name)
        self.cluster = cluster


class Make:
    """Makes clients of one front end, and closes them at the end of the test."""

    def __init__(self, kind: Kind, loop: LoopThread) -> None:
        """Take the front end, and the loop of its asyncio objects."""
        self.kind: Kind = kind
        self._loop = loop
        self._ends = contextlib.ExitStack()

    def __call__(self, thing: Callable[..., ThingT], *args: Any, **settings: Any) -> ThingT:
        """Make an object of a class with a twin `Async…`, or of its twin; not started."""
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
        """Close everything, the last one first."""
        self._ends.close()


class MakeProducer(Protocol):
    """Starts a producer on a server, or on a client that is shared; closed at the end."""

    def __call__(
        self, servers: Server | Client | str | None, *, group: str | None = None, **settings: Any
    ) -> Producer:
        """See the class; the settings are those of `Producer`."""
        ...


def _unique_name(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(5)}"


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test with both front ends, unless it says otherwise.

    Not by parameters of the fixture: so the front end comes first in a test's name, but changes
    faster than the server, and no cluster is started twice.
    """
    marks = metafunc.definition.iter_markers("parametrize")
    if "kind" in metafunc.fixturenames and not any(mark.args[0] == "kind" for mark in marks):
        metafunc.parametrize("kind", ["sync", "async"], indirect=True)


@pytest.fixture(autouse=True)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Give the front end in turn."""
    return request.param  # type: ignore[no-any-return]


@contextlib.contextmanager
def given_cluster(**settings: Any) -> Generator[Embedded]:
    """Start a cluster of ours; the settings are those of `Cluster`."""
    settings.setdefault("broker", OPTIONS)
    with Cluster(**settings) as cluster:
        own = Embedded(cluster)
        try:
            yield own
        finally:
            own.close()


@pytest.fixture(scope="session")
def embedded_session() -> Iterator[Embedded]:
    """Give our shared cluster to other fixtures."""
    with given_cluster() as shared:
        yield shared


@pytest.fixture
def embedded(embedded_session: Embedded) -> Iterator[Embedded]:
    """Give our shared cluster; faults that a test makes with `cluster.intercept` end with it."""
    yield embedded_session
    for code in range(400):
        embedded_session.cluster.intercept(code, None)


@pytest.fixture(scope="session", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Give each cluster in turn: shared, so leave it running and use names of your own."""
    if request.param == "embedded":
        yield request.getfixturevalue("embedded_session")
        return
    versions: ApacheVersions = request.getfixturevalue("apache_versions")
    shared = _face_of(versions.cluster(request.param))
    yield shared
    shared.close()


@contextlib.contextmanager
def given_apache_cluster(make: Callable[[], ApacheCluster]) -> Generator[ApacheCluster]:
    """Start an Apache cluster for one module; skip its tests where there is none."""
    try:
        cluster = make()
    except ApacheUnavailable as error:
        give_up(error)
    with cluster:
        yield cluster


@contextlib.contextmanager
def given_apache(make: Callable[[], ApacheCluster]) -> Generator[Server]:
    """The same, as a `Server`."""
    with given_apache_cluster(make) as cluster:
        own = _face_of(cluster)
        try:
            yield own
        finally:
            own.close()


def _face_of(cluster: ApacheCluster) -> Server:
    addresses = [broker.address for broker in cluster.brokers]
    return Server(cluster.name_server, addresses, cluster.version, _unique_name)


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[LoopThread]:
    """Give the event loop of asyncio objects."""
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture
def make(kind: Kind, loop_thread: LoopThread) -> Iterator[Make]:
    """Give a function that makes clients of the front end."""
    making = Make(kind, loop_thread)
    yield making
    making.close()


@pytest.fixture
def producer(make: Make) -> MakeProducer:
    """Give a function that starts producers of the front end."""

    def start(
        servers: Server | Client | str | None, *, group: str | None = None, **settings: Any
    ) -> Producer:
        where = servers.name_server if isinstance(servers, Server) else servers
        return make(Producer, where, group=group or _unique_name("group"), **settings).start()

    return start
