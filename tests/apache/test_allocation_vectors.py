"""Our shares of queues, compared with those of Java's classes.

`python -m tests.apache.test_allocation_vectors` writes the file that the unit tests read.
"""

from __future__ import annotations

import json
import random
from typing import Any

from tests.apache.java_client import JavaClient
from tests.unit.test_allocation import STRATEGY_NAMES, VECTORS, shares

#: In the order of code points, and in another one as Java's UTF-16 texts.
NAMES = [
    "a",
    "b",
    "broker-a",
    "broker-b",
    "broker-10",
    "broker-9",
    "Z",
    "ä",
    "\uff21",
    "\U00010000",
]


def random_cases(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    cases: list[dict[str, Any]] = []
    for _ in range(count):
        brokers = chance.sample(NAMES, chance.randint(1, 3))
        members = [f"{name}@{number}" for number in range(9) for name in NAMES]
        cases.append(
            {
                "brokers": {name: chance.choice([1, 2, 3, 4, 8, 17]) for name in brokers},
                "members": chance.sample(members, chance.choice([1, 2, 3, 4, 5, 7, 12, 30])),
            }
        )
    return cases


def in_java(java: JavaClient, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases with the shares that Java's classes compute."""
    answers = {name: java.call("allocate", strategy=name, cases=cases) for name in STRATEGY_NAMES}
    return [
        {**case, "shares": {name: answers[name][number] for name in STRATEGY_NAMES}}
        for number, case in enumerate(cases)
    ]


def test_shares_equal_those_of_java(java_client: JavaClient) -> None:
    for case in in_java(java_client, random_cases(seed=1, count=300)):
        for name in STRATEGY_NAMES:
            assert shares(case, name) == case["shares"][name], case


def test_kept_vectors_are_those_of_java(java_client: JavaClient) -> None:
    kept = json.loads(VECTORS.read_text(encoding="utf-8"))
    cases = [{key: case[key] for key in ("brokers", "members")} for case in kept]
    assert in_java(java_client, cases) == kept


def main() -> None:
    """Write the vectors that the unit tests read."""
    with JavaClient("5.5.0") as java:
        vectors = in_java(java, random_cases(seed=2, count=30))
    lines = ",\n".join(json.dumps(case) for case in vectors)
    VECTORS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
