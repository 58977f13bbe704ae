"""The broker itself: settings, figures, maintenance requests of an operator.

    25    change settings: body, `name=value` lines with Java's names; `settings.SETTINGS` lists
          those that can be changed while the broker runs. The reply waits until they are saved.
          An unknown name or a value that cannot be used is refused (1), and so is a change of
          another setting (16); then nothing is changed. Apache answers success, whatever it
          ignored
    26    show settings
    28    runtime figures, under the names that Java's tools expect
    61    the number of timed messages that wait, by topic
    306 316 329  clean up: nothing to do, since the broker cleans up by itself
    315   a counter in the last minute, hour and day: statsName, statsKey; `statistics` has their
          names

Skipped on purpose: counters of latencies and of single queues (answered with 1, as for a topic
without messages), and thread pools, which do not exist here (0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.errors import OptionError
from downrange.options.hints import similar_names
from downrange.server.broker.handlers.answers import refuse, succeed, succeed_when_saved
from downrange.server.broker.settings import SETTINGS, Settings, write_ms
from downrange.server.outputs import Note
from downrange.wire.bodies import DataVersion, KeyValueBody
from downrange.wire.codes import ReleaseVersion, RequestCode, ResponseCode
from downrange.wire.headers import BrokerConfigReply, BrokerStatsRequest
from downrange.wire.limits import INT32_MAX
from downrange.wire.system_names import SCHEDULE_TOPIC, TRACE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState
    from downrange.server.outputs import Output, Peer
    from downrange.wire.command import Command

#: The release whose behaviour this broker has.
VERSION: Final = "V5_5_0"


# ---- settings ----------------------------------------------------------------------------------


def _change_settings(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    requested = _read_properties(request.body.decode(errors="replace"))
    shown = _all_settings(state)
    for name in sorted(requested.keys() - SETTINGS.keys()):
        if name not in shown:
            remark = f"this broker has no setting {name[:80]}{_hint(name)}; nothing was changed"
            return refuse(ResponseCode.SYSTEM_ERROR, remark)
        if requested[name] != shown[name]:
            step = "this broker has no other value for it"
            if name not in _FEATURES:
                step = "change it in the configuration and start the broker again"
            remark = f"{name}={shown[name]} cannot be changed: {step}; nothing was changed"
            return refuse(ResponseCode.NO_PERMISSION, remark)
    changes = {name: text for name, text in requested.items() if text != shown[name]}
    try:
        state.change_settings(changes, now_ms)
    except OptionError as error:
        return refuse(ResponseCode.SYSTEM_ERROR, str(error))
    notes: list[Output] = []
    if changes:
        texts = ", ".join([f"{name}={changes[name]}" for name in sorted(changes)])
        notes.append(Note(f"settings changed by {peer.address}: {texts[:1000]}"))
    return [*notes, *succeed_when_saved(state)]


def _hint(name: str) -> str:
    for likely in similar_names(name[:80], SETTINGS):
        return f"; did you mean {likely}?"
    return ""


def _read_properties(text: str) -> dict[str, str]:
    """Parse `name=value` lines, Java properties as Apache's tools write them."""
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _show_settings(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    lines = [f"{name}={value}\n" for name, value in sorted(_all_settings(state).items())]
    version = DataVersion(
        timestamp=state.settings.changed_ms or state.boot_ms,
        counter=state.settings.version,
        state_version=0,
    )
    return succeed(BrokerConfigReply(version=version.encode().decode()), "".join(lines).encode())


def _all_settings(state: BrokerState) -> dict[str, str]:
    """Return all settings by Java's names, those that cannot be changed included."""
    options, host = state.options, state.host
    now = Settings(options, state.retention)
    return {
        **{name: setting.text(now) for name, setting in SETTINGS.items()},
        **_FEATURES,
        **state.fixed_settings,
        "brokerClusterName": options.cluster,
        "brokerIP1": host.host,
        "brokerIP2": host.host,
        "brokerId": str(options.broker_id),
        "brokerName": options.name,
        "brokerRole": "ASYNC_MASTER" if options.broker_id == 0 else "SLAVE",
        "listenPort": str(host.port),
        "messageDelayLevel": options.delay_levels,
        "namesrvAddr": ";".join(options.name_servers),
        "registerNameServerPeriod": write_ms(options.register_interval),
    }


#: Features that Java's broker can switch and this one has, or has not, for good.
_FEATURES: Final = {
    "brokerTopicEnable": "true",
    "clusterTopicEnable": "true",
    "deleteWhen": ";".join([f"{hour:02}" for hour in range(24)]),  # old segments go at any hour,
    "diskMaxUsedSpaceRatio": "0",  # however little of the disk is in use
    "enableControllerMode": "false",
    "enableDLegerCommitLog": "false",
    "litePullMessageEnable": "true",
    "longPollingEnable": "true",
    "messageIndexEnable": "true",
    "msgTraceTopicName": TRACE_TOPIC,
    "slaveReadEnable": "false",
    "storeReplyMessageEnable": "true",
    "timerWheelEnable": "true",
}


# ---- figures -----------------------------------------------------------------------------------


def _show_runtime(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    table = {
        "brokerVersion": str(int(ReleaseVersion[VERSION])),
        "brokerVersionDesc": VERSION,
        "brokerActive": "true",
        "bootTimestamp": str(state.boot_ms),
        "runtime": _span_text(now_ms - state.boot_ms),
        "startAcceptSendRequestTimeStamp": "0",
        **_storage_figures(state),
        **_traffic_figures(state, now_ms),
        **_delay_figures(state),
        **dict.fromkeys(_ALWAYS_ZERO, "0"),
    }
    return succeed(body=KeyValueBody(table=table).encode())


#: Figures about Java's threads, buffers and locks, which tools expect.
_ALWAYS_ZERO: Final = (
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "ackThreadPoolQueueHeadWaitTimeMills",
    "ackThreadPoolQueueSize",
    "dispatchBehindBytes",
    "dispatchMaxBuffer",
    "getMessageEntireTimeMax",
    "litePullThreadPoolQueueHeadWaitTimeMills",
    "litePullThreadPoolQueueSize",
    "pageCacheLockTimeMills",
    "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "putMessageEntireTimeMax",
    "putMessageFailedTimes",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "sendThreadPoolQueueCapacity",
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
    free, total = state.disk_space
    return {
        # rocketmq-exporter shows no figure at all if it cannot parse one that it knows from 4.9.
        # Apache's 5.x has no brokerVersion.
        "commitLogDirCapacity": f"Total : {_size_text(total)}, Free : {_size_text(free)}.",
        "putMessageDistributeTime": "null",  # as of a 4.9 broker that has not measured yet
        "remainTransientStoreBufferNumbs": str(INT32_MAX),  # there is no such buffer
        "commitLogDiskRatio": ratio,
        "commitLogMaxOffset": str(log.end),
        "commitLogMinOffset": str(log.first),
        "consumeQueueDiskRatio": ratio,
        "earliestMessageTimeStamp": str(-1 if first is None else first.store_ms),
        "remainHowManyDataToFlush": f"{log.end - log.flushed} B",
    }


def _size_text(size: int) -> str:
    """Return a number of bytes as Java's tools write and read it."""
    value, units = float(size), iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while value >= 1024 and (larger := next(units, None)) is not None:
        value, unit = value / 1024, larger
    return f"{value:.1f} {unit}"


def _traffic_figures(state: BrokerState, now_ms: int) -> dict[str, str]:
    counted = state.statistics
    total = counted.totals(now_ms)
    stored, pulled, found, missed = (
        counted.rates(name)
        for name in ("messages_stored", "messages_pulled", "pulls_found", "pulls_missed")
    )
    average = counted.bytes_stored / counted.messages_stored if counted.messages_stored else 0.0
    return {
        "putTps": _rates_text(stored),
        "getFoundTps": _rates_text(found),
        "getMissTps": _rates_text(missed),
        "getTotalTps": _rates_text([sum(pair) for pair in zip(found, missed, strict=True)]),
        "getTransferredTps": _rates_text(pulled),
        "getTransferedTps": _rates_text(pulled),  # 4.9 tools spell it so
        "msgGetTotalTodayMorning": str(counted.today.user_messages_pulled),
        "msgGetTotalTodayNow": str(total.user_messages_pulled),
        "msgGetTotalYesterdayMorning": str(counted.yesterday.user_messages_pulled),
        "msgPutTotalTodayMorning": str(counted.today.user_messages_stored),
        "msgPutTotalTodayNow": str(total.user_messages_stored),
        "msgPutTotalYesterdayMorning": str(counted.yesterday.user_messages_stored),
        "putMessageAverageSize": str(average),
        "putMessageSizeTotal": str(counted.bytes_stored),
        "putMessageTimesTotal": str(counted.messages_stored),
    }


def _rates_text(rates: list[float]) -> str:
    return " ".join([str(rate) for rate in rates])


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


def _show_counter(
    state: BrokerState, request: Command, peer: Peer, now_ms: int
) -> Sequence[Output]:
    header = BrokerStatsRequest.from_fields(request.fields)
    name, key = header.stats_name, header.stats_key
    counts = state.statistics.counts(name, key, state.options.cluster)
    if counts is None:
        return refuse(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    return succeed(body=counts.encode())


def _count_timed(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return succeed(body=state.timers.counts().encode())


def _clean(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    return succeed()


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.UPDATE_BROKER_CONFIG): _change_settings,
    int(RequestCode.GET_BROKER_CONFIG): _show_settings,
    int(RequestCode.GET_BROKER_RUNTIME_INFO): _show_runtime,
    int(RequestCode.VIEW_BROKER_STATS_DATA): _show_counter,
    int(RequestCode.GET_TIMER_METRICS): _count_timed,
    int(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE): _clean,
    int(RequestCode.CLEAN_UNUSED_TOPIC): _clean,
    int(RequestCode.DELETE_EXPIRED_COMMITLOG): _clean,
}
