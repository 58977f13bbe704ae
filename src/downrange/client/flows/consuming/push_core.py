"""A push consumer: workers take messages out of the windows, and call the handler.

A worker is a flow (`work`) in a thread, or a task, of its own: the handler runs there, as a
`UserCall`, while no step is taken. Windows with messages stand in a line; a worker takes from the
first one and puts it back at the end, so that all queues move on.

Orderly, one worker at a time has a queue, a failed message is tried again first, and without the
broker's lock nothing is handed out. One rule: a message whose queue was lost is neither sent back
nor counted as done; its new owner handles it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from downrange.client.flows.background import to_its_end
from downrange.client.flows.consuming.consume_traces import TracedBatch, trace_after, trace_before
from downrange.client.flows.consuming.group_member import GroupMember
from downrange.client.flows.consuming.pop_member import PopMember
from downrange.client.flows.consuming.verdicts import (
    Verdict,
    as_dead,
    check_answer,
    is_done,
    is_used_up,
    plan_of,
    show_as_sent,
    verdict_of,
)
from downrange.client.flows.effects import Flow, Pause, Signal, UserCall, Wait
from downrange.client.flows.hooks import HandleContext, Hooks, run_observers
from downrange.client.flows.notices import HandlerFailed
from downrange.client.flows.producing.producer_core import ProducerCore
from downrange.client.flows.producing.trace_records import SubResult
from downrange.errors import DeadLetter, Retry, RetrySome, RocketMQError
from downrange.options import ProducerOptions
from downrange.wire.bodies import ConsumeDirectlyBody
from downrange.wire.consumer_bodies import ConsumeResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from downrange.client.flows.client_core import ClientCore
    from downrange.client.flows.consuming.delivery_window import Delivery, DeliveryWindow
    from downrange.client.flows.consuming.pull import Filter
    from downrange.model import ReceivedMessage
    from downrange.options.consumers import ConsumerOptions

#: Seconds that an idle worker waits before it looks again.
_IDLE_MAX: Final = 60.0
#: Seconds until a message is handled again here, when the broker could not take it back.
_LOCAL_RETRY: Final = 5.0
#: Doublings of the first pause until it is longer than that.
_DOUBLINGS: Final = 3
#: Seconds for a request that sends a message back.
_SEND_BACK_TIMEOUT: Final = 5.0
#: Handlers that take less than this, in seconds, do not need a second worker.
_QUICK: Final = 0.0001
#: Seconds after which waiting messages get another worker, if handlers were quick so far.
_RELIEF: Final = 0.01
#: Most messages of a run.
_RUN_MAX: Final = 128
#: The shortest pause, in seconds, before a window is looked at again.
_TICK: Final = 0.001
#: The average time of a handler moves to the last one by one part in this many.
_SMOOTHING: Final = 16


#: Calls a handler with the messages of a delivery that is a run, and adds each to `messages`.
HandleRun: TypeAlias = "Callable[[Callable[[Any], Any], Delivery], object]"


class PushCore:
    """A push consumer of a client.

    Args:
        core: The client.
        group: The group, without the namespace.
        options: How it consumes.
        handler: Takes a message, or a list with `batch` above 1; None for a program that calls
            `take_next`.
        handle_run: Calls the handler with each message of a run: one step for many messages, if
            handlers are quick. None hands out each by itself.
        hooks: Functions of the user.
        spawn: Starts a flow in the background; may be called from any thread.

    Attributes:
        member: Its membership in the group.
        inner: Sends what the consumer sends itself: retries with a delay, and replies to requests.
        tracer: Has the trace records of handled messages, and sends them.
        retries: How often a message is delivered again; None for no limit.
        is_paused: Whether nothing is handed out.
    """

    def __init__(
        self,
        core: ClientCore,
        group: str,
        options: ConsumerOptions,
        handler: Callable[[Any], object] | None,
        handle_run: HandleRun | None,
        hooks: Hooks,
        spawn: Callable[[Flow[None]], object],
    ) -> None:
        self.core = core
        self.options = options
        kind = PopMember if options.mode == "pop" else GroupMember
        self.member: GroupMember = kind(core, group, options, hooks, spawn, self._arrived)
        if handler is not None:
            self.member.handle_now = self._handle_now
        # Two: what the consumer sends itself is not traced, as in Java.
        self.inner = ProducerCore(core, group, ProducerOptions(), Hooks())
        self.tracer = ProducerCore(
            core, group, ProducerOptions(trace=options.trace), Hooks(), trace_kind="CONSUME"
        )
        self.member.inner = self.inner
        self._is_watched = bool(
            hooks.before_handle or hooks.after_handle or self.tracer.trace is not None
        )
        self.is_orderly = options.mode == "orderly"
        self.retries = self.member.retries_max
        self.is_paused = False
        self._handler = handler
        self._handle_run = handle_run
        #: Messages that may still be handed out; None for no limit.
        self._left = options.messages_max
        #: Most messages of a delivery.
        self._batch = min(options.batch, self._left or options.batch)
        is_plain = options.batch == 1 and options.mode == "concurrent" and not self._is_watched
        is_plain = is_plain and self._left is None  # a run may be given back in part
        if handler is None or not is_plain:
            self._handle_run = None
        self._spawn = spawn
        #: Windows with messages to hand out, each once.
        self._line: deque[DeliveryWindow] = deque()
        #: Workers without work; the one that was busy last is woken first.
        self._idle: list[Signal] = []
        #: Deliveries whose handlers have not ended.
        self._running = 0
        #: Seconds that a handler takes. Until some have run it is taken for slow.
        self._average = 10 * _QUICK
        self._is_relieving = False
        self._is_over = False
        #: Deliveries whose worker was ended by its handler, with the error.
        self._broken: list[tuple[Delivery, BaseException]] = []

    # ---- life --------------------------------------------------------------------------------

    def enter(self, filters: Mapping[str, Filter], deadline: float) -> Flow[None]:
        """Join the group; see `GroupMember.enter`."""
        yield from self.member.enter(filters, deadline)

    def undo_enter(self) -> Flow[None]:
        """Leave the group again, if it was joined; a caller that gives up does not end that."""
        if self.member.is_joined:
            yield from to_its_end(self.core, self._spawn, self.exit(self.core.clock.now()))

    def background(self) -> list[Flow[None]]:
        """Return the flows that run until it leaves."""
        return [*self.member.background(), *self.tracer.background()]

    def exit(self, deadline: float) -> Flow[list[DeliveryWindow]]:
        """Leave the group and end the workers; see `GroupMember.exit`."""
        try:
            unfinished = yield from self.member.exit(deadline)
        finally:
            self.end_workers()
        until = self.core.clock.now() + self.core.options.call_timeout
        yield from self.inner.exit(until)
        yield from self.tracer.exit(until)
        return unfinished

    def end_workers(self) -> None:
        """Let all workers end when their handlers have."""
        self._is_over = True
        self._wake_all()

    def pause(self) -> None:
        """Hand out nothing until `resume`; running handlers end, and windows fill up."""
        self.is_paused = True

    def resume(self) -> None:
        """Continue after `pause`, unless as many messages were handed out as may be."""
        if self._left == 0:
            return
        self.is_paused = False
        for window in self.member.windows.values():
            self._arrived(window)

    # ---- the line ----------------------------------------------------------------------------

    def _arrived(self, window: DeliveryWindow) -> None:
        """Put a window into the line, and wake a worker."""
        if not window.is_queued and (window.waiting or window.postponed):
            window.is_queued = True
            self._line.append(window)
        if self.wake() and window.taken is None:
            window.taken = Signal()

    def wake(self) -> bool:
        """Wake a worker, if one is idle and there is work; return whether there was one."""
        is_due = bool(self._idle and self._line) and not self.is_paused
        if is_due:
            self._idle.pop().fire()
        return is_due

    def _wake_all(self) -> None:
        idle, self._idle = self._idle, []
        for signal in idle:
            signal.fire()

    def _take(self) -> Delivery | None:
        """Return the next messages to handle, if there are any."""
        if self.is_paused:
            return None
        line, now = self._line, self.core.clock.now()
        while line:
            window = line.popleft()
            window.is_queued = False
            is_quick = self._average < _QUICK
            may_take = self._may_take(window, now)
            if not is_quick or not may_take:
                window.note_taken()  # else the end of the handler comes soon enough
            if not may_take:
                continue
            if is_quick and self._handle_run is not None:
                delivery = window.take_run(_RUN_MAX, now)
            else:
                delivery = window.take(self._batch, now)
            if delivery is None:
                continue
            self._running += 1
            if not self.is_orderly and (window.waiting or window.postponed):
                window.is_queued = True
                line.append(window)
            if not self.member.begin(delivery, now):
                self._running -= 1
                continue
            if self._left is not None:
                self._count_down(len(delivery.messages))
            return delivery
        return None

    def _count_down(self, count: int) -> None:
        """Note that messages were handed out; after the last one that may be, pause."""
        assert self._left is not None
        self._left -= count
        self._batch = min(self._batch, self._left)
        if not self._left:
            self.pause()

    def _may_take(self, window: DeliveryWindow, now: float) -> bool:
        """Return whether a window may hand out; if not, an event puts it into the line again."""
        if window.is_stopped:
            return False
        if not self.is_orderly:
            # A message that is to be tried again may be the one that the others wait for.
            return window.span < self.options.span or window.has_due(now)
        has_lock = not self.member.is_shared or now < window.locked_until
        return not window.running and has_lock and window.not_before <= now

    # ---- workers -----------------------------------------------------------------------------

    def work(self) -> Flow[None]:
        """Handle messages, one delivery after the other, until the consumer is closed."""
        handler, handle_run = self._handler, self._handle_run
        is_batch = self.options.batch > 1
        assert handler is not None
        while not self._is_over:
            while self._broken:
                yield from self.fail(*self._broken.pop())
            delivery = self._take()
            if delivery is None:
                yield from self._wait_for_work()
                continue
            if self._idle and (self._line or delivery.rest):
                yield from self._call_others()
            if delivery.rest is not None and handle_run is not None:
                call = UserCall(handle_run, (handler, delivery))
            else:
                messages = delivery.messages  # the handler may change its list
                call = UserCall(handler, (list(messages) if is_batch else messages[0],))
            try:
                if self._is_watched:
                    yield from self._watched(call, delivery)
                else:
                    answer: object = yield call
                    if answer is not None:
                        check_answer(answer)
            except (Exception, SystemExit) as error:
                yield from self.fail(delivery, error)
            except BaseException as error:
                self._broken.append((delivery, error))  # for the worker that takes this one's place
                raise
            else:
                self.finish(delivery)

    def _watched(self, call: UserCall, delivery: Delivery) -> Flow[None]:
        """Call the handler with hooks and trace records around it."""
        core, hooks, trace = self.core, self.member.hooks, self.tracer.trace
        context = HandleContext(
            group=self.member.group,
            queue=delivery.window.queue,
            messages=tuple(delivery.messages),
            namespace=core.options.namespace,
        )
        yield from run_observers(hooks.before_handle, (context,), core.report)
        traced: TracedBatch | None = None
        if trace is not None:
            request_id = core.unique_ids.make(core.clock.wall_ms())
            traced = trace_before(
                trace, delivery.messages, group=self.member.group, request_id=request_id
            )
        try:
            answer: object = yield call
            check_answer(answer)
        except (Exception, SystemExit) as error:  # the user's code
            context.error = error
        if trace is not None and traced is not None:
            trace_after(trace, traced, _trace_result(context.error))
        yield from run_observers(hooks.after_handle, (context,), core.report)
        if context.error is not None:
            raise context.error

    def _handle_now(self, message: ReceivedMessage) -> Flow[ConsumeDirectlyBody]:
        """Handle a message for a tool; its offset and retries stay as they are."""
        handler, clock = self._handler, self.core.clock
        assert handler is not None
        started = clock.now()
        show_as_sent(message, self.core.options.namespace)
        if self.member.link is not None:
            self.member.link(message)
        argument = [message] if self.options.batch > 1 else message
        result, remark = ConsumeResult.SUCCESS, None
        try:
            answer: object = yield UserCall(handler, (argument,), may_block=True)
            check_answer(answer)
        except (Exception, SystemExit) as error:
            if not is_done(error):
                result = ConsumeResult.LATER if self.is_signal(error) else ConsumeResult.THREW
                remark = f"{type(error).__name__}: {error}"
        return ConsumeDirectlyBody(
            consume_result=result.value,
            remark=remark,
            spent_time_mills=round(1000 * (clock.now() - started)),
            order=self.is_orderly,
        )

    def wait_for_next(self, stopped: Signal) -> Flow[bool]:
        """Wait until `take_next` may have a message; return False when it is stopped."""
        stopped.listen(self._wake_all)
        try:
            while not self._is_over and not stopped.is_fired:
                if self._line and not self.is_paused and self._has_room:
                    return True
                yield from self._wait_for_work()
        finally:
            stopped.unlisten(self._wake_all)
        return False

    def take_next(self) -> Delivery | None:
        """Return the next message for a program that handles it itself, if there is one.

        While as many as `concurrency` are being handled, there is none.
        """
        return self._take() if self._has_room else None

    @property
    def _has_room(self) -> bool:
        """Whether a program that handles messages itself may have another one."""
        return self._running < self.options.concurrency

    @staticmethod
    def is_signal(error: BaseException) -> bool:
        """Return whether an exception only says what becomes of the message."""
        return isinstance(error, Retry | DeadLetter | RetrySome)

    def let_go(self, delivery: Delivery) -> None:
        """End a delivery without settling its messages: they are not done."""
        delivery.window.end(delivery, self.core.clock.now())

    def finish(self, delivery: Delivery) -> None:
        """Note that messages were handled without an error."""
        now, count = self.core.clock.now(), len(delivery.messages)
        delivery.window.finish(delivery, now)
        if count:  # a run may have been taken away before it was begun
            seconds = now - delivery.started_at
            self._average += (seconds / count - self._average) / _SMOOTHING
            self.member.counts.handled += count
            self.member.done(delivery.messages)
            self.member.rates_of(delivery.messages[0].topic).handled(count, seconds, now)
        self._continue(delivery.window)

    def _wait_for_work(self) -> Flow[None]:
        signal = Signal()
        self._idle.append(signal)
        try:
            yield Wait(signal, self.core.clock.now() + _IDLE_MAX)
        finally:
            if not signal.is_fired and signal in self._idle:
                self._idle.remove(signal)

    def _call_others(self) -> Flow[None]:
        """Wake another worker; with quick handlers only when one turns out to be slow."""
        if self._average >= _QUICK:
            self.wake()
        elif not self._is_relieving:
            self._is_relieving = True
            yield UserCall(self._spawn, (self._relieve(),))

    def _relieve(self) -> Flow[None]:
        """While messages wait for a slow handler, give them to other workers."""
        while self._idle and not self._is_over:
            before = self.core.clock.now()
            yield Pause(_RELIEF)
            for window in self.member.windows.values():
                for delivery in list(window.running.values()):
                    if delivery.started_at <= before and window.share(delivery):
                        self._arrived(window)
            if not self._line and not self._running:
                break
            self.wake()
        self._is_relieving = False

    def _continue(self, window: DeliveryWindow) -> None:
        """Let the queue, and others that wait for room, go on after a handler has ended."""
        self._running -= 1
        self.member.settled()
        if not window.is_queued and (window.waiting or window.postponed):
            self._arrived(window)
        elif self._handler is None:
            self.wake()

    # ---- failures ----------------------------------------------------------------------------

    def fail(self, delivery: Delivery, error: BaseException) -> Flow[None]:
        """Do what the exception of a handler asks for, and publish it with the plan.

        Whatever happens here, the delivery ends. Else its queue would wait for it for ever.
        """
        window = delivery.window
        verdict = yield from self._judge(delivery, error)
        if not verdict.failed:
            self.finish(delivery)
            return
        self._note_failure(delivery, verdict)
        try:
            plan, pause = yield from self._repeat(window, verdict)
        except Exception as unexpected:
            yield from self.core.report(f"a failure of group {self.member.group}", unexpected)
            plan, pause = "it is delivered again", None
            yield from self.member.read_again(delivery)
        finally:
            window.end(delivery, self.core.clock.now())
            self._continue(window)
        if pause is not None:
            yield from self._continue_in(window, pause)
        if not self.is_signal(error):
            self.core.user_errors += 1
        notice = HandlerFailed(self.member.group, verdict.failed[0], error, plan)
        self.core.notices.append(notice)
        yield from self.core.publish()

    def fail_to_its_end(self, delivery: Delivery, error: BaseException) -> Flow[None]:
        """Do what `fail` does, in the background: a caller that gives up does not end it."""
        yield from to_its_end(self.core, self._spawn, self.fail(delivery, error))

    def _judge(self, delivery: Delivery, error: BaseException) -> Flow[Verdict]:
        """Return what the exception means; one that cannot be read is a failure like any other."""
        messages, done = delivery.messages, delivery.messages[:0]
        if delivery.rest is not None:  # all of the run before the last one are done
            messages, done = messages[-1:], messages[:-1]
        try:
            return verdict_of(messages, error, done=done)
        except Exception as unexpected:  # a `Retry` of the user without the fields of ours
            yield from self.core.report(f"an exception of group {self.member.group}", unexpected)
            return Verdict(done, messages)

    def _note_failure(self, delivery: Delivery, verdict: Verdict) -> None:
        """Count what a handler did, and settle the messages that are done even so."""
        counts, now = self.member.counts, self.core.clock.now()
        counts.failed += len(verdict.failed)
        self.member.rates_of(delivery.messages[0].topic).failed(
            len(verdict.failed), now - delivery.started_at, now
        )
        counts.handled += len(verdict.done)
        for message in verdict.done:
            delivery.window.settle(message)
        self.member.done(verdict.done)

    def _repeat(self, window: DeliveryWindow, verdict: Verdict) -> Flow[tuple[str, float | None]]:
        """Have failed messages handled again, or given up.

        Returns:
            The plan for the log, and the seconds after which the window goes on; None if it does
            not wait.
        """
        if window.is_dropped:
            return "its queue belongs to another member now, which handles it", None
        if not self.member.is_shared:
            return self._try_here(window, verdict)
        if self.is_orderly:
            return (yield from self._keep_order(window, verdict))
        return (yield from self._deliver_again(window, verdict))

    def _keep_order(
        self, window: DeliveryWindow, verdict: Verdict
    ) -> Flow[tuple[str, float | None]]:
        """Try failed messages of an orderly queue again first; those tried too often are dead."""
        dead = {m for m in verdict.failed if verdict.is_dead or is_used_up(m, self.retries)}
        _, refused = yield from self._send_back(
            window, as_dead([m for m in verdict.failed if m in dead])
        )
        again = [m for m in verdict.failed if m in refused or m not in dead]
        if not again:
            return "it becomes a dead letter", None
        seconds = self.options.suspend_queue if verdict.after is None else verdict.after
        why = ""
        if refused:
            seconds = _LOCAL_RETRY
            why = f"it could not be sent back ({next(iter(refused.values()))}), "
        window.put_back(self._tried(again), self.core.clock.now() + seconds)
        return f"{why}the queue waits, and it is tried again in {seconds:g} s", seconds

    def _tried(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return messages for another attempt here: copies that count the one that failed.

        The broker does not know of it. A message that a handler has seen never changes.
        """
        tried = [replace(each, delivery_attempts=each.delivery_attempts + 1) for each in messages]
        if self.member.link is not None:
            for message in tried:
                self.member.link(message)
        return tried

    def _try_here(self, window: DeliveryWindow, verdict: Verdict) -> tuple[str, float | None]:
        """Handle failed messages of a broadcast again; no broker delivers them again."""
        now = self.core.clock.now()
        attempts = max(message.delivery_attempts for message in verdict.failed)
        if verdict.is_dead or attempts >= self.options.broadcast_retries:
            for message in verdict.failed:
                window.settle(message)
            self.member.counts.given_up += len(verdict.failed)
            return f"it is given up after attempt {attempts + 1}: no broker delivers it again", None
        seconds = verdict.after
        if seconds is None:
            seconds = min(2.0 ** min(attempts, _DOUBLINGS), _LOCAL_RETRY)
        tried = self._tried(verdict.failed)
        if self.is_orderly:
            window.put_back(tried, now + seconds)
        else:
            for message in tried:
                window.postpone(message, now + seconds)
        return f"it is tried again here in {seconds:g} s", seconds

    def _deliver_again(
        self, window: DeliveryWindow, verdict: Verdict
    ) -> Flow[tuple[str, float | None]]:
        """Have the broker deliver failed messages again; those that it does not take wait here."""
        taken, refused = yield from self._send_back(window, verdict)
        if not refused:
            first = verdict.failed[0]
            return plan_of(first, taken[first], self.retries, is_asked=verdict.is_dead), None
        for message in refused:
            window.postpone(message, self.core.clock.now() + _LOCAL_RETRY)
        reason = next(iter(refused.values()))
        plan = f"it could not be sent back ({reason}), and is handled here again in "
        return f"{plan}{_LOCAL_RETRY:g} s", _LOCAL_RETRY

    def _send_back(
        self, window: DeliveryWindow, verdict: Verdict
    ) -> Flow[tuple[dict[ReceivedMessage, float | None], dict[ReceivedMessage, str]]]:
        """Give messages to the broker.

        Returns:
            Those that it took, with the seconds until it delivers them, None for dead letters; and
            those that it did not take, each with the reason.
        """
        taken: dict[ReceivedMessage, float | None] = {}
        refused: dict[ReceivedMessage, str] = {}
        for message in verdict.failed:
            until = self.core.clock.now() + _SEND_BACK_TIMEOUT
            try:
                taken[message] = yield from self.member.give_back(window, message, verdict, until)
            except RocketMQError as error:
                refused[message] = error.brief
            except Exception as unexpected:  # it is not lost by a mistake of ours
                refused[message] = repr(unexpected)
                what = f"sending back messages of group {self.member.group}"
                yield from self.core.report(what, unexpected)
            else:
                window.settle(message)
        return taken, refused

    def _continue_in(self, window: DeliveryWindow, seconds: float) -> Flow[None]:
        """Put a window into the line again after a time."""
        clock = self.core.clock
        until = clock.now() + seconds

        def later() -> Flow[None]:
            while (left := until - clock.now()) > 0:  # a timer may fire a little too early
                yield Pause(max(left, _TICK))
            self._arrived(window)

        yield UserCall(self._spawn, (later(),))


def _trace_result(error: BaseException | None) -> SubResult:
    """Return how a handler ended, for the trace."""
    if error is None or is_done(error):
        return SubResult.SUCCESS
    if isinstance(error, Retry | DeadLetter | RetrySome):
        return SubResult.FAILED
    return SubResult.EXCEPTION
