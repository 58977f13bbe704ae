"""Random runs of transactions on a disk that loses power: acknowledged decisions hold.

Each seed is one run: half messages are sent, ended and checked, offsets are saved from time to
time, and power is lost between any two writes.
"""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from downrange.store.files import PowerLost
from downrange.wire.records import decode_record
from tests.unit.server.broker.transaction_stage import (
    COMMIT,
    OPTIONS,
    ROLLBACK,
    Half,
    TransactionStage,
)

SEEDS = range(30)
STEPS = 60
ROUND_MS = 30_000


class Transaction:
    """One half message, from the view of its producer."""

    def __init__(self, half: Half) -> None:
        self.half = half
        self.outcome: int | None = None  # the acknowledged one
        self.tried: list[int] = []  # requests whose answers were lost with the power


class Scenario:
    """One broker, and the decisions that it acknowledged."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        options = dataclasses.replace(OPTIONS, flush="sync", transaction_checks_max=1000)
        self.world = TransactionStage(options)
        self.world.join("makers", 7)
        self.saved: bytes | None = None
        self.made = 0
        self.transactions: dict[bytes, Transaction] = {}

    def step(self) -> None:
        """Take one random step; power may be lost during it."""
        self.world.now_ms += self.random.randrange(3000)
        steps = (self.send, self.end, self.check, self.save, self.restart)
        (step,) = self.random.choices(steps, weights=(10, 8, 4, 3, 1))
        if self.random.random() < 0.25:
            self.world.files.steps_left = self.random.randrange(12)
        try:
            step()
        except PowerLost:
            self.world.files.crash(self.random)
            self.start()
        else:
            self.world.files.steps_left = None

    def send(self) -> None:
        self.made += 1
        half = self.world.half(f"U{self.made}")
        self.transactions[f"body of U{self.made}".encode()] = Transaction(half)

    def end(self) -> None:
        waiting = [one for one in self.transactions.values() if one.outcome is None]
        if waiting:
            self.decide(self.random.choice(waiting), self.random.choice([COMMIT, ROLLBACK]))

    def decide(self, transaction: Transaction, outcome: int) -> None:
        transaction.tried.append(outcome)
        code = self.world.end(transaction.half, outcome).code
        # It is refused only if an earlier end was stored without being acknowledged.
        assert code == 0 or len(transaction.tried) > 1
        if code == 0:
            transaction.tried.pop()
        transaction.outcome = outcome if code == 0 else transaction.tried[0]

    def check(self) -> None:
        self.world.tick(ROUND_MS)

    def save(self) -> None:
        self.saved = self.world.state.offsets.dump()

    def restart(self) -> None:
        self.world.state.store.close()
        self.start()

    def start(self) -> None:
        self.world.start(self.saved)
        self.world.join("makers", 7)

    def finish(self) -> None:
        """Restart once more, and let the broker check all open transactions."""
        self.world.files.steps_left = None
        self.restart()
        self.world.checks.clear()
        self.world.tick()
        self.world.tick(ROUND_MS, times=3)


@pytest.mark.parametrize("seed", SEEDS)
def test_acknowledged_decisions_hold_and_open_halves_are_checked(seed: int) -> None:
    scenario = Scenario(seed)
    for _ in range(STEPS):
        scenario.step()
    scenario.finish()
    delivered = scenario.world.delivered()
    asked = {decode_record(command.body).body for _, command in scenario.world.checks}
    for body, transaction in scenario.transactions.items():
        times, crashes = delivered.count(body), len(transaction.tried)
        if transaction.outcome == COMMIT and not crashes:
            assert times == 1, body
        elif transaction.outcome == ROLLBACK and not crashes:
            assert times == 0, body
        elif transaction.outcome is None and not crashes:
            assert body in asked, body
        else:
            assert times <= 1 + crashes, body
            assert (
                transaction.outcome is not None
                or times
                or body in asked
                or (ROLLBACK in transaction.tried)
            ), body
        if transaction.outcome is not None and not crashes:
            assert body not in asked, body
