"""Requests of consoles and operators: counters, forbidden topics, slow groups, timed messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.wire.bodies import (
    BrokerConsumeStatsBody,
    ConsumerMember,
    ConsumeStatsBody,
    CorrectionOffsetsBody,
    CountsBody,
    ForbiddenBody,
    GroupConfig,
    GroupTableBody,
    HeartbeatBody,
    Subscription,
    TimedCountsBody,
    TopicNamesBody,
    TopicStatsBody,
)
from downrange.wire.codes import PullFlag, RequestCode, ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    BrokerConsumeStatsRequest,
    BrokerStatsRequest,
    CommitOffsetRequest,
    ConsumeStatsRequest,
    CorrectionOffsetsRequest,
    CreateTopicRequest,
    ForbidGroupRequest,
    MaxOffsetRequest,
    OffsetReply,
    PullRequest,
    SendBackRequest,
    TopicStatsRequest,
)
from downrange.wire.records import BatchItem, decode_records, encode_batch
from tests.conversations.scene import Scene, bare_request, read_body, read_header, succeed

if TYPE_CHECKING:
    from downrange.wire.command import Command
    from tests.conversations.peers import Peer

#: Counters are sampled every ten seconds.
SAMPLE_POLL_SECONDS = 1.0
#: Topics of 5.x; a broker of 4.9 lets tools create them.
NEW_SYSTEM_TOPICS = (
    "CHECKPOINT_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
)


def consumption_is_counted_per_group_and_topic(scene: Scene) -> None:
    broker = scene.broker()
    topic, group = scene.create_topic(broker, "counted"), create_group(scene, broker, "counters")
    for number in range(2):
        scene.send(broker, topic, b"x", {"UNIQ_KEY": scene.unique_id(number)})
    batch = encode_batch([BatchItem(0, body, b"") for body in (b"a", b"bb", b"ccc")])
    header = scene.send_request(topic, batch=True)
    code = int(RequestCode.SEND_BATCH_MESSAGE)
    succeed(broker.ask(request_command(header, batch, code=code)))
    wait_for_end(scene, broker, topic, 5)
    part = succeed(broker.ask(pull_request(topic, group, count=2)))
    whole = succeed(broker.ask(pull_request(topic, group)))
    assert broker.ask(pull_request(topic, group, offset=5)).code == ResponseCode.PULL_NOT_FOUND
    first = decode_records(whole.body)[0]
    back = SendBackRequest(
        offset=first.log_offset, group=group, delay_level=18, origin_topic=topic, unit_mode=False
    )
    succeed(broker.ask(request_command(back)))
    commit = CommitOffsetRequest(consumer_group=group, topic=topic, queue_id=0, commit_offset=1)
    succeed(broker.ask(request_command(commit)))

    def counts(name: str, key: str, wanted: int) -> CountsBody:
        # A sample may be taken in the middle of the requests.
        request = request_command(BrokerStatsRequest(stats_name=name, stats_key=key))
        return scene.poll(
            lambda: read_body(CountsBody, broker.ask(request)),
            lambda body: body.stats_minute.sum >= wanted,
            seconds=SAMPLE_POLL_SECONDS,
        )

    key = f"{topic}@{group}"
    got = counts("GROUP_GET_NUMS", key, 7).stats_minute
    assert (got.sum, got.avgpt) == (7, 3.5)
    assert 7 / 60 < got.tps <= 7 / 9
    size = len(whole.body) + len(part.body)
    assert counts("GROUP_GET_SIZE", key, size).stats_minute.sum == size
    put = counts("TOPIC_PUT_NUMS", topic, 5).stats_minute
    assert (put.sum, put.avgpt) == (5, 5 / 3)
    size = len(whole.body)
    assert counts("TOPIC_PUT_SIZE", topic, size).stats_minute.sum == size
    assert counts("SNDBCK_PUT_NUMS", key, 1).stats_minute.sum == 1
    assert counts("BROKER_GET_NUMS", "DefaultCluster", 7).stats_minute.sum >= 7
    assert counts("BROKER_PUT_NUMS", "DefaultCluster", 5).stats_minute.sum >= 5
    unused = BrokerStatsRequest(stats_name="GROUP_GET_NUMS", stats_key=f"{topic}@none")
    refused = broker.ask(request_command(unused))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark == f"The stats <GROUP_GET_NUMS> <{topic}@none> not exist"

    request = ConsumeStatsRequest(consumer_group=group, topic=topic)
    stats = read_body(ConsumeStatsBody, broker.ask(request_command(request)))
    assert stats.consume_tps > 0
    (progress,) = [each for each in stats.offset_table.values() if each.broker_offset]
    assert (progress.broker_offset, progress.consumer_offset) == (5, 1)
    assert progress.last_timestamp == first.store_ms
    reply = broker.ask(request_command(BrokerConsumeStatsRequest(is_order=False)))
    everyone = read_body(BrokerConsumeStatsBody, reply).consume_stats_list
    (own,) = [entry[group] for entry in everyone if group in entry]
    assert [each.consume_tps > 0 for each in own] == [True]
    if scene.is_5x:
        assert progress.pull_offset == 5
        reply = broker.ask(request_command(TopicStatsRequest(topic=topic)))
        assert (read_body(TopicStatsBody, reply).topic_put_tps or 0) > 0


def the_slowest_group_of_a_topic_is_found(scene: Scene) -> None:
    broker = scene.broker()
    topic = scene.create_topic(broker, "corrected")
    for word, offsets in (("fast", (9, 3)), ("slow", (4, 3)), ("other", (5, 1))):
        group = create_group(scene, broker, word)
        for queue_id, offset in enumerate(offsets):
            commit = CommitOffsetRequest(
                consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
            )
            succeed(broker.ask(request_command(commit)))

    def slowest(**changes: str) -> dict[int, int]:
        request = CorrectionOffsetsRequest(**({"topic": topic} | changes))
        reply = broker.ask(request_command(request))
        return read_body(CorrectionOffsetsBody, reply).correction_offsets

    assert slowest() == {0: 4, 1: 1}
    assert slowest(compare_group=scene.name("fast")) == {0: 4, 1: 1}
    left_out = f"{scene.name('slow')},{scene.name('none')}"
    assert slowest(compare_group=scene.name("fast"), filter_groups=left_out) == {0: 5, 1: 1}
    assert slowest(topic=scene.name("no-topic"), compare_group=scene.name("fast")) == {}


def a_group_is_forbidden_to_read_a_topic(scene: Scene) -> None:
    broker = scene.broker()
    topic, group = scene.create_topic(broker, "secret"), create_group(scene, broker, "outsiders")

    def forbid(readable: bool | None) -> Command:
        header = ForbidGroupRequest(group=group, topic=topic, readable=readable)
        return broker.ask(request_command(header))

    if not scene.is_5x:
        assert forbid(None).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return
    for readable, expected in ((None, True), (False, False), (None, False)):
        body = read_body(ForbiddenBody, forbid(readable))
        assert (body.group, body.topic, body.readable) == (group, topic, expected)
    subscription = Subscription(topic=topic, sub_version=scene.facts.now_ms)
    member = ConsumerMember(group_name=group, subscription_data_set=[subscription])
    beat = HeartbeatBody(client_id="127.0.0.1@1", consumer_data_set=[member])
    succeed(broker.ask(bare_request(RequestCode.HEART_BEAT, beat.encode())))
    refused = broker.ask(pull_request(topic, group, flags=0))
    assert refused.code == ResponseCode.NO_PERMISSION
    assert refused.remark == f"the consumer group[{group}] is forbidden for topic[{topic}]"
    assert refused.fields["forbiddenType"] == "5"
    # A pull that contains its subscription is not checked.
    assert broker.ask(pull_request(topic, group)).code == ResponseCode.PULL_NOT_FOUND
    reply = broker.ask(bare_request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    assert (read_body(GroupTableBody, reply).forbidden_table or {})[group] == {topic: 4}
    assert read_body(ForbiddenBody, forbid(True)).readable
    assert broker.ask(pull_request(topic, group, flags=0)).code == ResponseCode.PULL_NOT_FOUND


def timed_messages_that_wait_are_counted_by_topic(scene: Scene) -> None:
    broker = scene.broker()
    if not scene.is_5x:
        refused = broker.ask(bare_request(RequestCode.GET_TIMER_METRICS))
        assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return
    topic, other = scene.create_topic(broker, "timed"), scene.create_topic(broker, "timed-too")
    for number, target in enumerate((topic, topic, other)):
        properties = {"UNIQ_KEY": scene.unique_id(number), "TIMER_DELAY_SEC": "600"}
        scene.send(broker, target, b"x", properties)

    def counted() -> list[int]:
        reply = broker.ask(bare_request(RequestCode.GET_TIMER_METRICS))
        counts = read_body(TimedCountsBody, reply).timing_count
        return [counts[each].count if each in counts else 0 for each in (topic, other)]

    assert scene.poll(counted, lambda counts: counts == [2, 1]) == [2, 1]


def names_of_the_servers_own_topics_are_reserved(scene: Scene) -> None:
    broker = scene.broker()
    reply = broker.ask(bare_request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))
    own = set(read_body(TopicNamesBody, reply).topic_list)
    assert {"TBW102", "SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME_TOPIC"} <= own
    if not scene.is_5x:
        assert own.isdisjoint(NEW_SYSTEM_TOPICS)
        return
    assert own.issuperset(NEW_SYSTEM_TOPICS)
    for topic in NEW_SYSTEM_TOPICS:
        header = CreateTopicRequest(
            topic=topic, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6
        )
        refused = broker.ask(request_command(header))
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert refused.remark == f"The topic[{topic}] is conflict with system topic."
    for topic in NEW_SYSTEM_TOPICS[1:]:
        refused = broker.ask(request_command(scene.send_request(topic), b"x"))
        assert refused.code == ResponseCode.NO_PERMISSION
        assert refused.remark == f"Sending message to topic[{topic}] is forbidden."


def create_group(scene: Scene, broker: Peer, word: str) -> str:
    """Create a consumer group and return its name."""
    group = scene.name(word)
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    succeed(broker.ask(bare_request(code, GroupConfig(group_name=group).encode())))
    return group


def wait_for_end(scene: Scene, broker: Peer, topic: str, offset: int) -> None:
    """Wait until queue 0 of a topic has this many messages."""
    request = request_command(MaxOffsetRequest(topic=topic, queue_id=0))
    scene.poll(lambda: read_header(OffsetReply, broker.ask(request)).offset, offset.__eq__)


def pull_request(
    topic: str,
    group: str,
    *,
    offset: int = 0,
    count: int = 32,
    flags: int = int(PullFlag.SUBSCRIPTION),
    commit: int = 0,
) -> Command:
    """Return a pull of queue 0."""
    return request_command(
        PullRequest(
            consumer_group=group,
            topic=topic,
            queue_id=0,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=flags,
            commit_offset=commit,
            suspend_timeout_millis=0,
            sub_version=0,
            subscription="*",
            expression_type="TAG",
        )
    )
