"""The broker itself: settings, figures, maintenance requests of an operator.

    25    change settings: body, `name=value` lines with Java's names; `SETTINGS` lists those that
          can be changed while the broker runs. Others are ignored with a note, as by Apache; a
          value that cannot be read is refused, and then nothing is changed. Changes last until
          the broker stops: it does not write its configuration
    26    show settings
    28    runtime figures, under the names that Java's tools expect
    306 316 329  clean up: nothing to do, since the broker cleans up by itself
    315   messages of a topic in the last minute, hour and day: statsName, statsKey

Skipped on purpose: counters other than TOPIC_PUT_NUMS (answered with 1, as for a topic without
messages), latencies, and thread pools, which do not exist here (0).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from downrange.errors import OptionError
from downrange.server.broker.handlers.answers import refuse, succeed
from downrange.server.broker.queues import count_since
from downrange.server.broker.tables.topic_table import create_system_topics
from downrange.server.outputs import Note, TablesChanged
from downrange.wire.bodies import Count, CountsBody, DataVersion, KeyValueBody
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import BrokerConfigReply, BrokerStatsRequest
from downrange.wire.system_names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import Output, Peer
    from downrange.wire.command import Command

#: The release whose behaviour this broker has.
VERSION: Final = "V5_5_0"


# ---- settings ----------------------------------------------------------------------------------


class Setting(NamedTuple):
    """An option that can be changed while the broker runs.

    Attributes:
        option: Its name in `BrokerOptions`.
        read: Turns Java's text into a value; raises ValueError.
        write: Turns a value into Java's text.
    """

    option: str
    read: Callable[[str], Any]
    write: Callable[[Any], str]


def _read_switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return text.lower() == "true"


def _write_switch(value: bool) -> str:
    return "true" if value else "false"


def _read_flush(text: str) -> str:
    if text not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        raise ValueError("is neither SYNC_FLUSH nor ASYNC_FLUSH")
    return "sync" if text == "SYNC_FLUSH" else "async"


def _write_flush(value: str) -> str:
    return "SYNC_FLUSH" if value == "sync" else "ASYNC_FLUSH"


def _read_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("is not a whole number") from None


def _read_ms(text: str) -> float:
    return _read_number(text) / 1000


def _write_ms(seconds: float) -> str:
    return str(round(seconds * 1000))


def _switch(option: str) -> Setting:
    return Setting(option, _read_switch, _write_switch)


def _write_number(value: float) -> str:
    return str(round(value))


def _number(option: str) -> Setting:
    return Setting(option, _read_number, _write_number)


def _duration(option: str) -> Setting:
    return Setting(option, _read_ms, _write_ms)


#: Java's name -> the option that it changes.
SETTINGS: Final = {
    "flushDiskType": Setting("flush", _read_flush, _write_flush),
    "autoCreateTopicEnable": _switch("is_topic_created"),
    "autoCreateSubscriptionGroup": _switch("is_group_created"),
    "recallMessageEnable": _switch("is_recall_enabled"),
    "traceOn": _switch("is_trace_on"),
    "regionId": Setting("region", str, str),
    "defaultTopicQueueNums": _number("default_topic_queues"),
    "maxMessageSize": _number("message_bytes_max"),
    "maxTransferCountOnMessageInMemory": _number("pull_messages_max"),
    "maxTransferBytesOnMessageInMemory": _number("pull_bytes_max"),
    "timerMaxDelaySec": _number("timer_delay_max"),
    "transactionCheckMax": _number("transaction_checks_max"),
    "channelExpiredTimeout": _duration("client_timeout"),
    "flushIntervalCommitLog": _duration("flush_interval"),
    "syncFlushTimeout": _duration("flush_timeout"),
    "transactionCheckInterval": _duration("transaction_check_interval"),
    "transactionTimeOut": _duration("transaction_timeout"),
}


def _change_settings(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    requested = _read_properties(request.body.decode(errors="replace"))
    changes: dict[str, Any] = {}
    for name, text in requested.items():
        setting = SETTINGS.get(name)
        if setting is None:
            continue
        try:
            changes[setting.option] = setting.read(text)
        except ValueError as error:
            return refuse(ResponseCode.SYSTEM_ERROR, f"{name}={text[:100]} {error}")
    try:
        options = dataclasses.replace(state.options, **changes)
    except OptionError as error:
        return refuse(ResponseCode.SYSTEM_ERROR, str(error))
    state.change_options(options)
    outputs: list[Output] = [Note(f"settings changed by {peer.address}: {sorted(changes)}")]
    if create_system_topics(state.topics, options, now_ms):  # the default topic, if allowed now
        outputs.append(TablesChanged(state.tables_version))
    ignored = sorted(requested.keys() - SETTINGS.keys())
    if ignored:
        names = [name[:80] for name in ignored[:20]]
        text = f"settings that cannot be changed, sent by {peer.address}: {names}"
        outputs.append(Note(text, is_warning=True))
    return [*outputs, *succeed()]


def _read_properties(text: str) -> dict[str, str]:
    """Parse `name=value` lines, Java properties as Apache's tools write them."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _show_settings(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    options, host = state.options, state.host
    settings = {
        name: setting.write(getattr(options, setting.option)) for name, setting in SETTINGS.items()
    }
    settings |= {
        "brokerClusterName": options.cluster,
        "brokerIP1": host.address.rpartition(":")[0].strip("[]"),
        "brokerId": str(options.broker_id),
        "brokerName": options.name,
        "brokerPermission": "6",
        "brokerRole": "ASYNC_MASTER" if options.broker_id == 0 else "SLAVE",
        "listenPort": str(host.port),
        "messageDelayLevel": options.delay_levels,
        "namesrvAddr": ";".join(options.name_servers),
        "traceTopicEnable": _write_switch(options.is_trace_topic_created),
    }
    text = "".join([f"{name}={value}\n" for name, value in sorted(settings.items())])
    version = DataVersion(timestamp=state.boot_ms, counter=0, state_version=0)
    return succeed(BrokerConfigReply(version=version.encode().decode()), text.encode())


# ---- figures -----------------------------------------------------------------------------------


def _show_runtime(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    table = {
        "brokerVersionDesc": VERSION,
        "brokerActive": "true",
        "bootTimestamp": str(state.boot_ms),
        "runtime": _span_text(now_ms - state.boot_ms),
        "startAcceptSendRequestTimeStamp": "0",
        **_storage_figures(state),
        **_traffic_figures(state),
        **_delay_figures(state),
        **dict.fromkeys(_ALWAYS_ZERO, "0"),
    }
    return succeed(body=KeyValueBody(table=table).encode())


#: Figures about Java's threads, buffers and locks, which tools expect.
_ALWAYS_ZERO: Final = (
    "EndTransactionQueueSize",
    "ackThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueSize",
    "dispatchBehindBytes",
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "litePullThreadPoolQueueHeadWaitTimeMills",
    "litePullThreadPoolQueueSize",
    "pageCacheLockTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "putMessageEntireTimeMax",
    "putMessageFailedTimes",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "sendThreadPoolQueueSize",
    "timerCongestNum",
    "timerDequeueTps",
    "timerEnqueueTps",
    "timerOffsetBehind",
    "timerReadBehind",
)


def _storage_figures(state: BrokerState) -> dict[str, str]:
    log = state.store.log
    first = log.first_record_of(log.first) if log.end > log.first else None
    ratio = f"{state.disk_used:.2f}"
    return {
        "commitLogDiskRatio": ratio,
        "commitLogMaxOffset": str(log.end),
        "commitLogMinOffset": str(log.first),
        "consumeQueueDiskRatio": ratio,
        "earliestMessageTimeStamp": str(-1 if first is None else first.store_ms),
        "remainHowManyDataToFlush": f"{log.end - log.flushed} B",
    }


def _traffic_figures(state: BrokerState) -> dict[str, str]:
    counted = state.statistics
    stored, pulled = (
        " ".join([str(rate) for rate in counted.rates(name)])
        for name in ("messages_stored", "messages_pulled")
    )
    average = counted.bytes_stored / counted.messages_stored if counted.messages_stored else 0.0
    return {
        "putTps": stored,
        "getFoundTps": pulled,
        "getMissTps": "0.0 0.0 0.0",
        "getTotalTps": pulled,
        "getTransferredTps": pulled,
        "getTransferedTps": pulled,  # 4.9 tools spell it so
        "msgGetTotalTodayMorning": str(counted.today.messages_pulled),
        "msgGetTotalTodayNow": str(counted.messages_pulled),
        "msgGetTotalYesterdayMorning": str(counted.yesterday.messages_pulled),
        "msgPutTotalTodayMorning": str(counted.today.messages_stored),
        "msgPutTotalTodayNow": str(counted.messages_stored),
        "msgPutTotalYesterdayMorning": str(counted.yesterday.messages_stored),
        "putMessageAverageSize": str(average),
        "putMessageSizeTotal": str(counted.bytes_stored),
        "putMessageTimesTotal": str(counted.messages_stored),
    }


def _delay_figures(state: BrokerState) -> dict[str, str]:
    """Return, for each delay level that was used, the next and the end offset of its queue."""
    found: dict[str, str] = {}
    for level in state.delays.levels:
        end = state.store.queue(SCHEDULE_TOPIC, level.queue_id).max_offset
        if end:
            found[f"scheduleMessageOffset_{level.queue_id + 1}"] = f"{level.next_offset},{end}"
    return found


def _span_text(span_ms: int) -> str:
    minutes, seconds = divmod(span_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


_TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def _show_counter(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    header = BrokerStatsRequest.from_fields(request.fields)
    topic = state.topics.get(header.stats_key)
    if header.stats_name != _TOPIC_PUT_NUMS or topic is None:
        remark = f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
        return refuse(ResponseCode.SYSTEM_ERROR, remark)
    minute, hour, day = (
        Count(sum=count, tps=count / seconds)
        for seconds in (_MINUTE, _HOUR, _DAY)
        for count in [count_since(state, topic, now_ms - seconds * 1000)]
    )
    body = CountsBody(stats_minute=minute, stats_hour=hour, stats_day=day)
    return succeed(body=body.encode())


def _clean(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return succeed()


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.UPDATE_BROKER_CONFIG): _change_settings,
    int(RequestCode.GET_BROKER_CONFIG): _show_settings,
    int(RequestCode.GET_BROKER_RUNTIME_INFO): _show_runtime,
    int(RequestCode.VIEW_BROKER_STATS_DATA): _show_counter,
    int(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE): _clean,
    int(RequestCode.CLEAN_UNUSED_TOPIC): _clean,
    int(RequestCode.DELETE_EXPIRED_COMMITLOG): _clean,
}
