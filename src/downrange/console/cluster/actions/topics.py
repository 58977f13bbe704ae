"""Actions on topics: create, alter, delete."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

from downrange.console.cluster.actions.action import check_typed, result_of
from downrange.errors import OptionError, RouteNotFound, ServerFailure

if TYPE_CHECKING:
    from collections.abc import Generator

    from downrange import AsyncAdmin
    from downrange.console.cluster.actions.action import ActionResult, Right

#: How brokers refuse an attribute, with the code of a failure. Java: AttributeUtil and the classes
#: of attributes; the last one is of our broker.
_WRONG_ATTRIBUTE: Final = (
    *("attribute", "unsupported key", "nonexistent key", "wrong format key", "duplication key"),
    *("kv string format", "value is not in", "is not supported"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    """Create a topic on every master of a cluster; an existing one is an error.

    Attributes:
        topic: Its name.
        queues: Queues per broker.
        permission: "rw", "r" or "w".
        is_ordered: Whether it is an order topic.
        attributes: Settings of 5.x, such as {"message.type": "FIFO"}.
        cluster: The cluster, where there are several.
    """

    name: ClassVar[str] = "create-topic"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = False

    topic: str
    queues: int = 8
    permission: str = "rw"
    is_ordered: bool = False
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    cluster: str | None = None

    @property
    def target(self) -> str:
        """The topic."""
        return self.topic

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        words = ["topic", "create", "--queues", str(self.queues)]
        if self.permission != "rw":
            words += ["--permission", self.permission]
        if self.is_ordered:
            words.append("--ordered")
        for name, value in self.attributes.items():
            words += ["--attribute", f"{name}={value}"]
        if self.cluster is not None:
            words += ["--cluster", self.cluster]
        return (*words, "--", self.topic)

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Create it."""
        permission = permission_of(self.permission)
        try:
            await admin.topic_route(self.topic)
        except RouteNotFound:
            with _refused_attributes():
                await admin.create_topic(
                    self.topic,
                    queues=self.queues,
                    permission=permission,
                    is_ordered=self.is_ordered,
                    attributes=self.attributes,
                    cluster=self.cluster,
                )
            return result_of(self, f"topic {self.topic!r} was created", queues=self.queues)
        raise OptionError(f"topic {self.topic!r} exists; alter it instead")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterTopic:
    """Change settings of a topic; those that are None stay as they are on each broker.

    Attributes:
        topic: Its name.
        read_queues: Queues per broker that consumers read.
        write_queues: Queues per broker that producers send to.
        permission: "rw", "r" or "w".
        is_ordered: Whether it is an order topic.
        attributes: Attributes of 5.x to set; None removes one.
        brokers: Only these brokers.
    """

    name: ClassVar[str] = "alter-topic"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = False

    topic: str
    read_queues: int | None = None
    write_queues: int | None = None
    permission: str | None = None
    is_ordered: bool | None = None
    attributes: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    brokers: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The topic."""
        return self.topic

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        words = ["topic", "update"]
        if self.read_queues is not None:
            words += ["--read-queues", str(self.read_queues)]
        if self.write_queues is not None:
            words += ["--write-queues", str(self.write_queues)]
        if self.permission is not None:
            words += ["--permission", self.permission]
        if self.is_ordered is not None:
            words.append("--ordered" if self.is_ordered else "--not-ordered")
        for name, value in self.attributes.items():
            words += ["--attribute", f"{name}={value or ''}"]
        for broker in self.brokers:
            words += ["--broker", broker]
        return (*words, "--", self.topic)

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Change it."""
        with _refused_attributes():
            changed = await admin.update_topic(
                self.topic,
                read_queues=self.read_queues,
                write_queues=self.write_queues,
                permission=None if self.permission is None else permission_of(self.permission),
                is_ordered=self.is_ordered,
                attributes=self.attributes or None,
                brokers=self.brokers or None,
            )
        names = ", ".join(sorted(changed))
        return result_of(self, f"topic {self.topic!r} was changed on {names}", brokers=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """Delete a topic and its messages.

    Attributes:
        topic: Its name.
        typed: The name as it was typed in; `NotConfirmed` unless it is the same.
        cluster: The cluster, where there are several.
    """

    name: ClassVar[str] = "delete-topic"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = True

    topic: str
    typed: str
    cluster: str | None = None

    @property
    def target(self) -> str:
        """The topic."""
        return self.topic

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        words = ["topic", "delete", "--yes"]
        if self.cluster is not None:
            words += ["--cluster", self.cluster]
        return (*words, "--", self.topic)

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Delete it."""
        check_typed(self.typed, self.topic)
        await admin.topic_route(self.topic)  # one that does not exist is an error
        await admin.delete_topic(self.topic, cluster=self.cluster)
        return result_of(self, f"topic {self.topic!r} and its messages were deleted")


@contextmanager
def _refused_attributes() -> Generator[None]:
    """Raise an `OptionError` where a broker refuses an attribute."""
    try:
        yield
    except ServerFailure as error:
        if any(text in (error.remark or "") for text in _WRONG_ATTRIBUTE):
            raise OptionError(f"attributes: {error}") from error
        raise


_PERMISSIONS: Final = {"rw": 6, "wr": 6, "r": 4, "w": 2}


def permission_of(text: str) -> int:
    """Return a permission as the number of the protocol.

    Raises:
        OptionError: It is not one.
    """
    if text not in _PERMISSIONS:
        raise OptionError(f"permission={text!r} is not one of rw, r, w")
    return _PERMISSIONS[text]
