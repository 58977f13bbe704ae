"""What brokers ask the members of a group: to divide the queues anew, to reset, to report.

Codes: 40 NOTIFY_CONSUMER_IDS_CHANGED. The handlers are registered once per client, and find the
member by the group in the request.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from downrange.wire.codes import RequestCode
from downrange.wire.headers import MembersChangedRequest

if TYPE_CHECKING:
    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.effects import Flow
    from downrange.wire.command import Command


def serve_member(core: ClientCore) -> None:
    """Answer the requests of brokers to consumers."""
    core.handlers[int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)] = partial(_members_changed, core)


def _members_changed(core: ClientCore, address: str, command: Command) -> Flow[None]:
    from downrange.client.flows.consuming.group_member import GroupMember

    del address
    group = MembersChangedRequest.from_fields(command.fields).consumer_group
    member = core.consumers.get(group)
    if isinstance(member, GroupMember):
        member.changed.fire()
    return None
    yield  # a flow
