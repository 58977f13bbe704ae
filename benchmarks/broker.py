"""The broker's CPU cost per message: everything between the wire layer and the store.

Sends of 1 KB with the short header are passed to a broker without sockets, in groups of 1, 16 and
256, as if they had arrived together. CPU time per message, by phase:

    header    decoding of the header's fields
    handle    checks, properties, record: up to the write queue
    append    the store's part of `commit`; see `benchmarks/store.py`
    finish    the rest of `commit`: the reply's fields

Decoding requests and encoding replies are measured in `benchmarks/wire.py`. Each figure is the best
of many rounds, because other work on the machine can only add to it.

    python benchmarks/broker.py [--messages 20000]
"""

from __future__ import annotations

import argparse
import tempfile
from time import process_time
from typing import TYPE_CHECKING, Any, NamedTuple

from downrange.options import BrokerOptions
from downrange.server.broker.broker import Broker
from downrange.server.broker.record_fields import StoreHost
from downrange.server.broker.state import BrokerState
from downrange.server.outputs import Peer
from downrange.store.files import OsFiles
from downrange.store.message_store import MessageStore, StoreOptions
from downrange.wire.codes import RequestCode
from downrange.wire.fields import request_command
from downrange.wire.headers import SendRequestV2

if TYPE_CHECKING:
    from downrange.wire.command import Command

NOW_MS = 1_800_000_000_000
ROUND = 1024
BODY = bytes(range(256)) * 4
SIZES = StoreOptions(log_segment_bytes=64 * 1024 * 1024, queue_segment_units=3000)
PEER = Peer(1, "127.0.0.1:40000")


class Cost(NamedTuple):
    """CPU time per message in µs."""

    header: float
    handle: float
    append: float
    finish: float


def a_request(number: int) -> Command:
    properties = f"KEYS\x01order-{number}\x02UNIQ_KEY\x017F00000100010000{number:016X}\x02"
    header = SendRequestV2(
        producer_group="producers",
        topic="orders",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=number % 4,
        sys_flag=0,
        born_timestamp=NOW_MS,
        flag=0,
        properties=f"{properties}WAIT\x01true\x02TAGS\x01paid\x02",
        reconsume_times=0,
        batch=False,
    )
    request = request_command(header, BODY, code=int(RequestCode.SEND_MESSAGE_V2))
    request.request_id = number
    return request


def measure(messages: int, group: int) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        files = OsFiles(folder)
        store = MessageStore(files, SIZES)
        host = StoreHost.of("127.0.0.1", 10911)
        state = BrokerState(BrokerOptions(), host, store, lambda now_ms: "made", NOW_MS)
        state.prepare(NOW_MS)
        broker = Broker(state)
        broker.handle(a_request(0), PEER, NOW_MS)  # creates the topic
        broker.commit(NOW_MS)
        broker.published(broker.tables_version)
        costs = _rounds(broker, messages, group)
        store.close()
        files.close()
    return Cost(*(min(cost[phase] for cost in costs) for phase in range(4)))


def _rounds(broker: Broker, messages: int, group: int) -> list[Cost]:
    store: Any = broker.state.store
    append, in_append = store.append, 0.0

    def timed_append(*arguments: Any) -> None:
        nonlocal in_append
        started = process_time()
        append(*arguments)
        in_append += process_time() - started

    store.append = timed_append
    costs: list[Cost] = []
    for first in range(0, messages, ROUND):
        requests = [a_request(number) for number in range(first, first + ROUND)]
        in_handle = in_commit = in_append = 0.0
        at = process_time()
        for request in requests:
            SendRequestV2.from_fields(request.fields)
        in_header = process_time() - at
        for begin in range(0, ROUND, group):
            at = process_time()
            for request in requests[begin : begin + group]:
                broker.handle(request, PEER, NOW_MS)
            between = process_time()
            outputs = broker.commit(NOW_MS)
            in_commit += process_time() - between
            in_handle += between - at
            assert len(outputs) == group
        phases = (in_header, in_handle - in_header, in_append, in_commit - in_append)
        costs.append(Cost(*(1e6 * seconds / ROUND for seconds in phases)))
        store.flush()
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    messages = parser.parse_args().messages
    print("group   header   handle   append   finish   handle + finish, µs per message")
    for group in (1, 16, 256):
        cost = measure(messages, group)
        figures = (*cost, cost.handle + cost.finish)
        print(f"{group:5}   {'   '.join(f'{figure:6.2f}' for figure in figures)}")


if __name__ == "__main__":
    main()
