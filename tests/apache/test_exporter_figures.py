"""The requests of rocketmq-exporter, answered by Apache and by us after the same traffic.

rocketmq-exporter is a process of its own, which reads 28 (figures of a broker), 202 (queues of a
topic), 208 (progress of a group), 307 (state of a member) and 315 (counters). It shows no figure of
28 if one that it parses is missing, which is so with Apache 5.x; so 28 is compared with 4.9.4.
"""

from __future__ import annotations

import json
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import downrange as mq
from downrange.wire import fastjson
from downrange.wire.codes import RequestCode
from tests.apache import metric_traffic as traffic
from tests.apache import probe
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apache.fixtures import ApacheVersions

pytestmark = pytest.mark.apache

#: What the exporter parses as whole numbers, and as other numbers.
WHOLE = (
    *("msgPutTotalTodayNow", "sendThreadPoolQueueHeadWaitTimeMills", "bootTimestamp"),
    *("queryThreadPoolQueueHeadWaitTimeMills", "msgGetTotalTodayNow", "queryThreadPoolQueueSize"),
    *("msgPutTotalYesterdayMorning", "msgGetTotalYesterdayMorning", "pullThreadPoolQueueSize"),
    *("commitLogMinOffset", "pullThreadPoolQueueHeadWaitTimeMills", "dispatchMaxBuffer"),
    *("brokerVersion", "pageCacheLockTimeMills", "commitLogMaxOffset", "getMessageEntireTimeMax"),
    *("msgPutTotalTodayMorning", "putMessageTimesTotal", "msgGetTotalTodayMorning"),
    *("sendThreadPoolQueueSize", "startAcceptSendRequestTimeStamp", "putMessageEntireTimeMax"),
    *("earliestMessageTimeStamp", "remainTransientStoreBufferNumbs", "dispatchBehindBytes"),
    *("queryThreadPoolQueueCapacity", "putMessageSizeTotal", "sendThreadPoolQueueCapacity"),
    "pullThreadPoolQueueCapacity",
)
NUMBERS = ("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize")
RATES = ("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps")
SAMPLE_SECONDS = 10.0
_MEMBER = f"{traffic.ORDERS}@{traffic.PUSH_GROUP}"
#: The compared counters and their values, None where only both sides must have the same.
COUNTERS: dict[tuple[str, str], int | None] = {
    ("TOPIC_PUT_NUMS", traffic.ORDERS): traffic.ORDER_COUNT,
    ("GROUP_GET_NUMS", _MEMBER): traffic.ORDER_COUNT,
    ("SNDBCK_PUT_NUMS", _MEMBER): None,
    ("TOPIC_PUT_SIZE", traffic.ORDERS): None,
    ("GROUP_GET_SIZE", _MEMBER): None,
    ("BROKER_PUT_NUMS", "DefaultCluster"): None,
    ("BROKER_GET_NUMS", "DefaultCluster"): None,
}
CAPACITY = re.compile(r"Total : [\d.]+ [KMGT]?i?B, Free : [\d.]+ [KMGT]?i?B\.")


class Exporter:
    """Asks one broker what the exporter asks."""

    def __init__(self, broker: str) -> None:
        self.broker = broker
        #: The highest values of the counters during the traffic.
        self.counters: dict[tuple[str, str], float] = {}

    def ask(self, code: RequestCode, **fields: str) -> Any:
        """Return the body of a reply."""
        reply = probe.call(self.broker, code, fields)
        assert reply.code == 0, reply
        return fastjson.loads(reply.body)

    def figures(self) -> dict[str, str]:
        """Return the answer to 28."""
        table: dict[str, str] = self.ask(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
        return table

    def counter(self, name: str, key: str) -> float:
        """Return the sum of the last minute of a counter, by 315; 0 if nothing was counted yet."""
        fields = {"statsName": name, "statsKey": key}
        reply = probe.call(self.broker, RequestCode.VIEW_BROKER_STATS_DATA, fields)
        return float(fastjson.loads(reply.body)["statsMinute"]["sum"]) if reply.code == 0 else 0.0

    def queues(self, topic: str) -> list[tuple[int, int, int]]:
        """Return number and both ends of the queues of a topic, by 202."""
        table = self.ask(RequestCode.GET_TOPIC_STATS_INFO, topic=topic)["offsetTable"]
        return sorted(
            (key["queueId"], ends["minOffset"], ends["maxOffset"]) for key, ends in _pairs(table)
        )

    def progress(self, group: str, topic: str) -> list[tuple[int, int, int]]:
        """Return number, end and offset of the queues that a group reads, by 208."""
        body = self.ask(RequestCode.GET_CONSUME_STATS, consumerGroup=group, topic=topic)
        return sorted(
            (key["queueId"], each["brokerOffset"], each["consumerOffset"])
            for key, each in _pairs(body["offsetTable"])
        )

    def await_progress(self, group: str, topic: str, offset: int) -> None:
        """Wait until a group has this offset in the only queue of a topic."""
        wait_until(lambda: [each[2] for each in self.progress(group, topic)] == [offset])

    def member(self, group: str) -> dict[str, Any]:
        """Return the state of the only member of a group, by 307."""
        body = self.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup=group)
        (connection,) = body["connectionSet"]
        state: dict[str, Any] = self.ask(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            consumerGroup=group,
            clientId=connection["clientId"],
        )
        return state


class Counters:
    """The highest values of some counters of a broker, which are read all the time.

    A counter is sampled every ten seconds, perhaps in the middle of the traffic, and shows the last
    minute: a test that looks once may be too early or too late.
    """

    def __init__(self, exporter: Exporter) -> None:
        self.highest = dict.fromkeys(COUNTERS, 0.0)
        self._exporter = exporter
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait until everything that was counted is sampled, then end."""
        exact = {counter: count for counter, count in COUNTERS.items() if count}
        try:
            wait_until(lambda: all(self.highest[each] >= count for each, count in exact.items()))
            time.sleep(1.5 * SAMPLE_SECONDS)
            wait_until(lambda: all(self.highest.values()))
        finally:
            self._is_over.set()
            self._thread.join()

    def _read(self) -> None:
        while not self._is_over.wait(0.5):
            for counter in COUNTERS:
                self.highest[counter] = max(self.highest[counter], self._exporter.counter(*counter))


def _pairs(table: Any) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the entries of a table whose keys are objects."""
    pairs = table.items() if isinstance(table, dict) else table
    return [(json.loads(key) if isinstance(key, str) else key, value) for key, value in pairs]


@pytest.fixture(name="exporters", scope="module", params=["5.5.0", "4.9.4"])
def _exporters(
    request: pytest.FixtureRequest, apache_versions: ApacheVersions
) -> Iterator[tuple[Exporter, Exporter]]:
    """Return Apache's broker and ours, with the same traffic behind them."""
    apache = apache_versions.cluster(request.param)
    is_old = request.param == "4.9.4"
    made: list[traffic.Traffic] = []
    with mq.Cluster() as ours:
        name_servers = apache.name_server, ours.name_server
        exporters = Exporter(apache.brokers[0].address), Exporter(ours.brokers[0])
        try:
            for exporter, name_server in zip(exporters, name_servers, strict=True):
                counters = Counters(exporter)
                made.append(traffic.make_traffic(name_server, is_old=is_old))
                counters.stop()
                exporter.counters = counters.highest
            yield exporters
        finally:
            for each in made:
                each.close()


def test_all_figures_that_it_parses_are_there(exporters: tuple[Exporter, Exporter]) -> None:
    apache, _ = exporters
    for exporter in exporters:
        figures = exporter.figures()
        for name in WHOLE:
            if name == "brokerVersion" and exporter is apache and name not in figures:
                assert figures["brokerVersionDesc"] == "V5_5_0"  # so the exporter shows none of it
            else:
                int(figures[name])
        for name in NUMBERS:
            float(figures[name])
    ours = exporters[1].figures()
    assert CAPACITY.fullmatch(ours["commitLogDirCapacity"])
    assert ours["putMessageDistributeTime"] == "null"
    float(ours["remainHowManyDataToFlush"].split(" ")[0])
    for name in RATES:
        assert [float(word) for word in ours[name].split(" ")]
    assert ours["brokerVersion"] == "513"


def test_queues_and_progress_are_the_same(exporters: tuple[Exporter, Exporter]) -> None:
    apache, ours = exporters
    for topic in (traffic.ORDERS, traffic.EVENTS, traffic.LATE, traffic.DEALS):
        assert ours.queues(topic) == apache.queues(topic), topic
    slow = [(0, traffic.ORDER_COUNT, traffic.SLOW_DONE)]
    for exporter in exporters:
        assert exporter.progress(traffic.SLOW_GROUP, traffic.ORDERS) == slow
        exporter.await_progress(traffic.PUSH_GROUP, traffic.ORDERS, traffic.ORDER_COUNT)


def test_the_progress_of_a_group_that_pops_is_what_was_handed_out(
    exporters: tuple[Exporter, Exporter],
) -> None:
    apache, _ = exporters
    if apache.figures()["brokerVersionDesc"].startswith("V4"):
        return  # it has no pops, so the traffic had none
    for exporter in exporters:
        exporter.await_progress(traffic.POP_GROUP, traffic.EVENTS, traffic.POPPED)


def test_counters_are_the_same(exporters: tuple[Exporter, Exporter]) -> None:
    """Both are sampled every ten seconds, and show the last minute."""
    apache, ours = exporters
    for counter, count in COUNTERS.items():
        name, _ = counter
        if name.endswith("_SIZE"):
            assert ours.counters[counter] == pytest.approx(apache.counters[counter], rel=0.05)
        elif not name.startswith("BROKER"):
            assert ours.counters[counter] == apache.counters[counter], name
            assert count is None or ours.counters[counter] == count


def test_the_state_of_a_member_is_forwarded(exporters: tuple[Exporter, Exporter]) -> None:
    for exporter in exporters:
        state = exporter.member(traffic.PUSH_GROUP)
        assert traffic.ORDERS in state["statusTable"]
        rates = state["statusTable"][traffic.ORDERS]
        assert {
            "consumeOKTPS",
            "consumeRT",
            "pullRT",
            "pullTPS",
            "consumeFailedMsgs",
        } <= rates.keys()
