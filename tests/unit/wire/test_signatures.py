"""Access-key signatures."""

from __future__ import annotations

import hmac
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downrange.errors import Unencodable
from downrange.wire.codes import OUR_VERSION, ReleaseVersion
from downrange.wire.command import Command
from downrange.wire.signatures import sign, signature
from tests.unit.wire import vectors
from tests.unit.wire.strategies import texts


def test_a_signature_is_the_one_that_java_makes() -> None:
    made = signature(vectors.SIGNED_FIELDS, vectors.SIGNED_BODY, vectors.SECRET_KEY)
    assert made == vectors.SIGNATURE
    digest = hmac.digest(vectors.SECRET_KEY.encode(), vectors.SIGNED_CONTENT, "sha1")
    assert made == b64encode(digest).decode()


@given(st.dictionaries(texts, texts, max_size=5), st.binary(max_size=20), texts)
def test_a_signature_does_not_depend_on_the_order_of_fields(
    fields: dict[str, str], body: bytes, secret_key: str
) -> None:
    backwards = dict(reversed(fields.items()))
    assert signature(fields, body, secret_key) == signature(backwards, body, secret_key)


@pytest.mark.parametrize("name", ["Signature", "_UNIQUE_KEY_QUERY"])
def test_some_fields_are_not_signed(name: str) -> None:
    fields = {**vectors.SIGNED_FIELDS, name: "anything"}
    assert signature(fields, vectors.SIGNED_BODY, vectors.SECRET_KEY) == vectors.SIGNATURE


def test_a_query_by_unique_key_can_be_signed_as_clients_of_5_do_it() -> None:
    fields = {"Signature": "no part of it", "_UNIQUE_KEY_QUERY": "true", "topic": "T", "A": "1"}
    made = signature(fields, b"body", "secret", with_unique_key_query=True)
    assert made == b64encode(hmac.digest(b"secret", b"1trueTbody", "sha1")).decode()


def test_signing_adds_the_access_key_and_the_signature() -> None:
    command = Command(1, {"b": "2", "topic": "TopicTest"}, vectors.SIGNED_BODY)
    sign(command, "RocketMQ", vectors.SECRET_KEY)
    assert command.fields == {**vectors.SIGNED_FIELDS, "Signature": vectors.SIGNATURE, "b": "2"}
    assert command.version == OUR_VERSION


def test_signing_twice_gives_the_same_proof() -> None:
    command = Command(1, {"b": "2", "topic": "TopicTest"}, vectors.SIGNED_BODY)
    sign(command, "RocketMQ", vectors.SECRET_KEY)
    sign(command, "RocketMQ", vectors.SECRET_KEY)
    assert command.fields["Signature"] == vectors.SIGNATURE


def test_a_security_token_is_sent_and_signed() -> None:
    command = Command(1, {"topic": "T"})
    sign(command, "key", "secret", "token")
    assert command.fields["SecurityToken"] == "token"
    assert command.fields["Signature"] == signature(
        {"AccessKey": "key", "SecurityToken": "token", "topic": "T"}, b"", "secret"
    )


@pytest.mark.parametrize(("version", "sent"), [(OUR_VERSION, ReleaseVersion.V4_9_3), (100, 100)])
def test_a_query_by_unique_key_is_signed_as_by_an_old_release(version: int, sent: int) -> None:
    """Only for senders up to 4.9.3, brokers of 4.9 and 5.x leave out the same field."""
    command = Command(12, {"_UNIQUE_KEY_QUERY": "true"}, version=version)
    sign(command, "key", "secret")
    assert command.version == sent


def test_half_a_surrogate_pair_cannot_be_signed() -> None:
    with pytest.raises(Unencodable, match="surrogate"):
        signature({"a": "\ud800"}, b"", "secret")
