"""A name server over real sockets: start and stop, brokers, file, TLS."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from typing import TYPE_CHECKING

import pytest

from downrange.errors import CannotListen, CorruptStore, OptionError, StoreError
from downrange.options import ListenerOptions, NameServerOptions, TlsMode
from downrange.server import NameServer
from downrange.server.run import name_server
from downrange.server.run.runner import ServerThread, new_event_loop
from downrange.wire.bodies import TopicConfig
from downrange.wire.codes import HeaderCodec, RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import (
    BrokerHeartbeatRequest,
    GetKeyValueRequest,
    PutKeyValueRequest,
    RouteRequest,
)
from tests.apache.security import make_tls_files
from tests.embedded.servers import (
    DEADLINE,
    connected,
    is_closed,
    plain_socket,
    register,
    route_code,
    serving,
)
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.apache.security import TlsFiles

TOPICS = [TopicConfig(topic_name="T"), TopicConfig(topic_name="U")]
GONE = int(ResponseCode.TOPIC_NOT_EXIST)


# ---- start and stop ------------------------------------------------------------------------------


def test_start_and_stop_may_be_said_twice_and_start_again() -> None:
    async def live() -> None:
        server = NameServer()
        await server.stop()
        assert not server.is_serving
        await server.start()
        first = server.address
        await server.start()
        assert server.is_serving
        assert server.address == first
        await server.stop()
        await server.stop()
        assert not server.is_serving
        await server.start()
        await server.stop()

    asyncio.run(live())


def test_a_second_server_on_the_port_fails_with_the_address_and_the_next_step() -> None:
    with serving() as first:
        port = int(first.address.rpartition(":")[2])
        second = ServerThread(NameServer(None, ListenerOptions(port=port)))
        with pytest.raises(CannotListen) as caught:
            second.start()
        assert caught.value.address == first.address
        assert f"cannot listen on {first.address}: another process uses the port" in str(
            caught.value
        )
        second.stop()  # does nothing: it never started
        assert route_code(first, "T") == GONE  # the first one still serves


@pytest.mark.parametrize(
    ("host", "text"),
    [("203.0.113.7", "does not have the address"), ("no.such.host.invalid", "give an address")],
)
def test_an_address_that_is_not_ours_is_refused_with_the_reason(host: str, text: str) -> None:
    with pytest.raises(CannotListen, match=text):
        ServerThread(NameServer(None, ListenerOptions(host=host))).start()


def test_a_stopped_server_closes_its_connections_and_frees_the_port() -> None:
    # An open connection that delayed the stop would do so for this long.
    server = NameServer(None, ListenerOptions(stop_timeout=600.0))
    thread = ServerThread(server)
    thread.start()
    with plain_socket(server) as opened:
        begun = time.monotonic()
        thread.stop()
        assert time.monotonic() - begun < DEADLINE
        assert is_closed(opened)
    again = NameServer(None, ListenerOptions(port=int(server.address.rpartition(":")[2])))
    with ServerThread(again):
        assert again.address == server.address


def test_a_server_that_other_machines_can_reach_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="downrange"), serving(host="0.0.0.0"):
        pass
    assert "can be reached from other machines" in caplog.text


def test_ipv6_addresses_are_written_in_brackets() -> None:
    try:
        with serving(host="::1") as server:
            assert server.address.startswith("[::1]:")
    except CannotListen:
        pytest.skip("this machine has no IPv6")


def test_uvloop_is_used_where_it_is_installed() -> None:
    loop = new_event_loop()
    try:
        assert type(loop).__module__.startswith("uvloop")
    finally:
        loop.close()


def test_pythons_own_loop_serves_where_uvloop_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    with serving() as server, connected(server) as peer:
        assert peer.ask(Command(7654)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


# ---- brokers -----------------------------------------------------------------------------------


def test_a_broker_is_removed_at_once_when_its_connection_ends() -> None:
    # Otherwise it would be there for that long.
    with serving(NameServerOptions(broker_timeout=600.0)) as server:
        with connected(server) as broker:
            register(broker, "a", TOPICS)
            assert route_code(server, "T") == 0
        wait_until(lambda: route_code(server, "T") == GONE)


def test_a_silent_broker_expires_and_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test: on a busy machine, any broker may be silent for a while."""
    now_ms = 1_000_000
    options = NameServerOptions(scan_interval=0.05)
    monkeypatch.setattr(name_server, "monotonic_ms", lambda: now_ms)
    with serving(options) as server, connected(server) as broker:
        server._listener._dispatcher.clock_ms = lambda: now_ms
        register(broker, "a", TOPICS, heartbeat_timeout_millis=400)
        beat = BrokerHeartbeatRequest(
            cluster_name="DefaultCluster", broker_addr="127.0.0.1:1", broker_name="a"
        )
        for _ in range(4):  # together longer than its timeout
            now_ms += 150
            assert broker.ask(request_command(beat)).code == 0
        assert route_code(server, "T") == 0
        now_ms += 500
        wait_until(lambda: route_code(server, "T") == GONE)
        with pytest.raises((EOFError, ConnectionError)):
            broker.ask(request_command(beat))


def test_two_name_servers_share_nothing() -> None:
    with serving() as one, serving() as other, connected(one) as broker:
        register(broker, "a", TOPICS)
        assert (route_code(one, "T"), route_code(other, "T")) == (0, GONE)


# ---- replies -----------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", list(HeaderCodec))
def test_replies_come_in_the_requests_own_codec(codec: HeaderCodec) -> None:
    with serving() as server, connected(server, codec) as peer:
        assert peer.ask(request_command(RouteRequest(topic="T"))).codec is codec


def test_a_one_way_request_is_not_answered() -> None:
    with serving() as server, connected(server) as peer:
        peer.notify(Command(7654))
        peer.notify(request_command(RouteRequest(topic="T")))
        reply = peer.ask(Command(7655))  # the first reply belongs to this one
        assert reply.remark == " request type 7655 not supported"


def test_requests_sent_at_once_are_answered_in_order() -> None:
    with serving() as server, connected(server) as peer:
        calls = [peer.start(Command(10_000 + number)) for number in range(500)]
        for number, call in enumerate(calls):
            remark = peer.finish(call).remark
            assert remark == f" request type {10_000 + number} not supported"


# ---- file --------------------------------------------------------------------------------------

PUT = PutKeyValueRequest(namespace="n", key="k", value="v")
GET = GetKeyValueRequest(namespace="n", key="k")


def test_values_outlive_the_server_when_it_has_a_folder(tmp_path: Path) -> None:
    options = NameServerOptions(store=str(tmp_path / "new" / "folder"))
    with serving(options) as server, connected(server) as peer:
        assert peer.ask(request_command(PUT)).code == 0
        saved = json.loads((tmp_path / "new" / "folder" / "kvConfig.json").read_text())
        assert saved == {"configTable": {"n": {"k": "v"}}}  # before the answer
        peer.notify(request_command(PutKeyValueRequest(namespace="n", key="o", value="w")))
        peer.ask(Command(7654))  # it was read before the server stops
    with serving(options) as server, connected(server) as peer:
        assert peer.ask(request_command(GET)).fields == {"value": "v"}
        other = request_command(GetKeyValueRequest(namespace="n", key="o"))
        assert peer.ask(other).fields == {"value": "w"}


def test_many_values_at_once_are_all_saved_and_answered(tmp_path: Path) -> None:
    options = NameServerOptions(store=str(tmp_path))
    with serving(options) as server, connected(server) as peer:
        calls = [
            peer.start(request_command(PutKeyValueRequest(namespace="n", key=str(i), value="v")))
            for i in range(100)
        ]
        assert {peer.finish(call).code for call in calls} == {0}
    saved = json.loads((tmp_path / "kvConfig.json").read_text())
    assert len(saved["configTable"]["n"]) == 100


def test_a_value_that_cannot_be_saved_is_answered_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with serving(NameServerOptions(store=str(folder))) as server, connected(server) as peer:
        folder.rmdir()
        reply = peer.ask(request_command(PUT))
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark == "in force, but not saved: No such file or directory"


def test_a_damaged_file_is_named_at_start(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text("[1]")
    with pytest.raises(CorruptStore, match=r"kvConfig\.json"):
        ServerThread(NameServer(NameServerOptions(store=str(tmp_path)))).start()


def test_a_folder_that_cannot_be_used_is_named_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be used"):
        ServerThread(NameServer(NameServerOptions(store=str(tmp_path / "file" / "x")))).start()


def test_a_read_only_folder_is_named_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(StoreError, match="is not writable"):
        ServerThread(NameServer(NameServerOptions(store=str(tmp_path)))).start()


# ---- TLS ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """Make certificates."""
    return make_tls_files(tmp_path_factory.mktemp("tls"))


def _server_context(tls: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    return context


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_tls_is_accepted_in_both_modes_with_tls(mode: TlsMode, tls: TlsFiles) -> None:
    with (
        serving(tls=_server_context(tls), tls_mode=mode) as server,
        connected(server, tls=tls.client_context()) as peer,
    ):
        assert peer.ask(request_command(RouteRequest(topic="T"))).code == GONE


def test_plain_text_is_accepted_in_permissive_mode_only(
    tls: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tls=_server_context(tls)) as server, connected(server) as peer:
        assert peer.ask(Command(7654)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    with serving(tls=_server_context(tls), tls_mode="enforcing") as server:
        with plain_socket(server) as opened:
            opened.sendall(b"\x00\x00\x00\x08")
            assert is_closed(opened)
        wait_until(lambda: server.connection_count == 0)
    assert "plain text where TLS is required" in caplog.text


def test_tls_to_a_server_without_it_is_cut(tls: TlsFiles) -> None:
    context = _server_context(tls)
    with serving(tls=context, tls_mode="disabled") as server, plain_socket(server) as opened:
        opened.sendall(b"\x16\x03\x01\x02\x00" + bytes(100))
        assert is_closed(opened)


def test_a_failed_or_missing_handshake_is_not_counted_any_more(
    tls: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tls=_server_context(tls), handshake_timeout=0.2) as server:
        with plain_socket(server) as silent, plain_socket(server) as broken:
            broken.sendall(b"\x16garbage" * 20)
            assert is_closed(broken)
            assert is_closed(silent)
        with plain_socket(server):
            pass  # closed without a byte
        wait_until(lambda: server.connection_count == 0)
    assert caplog.text.count("is cut") >= 2


def test_enforced_tls_without_a_certificate_is_refused() -> None:
    with pytest.raises(OptionError, match="enforcing"):
        NameServer(None, ListenerOptions(tls_mode="enforcing"))


def test_settings_show_the_port() -> None:
    with serving() as server, connected(server) as peer:
        reply = peer.ask(Command(int(RequestCode.GET_NAMESRV_CONFIG)))
        assert f"listenPort={server.address.rpartition(':')[2]}".encode() in reply.body
