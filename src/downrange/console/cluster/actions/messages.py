"""Actions on messages: send one, send one again, deliver one to a group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from downrange import Message
from downrange.console.cluster import limits
from downrange.console.cluster.actions.action import result_of
from downrange.console.cluster.message_ids import check_place
from downrange.console.cluster.problems import NoSuchMember
from downrange.errors import OptionError, ServerFailure

if TYPE_CHECKING:
    from downrange import AsyncAdmin
    from downrange.console.cluster.actions.action import ActionResult, Right
    from downrange.console.cluster.sending_admin import SendingAdmin

#: How a broker says that a group has no such member.
_NOT_A_MEMBER: Final = "not online"
#: Seconds for a member to consume a message; brokers give it 10 s.
_MEMBER_SECONDS: Final = 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessage:
    """Send a message with a text as its body.

    Attributes:
        topic: The topic; it must exist.
        body: The text.
        tags: Its tag.
        keys: Its keys.
        properties: Its properties.
        sharding_key: Messages with the same one go to one queue.
        delay_level: Deliver after the delay of this level.
        deliver_in: Deliver after this many seconds (5.x).
    """

    name: ClassVar[str] = "send-message"
    right: ClassVar[Right] = "publish"
    is_destructive: ClassVar[bool] = False

    topic: str
    body: str
    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = field(default_factory=dict[str, str])
    sharding_key: str | None = None
    delay_level: int | None = None
    deliver_in: float | None = None

    @property
    def target(self) -> str:
        """The topic."""
        return self.topic

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        words = ["send"]
        if self.tags is not None:
            words += ["--tags", self.tags]
        for key in self.keys:
            words += ["--key", key]
        for name, value in self.properties.items():
            words += ["--property", f"{name}={value}"]
        if self.sharding_key is not None:
            words += ["--sharding-key", self.sharding_key]
        if self.delay_level is not None:
            words += ["--delay-level", str(self.delay_level)]
        if self.deliver_in is not None:
            words += ["--deliver-in", repr(self.deliver_in)]
        return (*words, "--", self.topic, self.body)

    async def run(self, admin: SendingAdmin) -> ActionResult:
        """Send it. `values` of the result: message_id, offset_id, broker, queue, offset."""
        body = self.body.encode()
        if len(body) > limits.SEND_BYTES_MAX:
            raise OptionError(
                f"the body has {len(body)} bytes, more than {limits.SEND_BYTES_MAX}; "
                "send it with `downrange send --file`"
            )
        await admin.topic_route(self.topic)  # a send must not create a topic by a misspelt name
        message = Message(
            self.topic,
            body,
            tags=self.tags,
            keys=self.keys,
            properties=self.properties,
            sharding_key=self.sharding_key,
            delay_level=self.delay_level,
            deliver_in=self.deliver_in,
        )
        receipt = await admin.send(message)
        return result_of(
            self,
            f"the message was sent to {self.topic!r}",
            message_id=receipt.message_id,
            offset_id=receipt.offset_id,
            broker=receipt.queue.broker,
            queue=receipt.queue.number,
            offset=receipt.offset,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAgain:
    """Send a copy of a stored message to its topic; all groups get it.

    Attributes:
        topic: The topic.
        message_id: Either id of the message.
    """

    name: ClassVar[str] = "send-again"
    right: ClassVar[Right] = "publish"
    is_destructive: ClassVar[bool] = False

    topic: str
    message_id: str

    @property
    def target(self) -> str:
        """The topic."""
        return self.topic

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        return ("message", "resend", "--", self.topic, self.message_id)

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Send it. `values` of the result: message_id of the copy."""
        await check_place(admin, self.topic, self.message_id)
        new_id = await admin.send_again(self.topic, self.message_id)
        text = f"a copy of {self.message_id} was sent to {self.topic!r}"
        return result_of(self, text, message_id=new_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliverToGroup:
    """Deliver a stored message to one group now; offsets do not change.

    Attributes:
        group: The group.
        topic: The topic of the message.
        message_id: Either id of the message.
        client_id: The member that consumes it, while the action waits for its answer. Without one,
            a copy goes to the retry topic of the group, where any member gets it.
    """

    name: ClassVar[str] = "deliver-to-group"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = False

    group: str
    topic: str
    message_id: str
    client_id: str | None = None

    @property
    def target(self) -> str:
        """The group."""
        return self.group

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        if self.client_id is None:
            return ("group", "retry", "--", self.group, self.topic, self.message_id)
        words = (self.group, self.client_id, self.topic, self.message_id)
        return ("group", "consume-one", "--", *words)

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Deliver it.

        `values` of the result: message_id of the copy; or, with a member, result, remark and
        seconds. `is_ok` is False if the member did not accept it.
        """
        await check_place(admin, self.topic, self.message_id)
        if self.client_id is None:
            new_id = await admin.retry_now(self.group, self.topic, self.message_id)
            text = f"group {self.group!r} gets a copy of {self.message_id}"
            return result_of(self, text, message_id=new_id)
        try:
            found = await admin.consume_directly(
                self.group, self.client_id, self.topic, self.message_id, timeout=_MEMBER_SECONDS
            )
        except ServerFailure as error:
            if _NOT_A_MEMBER in (error.remark or ""):
                raise NoSuchMember(self.group, self.client_id) from error
            raise
        verdict = "consumed" if found.is_consumed else "did not accept"
        return result_of(
            self,
            f"{self.client_id} {verdict} {self.message_id}: {found.result}",
            is_ok=found.is_consumed,
            result=found.result,
            remark=found.remark,
            seconds=found.seconds,
        )
