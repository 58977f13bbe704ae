"""Generates the events of a small shop: orders, payments, clicks, stock counts, and so on, as JSON.

The same seed gives the same events. One rule: event numbers rise, so each key names one event.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import dataclass
from typing import Any, Final

#: Name and price in cents.
_PRODUCTS: Final = (
    ("espresso beans 1 kg", 2190),
    ("pour-over kettle", 5490),
    ("paper filters, 100", 590),
    ("hand grinder", 8900),
    ("digital scale", 3450),
    ("stoneware cup", 1650),
    ("milk jug", 1990),
    ("cold brew bottle", 2790),
    ("cleaning brush", 790),
    ("moka pot", 3290),
)
_CITIES: Final = (
    ("Hamburg", "20095"),
    ("Lyon", "69001"),
    ("Porto", "4000-008"),
    ("Utrecht", "3511"),
    ("Gdansk", "80-001"),
    ("Bologna", "40121"),
    ("Graz", "8010"),
    ("Aarhus", "8000"),
)
_PAGES: Final = ("home", "search", "product", "product", "product", "cart", "help")
_COUPONS: Final = ("WELCOME10", "SPRING", "FREESHIP", "SORRY5")
#: Share of orders without a postcode; the consumer fails at these once.
_WITHOUT_POSTCODE: Final = 0.03
_CUSTOMERS: Final = 400


@dataclass(frozen=True, slots=True)
class ShopEvent:
    """One event of the shop, the content of one message.

    Attributes:
        key: Message key.
        tags: Kind of the event.
        body: JSON.
        customer: The customer, where the event has one.
    """

    key: str
    tags: str
    body: bytes
    customer: str | None = None


class Shop:
    """Generates events.

    Args:
        seed: The same seed gives the same events.
        name: Prefix of every key, so that two shops never use the same key.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._random = random.Random(f"{seed} {name}")
        self._numbers = itertools.count(1)
        self._name = name

    def order(self) -> ShopEvent:
        """Return an order: standard, express or gift."""
        lines = [
            {"product": product, "cents": cents, "count": self._random.choice((1, 1, 1, 2, 3))}
            for product, cents in self._random.sample(_PRODUCTS, self._random.randint(1, 4))
        ]
        city, postcode = self._random.choice(_CITIES)
        is_known = self._random.random() >= _WITHOUT_POSTCODE
        (kind,) = self._random.choices(("standard", "express", "gift"), (75, 17, 8))
        return self._event(
            kind,
            customer=self._customer(),
            lines=lines,
            total_cents=sum(int(line["cents"]) * int(line["count"]) for line in lines),
            city=city,
            postcode=postcode if is_known else None,
        )

    def payment(self) -> ShopEvent:
        """Return a payment."""
        (how,) = self._random.choices(("card", "transfer", "wallet"), (6, 1, 3))
        return self._event(
            how, customer=self._customer(), cents=self._random.randint(590, 30_000), currency="EUR"
        )

    def click(self) -> ShopEvent:
        """Return a page view."""
        page = self._random.choice(_PAGES)
        product = self._random.choice(_PRODUCTS)[0] if page == "product" else None
        return self._event(page, customer=self._customer(), page=page, product=product)

    def stock_count(self) -> ShopEvent:
        """Return the count of one product in the warehouse."""
        product, _ = self._random.choice(_PRODUCTS)
        shelf = f"{self._random.choice('ABCDEF')}{self._random.randint(1, 40)}"
        return self._event(
            "count", product=product, shelf=shelf, pieces=self._random.randint(0, 80)
        )

    def reading(self) -> ShopEvent:
        """Return a temperature reading of a coffee machine."""
        machine = f"machine-{self._random.randint(1, 24):02}"
        celsius = round(self._random.gauss(92.5, 1.2), 1)
        return self._event("hot" if celsius > 95 else "ok", machine=machine, celsius=celsius)

    def reminder(self) -> ShopEvent:
        """Return a reminder about a full cart."""
        return self._event("cart", customer=self._customer(), items=self._random.randint(1, 5))

    def coupon(self) -> ShopEvent:
        """Return the use of a coupon."""
        coupon = self._random.choice(_COUPONS)
        return self._event(coupon.lower(), customer=self._customer(), coupon=coupon)

    def log_line(self) -> ShopEvent:
        """Return a line of the web server's access log."""
        (status,) = self._random.choices((200, 304, 404, 500), (90, 6, 3, 1))
        ms = round(self._random.lognormvariate(3, 0.6))
        return self._event(f"http-{status}", path=f"/{self._random.choice(_PAGES)}", took_ms=ms)

    def happens(self, share: float) -> bool:
        """Return True with this probability."""
        return self._random.random() < share

    def between(self, least: float, most: float) -> float:
        """Return a random number from this range."""
        return self._random.uniform(least, most)

    def _customer(self) -> str:
        # A few customers cause most of the events.
        return f"customer-{int(self._random.paretovariate(1.2) * 7) % _CUSTOMERS}"

    def _event(self, tags: str, *, customer: str | None = None, **facts: Any) -> ShopEvent:
        key = f"{self._name}-{next(self._numbers)}"
        content: dict[str, Any] = {"id": key, "kind": tags}
        if customer is not None:
            content["customer"] = customer
        body = json.dumps(content | facts, separators=(",", ":")).encode()
        return ShopEvent(key, tags, body, customer)
