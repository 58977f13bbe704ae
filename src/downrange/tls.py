"""TLS contexts from PEM files, for servers, for brokers that register over TLS, and for clients.

`ListenerOptions.tls_mode` says which connections must use TLS. Errors name the file concerned. A
key that needs a password never makes the process ask for one at the terminal.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from downrange.errors import OptionError


def server_context(
    certificate: str | Path,
    key: str | Path,
    *,
    ca: str | Path | None = None,
    key_password: str | None = None,
) -> ssl.SSLContext:
    """Return the TLS context of a listener.

    Args:
        certificate: The server's certificate, followed by those that lead to its authority.
        key: The certificate's private key.
        ca: Authorities of clients. If given, every client must present a certificate.
        key_password: The password of the key.

    Raises:
        OptionError: A file cannot be read, or has the wrong content; the text names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_own(context, certificate, key, key_password)
    if ca is not None:
        _load_authorities(context, ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    *,
    ca: str | Path | None = None,
    certificate: str | Path | None = None,
    key: str | Path | None = None,
    key_password: str | None = None,
    is_name_checked: bool = True,
) -> ssl.SSLContext:
    """Return the TLS context of a client.

    Args:
        ca: Authorities to trust; those of this machine if not given.
        certificate: Presented to servers that ask for one; needs `key`.
        key: The certificate's private key.
        key_password: The password of the key.
        is_name_checked: Whether the server's certificate must be for the host in the address.
            Java's clients never check this, so certificates of existing clusters may not name
            their hosts.

    Raises:
        OptionError: A file cannot be read, or has the wrong content; the text names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = is_name_checked
    if ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, ca)
    if (certificate is None) != (key is None):
        raise OptionError("certificate and key belong together: give both or neither")
    if certificate is not None and key is not None:
        _load_own(context, certificate, key, key_password)
    return context


def _load_own(
    context: ssl.SSLContext, certificate: str | Path, key: str | Path, password: str | None
) -> None:
    for path, what in ((certificate, "CERTIFICATE"), (key, "PRIVATE KEY")):
        _check_pem(path, what)
    try:
        # If the password were None, OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certificate, key, password or "")
    except ssl.SSLError as error:
        raise OptionError(_problem_of(certificate, key, password, error)) from error


def _problem_of(
    certificate: str | Path, key: str | Path, password: str | None, error: ssl.SSLError
) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"key {key} does not belong to certificate {certificate}"
    if "ENCRYPTED" in Path(key).read_text(encoding="utf-8", errors="replace"):
        advice = "it needs a password" if password is None else "the password is wrong"
        return f"key {key} cannot be opened: {advice}"
    return f"certificate {certificate} and key {key} cannot be used: {error.reason or error}"


def _load_authorities(context: ssl.SSLContext, ca: str | Path) -> None:
    _check_pem(ca, "CERTIFICATE")
    try:
        context.load_verify_locations(cafile=ca)
    except ssl.SSLError as error:
        raise OptionError(f"{ca} cannot be used: {error.reason or error}") from error


def _check_pem(path: str | Path, what: str) -> None:
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error
    if f"{what}-----" not in text:
        raise OptionError(f"{path} does not contain a {what.lower()} in PEM form")
