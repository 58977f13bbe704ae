"""Recall: which broker is asked, and what is refused before."""

from __future__ import annotations

from typing import Any

import pytest

from downrange.client.flows.producing.recall import recall
from downrange.client.flows.producing.trace_records import RecallTrace
from downrange.errors import (
    NotSupported,
    OptionError,
    RouteNotFound,
    ServerError,
)
from downrange.options import ProducerOptions
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import RecallReply, RecallRequest
from downrange.wire.recall_handles import RecallHandle
from tests.unit.client.flows.fake_servers import refusal, reply, route
from tests.unit.client.flows.producer_world import ProducerWorld

RECALL = RequestCode.RECALL_MESSAGE


def asking(**settings: Any) -> ProducerWorld:
    """Return a producer with "orders" on brokers "a" and "b", which support recall."""
    here = ProducerWorld(**settings)
    here.servers.answer_route("orders", route(["a", "b"]))
    for address in ("a:1", "b:1"):
        here.servers.answer(address, RECALL, reply(RecallReply("ID1")))
    return here


def handle(topic: str = "orders", broker: str = "b") -> str:
    return str(RecallHandle(topic, broker, 5000, "ID1"))


def test_the_broker_that_the_handle_names_is_asked() -> None:
    here = asking()
    assert here.run(recall(here.producer, handle())) == "ID1"
    assert here.servers.asked(RECALL) == ["b:1"]
    header = RecallRequest.from_fields(here.servers.fields(RECALL))
    assert (header.topic, header.recall_handle) == ("orders", handle())
    assert (header.producer_group, header.broker_name) == ("pay", "b")


def test_a_broker_that_is_known_is_asked_without_a_word_to_the_name_server() -> None:
    here = asking()
    here.run(recall(here.producer, handle()))
    here.servers.calls.clear()
    here.run(recall(here.producer, handle()))
    assert here.codes() == [RECALL]


def test_any_broker_of_the_topic_is_asked_when_the_one_is_not_known() -> None:
    here = asking()
    here.run(recall(here.producer, handle(broker="gone")))
    assert here.servers.asked(RECALL) == ["a:1"]


def test_a_topic_without_a_broker_is_an_error() -> None:
    here = asking()
    with pytest.raises(RouteNotFound, match="no broker can be asked"):
        here.run(recall(here.producer, handle("nowhere")))


@pytest.mark.parametrize("nothing", [None, ""])
def test_no_handle_is_refused_with_the_reason(nothing: str | None) -> None:
    here = asking()
    with pytest.raises(OptionError, match=r"from 5\.3\.2 on"):
        recall(here.producer, nothing)


def test_a_text_that_is_no_handle_is_refused() -> None:
    here = asking()
    with pytest.raises(OptionError):
        recall(here.producer, "no handle")


@pytest.mark.parametrize("topic", ["%RETRY%pay", "%DLQ%pay"])
def test_messages_of_retry_and_dead_letter_topics_are_not_taken_back(topic: str) -> None:
    here = asking()
    with pytest.raises(OptionError, match="cannot be recalled"):
        recall(here.producer, handle(topic))
    assert here.servers.calls == []


def test_an_old_broker_is_named_as_such() -> None:
    here = asking()
    here.servers.answer("b:1", RECALL, refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    with pytest.raises(NotSupported, match=r"brokers from 5\.3\.2 on do") as caught:
        here.run(recall(here.producer, handle()))
    assert (caught.value.address, caught.value.topic) == ("b:1", "orders")


def test_a_refusal_says_what_the_broker_says() -> None:
    here = asking()
    here.servers.answer("b:1", RECALL, refusal(ResponseCode.ILLEGAL_OPERATION, "too late"))
    with pytest.raises(ServerError, match="too late") as caught:
        here.run(recall(here.producer, handle()))
    assert caught.value.code == 604


@pytest.mark.parametrize("is_success", [True, False])
def test_a_recall_is_traced_whatever_became_of_it(is_success: bool) -> None:
    here = asking(options=ProducerOptions(trace=True))
    if not is_success:
        here.servers.answer("b:1", RECALL, refusal(ResponseCode.ILLEGAL_OPERATION))
        with pytest.raises(ServerError):
            here.run(recall(here.producer, handle()))
    else:
        here.run(recall(here.producer, handle()))
    assert here.producer.trace is not None
    ((traced, *_),) = here.producer.trace._waiting
    assert isinstance(traced, RecallTrace)
    assert (traced.message_id, traced.topic, traced.group) == ("ID1", "orders", "pay")
    assert traced.is_success is is_success


def test_a_recall_in_a_namespace_uses_the_name_in_the_handle() -> None:
    here = asking(namespace="ns", options=ProducerOptions(trace=True))
    here.servers.answer_route("ns%orders", route(["b"]))
    here.run(recall(here.producer, handle("ns%orders"), 1.0))
    assert here.servers.fields(RECALL)["topic"] == "ns%orders"
    assert here.producer.trace is not None
    ((traced, *_),) = here.producer.trace._waiting
    assert isinstance(traced, RecallTrace)
    assert traced.topic == "orders"
