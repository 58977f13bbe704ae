"""Access rules: signatures, permissions, trusted addresses, and the table of needs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from downrange.errors import OptionError
from downrange.server.access.addresses import AddressSet
from downrange.server.access.needs import DENY, NEEDS, PUB, SUB, Need, Role
from downrange.server.access.rules import AccessRules, Account, Denial, parse_permission
from downrange.server.broker.broker import HANDLERS
from downrange.server.outputs import Peer
from downrange.wire import headers, pop_headers
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import REQUEST_HEADERS, Header
from downrange.wire.signatures import sign, signature

PEER = Peer(1, "10.0.0.7:41732")
SECRET = "hush-hush"
ADMIN = Account(access_key="root-account", secret_key="root-secret", is_admin=True)


def account(name: str = "app-account", **permissions: Any) -> Account:
    return Account(access_key=name, secret_key=SECRET, **permissions)


def signed(
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    key: str = "app-account",
    secret: str = SECRET,
) -> Command:
    command = Command(code, dict(fields or {}), body)
    sign(command, key, secret)
    return command


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def denial(rules: AccessRules, request: Command, peer: Peer = PEER) -> str:
    found = rules.check(request, peer)
    assert found is not None
    return found.text


# ---- signatures ---------------------------------------------------------------------------------


def test_signed_request_of_an_account_with_permission_is_served() -> None:
    rules = AccessRules([account(topics={"orders": PUB})])
    assert rules.check(signed(310, {"b": "orders"}, b"body"), PEER) is None


@pytest.mark.parametrize("fields", [{}, {"AccessKey": ""}, {"Signature": "c2lnbmF0dXJl"}])
def test_request_without_access_key_is_denied(fields: dict[str, str]) -> None:
    text = denial(AccessRules([account()]), Command(310, fields))
    assert text == "request 310 from 10.0.0.7:41732 is not signed"


def test_request_of_an_unknown_account_is_denied_with_a_bounded_text() -> None:
    request = signed(310, {"b": "orders"}, key="x" * 1000)
    found = AccessRules([account()]).check(request, PEER)
    assert found == Denial(f"there is no account '{'x' * 64}'", "x" * 64)


def test_request_signed_with_another_secret_is_denied() -> None:
    request = signed(310, {"b": "orders"}, secret="guessed")
    text = denial(AccessRules([account(default_topic=PUB)]), request)
    assert text == "the signature for account 'app-account' is wrong"


@pytest.mark.parametrize("change", ["field", "body", "no signature", "odd signature", "surrogate"])
def test_request_that_was_changed_after_signing_is_denied(change: str) -> None:
    request = signed(310, {"b": "orders"}, b"body")
    match change:
        case "field":
            request.fields["b"] = "others"
        case "body":
            request.body = b"other"
        case "no signature":
            del request.fields["Signature"]
        case "odd signature":
            request.fields["Signature"] = "ü\ud800"
        case _:
            request.fields["b"] = "\ud800"
    text = denial(AccessRules([account(default_topic=PUB)]), request)
    assert text == "the signature for account 'app-account' is wrong"


@pytest.mark.parametrize("is_signed_too", [False, True])
def test_query_by_unique_key_is_served_whichever_release_signed_it(is_signed_too: bool) -> None:
    rules = AccessRules([account(default_topic=SUB)])
    fields = {"topic": "orders", "_UNIQUE_KEY_QUERY": "true", "AccessKey": "app-account"}
    made = signature(fields, b"", SECRET, with_unique_key_query=is_signed_too)
    assert rules.check(Command(12, {**fields, "Signature": made}), PEER) is None
    denial(rules, Command(12, {**fields, "Signature": made, "topic": "others"}))


def test_denial_is_answered_with_no_permission_and_contains_no_secret() -> None:
    request = signed(310, {"b": "orders"})
    found = AccessRules([account()]).check(request, PEER)
    assert found is not None
    reply = found.reply()
    assert reply.code == ResponseCode.NO_PERMISSION
    assert reply.remark == "account 'app-account' has no PUB permission for topic 'orders'"
    assert found.access_key == "app-account"
    assert SECRET not in repr(account())


# ---- permissions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "permission"),
    [("DENY", DENY), ("PUB", PUB), ("SUB", SUB), ("PUB|SUB", 3), (" SUB|PUB ", 3)],
)
def test_permissions_are_read(text: str, permission: int) -> None:
    assert parse_permission(text) == permission


@pytest.mark.parametrize("text", ["", "pub", "ANY", "PUB,SUB"])
def test_text_that_is_not_a_permission_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"is not a permission: give DENY, PUB, SUB or PUB\|SUB"):
        parse_permission(text)


@pytest.mark.parametrize(
    ("permissions", "can_send", "can_read"),
    [
        ({}, False, False),
        ({"default_topic": PUB}, True, False),
        ({"default_topic": SUB}, False, True),
        ({"default_topic": PUB | SUB, "topics": {"orders": DENY}}, False, False),
        ({"default_topic": PUB | SUB, "topics": {"orders": SUB}}, False, True),
        ({"topics": {"orders": PUB, "others": SUB}}, True, False),
        ({"topics": {"others": PUB | SUB}}, False, False),
    ],
)
def test_permission_for_a_topic_is_its_own_or_else_the_default(
    permissions: dict[str, Any], can_send: bool, can_read: bool
) -> None:
    rules = AccessRules([account(**permissions)])
    sent = rules.check(signed(310, {"b": "orders"}), PEER)
    read = rules.check(signed(30, {"topic": "orders"}), PEER)
    assert (sent is None, read is None) == (can_send, can_read)


def test_permission_for_a_group_is_its_own_or_else_the_default() -> None:
    mine = account(default_group=SUB, groups={"theirs": DENY, "odd": PUB})
    rules = AccessRules([mine])
    assert rules.check(signed(38, {"consumerGroup": "mine"}), PEER) is None
    for group in ("theirs", "odd"):
        text = denial(rules, signed(38, {"consumerGroup": group}))
        assert text == f"account 'app-account' has no SUB permission for group '{group}'"


@pytest.mark.parametrize("topic", ["%RETRY%mine", "%RETRY%mine+orders", "%DLQ%mine"])
def test_topics_of_a_group_follow_the_group(topic: str) -> None:
    owner = account("the-owner", groups={"mine": SUB}, default_topic=DENY)
    other = account("the-other", default_group=SUB, groups={"mine": DENY}, default_topic=PUB | SUB)
    assert owner.topic_permission(topic) == PUB | SUB
    assert other.topic_permission(topic) == DENY
    assert account(topics={topic: SUB}).topic_permission(topic) == SUB


@pytest.mark.parametrize(
    "topic",
    [
        *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
        *("TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_c"),
    ],
)
def test_default_permission_is_not_for_topics_that_hold_messages_of_all_topics(topic: str) -> None:
    assert account(default_topic=PUB | SUB).topic_permission(topic) == DENY
    assert account(topics={topic: SUB}).topic_permission(topic) == SUB


def test_everyone_may_write_traces_and_reading_them_needs_permission() -> None:
    topic = "RMQ_SYS_TRACE_TOPIC"
    assert account().topic_permission(topic) == PUB
    assert account(topics={topic: DENY}).topic_permission(topic) == PUB
    assert account(topics={topic: SUB}).topic_permission(topic) == PUB | SUB
    assert account(default_topic=SUB).topic_permission(topic) == PUB | SUB


def test_administrator_may_do_everything() -> None:
    rules = AccessRules([ADMIN])
    for code in (17, 310, 34, 999_999):
        assert rules.check(signed(code, key="root-account", secret="root-secret"), PEER) is None


@pytest.mark.parametrize(
    ("access_key", "secret_key", "problem"),
    [
        ("sixsix", SECRET, "account 'sixsix': the access key has 6 characters, less than 7"),
        ("sevenup", "short", "account 'sevenup': the secret key has 5 characters, less than 7"),
    ],
)
def test_short_keys_are_refused(access_key: str, secret_key: str, problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        Account(access_key=access_key, secret_key=secret_key)
    assert str(caught.value) == problem


def test_two_accounts_of_one_access_key_are_refused() -> None:
    with pytest.raises(OptionError, match="account 'app-account' is given twice"):
        AccessRules([account(), account(default_topic=PUB)])
    assert AccessRules([account(), ADMIN]).account_count == 2


# ---- trusted addresses ---------------------------------------------------------------------------


def test_trusted_address_needs_no_signature() -> None:
    rules = AccessRules(trusted=AddressSet(["10.0.0.*"]))
    assert rules.check(Command(17), PEER) is None
    denial(rules, Command(17), Peer(2, "10.0.1.7:41732"))


def test_address_that_an_account_trusts_needs_its_access_key_only() -> None:
    rules = AccessRules([account(trusted=AddressSet(["10.0.0.7"])), account("other-account")])
    assert rules.check(Command(17, {"AccessKey": "app-account"}), PEER) is None
    text = denial(rules, Command(17, {"AccessKey": "app-account"}), Peer(2, "10.0.0.8:1"))
    assert text == "the signature for account 'app-account' is wrong"
    denial(rules, Command(17, {"AccessKey": "other-account"}))
    denial(rules, Command(17))


# ---- needs of requests --------------------------------------------------------------------------

HEARTBEAT = as_json(
    {
        "clientID": "c",
        "producerDataSet": [{"groupName": "any"}],
        "consumerDataSet": [
            {
                "groupName": "G",
                "subscriptionDataSet": [{"topic": "%RETRY%G"}, {"topic": "T"}],
            }
        ],
    }
)
LOCK = as_json(
    {
        "clientId": "c",
        "consumerGroup": "G",
        "mqSet": [{"brokerName": "b", "queueId": 0, "topic": "T"}],
    }
)
CLIENT_CHECK = as_json({"clientId": "c", "group": "G", "subscriptionData": {"topic": "T"}})
ACKS = as_json({"acks": [{"c": "G", "t": "T", "b": "AQ=="}], "brokerName": "b"})
BODIES = {
    34: HEARTBEAT,
    41: LOCK,
    42: LOCK,
    46: CLIENT_CHECK,
    400: as_json({"topic": "T", "consumerGroup": "G"}),
    200151: ACKS,
}
FIELDS = {
    **dict.fromkeys(["topic", "b", "originTopic"], "T"),
    **dict.fromkeys(["group", "consumerGroup"], "G"),
    **dict.fromkeys(["producerGroup", "a"], "P"),
}
#: Name of an account -> its permissions for topic T and group G.
SMALL: dict[str, dict[str, Any]] = {
    "nothing": {},
    "T PUB": {"topics": {"T": PUB}},
    "T SUB": {"topics": {"T": SUB}},
    "G SUB": {"groups": {"G": SUB}},
    "T SUB, G SUB": {"topics": {"T": SUB}, "groups": {"G": SUB}},
}
#: The accounts that are allowed -> the request codes.
SERVED: list[tuple[set[str], list[int]]] = [
    ({"T PUB"}, [10, 310, 320, 324, 325, 37, 370]),
    ({"T SUB", "T SUB, G SUB"}, [12, 29, 30, 31, 32, 33, 202, 300, 351]),
    ({"G SUB", "T SUB, G SUB"}, [35, 38, 203, 307, 343, 352]),
    (
        {"T SUB, G SUB"},
        [
            *(11, 14, 15, 34, 36, 41, 42, 46, 208, 222, 223, 303, 345, 361, 400),
            *(200050, 200051, 200052, 200053, 200054, 200055, 200151),
        ],
    ),
    (set(SMALL), [28, 305]),
    (
        set(),
        [
            *(17, 18, 21, 25, 26, 39, 40, 43, 45, 50, 51, 52, 53, 54, 60, 61, 200, 201, 204, 207),
            *(215, 220, 221, 225, 306, 309, 314, 315, 316, 317, 321, 323, 326, 328, 329, 401, 402),
            *(308, 353),
            *(999, 100, 102, 205, 216, 217, 318, 327, 200056),
        ],
    ),
]


@pytest.mark.parametrize(
    ("code", "served"), [(code, served) for served, codes in SERVED for code in codes]
)
def test_code_is_served_to_accounts_with_these_permissions_only(
    code: int, served: set[str]
) -> None:
    rules = AccessRules([account(f"has {name}", **has) for name, has in SMALL.items()])
    body = BODIES.get(code, b"")
    assert served == {
        name
        for name in SMALL
        if rules.check(signed(code, FIELDS, body, key=f"has {name}"), PEER) is None
    }


@pytest.mark.parametrize("code", [code for _, codes in SERVED for code in codes])
def test_code_is_refused_unsigned_and_wrongly_signed(code: int) -> None:
    everything = account(default_topic=PUB | SUB, default_group=SUB)
    rules = AccessRules([everything, ADMIN])
    body = BODIES.get(code, b"")
    text = denial(rules, Command(code, dict(FIELDS), body))
    assert text == f"request {code} from 10.0.0.7:41732 is not signed"
    for key in ("app-account", "root-account"):
        text = denial(rules, signed(code, FIELDS, body, key=key, secret="guessed"))
        assert text == f"the signature for account {key!r} is wrong"
        request = signed(code, FIELDS, body, key=key)
        request.body += b" "  # changed on its way
        assert denial(rules, request) == f"the signature for account {key!r} is wrong"
    text = denial(rules, signed(code, FIELDS, body, key="nobody-at-all"))
    assert text == "there is no account 'nobody-at-all'"


#: Requests of a consumer of topic T in group G that name the topic of messages delivered before.
RETRIED = {**FIELDS, "topic": "%RETRY%G_T"}
RETRIED_BODIES = {
    34: HEARTBEAT.replace(b'"T"', b'"%RETRY%G_T"'),
    400: as_json({"topic": "%RETRY%G_T", "consumerGroup": "G"}),
    200151: as_json({"acks": [{"c": "G", "t": "%RETRY%G_T"}], "brokerName": "b"}),
}


@pytest.mark.parametrize("code", [34, 400, 200051, 200053, 200151])
def test_retry_topic_of_pop_needs_the_permissions_for_its_topic_and_group(code: int) -> None:
    rules = AccessRules([account(f"has {name}", **has) for name, has in SMALL.items()])
    body = RETRIED_BODIES.get(code, b"")
    allowed = {
        name
        for name in SMALL
        if rules.check(signed(code, RETRIED, body, key=f"has {name}"), PEER) is None
    }
    assert allowed == {"T SUB, G SUB"}


@pytest.mark.parametrize("code", [11, 200050, 200052])
def test_retry_topic_of_another_group_cannot_be_read_under_the_name_of_a_pop_retry_topic(
    code: int,
) -> None:
    """`%RETRY%G_T` is the retry topic of a group "G_T" as well."""
    rules = AccessRules([account(groups={"G": SUB}, topics={"T": SUB}, default_topic=SUB)])
    text = denial(rules, signed(code, RETRIED))
    assert text == "account 'app-account' has no SUB permission for topic '%RETRY%G_T'"


def test_every_entry_of_a_batch_of_acknowledgements_is_looked_at() -> None:
    rules = AccessRules([account(topics={"T": SUB}, groups={"G": SUB})])
    entries = [{"c": "G", "t": "T"}, {"c": "G", "t": "other"}, {"c": "theirs", "t": "T"}]
    for wrong, kind in ((1, "topic 'other'"), (2, "group 'theirs'")):
        body = as_json({"acks": [entries[0], entries[wrong]], "brokerName": "b"})
        text = denial(rules, signed(200151, {}, body))
        assert text == f"account 'app-account' has no SUB permission for {kind}"
    for body in (b"", b"{}", as_json({"acks": [{"c": "G"}]})):
        assert denial(rules, signed(200151, {}, body)).startswith("request 200151 of account")


@pytest.mark.parametrize("code", sorted(HANDLERS))
def test_every_code_of_our_broker_needs_a_right_signature(code: int) -> None:
    rules = AccessRules([account(is_admin=True)])
    body = BODIES.get(code, b"")
    assert "is not signed" in denial(rules, Command(code, dict(FIELDS), body))
    assert "is wrong" in denial(rules, signed(code, FIELDS, body, secret="guessed"))
    assert rules.check(signed(code, FIELDS, body), PEER) is None


def test_every_code_of_our_broker_is_in_the_table() -> None:
    assert set(HANDLERS) <= set(NEEDS)


def test_every_code_of_the_table_is_tested_here() -> None:
    tested = {code for _, codes in SERVED for code in codes}
    of_name_servers = {code for code, need in NEEDS.items() if need.is_of_names}
    assert set(NEEDS) <= tested | of_name_servers


@pytest.mark.parametrize(
    ("code", "header"),
    [(code, header) for code, header in REQUEST_HEADERS.items() if code in NEEDS],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_fields_that_name_resources_are_those_of_the_header(
    code: int, header: type[Header]
) -> None:
    assert header.__module__ in (headers.__name__, pop_headers.__name__)
    known = set(header.__struct_encode_fields__)
    assert {resource.field for resource in NEEDS[code].fields} <= known


def test_denial_of_an_administrators_request_names_it() -> None:
    text = denial(AccessRules([account()]), signed(17, {"topic": "orders"}))
    assert text == "account 'app-account' has no admin permission for request 17"


def test_request_that_names_no_topic_where_it_must_is_denied() -> None:
    rules = AccessRules([account(default_topic=PUB | SUB, default_group=SUB)])
    text = denial(rules, signed(36, {"group": "G", "originTopic": ""}))
    assert text == "request 36 of account 'app-account' names no topic ('originTopic')"


def test_request_may_leave_out_what_is_optional() -> None:
    rules = AccessRules([account(groups={"G": SUB})])
    assert rules.check(signed(37, {"producerGroup": "P"}), PEER) is None
    assert rules.check(signed(35, {"producerGroup": "P", "clientID": "c"}), PEER) is None
    assert rules.check(signed(208, {"consumerGroup": "G"}), PEER) is None


def test_body_that_cannot_be_read_is_denied() -> None:
    rules = AccessRules([account(default_topic=PUB | SUB, default_group=SUB)])
    text = denial(rules, signed(34, {}, b"{{{"))
    assert text.startswith("request 34 of account 'app-account': ")


def test_every_topic_of_a_heartbeat_and_of_a_lock_is_looked_at() -> None:
    rules = AccessRules([account(default_topic=SUB, default_group=SUB, topics={"T": DENY})])
    for code in (34, 41):
        text = denial(rules, signed(code, {}, BODIES[code]))
        assert text == "account 'app-account' has no SUB permission for topic 'T'"


# ---- name servers --------------------------------------------------------------------------------

ROUTES = [101, 105, 106, 206, 219, 224, 304, 311, 312, 313, 319, 901]
REGISTRATION = [103, 104, 322, 904]


@pytest.mark.parametrize("code", [*ROUTES, *REGISTRATION])
def test_open_name_server_needs_no_account(code: int) -> None:
    assert AccessRules([account()]).check(Command(code, {"topic": "T"}), PEER) is None


def test_closed_name_server_needs_an_account_for_routes_and_an_administrator_for_brokers() -> None:
    rules = AccessRules([account(), ADMIN], is_name_server_open=False)
    for code in (*ROUTES, *REGISTRATION):
        denial(rules, Command(code))
        assert (rules.check(signed(code), PEER) is None) == (code in ROUTES)
        assert rules.check(signed(code, key="root-account", secret="root-secret"), PEER) is None


def test_every_code_in_the_table_is_a_request_code() -> None:
    assert set(NEEDS) <= {int(code) for code in RequestCode}
    assert NEEDS[int(RequestCode.UPDATE_NAMESRV_CONFIG)] == Need(role=Role.ADMIN)
