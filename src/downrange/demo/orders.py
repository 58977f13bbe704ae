"""What a small shop has to say: orders, payments, clicks, stock counts, and so on, as JSON.

A seed makes it the same shop every time. One rule: numbers go up, so a key names one thing.
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
#: One order in so many has no postcode, and whoever packs it has to look it up.
_WITHOUT_POSTCODE: Final = 0.03
_CUSTOMERS: Final = 400


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to tell: what a message carries.

    Attributes:
        key: What to find it by.
        tags: What kind it is.
        body: JSON.
        customer: Whom it concerns, where it concerns one.
    """

    key: str
    tags: str
    body: bytes
    customer: str | None = None


class Shop:
    """Makes up what happens.

    Args:
        seed: The same seed, the same shop.
        name: Begins every key, so that two shops never use the same one.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._chance = random.Random(f"{seed} {name}")
        self._numbers = itertools.count(1)
        self._name = name

    def order(self) -> Note:
        """Somebody orders something; some orders are gifts, some must go out today."""
        lines = [
            {"product": product, "cents": cents, "count": self._chance.choice((1, 1, 1, 2, 3))}
            for product, cents in self._chance.sample(_PRODUCTS, self._chance.randint(1, 4))
        ]
        city, postcode = self._chance.choice(_CITIES)
        is_known = self._chance.random() >= _WITHOUT_POSTCODE
        (kind,) = self._chance.choices(("standard", "express", "gift"), (75, 17, 8))
        return self._note(
            kind,
            customer=self._customer(),
            lines=lines,
            total_cents=sum(int(line["cents"]) * int(line["count"]) for line in lines),
            city=city,
            postcode=postcode if is_known else None,
        )

    def payment(self) -> Note:
        """Somebody pays, or tries to."""
        (how,) = self._chance.choices(("card", "transfer", "wallet"), (6, 1, 3))
        return self._note(
            how, customer=self._customer(), cents=self._chance.randint(590, 30_000), currency="EUR"
        )

    def click(self) -> Note:
        """Somebody looks at a page."""
        page = self._chance.choice(_PAGES)
        product = self._chance.choice(_PRODUCTS)[0] if page == "product" else None
        return self._note(page, customer=self._customer(), page=page, product=product)

    def stock_count(self) -> Note:
        """Tell how many of a product lie in the warehouse."""
        product, _ = self._chance.choice(_PRODUCTS)
        shelf = f"{self._chance.choice('ABCDEF')}{self._chance.randint(1, 40)}"
        return self._note("count", product=product, shelf=shelf, pieces=self._chance.randint(0, 80))

    def reading(self) -> Note:
        """Take a reading of one of the coffee machines in the cafes."""
        machine = f"machine-{self._chance.randint(1, 24):02}"
        celsius = round(self._chance.gauss(92.5, 1.2), 1)
        return self._note("hot" if celsius > 95 else "ok", machine=machine, celsius=celsius)

    def reminder(self) -> Note:
        """Remind somebody of a full cart, later."""
        return self._note("cart", customer=self._customer(), items=self._chance.randint(1, 5))

    def coupon(self) -> Note:
        """Somebody uses a coupon."""
        coupon = self._chance.choice(_COUPONS)
        return self._note(coupon.lower(), customer=self._customer(), coupon=coupon)

    def log_line(self) -> Note:
        """Write down what the web server did."""
        (status,) = self._chance.choices((200, 304, 404, 500), (90, 6, 3, 1))
        ms = round(self._chance.lognormvariate(3, 0.6))
        return self._note(f"http-{status}", path=f"/{self._chance.choice(_PAGES)}", took_ms=ms)

    def happens(self, share: float) -> bool:
        """Whether something happens that does in this share of cases."""
        return self._chance.random() < share

    def between(self, least: float, most: float) -> float:
        """Return a number in between."""
        return self._chance.uniform(least, most)

    def _customer(self) -> str:
        # Some customers come much more often than others.
        return f"customer-{int(self._chance.paretovariate(1.2) * 7) % _CUSTOMERS}"

    def _note(self, tags: str, *, customer: str | None = None, **facts: Any) -> Note:
        key = f"{self._name}-{next(self._numbers)}"
        said: dict[str, Any] = {"id": key, "kind": tags}
        if customer is not None:
            said["customer"] = customer
        body = json.dumps(said | facts, separators=(",", ":")).encode()
        return Note(key, tags, body, customer)
