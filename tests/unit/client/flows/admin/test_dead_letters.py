from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from downrange.client.flows.admin.dead_letters import (
    dead_letters,
    resend_dead_letters,
    resent_id,
    retry_now,
    send_again,
)
from downrange.client.flows.admin.reports import DeadLetterPage, DeadMessage, Resent
from downrange.errors import (
    GroupNotFound,
    MalformedBody,
    OptionError,
    RouteNotFound,
    ServerFailure,
)
from downrange.model import QueueId
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.headers import OffsetReply, PullReply, QueryReply, SendReply, SendRequestV2
from downrange.wire.properties import decode_properties
from tests.unit.client.flows.admin.test_changes import DEADLINE
from tests.unit.client.flows.admin.test_groups import servers_with_groups
from tests.unit.client.flows.fake_servers import FakeServers, record, refusal, reply, route

PULL = RequestCode.PULL_MESSAGE
SEND = RequestCode.SEND_MESSAGE_V2
FOUND = QueryReply(index_last_update_timestamp=0, index_last_update_phyoffset=0)
DEAD = (
    "UNIQ_KEY\x01ID\x02KEYS\x01k\x02TAGS\x01t\x02own\x01p\x02RETRY_TOPIC\x01orders\x02"
    "ORIGIN_MESSAGE_ID\x01OFFSET\x02DELAY\x013\x02REAL_TOPIC\x01x\x02"
)


def pulled(topic: str, records: dict[int, bytes], *, step: int = 2) -> Any:
    """Return the answer of a queue with these records, a few per pull."""

    def answer(command: Command) -> Command:
        begin = int(command.fields["queueOffset"])
        count = min(int(command.fields["maxMsgNums"]), step)
        found = [offset for offset in sorted(records) if offset >= begin][:count]
        end = max(records, default=-1) + 1
        header = PullReply(
            suggest_which_broker_id=0,
            next_begin_offset=found[-1] + 1 if found else begin,
            min_offset=0,
            max_offset=end,
        )
        code = 0 if found else int(ResponseCode.PULL_NOT_FOUND)
        return Command(code, header.to_fields(), b"".join(records[each] for each in found))

    return answer


def servers_with_letters(
    count: int = 3, *, properties: str = DEAD, namespace: str | None = None
) -> FakeServers:
    group = "billing" if namespace is None else f"{namespace}%billing"
    topic = f"%DLQ%{group}"
    servers = servers_with_groups(group, namespace=namespace)
    servers.answer_route(topic, route("ab", queues=1))
    servers.answer_route("orders", route("ab", queues=1))
    servers.answer_route("%RETRY%billing", route("a", queues=1))
    letters = {
        offset: record(topic, offset, properties=properties, stored_ms=1000 * offset)
        for offset in range(count)
    }
    servers.answer("a:1", PULL, pulled(topic, letters))
    servers.answer("b:1", PULL, pulled(topic, {}))
    for broker in "ab":
        servers.answer(f"{broker}:1", RequestCode.GET_MIN_OFFSET, reply(OffsetReply(0)))
        servers.answer(f"{broker}:1", RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, reply(OffsetReply(1)))
        servers.answer(
            f"{broker}:1", RequestCode.QUERY_MESSAGE, refusal(ResponseCode.QUERY_NOT_FOUND)
        )
        sent = SendReply(msg_id="X", queue_id=0, queue_offset=1)
        servers.answer(f"{broker}:1", SEND, reply(sent))
    return servers


def servers_with_broken_letter() -> FakeServers:
    servers = servers_with_letters(1)
    topic = "%DLQ%billing"
    broken = record(topic, 0, properties=DEAD, body=b"not zlib", sys_flag=1)
    servers.answer("a:1", PULL, pulled(topic, {0: broken}))
    return servers


def page_of(servers: FakeServers, **how: Any) -> DeadLetterPage:
    return servers.run(dead_letters(servers.core, "billing", deadline=DEADLINE, **how))


def letters_of(servers: FakeServers) -> tuple[DeadMessage, ...]:
    return page_of(servers).letters


def offsets(page: DeadLetterPage) -> list[int]:
    return [letter.message.offset for letter in page.letters]


# ---- reading -------------------------------------------------------------------------------------


def test_dead_letters_say_where_they_came_from() -> None:
    servers = servers_with_letters()
    page = page_of(servers)
    assert (offsets(page), page.is_complete) == ([0, 1, 2], True)
    letter = page.letters[1]
    assert (letter.group, letter.topic, letter.origin_id) == ("billing", "orders", "OFFSET")
    assert letter.died_at == datetime.fromtimestamp(1, UTC)


def test_dead_letters_of_5x_and_of_unknown_origin() -> None:
    new = "DLQ_ORIGIN_TOPIC\x01prod%orders\x02DLQ_ORIGIN_MESSAGE_ID\x01M\x02"
    (letter,) = letters_of(servers_with_letters(1, properties=new, namespace="prod"))
    assert (letter.topic, letter.origin_id) == ("orders", "M")
    (letter,) = letters_of(servers_with_letters(1, properties="UNIQ_KEY\x01ID\x02"))
    assert (letter.topic, letter.origin_id) == (None, "ID")


def test_a_page_ends_at_its_limit_and_the_next_one_goes_on() -> None:
    servers = servers_with_letters(5)
    first = page_of(servers, max_count=3)
    assert (offsets(first), first.is_complete) == ([0, 1, 2], False)
    queue = QueueId("%DLQ%billing", "a", 0)
    assert first.next[queue] == 3
    rest = page_of(servers, max_count=3, after=first.next)
    assert (offsets(rest), rest.is_complete) == ([3, 4], True)


def test_a_page_can_be_limited_to_a_period() -> None:
    servers = servers_with_letters(5)
    begin, end = (datetime.fromtimestamp(second, UTC) for second in (1, 3))
    page = page_of(servers, begin=begin, end=end)
    assert (offsets(page), page.is_complete) == ([1, 2, 3], True)


def test_a_group_without_dead_letters_is_empty_unless_it_does_not_exist() -> None:
    servers = servers_with_letters()
    servers.answer_route("%DLQ%billing", None)
    assert page_of(servers) == DeadLetterPage(group="billing")
    with pytest.raises(GroupNotFound):
        servers.run(dead_letters(servers.core, "gone", deadline=DEADLINE))


def test_dead_letters_are_listed_though_a_body_cannot_be_decompressed() -> None:
    servers = servers_with_broken_letter()
    with pytest.raises(MalformedBody):
        page_of(servers)
    (letter,) = page_of(servers, decode_body=False).letters
    assert (letter.message.body, letter.message.compression) == (b"not zlib", "zlib")


# ---- sending again -------------------------------------------------------------------------------


def resend(servers: FakeServers, letters: Any, **how: Any) -> list[Resent]:
    return servers.run(resend_dead_letters(servers.core, letters, timeout=3.0, **how))


def sent(servers: FakeServers) -> tuple[SendRequestV2, dict[str, str]]:
    header = SendRequestV2.from_fields(servers.fields(SEND))
    return header, decode_properties(header.properties or "")


def test_a_dead_letter_is_sent_again_with_a_mark() -> None:
    servers = servers_with_letters(1)
    (letter,) = letters_of(servers)
    (result,) = resend(servers, [letter])
    assert (result.outcome, result.topic, result.problem) == ("sent", "orders", None)
    header, properties = sent(servers)
    assert (header.topic, header.reconsume_times) == ("orders", 0)
    assert properties == {
        "KEYS": "k",
        "TAGS": "t",
        "own": "p",
        "ORIGIN_MESSAGE_ID": "OFFSET",
        "UNIQ_KEY": resent_id(letter),
        "RESENT_DEAD_LETTER": letter.message.offset_id,
    }
    assert len(result.message_id) == 32
    assert result.message_id[8:10] == "FF"
    assert servers.calls[-1][1].body == b"x"


def test_a_body_that_is_still_compressed_is_sent_as_it_is() -> None:
    servers = servers_with_broken_letter()
    letters = page_of(servers, decode_body=False).letters
    assert [each.outcome for each in resend(servers, letters)] == ["sent"]
    assert (sent(servers)[0].sys_flag, servers.calls[-1][1].body) == (0x301, b"not zlib")


def test_an_earlier_copy_that_cannot_be_decompressed_is_known() -> None:
    servers = servers_with_broken_letter()
    (letter,) = page_of(servers, decode_body=False).letters
    unique = f"UNIQ_KEY\x01{resent_id(letter)}\x02"
    copy = record("orders", 5, properties=unique, body=b"not zlib", sys_flag=1)
    servers.answer("b:1", RequestCode.QUERY_MESSAGE, reply(FOUND, body=copy))
    assert [each.outcome for each in resend(servers, [letter])] == ["skipped"]


def test_copies_of_a_message_stay_compressed() -> None:
    servers = servers_with_letters()
    text = "UNIQ_KEY\x01M\x02"
    stored = record("orders", 5, properties=text, body=b"not zlib", sys_flag=1)
    servers.answer("a:1", RequestCode.QUERY_MESSAGE, reply(FOUND, body=stored))
    for flow in (
        send_again(servers.core, "orders", "M", deadline=DEADLINE),
        retry_now(servers.core, "billing", "orders", "M", deadline=DEADLINE),
    ):
        servers.run(flow)
        assert (sent(servers)[0].sys_flag, servers.calls[-1][1].body) == (0x301, b"not zlib")


def test_a_retry_goes_to_the_group_only() -> None:
    servers = servers_with_letters(1)
    (result,) = resend(servers, letters_of(servers), to="retry")
    header, properties = sent(servers)
    assert (result.topic, header.topic) == ("%RETRY%billing", "%RETRY%billing")
    assert properties["RETRY_TOPIC"] == "orders"


def test_what_an_earlier_run_has_sent_is_skipped() -> None:
    servers = servers_with_letters(1)
    (letter,) = letters_of(servers)
    again = record("orders", 5, properties=f"UNIQ_KEY\x01{resent_id(letter)}\x02")
    servers.answer("b:1", RequestCode.QUERY_MESSAGE, reply(FOUND, body=again))
    assert [each.outcome for each in resend(servers, [letter], rate=1.0)] == ["skipped"]
    assert not servers.asked(SEND)
    (result,) = resend(servers, [letter], skip_resent=False)
    assert result.outcome == "sent"


def test_a_letter_that_cannot_be_sent_does_not_stop_the_others() -> None:
    servers = servers_with_letters(2)
    unknown = servers_with_letters(1, properties="UNIQ_KEY\x01ID\x02")
    letters = [*letters_of(unknown), *letters_of(servers)]
    refused = refusal(ResponseCode.SYSTEM_ERROR, "disk full")
    stored = reply(SendReply(msg_id="X", queue_id=0, queue_offset=1))
    for broker in "ab":
        servers.answer(f"{broker}:1", SEND, refused, stored)
    results = resend(servers, letters)
    assert [each.outcome for each in results] in (
        ["failed", "failed", "sent"],
        ["failed", "failed", "failed"],
    )
    assert results[0].problem == "the message does not name the topic that it was sent to"
    assert "disk full" in (results[1].problem or "")


def test_a_rate_is_kept_between_messages() -> None:
    servers = servers_with_letters(3)
    resend(servers, letters_of(servers), rate=4.0)
    assert servers.interpreter.pauses == [0.25, 0.25]


def test_wrong_arguments_are_refused_before_the_first_message() -> None:
    servers = servers_with_letters()
    for how, words in (
        ({"rate": 0}, "rate=0 is not a number of messages per second"),
        ({"to": "there"}, "to='there'"),
    ):
        with pytest.raises(OptionError, match=words):
            resend(servers, [], **how)
    with pytest.raises(OptionError, match="each of letters must be a DeadMessage"):
        resend(servers, ["x"])


def test_messages_with_a_sharding_key_go_to_the_same_queue() -> None:
    servers = servers_with_letters(4, properties=f"{DEAD}__SHARDINGKEY\x01s\x02")
    servers.answer_route("orders", route("a", queues=8))
    resend(servers, letters_of(servers))
    numbers = {command.fields["e"] for _, command in servers.calls if command.code == int(SEND)}
    assert len(numbers) == 1
    assert sent(servers)[1]["__SHARDINGKEY"] == "s"


def test_a_copy_of_a_message_is_given_to_a_group_at_once() -> None:
    servers = servers_with_letters()
    message = record("orders", 5, properties="UNIQ_KEY\x01M\x02own\x01p\x02")
    servers.answer("a:1", RequestCode.QUERY_MESSAGE, reply(FOUND, body=message))
    new_id = servers.run(retry_now(servers.core, "billing", "orders", "M", deadline=DEADLINE))
    header, properties = sent(servers)
    assert header.topic == "%RETRY%billing"
    assert properties == {
        "own": "p",
        "ORIGIN_MESSAGE_ID": "M",
        "RETRY_TOPIC": "orders",
        "UNIQ_KEY": new_id,
    }
    servers.answer("a:1", SEND, refusal(ResponseCode.SYSTEM_ERROR, "disk full"))
    with pytest.raises(ServerFailure, match="disk full"):
        servers.run(retry_now(servers.core, "billing", "orders", "M", deadline=DEADLINE))


def test_a_group_that_never_had_a_member_cannot_get_a_message() -> None:
    servers = servers_with_letters()
    message = record("orders", 5, properties="UNIQ_KEY\x01M\x02")
    servers.answer("a:1", RequestCode.QUERY_MESSAGE, reply(FOUND, body=message))
    with pytest.raises(RouteNotFound, match="no member of group 'idle' was ever connected"):
        servers.run(retry_now(servers.core, "idle", "orders", "M", deadline=DEADLINE))


def test_send_again_stores_a_copy_in_the_topic() -> None:
    servers = servers_with_letters()
    text = "UNIQ_KEY\x01M\x02own\x01p\x02DELAY\x013\x02__SHARDINGKEY\x01s\x02KEYS\x01k\x02"
    message = record("orders", 5, properties=text)
    servers.answer("a:1", RequestCode.QUERY_MESSAGE, reply(FOUND, body=message))
    new_id = servers.run(send_again(servers.core, "orders", "M", deadline=DEADLINE))
    header, properties = sent(servers)
    assert header.topic == "orders"
    assert properties == {
        "own": "p",
        "KEYS": "k",
        "__SHARDINGKEY": "s",
        "ORIGIN_MESSAGE_ID": "M",
        "UNIQ_KEY": new_id,
    }


def test_letters_before_the_begin_are_left_out_though_a_broker_returns_one() -> None:
    """A 4.9 broker finds the message nearest to a time."""
    page = page_of(servers_with_letters(), begin=datetime.fromtimestamp(1.5, UTC))
    assert [letter.message.offset for letter in page.letters] == [2]
