"""Sends: one message or a batch, in both header versions.

    10       one message or a batch (`batch`), full field names
    310 320  the same, one-letter field names

A broker without the permission to write refuses all sends. Apache refuses those to order topics
only, and leaves the others to routes that are up to 30 s old.

Checked in Apache's order (Java: SendMessageProcessor): permission, a body, a legal topic
that clients may send to, the topic exists or can be created, the queue id, the group of a retry
topic, sizes. The stored message has the properties that 5.x adds: CLUSTER, MSG_REGION, TRACE_ON,
and a unique id if it had none; the checkpoint of a pop is removed. A retry that was tried often
enough becomes a dead letter.

Of `sysFlag` only the bits that describe the body are taken from the client. The host bits, the bits
of an inner batch and those of a transaction change how a record is read back, so they are set here.

Skipped on purpose: compaction and static topics; the messages of a batch queue
(`queue.type=BatchCQ`) are stored one by one, as by 4.9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import DiskFull, RocketMQError, StoreError
from downrange.server.broker.handlers.answers import (
    ensure_group,
    ensure_topic,
    sending_forbidden,
)
from downrange.server.broker.record_fields import born_host, join_properties
from downrange.server.broker.scheduled.timed_delivery import recall_handle_of
from downrange.server.broker.store_message import store_directly, store_message
from downrange.server.broker.tables.topic_table import READ_WRITE
from downrange.server.broker.transactions.half_messages import prepare_half
from downrange.server.broker.write_queue import PendingWrite
from downrange.server.outputs import (
    STORE_PENDING,
    LateReplies,
    LateReply,
    Output,
    Peer,
    Reply,
    TablesChanged,
    refusal,
)
from downrange.wire.batches import BatchRun, record_batch
from downrange.wire.codes import CLIENT_FLAGS, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import SendRequest, SendRequestV2
from downrange.wire.limits import BATCH_MESSAGES_MAX, PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from downrange.wire.properties import PropertyKey, decode_properties
from downrange.wire.records import MAGIC_V2, Record
from downrange.wire.send_replies import StoredReply
from downrange.wire.send_runs import UNUSUAL_KEYS, SendRun, is_plain_half, single_requests
from downrange.wire.system_names import (
    BROKER_FORBIDDEN_TOPICS,
    FAQ,
    RETRY_PREFIX,
    TIMER_TOPIC,
    dead_letter_topic,
    topic_problem,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.server.broker.write_queue import OnStored
    from downrange.wire.bodies import TopicConfig

    SendHeader = SendRequest | SendRequestV2


# Plain strings: members of an enum hash and compare more slowly.
_UNIQUE_KEY: Final = str(PropertyKey.UNIQUE_KEY)
_WAIT: Final = str(PropertyKey.WAIT)
_PREPARED: Final = str(PropertyKey.TRANSACTION_PREPARED)


def _send_v2(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return _send(state, request, SendRequestV2.from_fields(request.fields), peer, now_ms)


def _send_v1(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return _send(state, request, SendRequest.from_fields(request.fields), peer, now_ms)


def _send(
    state: BrokerState, request: Command, header: SendHeader, peer: Peer, now_ms: int
) -> Sequence[Output]:
    if not state.accepts_sends:
        return _refused(state, sending_forbidden(state))
    if not request.body:
        return _refused(state, refusal(ResponseCode.SYSTEM_ERROR, "the message has no body"))
    config = state.topics.get(header.topic)
    if config is None or header.topic in BROKER_FORBIDDEN_TOPICS:
        refused = _check_topic(header.topic)
        if refused is not None:
            return _refused(state, refused)
    changes: tuple[Output, ...] = ()
    if config is None:
        if header.batch:  # a batch that is refused creates no topic
            batch = _read_batch(state, request, header, peer, max(header.queue_id, 0))
            if isinstance(batch, Command):
                return _refused(state, batch)
        config = _create_topic(state, header, now_ms)
        if config is None:
            remark = f"topic[{header.topic}] not exist, apply first please!{FAQ}"
            return _refused(state, refusal(ResponseCode.TOPIC_NOT_EXIST, remark))
        changes = (TablesChanged(state.tables_version),)
    queue_id = header.queue_id
    if queue_id < 0:
        queue_id = state.next_number() % max(config.write_queue_nums, 1)
    elif queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
        remark = f"request queueId[{queue_id}] is illegal, {_describe(config, peer)}"
        return (*changes, *_refused(state, refusal(ResponseCode.INVALID_PARAMETER, remark)))
    if header.batch:
        outputs = _store_batch(state, request, header, peer, queue_id)
    else:
        outputs = _store_one(state, request, header, peer, queue_id, now_ms)
    return (*changes, *outputs) if changes else outputs


def _check_topic(topic: str) -> Command | None:
    problem = topic_problem(topic)
    if problem is not None:
        return refusal(ResponseCode.INVALID_PARAMETER, problem)
    if topic in BROKER_FORBIDDEN_TOPICS:
        return refusal(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
        )
    return None


def _create_topic(state: BrokerState, header: SendHeader, now_ms: int) -> TopicConfig | None:
    config = state.topics.create_like(
        header.topic, header.default_topic, header.default_topic_queue_nums, state.options, now_ms
    )
    is_of_group = header.topic.startswith(RETRY_PREFIX)
    if config is None and is_of_group and state.topics.has_room(state.options, now_ms):
        return state.topics.ensure(header.topic, 1, READ_WRITE, now_ms)
    return config


def _describe(config: TopicConfig, peer: Peer) -> str:
    return (
        f"topic[{config.topic_name}] has {config.read_queue_nums} queues to read and "
        f"{config.write_queue_nums} to write, producer: {peer.address}"
    )


# ---- one message -------------------------------------------------------------------------------


class _OneSend:
    """Answers a send when its record is stored."""

    __slots__ = ("_peer", "_queue_id", "_record", "_request", "_state", "_unique_key")

    def __init__(
        self,
        state: BrokerState,
        request: Command,
        peer: Peer,
        record: Record,
        queue_id: int,
        unique_key: str,
    ) -> None:
        self._state = state
        self._request = request
        self._peer = peer
        self._record = record
        self._queue_id = queue_id
        self._unique_key = unique_key

    def __call__(self, error: RocketMQError | None, now_ms: int) -> Sequence[Output]:
        state, record = self._state, self._record
        if error is not None:
            return _failed(state, self._request, self._peer, error)
        if self._request.is_oneway:
            return ()
        stored = StoredReply(
            state.stored_form,
            self._queue_id,
            self._unique_key,
            record.log_offset,
            record.queue_offset,
        )
        if record.topic_bytes == _TIMER_TOPIC:
            answer = stored.plain()
            answer.fields["recallHandle"] = recall_handle_of(record, state.options.name)
            return (LateReply(self._peer.number, self._request, answer),)
        return (LateReply(self._peer.number, self._request, stored),)


_TIMER_TOPIC: Final = TIMER_TOPIC.encode()


def _store_one(
    state: BrokerState,
    request: Command,
    header: SendHeader,
    peer: Peer,
    queue_id: int,
    now_ms: int,
) -> Sequence[Output]:
    text = header.properties or ""
    properties = decode_properties(text)
    unique_key = properties.get(_UNIQUE_KEY)
    if unique_key is None:
        unique_key = state.make_unique_id(now_ms)
        properties[_UNIQUE_KEY] = unique_key
        text = _with(text, f"{_UNIQUE_KEY}\x01{unique_key}\x02")
    record = _record(state, request, header, peer, queue_id)
    on_stored: OnStored = _OneSend(state, request, peer, record, queue_id, unique_key)
    is_awaited = properties.get(_WAIT) != "false"
    is_half = _PREPARED in properties
    is_usual = not is_half or (
        is_plain_half(properties) and not state.options.is_transaction_rejected
    )
    if (
        is_usual
        and UNUSUAL_KEYS.isdisjoint(properties)
        and not header.topic.startswith(RETRY_PREFIX)
    ):
        record.property_bytes = _with(text, state.broker_properties_text).encode(errors="replace")
        if is_half:
            properties.update(state.broker_properties)
            on_stored = prepare_half(state, record, properties, on_stored)
        refused = store_directly(state, record, properties, on_stored, is_flush_awaited=is_awaited)
        return STORE_PENDING if refused is None else _refused(state, refused)
    return _store_unusual(state, header, record, properties, now_ms, on_stored, is_awaited)


def _store_unusual(
    state: BrokerState,
    header: SendHeader,
    record: Record,
    properties: dict[str, str],
    now_ms: int,
    on_stored: OnStored,
    is_awaited: bool,
) -> Sequence[Output]:
    """Store a message that needs more than the plain path of `_store_one`."""
    changes: list[Output] = []
    refused: Command | None = None
    properties.pop(PropertyKey.POP_CHECKPOINT, None)
    properties.update(state.broker_properties)
    record.property_bytes = join_properties(properties)
    if header.topic.startswith(RETRY_PREFIX):
        refused = _prepare_retry(state, header, record, properties, now_ms, changes)
    is_half = properties.get(_PREPARED) == "true"
    if is_half and state.options.is_transaction_rejected:
        refused = sending_forbidden(state, "transaction message")
    if refused is None and is_half:
        on_stored = prepare_half(state, record, properties, on_stored)
        refused = store_directly(state, record, properties, on_stored, is_flush_awaited=is_awaited)
    elif refused is None:
        refused = store_message(
            state, record, properties, now_ms, on_stored, is_flush_awaited=is_awaited
        )
    return (*changes, *(STORE_PENDING if refused is None else _refused(state, refused)))


def _with(text: str, more: str) -> str:
    """Append properties to a property string, which may or may not end with a separator."""
    return f"{text}{more}" if not text or text[-1] == "\x02" else f"{text}\x02{more}"


def _record(
    state: BrokerState, request: Command, header: SendHeader, peer: Peer, queue_id: int
) -> Record:
    born = born_host(peer.address)
    host = state.host
    return Record(
        queue_id=queue_id,
        flag=header.flag,
        sys_flag=header.sys_flag & CLIENT_FLAGS | born.sys_flag | host.sys_flag,
        born_ms=header.born_timestamp,
        born_ip=born.ip,
        born_port=born.port,
        store_ip=host.ip,
        store_port=host.port,
        reconsume_times=header.reconsume_times or 0,
        body=request.body,
        topic_bytes=header.topic.encode(),
    )


def _prepare_retry(
    state: BrokerState,
    header: SendHeader,
    record: Record,
    properties: dict[str, str],
    now_ms: int,
    changes: list[Output],
) -> Command | None:
    """Turn a retry that was tried often enough into a dead letter (Java: handleRetryAndDLQ)."""
    group = header.topic.removeprefix(RETRY_PREFIX)
    config = ensure_group(state, group, now_ms, changes)
    if config is None:
        remark = f"subscription group not exist, {group}{FAQ}"
        return refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    limit = config.retry_max_times
    if header.max_reconsume_times is not None:
        limit = header.max_reconsume_times
    times = header.reconsume_times or 0
    if times > limit or (times > 0 and state.locks.has_locks(group, now_ms)):
        dead = dead_letter_topic(group)
        ensure_topic(state, dead, 1, READ_WRITE, now_ms, changes)
        record.topic_bytes = dead.encode()
        record.queue_id = 0
        properties[PropertyKey.DELAY] = "-1"
        origin = properties.get(PropertyKey.RETRY_TOPIC, header.topic)
        state.statistics.events.dead_letter(origin, group)
        record.property_bytes = join_properties(properties)
    return None


# ---- plain sends that arrived together ---------------------------------------------------------


class _RunSend:
    """Answers the sends of a run when all their records are stored."""

    __slots__ = ("_peer", "_run", "_state")

    def __init__(self, state: BrokerState, run: SendRun, peer: Peer) -> None:
        self._state = state
        self._run = run
        self._peer = peer

    def __call__(self, error: RocketMQError | None, now_ms: int) -> Sequence[Output]:
        assert error is None, "what cannot be stored together is stored apart"
        run = self._run
        if run.is_half:
            self._state.halves.recent.add_plain(run.halves())
        run.release()
        if not run.reply_count:
            return ()
        return (LateReplies(self._peer.number, run, self._state.stored_form),)

    def apart(self) -> list[PendingWrite]:
        """Return each send as a write of its own."""
        state, peer = self._state, self._peer
        writes: list[PendingWrite] = []
        for request in single_requests(self._run):
            is_v1 = request.code == RequestCode.SEND_MESSAGE
            header = (SendRequest if is_v1 else SendRequestV2).from_fields(request.fields)
            properties = decode_properties(header.properties or "")
            record = _record(state, request, header, peer, header.queue_id)
            record.property_bytes = _with(
                header.properties or "", state.broker_properties_text
            ).encode()
            on_stored: OnStored = _OneSend(
                state, request, peer, record, header.queue_id, properties[_UNIQUE_KEY]
            )
            if self._run.is_half:
                properties.update(state.broker_properties)
                on_stored = prepare_half(state, record, properties, on_stored)
            is_awaited = self._run.is_flush_awaited
            writes.append(PendingWrite([record], [properties], on_stored, is_awaited))
        return writes


def add_run(state: BrokerState, run: SendRun, peer: Peer) -> bool:
    """Add plain sends to the write queue, if each of them would be stored as it is.

    Returns:
        Whether they were added. If not, one of them needs a closer look, and nothing has changed.
    """
    added = state.broker_properties_text.encode()
    property_bytes_max = PROPERTIES_BYTES_MAX - len(added) - 1  # a separator may be missing
    if (
        not state.accepts_sends
        or state.unwritable is not None
        or run.body_bytes_max > state.options.message_bytes_max
        or run.property_bytes_max > property_bytes_max
        or (run.is_half and state.options.is_transaction_rejected)
        or not all(_is_plain_queue(state, topic, number) for topic, number in run.asked_queues)
    ):
        return False
    born, host = born_host(peer.address), state.host
    run.prepare((born.ip, born.port), (host.ip, host.port), born.sys_flag | host.sys_flag, added)
    on_stored = _RunSend(state, run, peer)
    state.write_queue.add(
        [run], [{}], on_stored, is_flush_awaited=run.is_flush_awaited, apart=on_stored.apart
    )
    return True


def _is_plain_queue(state: BrokerState, topic_bytes: bytes, queue_id: int) -> bool:
    topic = topic_bytes.decode()
    config = state.topics.get(topic)
    return (
        config is not None
        and 0 <= queue_id < max(config.write_queue_nums, config.read_queue_nums)
        and topic not in BROKER_FORBIDDEN_TOPICS
        and not topic.startswith(RETRY_PREFIX)
    )


# ---- batches -----------------------------------------------------------------------------------


class _BatchSend:
    """Answers a batch when all its records are stored."""

    __slots__ = ("_batch", "_peer", "_request", "_state", "_unique_key")

    def __init__(
        self,
        state: BrokerState,
        request: Command,
        peer: Peer,
        batch: BatchRun,
        unique_key: str | None,
    ) -> None:
        self._state = state
        self._request = request
        self._peer = peer
        self._batch = batch
        self._unique_key = unique_key

    def __call__(self, error: RocketMQError | None, now_ms: int) -> Sequence[Output]:
        state, batch = self._state, self._batch
        if error is not None:
            return _failed(state, self._request, self._peer, error)
        if self._request.is_oneway:
            return ()
        ((_, queue_id),) = batch.queues
        fields = {
            "queueId": str(queue_id),
            "msgId": batch.ids(state.host.id_prefix),
            "queueOffset": str(batch.queue_offsets[0]),
            "TRACE_ON": "true" if state.options.is_trace_on else "false",
            "MSG_REGION": state.options.region,
        }
        if self._unique_key is not None:
            fields["transactionId"] = self._unique_key
        return (LateReply(self._peer.number, self._request, Command(0, fields)),)


def _store_batch(
    state: BrokerState, request: Command, header: SendHeader, peer: Peer, queue_id: int
) -> Sequence[Output]:
    batch = _read_batch(state, request, header, peer, queue_id)
    if isinstance(batch, Command):
        return _refused(state, batch)
    own = decode_properties(header.properties or "")
    on_stored = _BatchSend(state, request, peer, batch, own.get(_UNIQUE_KEY))
    is_awaited = own.get(_WAIT) != "false"
    state.write_queue.add([batch], [{}], on_stored, is_flush_awaited=is_awaited)
    return STORE_PENDING


def _read_batch(
    state: BrokerState, request: Command, header: SendHeader, peer: Peer, queue_id: int
) -> BatchRun | Command:
    """Return the records of a batch, or the refusal.

    Raises:
        MalformedBody: The batch is damaged.
    """
    problem = None
    if header.topic.startswith(RETRY_PREFIX):
        problem = "batch request does not support retry group"
    elif len(request.body) > state.options.message_bytes_max:
        problem = f"the batch has more than {state.options.message_bytes_max} bytes"
    elif state.unwritable is not None:
        remark = f"no message is stored: {state.unwritable}"
        return refusal(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
    if problem is not None:
        return refusal(ResponseCode.MESSAGE_ILLEGAL, problem)
    shared = _record(state, request, header, peer, queue_id)
    shared.body, shared.flag = b"", 0
    if len(shared.topic_bytes) > TOPIC_BYTES_MAX:
        shared.magic = MAGIC_V2
    batch = record_batch(shared, request.body)
    count = len(batch)
    if count > BATCH_MESSAGES_MAX:
        problem = f"the batch has {count} messages where {BATCH_MESSAGES_MAX} are allowed"
        return refusal(ResponseCode.MESSAGE_ILLEGAL, problem)
    return batch


# ---- refusals ----------------------------------------------------------------------------------


def _refused(state: BrokerState, command: Command) -> Sequence[Output]:
    """Return a refusal with the two fields that every reply to a send has."""
    command.fields = {
        "TRACE_ON": "true" if state.options.is_trace_on else "false",
        "MSG_REGION": state.options.region,
    }
    return (Reply(command),)


def _failed(
    state: BrokerState, request: Command, peer: Peer, error: RocketMQError
) -> Sequence[Output]:
    """Return the reply to a send that could not be stored."""
    if isinstance(error, DiskFull):
        code = ResponseCode.SERVICE_NOT_AVAILABLE
    elif isinstance(error, StoreError):
        code = ResponseCode.MESSAGE_ILLEGAL
    else:
        code = ResponseCode.SYSTEM_ERROR
    if request.is_oneway:
        return ()
    (reply,) = _refused(state, refusal(code, str(error)))
    assert isinstance(reply, Reply)
    return (LateReply(peer.number, request, reply.command),)


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.SEND_MESSAGE_V2): _send_v2,
    int(RequestCode.SEND_BATCH_MESSAGE): _send_v2,
    int(RequestCode.SEND_MESSAGE): _send_v1,
}
