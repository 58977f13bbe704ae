from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from downrange.demo.orders import Shop

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.demo.orders import Note

MAKERS: tuple[Callable[[Shop], Note], ...] = (
    Shop.order,
    Shop.payment,
    Shop.click,
    Shop.stock_count,
    Shop.reading,
    Shop.reminder,
    Shop.coupon,
    Shop.log_line,
)


@pytest.mark.parametrize("make", MAKERS)
def test_same_seed_tells_the_same_story(make: Callable[[Shop], Note]) -> None:
    one, other = Shop(7, "shop"), Shop(7, "shop")
    assert [make(one) for _ in range(50)] == [make(other) for _ in range(50)]


def test_another_seed_or_name_tells_another_story() -> None:
    bodies = {Shop(seed, name).order().body for seed in (1, 2) for name in ("a", "b")}
    assert len(bodies) == 4


@pytest.mark.parametrize("make", MAKERS)
def test_every_note_is_json_and_has_a_key_of_its_own(make: Callable[[Shop], Note]) -> None:
    shop = Shop(1, "shop")
    notes = [make(shop) for _ in range(200)]
    assert len({note.key for note in notes}) == 200
    for note in notes:
        said = json.loads(note.body)
        assert said["id"] == note.key
        assert said["kind"] == note.tags
        assert said.get("customer") == note.customer
        assert " " not in note.key


def test_order_adds_up_and_few_lack_a_postcode() -> None:
    shop = Shop(3, "shop")
    orders = [json.loads(shop.order().body) for _ in range(1000)]
    for order in orders:
        assert order["total_cents"] == sum(line["cents"] * line["count"] for line in order["lines"])
    assert 10 < sum(order["postcode"] is None for order in orders) < 60
    kinds = Counter(order["kind"] for order in orders)
    assert kinds["standard"] > kinds["express"] > kinds["gift"] > 0
