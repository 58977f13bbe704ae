"""TLS contexts from PEM files, for servers, for brokers that register over TLS, and for clients.

Which connections must speak TLS is `ListenerOptions.tls_mode`. Every problem is told with the file
that has it; a key that needs a password never makes the process ask for one at the terminal.
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
    """Return the context of a listener.

    Args:
        certificate: The server's certificate, with those that lead to its authority behind it.
        key: The certificate's private key.
        ca: Authorities of clients; with them, every client must show a certificate.
        key_password: Opens the key.

    Raises:
        OptionError: A file cannot be read or is not what it should be; the text names it.
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
    """Return the context of who connects to a server.

    Args:
        ca: Authorities to trust; those of this machine when not given.
        certificate: What to show to servers that ask; needs `key`.
        key: The certificate's private key.
        key_password: Opens the key.
        is_name_checked: Whether the certificate must be for the host that was connected to. Java's
            clients never check it, so certificates of existing clusters may name no host.

    Raises:
        OptionError: A file cannot be read or is not what it should be; the text names it.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = is_name_checked
    if ca is None:
        context.load_default_certs()
    else:
        _load_authorities(context, ca)
    if (certificate is None) != (key is None):
        raise OptionError("a certificate needs its key, and a key its certificate: give both")
    if certificate is not None and key is not None:
        _load_own(context, certificate, key, key_password)
    return context


def _load_own(
    context: ssl.SSLContext, certificate: str | Path, key: str | Path, password: str | None
) -> None:
    for path, what in ((certificate, "CERTIFICATE"), (key, "PRIVATE KEY")):
        _check_pem(path, what)
    try:
        # Without any password OpenSSL would ask at the terminal.
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
        raise OptionError(f"{path} holds no {what.lower()} in PEM form")
