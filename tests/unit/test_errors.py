"""The exception tree: as in its docstring, with its facts, also after pickling."""

from __future__ import annotations

import copy
import pickle
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from downrange import errors
from downrange.errors import RocketMQError
from downrange.model import (
    Attempt,
    BatchReceipt,
    LogOffset,
    QueueId,
    QueueOffset,
    ReceivedMessage,
)

if TYPE_CHECKING:
    from collections.abc import Callable

CUT = Attempt("a", "a:1", 0, errors.ConnectionLost("a:1", "cut"), 0.5)
AWAY = Attempt("a", "a:1", 0, errors.ConnectFailed("a:1", "refused"), 0.5)
BUSY = Attempt("b", "b:1", 3, errors.SystemBusy(2, None, "b:1"), 0.75)
RECEIVED = ReceivedMessage(
    message_id="A1",
    queue=QueueId("orders", "a", 0),
    offset=QueueOffset(7),
    body=b"",
    properties={},
    offset_id="0",
    log_offset=LogOffset(0),
    flag=0,
    born_at_ms=0,
    born_host="p:1",
    stored_at_ms=0,
)
LISTED = (
    "\n  1. a a:1 queue 0: ConnectionLost after 0.5 s (cut)"
    "\n  2. b b:1 queue 3: SystemBusy after 0.8 s (code 2)"
)

#: One of each kind that carries facts, with the facts and the text.
SAMPLES: list[tuple[RocketMQError, dict[str, Any], str]] = [
    (RocketMQError("text"), {}, "text"),
    (errors.OptionError("text"), {}, "text"),
    (
        errors.MissingExtra("the console", "console"),
        {"feature": "the console", "extra": "console"},
        "the console needs the extra 'console': run pip install '.[console]' in the checkout",
    ),
    (errors.InvalidMessage("text"), {"code": 13}, "text"),
    (
        errors.InvalidSql("a ! 5", 2, "'!' is not a word", "write <>"),
        {"expression": "a ! 5", "position": 2, "problem": "'!' is not a word"}
        | {"remedy": "write <>", "code": None, "retryable": False},
        "'!' is not a word: write <>\n  a ! 5\n    ^",
    ),
    (errors.ClientStateError("text"), {}, "text"),
    (
        errors.NotStarted("the client"),
        {},
        "the client is not started: use it in a with statement, or call start()",
    ),
    (errors.ClientClosed("the client"), {}, "the client is closed; make a new one"),
    (
        errors.GroupNotFound("billing", ["a:1", "b:1"]),
        {"group": "billing", "addresses": ("a:1", "b:1"), "address": "a:1, b:1"},
        "group 'billing' does not exist on a:1, b:1.\n"
        "  `downrange group list` shows all groups, `downrange group create billing` makes it.",
    ),
    (
        errors.PartlyDone(
            "create group 'billing'", ["a"], {"b": errors.ConnectionLost("b:1", "no reply")}
        ),
        {"what": "create group 'billing'", "done": ("a",), "address": "b:1", "retryable": True},
        "create group 'billing': done on a, but not on b:\n"
        "  b b:1: ConnectionLost, no reply\n"
        "  Repeat the call when they answer; it does no harm to the others.",
    ),
    (
        errors.GroupTaken("producer", "shop"),
        {"group": "shop"},
        "this client already has a producer of group 'shop'; close that one first, use another "
        "group, or give each its own client",
    ),
    (
        errors.ForkedClient("the client"),
        {},
        "the client was started before this process was forked; make a new one in the child, for "
        "example in a post-fork hook of the web server",
    ),
    (
        errors.WrongEventLoop("the client", False, "MainThread"),
        {},
        "the client was started on another event loop, in thread 'MainThread'; use it there, for "
        "example with asyncio.run_coroutine_threadsafe(), or make one for each loop",
    ),
    (errors.NoNameServer("text"), {"code": 10004}, "text"),
    (
        errors.CheckFailed(["dns", "tcp"]),
        {"findings": ("dns", "tcp")},
        "doctor found problems:\n  1. dns\n  2. tcp",
    ),
    (
        errors.RouteNotFound("orders", ["ns:1", "ns:2"], "."),
        {"topic": "orders", "addresses": ("ns:1", "ns:2"), "code": 10005, "retryable": False},
        "topic 'orders' has no route at ns:1, ns:2.",
    ),
    (
        errors.SendFailed("orders", [CUT, BUSY], 1.25),
        {"topic": "orders", "elapsed": 1.25, "code": 2, "address": "b:1", "retryable": True}
        | {"may_be_stored": True, "message_id": None},
        f"a message for 'orders' may have been stored: not confirmed after 2 attempts in 1.2 s:"
        f"{LISTED}",
    ),
    (
        errors.SendTimedOut("orders", [], 3.0),
        {"topic": "orders", "attempts": (), "code": 10002, "address": None, "retryable": True}
        | {"may_be_stored": False},
        "a message for 'orders' was not stored after 0 attempts in 3.0 s:"
        "\n  Give it more time with timeout=, or look at the brokers with `downrange doctor`.",
    ),
    (
        errors.SendUnreachable("orders", [AWAY], 1.0, "ID"),
        {"topic": "orders", "code": 10001, "address": "a:1", "retryable": True}
        | {"may_be_stored": False, "message_id": "ID"},
        "message ID for 'orders' was not stored after 1 attempt in 1.0 s:"
        "\n  1. a a:1 queue 0: ConnectFailed after 0.5 s (refused)"
        "\n  These addresses come from the name server; `downrange doctor` shows which of them "
        "are reachable from here.",
    ),
    (
        errors.SendNotPermitted("orders", [], 1.0),
        {"topic": "orders"},
        "a message for 'orders' was not stored after 0 attempts in 1.0 s:"
        "\n  Check the access key and its rights, and the topic with `downrange topic show`.",
    ),
    (
        errors.BatchFailed(
            errors.SystemBusy(2, "busy", "b:1", "orders"), stored=BatchReceipt((), ()), unsent=[]
        ),
        {"topic": "orders", "stored": BatchReceipt((), ()), "unsent": (), "attempts": (), "code": 2}
        | {"address": "b:1", "retryable": True},
        "0 messages of a list were stored, then a request failed; those after it were not sent: "
        "b:1 answered with code 2: busy (flow control: send more slowly, or to more brokers)",
    ),
    (
        errors.TooManySends("in_flight_max", 10, 0.25),
        {"limit": "in_flight_max", "retryable": True},
        "in_flight_max=10 is reached, and no reply came within 0.25 s; send more slowly, raise the "
        "limit, or give more time",
    ),
    (errors.SendForbidden("text"), {"retryable": False}, "text"),
    (
        errors.RequestTimedOut("orders", 2.5),
        {"topic": "orders", "timeout": 2.5, "code": 10006},
        "a request was sent to 'orders', but no reply came within 2.5 s; is a consumer of that "
        "topic running and does it reply?",
    ),
    (errors.SettleError("A1", "text"), {"message_id": "A1", "retryable": False}, "text"),
    (
        errors.AlreadySettled("A1", "was acknowledged"),
        {"message_id": "A1", "outcome": "was acknowledged"},
        "message A1 was acknowledged already; nothing was done",
    ),
    (
        errors.ReceiptExpired("A1", "2026-01-02 03:04:05 UTC"),
        {"message_id": "A1", "expired_at": "2026-01-02 03:04:05 UTC"},
        "message A1 was invisible to others until 2026-01-02 03:04:05 UTC, and this is later: it "
        "is delivered again, to any member of the group.\n  Receive with a longer `invisible`, "
        "call extend() in time, or use processing(), which does so.",
    ),
    (
        errors.ReceiptMissing("A1"),
        {"message_id": "A1"},
        "this is a copy of message A1, made by pickle, copy or replace: settle the object that "
        "receive() returned. Until then, the message is delivered again when its time is over.",
    ),
    (
        errors.ClosedUnsettled("A1", "2026-01-02 03:04:05 UTC"),
        {"message_id": "A1", "visible_at": "2026-01-02 03:04:05 UTC"},
        "the consumer was closed before message A1 was settled: it is delivered again at "
        "2026-01-02 03:04:05 UTC, to any member of the group",
    ),
    (
        errors.AcksFailed([(RECEIVED, errors.CallTimeout("b:1", 3.0))]),
        {"message_id": "A1", "retryable": True},
        "1 messages were not acknowledged:\n  A1: b:1: no answer within 3 s",
    ),
    (
        errors.ServerError(99, None, "b:1", "orders"),
        {"code": 99, "remark": None, "address": "b:1", "topic": "orders", "retryable": False},
        "b:1 answered with code 99",
    ),
    (
        errors.ServerFailure(1, "oops", "b:1"),
        {"code": 1, "remark": "oops", "topic": None, "retryable": True},
        "b:1 answered with code 1: oops",
    ),
    (
        errors.SqlNotSupported(1, "no", "b:1"),
        {"code": 1, "remark": "no", "retryable": False},
        "b:1 answered with code 1: no (set enablePropertyFilter=true in the broker's settings; "
        "Apache's default is false)",
    ),
    (
        errors.SystemBusy(2, "busy", "b:1"),
        {"code": 2, "retryable": True},
        "b:1 answered with code 2: busy (flow control: send more slowly, or to more brokers)",
    ),
    (
        errors.NotSupported(3, None, "b:1"),
        {"code": 3, "retryable": False},
        "b:1 answered with code 3 (an older server, or a name server's address where a broker's "
        "should be)",
    ),
    (
        errors.PopNotSupported(3, "no", "b:1"),
        {"code": 3, "retryable": False},
        "b:1 answered with code 3: no\n  Pop consumption needs RocketMQ 5. With an older broker, "
        "use PullConsumer or PushConsumer.",
    ),
    (errors.MessageRefused(13, "no", "b:1"), {"code": 13}, "b:1 answered with code 13: no"),
    (
        errors.ServiceNotAvailable(14, "no", "b:1"),
        {"code": 14, "retryable": True},
        "b:1 answered with code 14: no",
    ),
    (
        errors.NoPermission(16, "no", "b:1"),
        {"code": 16, "retryable": False},
        "b:1 answered with code 16: no (check the access key, its rights, and the topic's "
        "permission)",
    ),
    (
        errors.TopicNotFound(17, "no", "b:1"),
        {"code": 17, "retryable": True},
        "b:1 answered with code 17: no (create it with `downrange topic create`)",
    ),
    (errors.NotFound(22, "no", "b:1"), {"code": 22}, "b:1 answered with code 22: no"),
    (
        errors.QueueMoved(501, "no", "b:1"),
        {"code": 501, "retryable": True},
        "b:1 answered with code 501: no (a static topic's queue: the name server has no newer "
        "broker for it yet)",
    ),
    (
        errors.BrokerNotFound("ns:1", "no broker is registered", "orders"),
        {"code": 10003, "address": "ns:1", "topic": "orders", "retryable": True},
        "ns:1: no broker is registered",
    ),
    (errors.HostNotFound("x:1", "name not found"), {"code": 10001}, "x:1: name not found"),
    (errors.TlsFailed("x:1", "no trust"), {"code": 10001}, "x:1: no trust"),
    (errors.LinkError("text"), {}, "text"),
    (errors.LinkClosed("text"), {}, "text"),
    (
        errors.TooManyInFlight(5),
        {"limit": 5},
        "5 requests are in flight on this connection, its limit",
    ),
    (
        errors.TransportError("broker:1", "odd"),
        {"address": "broker:1", "problem": "odd"},
        "broker:1: odd",
    ),
    (errors.ConnectFailed("broker:1", "refused"), {"address": "broker:1"}, "broker:1: refused"),
    (errors.ConnectionLost("broker:1", "cut"), {"address": "broker:1"}, "broker:1: cut"),
    (
        errors.CallTimeout("broker:1", 0.5),
        {"address": "broker:1", "timeout": 0.5, "problem": "no answer within 0.5 s"},
        "broker:1: no answer within 0.5 s",
    ),
    (
        errors.CannotListen("127.0.0.1:9876", "taken"),
        {"address": "127.0.0.1:9876", "problem": "taken"},
        "cannot listen on 127.0.0.1:9876: taken",
    ),
    (errors.StoreError("text"), {}, "text"),
    (
        errors.StoreLocked("data"),
        {"folder": "data"},
        "store folder data is in use by another process; stop it first",
    ),
    (errors.DiskFull("a/b"), {"path": "a/b"}, "no space left on the disk for a/b"),
    (
        errors.CorruptStore("a/b", 7, "wrong"),
        {"path": "a/b", "position": 7, "problem": "wrong"},
        "a/b at byte 7: wrong",
    ),
    (
        errors.OffsetsInUse("a.lock", "g", "77"),
        {"path": "a.lock", "group": "g", "owner": "77"},
        "the offsets of group 'g' are in use by process 77 (a.lock is locked): close that "
        "consumer, or give each its own folder or instance",
    ),
    (
        errors.CorruptOffsets("a.json", "wrong"),
        {"path": "a.json", "problem": "wrong"},
        "a.json has no offsets that can be read: wrong. Restore it from a copy, or remove it: the "
        "group then begins as a new one, at `start`",
    ),
    (errors.WireError("here", "wrong"), {"where": "here", "problem": "wrong"}, "here: wrong"),
    (
        errors.FrameTooLarge(11, 10),
        {"size": 11, "limit": 10, "where": "frame length"},
        "frame length: 11 bytes are more than the limit of 10",
    ),
    (errors.MalformedFrame("here", "wrong"), {"where": "here"}, "here: wrong"),
    (errors.MalformedCommand("here", "wrong"), {"where": "here"}, "here: wrong"),
    (
        errors.MissingField("PullRequest", "topic"),
        {"field": "topic", "where": "PullRequest"},
        "PullRequest: field 'topic' is missing",
    ),
    (
        errors.InvalidField("PullRequest", "queueId", "'x' is not a whole number"),
        {"field": "queueId", "where": "PullRequest"},
        "PullRequest: field 'queueId': 'x' is not a whole number",
    ),
    (errors.MalformedBody("here", "wrong"), {"where": "here"}, "here: wrong"),
    (
        errors.MalformedRecord(7, "wrong"),
        {"position": 7, "problem": "wrong"},
        "record at byte 7: wrong",
    ),
    (errors.MalformedId("here", "wrong"), {"where": "here"}, "here: wrong"),
    (errors.Unencodable("here", "wrong"), {"where": "here"}, "here: wrong"),
]
each_sample = pytest.mark.parametrize(
    ("error", "facts", "text"), SAMPLES, ids=[type(sample[0]).__name__ for sample in SAMPLES]
)


def drawn_tree() -> dict[str, tuple[str | None, list[str]]]:
    """Read the docstring: class -> its parent in the tree, and its other bases."""
    tree: dict[str, tuple[str | None, list[str]]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ((?:[│├└─ ]{4})*)(\w+)(?: \((\w+)\))?(?:  |$)", line):
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            others = [found[3]] if found[3] else []
            tree[found[2]] = (path[depth - 1] if depth else None, others)
    return tree


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    real: dict[str, tuple[str | None, list[str]]] = {}
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, RocketMQError):
            ours = [b.__name__ for b in kind.__bases__ if issubclass(b, RocketMQError)]
            others = [b.__name__ for b in kind.__bases__ if not issubclass(b, RocketMQError)]
            real[name] = (ours[0] if ours else None, [b for b in others if b != "Exception"])
    assert drawn_tree() == real


def test_every_error_has_a_sample_here() -> None:
    assert {type(sample[0]).__name__ for sample in SAMPLES} == set(drawn_tree())


@each_sample
def test_an_error_has_its_text_and_its_facts(
    error: RocketMQError, facts: dict[str, Any], text: str
) -> None:
    assert str(error) == text
    assert repr(error) == f"{type(error).__name__}({text!r})"
    assert {name: getattr(error, name) for name in facts} == facts


@each_sample
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_a_pickle(
    error: RocketMQError, facts: dict[str, Any], text: str, protocol: int
) -> None:
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert (str(again), again.args) == (text, error.args)
    assert {name: getattr(again, name) for name in facts} == facts


@each_sample
def test_an_error_can_be_copied(error: RocketMQError, facts: dict[str, Any], text: str) -> None:
    error.add_note("noted")
    again = copy.copy(error)
    assert str(again) == text
    assert again.__notes__ == ["noted"]
    assert {name: getattr(again, name) for name in facts} == facts


@each_sample
def test_an_error_has_what_its_handling_needs(
    error: RocketMQError, facts: dict[str, Any], text: str
) -> None:
    assert isinstance(error.retryable, bool)
    assert error.code is None or isinstance(error.code, int)
    assert error.address is None or isinstance(error.address, str)
    assert error.topic is None or isinstance(error.topic, str)


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.OptionError, ValueError),
        (errors.InvalidMessage, ValueError),
        (errors.MissingExtra, ImportError),
        (errors.CallTimeout, TimeoutError),
        (errors.SendTimedOut, TimeoutError),
        (errors.TooManySends, TimeoutError),
        (errors.RequestTimedOut, TimeoutError),
        (errors.ConnectFailed, ConnectionError),
        (errors.HostNotFound, ConnectionError),
        (errors.TlsFailed, ConnectionError),
        (errors.ConnectionLost, ConnectionError),
        (errors.SendUnreachable, ConnectionError),
        (errors.NoPermission, PermissionError),
        (errors.SendNotPermitted, PermissionError),
    ],
)
def test_our_errors_are_caught_as_what_they_are_in_python(
    kind: type[RocketMQError], base: type[Exception]
) -> None:
    assert issubclass(kind, base)


def test_a_failed_send_survives_a_pickle_with_its_attempts() -> None:
    again = pickle.loads(pickle.dumps(errors.SendFailed("orders", [CUT, BUSY], 1.25)))
    assert [str(attempt) for attempt in again.attempts] == [str(CUT), str(BUSY)]
    assert [attempt.error.code for attempt in again.attempts] == [None, 2]


# ---- errors of servers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, errors.ServerFailure),
        (2, errors.SystemBusy),
        (3, errors.NotSupported),
        (13, errors.MessageRefused),
        (14, errors.ServiceNotAvailable),
        (16, errors.NoPermission),
        (17, errors.TopicNotFound),
        (22, errors.NotFound),
        (208, errors.NotFound),
        (501, errors.QueueMoved),
        (4711, errors.ServerError),
    ],
)
def test_a_refusal_has_the_class_of_its_code(code: int, kind: type[errors.ServerError]) -> None:
    error = errors.server_error(code, "why", "b:1", "orders")
    assert type(error) is kind
    assert (error.code, error.remark, error.address, error.topic) == (code, "why", "b:1", "orders")


def test_an_access_check_of_4_9_brokers_is_a_lack_of_permission() -> None:
    remark = "org.apache.rocketmq.acl.common.AclException: Check signature failed"
    assert type(errors.server_error(1, remark, "b:1")) is errors.NoPermission
    assert type(errors.server_error(2, remark, "b:1")) is errors.SystemBusy
    assert type(errors.server_error(1, None, "b:1")) is errors.ServerFailure


@pytest.mark.parametrize(
    "remark",
    [
        "subscription group [billing] does not exist, \nSee https://rocketmq.apache.org/docs",
        "subscription group not exist, billing See https://rocketmq.apache.org/docs",
        "Group billing not exist!",
    ],
)
def test_a_group_that_a_broker_does_not_have_is_named_with_the_next_step(remark: str) -> None:
    error = errors.server_error(26, remark, "b:1")
    assert (type(error), error.code, error.remark) == (errors.ServerError, 26, remark)
    assert str(error) == (
        "b:1 does not have group 'billing' (code 26).\n"
        "  Create it with `downrange group create billing`."
    )
    assert str(errors.server_error(26, "unknown", "b:1")) == "b:1 answered with code 26: unknown"


def test_a_member_that_is_not_connected_is_looked_for_in_the_list() -> None:
    error = errors.server_error(1, "The Consumer <billing> <10.0.0.1@7> not online", "b:1")
    assert str(error) == (
        "b:1 answered with code 1: The Consumer <billing> <10.0.0.1@7> not online.\n"
        "  `downrange group members billing` shows the connected members."
    )


# ---- errors of name servers ----------------------------------------------------------------------


def test_name_servers_that_failed_alike_make_an_error_of_that_kind() -> None:
    failures = [errors.HostNotFound("a:1", "no name"), errors.HostNotFound("b:1", "no name")]
    error = errors.no_name_server_answered(failures)
    assert type(error) is errors.HostNotFound
    assert "a:1 (no name), b:1 (no name)" in str(error)
    assert (error.address, error.problem, error.retryable) == ("a:1", "no name", True)
    assert "downrange doctor a:1" in str(error)


def test_a_server_that_is_not_a_name_server_may_give_no_reason() -> None:
    error = errors.not_a_name_server(None, "b:1")
    assert str(error).startswith("b:1 is not a name server: it answered with code 3.\n")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_name_servers_that_failed_in_different_ways_cannot_be_reached() -> None:
    failures = [errors.CallTimeout("a:1", 1.0), errors.ConnectFailed("b:1", "refused")]
    error = errors.no_name_server_answered(failures)
    assert type(error) is errors.ConnectFailed
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# ---- lists that were sent in part ----------------------------------------------------------------


def test_a_list_that_failed_carries_the_attempts_of_what_stopped_it() -> None:
    stopped = errors.SendFailed("orders", [CUT, BUSY], 1.25, "A,B,C")
    error = errors.BatchFailed(stopped, stored=BatchReceipt((), ()), unsent=[])
    assert (error.attempts, error.elapsed, error.topic) == ((CUT, BUSY), 1.25, "orders")
    assert (error.code, error.address, error.retryable) == (2, "b:1", True)
    assert (error.may_be_stored, error.message_id) == (True, "A,B,C")


# ---- what is known of a message that was not confirmed -------------------------------------------


@pytest.mark.parametrize(
    ("error", "may_be_stored"),
    [
        (errors.ConnectionLost("a:1", "cut"), True),
        (errors.CallTimeout("a:1", 1.0), True),
        (errors.MissingField("SendReply", "queueOffset"), True),
        (errors.ServerError(10, "flush disk timeout", "a:1"), True),
        (errors.ConnectFailed("a:1", "refused"), False),
        (errors.SystemBusy(2, None, "a:1"), False),
        (errors.TooManyInFlight(1), False),
        (errors.Unencodable("property", "odd"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_message_may_be_stored_when_the_outcome_of_an_attempt_is_unknown(
    error: RocketMQError, may_be_stored: bool
) -> None:
    attempt = Attempt("a", "a:1", 0, error, 0.5)
    failed = errors.SendFailed("orders", [attempt, AWAY], 1.0, "ID")
    assert (attempt.may_be_stored, failed.may_be_stored) == (may_be_stored, may_be_stored)
    assert ("may have been stored" in str(failed)) is may_be_stored
    assert ("was not stored" in str(failed)) is not may_be_stored


def test_a_batch_is_named_by_its_first_message() -> None:
    failed = errors.SendFailed("orders", [AWAY], 1.0, "A,B,C")
    assert str(failed).startswith("a batch of message A and 2 more for 'orders' was not stored")


# ---- raised by handlers --------------------------------------------------------------------------

MESSAGE = ReceivedMessage(
    message_id="ID",
    queue=QueueId("t", "b", 0),
    offset=QueueOffset(7),
    body=b"",
    properties={},
    offset_id="",
    log_offset=LogOffset(0),
    flag=0,
    born_at_ms=0,
    born_host="",
    stored_at_ms=0,
)


@pytest.mark.parametrize(
    ("signal", "facts", "text"),
    [
        (errors.Retry(), {"after": None}, "deliver the message again after the usual"),
        (errors.Retry(after=30), {"after": 30}, "deliver the message again after 30 s"),
        (errors.Retry(0), {"after": 0}, "deliver the message again after 0 s"),
        (
            errors.DeadLetter("no such customer"),
            {"reason": "no such customer"},
            "the message is to become a dead letter: no such customer",
        ),
        (
            errors.RetrySome([MESSAGE], after=1.5),
            {"messages": (MESSAGE,), "after": 1.5},
            "deliver 1 of the messages again after 1.5 s",
        ),
        (
            errors.RetrySome(iter([])),
            {"messages": (), "after": None},
            "deliver 0 of the messages again",
        ),
    ],
)
def test_what_a_handler_raises_carries_its_facts_and_can_be_pickled(
    signal: Exception, facts: dict[str, object], text: str
) -> None:
    for one in (signal, pickle.loads(pickle.dumps(signal)), copy.copy(signal)):
        assert type(one) is type(signal)
        assert {name: getattr(one, name) for name in facts} == facts
        assert str(one).startswith(text)
        assert not isinstance(one, errors.RocketMQError)


@pytest.mark.parametrize(
    ("signal", "text"),
    [
        (errors.RetrySome([MESSAGE] * 3), "RetrySome(3 messages)"),
        (errors.RetrySome([MESSAGE], after=1.5), "RetrySome(1 message, after=1.5)"),
        (errors.RetrySome([]), "RetrySome(0 messages)"),
    ],
)
def test_a_log_line_counts_the_messages_to_retry_and_does_not_show_them(
    signal: errors.RetrySome, text: str
) -> None:
    for one in (signal, pickle.loads(pickle.dumps(signal))):
        assert repr(one) == text
        assert one.messages == signal.messages


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: errors.Retry(-1), "after=-1 is not a number of seconds, 0 or above"),
        (lambda: errors.Retry(True), "after=True is not a number"),
        (lambda: errors.Retry(float("nan")), "after=nan is not a number"),
        (lambda: errors.Retry(float("inf")), "after=inf is not a number"),
        (lambda: errors.Retry("30"), "after='30' is not a number"),  # type: ignore[arg-type]
        (
            lambda: errors.Retry(timedelta(seconds=1)),  # type: ignore[arg-type]
            r"give its total_seconds\(\)",
        ),
        (lambda: errors.DeadLetter(" "), "reason=' ' is not a text; say why"),
        (lambda: errors.DeadLetter(None), "reason=None is not a text"),  # type: ignore[arg-type]
        (
            lambda: errors.RetrySome(MESSAGE),  # type: ignore[arg-type]
            "messages must be a list of messages .* not a ReceivedMessage",
        ),
        (lambda: errors.RetrySome("ab"), "not a str"),  # type: ignore[arg-type]
        (lambda: errors.RetrySome([1]), "not a list of other things"),  # type: ignore[list-item]
        (lambda: errors.RetrySome([], -1), "after=-1 is not"),
    ],
)
def test_a_wrong_argument_of_what_a_handler_raises_is_named(
    make: Callable[[], Exception], text: str
) -> None:
    with pytest.raises(errors.OptionError, match=text):
        make()


def test_many_failed_acks_are_not_all_listed() -> None:
    error = errors.AcksFailed([(RECEIVED, errors.AlreadySettled("A1", "was given back"))] * 12)
    assert str(error).count("\n") == 11
    assert str(error).endswith("and 2 more")
    assert len(error.failures) == 12
    assert not error.retryable
