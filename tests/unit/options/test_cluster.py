"""Connection options: what a client gets, and the round trip through the Spark source's texts."""

from __future__ import annotations

import pickle

import pytest

from downrange.errors import OptionError
from downrange.options import TLS, ClientOptions, Credentials
from downrange.options.cluster import ConnectionOptions
from downrange.options.flags import option_fields
from downrange.spark.option_reader import OptionReader

EVERYTHING = ConnectionOptions(
    name_server="a:1;b:1",
    access_key="shop",
    secret_key="sesame",
    security_token="token",
    tls=True,
    ca="ca.pem",
    certificate="own.pem",
    certificate_key="own.key",
    certificate_key_password="secret word",
    check_host=False,
    verify=False,
    namespace="shop",
    call_timeout=0.5,
)


def test_options_survive_the_texts_of_the_spark_source() -> None:
    reader = OptionReader(EVERYTHING.source_options())
    assert ConnectionOptions.from_source_options(reader) == EVERYTHING
    reader.reject_unknown()


def test_options_without_tls_and_account_survive_the_texts() -> None:
    plain = ConnectionOptions(name_server="a:1", call_timeout=10.0)
    assert plain.source_options() == {"nameServer": "a:1", "callTimeoutMs": "10000"}
    assert ConnectionOptions.from_source_options(OptionReader({"nameServer": "a:1"})) == plain


def test_client_gets_account_tls_namespace_and_timeout() -> None:
    assert EVERYTHING.credentials == Credentials("shop", "sesame", "token")
    assert EVERYTHING.tls_options == TLS(
        ca="ca.pem",
        certificate="own.pem",
        key="own.key",
        key_password="secret word",
        check_host=False,
        verify=False,
    )
    base = ClientOptions(sync_connections_max=2)
    options = EVERYTHING.client_options(base)
    assert (options.namespace, options.call_timeout) == ("shop", 0.5)
    assert options.sync_connections_max == 2
    assert ConnectionOptions().client_options(base) == base


def test_certificate_turns_tls_on_and_a_key_needs_one() -> None:
    assert ConnectionOptions().tls_options is None
    assert ConnectionOptions(certificate="own.pem").uses_tls
    with pytest.raises(OptionError, match="certificate"):
        _ = ConnectionOptions(certificate_key="own.key").tls_options


def test_secret_without_account_is_rejected() -> None:
    with pytest.raises(OptionError, match="access_key and secret_key need each other"):
        ConnectionOptions(secret_key="sesame")


def test_secrets_do_not_show() -> None:
    shown = repr(EVERYTHING)
    assert not any(secret in shown for secret in ("sesame", "token'", "secret word"))


def test_options_pickle_and_can_be_keys() -> None:
    assert {EVERYTHING: 1}[pickle.loads(pickle.dumps(EVERYTHING))] == 1


def test_fields_for_programs_are_neither_flags_nor_keys() -> None:
    names = {one.name for one in option_fields(ConnectionOptions)}
    assert names.isdisjoint({"verify", "call_timeout", "certificate_key_password"})
