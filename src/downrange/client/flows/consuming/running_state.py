"""The state of a member as tools read it: `mqadmin consumerStatus`, dashboards, our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.client.flows.names import named_queue, with_namespace
from downrange.options.consumers import LOCK_TRUST
from downrange.wire.codes import OUR_VERSION, ReleaseVersion
from downrange.wire.consumer_bodies import QueueRunningState, RunningProperty, RunningStateBody
from downrange.wire.limits import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.client.flows.consuming.delivery_window import Delivery, DeliveryWindow
    from downrange.client.flows.consuming.group_state import GroupState
    from downrange.model import ReceivedMessage

_VERSION: Final = ReleaseVersion(OUR_VERSION).name


def running_state(member: GroupState) -> RunningStateBody:
    """Return the state of a member; names have the namespace."""
    namespace = member.core.options.namespace
    now, wall_ms = member.core.clock.now(), member.core.clock.wall_ms()
    return RunningStateBody(
        properties={
            RunningProperty.NAME_SERVERS.value: ";".join(member.core.name_servers.addresses),
            RunningProperty.CONSUME_TYPE.value: member.membership().consume_type,
            RunningProperty.CLIENT_VERSION.value: _VERSION,
            RunningProperty.THREADS.value: str(member.options.concurrency),
            RunningProperty.ORDERLY.value: str(member.options.mode == "orderly").lower(),
            RunningProperty.STARTED_MS.value: str(member.started_ms),
        },
        subscription_set=member.subscriptions.bodies(),
        mq_table={
            named_queue(queue, namespace): _queue_state(window, now, wall_ms)
            for queue, window in member.windows.items()
        },
        status_table={
            with_namespace(topic, namespace): rates.snapshot()
            for topic, rates in member.rates.items()
        },
        user_consumer_info={"client": "downrange", "mode": member.options.mode},
    )


def _queue_state(window: DeliveryWindow, now: float, wall_ms: int) -> QueueRunningState:
    def at(moment: float | None) -> int:
        return 0 if moment is None else wall_ms - round(1000 * (now - moment))

    running = [message for each in window.running.values() for message in _begun(each)]
    postponed = [message for _, message in window.postponed]
    offsets = [message.offset for message in (*running, *window.waiting, *postponed)]
    return QueueRunningState(
        commit_offset=window.committed if window.committed is not None else window.position,
        cached_msg_min_offset=min(offsets, default=0),
        cached_msg_max_offset=max(offsets, default=0),
        cached_msg_count=window.count,
        cached_msg_size_mib=window.bytes // MIB,
        transaction_msg_min_offset=min((each.offset for each in running), default=0),
        transaction_msg_max_offset=max((each.offset for each in running), default=0),
        transaction_msg_count=len(running),
        locked=now < window.locked_until,
        last_lock_timestamp=at(window.locked_until - LOCK_TRUST) if window.locked_until else 0,
        droped=window.is_stopped,
        last_pull_timestamp=at(window.pulled_at),
        last_consume_timestamp=at(window.handled_at),
    )


def _begun(delivery: Delivery) -> Sequence[ReceivedMessage]:
    """Return the messages in the handler; those of a run before its last one are done."""
    return delivery.messages if delivery.rest is None else delivery.messages[-1:]
