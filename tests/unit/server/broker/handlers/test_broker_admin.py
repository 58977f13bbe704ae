"""Settings and figures of a broker."""

from __future__ import annotations

import pytest

from downrange.server.outputs import Note, TablesChanged
from downrange.wire.bodies import CountsBody, KeyValueBody, TimedCountsBody, decode_body
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import BrokerConfigReply, BrokerStatsRequest
from downrange.wire.records import Record
from downrange.wire.system_names import SCHEDULE_TOPIC, TIMER_TOPIC
from tests.unit.server.broker.broker_stage import NOW_MS
from tests.unit.server.broker.handlers.handler_stage import HandlerStage

CHANGE = RequestCode.UPDATE_BROKER_CONFIG


def settings_of(broker: HandlerStage) -> dict[str, str]:
    reply = broker.ask(RequestCode.GET_BROKER_CONFIG)
    assert "timestamp" in BrokerConfigReply.from_fields(reply.fields).version
    pairs = [line.partition("=") for line in reply.body.decode().splitlines()]
    return {name: value for name, _, value in pairs}


def figures_of(broker: HandlerStage) -> dict[str, str]:
    reply = broker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    return decode_body(KeyValueBody, reply.body).table


# ---- settings ----------------------------------------------------------------------------------


def test_settings_are_shown_under_javas_names() -> None:
    settings = settings_of(
        HandlerStage(name="b", name_servers=("h:1", "h:2"), transaction_timeout=1.5)
    )
    assert settings["brokerName"] == "b"
    assert (settings["brokerIP1"], settings["listenPort"]) == ("10.0.0.2", "10911")
    assert settings["namesrvAddr"] == "h:1;h:2"
    assert settings["timerMaxDelaySec"] == "259200"
    assert (settings["flushDiskType"], settings["transactionTimeOut"]) == ("ASYNC_FLUSH", "1500")
    assert (settings["autoCreateTopicEnable"], settings["brokerRole"]) == ("true", "ASYNC_MASTER")
    assert (settings["brokerPermission"], settings["fileReservedTime"]) == ("6", "72")
    assert settings["registerNameServerPeriod"] == "30000"
    assert (settings["longPollingEnable"], settings["enablePropertyFilter"]) == ("true", "true")
    assert settings_of(HandlerStage(broker_id=1))["brokerRole"] == "SLAVE"


def test_changed_settings_hold_and_are_shown() -> None:
    broker = HandlerStage()
    text = (
        b"# changed\n\nflushDiskType=SYNC_FLUSH\nautoCreateTopicEnable = false\n"
        b"maxMessageSize=1000\ntransactionTimeOut=2500\ntraceOn=FALSE\nregionId=here\n"
        b"flushIntervalCommitLog=50\n"
    )
    assert broker.ask(CHANGE, text).code == ResponseCode.SUCCESS
    options = broker.state.options
    assert (options.flush, options.is_topic_created, options.message_bytes_max) == (
        *("sync", False, 1000),
    )
    assert (options.transaction_timeout, options.is_trace_on) == (2.5, False)
    assert options.flush_interval == 0.05
    assert broker.state.broker_properties["MSG_REGION"] == "here"
    shown = settings_of(broker)
    assert (shown["flushDiskType"], shown["maxMessageSize"]) == ("SYNC_FLUSH", "1000")
    broker.ask(CHANGE, b"flushDiskType=ASYNC_FLUSH")
    assert broker.state.options.flush == "async"


@pytest.mark.parametrize(
    "text",
    [
        "maxMessageSize=abc",
        "maxMessageSize=0",
        "flushDiskType=XX",
        "autoCreateTopicEnable=maybe",
        "transactionTimeOut=1.5",
        "transactionTimeOut=-1",
    ],
)
def test_a_bad_value_is_refused_by_name_and_nothing_is_changed(text: str) -> None:
    broker = HandlerStage()
    before = broker.state.options
    reply = broker.ask(CHANGE, f"traceOn=false\n{text}".encode())
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert text.partition("=")[2].lstrip("-") in (reply.remark or "").replace("-0.001", "1")
    assert broker.state.options is before


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        ("brokerName=other", ResponseCode.NO_PERMISSION, "brokerName=broker-a cannot be changed"),
        ("listenPort=1", ResponseCode.NO_PERMISSION, "and start the broker again"),
        ("deleteWhen=04", ResponseCode.NO_PERMISSION, "this broker has no other value for it"),
        ("fileReservedTme=1", ResponseCode.SYSTEM_ERROR, "did you mean fileReservedTime?"),
        ("zzz=1", ResponseCode.SYSTEM_ERROR, "this broker has no setting zzz; nothing was changed"),
    ],
)
def test_a_setting_that_cannot_be_changed_is_refused_and_nothing_is_changed(
    text: str, code: ResponseCode, problem: str
) -> None:
    broker = HandlerStage()
    before = broker.state.options
    reply = broker.ask(CHANGE, f"traceOn=false\n{text}".encode())
    assert reply.code == code
    assert problem in (reply.remark or "")
    assert broker.state.options is before
    assert broker.state.settings.version == 0


def test_all_settings_may_be_sent_back_with_one_of_them_changed() -> None:
    broker = HandlerStage(flush_bytes=1)  # less than a page, the unit of its setting
    settings = settings_of(broker) | {"fileReservedTime": "48"}
    text = "".join(f"{name}={value}\n" for name, value in settings.items())
    assert broker.ask(CHANGE, text.encode()).code == ResponseCode.SUCCESS
    assert broker.state.retention.keep_hours == 48
    assert broker.state.options.flush_bytes == 1
    assert settings_of(broker) == settings
    assert broker.ask(CHANGE, text.encode()).code == ResponseCode.SUCCESS
    assert broker.state.settings.version == 1


def test_the_reply_to_a_change_waits_until_it_is_saved() -> None:
    broker = HandlerStage()
    outputs = broker.outputs(Command(int(CHANGE), body=b"fileReservedTime=48"))
    assert TablesChanged(broker.state.tables_version, is_confirmed=True) in outputs
    assert broker.state.settings.version == 1
    reply = broker.ask(RequestCode.GET_BROKER_CONFIG)
    assert '"counter":1' in BrokerConfigReply.from_fields(reply.fields).version


def test_a_changed_permission_is_announced_for_all_topics() -> None:
    broker = HandlerStage()
    broker.state.topics.changed()
    before = broker.state.topics.data_version.counter
    broker.ask(CHANGE, b"brokerPermission=4")
    assert len(broker.state.topics.changed()) == len(broker.state.topics)
    assert broker.state.topics.data_version.counter == before + 1
    announced = broker.state.announced_topics().topic_config_table
    assert {topic.perm for topic in announced.values()} == {4}
    kept = broker.state.topics.get("T")
    assert kept is not None
    assert kept.perm == 6
    broker.ask(CHANGE, b"brokerPermission=4\ntraceOn=false")
    assert broker.state.topics.changed() == []
    broker.ask(CHANGE, b"brokerPermission=6")
    assert broker.state.announced_topics().topic_config_table["TBW102"].perm == 7


def test_a_client_cannot_write_long_lines_into_the_log() -> None:
    outputs = HandlerStage().outputs(Command(int(CHANGE), body=b"x" * 100_000))
    assert all(len(output.text) < 1_000 for output in outputs if isinstance(output, Note))


def test_the_trace_topic_appears_when_it_is_switched_on() -> None:
    broker = HandlerStage()
    assert broker.state.topics.get("RMQ_SYS_TRACE_TOPIC") is None
    broker.ask(CHANGE, b"traceTopicEnable=true")
    assert broker.state.topics.get("RMQ_SYS_TRACE_TOPIC") is not None


def test_the_default_topic_appears_when_creation_is_switched_on() -> None:
    broker = HandlerStage(is_topic_created=False)
    assert broker.state.topics.get("TBW102") is None
    broker.ask(CHANGE, b"autoCreateTopicEnable=true")
    assert broker.state.topics.get("TBW102") is not None


# ---- figures -----------------------------------------------------------------------------------


def test_figures_say_what_was_stored_and_handed_out() -> None:
    broker = HandlerStage()
    record = broker.store(b"x")
    broker.state.statistics.stored([Record(topic_bytes=b"T", size=10)] * 20)
    broker.state.statistics.consumed("G", "T", 10, 100)
    broker.state.statistics.pulls_missed = 3
    broker.state.statistics.sample(NOW_MS + 2000)
    broker.state.disk_used = 0.256
    broker.now_ms += 90_061_000
    figures = figures_of(broker)
    assert figures["brokerVersionDesc"] == "V5_5_0"
    assert figures["putTps"] == "10.0 10.0 10.0"
    assert figures["getTransferredTps"] == figures["getTransferedTps"] == "5.0 5.0 5.0"
    assert figures["getFoundTps"] == "0.5 0.5 0.5"
    assert figures["getMissTps"] == "1.5 1.5 1.5"
    assert figures["getTotalTps"] == "2.0 2.0 2.0"
    assert (figures["msgPutTotalTodayNow"], figures["msgGetTotalTodayNow"]) == ("20", "10")
    assert figures["putMessageAverageSize"] == "10.0"
    assert figures["earliestMessageTimeStamp"] == str(NOW_MS)
    assert figures["commitLogMaxOffset"] == str(record.size)
    assert figures["commitLogDiskRatio"] == "0.26"
    assert figures["runtime"] == "[ 1 days, 1 hours, 1 minutes, 1 seconds ]"
    assert figures["bootTimestamp"] == str(NOW_MS)


def test_an_empty_broker_has_figures_too() -> None:
    figures = figures_of(HandlerStage())
    assert figures["earliestMessageTimeStamp"] == "-1"
    assert figures["putMessageAverageSize"] == "0.0"
    assert not any(name.startswith("scheduleMessageOffset") for name in figures)


def test_figures_say_how_far_delayed_messages_have_come() -> None:
    broker = HandlerStage()
    broker.store(b"x", topic=SCHEDULE_TOPIC, queue_id=2)
    assert figures_of(broker)["scheduleMessageOffset_3"] == "0,1"


def test_a_counter_is_shown_by_minute_hour_and_day() -> None:
    broker = HandlerStage()
    statistics = broker.state.statistics
    statistics.consumed("G", "T", 5, 50)
    statistics.sample(NOW_MS + 600_000)
    statistics.consumed("G", "T", 1, 10)
    statistics.sample(NOW_MS + 610_000)
    reply = broker.request(BrokerStatsRequest(stats_name="GROUP_GET_NUMS", stats_key="T@G"))
    counts = decode_body(CountsBody, reply.body)
    assert [counts.stats_minute.sum, counts.stats_hour.sum, counts.stats_day.sum] == [6, 5, 0]
    assert counts.stats_minute.tps == 6 / 20
    assert counts.stats_minute.avgpt == 3.0


def test_a_counter_that_was_not_used_does_not_exist() -> None:
    for name, key in (("GROUP_GET_NUMS", "T"), ("TOPIC_PUT_NUMS", "none"), ("NONE", "T")):
        reply = HandlerStage().request(BrokerStatsRequest(stats_name=name, stats_key=key))
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark == f"The stats <{name}> <{key}> not exist"


def test_timed_messages_that_wait_are_counted_by_topic() -> None:
    broker = HandlerStage()
    reply = broker.ask(RequestCode.GET_TIMER_METRICS)
    assert decode_body(TimedCountsBody, reply.body).timing_count == {}
    for topic in ("T", "U", "T"):
        out_ms = str(NOW_MS + 60_000)
        broker.store(b"x", topic=TIMER_TOPIC, REAL_TOPIC=topic, TIMER_OUT_MS=out_ms)
    broker.state.timers.read_new(broker.state.store)
    body = decode_body(TimedCountsBody, broker.ask(RequestCode.GET_TIMER_METRICS).body)
    assert {topic: each.count for topic, each in body.timing_count.items()} == {"T": 2, "U": 1}
    assert body.timing_count["T"].time_stamp == NOW_MS
    assert (body.data_version.counter, body.data_version.timestamp) == (3, NOW_MS)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
    ],
)
def test_cleaning_up_succeeds(code: RequestCode) -> None:
    assert HandlerStage().ask(code).code == ResponseCode.SUCCESS
