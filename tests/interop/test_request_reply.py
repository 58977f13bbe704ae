"""Request-reply between Java clients over our broker."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.apache.java_client import JavaError, body_of, message

if TYPE_CHECKING:
    from tests.interop.scene import Scene


def test_requests_are_answered_by_a_replying_consumer(scene: Scene) -> None:
    topic = scene.topic(queues=2)
    asking, answering = scene.producer(), scene.producer()
    scene.consumer(topic, replyProducer=answering)

    def ask(text: bytes) -> bytes:
        return body_of(
            scene.java.call(
                "producer.request",
                name=asking,
                message=message(topic, text),
                timeoutMs=60_000,
                timeout=80.0,
            )
        )

    texts = [f"ping {i}".encode() for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, texts)) == [b"re:" + text for text in texts]


def test_request_without_a_reply_times_out(scene: Scene) -> None:
    topic, asking = scene.topic(), scene.producer()
    with pytest.raises(JavaError, match=r"(?i)timeout"):
        scene.java.call(
            "producer.request", name=asking, message=message(topic, b"ping"), timeoutMs=500
        )
