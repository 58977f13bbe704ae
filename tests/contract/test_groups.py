"""Groups: settings, members, lag, resets of offsets, dead letters; and the brokers themselves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from downrange import Admin
from downrange.client.flows.admin.reports import Shift
from downrange.errors import GroupNotFound, NotFound, OptionError, RouteNotFound, ServerError
from downrange.model import Message, QueueId
from downrange.options import ClientOptions
from downrange.wire.codes import RequestCode
from downrange.wire.headers import SendBackRequest
from tests.contract.blocking import LONG_TIMEOUT
from tests.contract.raw_members import RawMember
from tests.contract.servers import call
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.conftest import Make, MakeProducer
    from tests.contract.servers import Server


@pytest.fixture
def admin(make: Make) -> Callable[[Server], Admin]:
    """Give the function that starts admin clients of the front end."""

    def start(server: Server) -> Admin:
        options = ClientOptions(call_timeout=LONG_TIMEOUT)
        return make(Admin, server.name_server, client_options=options).start()

    return start


def new_group(server: Server, administering: Admin) -> str:
    """Create a group with a name of its own."""
    group = f"g_{server.topic(1)}"
    administering.create_group(group)
    return group


def fill(server: Server, sending: Any, queues: int = 2, each: int = 5) -> list[QueueId]:
    """Create a topic, send messages to each of its queues, and return the queues."""
    topic = server.topic(queues)
    found = sending.publish_queues(topic)
    for queue in found:
        for number in range(each):
            sending.send(Message(topic, b"%d" % number), queue=queue)
    server.read_all(topic, queues * each)
    return found  # type: ignore[no-any-return]


def test_a_group_is_created_changed_listed_and_deleted(
    server: Server, admin: Callable[[Server], Admin]
) -> None:
    administering = admin(server)
    group = f"g_{server.topic(1)}"
    with pytest.raises(GroupNotFound, match=group):
        administering.group_settings(group)
    with pytest.raises(GroupNotFound, match=group):
        administering.update_group(group, retries=3)
    with pytest.raises(GroupNotFound, match=group):
        administering.group_lag(group)
    administering.create_group(group, retries=5, retry_queues=2)
    (changed,) = administering.update_group(group, is_enabled=False).values()
    (settings,) = administering.group_settings(group).values()
    assert changed == settings
    assert (settings.retries, settings.retry_queues, settings.is_enabled) == (5, 2, False)
    listed = {each.group: each for each in administering.list_groups(with_progress=True)}
    assert (listed[group].kind, listed[group].members, listed[group].lag) == ("normal", 0, 0)
    assert listed["TOOLS_CONSUMER"].kind == "system"
    administering.delete_group(group, with_topics=True)
    assert group not in {each.group for each in administering.list_groups()}


def test_members_lag_and_running_state_are_shown(
    server: Server, producer: MakeProducer, admin: Callable[[Server], Admin]
) -> None:
    administering, sending = admin(server), producer(server)
    first, second = fill(server, sending)
    topic, group = first.topic, new_group(server, administering)
    administering.set_group_offset(group, first, 2)
    members = (
        RawMember(server.brokers, group, "one@1", {topic: "new || paid"}, [first]),
        RawMember(server.brokers, group, "two@2", {topic: "*"}, [second]),
    )
    with members[0], members[1]:
        found = administering.group_members(group, with_filters=True)
        assert [member.client_id for member in found.members] == ["one@1", "two@2"]
        assert all(member.address.startswith("127.0.0.1:") for member in found.members)
        assert {member.version for member in found.members} == {"5.3.3"}
        assert (found.mode, found.model) == ("push", "clustering")
        (difference,) = found.differences
        assert difference.expressions == {"one@1": "new || paid", "two@2": "*"}

        lag = administering.group_lag(group, topic=topic, with_owners=True)
        assert [(queue.committed, queue.end) for queue in lag.queues] == [(2, 5), (0, 5)]
        assert [queue.owner for queue in lag.queues] == ["one@1", "two@2"]
        assert lag.messages == 8
        assert lag.age is not None
        assert timedelta() <= lag.age < timedelta(minutes=5)
        assert lag.queues[0].consumed_at is not None

        state = administering.running_state(group, "one@1", with_stack=True)
        assert [(each.queue, each.committed, each.buffered) for each in state.queues] == [
            (first, 2, 3)
        ]
        assert (state.rates[0].topic, state.rates[0].consumed) == (topic, 1.5)
        assert state.stack == "main: waits"
        with pytest.raises(ServerError, match="not online"):
            administering.running_state(group, "nobody")

        message = server.read_all(topic, 10)[0]
        result = administering.consume_directly(group, "two@2", topic, message.message_id)
        assert (result.is_consumed, result.seconds) == (True, 0.007)
        assert int(RequestCode.CONSUME_MESSAGE_DIRECTLY) in members[1].codes()
        listed = {each.group: each for each in administering.list_groups(with_progress=True)}
        assert (listed[group].members, listed[group].mode) == (2, "push")
        assert topic in administering.group_topics(group)
    wait_until(lambda: not administering.group_members(group).members)
    (sender,) = wait_until(lambda: administering.producer_members(sending.group))
    assert sender.language is not None
    assert administering.producer_members("nobody_at_all") == []
    assert administering.list_producers()[sending.group] == [sender]


def test_offsets_are_reset_with_a_preview_and_without_members(
    server: Server, producer: MakeProducer, admin: Callable[[Server], Admin]
) -> None:
    administering = admin(server)
    queues = fill(server, producer(server))
    topic, group = queues[0].topic, new_group(server, administering)
    other = new_group(server, administering)
    administering.set_group_offset(group, queues[0], 3)
    stored = sorted(message.stored_at for message in server.read_all(topic, 10))

    def offsets(name: str = group) -> list[int | None]:
        return [administering.group_offset(name, queue) for queue in queues]

    plan = administering.plan_reset(group, topic, "earliest")
    assert (plan.queues[0].old, plan.queues[0].new, plan.repeated) == (3, 0, 3)
    assert offsets()[0] == 3
    assert administering.apply_reset(plan).is_done
    assert offsets() == [0, 0]
    administering.reset_offsets(group, topic, 4)
    assert offsets() == [4, 4]
    administering.reset_offsets(group, topic, Shift(-3))
    assert offsets() == [1, 1]
    administering.reset_offsets(group, topic, {queues[1]: 5})
    assert offsets() == [1, 5]
    cut = administering.reset_offsets(group, topic, 99)
    assert [(queue.new, queue.is_cut) for queue in cut.queues] == [(5, True)] * 2
    early = administering.plan_reset(group, topic, stored[0] - timedelta(hours=1))
    assert [queue.new for queue in early.queues] == [0, 0]
    administering.apply_reset(early)
    assert offsets() == [0, 0]
    assert administering.skip_messages(group, topic).skipped == 10
    assert offsets() == [5, 5]
    administering.reset_offsets(group, topic, 2)
    assert administering.clone_offsets(group, other, topic).is_done
    assert offsets(other) == [2, 2]
    with pytest.raises(OptionError, match="does not have the queue"):
        administering.plan_reset(group, topic, {QueueId(topic, "nowhere", 0): 1})
    with pytest.raises(RouteNotFound):
        administering.plan_reset(group, f"{topic}_x", "latest")


def test_connected_members_learn_of_a_reset(
    server: Server, producer: MakeProducer, admin: Callable[[Server], Admin]
) -> None:
    administering = admin(server)
    (queue,) = fill(server, producer(server), queues=1)
    topic, group = queue.topic, new_group(server, administering)
    with RawMember(server.brokers, group, "one@1", {topic: "*"}, [queue]) as member:
        done = administering.reset_offsets(group, topic, "latest")
        assert [each.new for each in done.queues] == [5]
        assert administering.group_offset(group, queue) == 5
        if not server.is_old:  # the next pull tells the member; see the conversations
            administering.reset_offsets(group, topic, 2)
            assert administering.group_offset(group, queue) == 2
            return
        code = int(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
        wait_until(lambda: code in member.codes())
        with pytest.raises(OptionError, match="can tell connected members of group"):
            administering.reset_offsets(group, topic, 2)


def send_back(server: Server, group: str, message: Any, level: int) -> None:
    """Give a message back as a consumer does; a negative level makes it a dead letter."""
    header = SendBackRequest(
        offset=message.log_offset,
        group=group,
        delay_level=level,
        origin_msg_id=message.message_id,
        origin_topic=message.topic,
        unit_mode=False,
    )
    code = RequestCode.CONSUMER_SEND_MSG_BACK
    answer = call(server.brokers[0], code, header.to_fields())
    assert answer.code == 0, answer


def test_dead_letters_are_listed_and_sent_again_once(
    server: Server, producer: MakeProducer, admin: Callable[[Server], Admin]
) -> None:
    administering, sending = admin(server), producer(server)
    topic, group = server.topic(1), new_group(server, administering)
    assert administering.dead_letters(group).is_complete
    with RawMember(server.brokers, group, "one@1", {topic: "*"}):
        pass  # makes the retry topic
    for number in range(3):
        sending.send(
            Message(topic, b"%d" % number, tags="t", keys=[f"k{number}"], properties={"own": "p"})
        )
    sent = server.read_all(topic, 3)
    before = datetime.now(UTC) - timedelta(hours=1)
    for message in sent:
        send_back(server, group, message, -1)

    def page(**how: Any) -> Any:
        return administering.dead_letters(group, **how)

    wait_until(lambda: len(page().letters) == 3)
    half = page(max_count=2, begin=before)
    assert (len(half.letters), half.is_complete) == (2, False)
    rest = page(after=half.next)
    assert [letter.message.body for letter in rest.letters] == [b"2"]
    assert page(end=before).letters == ()
    letters = page().letters
    assert [letter.topic for letter in letters] == [topic] * 3
    assert [letter.origin_id for letter in letters] == [message.offset_id for message in sent]

    results = administering.resend_dead_letters(letters[:2], rate=1000.0)
    assert [each.outcome for each in results] == ["sent", "sent"]
    stored = {message.message_id: message for message in server.read_all(topic, 5)}
    for letter, result in zip(letters, results, strict=False):
        again = stored[result.message_id]
        assert (again.body, again.tags, again.keys) == (
            letter.message.body,
            "t",
            letter.message.keys,
        )
        assert again.properties["own"] == "p"
        assert again.properties["ORIGIN_MESSAGE_ID"] == letter.origin_id
        assert again.properties["RESENT_DEAD_LETTER"] == letter.message.offset_id
        assert again.delivery_attempts == 0

    def outcomes() -> list[str]:
        found = administering.resend_dead_letters(letters)
        return [each.outcome for each in found]

    wait_until(lambda: has_message(administering, topic, results[1].message_id))
    assert outcomes() == ["skipped", "skipped", "sent"]
    (to_group,) = administering.resend_dead_letters(letters[:1], to="retry")
    (retried,) = server.read_all(f"%RETRY%{group}", 1)
    assert (to_group.outcome, retried.body) == ("sent", b"0")
    assert retried.properties["RETRY_TOPIC"] == topic
    copy = administering.retry_now(group, topic, sent[1].message_id)
    assert [message.message_id for message in server.read_all(f"%RETRY%{group}", 2)][1] == copy


def has_message(administering: Admin, topic: str, message_id: str) -> bool:
    """Return whether the index has a message; brokers fill it in the background."""
    try:
        administering.view_message(topic, message_id)
    except NotFound:
        return False
    return True


def figures_of(administering: Admin, broker: str) -> dict[str, str] | None:
    """Return the figures of a broker; one of 4.9 that was just started has none for seconds."""
    try:
        return administering.broker_figures(broker)[broker]
    except ServerError:
        return None


def test_brokers_are_shown_changed_and_taken_out_of_service(
    server: Server, producer: MakeProducer, admin: Callable[[Server], Admin]
) -> None:
    administering, sending = admin(server), producer(server)
    begun = datetime.now(UTC) - timedelta(seconds=1)
    queues = fill(server, sending, queues=1)
    topic = queues[0].topic
    (broker,) = administering.broker_settings()
    settings = administering.broker_settings(broker)[broker]
    assert settings["brokerName"] == broker
    name, old = "autoCreateTopicEnable", settings["autoCreateTopicEnable"]
    new = "false" if old == "true" else "true"
    try:
        assert administering.change_broker_settings({name: new}, broker)[broker][name] == new
        with pytest.raises((OptionError, ServerError), match="noSuchSetting"):
            administering.change_broker_settings({"noSuchSetting": "1"}, broker)
    finally:
        administering.change_broker_settings({name: old})
    assert "bootTimestamp" in wait_until(lambda: figures_of(administering, broker))
    for what in ("queues", "topics", "log")[: 2 if server.is_old else 3]:
        assert administering.clean_up(what, broker) == [broker]  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="brokers=\\['nobody'\\]"):
        administering.broker_settings("nobody")

    (range_,) = administering.queue_ranges(topic)
    assert (range_.first, range_.end) == (0, 5)
    assert range_.first_stored_at is not None
    assert range_.last_stored_at is not None
    assert begun <= range_.first_stored_at <= range_.last_stored_at
    group = new_group(server, administering)
    administering.set_group_offset(group, queues[0], 1)
    assert group in administering.topic_groups(topic)
    traffic = administering.topic_traffic(topic)
    assert [(each.topic, each.group) for each in traffic] == [(topic, None), (topic, group)]

    assert administering.wipe_write_permission(broker) > 0
    try:
        assert not administering.topic_route(topic).writable
    finally:
        assert administering.restore_write_permission(broker) > 0
    wait_until(lambda: bool(administering.topic_route(topic).writable))
