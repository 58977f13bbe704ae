"""Each action of the console does what its equal command line does, on every kind of server."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from downrange import Admin, AsyncAdmin, DeadLetter, Message, Producer, QueueId
from downrange.cli import app
from downrange.console.cluster.actions.action import command_line
from downrange.console.cluster.actions.dead_letters import ExportDeadLetters, ResendDeadLetters
from downrange.console.cluster.actions.groups import AlterGroup, CreateGroup, DeleteGroup
from downrange.console.cluster.actions.messages import DeliverToGroup, SendAgain, SendMessage
from downrange.console.cluster.actions.offsets import CloneOffsets, ResetOffsets, SkipMessages
from downrange.console.cluster.actions.topics import AlterTopic, CreateTopic, DeleteTopic
from downrange.console.cluster.problems import NoSuchMember, NotConfirmed
from downrange.errors import GroupNotFound, NotFound, OptionError, RouteNotFound
from downrange.wire.system_names import retry_topic
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.conftest import only_async, patient
from tests.contract.test_console_pages import PATIENT, consumers, look, until
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from downrange import GroupSettings, ReceivedMessage, TopicSettings
    from downrange.console.cluster.actions.action import Action, ActionResult, Command
    from downrange.console.cluster.view import ClusterView
    from tests.apache.fixtures import UniqueName
    from tests.contract.servers import Server

pytestmark = only_async


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    """Give an admin that looks at what actions have done."""
    with Admin(server.name_server, client_options=PATIENT) as admin:
        yield admin


def do(server: Server, action: Action) -> ActionResult:
    """Do an action as the console does it."""
    result: ActionResult = look(server, lambda view: view.do(action))
    assert (result.action, result.target) == (action.name, action.target)
    assert result.command == command_line(action)
    return result


def run(server: Server, action: Command) -> str:
    """Run the command line of an action with the real program."""
    words = shlex.split(command_line(action, server.name_server))
    assert words[0] == "downrange"
    end_of_options = words.index("--") if "--" in words else len(words)
    words[end_of_options:end_of_options] = ["--timeout", f"{LONG_TIMEOUT:g}"]
    result = CliRunner().invoke(app, words[1:], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes.decode()


# ---- topics --------------------------------------------------------------------------------------


def _settings(admin: Admin, topic: str) -> list[tuple[Any, ...]]:
    def facts(each: TopicSettings) -> tuple[Any, ...]:
        return (each.read_queues, each.write_queues, each.permission, each.is_ordered)

    return [facts(each) for each in admin.topic_settings(topic).values()]


def test_topics_are_created_altered_and_deleted(
    server: Server, admin: Admin, unique_name: UniqueName
) -> None:
    ours, theirs = unique_name("topic"), unique_name("topic")
    create = {name: CreateTopic(topic=name, queues=3, permission="r") for name in (ours, theirs)}
    assert do(server, create[ours]).text == f"topic {ours!r} was created"
    run(server, create[theirs])
    assert _settings(admin, ours) == _settings(admin, theirs) == [(3, 3, 4, False)]
    with pytest.raises(OptionError, match="exists; alter it instead"):
        do(server, create[ours])
    if not server.is_old:
        wrong = {"no.such.attribute": "b"}
        new = unique_name("topic")
        for action in (
            CreateTopic(topic=new, attributes=wrong),
            AlterTopic(topic=ours, attributes={**wrong}),
        ):
            with pytest.raises(OptionError, match=r"^attributes: .*no\.such\.attribute"):
                do(server, action)
    alter = {
        name: AlterTopic(topic=name, read_queues=5, write_queues=4, permission="rw")
        for name in (ours, theirs)
    }
    do(server, alter[ours])
    run(server, alter[theirs])
    assert _settings(admin, ours) == _settings(admin, theirs) == [(5, 4, 6, False)]
    with pytest.raises(OptionError, match="permission='rwx' is not one of"):
        do(server, AlterTopic(topic=ours, permission="rwx"))
    delete = {name: DeleteTopic(topic=name, typed=name) for name in (ours, theirs)}
    with pytest.raises(NotConfirmed, match="does not match"):
        do(server, DeleteTopic(topic=ours, typed=theirs))
    assert admin.topic_route(ours).brokers
    do(server, delete[ours])
    run(server, delete[theirs])
    for name in (ours, theirs):
        with pytest.raises(RouteNotFound):
            admin.topic_route(name)
    with pytest.raises(RouteNotFound):
        do(server, delete[ours])


# ---- groups --------------------------------------------------------------------------------------


def _group(admin: Admin, group: str) -> list[tuple[Any, ...]]:
    def facts(each: GroupSettings) -> tuple[Any, ...]:
        return (each.is_enabled, each.retries, each.retry_queues)

    return [facts(each) for each in admin.group_settings(group).values()]


def test_groups_are_created_altered_and_deleted(
    server: Server, admin: Admin, unique_name: UniqueName
) -> None:
    ours, theirs = unique_name("group"), unique_name("group")
    create = {name: CreateGroup(group=name, retries=4, retry_queues=2) for name in (ours, theirs)}
    do(server, create[ours])
    run(server, create[theirs])
    assert _group(admin, ours) == _group(admin, theirs) == [(True, 4, 2)]
    with pytest.raises(OptionError, match="exists"):
        do(server, create[ours])
    alter = {name: AlterGroup(group=name, is_enabled=False, retries=7) for name in (ours, theirs)}
    do(server, alter[ours])
    run(server, alter[theirs])
    assert _group(admin, ours) == _group(admin, theirs) == [(False, 7, 2)]
    with pytest.raises(NotConfirmed):
        do(server, DeleteGroup(group=ours, typed=""))
    delete = {name: DeleteGroup(group=name, typed=name) for name in (ours, theirs)}
    do(server, delete[ours])
    run(server, delete[theirs])
    for name in (ours, theirs):
        with pytest.raises(GroupNotFound):
            admin.group_settings(name)
    with pytest.raises(GroupNotFound):
        do(server, delete[ours])


# ---- messages ------------------------------------------------------------------------------------


def _facts(message: ReceivedMessage) -> tuple[Any, ...]:
    own = {name: message.properties.get(name) for name in ("color", "__SHARDINGKEY")}
    return (message.body, message.tags, message.keys, own)


def test_a_message_is_sent_and_sent_again(server: Server, admin: Admin) -> None:
    topic = server.topic(queues=1)
    action = SendMessage(
        topic=topic,
        body='--it\'s "quoted"\nand long',
        tags="new",
        keys=("k1", "k2"),
        properties={"color": "a = b"},
        sharding_key="s",
    )
    result = do(server, action)
    run(server, action)
    first, second = server.read_all(topic, 2)
    assert _facts(first) == _facts(second)
    assert first.body == action.body.encode()
    assert (result.values["message_id"], result.values["offset"]) == (first.message_id, 0)
    again = SendAgain(topic=topic, message_id=first.message_id)
    wait_until(lambda: _is_indexed(admin, topic, first.message_id))
    copy = do(server, again).values["message_id"]
    run(server, again)
    *_, third, fourth = server.read_all(topic, 4)
    assert _facts(third) == _facts(fourth) == _facts(first)
    assert third.message_id == copy
    assert {each.properties["ORIGIN_MESSAGE_ID"] for each in (third, fourth)} == {first.message_id}
    with pytest.raises(RouteNotFound):
        do(server, SendMessage(topic="nowhere", body="x"))
    with pytest.raises(NotFound):
        do(server, SendAgain(topic=topic, message_id="AB" * 16))
    with pytest.raises(OptionError, match="more than 4194304"):
        do(server, SendMessage(topic=topic, body="x" * (4 * 1024 * 1024 + 1)))


def _is_indexed(admin: Admin, topic: str, message_id: str) -> bool:
    try:
        return bool(admin.view_message(topic, message_id))
    except NotFound:
        return False


def test_a_message_is_delivered_to_a_group_now(server: Server, unique_name: UniqueName) -> None:
    topic, group = server.topic(queues=1), unique_name("group")
    handled: list[bytes] = []

    def handle(message: Any) -> None:
        handled.append(message.body)
        if len(handled) == 2:
            raise ValueError("not this time")

    async def work(view: ClusterView) -> None:
        async with consumers(view, group, topic, "*", handler=handle):
            page = await until(lambda: view.group(group), lambda page: page.members and page.topics)
            (member,) = page.members
            sent = await view.do(SendMessage(topic=topic, body="x"))
            wanted = str(sent.values["offset_id"])
            await until(_later(handled), lambda found: len(found) == 1)
            action = DeliverToGroup(
                group=group, topic=topic, message_id=wanted, client_id=member.client_id
            )
            with pytest.raises(NoSuchMember, match="has no member 'nobody'"):
                await view.do(replace(action, client_id="nobody"))
            refused = await view.do(action)
            assert (refused.is_ok, refused.values["result"]) == (False, "CR_THROW_EXCEPTION")
            done = await view.do(action)
            assert (done.is_ok, done.values["result"]) == (True, "CR_SUCCESS")
            await asyncio.to_thread(run, server, action)
            assert handled == [b"x"] * 4
            copied = DeliverToGroup(group=group, topic=topic, message_id=wanted)
            await view.do(copied)
            await asyncio.to_thread(run, server, copied)
            await until(_later(handled), lambda found: len(found) == 6)
            retries = await view.admin.topic_stats(retry_topic(group))
            assert sum(queue.count for queue in retries) == 2

    look(server, work)


def _later(handled: list[bytes]) -> Any:
    async def read() -> list[bytes]:
        return handled

    return read


# ---- offsets -------------------------------------------------------------------------------------


def _offsets(admin: Admin, group: str, topic: str) -> list[int | None]:
    return [admin.group_offset(group, queue) for queue in admin.read_queues(topic)]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"to": "earliest"}, [0, 0]),
        ({"to": "latest"}, [4, 4]),
        ({"to": "3"}, [3, 3]),
        ({"to": "15m"}, [0, 0]),
        ({"to": "2020-01-31T12:00+00:00"}, [0, 0]),
        ({"shift": -1}, [1, 1]),
        ({"to": "4", "queue": "one"}, [4, 2]),
    ],
    ids=["earliest", "latest", "offset", "age", "time", "shift", "queue"],
)
def test_offsets_are_reset_as_the_preview_says(
    server: Server,
    admin: Admin,
    unique_name: UniqueName,
    settings: dict[str, Any],
    wanted: list[int],
) -> None:
    topic, names = server.topic(queues=2), (unique_name("group"), unique_name("group"))
    queues = _filled(server, admin, topic, names)
    if "queue" in settings:
        settings = {**settings, "queue": f"{queues[0].broker}:{queues[0].number}"}
    ours, theirs = (ResetOffsets(group=name, topic=topic, **settings) for name in names)
    preview = look(server, lambda view: view.preview(ours))
    assert [each.old for each in preview.queues] == [2] * len(preview.queues)
    assert not preview.is_done
    assert _offsets(admin, names[0], topic) == [2, 2]
    done = do(server, ours).reset
    assert done is not None
    assert done.is_done
    assert [each.new for each in done.queues] == [each.new for each in preview.queues]
    run(server, theirs)
    assert _offsets(admin, names[0], topic) == _offsets(admin, names[1], topic) == wanted


def _filled(server: Server, admin: Admin, topic: str, groups: tuple[str, ...]) -> list[QueueId]:
    """Send four messages to each queue; let groups have consumed two of each."""
    queues = admin.read_queues(topic)
    with Producer(server.name_server, group="console-tests", options=patient(None)) as producer:
        for queue in queues:
            for _ in range(4):
                producer.send(Message(topic, b"x"), queue=queue)
    server.read_all(topic, 4 * len(queues))  # they may become readable a moment later
    for group in groups:
        admin.create_group(group)
        for queue in queues:
            admin.set_group_offset(group, queue, 2)
    return queues


def test_messages_are_skipped_and_offsets_cloned(
    server: Server, admin: Admin, unique_name: UniqueName
) -> None:
    topic = server.topic(queues=2)
    source, ours, theirs = names = tuple(unique_name("group") for _ in range(3))
    _filled(server, admin, topic, names)
    wait_until(lambda: topic in admin.group_topics(ours))
    skipped = do(server, SkipMessages(group=ours)).values
    assert (skipped["skipped"], skipped["repeated"]) == (4, 0)
    run(server, SkipMessages(group=theirs, topics=(topic,)))
    assert _offsets(admin, ours, topic) == _offsets(admin, theirs, topic) == [4, 4]
    assert do(server, CloneOffsets(source=source, group=ours)).values["repeated"] == 4
    run(server, CloneOffsets(source=source, group=theirs, topics=(topic,)))
    assert _offsets(admin, ours, topic) == _offsets(admin, theirs, topic) == [2, 2]
    for wrong, words in (
        (ResetOffsets(group=ours, topic=topic), "give one of to and shift"),
        (ResetOffsets(group=ours, topic=topic, to="soon"), "'soon' is not one of"),
        (ResetOffsets(group=ours, topic=topic, to="0", queue="zz:9"), "is not a queue of"),
        (SkipMessages(group=_new_group(admin, unique_name)), "has not read any topic"),
    ):
        with pytest.raises(OptionError, match=words):
            do(server, wrong)
    with pytest.raises(GroupNotFound):
        do(server, CloneOffsets(source=source, group=unique_name("missing")))


def _new_group(admin: Admin, unique_name: UniqueName) -> str:
    group = unique_name("group")
    admin.create_group(group)
    return group


# ---- dead letters --------------------------------------------------------------------------------


def test_selected_dead_letters_are_sent_again_and_exported(
    server: Server, unique_name: UniqueName
) -> None:
    topic, group = server.topic(queues=1), unique_name("group")
    first, second, third = _dead_letters(server, group, topic)
    ours = ResendDeadLetters(group=group, ids=(first,), rate=50.0)
    result = do(server, ours)
    assert (result.is_ok, result.values["sent"], len(result.letters)) == (True, 1, 1)
    run(server, ResendDeadLetters(group=group, ids=(second,), rate=50.0))
    *_, fourth, fifth = server.read_all(topic, 5)
    marks = {each.properties["RESENT_DEAD_LETTER"] for each in (fourth, fifth)}
    assert marks == {first, second}
    wait_until(lambda: do(server, ours).values["skipped"] == 1)
    assert do(server, ResendDeadLetters(group=group, ids=(first,), again=True)).values["sent"] == 1
    for form in ("jsonl", "csv"):
        export = ExportDeadLetters(group=group, form=form, ids=(first, third))
        assert _exported(server, export) == run(server, export)
        everything = ExportDeadLetters(group=group, form=form)
        assert _exported(server, everything) == run(server, everything)
    for wrong, words in (
        (ResendDeadLetters(group=group, ids=()), "select 1 to 1000"),
        (ResendDeadLetters(group=group, ids=("zz",)), "has no dead letter zz"),
        (ResendDeadLetters(group=group, ids=(first,), rate=0), "rate=0 is not between"),
    ):
        with pytest.raises(OptionError, match=words):
            do(server, wrong)


def _dead_letters(server: Server, group: str, topic: str) -> list[str]:
    """Let a consumer refuse three messages; return the ids of the dead letters."""

    def refuse(message: Any) -> None:
        raise DeadLetter("unreadable")

    async def work(view: ClusterView) -> list[str]:
        async with consumers(view, group, topic, "*", handler=refuse):
            await until(lambda: view.group(group), lambda page: page.topics)
            for number in range(3):
                await view.do(SendMessage(topic=topic, body=f"={number}", keys=("k",)))
            page = await until(
                lambda: view.dead_letters(group), lambda page: len(page.rows) == page.total == 3
            )
        return [row.id for row in page.rows]

    return look(server, work)


def _exported(server: Server, export: ExportDeadLetters) -> str:
    async def read(view: ClusterView) -> bytes:
        admin: AsyncAdmin = view.admin
        return b"".join([piece async for piece in export.pieces(admin)])

    return look(server, read).decode()
