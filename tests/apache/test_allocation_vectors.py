"""Our shares of queues, compared with those of Java's classes.

`python -m tests.apache.test_allocation_vectors` writes the file that the unit tests read.
"""

from __future__ import annotations

import json
import random
from typing import Any

from tests.apache.java_client import JavaClient
from tests.unit.test_allocation import LISTED, OURS, VECTORS, shares

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
#: The forms that the strategies by machine room tell apart.
ROOMED = ["a@1", "a@2", "b@1", "\uff21@1", "\U00010000@1", "a@1@", "a@", "a@@1", "@1", "a@1@2"]

#: Name in the vectors -> the strategy in Java.
THEIRS: dict[str, dict[str, Any]] = {
    "average": {"strategy": "Average"},
    "circle": {"strategy": "AverageByCircle"},
    "ring": {"strategy": "ConsistentHash", "virtualNodes": 10},
    "small ring": {"strategy": "ConsistentHash", "virtualNodes": 1},
    "ring of java_hash": {"strategy": "ConsistentHash", "virtualNodes": 3, "javaHash": True},
    "rooms": {"strategy": "MachineRoom", "rooms": ["a", "\uff21", ""]},
    "nearby average": {"strategy": "MachineRoomNearby", "inner": "Average"},
    "nearby ring": {"strategy": "MachineRoomNearby", "inner": "ConsistentHash", "virtualNodes": 10},
    "listed": {
        "strategy": "ByConfig",
        "queues": [
            {"topic": queue.topic, "brokerName": queue.broker, "queueId": queue.number}
            for queue in LISTED
        ],
    },
}


def random_cases(seed: int, count: int, largest: int = 30) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    cases: list[dict[str, Any]] = []
    for _ in range(count):
        brokers = chance.sample([*NAMES, *ROOMED], chance.randint(1, 4))
        members = [f"{name}@{number}" for number in range(9) for name in NAMES]
        sizes = [size for size in (1, 2, 3, 4, 5, 7, 12, 30) if size <= largest]
        cases.append(
            {
                "brokers": {name: chance.choice([1, 2, 3, 4, 8, 17]) for name in brokers},
                "members": chance.sample(members, chance.choice(sizes)),
            }
        )
    return cases


def in_java(java: JavaClient, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases with the shares that Java's classes compute."""
    shares_of: dict[str, list[Any]] = {}
    for name, strategy in THEIRS.items():
        answer = java.call("allocate", **strategy, cases=cases)
        assert answer["name"] == OURS[name].name
        shares_of[name] = answer["answers"]
    for case, parts in zip(cases, shares_of["listed"], strict=True):
        # Java returns listed queues that do not exist, too.
        for part in parts:
            part[:] = [queue for queue in part if _exists(queue, case)]
    return [
        {**case, "shares": {name: shares_of[name][number] for name in THEIRS}}
        for number, case in enumerate(cases)
    ]


def _exists(queue: str, case: dict[str, Any]) -> bool:
    broker, number = queue.rsplit(" ", 1)
    return bool(int(number) < case["brokers"].get(broker, 0))


def test_shares_equal_those_of_java(java_client: JavaClient) -> None:
    for case in in_java(java_client, random_cases(seed=1, count=300, largest=12)):
        for name, strategy in OURS.items():
            assert shares(case, strategy) == case["shares"][name], (name, case)


def test_kept_vectors_are_those_of_java(java_client: JavaClient) -> None:
    kept = json.loads(VECTORS.read_text(encoding="utf-8"))
    cases = [{key: case[key] for key in ("brokers", "members")} for case in kept]
    assert in_java(java_client, cases) == kept


def main() -> None:
    """Write the vectors that the unit tests read."""
    with JavaClient("5.5.0") as java:
        vectors = in_java(java, random_cases(seed=2, count=25, largest=5))
    lines = ",\n".join(json.dumps(case) for case in vectors)
    VECTORS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
