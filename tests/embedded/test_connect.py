"""Connections, blocking and on both event loops: success, failures and their texts."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import uvloop

from downrange.client.drivers.connect import connect_blocking, open_transport, tls_context
from downrange.errors import ConnectFailed, HostNotFound, MissingExtra, OptionError, TlsFailed
from downrange.options import TLS, Proxy
from downrange.tls import server_context
from tests.embedded.peers import (
    ThreadedServer,
    closed_port,
    echo,
    full_port,
    hang_up,
    keep_silent,
    receive,
)
from tests.embedded.socks import REFUSED, SocksProxy
from tests.support.waiting import wait_until_async
from tests.unit.server.certificates import Authority, make_authority

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

#: Long enough for a busy machine; short where the test expects the timeout.
PATIENT, SHORT = 60.0, 1.0


class Reach(Protocol):
    """Connects, sends a word and returns the answer."""

    def __call__(self, address: str, *, timeout: float = PATIENT, **how: Any) -> bytes: ...


class Collector(asyncio.Protocol):
    """Collects the answer to a word, and knows when the connection is gone."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.is_gone = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.answer.set_result(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_gone.set()


def _reach_blocking(address: str, *, timeout: float = PATIENT, **how: Any) -> bytes:
    with connect_blocking(address, timeout=timeout, **how) as opened:
        assert opened.gettimeout() is None
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        opened.sendall(b"word")
        return receive(opened, 4)


def _reach_on(run: Callable[[Coroutine[Any, Any, bytes]], bytes]) -> Reach:
    def reach(address: str, *, timeout: float = PATIENT, **how: Any) -> bytes:
        async def play() -> bytes:
            loop = asyncio.get_running_loop()
            transport, protocol = await open_transport(
                loop, Collector, address, timeout=timeout, **how
            )
            opened = transport.get_extra_info("socket")
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            transport.write(b"word")
            async with asyncio.timeout(PATIENT):
                answer = await protocol.answer
                transport.close()
                await protocol.is_gone.wait()  # with TLS the server has its part in a close
            return answer

        return run(play())

    return reach


@pytest.fixture(params=["blocking", "asyncio", "uvloop"])
def reach(request: pytest.FixtureRequest) -> Reach:
    ways = {
        "blocking": _reach_blocking,
        "asyncio": _reach_on(asyncio.run),
        "uvloop": _reach_on(uvloop.run),
    }
    return ways[request.param]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def server_tls(authority: Authority) -> ssl.SSLContext:
    return server_context(*authority.issue("server"))


class Names:
    """A fake resolver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def answer(self, *ports: int) -> None:
        """Resolve every name to 127.0.0.1 with these ports."""
        places = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports
        ]
        self.do(lambda *_, **__: places)

    def do(self, resolve: Callable[..., Any]) -> None:
        """Resolve names with a function."""
        self._monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


# ---- TCP ----


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_is_reached(reach: Reach, host: str) -> None:
    with ThreadedServer(echo) as server:
        assert reach(f"{host}:{server.port}") == b"word"


def test_a_server_is_reached_over_ipv6(reach: Reach) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        serving = threading.Thread(target=lambda: _serve_one(listener))
        serving.start()
        assert reach(f"[::1]:{listener.getsockname()[1]}") == b"word"
        serving.join(PATIENT)


def _serve_one(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        echo(connection)


def test_a_closed_port_is_reported_at_once(reach: Reach) -> None:
    address = f"127.0.0.1:{closed_port()}"
    started = time.monotonic()
    with pytest.raises(ConnectFailed) as caught:
        reach(address)
    assert str(caught.value) == f"{address}: connection refused"
    assert time.monotonic() - started < PATIENT / 2


def test_a_port_that_does_not_answer_times_out(reach: Reach) -> None:
    with full_port() as port, pytest.raises(ConnectFailed) as caught:
        reach(f"127.0.0.1:{port}", timeout=SHORT)
    assert str(caught.value) == f"127.0.0.1:{port}: no answer within 1 s"


def test_the_next_address_is_tried_when_one_refuses(reach: Reach, names: Names) -> None:
    with ThreadedServer(echo) as server:
        names.answer(closed_port(), server.port)
        assert reach("broker:10911") == b"word"


def test_an_address_that_does_not_answer_leaves_time_for_the_next(
    reach: Reach, names: Names
) -> None:
    with ThreadedServer(echo) as server, full_port() as port:
        names.answer(port, server.port)
        assert reach("broker:10911", timeout=4.0) == b"word"


def test_each_reason_is_reported_when_all_addresses_fail(reach: Reach, names: Names) -> None:
    with full_port() as port:
        names.answer(closed_port(), port)
        with pytest.raises(ConnectFailed, match="refused, no answer within 1 s"):
            reach("broker:10911", timeout=SHORT)


def test_an_address_family_that_this_machine_lacks_is_skipped(reach: Reach, names: Names) -> None:
    with ThreadedServer(echo) as server:
        here = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))
        foreign = (socket.AF_INET, socket.SOCK_STREAM, 255, "", ("127.0.0.1", server.port))
        names.do(lambda *_, **__: [foreign, here])
        assert reach("broker:10911") == b"word"
        names.do(lambda *_, **__: [foreign])
        with pytest.raises(ConnectFailed, match="protocol not supported"):
            reach("broker:10911")


# ---- names ----


def test_a_name_without_an_address_is_reported(reach: Reach, names: Names) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    names.do(fail)
    with pytest.raises(HostNotFound) as caught:
        reach("no-such-host:9876")
    assert str(caught.value) == "no-such-host:9876: name not found"


def test_an_invalid_name_is_reported(reach: Reach) -> None:
    with pytest.raises(HostNotFound):
        reach("a..b:9876")


def test_an_address_with_too_high_numbers_is_reported(reach: Reach) -> None:
    with pytest.raises(HostNotFound):
        reach("10.0.0.256:9876")


def test_a_name_service_that_hangs_times_out(reach: Reach, names: Names) -> None:
    let_go = threading.Event()
    names.do(lambda *_, **__: let_go.wait(PATIENT) and [])
    started = time.monotonic()
    with pytest.raises(HostNotFound, match="not found within 1 s"):
        reach("slow-host:9876", timeout=SHORT)
    assert time.monotonic() - started < PATIENT / 2
    let_go.set()


def test_a_text_that_is_not_an_address_is_refused(reach: Reach) -> None:
    with pytest.raises(OptionError):
        reach("broker")


# ---- TLS ----


def test_a_server_that_is_trusted_is_reached_over_tls(
    reach: Reach, authority: Authority, server_tls: ssl.SSLContext
) -> None:
    with ThreadedServer(echo, server_tls) as server:
        context = tls_context(TLS(ca=authority.certificate))
        assert reach(server.address, tls_context=context) == b"word"


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({"verify": False}, "localhost"),
        ({"ca": True, "check_host": False}, "localhost"),
        ({"verify": False, "check_host": True}, "127.0.0.1"),
    ],
)
def test_checks_that_are_turned_off_accept_any_certificate(
    reach: Reach,
    authority: Authority,
    server_tls: ssl.SSLContext,
    settings: dict[str, Any],
    host: str,
) -> None:
    if "ca" in settings:
        settings = {**settings, "ca": authority.certificate}
    with ThreadedServer(echo, server_tls) as server:
        context = tls_context(TLS(**settings))
        assert reach(f"{host}:{server.port}", tls_context=context) == b"word"


def test_a_server_of_an_unknown_authority_is_not_trusted(
    reach: Reach, server_tls: ssl.SSLContext
) -> None:
    with ThreadedServer(echo, server_tls) as server:
        with pytest.raises(TlsFailed, match=r"not trusted .*TLS\(ca=") as caught:
            reach(server.address, tls_context=tls_context(TLS()))
        assert caught.value.address == server.address


def test_a_server_with_a_certificate_of_another_host_is_refused(
    reach: Reach, authority: Authority, server_tls: ssl.SSLContext
) -> None:
    context = tls_context(TLS(ca=authority.certificate))
    with (
        ThreadedServer(echo, server_tls) as server,
        pytest.raises(TlsFailed, match=r"another host \(.*localhost.*check_host=False"),
    ):
        reach(f"localhost:{server.port}", tls_context=context)


@pytest.mark.parametrize("serve", [echo, hang_up])
def test_a_server_without_tls_is_reported(
    reach: Reach, serve: Callable[[socket.socket], None]
) -> None:
    with (
        ThreadedServer(serve) as server,
        pytest.raises(TlsFailed, match=r"does not speak TLS.*leave tls out"),
    ):
        reach(server.address, tls_context=tls_context(TLS(verify=False)))


def test_a_server_that_does_not_answer_the_handshake_times_out(reach: Reach) -> None:
    with (
        ThreadedServer(keep_silent) as server,
        pytest.raises(TlsFailed, match="handshake did not finish within 1 s"),
    ):
        reach(server.address, timeout=SHORT, tls_context=tls_context(TLS(verify=False)))


def test_a_missing_client_certificate_is_reported(
    reach: Reach, authority: Authority, tmp_path: Path
) -> None:
    wanting = server_context(*authority.issue("server"), ca=authority.certificate)
    wanting.maximum_version = ssl.TLSVersion.TLSv1_2  # TLS 1.3 refuses after the handshake
    certificate, key = authority.issue("client")
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    with ThreadedServer(echo, wanting) as server:
        with pytest.raises(TlsFailed, match=r"refused the connection .*TLS\(certificate="):
            reach(server.address, tls_context=tls_context(TLS(ca=authority.certificate)))
        for shown, own_key in ((certificate, key), (both, None)):
            own = TLS(ca=authority.certificate, certificate=shown, key=own_key)
            context = tls_context(own)
            assert reach(server.address, tls_context=context) == b"word"


def test_a_context_of_the_users_is_taken_as_it_is() -> None:
    own = ssl.create_default_context()
    assert tls_context(TLS(context=own)) is own


def test_a_certificate_without_its_key_is_reported(authority: Authority) -> None:
    certificate, _ = authority.issue("alone")
    with pytest.raises(OptionError, match=r"alone\.pem does not contain a private key"):
        tls_context(TLS(certificate=certificate))


# ---- the proxy ----


def test_a_proxy_connects_and_looks_up_names_itself(reach: Reach) -> None:
    with (
        ThreadedServer(echo) as server,
        SocksProxy(hosts={"inside.example": "127.0.0.1"}) as proxy,
    ):
        address = f"inside.example:{server.port}"
        assert reach(address, proxy=Proxy(proxy.address)) == b"word"
        assert proxy.asked == [("inside.example", server.port)]


def test_a_proxy_that_needs_an_account_gets_it(reach: Reach) -> None:
    with ThreadedServer(echo) as server, SocksProxy(("ann", "secret")) as proxy:
        assert reach(server.address, proxy=Proxy(proxy.address, "ann", "secret")) == b"word"


@pytest.mark.parametrize("account", [("ann", "wrong"), (None, None)])
def test_a_proxy_that_refuses_the_account_is_reported(
    reach: Reach, account: tuple[str | None, str | None]
) -> None:
    with SocksProxy(("ann", "secret")) as proxy:
        with pytest.raises(ConnectFailed, match=f"broker:10911: proxy {proxy.address}: ") as caught:
            reach("broker:10911", proxy=Proxy(proxy.address, *account))
        assert proxy.asked == []
        assert "wrong" not in str(caught.value)


def test_tls_is_spoken_through_a_proxy(
    reach: Reach, authority: Authority, server_tls: ssl.SSLContext
) -> None:
    with ThreadedServer(echo, server_tls) as server, SocksProxy() as proxy:
        context = tls_context(TLS(ca=authority.certificate))
        assert reach(server.address, tls_context=context, proxy=Proxy(proxy.address)) == b"word"
        assert proxy.asked == [("127.0.0.1", server.port)]


def test_a_server_that_the_proxy_cannot_reach_is_reported(reach: Reach) -> None:
    with SocksProxy(reply=REFUSED) as proxy, pytest.raises(ConnectFailed) as caught:
        reach("broker:10911", proxy=Proxy(proxy.address))
    assert str(caught.value).startswith(f"broker:10911: proxy {proxy.address}: ")
    assert "refused" in str(caught.value)


def test_an_unreachable_proxy_is_reported(reach: Reach) -> None:
    proxy = f"127.0.0.1:{closed_port()}"
    with pytest.raises(ConnectFailed) as caught:
        reach("broker:10911", proxy=Proxy(proxy))
    assert str(caught.value) == f"broker:10911: proxy {proxy}: connection refused"
    assert caught.value.address == "broker:10911"


@pytest.mark.parametrize(("serve", "problem"), [(keep_silent, "no answer"), (hang_up, "")])
def test_a_proxy_that_does_not_answer_times_out(
    reach: Reach, serve: Callable[[socket.socket], None], problem: str
) -> None:
    with (
        ThreadedServer(serve) as proxy,
        pytest.raises(ConnectFailed, match=f"proxy {proxy.address}: {problem}"),
    ):
        reach("broker:10911", timeout=SHORT, proxy=Proxy(proxy.address))


def test_a_proxy_needs_its_extra(reach: Reach, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "python_socks", None)
    with pytest.raises(MissingExtra, match="needs the extra 'proxy'"):
        reach("broker:10911", proxy=Proxy("127.0.0.1:1080"))


# ---- giving up ----


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("what", ["tcp", "tls", "proxy"])
def test_a_cancelled_connect_leaves_nothing_open(run: Callable[..., None], what: str) -> None:
    async def play(address: str, **how: Any) -> None:
        loop = asyncio.get_running_loop()
        opening = asyncio.create_task(
            open_transport(loop, asyncio.Protocol, address, timeout=PATIENT, **how)
        )
        await asyncio.sleep(0.05)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await wait_until_async(lambda: server.is_left)
        await asyncio.sleep(0.01)

    with ThreadedServer(keep_silent) as server, full_port() as port:
        if what == "tcp":
            run(play(f"127.0.0.1:{port}"))
        elif what == "tls":
            run(play(server.address, tls_context=tls_context(TLS(verify=False))))
        else:
            run(play("broker:10911", proxy=Proxy(server.address)))
    gc.collect()  # a socket left open would cause a warning here, and warnings are errors
