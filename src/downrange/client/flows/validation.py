"""Validation of topics, groups and messages before anything is sent, with Java's limits.

One rule: nothing is changed here. A value passes, or an error names it, what is wrong with it, and
what is allowed. A valid message costs a few comparisons: the result for a topic is cached.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from downrange.checks import check_text, check_whole, shown, wrong_type
from downrange.client.flows.names import with_namespace
from downrange.client.flows.routing.selectors import is_selector
from downrange.errors import InvalidMessage, OptionError
from downrange.model import Message, QueueId, ReceivedMessage
from downrange.wire.limits import GROUP_BYTES_MAX, INT32_MAX, TOPIC_BYTES_MAX
from downrange.wire.properties import PropertyKey
from downrange.wire.system_names import (
    CLIENT_FORBIDDEN_TOPICS,
    DEFAULT_CONSUMER_GROUP,
    DEFAULT_PRODUCER_GROUP,
    GROUP_TOPIC_PREFIXES,
    LEGAL_NAME,
    RETRY_PREFIX,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Property names of the protocol, which users' properties cannot have (of 5.5.0, which has more
#: than 4.9). Python strings, because they are compared with the name of each property.
RESERVED_PROPERTIES: Final = frozenset(
    {
        *(
            key.value
            for key in PropertyKey
            if key
            not in (
                PropertyKey.TRANSACTION_ID,
                PropertyKey.CHECK_IMMUNITY_TIME,
                PropertyKey.TRANSACTION_CHECK_TIMES,
                PropertyKey.SHARDING_KEY,
                PropertyKey.INNER_COUNT,
                PropertyKey.INNER_BASE,
                PropertyKey.INNER_MULTI_DISPATCH,
            )
        ),
        *("BUYER_ID", "CORRECTION_FLAG", "DUP_INFO", "EXTEND_UNIQ_INFO", "MQ2_FLAG"),
        *("TRANSFER_FLAG", "_SYS_MSG_PRIORITY_", "__LITE_TOPIC"),
    }
)

#: How often a message for a retry topic was delivered, and the most deliveries before it becomes a
#: dead letter; both become fields of the request.
_RETRY_COUNTS: Final = frozenset(
    {PropertyKey.RECONSUME_TIME.value, PropertyKey.MAX_RECONSUME_TIMES.value}
)
#: Reserved properties that a message for a retry topic may have, as Java's consumers set them.
_RETRY_PROPERTIES: Final = _RETRY_COUNTS | {
    PropertyKey.RETRY_TOPIC.value,
    PropertyKey.ORIGIN_MESSAGE_ID.value,
}
_LIGHT_QUEUES: Final = PropertyKey.INNER_MULTI_DISPATCH.value
_LEGAL_WORDS: Final = "letters, digits, '_', '-', '%' and '|' are allowed"
#: How many valid topics are cached; a client sends to a few.
_REMEMBERED_MAX: Final = 4096


def check_topic(topic: str) -> None:
    """Check the name of a topic.

    Raises:
        OptionError: Says what is wrong with it.
    """
    check_text("topic", topic)
    if problem := _name_problem("topic", topic, TOPIC_BYTES_MAX):
        raise OptionError(problem)


def check_group(group: str) -> None:
    """Check the name of a group.

    Raises:
        OptionError: Says what is wrong with it.
    """
    check_text("group", group)
    if problem := _name_problem("group", group, GROUP_BYTES_MAX):
        raise OptionError(problem)


def check_producer_group(group: str) -> None:
    """Check the name of a producer's group.

    Raises:
        OptionError: Says what is wrong with it.
    """
    check_group(group)
    _check_own_name(group, DEFAULT_PRODUCER_GROUP)


def check_consumer_group(group: str) -> None:
    """Check the name of a consumer's group.

    Raises:
        OptionError: Says what is wrong with it.
    """
    check_group(group)
    _check_own_name(group, DEFAULT_CONSUMER_GROUP)
    if group.startswith(GROUP_TOPIC_PREFIXES):
        raise OptionError(
            f"{group!r} is the name of a topic of a group; give the group, and subscribe to the "
            "topic"
        )


def _check_own_name(group: str, placeholder: str) -> None:
    if group == placeholder:
        raise OptionError(
            f"group {group!r} is Java's placeholder for a missing name; give your own name"
        )


def check_message(message: Message, body_bytes_max: int, namespace: str | None = None) -> None:
    """Check a message: a broker must accept it and read all of it correctly.

    Args:
        message: The message, its topic without the namespace.
        body_bytes_max: The most bytes of its body, before compression.
        namespace: The namespace; the length limit holds for namespace and topic together.

    Raises:
        InvalidMessage: Says what is wrong; nothing was sent.
    """
    if message.__class__ is not Message:
        check_is_message(message)
    check_target_topic(message.topic, namespace)
    if not 0 < len(message.body) <= body_bytes_max:
        raise invalid(message, _body_problem(message, body_bytes_max))
    if message.properties:
        _check_properties(message, message.properties)
    if message.delay_level is not None and message.delay_level < 0:
        raise invalid(message, f"delay_level={message.delay_level} is below 0; levels begin at 1")
    if message.deliver_in is not None and not 0 <= message.deliver_in < float("inf"):
        raise invalid(message, f"deliver_in={message.deliver_in} is not a number of seconds")
    if message.flag and not ~INT32_MAX <= message.flag <= INT32_MAX:
        raise invalid(message, f"flag={message.flag} does not fit 32 bits")


def check_is_message(message: object, name: str = "message") -> None:
    """Check that an object to send is a message.

    Raises:
        OptionError: Names its type, and how to make a message of it.
    """
    if not isinstance(message, Message):
        hint = "write Message(topic, body)"
        if isinstance(message, ReceivedMessage):
            hint = "write Message(topic, received.body) to send its body again"
        raise wrong_type(name, message, "a Message", hint)


def check_queue(queue: object, name: str = "queue") -> None:
    """Check the type of a queue, and of its parts.

    Raises:
        OptionError: Says what is wrong with it.
    """
    if not isinstance(queue, QueueId):
        raise wrong_type(name, queue, "a QueueId", "such as one of publish_queues(topic)")
    check_text(f"topic of {name}", queue.topic)
    check_text(f"broker of {name}", queue.broker)
    check_whole(f"number of {name}", queue.number)
    if queue.number < 0:
        raise OptionError(f"number of {name}: {queue.number} is less than 0")


def check_target(target: object) -> None:
    """Check the `queue` argument of a send: a queue, or a selector.

    Raises:
        OptionError: It is neither.
    """
    if isinstance(target, QueueId):
        check_queue(target)
    elif not is_selector(target):
        raise OptionError(
            f"queue must be a QueueId, a selector such as by_hash(key), or a function, not "
            f"{shown(target)}"
        )


def check_messages(
    messages: Iterable[Message], body_bytes_max: int, namespace: str | None = None
) -> None:
    """Check messages; see `check_message`.

    Raises:
        InvalidMessage: Says what is wrong with the first message that is not valid.
    """
    checked_topic: str | None = None
    for message in messages:
        # For most messages of a list, only the size of the body is new.
        if (
            message.topic != checked_topic
            or not 0 < len(message.body) <= body_bytes_max
            or message.properties
            or message.delay_level
            or message.deliver_in
            or message.flag
        ):
            check_message(message, body_bytes_max, namespace)
            checked_topic = message.topic


def check_list(
    messages: Sequence[Message], body_bytes_max: int, namespace: str | None = None
) -> None:
    """Check all messages of a list; see `check_message`.

    Raises:
        InvalidMessage: Says what is wrong with the first message that is not valid, and its index.
    """
    try:
        check_messages(messages, body_bytes_max, namespace)
    except InvalidMessage as error:
        refused = (
            index
            for index, message in enumerate(messages)
            if not _is_valid(message, body_bytes_max, namespace)
        )
        error.args = (f"{error} (message {next(refused)} of the list)",)
        raise


def _is_valid(message: Message, body_bytes_max: int, namespace: str | None) -> bool:
    try:
        check_message(message, body_bytes_max, namespace)
    except InvalidMessage:
        return False
    return True


@lru_cache(_REMEMBERED_MAX)  # errors are not cached, so they are raised each time
def check_target_topic(topic: str, namespace: str | None) -> None:
    """Check the topic of a message, without the namespace; the result is cached.

    Raises:
        InvalidMessage: Says what is wrong with it.
    """
    whole = with_namespace(topic, namespace)
    problem = _name_problem("topic", whole, TOPIC_BYTES_MAX)
    if whole in CLIENT_FORBIDDEN_TOPICS:
        problem = f"topic {whole!r} is reserved for brokers; clients cannot send to it"
    if problem:
        error = InvalidMessage(problem)
        error.topic = topic
        raise error


def _name_problem(what: str, name: str, length_max: int) -> str | None:
    if not name.strip():
        return f"{what} {name!r} is blank; give a name"
    if len(name) > length_max:
        return f"{what} {name!r} has {len(name)} characters, {length_max} are allowed"
    if LEGAL_NAME.fullmatch(name) is None:
        wrong = "".join(dict.fromkeys(LEGAL_NAME.sub("", name)))
        return f"{what} {name!r} contains {wrong!r}; {_LEGAL_WORDS}"
    return None


def _body_problem(message: Message, body_bytes_max: int) -> str:
    if not message.body:
        return "its body is empty; brokers accept only bodies of at least one byte"
    return (
        f"its body has {len(message.body)} bytes, body_bytes_max={body_bytes_max} are allowed; "
        "send less, or raise this limit and that of the brokers (maxMessageSize)"
    )


def _check_properties(message: Message, properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        try:
            if name in RESERVED_PROPERTIES:
                _check_reserved(message, name, value)
            # Consumers drop a property without a value, and a blank name cannot be queried.
            is_blank = not name.strip() or not value.strip()
        except AttributeError:
            raise invalid(message, f"property {name!r} = {value!r} is not text") from None
        if is_blank:
            raise invalid(message, f"property {name!r} = {value!r}: neither may be blank")
    # The names of light queues are folder names on the broker's disk.
    if "/" in properties.get(_LIGHT_QUEUES, ""):
        queues = properties[_LIGHT_QUEUES]
        raise invalid(message, f"property {_LIGHT_QUEUES} = {queues!r} contains a '/'")


def _check_reserved(message: Message, name: str, value: str) -> None:
    if name not in _RETRY_PROPERTIES or not message.topic.startswith(RETRY_PREFIX):
        raise invalid(message, f"property {name!r} is reserved by the protocol; rename it")
    if name in _RETRY_COUNTS and not (
        value.isascii() and value.isdecimal() and len(value) <= 10 and int(value) <= INT32_MAX
    ):
        raise invalid(
            message, f"property {name!r} = {value!r} is not a number from 0 to {INT32_MAX}"
        )


def invalid(message: Message, problem: str) -> InvalidMessage:
    """Return the error for a message, with its topic."""
    error = InvalidMessage(f"message for {message.topic!r}: {problem}")
    error.topic = message.topic
    return error
