"""A message template: converts values to messages and back.

python examples/template.py

It needs the extra `cli`, for the tables of rich.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table

import downrange as mq

TOPIC = "orders"
console = Console(width=100)


@dataclass
class Order:
    """An order."""

    id: int
    amount: float
    paid_at: datetime | None = None


class Celsius(float):
    """A type with its own converter."""


class CelsiusConverter:
    """A custom converter: writes a temperature as text, such as 21.5C."""

    def can_encode(self, payload: object) -> bool:
        """Return whether it is a temperature."""
        return isinstance(payload, Celsius)

    def encode(self, payload: Celsius) -> tuple[bytes, str]:
        """Encode a temperature."""
        return f"{payload}C".encode(), "text/x-celsius"

    def can_decode(self, kind: Any) -> bool:
        """Return whether a temperature is requested."""
        return kind is Celsius

    def decode(self, body: bytes, kind: Any) -> Celsius:
        """Decode a temperature."""
        return Celsius(body.removesuffix(b"C"))


def send(name_server: str) -> None:
    """Send values of several types."""
    with mq.Producer(name_server, group="shop") as producer:
        template = mq.MessageTemplate(producer, converters=[CelsiusConverter()])
        paid = Order(7, 12.5, paid_at=datetime(2024, 2, 29, 12, tzinfo=UTC))
        template.convert_and_send(f"{TOPIC}:paid", paid, keys="o-7")
        template.convert_and_send(f"{TOPIC}:note", "text stays text")
        template.convert_and_send(f"{TOPIC}:temperature", Celsius(21.5))
        template.convert_and_send_ordered(f"{TOPIC}:step", {"step": 1}, "customer-7")
        template.convert_and_submit(f"{TOPIC}:step", [1, 2, 3]).result()
        receipt = template.convert_and_send_batch(f"{TOPIC}:new", (Order(n, 1.0) for n in range(3)))
        console.print(f"{len(receipt)} orders in {receipt.request_count} request")
        try:
            template.convert_and_send(TOPIC, object())
        except mq.OptionError as error:
            console.print(f"refused: {error}\n")


async def send_async(name_server: str) -> None:
    """Do the same with asyncio."""
    async with mq.AsyncProducer(name_server, group="shop") as producer:
        template = mq.AsyncMessageTemplate(producer, default_topic=TOPIC)
        await template.convert_and_send(":paid", Order(8, 3.0), keys="o-8")


def receive(name_server: str) -> None:
    """Read all messages and print their values."""
    types: dict[str | None, type] = {"paid": Order, "new": Order, "temperature": Celsius}
    table = Table(title="received", title_justify="left")
    for column in ("tag", "content type", "value"):
        table.add_column(column)
    with mq.PullConsumer(name_server, group="audit") as consumer:
        converters = mq.Converters([CelsiusConverter()])
        consumer.assign(TOPIC, start="earliest")
        count = 0
        while count < 9:
            for message in consumer.poll(timeout=5.0):
                value = converters.receive(message, types.get(message.tags))
                table.add_row(message.tags, message.properties["contentType"], repr(value))
                count += 1
    console.print(table)


def main() -> None:
    with mq.Cluster() as cluster:
        send(cluster.name_server)
        asyncio.run(send_async(cluster.name_server))
        receive(cluster.name_server)


if __name__ == "__main__":
    main()
