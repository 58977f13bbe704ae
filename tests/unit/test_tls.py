"""TLS contexts: handshakes in memory show which peers are trusted; bad files are named."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING

import pytest

from downrange.errors import OptionError
from downrange.tls import client_context, server_context
from tests.unit.server.certificates import Authority, make_authority

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("theirs"), "theirs")


def shake_hands(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str = "127.0.0.1"
) -> ssl.SSLObject:
    """Do a handshake in memory and return the client's end, after one byte was read."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    served = server.wrap_bio(to_server, to_client, server_side=True)
    asking = client.wrap_bio(to_client, to_server, server_hostname=host)
    for step in (asking.do_handshake, served.do_handshake) * 3:
        with contextlib.suppress(ssl.SSLWantReadError):
            step()
    served.write(b"!")  # raises if the client was refused
    assert asking.read(1) == b"!"
    return asking


def test_client_that_trusts_the_authority_is_served(authority: Authority) -> None:
    server = server_context(*authority.issue("server"))
    end = shake_hands(server, client_context(ca=authority.certificate))
    assert end.version() == "TLSv1.3"


def test_client_refuses_a_server_of_another_authority(
    authority: Authority, stranger: Authority
) -> None:
    server = server_context(*stranger.issue("server"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client_context(ca=authority.certificate))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, client_context())  # this machine does not trust it either


def test_client_checks_the_host_unless_that_is_turned_off(authority: Authority) -> None:
    server = server_context(*authority.issue("server"))
    with pytest.raises(ssl.SSLCertVerificationError, match=r"10\.0\.0\.1"):
        shake_hands(server, client_context(ca=authority.certificate), host="10.0.0.1")
    trusting = client_context(ca=authority.certificate, is_name_checked=False)
    shake_hands(server, trusting, host="10.0.0.1")


def test_server_with_authorities_demands_certificates_of_clients(
    authority: Authority, stranger: Authority
) -> None:
    server = server_context(*authority.issue("server"), ca=authority.certificate)
    certificate, key = authority.issue("client")
    known = client_context(ca=authority.certificate, certificate=certificate, key=key)
    shake_hands(server, known)
    certificate, key = stranger.issue("client")
    foreign = client_context(ca=authority.certificate, certificate=certificate, key=key)
    for client in (client_context(ca=authority.certificate), foreign):
        with pytest.raises(ssl.SSLError):
            shake_hands(server, client)


def test_old_versions_of_tls_are_not_spoken(authority: Authority) -> None:
    for context in (server_context(*authority.issue("server")), client_context()):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_key_with_a_password_is_opened(authority: Authority) -> None:
    files = authority.issue("guarded", password="open sesame")
    server = server_context(*files, key_password="open sesame")
    shake_hands(server, client_context(ca=authority.certificate))


@pytest.mark.parametrize(
    ("password", "advice"), [(None, "it needs a password"), ("guess", "the password is wrong")]
)
def test_key_that_cannot_be_opened_is_named(
    authority: Authority, password: str | None, advice: str
) -> None:
    certificate, key = authority.issue("guarded", password="open sesame")
    with pytest.raises(OptionError) as caught:
        server_context(certificate, key, key_password=password)
    assert str(caught.value) == f"key {key} cannot be opened: {advice}"


def test_key_of_another_certificate_is_named(authority: Authority) -> None:
    certificate, _ = authority.issue("one")
    _, key = authority.issue("two")
    with pytest.raises(OptionError) as caught:
        server_context(certificate, key)
    assert str(caught.value) == f"key {key} does not belong to certificate {certificate}"


def test_file_that_is_missing_is_named(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("server")
    none = tmp_path / "none.pem"
    attempts: list[Callable[[], ssl.SSLContext]] = [
        lambda: server_context(none, key),
        lambda: server_context(certificate, none),
        lambda: server_context(certificate, key, ca=none),
        lambda: client_context(ca=str(none)),
    ]
    for attempt in attempts:
        with pytest.raises(OptionError) as caught:
            attempt()
        assert str(caught.value) == f"{none} cannot be read: No such file or directory"


def test_file_that_holds_something_else_is_named(authority: Authority) -> None:
    certificate, key = authority.issue("server")
    with pytest.raises(OptionError) as caught:
        server_context(key, certificate)
    assert str(caught.value) == f"{key} does not contain a certificate in PEM form"
    with pytest.raises(OptionError) as caught:
        server_context(certificate, certificate)
    assert str(caught.value) == f"{certificate} does not contain a private key in PEM form"


def test_file_that_is_damaged_is_named(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("server")
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nnope\n-----END CERTIFICATE-----\n")
    with pytest.raises(OptionError, match=r"certificate .*damaged\.pem and key .* cannot be used"):
        server_context(damaged, key)
    with pytest.raises(OptionError, match=r"damaged\.pem cannot be used"):
        server_context(certificate, key, ca=damaged)


def test_certificate_without_key_is_refused(authority: Authority) -> None:
    certificate, key = authority.issue("client")
    with pytest.raises(OptionError, match="certificate and key belong together"):
        client_context(certificate=certificate)
    with pytest.raises(OptionError, match="certificate and key belong together"):
        client_context(key=key)
