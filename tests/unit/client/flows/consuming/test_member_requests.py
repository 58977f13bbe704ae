"""What brokers ask the members of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from downrange.client.flows.effects import Signal
from downrange.wire.fields import request_command
from downrange.wire.headers import MembersChangedRequest
from tests.unit.client.flows.consuming.group_stage import GROUP, Stage

if TYPE_CHECKING:
    from downrange.client.flows.client_core import RegisteredConsumer


def test_a_member_divides_the_queues_anew_when_the_members_changed() -> None:
    stage = Stage()
    stage.enter()
    stage.member.changed = Signal()
    answer = stage.servers.core.answer
    assert stage.run(answer("a:1", request_command(MembersChangedRequest("other")))) is None
    assert not stage.member.changed.is_fired
    assert stage.run(answer("a:1", request_command(MembersChangedRequest(GROUP)))) is None
    assert stage.member.changed.is_fired


def test_a_consumer_of_another_kind_is_left_alone() -> None:
    stage = Stage()
    stage.enter()
    stage.servers.core.consumers["other"] = cast("RegisteredConsumer", object())
    command = request_command(MembersChangedRequest("other"))
    assert stage.run(stage.servers.core.answer("a:1", command)) is None
