from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from downrange.client.flows.admin.doctor import Finding, check_network, failed_findings
from downrange.errors import (
    CallTimeout,
    CheckFailed,
    ConnectFailed,
    ConnectionLost,
    HostNotFound,
    MalformedFrame,
    RocketMQError,
    TlsFailed,
)
from downrange.options import Credentials
from downrange.wire.bodies import BrokerReplicas, ClusterBody, RouteBody
from downrange.wire.codes import RequestCode, ResponseCode
from tests.unit.client.flows.fake_servers import NAME_SERVER, FakeServers, refusal, reply, route

if TYPE_CHECKING:
    from downrange.wire.command import Command

CLUSTER = RequestCode.GET_BROKER_CLUSTER_INFO
HEARTBEAT = RequestCode.HEART_BEAT


def _cluster(**brokers: str | dict[int, str]) -> ClusterBody:
    replicas = {
        name: addresses if isinstance(addresses, dict) else {0: addresses}
        for name, addresses in brokers.items()
    }
    return ClusterBody(
        broker_addr_table={
            name: BrokerReplicas(cluster="c", broker_name=name, broker_addrs=addresses)
            for name, addresses in replicas.items()
        },
        cluster_addr_table={"c": list(brokers)},
    )


def _servers(broker: Command | RocketMQError | None = None, address: str = "a:1") -> FakeServers:
    """Return servers: a name server that knows broker a, and that broker."""
    servers = FakeServers()
    servers.answer(NAME_SERVER, CLUSTER, reply(body=_cluster(a=address)))
    servers.answer(address, HEARTBEAT, broker or reply())
    return servers


def _check(servers: FakeServers, topic: str | None = None) -> list[Finding]:
    return list(servers.run(check_network(servers.core, topic=topic)))


def _failed(servers: FakeServers, topic: str | None = None) -> Finding:
    (failed,) = [finding for finding in _check(servers, topic) if not finding.is_ok]
    return failed


def _step(finding: Finding) -> str:
    assert finding.next_step is not None
    return finding.next_step


def test_a_healthy_cluster_has_every_step_in_order() -> None:
    findings = _check(_servers())
    assert all(finding.is_ok for finding in findings)
    assert [(finding.target, finding.name) for finding in findings] == [
        ("name server ns:9876", "dns"),
        ("name server ns:9876", "tcp"),
        ("name server ns:9876", "answer"),
        ("name server ns:9876", "brokers"),
        ("broker a a:1", "dns"),
        ("broker a a:1", "tcp"),
        ("broker a a:1", "answer"),
    ]
    failed_findings(findings)


def test_an_ip_address_needs_no_name_service() -> None:
    findings = _check(_servers(address="10.0.0.9:10911"))
    assert "dns" not in [each.name for each in findings if each.target.startswith("broker")]


def test_every_server_is_called_once() -> None:
    servers = _servers()
    _check(servers)
    assert [(address, command.code) for address, command in servers.calls] == [
        (NAME_SERVER, CLUSTER),
        ("a:1", HEARTBEAT),
    ]


def test_a_client_without_an_address_gets_one_finding() -> None:
    servers = _servers()
    servers.core.name_servers.replace([])
    finding = _failed(servers)
    assert (finding.name, servers.calls) == ("address", [])
    assert "127.0.0.1:9876" in _step(finding)


@pytest.mark.parametrize(
    ("error", "steps", "words"),
    [
        (HostNotFound(NAME_SERVER, "name not found"), ["dns"], "host name"),
        (ConnectFailed(NAME_SERVER, "connection refused"), ["dns", "tcp"], "no server listens"),
        (ConnectFailed(NAME_SERVER, "no answer within 3 s"), ["dns", "tcp"], "firewalls"),
        (TlsFailed(NAME_SERVER, "not trusted; name it"), ["dns", "tcp", "tls"], "name it"),
        (CallTimeout(NAME_SERVER, 3), ["dns", "tcp", "answer"], "more time"),
        (ConnectionLost(NAME_SERVER, "closed"), ["dns", "tcp", "answer"], "with TLS"),
        (MalformedFrame("length", "odd"), ["dns", "tcp", "answer"], "gRPC"),
    ],
)
def test_a_name_server_is_followed_to_the_step_that_fails(
    error: RocketMQError, steps: list[str], words: str
) -> None:
    servers = _servers()
    servers.answer(NAME_SERVER, CLUSTER, error)
    findings = _check(servers, "orders")
    assert [finding.name for finding in findings] == steps
    assert [finding.is_ok for finding in findings] == [True] * (len(steps) - 1) + [False]
    assert words in _step(findings[-1])


def test_text_of_a_tls_failure_ends_where_the_next_step_begins() -> None:
    servers = _servers(TlsFailed("a:1", "its certificate is not trusted; name its authority"))
    failed = _failed(servers)
    assert (failed.text, failed.next_step) == (
        "its certificate is not trusted",
        "name its authority",
    )


def test_a_broker_in_the_place_of_a_name_server_is_recognized() -> None:
    servers = _servers()
    servers.answer(NAME_SERVER, CLUSTER, refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    failed = _failed(servers)
    assert failed.name == "answer"
    assert "not a name server" in _step(failed)


def test_a_name_server_in_the_place_of_a_broker_is_recognized() -> None:
    failed = _failed(_servers(refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)))
    assert (failed.name, failed.target) == ("answer", "broker a a:1")
    assert "this is not a broker" in _step(failed)


def test_a_server_that_fails_says_why_and_nothing_else_is_known() -> None:
    failed = _failed(_servers(refusal(ResponseCode.SYSTEM_ERROR, "broken")))
    assert (failed.name, failed.text) == ("answer", "refused with code 1: broken")
    assert failed.next_step is None


def test_a_server_that_does_not_say_why_is_quoted_as_such() -> None:
    failed = _failed(_servers(refusal(ResponseCode.SYSTEM_ERROR, "")))
    assert failed.text == "refused with code 1: no reason given"


def test_a_broker_that_requires_credentials_has_that_as_next_step() -> None:
    failed = _failed(_servers(refusal(ResponseCode.NO_PERMISSION)))
    assert (failed.name, failed.target) == ("access", "broker a a:1")
    assert "give an access key" in _step(failed)


def test_wrong_credentials_are_named_without_their_secret() -> None:
    servers = _servers(refusal(ResponseCode.NO_PERMISSION))
    servers.core.credentials = Credentials("shop", "hidden")
    servers.core.is_plain = False
    failed = _failed(servers)
    assert "shop" in _step(failed)
    assert "hidden" not in str(failed)


def test_credentials_that_are_taken_are_a_finding_of_each_server() -> None:
    servers = _servers()
    servers.core.credentials = Credentials("shop", "hidden")
    servers.core.is_plain = False
    granted = [finding.target for finding in _check(servers) if finding.name == "access"]
    assert granted == ["name server ns:9876", "broker a a:1"]
    assert all("Signature" in command.fields for _, command in servers.calls)


def test_a_broker_that_advertises_its_own_loopback_address_gets_the_classic_hint() -> None:
    address = "127.0.0.1:10911"
    servers = _servers(ConnectFailed(address, "connection refused"), address)
    step = _step(_failed(servers))
    assert step.startswith("127.0.0.1 is this machine")
    assert "brokerIP1" in step
    assert "advertised_host" in step


@pytest.mark.parametrize("near", ["localhost:9876", "127.0.0.1:9876", "[::1]:9876"])
def test_a_loopback_address_is_fine_where_the_name_server_has_one_too(near: str) -> None:
    address = "127.0.0.1:10911"
    servers = _servers(ConnectFailed(address, "connection refused"), address)
    servers.core.name_servers.replace([near])
    servers.answer(near, CLUSTER, reply(body=_cluster(a=address)))
    step = _step(_failed(servers))
    assert step.startswith("no server listens")
    assert "is this machine" not in step


def test_a_broker_at_an_address_inside_a_container_should_advertise_another() -> None:
    address = "172.17.0.2:10911"
    servers = _servers(ConnectFailed(address, "no answer within 3 s"), address)
    step = _step(_failed(servers))
    assert "firewalls" in step
    assert "brokerIP1" in step


def test_a_broker_without_a_master_is_not_called() -> None:
    servers = _servers()
    servers.answer(NAME_SERVER, CLUSTER, reply(body=_cluster(a={1: "a:2"})))
    failed = _failed(servers)
    assert (failed.name, failed.target) == ("master", "broker a")
    assert servers.asked(HEARTBEAT) == []


def test_a_name_server_that_knows_no_broker_fails() -> None:
    servers = _servers()
    servers.answer(NAME_SERVER, CLUSTER, reply(body=_cluster()))
    failed = _failed(servers)
    assert (failed.name, failed.text) == ("brokers", "knows no broker")


def test_name_servers_that_disagree_are_reported() -> None:
    servers = _servers()
    servers.core.name_servers.replace([NAME_SERVER, "ns:9877"])
    servers.answer("ns:9877", CLUSTER, reply(body=_cluster(a="a:1", b="b:1")))
    servers.answer("b:1", HEARTBEAT, reply())
    failed = _failed(servers)
    assert failed.target == "name server ns:9876"
    assert failed.text == "knows a, but not b, which another name server knows"


def test_one_dead_name_server_does_not_hide_the_rest() -> None:
    servers = _servers()
    servers.core.name_servers.replace([NAME_SERVER, "ns:9877"])
    findings = _check(servers)
    assert {each.target for each in findings if not each.is_ok} == {"name server ns:9877"}
    assert "broker a a:1" in {finding.target for finding in findings}


def test_a_topic_is_looked_for_with_its_namespace() -> None:
    servers = FakeServers(namespace="shop")
    servers.answer(NAME_SERVER, CLUSTER, reply(body=_cluster(a="a:1")))
    servers.answer("a:1", HEARTBEAT, reply())
    servers.answer_route("shop%orders", route(["a"], queues=3))
    finding = _check(servers, "orders")[-1]
    assert (finding.name, finding.target, finding.is_ok) == ("route", "topic orders", True)
    assert finding.text == "3 queues to write to on a"


@pytest.mark.parametrize(
    ("body", "words"),
    [(None, "topic create orders"), (route(["a"], perm=4), "topic show orders")],
)
def test_a_topic_that_cannot_be_sent_to_fails(body: RouteBody | None, words: str) -> None:
    servers = _servers()
    servers.answer_route("orders", body)
    failed = _failed(servers, "orders")
    assert failed.name == "route"
    assert words in _step(failed)


def test_a_route_that_is_refused_is_a_finding() -> None:
    servers = _servers()
    servers.answer(
        NAME_SERVER, RequestCode.GET_ROUTEINFO_BY_TOPIC, refusal(ResponseCode.SYSTEM_ERROR, "odd")
    )
    failed = _failed(servers, "orders")
    assert failed.name == "route"
    assert "odd" in failed.text


def test_the_error_lists_every_failed_finding_and_survives_a_pickle() -> None:
    servers = _servers(ConnectFailed("a:1", "connection refused"))
    servers.answer_route("orders", None)
    with pytest.raises(CheckFailed) as caught:
        failed_findings(_check(servers, "orders"))
    assert [finding.name for finding in caught.value.findings] == ["tcp", "route"]  # type: ignore[attr-defined]
    text = str(pickle.loads(pickle.dumps(caught.value)))
    assert "1. broker a a:1, tcp: connection refused; no server listens" in text
    assert "2. topic orders, route: it does not exist; create it" in text
