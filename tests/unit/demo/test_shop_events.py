from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from downrange.demo.shop_events import Shop

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.demo.shop_events import ShopEvent

MAKERS: tuple[Callable[[Shop], ShopEvent], ...] = (
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
def test_same_seed_gives_the_same_events(make: Callable[[Shop], ShopEvent]) -> None:
    one, other = Shop(7, "shop"), Shop(7, "shop")
    assert [make(one) for _ in range(50)] == [make(other) for _ in range(50)]


def test_another_seed_or_name_gives_other_events() -> None:
    bodies = {Shop(seed, name).order().body for seed in (1, 2) for name in ("a", "b")}
    assert len(bodies) == 4


@pytest.mark.parametrize("make", MAKERS)
def test_every_event_is_json_and_has_a_key_of_its_own(make: Callable[[Shop], ShopEvent]) -> None:
    shop = Shop(1, "shop")
    events = [make(shop) for _ in range(200)]
    assert len({event.key for event in events}) == 200
    for event in events:
        content = json.loads(event.body)
        assert content["id"] == event.key
        assert content["kind"] == event.tags
        assert content.get("customer") == event.customer
        assert " " not in event.key


def test_order_total_is_right_and_few_orders_lack_a_postcode() -> None:
    shop = Shop(3, "shop")
    orders = [json.loads(shop.order().body) for _ in range(1000)]
    for order in orders:
        assert order["total_cents"] == sum(line["cents"] * line["count"] for line in order["lines"])
    assert 10 < sum(order["postcode"] is None for order in orders) < 60
    kinds = Counter(order["kind"] for order in orders)
    assert kinds["standard"] > kinds["express"] > kinds["gift"] > 0
