"""Headers of pop consumption: names of fields, and what is left out."""

from __future__ import annotations

import pytest

from downrange.errors import MissingField
from downrange.wire.pop_headers import (
    AckRequest,
    ChangeInvisibleRequest,
    NotificationReply,
    NotificationRequest,
    PollingCountReply,
    PopReply,
    PopRequest,
)

POP = {
    "consumerGroup": "G",
    "topic": "T",
    "queueId": "-1",
    "maxMsgNums": "32",
    "invisibleTime": "60000",
    "pollTime": "15000",
    "bornTime": "1794918618355",
    "initMode": "1",
}


def test_pop() -> None:
    header = PopRequest.from_fields(POP)
    assert header.to_fields() == POP
    assert (header.exp, header.order, header.attempt_id) == (None, None, None)
    more = {"expType": "TAG", "exp": "A", "order": "true", "attemptId": "1"}
    assert PopRequest.from_fields(POP | more).to_fields() == POP | more


@pytest.mark.parametrize("name", POP)
def test_pop_without_a_field(name: str) -> None:
    with pytest.raises(MissingField, match=name):
        PopRequest.from_fields({key: value for key, value in POP.items() if key != name})


def test_replies_have_all_numbers() -> None:
    zeros = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}
    assert PopReply().to_fields() == zeros
    assert NotificationReply(has_msg=True).to_fields() == {"hasMsg": "true", "pollingFull": "false"}
    assert PollingCountReply().to_fields() == {"pollingNum": "0"}


def test_acknowledgement_and_change() -> None:
    fields = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "extraInfo": "1 2",
        "offset": "7",
    }
    assert AckRequest.from_fields(fields).to_fields() == fields
    header = ChangeInvisibleRequest.from_fields(fields | {"invisibleTime": "5"})
    assert (header.invisible_time, header.suspend, header.lite_topic) == (5, False, None)


def test_notification() -> None:
    header = NotificationRequest(
        consumer_group="G", topic="T", queue_id=0, poll_time=1, born_time=2, order=True
    )
    assert header.to_fields() == {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "0",
        "pollTime": "1",
        "bornTime": "2",
        "order": "true",
    }
