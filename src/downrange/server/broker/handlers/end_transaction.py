"""Transactions: a producer's decision on a half message, and a request of tools for new checks.

    37   end: producerGroup, topic, tranStateTableOffset, commitLogOffset, commitOrRollback,
         fromTransactionCheck
    323  resume checks: msgId, the offset id of a half or of one that was moved out of its queue

Kept: the checks of 5.x in its order and words; a decision of "unknown" changes nothing.
Changed: that decision is answered, where Apache leaves the caller without a reply; ending twice is
refused (see `half_messages`). Not read: msgId, transactionId and the remark of request 37.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from downrange.server.broker.handlers.answers import refuse, succeed
from downrange.server.broker.transactions.half_checks import resume_half
from downrange.server.broker.transactions.half_messages import end_half
from downrange.server.broker.write_queue import no_outputs
from downrange.server.outputs import STORE_PENDING, LateReply, Output, Peer, Reply, refusal
from downrange.wire.codes import RequestCode, ResponseCode, TransactionFlag
from downrange.wire.command import Command
from downrange.wire.headers import EndTransactionRequest, ResumeCheckRequest
from downrange.wire.ids import parse_offset_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.errors import RocketMQError
    from downrange.server.broker.handlers.answers import Handler
    from downrange.server.broker.state import BrokerState

_UNKNOWN: Final = int(TransactionFlag.NONE)
_DECISIONS: Final = (int(TransactionFlag.COMMIT), int(TransactionFlag.ROLLBACK))


def _end(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = EndTransactionRequest.from_fields(request.fields)
    if header.commit_or_rollback == _UNKNOWN:
        return succeed()
    if header.commit_or_rollback not in _DECISIONS:
        return refuse(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
    on_stored = no_outputs if request.is_oneway else partial(_answer, request, peer)
    refused = end_half(state, header, now_ms, on_stored)
    return STORE_PENDING if refused is None else (Reply(refused),)


def _resume(state: BrokerState, request: Command, peer: Peer, now_ms: int) -> Sequence[Output]:
    header = ResumeCheckRequest.from_fields(request.fields)
    position = parse_offset_id(header.msg_id).log_offset
    refused = resume_half(state, position, now_ms, partial(_answer, request, peer))
    return STORE_PENDING if refused is None else (Reply(refused),)


def _answer(
    request: Command, peer: Peer, error: RocketMQError | None, now_ms: int
) -> Sequence[Output]:
    code = ResponseCode.SYSTEM_ERROR
    answer = Command(0) if error is None else refusal(code, str(error))
    return (LateReply(peer.number, request, answer),)


HANDLERS: Final[dict[int, Handler]] = {
    int(RequestCode.END_TRANSACTION): _end,
    int(RequestCode.RESUME_CHECK_HALF_MESSAGE): _resume,
}
