"""How a failed message is given back to the broker."""

from __future__ import annotations

import pytest

from downrange.client.flows.consuming.send_back import send_back
from downrange.errors import ServerError
from downrange.wire.codes import RequestCode, ResponseCode
from tests.unit.client.flows.consuming.group_stage import A0, GROUP, Stage
from tests.unit.client.flows.consuming.test_delivery_window import messages_at
from tests.unit.client.flows.fake_servers import refusal


def test_a_message_is_named_by_its_position_in_the_log() -> None:
    stage = Stage(namespace="prod")
    flow = send_back(
        stage.servers.core, GROUP, messages_at(7)[0], A0, 3, 16, is_unit_mode=True, deadline=103
    )
    stage.run(flow)
    fields = stage.servers.fields(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert fields["offset"] == "7000"
    assert fields["delayLevel"] == "3"
    assert fields["maxReconsumeTimes"] == "16"
    assert fields["unitMode"] == "true"
    assert fields["group"] == "prod%billing"
    assert fields["originTopic"] == "prod%orders"


def test_a_refusal_is_an_error() -> None:
    stage = Stage()
    refused = refusal(ResponseCode.SYSTEM_ERROR, "look message by offset failed")
    stage.servers.answer("a:1", RequestCode.CONSUMER_SEND_MSG_BACK, refused)
    flow = send_back(
        stage.servers.core, GROUP, messages_at(7)[0], A0, 0, None, is_unit_mode=False, deadline=103
    )
    with pytest.raises(ServerError, match="look message by offset failed"):
        stage.run(flow)
