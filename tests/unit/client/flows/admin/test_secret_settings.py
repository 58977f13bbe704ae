from __future__ import annotations

import pytest

from downrange.client.flows.admin.secret_settings import without_secret


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("tlsKeyPassword", "x", "(hidden)"),
        ("innerClientAuthenticationCredentials", "x", "(hidden)"),
        ("initAuthenticationUser", '{"username":"a","password":"b"}', "(hidden)"),
        ("other", '{"secretKey": "x"}', "(hidden)"),
        ("tlsKeyPassword", "", ""),
        ("brokerName", "broker-a", "broker-a"),
        ("aclEnable", "false", "false"),
    ],
)
def test_a_value_is_hidden_if_it_or_its_name_may_be_about_a_secret(
    name: str, value: str, shown: str
) -> None:
    assert without_secret(name, value, "(hidden)") == shown
