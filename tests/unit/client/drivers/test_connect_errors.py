"""Why a connection could not be opened, in words."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from downrange.client.drivers.connect_errors import (
    not_found,
    proxy_failed,
    tls_failed,
    tls_problem,
    unreachable,
)
from downrange.errors import ConnectFailed

ADDRESS = "broker:10911"
TIMEOUT = 1.5


def unverified(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, message
    return error


def broken(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (socket.gaierror(socket.EAI_NONAME, "?"), "name not found"),
        (socket.gaierror(socket.EAI_AGAIN, "?"), "name not found, the name service does not"),
        (UnicodeError("label too long"), "name not found"),
        (TimeoutError(), "its name was not found within 1.5 s"),
    ],
)
def test_a_name_without_an_address_is_named(error: Exception, problem: str) -> None:
    assert str(not_found(ADDRESS, TIMEOUT, error)).startswith(f"{ADDRESS}: {problem}")


@pytest.mark.parametrize(
    ("failures", "problem"),
    [
        ([ConnectionRefusedError(errno.ECONNREFUSED, "call failed")], "connection refused"),
        ([OSError(errno.ENETUNREACH, "?")], "network is unreachable"),
        ([OSError(errno.EHOSTUNREACH, "?")], "no route to host"),
        ([TimeoutError("timed out")], "no answer within 1.5 s"),
        ([TimeoutError(errno.ETIMEDOUT, "?")], "connection timed out"),
        ([OSError("Odd")], "odd"),
        (
            [OSError(errno.ENETUNREACH, "?"), *2 * [OSError(errno.ECONNREFUSED, "?")]],
            "network is unreachable, connection refused",
        ),
    ],
)
def test_every_reason_is_given_once(failures: list[OSError], problem: str) -> None:
    error = unreachable(ADDRESS, TIMEOUT, failures)
    assert str(error) == f"{ADDRESS}: {problem}"
    assert (error.address, error.problem, error.code) == (ADDRESS, problem, 10001)


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (ConnectFailed("door:1080", "connection refused"), "proxy door:1080: connection refused"),
        (TimeoutError(), "proxy door:1080: no answer within 1.5 s"),
        (Exception("Authentication failed"), "proxy door:1080: Authentication failed"),
    ],
)
def test_a_proxy_that_fails_is_named_after_the_address(error: Exception, problem: str) -> None:
    assert str(proxy_failed(ADDRESS, TIMEOUT, "door:1080", error)) == f"{ADDRESS}: {problem}"


@pytest.mark.parametrize(
    ("error", "reason", "step"),
    [
        (unverified(62, "Hostname mismatch."), "another host (Hostname", "check_host=False"),
        (unverified(64, "IP address mismatch"), "another host (IP", "check_host=False"),
        (unverified(10, "has expired"), "not trusted (has expired)", "renewed there"),
        (unverified(18, "self-signed"), "not trusted (self-signed)", "TLS(ca=…)"),
        (broken("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "certificate required", "TLS(certificate=…)"),
        (broken("WRONG_VERSION_NUMBER"), "speak TLS (wrong version number)", "leave tls out"),
        (ConnectionResetError(), "does not speak TLS;", "leave tls out"),
        (TimeoutError(), "did not finish within 1.5 s", "does it speak TLS?"),
    ],
)
def test_a_failure_of_tls_has_a_next_step(error: Exception, reason: str, step: str) -> None:
    text = str(tls_failed(ADDRESS, TIMEOUT, error))
    assert text.startswith(ADDRESS)
    assert reason in text
    assert step in text


def test_the_words_can_be_had_alone() -> None:
    assert tls_problem(broken("WRONG_VERSION_NUMBER")).startswith("it does not speak TLS")
