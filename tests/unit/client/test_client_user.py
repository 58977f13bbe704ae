"""Producers, consumers and admins with a shared client or their own."""

from __future__ import annotations

import pickle

import pytest

from downrange import Admin, AsyncProducer, Client, Hooks, OptionError, Producer, PullConsumer


def test_a_producer_that_shares_a_client_refuses_hooks_that_belong_to_the_client() -> None:
    client = Client("127.0.0.1:9876")
    with pytest.raises(OptionError, match="give these hooks to the client"):
        Producer(client, group="shop", hooks=Hooks(before_call=(print,)))
    Producer(client, group="shop", hooks=Hooks(before_send=(print,)))


@pytest.mark.parametrize(
    "thing",
    [
        Client("127.0.0.1:9876"),
        Producer("127.0.0.1:9876", group="shop"),
        AsyncProducer("127.0.0.1:9876", group="shop"),
        PullConsumer("127.0.0.1:9876", group="shop"),
        Admin("127.0.0.1:9876"),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_what_holds_connections_says_that_it_cannot_be_pickled(thing: object) -> None:
    with pytest.raises(TypeError, match="pickle its options"):
        pickle.dumps(thing)
