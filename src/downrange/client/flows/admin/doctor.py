"""A check of the network: every step on the way from a client to each server.

    findings = client.run(check_network(client.core, topic="orders"))

Every server is called once, servers of a kind concurrently. How far that call came shows which
steps succeeded and which one failed; steps after a failed one are unknown and not listed. Nothing
is raised: a failure is a finding.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from downrange.client.flows.effects import CALLS_AT_ONCE, Flow, Gather
from downrange.client.flows.names import with_namespace
from downrange.client.flows.routing.lookup import ask_route
from downrange.client.flows.routing.membership import send_heartbeat
from downrange.client.flows.routing.routes import MASTER, route_of
from downrange.errors import (
    CheckFailed,
    ConnectFailed,
    ConnectionLost,
    HostNotFound,
    NoPermission,
    NotSupported,
    RocketMQError,
    ServerError,
    TlsFailed,
    TransportError,
)
from downrange.wire.bodies import ClusterBody, decode_body
from downrange.wire.codes import RequestCode
from downrange.wire.command import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from downrange.client.flows.client_core import ClientCore
    from downrange.wire.bodies import BrokerReplicas

#: The steps in the order of a call: an address is known, its host name resolves, its port is open,
#: TLS is established, the server answers, and it permits the request; the name server knows the
#: brokers, each broker has a master, the topic has a route. `install` comes before them: which path
#: this program runs (`downrange/native.py`). Then follows what `health_checks` examines.
Step: TypeAlias = Literal[
    "install",
    "address",
    "dns",
    "tcp",
    "tls",
    "answer",
    "access",
    "brokers",
    "master",
    "route",
    "disk",
    "clock",
    "groups",
    "subscriptions",
    "stuck",
    "slow",
    "lag",
    "dead letters",
]

#: The first word of a broker's target.
_BROKER: Final = "broker "
_REFUSED: Final = "connection refused"
_NO_LISTENER: Final = (
    "no server listens there: is the server running, and is this its port? `downrange serve` "
    "starts a cluster here"
)
_FILTERED: Final = "check firewalls and security groups between here and there"
_WRONG_HOST: Final = "correct the host name, or the name service of this machine"
_NOT_ROCKETMQ: Final = (
    "a server that requires TLS ends plain connections, and the gRPC port of a proxy does not "
    "speak this protocol: try with TLS, or the port of the name server, which is usually 9876"
)
_NOT_A_NAME_SERVER: Final = (
    "this is not a name server: give the name server's address, which usually has port 9876, not "
    "a broker's"
)
_NOT_A_BROKER: Final = (
    "this is not a broker, but perhaps a name server. A broker registered this address: configure "
    "the right one, brokerIP1 and listenPort in Apache's broker.conf, advertised_host in ours"
)
_ADVERTISED: Final = (
    "the broker itself registered this address at the name server. If it cannot be reached from "
    "here, configure another one: brokerIP1 in Apache's broker.conf, advertised_host in ours"
)
_OWN_MACHINE: Final = (
    "{host} is this machine, but the name server is on another one. Configure the address that "
    "clients see: brokerIP1 in Apache's broker.conf, advertised_host in ours"
)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One step of the way to a server, or something that was examined there.

    Attributes:
        name: The step.
        target: What was checked, such as "name server 10.0.0.1:9876" or "topic orders".
        is_ok: Whether the step succeeded.
        text: What happened.
        next_step: What to do about it; None when nothing is to be done.
    """

    name: Step
    target: str
    is_ok: bool
    text: str
    next_step: str | None = None

    def __str__(self) -> str:
        step = f"; {self.next_step}" if self.next_step else ""
        return f"{self.target}, {self.name}: {self.text}{step}"


def failed_findings(findings: Iterable[Finding]) -> None:
    """Raise an error if a finding failed.

    Raises:
        CheckFailed: Lists every finding that failed.
    """
    failed = [finding for finding in findings if not finding.is_ok]
    if failed:
        raise CheckFailed(failed)


def check_network(core: ClientCore, *, topic: str | None = None) -> Flow[tuple[Finding, ...]]:
    """Check all name servers, the brokers registered there, and the route of a topic.

    Args:
        core: The client.
        topic: A topic that should have a route, without the namespace.

    Returns:
        The findings, failures included, in the order of the way from here to a queue.
    """
    addresses = core.name_servers.addresses
    if not addresses:
        return (_no_address(),)
    replies: list[_Answer] = yield Gather(
        [_ask_cluster(core, each) for each in addresses], CALLS_AT_ONCE
    )
    findings = [
        finding
        for address, answer in zip(addresses, replies, strict=True)
        for finding in _steps(core, f"name server {address}", address, answer)
    ]
    clusters = {
        address: answer.result
        for address, answer in zip(addresses, replies, strict=True)
        if isinstance(answer.result, ClusterBody)
    }
    brokers = {name: replicas for body in clusters.values() for name, replicas in _brokers_of(body)}
    findings += [_known_brokers(address, body, brokers) for address, body in clusters.items()]
    findings += yield from _check_brokers(core, brokers)
    if topic is not None and clusters:
        findings.append((yield from _check_route(core, topic)))
    return tuple(findings)


def _no_address() -> Finding:
    return Finding(
        name="address",
        target="name server",
        is_ok=False,
        text="no address is known",
        next_step="give one such as 127.0.0.1:9876",
    )


# ---- calls ---------------------------------------------------------------------------------------


class _Answer(msgspec.Struct):
    """The result or the error of a call, and the seconds it took."""

    result: Any
    elapsed: float


def _ask_cluster(core: ClientCore, address: str) -> Flow[_Answer]:
    """Ask one name server which brokers there are."""
    started = core.clock.now()
    deadline = started + core.options.call_timeout
    command = Command(int(RequestCode.GET_BROKER_CLUSTER_INFO))
    result: ClusterBody | RocketMQError
    try:
        reply = yield from core.ask(address, command, deadline)
        result = decode_body(ClusterBody, reply.body)
    except RocketMQError as error:
        result = error
    return _Answer(result, core.clock.now() - started)


def _ask_broker(core: ClientCore, address: str) -> Flow[_Answer]:
    """Send a heartbeat: an access check verifies its sender, but it needs no permission."""
    started = core.clock.now()
    result: RocketMQError | None = None
    try:
        yield from send_heartbeat(core, address)
    except RocketMQError as error:
        result = error
    return _Answer(result, core.clock.now() - started)


# ---- brokers and routes --------------------------------------------------------------------------


def _brokers_of(body: ClusterBody) -> Iterator[tuple[str, BrokerReplicas]]:
    return iter(sorted(body.broker_addr_table.items()))


def _known_brokers(
    address: str, body: ClusterBody, everyone: Mapping[str, BrokerReplicas]
) -> Finding:
    """Return which brokers a name server knows; all name servers should know the same."""
    known = sorted(body.broker_addr_table)
    missing = sorted(everyone.keys() - set(known))
    target = f"name server {address}"
    text = f"knows {', '.join(known)}" if known else "knows no broker"
    if not everyone:
        step = f"start a broker that registers here: `downrange broker --nameserver {address}`"
        return Finding(name="brokers", target=target, is_ok=False, text=text, next_step=step)
    if missing:
        text = f"{text}, but not {', '.join(missing)}, which another name server knows"
        step = f"configure these brokers to register here, too: {', '.join(missing)}"
        return Finding(name="brokers", target=target, is_ok=False, text=text, next_step=step)
    return Finding(name="brokers", target=target, is_ok=True, text=text)


def _check_brokers(core: ClientCore, brokers: Mapping[str, BrokerReplicas]) -> Flow[list[Finding]]:
    """Check the address that the master of each broker advertises."""
    findings: list[Finding] = []
    masters: dict[str, str] = {}
    for name, replicas in sorted(brokers.items()):
        if MASTER in replicas.broker_addrs:
            masters[name] = replicas.broker_addrs[MASTER]
            continue
        text = (
            f"has no master, only replicas {sorted(replicas.broker_addrs)}: it stores no messages"
        )
        step = "start its master again"
        findings.append(
            Finding(name="master", target=f"broker {name}", is_ok=False, text=text, next_step=step)
        )
    asked = [_ask_broker(core, address) for address in masters.values()]
    answers: list[_Answer] = (yield Gather(asked, CALLS_AT_ONCE)) if asked else []
    for (name, address), answer in zip(masters.items(), answers, strict=True):
        steps = _steps(core, f"{_BROKER}{name} {address}", address, answer)
        findings += [_with_hint(core, finding, address) for finding in steps]
    return findings


def _with_hint(core: ClientCore, finding: Finding, address: str) -> Finding:
    """Add the usual reason why a broker cannot be reached although its name server can."""
    if finding.is_ok or finding.name not in ("dns", "tcp"):
        return finding
    host = _host_of(address)
    is_elsewhere = not any(_is_own(_host_of(each)) for each in core.name_servers.addresses)
    if _is_own(host) and is_elsewhere:
        return msgspec.structs.replace(finding, next_step=_OWN_MACHINE.format(host=host))
    usual = f"{finding.next_step}. Or " if finding.next_step else ""
    return msgspec.structs.replace(finding, next_step=f"{usual}{_ADVERTISED}")


def _check_route(core: ClientCore, topic: str) -> Flow[Finding]:
    target = f"topic {topic}"
    deadline = core.clock.now() + core.options.call_timeout
    try:
        body = yield from ask_route(core, with_namespace(topic, core.options.namespace), deadline)
    except RocketMQError as error:
        return Finding(name="route", target=target, is_ok=False, text=str(error))
    if body is None:
        text, step = "it does not exist", f"create it with `downrange topic create {topic}`"
        return Finding(name="route", target=target, is_ok=False, text=text, next_step=step)
    route = route_of(topic, body)
    if not route.writable:
        text = f"{len(route.readable)} queues to read, none to write to"
        step = f"check its permission with `downrange topic show {topic}`, and the masters above"
        return Finding(name="route", target=target, is_ok=False, text=text, next_step=step)
    brokers = ", ".join(sorted({queue.broker for queue in route.targets}))
    text = f"{len(route.writable)} queues to write to on {brokers}"
    return Finding(name="route", target=target, is_ok=True, text=text)


# ---- from the end of a call to its steps ---------------------------------------------------------


def _steps(core: ClientCore, target: str, address: str, answer: _Answer) -> Iterator[Finding]:
    """Yield how far a call came: the steps that succeeded, then the one that failed."""
    error = answer.result if isinstance(answer.result, RocketMQError) else None
    failed = None if error is None else _failed_step(error)
    if failed != "dns" and not _is_ip(_host_of(address)):
        yield Finding(name="dns", target=target, is_ok=True, text="the host name resolves")
    if failed not in ("dns", "tcp"):
        yield Finding(name="tcp", target=target, is_ok=True, text="connected")
    if failed in (None, "access"):
        text = f"answered in {answer.elapsed * 1000:.0f} ms"
        yield Finding(name="answer", target=target, is_ok=True, text=text)
    if error is not None and failed is not None:
        yield _failure(core, failed, target, error)
    elif core.credentials is not None:
        text = f"accepted a request signed with {core.credentials.access_key}"
        yield Finding(name="access", target=target, is_ok=True, text=text)


def _failed_step(error: RocketMQError) -> Step:
    if isinstance(error, HostNotFound):
        return "dns"
    if isinstance(error, TlsFailed):
        return "tls"
    if isinstance(error, ConnectFailed):
        return "tcp"
    return "access" if isinstance(error, NoPermission) else "answer"


def _failure(core: ClientCore, step: Step, target: str, error: RocketMQError) -> Finding:
    text, next_step = _text_of(error), ""
    if step == "tls":
        text, _, next_step = text.partition("; ")  # the error contains the next step
    elif step == "dns":
        next_step = _WRONG_HOST
    elif step == "tcp":
        next_step = _NO_LISTENER if _REFUSED in text else _FILTERED
    elif step == "access":
        next_step = _access_step(core)
    elif isinstance(error, NotSupported):
        is_broker = target.startswith(_BROKER)
        next_step = _NOT_A_BROKER if is_broker else _NOT_A_NAME_SERVER
    elif isinstance(error, ConnectionLost) or not isinstance(error, TransportError | ServerError):
        next_step = _NOT_ROCKETMQ
    elif isinstance(error, TransportError):
        next_step = f"give it more time. Or {_NOT_ROCKETMQ}"
    return Finding(name=step, target=target, is_ok=False, text=text, next_step=next_step or None)


def _text_of(error: RocketMQError) -> str:
    if isinstance(error, TransportError):
        return error.problem
    if isinstance(error, ServerError):
        return f"refused with code {error.code}: {error.remark or 'no reason given'}"
    return str(error)


def _access_step(core: ClientCore) -> str:
    if core.credentials is None:
        return "it requires signed requests: give an access key and its secret key"
    return f"check the access key {core.credentials.access_key}, its secret key and its rights"


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_own(host: str) -> bool:
    """Return whether a host name or address always means the local machine."""
    return host == "localhost" or (_is_ip(host) and ipaddress.ip_address(host).is_loopback)
