from __future__ import annotations

import pytest

from downrange.server.broker.born_hosts import born_host
from downrange.wire import system_names
from downrange.wire.codes import SysFlag


@pytest.mark.parametrize("topic", ["a", "A-b_c%d|9", "x" * 127, "%RETRY%" + "g" * 248])
def test_a_legal_topic_has_no_problem(topic: str) -> None:
    assert system_names.topic_problem(topic) is None


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("a b", "illegal characters"),
        ("a/b", "illegal characters"),
        ("..", "illegal characters"),
        ("a\n", "illegal characters"),
        ("über", "illegal characters"),
        ("\x00", "illegal characters"),
        ("x" * 128, "longer than topic max length 127"),
        ("%DLQ%" + "g" * 251, "longer than topic max length 255"),
    ],
)
def test_an_illegal_topic_has_its_problem_named(topic: str, problem: str) -> None:
    assert problem in (system_names.topic_problem(topic) or "")


@pytest.mark.parametrize(
    ("group", "problem"),
    [("", "blank"), ("g" * 121, "longer than group max length 120"), ("a.b", "illegal")],
)
def test_an_illegal_group_has_its_problem_named(group: str, problem: str) -> None:
    assert problem in (system_names.group_problem(group) or "")
    assert system_names.group_problem("g" * 120) is None


def test_the_brokers_own_topics_are_told_from_others() -> None:
    assert system_names.is_system_topic("TBW102")
    assert system_names.is_system_topic("rmq_sys_wheel_timer")
    assert not system_names.is_system_topic("%RETRY%G")
    assert system_names.retry_topic("G") == "%RETRY%G"
    assert system_names.dead_letter_topic("G") == "%DLQ%G"


@pytest.mark.parametrize(
    ("address", "ip", "port", "flag"),
    [
        ("10.0.0.7:41732", "0a000007", 41732, 0),
        ("[::1]:9", "00" * 15 + "01", 9, int(SysFlag.BORN_HOST_V6)),
        ("[fe80::1%eth0]:9", "fe80" + "00" * 13 + "01", 9, int(SysFlag.BORN_HOST_V6)),
        ("[::ffff:10.0.0.7]:9", "0a000007", 9, 0),
    ],
)
def test_a_born_host_is_read_from_any_kind_of_address(
    address: str, ip: str, port: int, flag: int
) -> None:
    assert born_host(address) == (bytes.fromhex(ip), port, flag)
