"""What a broker knows about popped messages after a restart: ours and Apache's behave alike."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

from downrange.embedded import Cluster
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.fastjson import loads
from downrange.wire.records import decode_records
from tests.apache import probe
from tests.apache.artifacts import ApacheUnavailable
from tests.apache.cluster import ApacheCluster
from tests.apache.fixtures import skip_or_fail
from tests.support.pops import pop_fields, receipts
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BROKER = "broker-a"
HOLD_MS = 60_000
# Longer than any restart.
LONG_MS = 600_000


class Server(Protocol):
    """A broker that can be stopped and started again.

    Attributes:
        restart_ms: How long a restart may take; on a busy machine it takes longer.
    """

    restart_ms: int

    @property
    def address(self) -> str:
        """Return "host:port" of the broker."""
        ...

    def stop(self) -> None:
        """Shut the broker down."""
        ...

    def start(self) -> None:
        """Start it with the same store."""
        ...

    def saved(self, name: str) -> str:
        """Return the text of a file in the broker's folder of settings."""
        ...


class OurServer:
    """Our broker."""

    restart_ms = 10_000

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.start()

    @property
    def address(self) -> str:
        return self._cluster.brokers[0]

    def start(self) -> None:
        self._cluster = self._stack.enter_context(Cluster(store=self._folder))

    def stop(self) -> None:
        self._stack.close()

    def saved(self, name: str) -> str:
        (path,) = self._folder.glob(f"**/config/{name}")
        return path.read_text()


class ApacheServer:
    """Apache's broker."""

    restart_ms = 30_000

    def __init__(self, stack: ExitStack) -> None:
        self._cluster = stack.enter_context(ApacheCluster("5.5.0"))

    @property
    def address(self) -> str:
        return self._cluster.brokers[0].address

    def start(self) -> None:
        self._cluster.start_broker(0)

    def stop(self) -> None:
        assert self._cluster.stop_broker(0)

    def saved(self, name: str) -> str:
        return (self._cluster.brokers[0].store / "config" / name).read_text()


@pytest.fixture(params=["ours", pytest.param("apache", marks=pytest.mark.apache)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Give our broker, then Apache's."""
    with ExitStack() as stack:
        if request.param == "ours":
            yield OurServer(tmp_path, stack)
        else:
            try:
                running = ApacheServer(stack)
            except ApacheUnavailable as error:
                skip_or_fail(error)
            yield running


def test_popped_messages_are_still_invisible_after_a_restart(server: Server) -> None:
    for topic, count in (("plain", 6), ("ordered", 6), ("short", 3)):
        _send(server, topic, count)
    popped = _pop(server, "plain", count=3)
    _ack(server, popped, "plain", 0)
    orderly = _pop(server, "ordered", count=3, order="true", attemptId="first")
    _ack(server, orderly, "ordered", 0)
    assert _committed(server, "ordered") == 1
    short = _pop(server, "short", count=3, invisible_ms=server.restart_ms)
    _ack(server, short, "short", 0)

    server.stop()
    saved = loads(server.saved("consumerOrderInfo.json").encode())
    assert saved["orderedConsumptionLevel"] == "QUEUE"
    ((name, queues),) = saved["table"].items()
    ((queue_id, order),) = queues.items()
    assert (name, int(queue_id)) == ("ordered@G", 0)
    popped_ms = int(orderly.fields["popTime"])
    assert order.pop("l") >= popped_ms  # when it was used last
    assert order.pop("oc", {}) == {}  # how often each was delivered again: absent or empty
    assert order == {
        "a": "first",
        "cm": 1,  # a bit for each acknowledged message
        "i": LONG_MS,
        "o": [0, 1, 2],
        "popTime": popped_ms,
    }
    server.start()

    # The first queue goes on behind what was popped, the other one is blocked.
    answer = _pop(server, "plain")
    assert _bodies(answer) == [b"3", b"4", b"5"]
    assert answer.fields["startOffsetInfo"] == "0 0 3"
    blocked = _pop(server, "ordered", order="true", attemptId="second")
    assert blocked.code == ResponseCode.POLLING_TIMEOUT
    # A repeated request gets its batch, and what follows it.
    repeated = _pop(server, "ordered", order="true", attemptId="first")
    assert _bodies(repeated) == [b"1", b"2", b"3", b"4", b"5"]
    assert repeated.fields["orderCountInfo"] == "0 0 0"

    # The two that were not acknowledged before the restart return when their time is over.
    returned: list[bytes] = []
    end_ms = int(short.fields["popTime"]) + server.restart_ms
    while len(returned) < 2:
        answer = _pop(server, "short", queue_id=-1, poll_ms=HOLD_MS, born_ms=_now_ms())
        assert int(answer.fields["popTime"]) >= end_ms
        assert {one.reconsume_times for one in decode_records(answer.body)} == {1}
        returned += _bodies(answer)
    assert sorted(returned) == [b"1", b"2"]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _ask(
    server: Server, code: RequestCode, fields: dict[str, str], body: bytes = b""
) -> probe.Answer:
    return probe.call(server.address, code, fields, body=body, timeout=HOLD_MS / 1000 + 10)


def _send(server: Server, topic: str, count: int) -> None:
    """Create a topic of one queue with messages "0", "1" and so on."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1"}
    fields |= {"writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    fields |= {"topicSysFlag": "0", "order": "false"}
    assert _ask(server, RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
    for number in range(count):
        fields = {"producerGroup": "g", "topic": topic, "defaultTopic": "TBW102", "queueId": "0"}
        fields |= {"defaultTopicQueueNums": "1", "sysFlag": "0", "flag": "0", "properties": ""}
        fields |= {"bornTimestamp": str(_now_ms())}
        body = str(number).encode()
        assert _ask(server, RequestCode.SEND_MESSAGE, fields, body).code == 0
    queue = {"topic": topic, "queueId": "0"}
    wait_until(
        lambda: _ask(server, RequestCode.GET_MAX_OFFSET, queue).fields["offset"] == str(count)
    )


def _pop(server: Server, topic: str, **given: str | int) -> probe.Answer:
    given = {"invisible_ms": LONG_MS, **given}
    return _ask(server, RequestCode.POP_MESSAGE, pop_fields(topic, "G", **given))  # type: ignore[arg-type]


def _ack(server: Server, answer: probe.Answer, topic: str, offset: int) -> None:
    receipt = receipts(answer.fields, topic, "G", BROKER)["0", 0, offset]
    assert _ask(server, RequestCode.ACK_MESSAGE, receipt.fields()).code == 0


def _bodies(answer: probe.Answer) -> list[bytes]:
    assert answer.code == 0, answer
    return [record.body for record in decode_records(answer.body)]


def _committed(server: Server, topic: str) -> int:
    fields = {"consumerGroup": "G", "topic": topic, "queueId": "0"}
    return int(_ask(server, RequestCode.QUERY_CONSUMER_OFFSET, fields).fields["offset"])
