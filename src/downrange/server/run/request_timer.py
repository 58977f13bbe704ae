"""Times the requests of a broker whose metrics are shown.

It stands between the listener and the broker: `handle` sees each request, `handle_run` sends that
came together, and `perform` each late reply. Brokers without metrics are used directly, and have
none of this work.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from downrange.server.metrics.request_times import RequestTimes
from downrange.server.outputs import LateReplies, LateReply, Reply
from downrange.wire.codes import CommandFlag, RequestCode
from downrange.wire.send_replies import StoredReply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from downrange.server.metrics.request_times import Kind, Result
    from downrange.server.net.dispatcher import HandleRun, Service
    from downrange.server.outputs import OnReply, Output, Peer
    from downrange.wire.command import Command
    from downrange.wire.send_runs import SendRun

_ONEWAY: Final = int(CommandFlag.ONEWAY)
#: What a run is made of.
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
#: A run that has no replies after this time was stored apart: its sends are answered one by one.
_RUN_SECONDS_MAX: Final = 60.0
#: Requests that may wait for messages.
_WAITING: Final = {
    int(RequestCode.PULL_MESSAGE),
    int(RequestCode.LITE_PULL_MESSAGE),
    int(RequestCode.POP_MESSAGE),
    int(RequestCode.NOTIFICATION),
}


class RequestTimer:
    """A service that times the requests of another one.

    Args:
        service: Handles the requests.
        perform: Performs outputs of the broker; see `Listener.perform`.
        held_count: Returns how many requests wait for messages.
        handle_run: See `Dispatcher`.

    Attributes:
        times: The times.
    """

    def __init__(
        self,
        service: Service,
        perform: Callable[[Iterable[Output]], None],
        held_count: Callable[[], int],
        handle_run: HandleRun,
    ) -> None:
        self.times = RequestTimes()
        self._service = service
        self._perform = perform
        self._held_count = held_count
        self._handle_run = handle_run
        #: Number of a connection -> request id -> when it came, and whether it waits for messages.
        self._pending: dict[int, dict[int, tuple[float, bool]]] = {}
        #: Number of a connection -> id of a run -> when it came; the oldest first.
        self._runs: dict[int, dict[int, float]] = {}

    def handle(self, request: Command, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Handle a request, and note when it came."""
        begun = time.perf_counter()
        may_wait = request.code in _WAITING
        held = self._held_count() if may_wait else 0
        outputs = self._service.handle(request, peer, now_ms)
        if outputs:
            outputs = self._timed(outputs)
            for output in outputs:
                if type(output) is Reply:
                    self._add(request, output.command.code, begun, is_held=False)
                    return outputs
        if request.flags & _ONEWAY:
            self._add(request, 0, begun, is_held=False)
            return outputs
        waiting = self._pending.get(peer.number)
        if waiting is None:
            waiting = self._pending[peer.number] = {}
        waiting[request.request_id] = (begun, may_wait and self._held_count() > held)
        return outputs

    def handle_run(self, run: SendRun, peer: Peer, now_ms: int) -> bool:
        """Handle the sends of a run, and note when it came."""
        begun = time.perf_counter()
        if not self._handle_run(run, peer, now_ms):
            return False
        if run.reply_count:
            self._note_run(self._runs.setdefault(peer.number, {}), run, begun)
        oneway_count = len(run) - run.reply_count
        if oneway_count:
            elapsed_ms = (time.perf_counter() - begun) * 1000
            self.times.add((_SEND, 0, False, "oneway"), elapsed_ms, oneway_count)
        return True

    def perform(self, outputs: Iterable[Output]) -> None:
        """Perform outputs, and time the requests that they answer."""
        self._perform(self._timed(outputs))

    def on_reply(self, callback: OnReply, reply: Command | None, now_ms: int) -> Iterable[Output]:
        """Continue after a `Call` of the broker."""
        return self._timed(self._service.on_reply(callback, reply, now_ms))

    def on_disconnect(self, peer: Peer, now_ms: int) -> Iterable[Output]:
        """Forget the requests of a connection that ended."""
        self._pending.pop(peer.number, None)
        self._runs.pop(peer.number, None)
        return self._timed(self._service.on_disconnect(peer, now_ms))

    def _timed(self, outputs: Iterable[Output]) -> list[Output]:
        listed = outputs if type(outputs) is list else list(outputs)
        for output in listed:
            if type(output) is LateReply:
                waiting = self._pending.get(output.connection)
                found = None if waiting is None else waiting.pop(output.request.request_id, None)
                if found is not None:
                    begun, is_held = found
                    command = output.command
                    code = 0 if type(command) is StoredReply else command.code
                    self._add(output.request, code, begun, is_held=is_held)
            elif type(output) is LateReplies:
                self._add_run(output)
        return listed

    def _note_run(self, runs: dict[int, float], run: SendRun, begun: float) -> None:
        """Note when a run came, and forget those of its connection that were stored apart."""
        runs.pop(id(run), None)  # of a run that is gone, and whose place in memory this one has
        while runs and runs[oldest := next(iter(runs))] < begun - _RUN_SECONDS_MAX:
            del runs[oldest]
        runs[id(run)] = begun

    def _add_run(self, output: LateReplies) -> None:
        begun = self._runs.get(output.connection, {}).pop(id(output.run), None)
        if begun is not None:
            elapsed_ms = (time.perf_counter() - begun) * 1000
            kind: Kind = (_SEND, output.code, False, "success")
            self.times.add(kind, elapsed_ms, output.run.reply_count)

    def _add(self, request: Command, reply_code: int, begun: float, *, is_held: bool) -> None:
        elapsed_ms = (time.perf_counter() - begun) * 1000
        result: Result = "oneway" if request.flags & _ONEWAY else "success"
        self.times.add((request.code, reply_code, is_held, result), elapsed_ms)
