"""Actions on consumer groups: create, alter (also pause), delete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from downrange.console.cluster.actions.action import check_typed, result_of
from downrange.errors import GroupNotFound, OptionError

if TYPE_CHECKING:
    from downrange import AsyncAdmin
    from downrange.console.cluster.actions.action import ActionResult, Right


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateGroup:
    """Create a consumer group on every master of a cluster; an existing one is an error.

    Attributes:
        group: Its name.
        retries: How often a message is delivered again that a consumer sent back.
        retry_queues: Queues of its retry topic.
        is_ordered: Whether a 5.x proxy delivers its messages in order.
        cluster: The cluster, where there are several.
    """

    name: ClassVar[str] = "create-group"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = False

    group: str
    retries: int = 16
    retry_queues: int = 1
    is_ordered: bool = False
    cluster: str | None = None

    @property
    def target(self) -> str:
        """The group."""
        return self.group

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        words = ["group", "create", "--retries", str(self.retries)]
        if self.retry_queues != 1:
            words += ["--retry-queues", str(self.retry_queues)]
        if self.is_ordered:
            words.append("--ordered")
        if self.cluster is not None:
            words += ["--cluster", self.cluster]
        return (*words, "--", self.group)

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Create it."""
        try:
            await admin.group_settings(self.group, cluster=self.cluster)
        except GroupNotFound:
            await admin.create_group(
                self.group,
                retries=self.retries,
                retry_queues=self.retry_queues,
                is_ordered=self.is_ordered,
                cluster=self.cluster,
            )
            return result_of(self, f"group {self.group!r} was created")
        raise OptionError(f"group {self.group!r} exists; alter it instead")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterGroup:
    """Change settings of a consumer group; those that are None stay as they are.

    Attributes:
        group: Its name.
        is_enabled: Whether it may read; False pauses it.
        retries: How often a message is delivered again that a consumer sent back.
        retry_queues: Queues of its retry topic.
        is_ordered: Whether a 5.x proxy delivers its messages in order.
        cluster: The cluster, where there are several.
    """

    name: ClassVar[str] = "alter-group"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = False

    group: str
    is_enabled: bool | None = None
    retries: int | None = None
    retry_queues: int | None = None
    is_ordered: bool | None = None
    cluster: str | None = None

    @property
    def target(self) -> str:
        """The group."""
        return self.group

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        words = ["group", "update"]
        if self.is_enabled is not None:
            words.append("--enabled" if self.is_enabled else "--disabled")
        if self.retries is not None:
            words += ["--retries", str(self.retries)]
        if self.retry_queues is not None:
            words += ["--retry-queues", str(self.retry_queues)]
        if self.is_ordered is not None:
            words.append("--ordered" if self.is_ordered else "--not-ordered")
        if self.cluster is not None:
            words += ["--cluster", self.cluster]
        return (*words, "--", self.group)

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Change it."""
        changed = await admin.update_group(
            self.group,
            is_enabled=self.is_enabled,
            retries=self.retries,
            retry_queues=self.retry_queues,
            is_ordered=self.is_ordered,
            cluster=self.cluster,
        )
        names = ", ".join(sorted(changed))
        return result_of(self, f"group {self.group!r} was changed on {names}", brokers=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Delete a consumer group and its offsets.

    Attributes:
        group: Its name.
        typed: The name as it was typed in; `NotConfirmed` unless it is the same.
        with_topics: Delete its retries and dead letters, too.
        cluster: The cluster, where there are several.
    """

    name: ClassVar[str] = "delete-group"
    right: ClassVar[Right] = "admin"
    is_destructive: ClassVar[bool] = True

    group: str
    typed: str
    with_topics: bool = False
    cluster: str | None = None

    @property
    def target(self) -> str:
        """The group."""
        return self.group

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line."""
        words = ["group", "delete", "--yes"]
        if self.with_topics:
            words.append("--with-topics")
        if self.cluster is not None:
            words += ["--cluster", self.cluster]
        return (*words, "--", self.group)

    async def run(self, admin: AsyncAdmin) -> ActionResult:
        """Delete it."""
        check_typed(self.typed, self.group)
        await admin.group_settings(self.group, cluster=self.cluster)  # an unknown one is an error
        await admin.delete_group(self.group, with_topics=self.with_topics, cluster=self.cluster)
        return result_of(self, f"group {self.group!r} and its offsets were deleted")
