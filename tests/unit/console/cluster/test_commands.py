"""The command line of each action is one that the real program accepts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, cast

import click
import pytest

from downrange.cli import app
from downrange.console.cluster.actions.action import check_typed, command_line
from downrange.console.cluster.actions.dead_letters import ExportDeadLetters, ResendDeadLetters
from downrange.console.cluster.actions.groups import AlterGroup, CreateGroup, DeleteGroup
from downrange.console.cluster.actions.messages import DeliverToGroup, SendAgain, SendMessage
from downrange.console.cluster.actions.offsets import CloneOffsets, ResetOffsets, SkipMessages
from downrange.console.cluster.actions.topics import AlterTopic, CreateTopic, DeleteTopic
from downrange.console.cluster.problems import NotConfirmed
from downrange.errors import OptionError
from tests.unit.console.cluster.fake_admin import FakeAdmin

if TYPE_CHECKING:
    from downrange.console.cluster.actions.action import Command

#: Words that look like options, and such that a shell would change.
ODD = "--yes; rm -rf $HOME 'x'"
ACTIONS: list[Command] = [
    CreateTopic(topic="t"),
    CreateTopic(
        topic="t",
        queues=3,
        permission="r",
        is_ordered=True,
        attributes={"message.type": "FIFO"},
        cluster="c",
    ),
    AlterTopic(topic="t"),
    AlterTopic(
        topic="t",
        read_queues=1,
        write_queues=2,
        permission="w",
        is_ordered=False,
        attributes={"a": None, "b": "1"},
        brokers=("x", "y"),
    ),
    AlterTopic(topic="t", is_ordered=True),
    DeleteTopic(topic="t", typed="t", cluster="c"),
    CreateGroup(group="g", retries=3, retry_queues=2, is_ordered=True, cluster="c"),
    AlterGroup(group="g", is_enabled=True, retries=1, retry_queues=2, is_ordered=True, cluster="c"),
    AlterGroup(group="g", is_enabled=False, is_ordered=False),
    DeleteGroup(group="g", typed="g", with_topics=True, cluster="c"),
    SendMessage(topic="t", body=ODD),
    SendMessage(
        topic="t",
        body="",
        tags=ODD,
        keys=("a", "--b"),
        properties={"n": "= v"},
        sharding_key="s",
        delay_level=3,
        deliver_in=1.5,
    ),
    SendAgain(topic="t", message_id="ID"),
    DeliverToGroup(group="g", topic="t", message_id="ID"),
    DeliverToGroup(group="g", topic="t", message_id="ID", client_id="10.0.0.1@7#1"),
    ResetOffsets(group="g", topic="t", to="2026-01-31T12:00+00:00", queue="b:1"),
    ResetOffsets(group="g", topic="t", shift=-10),
    SkipMessages(group="g", topics=("t", "u")),
    CloneOffsets(source="s", group="g"),
    ResendDeadLetters(group="g", ids=("A", "B"), to="retry", rate=2.5, again=True),
    ExportDeadLetters(group="g", form="csv", ids=("A",)),
    ExportDeadLetters(group="g"),
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_the_command_line_is_accepted_by_the_program(action: Command) -> None:
    values = values_of(command_line(action, "ns:9876", "tenant"))
    assert values["name_server"] == "ns:9876"
    assert values["namespace"] == "tenant"
    assert action.target in _texts(values)


def values_of(line: str) -> dict[str, Any]:
    """Return what the program reads in a command line; it raises for a word that it refuses."""
    words = shlex.split(line)
    assert words.pop(0) == "downrange"
    command: click.Command = app
    # Commands keep their help option, so it must be the one that users get.
    context = click.Context(app, **app.context_settings)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    with context:
        command.parse_args(context, words)
    return context.params


def _texts(values: dict[str, object]) -> set[object]:
    """Return the arguments of a command, those that may be repeated one by one."""
    flat = [each if isinstance(each, tuple) else (each,) for each in values.values()]
    return {text for part in flat for text in part}


def test_numbers_of_a_command_line_are_not_rounded() -> None:
    send = SendMessage(topic="t", body="", deliver_in=86400.123)
    assert "--deliver-in 86400.123 " in command_line(send)
    resend = ResendDeadLetters(group="g", ids=("A",), rate=999.99951)
    assert "--rate 999.99951 " in command_line(resend)


async def test_dead_letters_at_a_rate_that_takes_too_long_are_refused() -> None:
    """The time of an action is 600 s; it would end in the middle."""
    slow = ResendDeadLetters(group="g", ids=("A",) * 481, rate=1.0)
    with pytest.raises(OptionError, match=r"481 dead letters at rate=1\.0 take 481 s"):
        await slow.run(cast("Any", FakeAdmin()))


def test_a_command_line_without_an_address_has_no_option_for_it() -> None:
    assert command_line(SendAgain(topic="t", message_id="ID")) == "downrange message resend -- t ID"
    assert command_line(SendMessage(topic="t", body=ODD), "ns:1;ns:2") == (
        "downrange send --name-server 'ns:1;ns:2' -- t " + shlex.quote(ODD)
    )


@pytest.mark.parametrize(
    ("to", "shown"),
    [
        ("2026-01-31T12:00", "2026-01-31T12:00:00+00:00"),
        (" 2026-01-31 ", "2026-01-31T00:00:00+00:00"),
        ("2026-01-31T12:00+08:00", "2026-01-31T12:00+08:00"),
        ("20260131", "20260131"),
        ("15m", "15m"),
        ("earliest", "earliest"),
    ],
)
def test_a_reset_means_the_same_time_in_a_shell_of_another_zone(to: str, shown: str) -> None:
    arguments = ResetOffsets(group="g", topic="t", to=to).arguments
    assert arguments[arguments.index("--to") + 1] == shown


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_an_action_says_what_it_is(action: Command) -> None:
    assert action.right in ("publish", "admin")
    assert action.name.replace("-", "").isalpha()
    assert isinstance(action.is_destructive, bool)


def test_a_name_must_be_typed_exactly() -> None:
    check_typed(" orders ", "orders")
    for typed in ("", "Orders", "orders2"):
        with pytest.raises(NotConfirmed, match="type it exactly"):
            check_typed(typed, "orders")
