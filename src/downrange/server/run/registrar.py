"""Registers a broker with its name servers, and repeats the registration.

Name servers do not communicate with each other, so each has its own registration here, which fails
and recovers alone. One rule: a name server gets one registration at a time, because it keeps the
data version that arrives last.

A registration may contain only the topics that changed. The first one on a connection contains all
topics: the name server removed the broker when the last connection ended, or was restarted, and 5.x
refuses an unknown broker with a single topic.
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
_ASK_TIMEOUT: Final = 1.0


class Registrar:
    """Keeps a broker registered with its name servers.

    Args:
        identity: The broker.
        name_servers: "host:port" of each.
        table: Returns all topics of the broker and their data version.
        interval: The interval of registrations.
        retry_interval: The interval of attempts while a name server cannot be used.
        announce_timeout: How long `announce` waits for name servers.
        tls: For TLS; without it, plain text.
        credentials: Access key and secret that requests are signed with.
        on_order_topics: Called with the order topics that a name server returns (Java's namespace
            ORDER_TOPIC_CONFIG), by topic.

    Raises:
        OptionError: An address is not host:port.
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
        """Register with all name servers, and keep doing so; return after one attempt each."""
        await self._at_all(lambda registration: registration.register())
        for registration in self._registrations:
            self._spawn(registration.keep())

    async def announce(
        self, topics: list[TopicConfig] | None = None, version: DataVersion | None = None
    ) -> None:
        """Announce changed topics to all name servers.

        Returns when all have answered or failed, or after `announce_timeout`; registrations that
        are still running continue in the background.

        Args:
            topics: The changed topics; None means all.
            version: The data version that contains exactly these changes: name servers of 4.9
                ignore topics that come with a version they have already. Without it, the version
                of the whole table.
        """
        tasks = [
            self._spawn(registration.register(topics, version))
            for registration in self._registrations
        ]
        if tasks:
            await asyncio.wait(tasks, timeout=self._announce_timeout)

    async def ask(self, command: Command, within: float) -> Command | None:
        """Send a request to one name server after the other until one replies.

        Args:
            command: The request.
            within: Seconds for all attempts together; one attempt takes a second at most.

        Returns:
            The reply, whatever its code, or None if there was none.
        """
        deadline = asyncio.get_running_loop().time() + within
        peers = [registration.peer for registration in self._registrations]
        for peer in sorted(peers, key=lambda peer: not peer.is_connected):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            attempt = msgspec.structs.replace(command, fields=dict(command.fields))
            try:
                return await peer.ask(attempt, min(left, _ASK_TIMEOUT))
            except RocketMQError as error:
                _log.debug("name server %s did not reply: %s", peer.address, error)
        return None

    async def stop(self) -> None:
        """Unregister everywhere, within 3 s; does nothing if it was never started."""
        await self._end_tasks()
        await self._at_all(lambda registration: registration.leave())

    async def abandon(self) -> None:
        """Close the connections without unregistering, as in a crash."""
        await self._end_tasks()
        await self._at_all(lambda registration: registration.peer.close())

    # ---- internals ----

    async def _at_all(self, do: Callable[[_Registration], Coroutine[None, None, None]]) -> None:
        await asyncio.gather(*(do(registration) for registration in self._registrations))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the event loop holds only weak references
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Registration:
    """The registration of a broker with one name server."""

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
        self._lock = asyncio.Lock()
        self._has_all_topics = False  # the name server has them, as far as known
        self._is_failing = False
        self._failed = asyncio.Event()
        peer.on_lost = self._failed.set

    async def keep(self) -> None:
        """Repeat the registration; soon after a failure or a lost connection."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._failed.wait()
                await asyncio.sleep(self._retry_interval)
            self._failed.clear()
            await self.register()

    async def register(
        self, topics: list[TopicConfig] | None = None, version: DataVersion | None = None
    ) -> None:
        """Register these topics, or all of them; failures are logged."""
        async with self._lock:
            table = self._table()
            if topics is not None and self._has_all_topics and self.peer.is_connected:
                table = msgspec.structs.replace(
                    table,
                    topic_config_table={topic.topic_name: topic for topic in topics},
                    data_version=version or table.data_version,
                )
            self._has_all_topics = False
            problem = await self._try(table)
            self._has_all_topics = problem is None
            if problem is not None:
                self._failed.set()
            self._log_change(problem)

    async def leave(self) -> None:
        """Unregister if a connection is open, and close it."""
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
            _log.info("broker %s could not unregister: %s", identity.name, error)
        finally:
            await self.peer.close()

    # ---- internals ----

    async def _try(self, table: TopicTableBody) -> str | None:
        """Register; return why that failed, or None."""
        try:
            reply = await self.peer.ask(self._registration(table), _REGISTER_TIMEOUT)
            if reply.code != ResponseCode.SUCCESS:
                return f"it refuses with code {reply.code}: {reply.remark}"
            if reply.body and self._on_order_topics is not None:
                self._on_order_topics(decode_body(KeyValueBody, reply.body).table)
        except TransportError as error:
            return error.problem
        except Exception as error:  # no error may end the repetition
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
            zone_name=identity.zone,
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
    """Encode the body of a registration.

    `Body.encode` handles every value in Python; with 10,000 topics that would block the event loop
    for 0.14 s each time, against 2 ms here. In return no member may be None: 5.x iterates over the
    maps without checking for null.
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
