"""How a broker makes itself known to its name servers, and keeps itself known.

Name servers know nothing of each other, so each has a registration of its own here that fails and
recovers alone. One rule: a name server gets one registration at a time, as the last data version
that it hears of is the one it believes.

A registration may name only the topics that changed. The first one on a connection never does: the
name server forgot us when the last connection ended, or was started anew, and one of 5.x refuses a
newcomer with a single topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.errors import RocketMQError, TransportError
from downrange.server.net.remote import RemotePeer
from downrange.wire.bodies import (
    DataVersion,
    KeyValueBody,
    RegisterBrokerBody,
    TopicTableBody,
    decode_body,
)
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import RegisterBrokerRequest, UnregisterBrokerRequest
from downrange.wire.registration import registration_crc

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Sequence

    from downrange.server.outputs import BrokerIdentity
    from downrange.wire.bodies import TopicConfig
    from downrange.wire.command import Command

    Table = Callable[[], TopicTableBody]
    OnOrderTopics = Callable[[dict[str, str]], None]

_log: Final = logging.getLogger("downrange.broker")

_REGISTER_TIMEOUT: Final = 5.0
_UNREGISTER_TIMEOUT: Final = 3.0


class Registrar:
    """Keeps a broker registered with its name servers.

    Args:
        identity: The broker.
        name_servers: "host:port" of each.
        table: Returns all topics of the broker and their data version.
        interval: How often the broker registers anew.
        retry_interval: How often a name server is tried that cannot be reached.
        announce_timeout: How long `announce` waits for name servers.
        tls: How to speak TLS to them; plain text without.
        credentials: Access key and secret that requests are signed with.
        on_order_topics: Hears what a name server says about topics with order (Java's namespace
            ORDER_TOPIC_CONFIG), by topic.

    Raises:
        OptionError: An address is none.
    """

    def __init__(
        self,
        identity: BrokerIdentity,
        name_servers: Sequence[str],
        table: Table,
        *,
        interval: float = 30.0,
        retry_interval: float = 1.0,
        announce_timeout: float = 1.0,
        tls: ssl.SSLContext | None = None,
        credentials: tuple[str, str] | None = None,
        on_order_topics: OnOrderTopics | None = None,
    ) -> None:
        self._announce_timeout = announce_timeout
        self._registrations = [
            _Registration(
                RemotePeer(address, tls=tls, credentials=credentials),
                identity,
                table,
                interval=interval,
                retry_interval=min(retry_interval, interval),
                on_order_topics=on_order_topics,
            )
            for address in dict.fromkeys(name_servers)
        ]
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Register everywhere, and go on doing so; return when each was tried once."""
        await self._at_all(lambda registration: registration.register())
        for registration in self._registrations:
            self._spawn(registration.keep())

    async def announce(
        self, topics: list[TopicConfig] | None = None, version: DataVersion | None = None
    ) -> None:
        """Tell all name servers that topics changed.

        Returns when all have answered, or cannot be reached, or after `announce_timeout`; what is
        still on its way then goes on.

        Args:
            topics: Those that changed; None is the whole table.
            version: The data version that they came with. It must be the one that holds exactly
                these changes: topics that come later with a version that is known already are
                passed over by name servers of 4.9. Without one it is the table's.
        """
        tasks = [
            self._spawn(registration.register(topics, version))
            for registration in self._registrations
        ]
        if tasks:
            await asyncio.wait(tasks, timeout=self._announce_timeout)

    async def stop(self) -> None:
        """Unregister everywhere, 3 s at most; harmless when it was never started."""
        await self._end_tasks()
        await self._at_all(lambda registration: registration.leave())

    async def abandon(self) -> None:
        """Close the connections without a word, as a crash would."""
        await self._end_tasks()
        await self._at_all(lambda registration: registration.peer.close())

    # ---- inside ----

    async def _at_all(self, do: Callable[[_Registration], Coroutine[None, None, None]]) -> None:
        await asyncio.gather(*(do(registration) for registration in self._registrations))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Registration:
    """A broker at one name server."""

    def __init__(
        self,
        peer: RemotePeer,
        identity: BrokerIdentity,
        table: Table,
        *,
        interval: float,
        retry_interval: float,
        on_order_topics: OnOrderTopics | None,
    ) -> None:
        self.peer = peer
        self._identity = identity
        self._table = table
        self._interval = interval
        self._retry_interval = retry_interval
        self._on_order_topics = on_order_topics
        self._turn = asyncio.Lock()
        self._is_known = False  # all our topics are there, as far as we know
        self._is_failing = False
        self._trouble = asyncio.Event()
        peer.on_lost = self._trouble.set

    async def keep(self) -> None:
        """Register again and again; soon when the name server is gone or did not take us."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._trouble.wait()
                await asyncio.sleep(self._retry_interval)
            self._trouble.clear()
            await self.register()

    async def register(
        self, topics: list[TopicConfig] | None = None, version: DataVersion | None = None
    ) -> None:
        """Tell the name server of these topics, or of all; what goes wrong is logged."""
        async with self._turn:
            table = self._table()
            if topics is not None and self._is_known and self.peer.is_connected:
                table = msgspec.structs.replace(
                    table,
                    topic_config_table={topic.topic_name: topic for topic in topics},
                    data_version=version or table.data_version,
                )
            self._is_known = False
            problem = await self._try(table)
            self._is_known = problem is None
            if problem is not None:
                self._trouble.set()
            self._log_change(problem)

    async def leave(self) -> None:
        """Unregister, where there is a connection to do so, and close it."""
        identity = self._identity
        header = UnregisterBrokerRequest(
            broker_name=identity.name,
            broker_addr=identity.address,
            cluster_name=identity.cluster,
            broker_id=identity.broker_id,
        )
        try:
            if self.peer.is_connected:
                await self.peer.ask(request_command(header), _UNREGISTER_TIMEOUT)
        except RocketMQError as error:
            _log.info("%s did not leave name server %s", identity.name, error)
        finally:
            await self.peer.close()

    # ---- inside ----

    async def _try(self, table: TopicTableBody) -> str | None:
        """Register; return why that failed, or None."""
        try:
            reply = await self.peer.ask(self._registration(table), _REGISTER_TIMEOUT)
            if reply.code != ResponseCode.SUCCESS:
                return f"it refuses with code {reply.code}, {reply.remark}"
            if reply.body and self._on_order_topics is not None:
                self._on_order_topics(decode_body(KeyValueBody, reply.body).table)
        except TransportError as error:
            return error.problem
        except Exception as error:  # whatever it is, the next try may go well
            _log.debug("registration at %s failed", self.peer.address, exc_info=True)
            return f"{type(error).__name__}: {error}"
        return None

    def _registration(self, table: TopicTableBody) -> Command:
        identity = self._identity
        body = _encode(table)
        header = RegisterBrokerRequest(
            broker_name=identity.name,
            broker_addr=identity.address,
            cluster_name=identity.cluster,
            ha_server_addr=identity.ha_address,
            broker_id=identity.broker_id,
            body_crc32=registration_crc(body),
        )
        return request_command(header, body)

    def _log_change(self, problem: str | None) -> None:
        where = self.peer.address
        if problem is not None and not self._is_failing:
            _log.warning("name server %s cannot be used: %s; trying again", where, problem)
        elif problem is None and self._is_failing:
            _log.warning("name server %s is back", where)
        self._is_failing = problem is not None


def _encode(table: TopicTableBody) -> bytes:
    """Write a registration's body.

    `Body.encode` looks at every value in Python; with 10,000 topics nobody would be served for
    0.14 s every time, against 2 ms here. In return no member may be None: 5.x iterates over
    the maps without asking whether they are there.
    """
    replace = msgspec.structs.replace
    whole = replace(
        table,
        topic_config_table={
            name: topic if topic.attributes is not None else replace(topic, attributes={})
            for name, topic in table.topic_config_table.items()
        },
        data_version=_complete(table.data_version),
        mapping_data_version=_complete(table.mapping_data_version or DataVersion()),
        topic_queue_mapping_info_map=table.topic_queue_mapping_info_map or {},
        topic_queue_mapping_detail_map=table.topic_queue_mapping_detail_map or {},
    )
    return msgspec.json.encode(RegisterBrokerBody(topic_config_serialize_wrapper=whole))


def _complete(version: DataVersion) -> DataVersion:
    return msgspec.structs.replace(version, state_version=version.state_version or 0)
