from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest

from downrange.errors import MalformedId
from downrange.wire.recall_handles import RecallHandle, parse_recall_handle
from tests.unit.wire import vectors

PARTS = RecallHandle("TopicTest", "broker-a", 1700000001000, "7F000001000100000000000000000000")


def test_handle_is_the_one_that_java_writes() -> None:
    assert str(PARTS) == vectors.RECALL_HANDLE


@pytest.mark.parametrize("text", [vectors.RECALL_HANDLE, vectors.RECALL_HANDLE.rstrip("=")])
def test_handle_is_read_with_and_without_padding(text: str) -> None:
    assert parse_recall_handle(text) == PARTS


@pytest.mark.parametrize("unique_id", ["a b  c", "?>~ü", "x" * 500])
def test_handle_comes_back_whole_for_any_unique_id(unique_id: str) -> None:
    handle = RecallHandle("T", "b", 1, unique_id)
    assert parse_recall_handle(str(handle)) == handle


@pytest.mark.parametrize(
    "words",
    ["", "v1 T b 1", "v2 T b 1 id", "v1 T b x id", "v1 T b 1 ", "v1 T b 1 i\x01d", b"\xff\xfe"],
)
def test_wrong_handle_is_refused(words: str | bytes) -> None:
    data = words.encode() if isinstance(words, str) else words
    with pytest.raises(MalformedId):
        parse_recall_handle(urlsafe_b64encode(data).decode())


@pytest.mark.parametrize("text", ["%%%", "ü", "A", "v1 T b 1 id"])
def test_text_that_is_not_base64_is_refused(text: str) -> None:
    with pytest.raises(MalformedId, match="recall handle"):
        parse_recall_handle(text)
