"""Settings that an operator reads and changes at a broker: which there are, and what they do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from downrange import Message
from downrange.wire.codes import RequestCode
from tests.contract.conftest import only_apache, only_sync
from tests.contract.servers import call
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.apache.probe import Answer
    from tests.contract.conftest import Embedded, MakeProducer
    from tests.contract.servers import Server

NO_PERMISSION = 16


def change(server: Server, **settings: str) -> Answer:
    """Change settings as mqadmin does."""
    body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
    return call(server.brokers[0], RequestCode.UPDATE_BROKER_CONFIG, {}, body=body)


def settings_of(server: Server) -> dict[str, str]:
    shown = call(server.brokers[0], RequestCode.GET_BROKER_CONFIG, {}).body.decode()
    return dict(line.split("=", 1) for line in shown.splitlines())


@contextmanager
def permission(server: Server, value: int) -> Generator[None]:
    """Take permissions from the broker, and give them back."""
    assert change(server, brokerPermission=str(value)).code == 0
    try:
        yield
    finally:
        assert change(server, brokerPermission="6").code == 0


def perm_of(server: Server, topic: str) -> int:
    route = server.route(topic)
    assert route is not None
    (queues,) = route.body.queue_datas
    return queues.perm


def send(server: Server, topic: str) -> Answer:
    """Send past the route, as a producer with an old one does."""
    fields = dict.fromkeys("dehjl", "0") | {
        "a": "P",
        "b": topic,
        "c": "TBW102",
        "f": "0",
        "g": "1",
        "i": "",
        "k": "false",
        "m": "false",
    }
    return call(server.brokers[0], RequestCode.SEND_MESSAGE_V2, fields, body=b"x")


def pull(server: Server, topic: str) -> Answer:
    fields = {
        "consumerGroup": "contract",
        "topic": topic,
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return call(server.brokers[0], RequestCode.PULL_MESSAGE, fields)


def send_back(server: Server) -> Answer:
    fields = {"offset": "0", "group": "contract", "delayLevel": "0", "unitMode": "false"}
    fields |= {"originMsgId": "x", "originTopic": "x", "maxReconsumeTimes": "16"}
    return call(server.brokers[0], RequestCode.CONSUMER_SEND_MSG_BACK, fields)


def ordered_topic(server: Server) -> str:
    topic = server.topic(1)
    fields = server.topic_fields(topic, 1, 6) | {"order": "true"}
    assert call(server.brokers[0], RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
    return topic


@only_sync
def test_a_broker_without_write_permission_says_so_in_its_routes_and_refuses(
    server: Server, producer: MakeProducer
) -> None:
    topic, ordered = server.topic(1), ordered_topic(server)
    producer(server).send(Message(topic, b"x"))
    assert pull(server, topic).code in (0, 19)  # creates the group
    with permission(server, 4):
        wait_until(lambda: perm_of(server, topic) == 4)
        assert len(server.read_all(topic, 1)) == 1
        answers = [send_back(server)]
        if not server.is_old:  # 4.9 takes order topics from the name server only
            answers.append(send(server, ordered))
        for answer in answers:
            assert answer.code == NO_PERMISSION
            assert answer.remark == "the broker[127.0.0.1] sending message is forbidden"
        # Apache accepts messages for other topics from producers whose route is old.
        assert send(server, topic).code == (0 if server.is_apache else NO_PERMISSION)
    wait_until(lambda: perm_of(server, topic) == 6)
    producer(server).send(Message(topic, b"y"))


@only_sync
def test_a_broker_without_read_permission_says_so_in_its_routes_and_refuses(
    server: Server,
) -> None:
    topic = server.topic(1)
    with permission(server, 2):
        wait_until(lambda: perm_of(server, topic) == 2)
        answer = pull(server, topic)
        assert answer.code == NO_PERMISSION
        assert answer.remark == "the broker[127.0.0.1] pulling message is forbidden"
        if not server.is_old:
            assert answer.fields == {"forbiddenType": "1"}
        assert send(server, topic).code == 0
    wait_until(lambda: perm_of(server, topic) == 6)


@only_sync
def test_half_messages_can_be_refused(server: Server) -> None:
    topic = server.topic(1)
    fields = dict.fromkeys("dehjl", "0") | {
        "a": "P",
        "b": topic,
        "c": "TBW102",
        "f": "4",
        "g": "1",
        "k": "false",
        "m": "false",
        "i": "TRAN_MSG\x01true\x02PGROUP\x01P\x02",
    }
    assert change(server, rejectTransactionMessage="true").code == 0
    try:
        refused = call(server.brokers[0], RequestCode.SEND_MESSAGE_V2, fields, body=b"x")
    finally:
        assert change(server, rejectTransactionMessage="false").code == 0
    assert refused.code == NO_PERMISSION
    assert refused.remark == "the broker[127.0.0.1] sending transaction message is forbidden"


@only_sync
def test_retention_is_shown_and_changed_in_hours(server: Server) -> None:
    assert settings_of(server)["fileReservedTime"] == "72"
    assert change(server, fileReservedTime="48").code == 0
    assert settings_of(server)["fileReservedTime"] == "48"
    assert change(server, fileReservedTime="72").code == 0
    assert settings_of(server)["fileReservedTime"] == "72"


@only_sync
@pytest.mark.parametrize("name", ["noSuchSetting", "fileReservedTime"])
def test_a_change_that_has_no_effect_is_an_error_only_of_ours(server: Server, name: str) -> None:
    answer = change(server, **{name: "abc"})
    assert answer.code == (0 if server.is_apache else 1)
    assert server.is_apache or name in answer.remark
    assert settings_of(server).get(name) in (None, "72")


@only_sync
@only_apache
def test_every_setting_of_ours_is_one_of_apaches(server: Server, embedded: Embedded) -> None:
    ours, theirs = settings_of(embedded), settings_of(server)
    unknown = ours.keys() - theirs.keys()
    new_in_5 = {
        *("bindAddress", "channelExpiredTimeout", "diskSpaceCleanForciblyRatio"),
        *("diskSpaceWarningLevelRatio", "enableControllerMode", "litePullMessageEnable"),
        *("recallMessageEnable", "timerMaxDelaySec", "timerWheelEnable"),
        "useServerSideResetOffset",
        "defaultMessageRequestMode",
        "defaultPopShareQueueNum",
        "enableRetryTopicV2",
        "serverLoadBalancerEnable",
    }
    assert unknown == (new_in_5 if server.is_old else set())
