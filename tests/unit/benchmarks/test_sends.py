from __future__ import annotations

from benchmarks.sends import BATCH, BODY, Batches, Sends
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command, decode
from downrange.wire.frames import FrameSplitter
from downrange.wire.headers import SendRequestV2
from downrange.wire.properties import decode_properties
from downrange.wire.records import decode_batch


def commands(data: bytes) -> list[Command]:
    splitter = FrameSplitter()
    splitter.receive(data)
    found: list[Command] = []
    while (frame := splitter.next_frame()) is not None:
        found.append(decode(frame))
    assert splitter.is_idle
    return found


def header_of(command: Command) -> SendRequestV2:
    return SendRequestV2.from_fields(command.fields)


def key_of(properties: str | None) -> str:
    return decode_properties(properties or "")["UNIQ_KEY"]


def test_sends_go_round_the_queues_with_keys_and_ids_of_their_own() -> None:
    sends = Sends("orders", 4)
    found = commands(sends.take(3) + sends.take(2))
    assert [header_of(each).queue_id for each in found] == [0, 1, 2, 3, 0]
    assert {each.code for each in found} == {RequestCode.SEND_MESSAGE_V2}
    assert {each.body for each in found} == {BODY}
    assert len({each.request_id for each in found}) == 5
    assert len({key_of(header_of(each).properties) for each in found}) == 5


def test_batches_hold_messages_with_keys_of_their_own() -> None:
    found = commands(Batches("orders", 4).take(2))
    items = [item for each in found for item in decode_batch(each.body)]
    assert [header_of(each).queue_id for each in found] == [0, 1]
    assert {each.code for each in found} == {RequestCode.SEND_BATCH_MESSAGE}
    assert all(header_of(each).batch for each in found)
    assert [item.body for item in items] == [BODY] * 2 * BATCH
    assert len({key_of(item.property_bytes.decode()) for item in items}) == 2 * BATCH


def test_batches_hold_bodies_of_the_given_size() -> None:
    (found,) = commands(Batches("orders", 4, body=b"x" * 7).take(1))
    assert {item.body for item in decode_batch(found.body)} == {b"x" * 7}
