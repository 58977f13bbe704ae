"""Namespaces. The table holds the results of Java's `NamespaceUtil` for the same names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.client.flows.names import (
    namespace_in_use,
    namespace_of_endpoint,
    with_namespace,
    without_namespace,
)
from downrange.wire.system_names import (
    DEAD_LETTER_PREFIX,
    RETRY_PREFIX,
    is_client_system_topic,
)

#: Name -> with and without the namespace "ns", computed by Java classes of 5.5.0. The classes of
#: 4.9.4 give the same results, except for CHECKPOINT_TOPIC, which is new in 5.x.
WRAPPED = {
    "orders": ("ns%orders", "orders"),
    "ns%orders": ("ns%orders", "orders"),
    "other%orders": ("ns%other%orders", "other%orders"),
    "%orders": ("ns%%orders", "%orders"),
    "ns": ("ns%ns", "ns"),
    "nsx%orders": ("ns%nsx%orders", "nsx%orders"),
    "ns%": ("ns%", ""),
    "ns%%": ("ns%%", "%"),
    "": ("", ""),
    "%RETRY%g": ("%RETRY%ns%g", "%RETRY%g"),
    "%RETRY%ns%g": ("%RETRY%ns%g", "%RETRY%g"),
    "%RETRY%": ("%RETRY%ns%", "%RETRY%"),
    "%DLQ%g": ("%DLQ%ns%g", "%DLQ%g"),
    "%DLQ%ns%g": ("%DLQ%ns%g", "%DLQ%g"),
    "%RETRY%%DLQ%g": ("%RETRY%ns%%DLQ%g", "%RETRY%%DLQ%g"),
    "ns%%RETRY%g": ("ns%%RETRY%g", "%RETRY%g"),
    "%LMQ%x": ("ns%%LMQ%x", "%LMQ%x"),
    # System names stay, but not behind a prefix; groups of the tools get the namespace.
    "TBW102": ("TBW102", "TBW102"),
    "RMQ_SYS_TRACE_TOPIC": ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
    "CHECKPOINT_TOPIC": ("CHECKPOINT_TOPIC", "CHECKPOINT_TOPIC"),
    "rmq_sys_x": ("rmq_sys_x", "rmq_sys_x"),
    "ns%TBW102": ("ns%TBW102", "TBW102"),
    "CID_RMQ_SYS_x": ("CID_RMQ_SYS_x", "CID_RMQ_SYS_x"),
    "%RETRY%CID_RMQ_SYS_x": ("%RETRY%ns%CID_RMQ_SYS_x", "%RETRY%CID_RMQ_SYS_x"),
    "%DLQ%rmq_sys_x": ("%DLQ%ns%rmq_sys_x", "%DLQ%rmq_sys_x"),
    "CID_ONSAPI_OWNER": ("ns%CID_ONSAPI_OWNER", "CID_ONSAPI_OWNER"),
    "TOOLS_CONSUMER": ("ns%TOOLS_CONSUMER", "TOOLS_CONSUMER"),
    "CLIENT_INNER_PRODUCER": ("ns%CLIENT_INNER_PRODUCER", "CLIENT_INNER_PRODUCER"),
    "DefaultCluster_REPLY_TOPIC": ("ns%DefaultCluster_REPLY_TOPIC", "DefaultCluster_REPLY_TOPIC"),
}
user_names = st.text("abAZ09_-|%", min_size=1).filter(lambda name: not is_client_system_topic(name))


@pytest.mark.parametrize("name", WRAPPED)
def test_a_namespace_is_put_on_as_java_does(name: str) -> None:
    assert with_namespace(name, "ns") == WRAPPED[name][0]


@pytest.mark.parametrize("name", WRAPPED)
def test_a_namespace_is_taken_off_as_java_does(name: str) -> None:
    assert without_namespace(name, "ns") == WRAPPED[name][1]


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.parametrize("namespace", [None, ""])
def test_without_a_namespace_names_stay(name: str, namespace: str | None) -> None:
    assert with_namespace(name, namespace) == name
    assert without_namespace(name, namespace) == name


@given(user_names)
def test_a_namespace_is_put_on_once(name: str) -> None:
    wrapped = with_namespace(name, "ns")
    assert with_namespace(wrapped, "ns") == wrapped


@given(st.sampled_from(["", RETRY_PREFIX, DEAD_LETTER_PREFIX]), st.text("abAZ09_-|", min_size=1))
def test_a_user_gets_back_the_name_that_was_given(prefix: str, name: str) -> None:
    assert without_namespace(with_namespace(prefix + name, "ns"), "ns") == prefix + name


@pytest.mark.parametrize(
    ("address", "namespace"),
    [
        ("http://MQ_INST_1_2.host:80", "MQ_INST_1_2"),
        ("https://MQ_INST_1_2.host", "MQ_INST_1_2"),
        ("MQ_INST_1_2.host:80;MQ_INST_1_3.host:80", "MQ_INST_1_2"),
        ("MQ_INST_1_b2_c.h:1", "MQ_INST_1_b2_c"),
        ("MQ_INST_1.x:9", None),
        ("mq_inst_1_2.host:80", None),
        ("MQ_INST_1_2:9876", None),
        ("aMQ_INST_1_2.h:80", None),
        ("MQ_INST_a-b_c.h:80", None),
        ("MQ_INST__c.h:80", None),
        ("127.0.0.1:9876", None),
    ],
)
def test_the_host_of_an_instance_names_a_namespace(address: str, namespace: str | None) -> None:
    assert namespace_of_endpoint(address) == namespace


def test_a_given_namespace_comes_before_that_of_the_first_address() -> None:
    addresses = ["MQ_INST_1_2.host:80", "MQ_INST_1_3.host:80"]
    assert namespace_in_use(None, addresses) == "MQ_INST_1_2"
    assert namespace_in_use("ns", addresses) == "ns"
    assert namespace_in_use(None, ["127.0.0.1:9876"]) is None
    assert namespace_in_use(None, []) is None
