from __future__ import annotations

from typing import Any

import pytest

from downrange.client.flows.admin.brokers import (
    broker_figures,
    broker_settings,
    change_broker_settings,
    clean_up,
    name_servers,
    read_properties,
    set_writable,
)
from downrange.errors import OptionError, PartlyDone
from downrange.wire.bodies import KeyValueBody
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.headers import AddWritePermissionReply, WipeWritePermissionReply
from tests.unit.client.flows.admin.test_changes import DEADLINE, cluster, servers_with
from tests.unit.client.flows.fake_servers import NAME_SERVER, refusal, reply

GET, SET = RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG


def test_properties_are_read_as_java_writes_them() -> None:
    text = "#Tue Jan 01\n a = 1 \npath=C\\:\\\\dir\\tx\nempty=\nnoise\n"
    assert read_properties(text) == {"a": "1", "path": "C:\\dir\tx", "empty": ""}


def test_settings_are_read_from_one_broker_or_all() -> None:
    servers = servers_with(cluster(main="ab"))
    servers.answer("a:1", GET, reply(body=b"x=1\n"))
    servers.answer("b:1", GET, reply(body=b"x=2\n"))
    everything = servers.run(broker_settings(servers.core, deadline=DEADLINE))
    assert everything == {"a": {"x": "1"}, "b": {"x": "2"}}
    one = servers.run(broker_settings(servers.core, "b", deadline=DEADLINE))
    assert one == {"b": {"x": "2"}}
    with pytest.raises(OptionError, match="are not among"):
        servers.run(broker_settings(servers.core, "z", deadline=DEADLINE))


def test_a_change_is_checked_by_reading_it_again() -> None:
    servers = servers_with(cluster(main="a"))
    servers.answer("a:1", SET, reply())
    servers.answer("a:1", GET, reply(body=b"x=C\\:\\\\d\n"))

    def change(changes: Any) -> dict[str, dict[str, str]]:
        return servers.run(change_broker_settings(servers.core, changes, deadline=DEADLINE))

    assert change({"x": "C:\\d"}) == {"a": {"x": "C:\\d"}}
    sent = [command.body for _, command in servers.calls if command.code == SET]
    assert sent == [b"x=C:\\\\d\n"]
    with pytest.raises(OptionError, match=r"broker a at a:1 ignored y='1': it has no such"):
        change({"y": "1"})
    with pytest.raises(OptionError, match=r"ignored x='1': it has 'C:"):
        change({"x": "1"})
    for changes, words in (
        ({}, "names no setting"),
        ([], "changes must be a dict"),
        ({"x": 1}, r"changes\['x'\] must be a str"),
        ({"a b": "1"}, "does not fit one line"),
        ({"a": "1\n2"}, "does not fit one line"),
    ):
        with pytest.raises(OptionError, match=words):
            change(changes)


def test_figures_are_sorted_by_name() -> None:
    servers = servers_with(cluster(main="a"))
    body = KeyValueBody(table={"b": "2", "a": "1"})
    servers.answer("a:1", RequestCode.GET_BROKER_RUNTIME_INFO, reply(body=body))
    found = servers.run(broker_figures(servers.core, deadline=DEADLINE))
    assert list(found["a"].items()) == [("a", "1"), ("b", "2")]


def test_a_clean_up_that_one_broker_refuses_names_both() -> None:
    servers = servers_with(cluster(main="ab"))
    code = RequestCode.DELETE_EXPIRED_COMMITLOG
    for broker in "ab":
        servers.answer(f"{broker}:1", code, reply())
    assert servers.run(clean_up(servers.core, "log", deadline=DEADLINE)) == ["a", "b"]
    servers.answer("b:1", code, refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
    with pytest.raises(PartlyDone, match="clean up log: done on a, but not on b"):
        servers.run(clean_up(servers.core, "log", deadline=DEADLINE))
    with pytest.raises(OptionError, match="what='disk'"):
        servers.run(clean_up(servers.core, "disk", deadline=DEADLINE))  # type: ignore[arg-type]


def test_name_servers_announce_a_broker_as_read_only_and_back() -> None:
    servers = servers_with(cluster(main="a"))
    wiped, added = WipeWritePermissionReply(3), AddWritePermissionReply(4)
    servers.answer(NAME_SERVER, RequestCode.WIPE_WRITE_PERM_OF_BROKER, reply(wiped))
    servers.answer(NAME_SERVER, RequestCode.ADD_WRITE_PERM_OF_BROKER, reply(added))
    assert servers.run(set_writable(servers.core, "a", False, deadline=DEADLINE)) == 3
    assert servers.run(set_writable(servers.core, "a", True, deadline=DEADLINE)) == 4
    with pytest.raises(OptionError, match="are not among"):
        servers.run(set_writable(servers.core, "z", True, deadline=DEADLINE))


def test_each_name_server_tells_its_settings_or_why_not() -> None:
    servers = servers_with(cluster(main="a"))
    code = RequestCode.GET_NAMESRV_CONFIG
    servers.answer(NAME_SERVER, code, reply(body=b"listenPort=9876\n"))
    (found,) = servers.run(name_servers(servers.core, deadline=DEADLINE))
    assert (found.address, found.settings, found.problem) == (
        NAME_SERVER,
        {"listenPort": "9876"},
        None,
    )
    servers.answer(NAME_SERVER, code, refusal(ResponseCode.SYSTEM_ERROR, "broken"))
    (found,) = servers.run(name_servers(servers.core, deadline=DEADLINE))
    assert (found.settings, found.problem) == ({}, "code 1: broken")
