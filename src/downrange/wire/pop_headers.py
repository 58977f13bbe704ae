"""Typed headers of pop consumption; see `headers` for their form, `pop_receipts` for the texts."""

from __future__ import annotations

from downrange.wire.codes import RequestCode as Code
from downrange.wire.fields import Header, Int32, Int64, reply, request


@request(Code.POP_MESSAGE)
class PopRequest(Header):
    """Pop messages: get some that are invisible to others until they are acknowledged."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


@reply(Code.POP_MESSAGE, Code.PEEK_MESSAGE)
class PopReply(Header):
    """Where the messages in the body come from."""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0
    rest_num: Int64 = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@request(Code.ACK_MESSAGE)
class AckRequest(Header):
    """Acknowledge one popped message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    lite_topic: str | None = None


@request(Code.CHANGE_MESSAGE_INVISIBLETIME)
class ChangeInvisibleRequest(Header):
    """Change when a popped message becomes visible again."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64
    lite_topic: str | None = None
    suspend: bool = False


@reply(Code.CHANGE_MESSAGE_INVISIBLETIME)
class ChangeInvisibleReply(Header):
    """The parts of the new receipt."""

    pop_time: Int64 = 0
    invisible_time: Int64 = 0
    revive_qid: Int32 = 0


@request(Code.PEEK_MESSAGE)
class PeekRequest(Header):
    """Read messages without popping them."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


@request(Code.NOTIFICATION)
class NotificationRequest(Header):
    """Wait until a pop would find a message."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


@reply(Code.NOTIFICATION)
class NotificationReply(Header):
    """Whether there is a message, or the request could not wait."""

    has_msg: bool = False
    polling_full: bool = False


@request(Code.POLLING_INFO)
class PollingCountRequest(Header):
    """Count the pops that wait for a queue."""

    consumer_group: str
    topic: str
    queue_id: Int32


@reply(Code.POLLING_INFO)
class PollingCountReply(Header):
    """How many wait."""

    polling_num: Int32 = 0
