"""Name servers from an address server."""

from __future__ import annotations

import pytest

from downrange.client.drivers.address_server import fetch_name_servers
from downrange.errors import NoNameServer
from tests.embedded.address_server import PATH, serving_addresses
from tests.embedded.peers import ThreadedServer, closed_port, hang_up, keep_silent

PATIENT, SHORT = 60.0, 0.2


@pytest.mark.parametrize(
    ("body", "addresses"),
    [
        (b"10.0.0.1:9876", ["10.0.0.1:9876"]),
        (b" 10.0.0.1:9876; ns2:9877;\r\nmore lines", ["10.0.0.1:9876", "ns2:9877"]),
        (b"\n\nns1:9876;[::1]:9876;ns1:9876\n", ["ns1:9876", "[::1]:9876"]),
    ],
)
def test_the_first_line_names_name_servers(body: bytes, addresses: list[str]) -> None:
    with serving_addresses(body) as server:
        assert fetch_name_servers(server.url, None, PATIENT) == addresses
        assert server.asked == [PATH]


def test_a_unit_has_a_page_of_its_own() -> None:
    with serving_addresses(b"ns1:9876") as server:
        fetch_name_servers(server.url, "east", PATIENT)
        assert server.asked == [f"{PATH}-east?nofix=1"]


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port()}")
    with serving_addresses(b"ns1:9876") as server:
        assert fetch_name_servers(server.url, None, PATIENT) == ["ns1:9876"]


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        (b"", 200, "named no name server"),
        (b" ; ;\n", 200, "named no name server"),
        (b"<html>\n", 200, "'<html>' is not an address"),
        (b"ns1:9876", 404, "HTTP status 404"),
        (b"", 500, "HTTP status 500"),
    ],
)
def test_an_answer_without_addresses_is_reported(body: bytes, status: int, problem: str) -> None:
    with serving_addresses(body, status) as server:
        with pytest.raises(NoNameServer) as caught:
            fetch_name_servers(server.url, None, PATIENT)
        assert problem in str(caught.value)
        assert server.url in str(caught.value)


def test_an_unreachable_address_server_is_reported() -> None:
    url = f"http://127.0.0.1:{closed_port()}{PATH}"
    with pytest.raises(NoNameServer, match=f"{url} cannot be asked.*refused"):
        fetch_name_servers(url, None, PATIENT)


def test_an_address_server_that_does_not_answer_times_out() -> None:
    with (
        ThreadedServer(keep_silent) as server,
        pytest.raises(NoNameServer, match=r"no answer within 0\.2 s"),
    ):
        fetch_name_servers(f"http://{server.address}{PATH}", None, SHORT)


def test_an_address_server_that_closes_the_connection_is_reported() -> None:
    with (
        ThreadedServer(hang_up) as server,
        pytest.raises(NoNameServer, match=f"http://{server.address}{PATH} cannot be asked"),
    ):
        fetch_name_servers(f"http://{server.address}{PATH}", None, PATIENT)


@pytest.mark.parametrize("url", ["http://", "http://[", "httpx://ns/nsaddr"])
def test_an_invalid_url_is_reported(url: str) -> None:
    with pytest.raises(NoNameServer) as caught:
        fetch_name_servers(url, None, PATIENT)
    assert url in str(caught.value)
