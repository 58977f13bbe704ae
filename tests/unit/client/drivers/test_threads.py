"""Flows in threads: in the caller's own, and on the engine for everything else."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

import pytest

from downrange.client.drivers import threads
from downrange.client.drivers.threads import ThreadDriver
from downrange.client.flows.effects import (
    Call,
    Effect,
    Flow,
    Gather,
    Once,
    Pause,
    Signal,
    UserCall,
    Wait,
)
from downrange.client.flows.notices import Notice, UserCodeFailed
from downrange.client.flows.producing.permits import Permits
from downrange.errors import (
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    ForkedClient,
    TooManySends,
)
from downrange.options import ClientOptions
from downrange.wire.command import Command
from tests.support.waiting import wait_until
from tests.unit.client.drivers.peers import (
    PATIENCE,
    FakeDialer,
    Peer,
    real_core,
    refused,
    silence,
    thread_driver,
)

if TYPE_CHECKING:
    from downrange.client.flows.routing.queue_picker import RoundRobin


def one(effect: Effect, log: list[Any] | None = None) -> Flow[Any]:
    """Return a flow of one effect, which records its end."""
    try:
        return (yield effect)
    finally:
        if log is not None:
            log.append("ended")


def asking(driver: ThreadDriver, body: bytes = b"", timeout: float = PATIENCE) -> Flow[Command]:
    deadline = driver.core.clock.now() + timeout
    reply: Command = yield Call("a:1", Command(11, body=body), deadline)
    return reply


def later(driver: ThreadDriver, seconds: float) -> float:
    return driver.core.clock.now() + seconds


# ---- start ---------------------------------------------------------------------------------------


def test_engine_without_a_loop_is_an_error_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> asyncio.AbstractEventLoop:
        raise OSError("too many open files")

    monkeypatch.setattr(threads, "_new_event_loop", fail)
    driver = ThreadDriver(real_core(), FakeDialer())
    with pytest.raises(OSError, match="too many open files"):
        driver.start()


def test_engine_that_cannot_start_is_an_error_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(self: object) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr("downrange.client.drivers.aio.AioDriver.start", fail)
    driver = ThreadDriver(real_core(), FakeDialer())
    with pytest.raises(OSError, match="too many open files"):
        driver.start()
    assert driver._thread is not None
    driver._thread.join(PATIENCE)
    assert driver._loop is not None
    assert driver._loop.is_closed()


# ---- in the caller's thread ----------------------------------------------------------------------


def test_a_flow_runs_in_the_callers_thread_to_its_end() -> None:
    with thread_driver() as driver:
        assert driver.run(one(UserCall(threading.get_ident))) == threading.get_ident()
        assert driver.run(asking(driver, b"7")).body == b"7"
        assert driver.run(one(Pause(0.001))) is None
        assert driver.connections() == {"a:1": 1}


def test_a_flow_decides_what_follows_an_error() -> None:
    def twice() -> Flow[str]:
        try:
            yield UserCall(int, ("x",))
        except ValueError:
            return (yield UserCall(str, ("again",)))  # type: ignore[no-any-return]
        return "?"

    with thread_driver() as driver:
        assert driver.run(twice()) == "again"
        with pytest.raises(ValueError, match="invalid literal"):
            driver.run(one(UserCall(int, ("x",))))


def test_a_callers_thread_waits_for_a_signal_no_longer_than_the_deadline() -> None:
    with thread_driver() as driver:
        signal = Signal()
        assert driver.run(one(Wait(signal, later(driver, 0.005)))) is False
        assert driver.run(one(Wait(signal, later(driver, -1.0)))) is False
        assert not signal._listeners
        timer = threading.Timer(0.005, lambda: driver.step(signal.fire))
        timer.start()
        assert driver.run(one(Wait(signal, later(driver, PATIENCE)))) is True
        assert driver.run(one(Wait(signal, later(driver, -1.0)))) is True
        timer.join()


def test_each_thread_has_a_round_robin_of_its_own() -> None:
    round_robins: list[RoundRobin] = []
    with thread_driver() as driver:
        assert driver.round_robin is driver.round_robin
        thread = threading.Thread(target=lambda: round_robins.append(driver.round_robin))
        thread.start()
        thread.join()
        assert round_robins[0] is not driver.round_robin


def test_threads_that_find_no_connection_free_share_the_engines() -> None:
    with thread_driver(options=ClientOptions(sync_connections_max=0)) as driver:
        for body in (b"1", b"2"):
            assert driver.run(asking(driver, body)).body == body
        assert driver.connections() == {"a:1": 1}


def test_once_and_gather_run_on_the_engine() -> None:
    with thread_driver() as driver:
        ident: Any = driver.run(one(Once("key", lambda: one(UserCall(threading.get_ident)))))
        assert ident != threading.get_ident()
        flows = [one(UserCall(int, (n,))) for n in "12"]
        assert driver.run(one(Gather(flows, 2))) == [1, 2]


def test_a_flow_on_the_engine_does_not_wait_for_the_engine() -> None:
    def failing() -> Flow[int]:
        yield Pause(0)
        raise ClientClosed("the client")

    with thread_driver() as driver:
        shared = driver.submit(
            one(UserCall(lambda: driver.run(one(Once("key", lambda: one(UserCall(int)))))))
        )
        assert shared.result(PATIENCE) == 0
        several = Gather([one(UserCall(int, ("1",))), failing(), one(UserCall(int, ("3",)))], 2)
        first, error, third = driver.submit(one(UserCall(lambda: driver.run(one(several))))).result(
            PATIENCE
        )
        assert (first, third) == (1, 3)
        assert isinstance(error, ClientClosed)


def test_threads_share_a_flow_with_the_same_key() -> None:
    runs: list[int] = []
    gate = Signal()

    def shared() -> Flow[int]:
        runs.append(1)
        yield Wait(gate, later(driver, PATIENCE))
        return 7

    with thread_driver() as driver:
        results: list[int] = []
        running = [
            threading.Thread(target=lambda: results.append(driver.run(one(Once("key", shared)))))
            for _ in range(4)
        ]
        for thread in running:
            thread.start()
        waiting = driver.engine.scheduler._shared
        wait_until(lambda: len(waiting.get("key", ())) == len(running))
        driver.step(gate.fire)
        for thread in running:
            thread.join()
    assert results == [7] * 4
    assert len(runs) == 1


# ---- on the engine -------------------------------------------------------------------------------


def test_a_submitted_flow_runs_on_the_engine() -> None:
    with thread_driver() as driver:
        assert driver.submit(one(UserCall(threading.get_ident))).result() != threading.get_ident()
        assert driver.submit(asking(driver, b"7")).result(PATIENCE).body == b"7"
        assert driver.submit(one(Pause(0.001))).result(PATIENCE) is None


def test_the_error_of_a_submitted_flow_is_the_futures() -> None:
    dialer = FakeDialer()
    dialer.failure = refused()
    with thread_driver(dialer) as driver, pytest.raises(ConnectFailed):
        driver.submit(asking(driver)).result(PATIENCE)


def test_run_last_starts_after_all_that_was_submitted() -> None:
    with thread_driver() as driver:
        log: list[int] = []
        for number in range(50):
            driver.submit(one(UserCall(log.append, (number,))))
        assert driver.run_last(one(UserCall(log.copy))) == list(range(50))
        inside = driver.submit(one(UserCall(lambda: driver.run_last(one(UserCall(int, ("7",)))))))
        assert inside.result(PATIENCE) == 7


def test_spawned_flows_end_with_the_driver() -> None:
    log: list[str] = []
    with thread_driver() as driver:
        driver.spawn(one(Pause(PATIENCE), log))
        driver.run_last(one(UserCall(int, ("7",))))
        assert not log
    assert log == ["ended"]


def test_cancelling_a_future_closes_the_flow() -> None:
    log: list[str] = []
    with thread_driver() as driver:
        future = driver.submit(one(Pause(PATIENCE), log))
        driver.run_last(one(UserCall(int, ("7",))))
        assert future.cancel()
        assert future.cancel()  # harmless
        driver.run_last(one(UserCall(int, ("7",))))
        assert log == ["ended"]
        assert not driver.submissions


def test_cancelling_a_future_before_its_flow_starts_prevents_the_start() -> None:
    with thread_driver() as driver:
        is_held, gate = threading.Event(), threading.Event()

        def hold() -> None:
            is_held.set()
            gate.wait(PATIENCE)

        driver.submit(one(UserCall(hold)))
        assert is_held.wait(PATIENCE)
        log: list[str] = []
        future = driver.submit(one(UserCall(log.append, ("ran",))))
        assert future.cancel()
        gate.set()
        driver.run_last(one(UserCall(int, ("7",))))
        assert log == []


def test_waiting_for_a_future_ends_when_it_is_cancelled() -> None:
    with thread_driver() as driver:
        future = driver.submit(one(Pause(PATIENCE)))
        driver.run_last(one(UserCall(int, ("7",))))
        future.cancel()
        done, _ = wait([future], PATIENCE)
        assert done == {future}


def test_a_future_that_is_done_cannot_be_cancelled() -> None:
    with thread_driver() as driver:
        future = driver.submit(one(UserCall(int, ("7",))))
        assert future.result(PATIENCE) == 7
        assert not future.cancel()


def test_a_flow_may_cancel_its_own_future() -> None:
    with thread_driver() as driver:
        futures: list[Future[Any]] = []
        log: list[str] = []
        is_given = threading.Event()

        def cancel() -> None:
            is_given.wait(PATIENCE)
            futures[0].cancel()

        def flow() -> Flow[None]:
            yield UserCall(cancel)
            yield from one(Pause(PATIENCE), log)

        futures.append(driver.submit(flow()))
        is_given.set()
        driver.run_last(one(UserCall(int, ("7",))))
        driver.run_last(one(UserCall(int, ("7",))))
        assert futures[0].cancelled()
        assert log == ["ended"]
        assert not driver.submissions


def test_a_flow_may_end_after_its_future_was_cancelled() -> None:
    with thread_driver() as driver:
        futures: list[Future[Any]] = []
        is_given = threading.Event()

        def cancel() -> None:
            is_given.wait(PATIENCE)
            futures[0].cancel()

        futures.append(driver.submit(one(UserCall(cancel))))
        is_given.set()
        assert driver.run_last(one(UserCall(int, ("7",)))) == 7
        assert futures[0].cancelled()
        assert not driver.submissions


# ---- room ----------------------------------------------------------------------------------------


class Desk:
    """Makes flows that wait for room before they do something, and note where they ran."""

    def __init__(self, driver: ThreadDriver, count_max: int = 1) -> None:
        self.driver = driver
        self.permits = Permits(driver.core.clock, count_max, 1 << 20)
        self.threads: list[str] = []

    def flow(self, admitted: Signal, effect: Effect, timeout: float = PATIENCE) -> Flow[Any]:
        self.threads.append(threading.current_thread().name)
        yield from self.permits.take(1, later(self.driver, timeout))
        try:
            admitted.fire()
            yield Wait(admitted, later(self.driver, timeout))
            answer: Any = yield effect
            self.threads.append(threading.current_thread().name)
            return answer
        finally:
            self.permits.give_back(1)

    def submit(self, effect: Effect, timeout: float = PATIENCE) -> Future[Any]:
        admitted = Signal()
        return self.driver.submit(self.flow(admitted, effect, timeout), None, admitted)


def test_a_flow_that_finds_room_continues_on_the_engine() -> None:
    with thread_driver() as driver:
        desk = Desk(driver)
        assert desk.submit(UserCall(int, ("7",))).result(PATIENCE) == 7
        assert desk.submit(Call("a:1", Command(11), later(driver, PATIENCE))).result(PATIENCE)
        assert desk.submit(Pause(0.001)).result(PATIENCE) is None
        with pytest.raises(ValueError, match="invalid literal"):
            desk.submit(UserCall(int, ("x",))).result(PATIENCE)
        assert desk.threads[:2] == [threading.current_thread().name, "downrange-engine"]
        assert desk.permits.in_flight == 0


def test_a_thread_waits_until_there_is_room_for_its_flow() -> None:
    with thread_driver() as driver:
        desk, gate = Desk(driver), Signal()
        is_open = threading.Event()

        def open_gate() -> None:
            is_open.set()
            driver.step(gate.fire)

        first = desk.submit(Wait(gate, later(driver, PATIENCE)))
        timer = threading.Timer(0.02, open_gate)
        timer.start()
        second = desk.submit(UserCall(int, ("7",)))
        assert is_open.is_set()
        assert first.result(PATIENCE) is True
        assert second.result(PATIENCE) == 7
        timer.join()


def test_a_flow_that_finds_no_room_in_time_raises_its_error_in_the_thread_of_its_caller() -> None:
    with thread_driver() as driver:
        desk = Desk(driver)
        first = desk.submit(Pause(PATIENCE))
        with pytest.raises(TooManySends):
            desk.submit(UserCall(int), timeout=0.01)
        first.cancel()
        driver.run_last(one(UserCall(int, ("7",))))
        assert (desk.permits.in_flight, desk.permits.waiting) == (0, 0)


def test_a_flow_decides_what_follows_an_error_before_it_has_room() -> None:
    admitted = Signal()

    def flow() -> Flow[str]:
        with pytest.raises(ValueError, match="invalid literal"):
            yield UserCall(int, ("x",))
        name: str = yield UserCall(lambda: threading.current_thread().name)
        admitted.fire()
        yield Wait(admitted, 0.0)
        return name

    with thread_driver() as driver:
        future = driver.submit(flow(), None, admitted)
        assert future.result(PATIENCE) == threading.current_thread().name


def test_a_flow_that_ends_in_its_first_steps_has_its_future() -> None:
    admitted = Signal()

    def failing() -> Flow[None]:
        yield UserCall(int)
        admitted.fire()
        raise KeyError("x")

    def ending() -> Flow[int]:
        return (yield UserCall(int, ("7",)))  # type: ignore[no-any-return]

    with thread_driver() as driver:
        assert driver.submit(ending(), None, Signal()).result(0) == 7
        with pytest.raises(KeyError):
            driver.submit(failing(), None, admitted).result(0)


def test_a_flow_that_waits_for_room_does_not_overtake_those_that_were_submitted_before() -> None:
    with thread_driver() as driver:
        log: list[str] = []
        permits = Permits(driver.core.clock, 1, 100)
        is_held, gate = threading.Event(), threading.Event()

        def limited(name: str, admitted: Signal | None) -> Flow[None]:
            yield from permits.take(1, later(driver, PATIENCE))
            try:
                if admitted is not None:
                    admitted.fire()
                    yield Wait(admitted, later(driver, PATIENCE))
                yield UserCall(log.append, (name,))
            finally:
                permits.give_back(1)

        def hold() -> None:
            is_held.set()
            gate.wait(PATIENCE)

        driver.submit(one(UserCall(hold)))
        assert is_held.wait(PATIENCE)
        early = driver.submit(limited("early", None))
        assert driver.backlog == 1
        threading.Timer(0.02, gate.set).start()
        admitted = Signal()
        driver.submit(limited("late", admitted), None, admitted).result(PATIENCE)
        assert early.done()
        assert log == ["early", "late"]
        assert driver.backlog == 0


def test_the_engine_does_not_wait_for_room() -> None:
    with thread_driver() as driver:
        desk = Desk(driver)
        first = desk.submit(Pause(0.01))
        inner: Future[Any] = driver.submit(
            one(UserCall(lambda: desk.submit(UserCall(int, ("7",)))))
        ).result(PATIENCE)
        assert not inner.done() or first.done()
        assert inner.result(PATIENCE) == 7


def test_a_flow_whose_future_is_cancelled_before_the_engine_has_it_gives_its_room_back() -> None:
    with thread_driver() as driver:
        desk = Desk(driver, 2)
        is_held, gate = threading.Event(), threading.Event()

        def hold() -> None:
            is_held.set()
            gate.wait(PATIENCE)

        desk.submit(UserCall(hold))
        assert is_held.wait(PATIENCE)
        log: list[str] = []
        future = desk.submit(UserCall(log.append, ("ran",)))
        assert desk.permits.in_flight == 2
        assert future.cancel()
        gate.set()
        driver.run_last(one(UserCall(int, ("7",))))
        assert (log, desk.permits.in_flight) == ([], 0)


def test_a_flow_that_the_engine_refuses_gives_its_room_back() -> None:
    with thread_driver(FakeDialer()) as driver:
        desk = Desk(driver)
    driver._is_closed = False  # it is closed just now
    with pytest.raises(ClientClosed):
        desk.submit(UserCall(int))
    assert desk.permits.in_flight == 0
    driver._is_closed = True


def test_a_flow_that_comes_to_a_closed_engine_gives_its_room_back() -> None:
    with thread_driver() as driver:
        desk = Desk(driver)
        driver.engine.scheduler.is_closed = True
        future = desk.submit(UserCall(int))
        assert isinstance(future.exception(PATIENCE), ClientClosed)
        assert desk.permits.in_flight == 0


# ---- callbacks -----------------------------------------------------------------------------------


def test_callbacks_run_in_the_pool() -> None:
    with thread_driver() as driver:
        names: list[str] = []
        is_called = threading.Event()

        def note(future: Future[Any]) -> None:
            names.append(threading.current_thread().name)
            is_called.set()

        driver.submit(one(Pause(0.002))).add_done_callback(note)
        assert is_called.wait(PATIENCE)
        assert names[0].startswith("downrange-callback")


def test_callbacks_run_where_they_are_when_too_many_wait() -> None:
    with thread_driver(options=ClientOptions(callbacks_waiting_max=0)) as driver:
        names: list[str] = []
        future = driver.submit(one(UserCall(int, ("7",))))
        future.result(PATIENCE)
        future.add_done_callback(lambda _: names.append(threading.current_thread().name))
        assert names == [threading.current_thread().name]


def test_callbacks_run_where_they_are_when_the_driver_is_closed() -> None:
    log: list[int] = []
    with thread_driver() as driver:
        future = driver.submit(one(UserCall(int, ("7",))))
        future.result(PATIENCE)
    future.add_done_callback(lambda done: log.append(done.result()))
    assert log == [7]


def test_callbacks_run_where_they_are_when_the_pool_has_ended() -> None:
    log: list[int] = []
    with thread_driver() as driver:
        driver._pool.shutdown()
        driver.callback(lambda: log.append(1))
        assert log == [1]
        assert driver._callbacks_waiting == 0


@pytest.mark.parametrize("kind", [KeyError, SystemExit])
def test_a_callback_that_fails_is_reported(kind: type[BaseException]) -> None:
    def broken(_: Future[Any]) -> None:
        raise kind("oops")

    reports: list[tuple[str, BaseException]] = []
    with thread_driver(options=ClientOptions(callbacks_waiting_max=0)) as driver:

        def observe(notice: Notice) -> None:
            assert isinstance(notice, UserCodeFailed)
            reports.append((notice.where, notice.error))

        driver.core.observe = observe
        future = driver.submit(one(UserCall(int, ("7",))))
        future.result(PATIENCE)
        future.add_done_callback(broken)
        ((where, error),) = reports
        assert where.startswith("callback tests.unit")
        assert where.endswith("broken of a future")
        assert isinstance(error, kind)
        assert driver.core.user_errors == 1
        driver.core.observe = None
        future.add_done_callback(broken)
        assert driver.core.user_errors == 2


class OwnExecutor(ThreadPoolExecutor):
    """An executor of the user's, which may refuse work."""

    def __init__(self) -> None:
        super().__init__(1, thread_name_prefix="mine")
        self.is_full = False

    def submit(self, fn: Any, /, *args: Any, **settings: Any) -> Future[Any]:
        if self.is_full:
            raise LookupError("the queue is full")
        return super().submit(fn, *args, **settings)


def test_callbacks_and_checks_run_in_the_executor_of_the_user() -> None:
    def name() -> str:
        return threading.current_thread().name

    with OwnExecutor() as executor:
        with thread_driver(options=ClientOptions(callback_executor=executor)) as driver:
            names: list[str] = []
            future = driver.submit(one(UserCall(name, may_block=True)))
            assert future.result(PATIENCE) == "mine_0"
            future.add_done_callback(lambda _: names.append(name()))
            assert executor.submit(int, "7").result(PATIENCE) == 7  # after the callback
            executor.is_full = True
            future.add_done_callback(lambda _: names.append(name()))
            assert names == ["mine_0", name()]
            assert driver._callbacks_waiting == 0
            executor.is_full = False
        assert executor.submit(int, "7").result(PATIENCE) == 7  # the client did not shut it down


# ---- the end -------------------------------------------------------------------------------------


def test_a_closed_driver_refuses_flows_and_may_be_closed_again() -> None:
    with thread_driver() as driver:
        driver.run(asking(driver))
        driver.close()
        driver.close()
        for use in (driver.run, driver.submit, driver.spawn):
            with pytest.raises(ClientClosed):
                use(asking(driver))
        assert driver._thread is not None
        assert not driver._thread.is_alive()


def test_an_engine_that_has_ended_refuses_functions() -> None:
    with thread_driver(FakeDialer()) as driver:
        pass
    for _ in range(2):  # the first must not leave the second one waiting
        with pytest.raises(ClientClosed):
            driver.on_engine(lambda: None)


def test_closing_fails_submitted_flows_that_wait() -> None:
    with thread_driver(FakeDialer(silence)) as driver:
        futures = [
            driver.submit(asking(driver)),
            driver.submit(one(Pause(PATIENCE))),
            driver.submit(one(Wait(Signal(), later(driver, PATIENCE)))),
        ]
        driver.run_last(one(UserCall(int, ("7",))))
        driver.close()
        errors = [type(future.exception(PATIENCE)) for future in futures]
        assert errors == [ConnectionLost, ClientClosed, ClientClosed]


def test_closing_ends_a_call_in_another_thread() -> None:
    dialer = FakeDialer(silence)
    with thread_driver(dialer) as driver:
        errors: list[Exception] = []

        def ask() -> None:
            try:
                driver.run(asking(driver))
            except ConnectionLost as error:
                errors.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        dialer.wait_for_request()
        driver.close()
        thread.join(PATIENCE)
        assert len(errors) == 1


def test_closing_may_happen_on_the_engine() -> None:
    with thread_driver() as driver:
        driver.submit(one(UserCall(driver.close)))
        assert driver._thread is not None
        driver._thread.join(PATIENCE)
        assert not driver._thread.is_alive()


def test_an_internal_error_while_closing_leaves_no_thread() -> None:
    async def broken() -> None:
        await close()
        raise ZeroDivisionError

    with thread_driver() as driver:
        assert driver._engine is not None
        assert driver._thread is not None
        assert driver._loop is not None
        close, driver._engine.close = driver._engine.close, broken  # type: ignore[method-assign]
        driver._loop.set_exception_handler(lambda *_: None)
        driver.close()
        assert not driver._thread.is_alive()


def test_a_driver_that_was_not_started_can_be_closed() -> None:
    driver = ThreadDriver(real_core(), FakeDialer())
    driver.close()
    assert driver.connections() == {}
    assert driver.late_count() == 0


def test_a_flow_that_is_submitted_as_the_engine_ends_is_refused() -> None:
    with thread_driver() as driver:
        driver.close()
        driver._is_closed = False  # as a thread sees it that was checked before
        with pytest.raises(ClientClosed):
            driver.submit(one(Pause(0.0)))
        driver._is_closed = True


def test_a_forked_driver_refuses_and_closes_without_a_hang() -> None:
    with thread_driver() as driver:
        driver.run(asking(driver))

        driver._fork_guard.is_forked = True
        for use in (driver.run, driver.submit, driver.spawn):
            with pytest.raises(ForkedClient):
                use(asking(driver))
        driver._connections._lock.acquire()  # a thread that did not come along has it
        driver.close()
        driver._fork_guard.is_forked = driver._is_closed = False


# ---- statistics ----------------------------------------------------------------------------------


def test_late_replies_are_counted() -> None:
    def slow(peer: Peer, command: Command) -> Command | None:
        if command.body == b"late":
            late.append((peer, command))
            return None
        for one_peer, one_command in late:
            one_peer.reply(one_command, Command(0))
        return Command(0)

    late: list[tuple[Peer, Command]] = []
    with thread_driver(FakeDialer(slow)) as driver:

        def is_asked() -> bool:
            """Ask, perhaps in vain: a call that is late while connecting is never written."""
            assert driver.submit(asking(driver, b"late", 0.01)).exception(PATIENCE) is not None
            return bool(late)

        wait_until(is_asked)
        driver.submit(asking(driver)).result(PATIENCE)
        assert driver.late_count() == len(late)


def test_connections_of_threads_and_engine_are_counted_together() -> None:
    with thread_driver() as driver:
        driver.run(asking(driver))
        driver.submit(asking(driver)).result(PATIENCE)
        assert driver.connections() == {"a:1": 2}
        driver.tidy()
        assert driver.connections() == {"a:1": 2}


def test_connections_of_threads_that_were_not_used_for_long_are_closed() -> None:
    dialer = FakeDialer()
    with thread_driver(dialer, ClientOptions(idle_timeout=0.02)) as driver:
        driver.run(asking(driver))
        assert dialer.peers[0].is_ended.wait(PATIENCE)
        assert driver.connections() == {}
        assert driver.run(asking(driver)).code == 0


def test_the_engine_runs_on_any_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(threads, "import_module", missing)
    with thread_driver() as driver:
        assert isinstance(driver._loop, asyncio.SelectorEventLoop)
        assert driver.submit(asking(driver, b"7")).result(PATIENCE).body == b"7"
