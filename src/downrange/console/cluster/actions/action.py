"""What all actions have: a name, a target, an equal command line, a run, a result."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

from downrange.console.cluster.problems import NotConfirmed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange import AsyncAdmin
    from downrange.console.cluster.pages.groups import ResetPreview
    from downrange.console.cluster.sending_admin import SendingAdmin

#: The right that an account needs for an action: to send to a topic, or to administer the cluster.
Right: TypeAlias = Literal["publish", "admin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResentLetter:
    """What became of one dead letter.

    Attributes:
        id: The id of the dead letter by place.
        outcome: "sent", "skipped" (it was sent before) or "failed".
        topic: Where it went.
        message_id: Its new id.
        problem: Why it failed.
    """

    id: str
    outcome: str
    topic: str
    message_id: str
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """What an action has done.

    Attributes:
        action: The name of the action.
        target: The topic or group that it changed.
        is_ok: Whether all of it was done. Whatever fails as a whole raises an error instead.
        text: The result as an English sentence.
        values: Facts of the result by name, such as "message_id".
        command: The equal command line.
        reset: What a reset, skip or clone has changed.
        letters: What became of dead letters.
    """

    action: str
    target: str
    is_ok: bool
    text: str
    values: dict[str, str | int | float | bool | None]
    command: str
    reset: ResetPreview | None = None
    letters: tuple[ResentLetter, ...] = ()


class Command(Protocol):
    """Something that a command of `downrange` does, too."""

    #: A short fixed word, such as "create-topic".
    name: ClassVar[str]
    #: The right that it needs. `publish` is for the topic `target`.
    right: ClassVar[Right]
    #: Whether it deletes messages or offsets that cannot be brought back.
    is_destructive: ClassVar[bool]

    @property
    def target(self) -> str:
        """The topic or group that it changes."""
        ...

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of the equal command line after `downrange`, without connection options."""
        ...


class Action(Command, Protocol):
    """Something that changes a cluster."""

    async def run(self, admin: SendingAdmin) -> ActionResult:
        """Do it.

        Raises:
            OptionError: A value is wrong; nothing was changed.
            RocketMQError: A server did not answer, or refused.
        """
        ...


class ResettingAction(Action, Protocol):
    """An action that changes offsets, and can say before what it would change."""

    async def preview(self, admin: AsyncAdmin) -> ResetPreview:
        """Return what it would change; nothing is changed."""
        ...


def command_line(
    action: Command, name_servers: str | None = None, namespace: str | None = None
) -> str:
    """Return the equal command line of an action, quoted for a shell.

    Args:
        action: The action.
        name_servers: Added as `--name-server`; left out if not given.
        namespace: Added as `--namespace`; left out if not given.
    """
    return shell_line(action.arguments, name_servers, namespace)


def shell_line(
    arguments: Iterable[str], name_servers: str | None = None, namespace: str | None = None
) -> str:
    """Return a command line of `downrange` with these words, and with connection options."""
    words = ["downrange", *arguments]
    options: list[str] = []
    if name_servers is not None:
        options += ["--name-server", name_servers]
    if namespace is not None:
        options += ["--namespace", namespace]
    # Options go before `--`, after which everything is an argument.
    at = words.index("--") if "--" in words else len(words)
    words[at:at] = options
    return shlex.join(words)


def result_of(
    action: Action,
    text: str,
    *,
    is_ok: bool = True,
    reset: ResetPreview | None = None,
    letters: tuple[ResentLetter, ...] = (),
    **values: str | int | float | bool | None,
) -> ActionResult:
    """Return the result of an action; `values` are its facts by name."""
    return ActionResult(
        action=action.name,
        target=action.target,
        is_ok=is_ok,
        text=text,
        values=values,
        command=command_line(action),
        reset=reset,
        letters=letters,
    )


def check_typed(typed: str, name: str) -> None:
    """Check that the name was typed in.

    Raises:
        NotConfirmed: It is another one; nothing was changed.
    """
    if typed.strip() != name:
        raise NotConfirmed(
            f"the name {typed!r} does not match {name!r}; type it exactly to confirm"
        )
