"""Prepare messages for sending: validate, add namespace, id and properties, compress.

This happens before a flow starts, so that compression does not block other flows. A retry sends the
same bytes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from downrange.client.flows.names import with_namespace
from downrange.client.flows.producing.batches import check_batch
from downrange.client.flows.validation import (
    check_message,
    check_messages,
    check_target_topic,
    invalid,
)
from downrange.errors import InvalidMessage, Unencodable
from downrange.model import CompressedMessage, Message
from downrange.wire.codes import RequestCode, TransactionFlag
from downrange.wire.compression import Compression, compress, flags_of
from downrange.wire.messages import (
    batch_of,
    check_property_bytes,
    property_text,
    usual_properties,
)
from downrange.wire.properties import PropertyKey, encode_properties

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.client.flows.producing.producer_state import ProducerState

#: The algorithms by their names in options and messages.
COMPRESSIONS: Final = {
    "zlib": Compression.ZLIB,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
_PREPARED: Final = int(TransactionFlag.PREPARED)
#: The request codes of a message and of a reply, for each version of the header.
_CODES_V1: Final = (int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_REPLY_MESSAGE))
_CODES_V2: Final = (int(RequestCode.SEND_MESSAGE_V2), int(RequestCode.SEND_REPLY_MESSAGE_V2))
_SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)


class Outgoing(msgspec.Struct, gc=False):
    """A message, or a batch, ready to be sent to any queue.

    Attributes:
        message: The user's message; the first one of a batch.
        topic: The topic, with the namespace.
        message_id: Its unique id; the ids of a batch joined by commas.
        body: The encoded body.
        properties: The property string.
        sys_flag: The system flag: compression and transaction.
        code: The request code.
        born_ms: When it was prepared, in milliseconds since 1970.
        batch: All messages of a batch; None for one message.
        count: How many messages it holds.
        failed: How many attempts to send it have failed.
    """

    message: Message
    topic: str
    message_id: str
    body: bytes
    properties: str
    sys_flag: int
    code: int
    born_ms: int
    batch: Sequence[Message] | None = None
    count: int = 1
    failed: int = 0


def prepare(
    producer: ProducerState,
    message: Message,
    *,
    extra: Mapping[str, str] | None = None,
    is_half: bool = False,
    is_reply: bool = False,
) -> Outgoing:
    """Prepare one message.

    Args:
        producer: The producer that sends it.
        message: The message.
        extra: Properties of the protocol to add; none of them may be among its own.
        is_half: Whether it is a half message of a transaction.
        is_reply: Whether it answers a request.

    Raises:
        InvalidMessage: The message is not valid.
    """
    options = producer.options
    client = producer.client
    namespace = client.options.namespace
    born_ms = client.clock.wall_ms()
    message_id = client.unique_ids.make(born_ms)
    properties = usual_properties(message, options.body_bytes_max, message_id)
    if properties is None:
        check_message(message, options.body_bytes_max, namespace)
    else:
        check_target_topic(message.topic, namespace)
    try:
        if properties is None:
            properties = property_text(message, message_id)
        if namespace is not None:
            properties += encode_properties({PropertyKey.INSTANCE_ID: namespace})
            check_property_bytes(properties)
        if extra is not None:
            properties += encode_properties(extra)
            check_property_bytes(properties)
    except Unencodable as error:
        raise invalid(message, str(error)) from error
    body, sys_flag = message.body, 0
    if type(message) is CompressedMessage:
        sys_flag = flags_of(COMPRESSIONS[message.compression])
    elif len(body) >= options.compress_over_bytes:
        body, sys_flag = compress(
            body, COMPRESSIONS[options.compression], options.compression_level
        )
    if is_half:
        sys_flag |= _PREPARED
    codes = _CODES_V1 if options.header_version == 1 else _CODES_V2
    topic = message.topic if namespace is None else with_namespace(message.topic, namespace)
    # By position: names would cost as much again.
    return Outgoing(
        message, topic, message_id, body, properties, sys_flag, codes[is_reply], born_ms
    )


def prepare_batch(producer: ProducerState, messages: Sequence[Message]) -> Outgoing:
    """Prepare a list of messages as one batch; batches are not compressed, as in Java.

    A batch has no unique id of its own: brokers of 4.9 would give it to every message in it.

    Raises:
        InvalidMessage: A message is not valid, or they cannot share a batch.
        Unencodable: A property cannot be encoded.
    """
    check_batch(messages)
    return prepare_checked_batch(producer, messages)


def prepare_checked_batch(
    producer: ProducerState, messages: Sequence[Message], is_valid: bool = False
) -> Outgoing:
    """Prepare messages as one batch, after `check_batch`.

    Args:
        producer: The producer that sends them.
        messages: The messages.
        is_valid: Whether `check_messages` was called already.

    Raises:
        InvalidMessage: A message is not valid, or they are too large for one request.
        Unencodable: A property cannot be encoded.
    """
    options = producer.options
    client = producer.client
    namespace = client.options.namespace
    if not is_valid:
        check_messages(messages, options.body_bytes_max, namespace)
    born_ms = client.clock.wall_ms()
    ids = client.unique_ids.make_several(born_ms, len(messages))
    body = batch_of(messages if type(messages) is list else list(messages), ids)
    if len(body) > options.body_bytes_max:
        raise InvalidMessage(
            f"a batch of {len(messages)} messages has {len(body)} bytes, more than "
            f"body_bytes_max={options.body_bytes_max}; send_batch splits a list by itself"
        )
    first = messages[0]
    properties = {"WAIT": "true" if first.wait_stored else "false"}
    if namespace is not None:
        properties[PropertyKey.INSTANCE_ID] = namespace
    return Outgoing(
        message=first,
        topic=first.topic if namespace is None else with_namespace(first.topic, namespace),
        message_id=",".join(ids),
        body=body,
        properties=encode_properties(properties),
        sys_flag=0,
        code=_SEND_BATCH,
        born_ms=born_ms,
        batch=messages,
        count=len(messages),
    )
