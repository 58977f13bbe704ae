from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.client.flows.hooks import MessageType
from downrange.client.flows.producing.trace_records import (
    EndTransactionTrace,
    PubTrace,
    RecallTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceRecord,
    UnknownTrace,
    decode_trace,
    encode_contexts,
    index_keys,
)

PUB = PubTrace(
    time_ms=1_700_000_000_123,
    region="DefaultRegion",
    group="shop",
    topic="orders",
    message_id="M1",
    tags="new",
    keys="k1 k2",
    address="127.0.0.1:10911",
    body_bytes=77,
    cost_ms=3,
    message_type=MessageType.HALF,
    offset_id="O1",
    is_success=True,
)
PUB_LINE = (
    b"Pub\x011700000000123\x01DefaultRegion\x01shop\x01orders\x01M1\x01new\x01k1 k2\x01"
    b"127.0.0.1:10911\x0177\x013\x011\x01O1\x01true\x02"
)
SUB_BEFORE = SubBeforeTrace(
    time_ms=5, region="r", group="g", request_id="q", message_id="M1", retry_count=2, keys="k1"
)
SUB_AFTER = SubAfterTrace(
    request_id="q",
    message_id="M1",
    cost_ms=9,
    is_success=False,
    keys="k1",
    result=4,
    time_ms=6,
    group="g",
)
END = EndTransactionTrace(
    time_ms=7,
    region="r",
    group="g",
    topic="t",
    message_id="M1",
    tags=None,
    keys=None,
    address="a:1",
    message_type=MessageType.COMMIT,
    transaction_id="x",
    state="COMMIT_MESSAGE",
    is_from_check=True,
)
RECALL = RecallTrace(time_ms=8, region="r", group="g", topic="t", message_id="M1", is_success=False)
LINES: dict[bytes, TraceRecord] = {
    PUB_LINE: PUB,
    b"SubBefore\x015\x01r\x01g\x01q\x01M1\x012\x01k1\x02": SUB_BEFORE,
    b"SubAfter\x01q\x01M1\x019\x01false\x01k1\x014\x016\x01g\x02": SUB_AFTER,
    b"EndTransaction\x017\x01r\x01g\x01t\x01M1\x01null\x01null\x01a:1\x012\x01x\x01"
    b"COMMIT_MESSAGE\x01true\x02": END,
    b"Recall\x018\x01r\x01g\x01t\x01M1\x01false\x02": RECALL,
    b"Later\x01what\x01ever\x02": UnknownTrace(["Later", "what", "ever"]),
}


def test_records_are_written_in_the_format_of_java_one_after_the_other() -> None:
    assert encode_contexts(LINES.values()) == b"".join(LINES)


def test_records_of_every_type_are_read_from_one_body() -> None:
    assert decode_trace(b"".join(LINES)) == list(LINES.values())


def test_body_without_records_reads_as_none() -> None:
    assert decode_trace(b"") == []
    assert decode_trace(b"\x02\x02") == []


def test_sent_record_from_before_offset_ids_were_traced_keeps_its_success() -> None:
    [record] = decode_trace(PUB_LINE.replace(b"\x01O1\x01true", b"\x01false"))
    assert isinstance(record, PubTrace)
    assert (record.offset_id, record.is_success) == (None, False)


def test_sent_record_that_does_not_say_how_it_went_went_well() -> None:
    [record] = decode_trace(PUB_LINE.replace(b"\x01O1\x01true", b""))
    assert isinstance(record, PubTrace)
    assert (record.message_type, record.offset_id, record.is_success) == (1, None, True)


def test_client_host_of_an_old_sent_record_is_read_and_not_written_again() -> None:
    [record] = decode_trace(PUB_LINE.replace(b"true", b"true\x0110.0.0.7"))
    assert isinstance(record, PubTrace)
    assert record.client_host == "10.0.0.7"
    assert encode_contexts([record]) == PUB_LINE


def test_fields_of_later_releases_are_passed_over() -> None:
    assert decode_trace(b"Recall\x018\x01r\x01g\x01t\x01M1\x01false\x01more\x02") == [RECALL]


@pytest.mark.parametrize("end", [b"", b"\x014", b"\x014\x01", b"\x014\x01\x02", b"\x014\x016"])
def test_consumed_record_may_end_early(end: bytes) -> None:
    [record] = decode_trace(b"SubAfter\x01q\x01M1\x019\x01true\x01k1" + end)
    assert isinstance(record, SubAfterTrace)
    assert (record.keys, record.group) == ("k1", None)
    assert record.result == (4 if end else 0)
    assert record.time_ms == (6 if b"6" in end else None)


def test_consumed_records_of_a_cloud_without_a_separator_are_split() -> None:
    one = b"SubAfter\x01q\x01M1\x019\x01false\x01k1\x014\x01"
    first, second, last = decode_trace(one + one + PUB_LINE)
    assert first == second == decode_trace(one)[0]
    assert isinstance(first, SubAfterTrace)
    assert last == PUB


@pytest.mark.parametrize(
    "line",
    ["", "Pub", "Pub\x01yesterday", "SubBefore\x011\x01r", "Recall\x011\x01r\x01g\x01t\x01m\x01?"],
)
def test_record_that_is_not_what_its_type_says_is_kept_as_it_is(line: str) -> None:
    records = decode_trace(f"{line}\x02".encode() + PUB_LINE)
    assert records == [*([UnknownTrace(line.split("\x01"))] if line else []), PUB]


def test_text_that_is_no_unicode_is_read_as_far_as_it_goes_and_written_as_java_does() -> None:
    assert decode_trace(b"La\xffter\x01a\x02") == [UnknownTrace(["La\ufffdter", "a"])]
    assert encode_contexts([UnknownTrace(["\ud800"])]) == b"?\x02"


def test_trace_is_found_by_the_ids_and_the_keys_of_its_messages() -> None:
    assert index_keys(PUB) == ["M1", "k1", "k2"]
    assert index_keys(END) == ["M1"]
    assert index_keys(RECALL) == ["M1"]
    assert index_keys(UnknownTrace(["Later", "M1"])) == []


def test_trace_of_a_batch_is_found_by_each_of_its_ids() -> None:
    [record] = decode_trace(PUB_LINE.replace(b"M1", b"M1,M2").replace(b"k1 k2", b"null"))
    assert index_keys(record) == ["M1", "M2"]
    [record] = decode_trace(PUB_LINE.replace(b"M1", b",an id,").replace(b"k1 k2", b"null"))
    assert index_keys(record) == ["an", "id"]  # a key has no blanks


def test_trace_without_an_id_is_found_by_its_keys() -> None:
    [record] = decode_trace(PUB_LINE.replace(b"M1", b"null"))
    assert index_keys(record) == ["k1", "k2"]


texts = st.none() | st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1
).filter(lambda text: text != "null")
numbers = st.integers(0, 2**63 - 1)


@given(
    st.lists(
        st.builds(
            EndTransactionTrace,
            time_ms=numbers,
            region=texts,
            group=texts,
            topic=texts,
            message_id=texts,
            tags=texts,
            keys=texts,
            address=texts,
            message_type=st.integers(0, 4),
            transaction_id=texts,
            state=texts,
            is_from_check=st.booleans(),
        )
        | st.builds(
            SubAfterTrace,
            request_id=texts,
            message_id=texts,
            cost_ms=numbers,
            is_success=st.booleans(),
            keys=texts,
            result=st.integers(0, 4),
            time_ms=numbers,
            group=texts,
        )
    )
)
def test_whatever_is_written_is_read_again(records: list[TraceRecord]) -> None:
    assert decode_trace(encode_contexts(records)) == records


@given(st.lists(st.sampled_from([*b"\x01\x02", 0xFF, *b"019tn"]) | st.sampled_from(PUB_LINE)))
def test_any_bytes_are_read_as_something(body: list[int]) -> None:
    for record in decode_trace(b"SubAfter\x01" + bytes(body)):
        index_keys(record)
