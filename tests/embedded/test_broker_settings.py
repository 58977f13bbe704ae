"""Settings of a broker over real sockets: permission, retention, what a restart keeps, VIP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from downrange import ClientOptions, Message, Producer
from downrange.embedded import Cluster
from downrange.errors import OptionError
from downrange.options import BrokerOptions
from downrange.wire.bodies import RouteBody, decode_body
from downrange.wire.codes import RequestCode, ResponseCode
from downrange.wire.command import Command
from downrange.wire.fields import request_command
from downrange.wire.headers import RouteRequest
from tests.embedded.brokers import bodies, connection, create_request, pull_request, send

if TYPE_CHECKING:
    from downrange.server import BrokerServer


def change(address: str, text: str) -> Command:
    """Change settings as mqadmin does."""
    with connection(address) as peer:
        return peer.ask(Command(int(RequestCode.UPDATE_BROKER_CONFIG), body=text.encode()))


def settings_of(address: str) -> dict[str, str]:
    with connection(address) as peer:
        reply = peer.ask(Command(int(RequestCode.GET_BROKER_CONFIG)))
    return dict(line.split("=", 1) for line in reply.body.decode().splitlines())


def perm_of(cluster: Cluster, topic: str) -> int:
    with connection(cluster.name_server) as peer:
        reply = peer.ask(request_command(RouteRequest(topic=topic)))
    (queues,) = decode_body(RouteBody, reply.body).queue_datas
    return queues.perm


def broker_of(cluster: Cluster) -> BrokerServer:
    return cluster.server.brokers[0]


# ---- permission --------------------------------------------------------------------------------


def test_a_broker_told_not_to_accept_sends_refuses_them_and_its_routes_say_so() -> None:
    with Cluster() as cluster:
        address = cluster.brokers[0]
        assert send(address, b"before") == 0
        assert change(address, "brokerPermission=4\n").code == 0
        # The reply comes after the announcement.
        assert (perm_of(cluster, "T"), perm_of(cluster, "TBW102")) == (4, 4)
        assert send(address, b"refused") == ResponseCode.NO_PERMISSION
        assert bodies(address) == [b"before"]
        with connection(address) as peer:
            assert peer.ask(create_request("Later")).code == 0
        assert perm_of(cluster, "Later") == 4
        assert change(address, "brokerPermission=6\n").code == 0
        assert (perm_of(cluster, "T"), perm_of(cluster, "TBW102")) == (6, 7)
        assert perm_of(cluster, "Later") == 6
        assert send(address, b"after") == 0


def test_a_broker_told_not_to_answer_pulls_refuses_them_and_accepts_sends() -> None:
    with Cluster(broker=BrokerOptions(permission=2)) as cluster:
        address = cluster.brokers[0]
        assert send(address, b"1") == 0
        assert perm_of(cluster, "T") == 2
        with connection(address) as peer:
            refused = peer.ask(pull_request(0))
        assert (refused.code, refused.fields) == (16, {"forbiddenType": "1"})


def test_a_producer_goes_to_the_broker_that_accepts_sends() -> None:
    with (
        Cluster(brokers=2) as cluster,
        Producer(cluster.name_server, group="P") as producer,
    ):
        with connection(cluster.brokers[0]) as first, connection(cluster.brokers[1]) as second:
            assert first.ask(create_request("T")).code == second.ask(create_request("T")).code == 0
        # The first send learns a route in which both brokers accept sends.
        producer.send(Message("T", b"0"))
        assert change(cluster.brokers[0], "brokerPermission=4").code == 0
        receipts = [producer.send(Message("T", b"%d" % number)) for number in range(1, 9)]
        assert {receipt.queue.broker for receipt in receipts} == {"broker-b"}


# ---- kept over a restart -----------------------------------------------------------------------


def test_changes_are_in_the_store_before_they_are_confirmed(tmp_path: Path) -> None:
    with Cluster(store=tmp_path) as cluster:
        address = cluster.brokers[0]
        assert change(address, "fileReservedTime=48\nbrokerPermission=4\n").code == 0
        cluster.kill_broker()
        saved = json.loads((tmp_path / "config" / "brokerSettings.json").read_bytes())
        assert saved["changes"]["fileReservedTime"] == {"configured": "72", "value": "48"}
        cluster.restart_broker()
        settings = settings_of(address)
        assert (settings["fileReservedTime"], settings["brokerPermission"]) == ("48", "4")
        assert broker_of(cluster).state.retention.keep_hours == 48
        assert send(address, b"x") == ResponseCode.NO_PERMISSION
        assert perm_of(cluster, "TBW102") == 4


def test_an_option_given_after_a_change_wins(tmp_path: Path) -> None:
    with Cluster(store=tmp_path) as cluster:
        assert change(cluster.brokers[0], "flushDiskType=SYNC_FLUSH\nmaxMessageSize=9\n").code == 0
    with Cluster(store=tmp_path) as cluster:  # the same options as before: the changes apply
        assert settings_of(cluster.brokers[0])["flushDiskType"] == "SYNC_FLUSH"
        assert broker_of(cluster)._listener._busy_poll is None
    with Cluster(store=tmp_path, broker=BrokerOptions(message_bytes_max=1000)) as cluster:
        settings = settings_of(cluster.brokers[0])
        assert (settings["flushDiskType"], settings["maxMessageSize"]) == ("SYNC_FLUSH", "1000")


def test_retention_follows_a_change_at_once(tmp_path: Path) -> None:
    with Cluster(store=tmp_path) as cluster:
        address = cluster.brokers[0]
        settings = settings_of(address)
        assert settings["fileReservedTime"] == "72"
        assert settings["storePathRootDir"] == str(tmp_path)
        assert settings["mappedFileSizeConsumeQueue"] == "6000000"
        assert settings["aclEnable"] == "false"
        assert change(address, "diskSpaceWarningLevelRatio=1\n").code == 1, "below the other one"
        text = "diskSpaceCleanForciblyRatio=0\ndiskSpaceWarningLevelRatio=0\n"
        assert change(address, text).code == 1
        assert change(address, "fileReservedTime=1\ncleanResourceInterval=100\n").code == 0
        state = broker_of(cluster).state
        assert (state.retention.keep_hours, state.options.retention_interval) == (1, 0.1)


def test_a_change_of_what_cannot_change_is_an_error() -> None:
    with Cluster() as cluster:
        for text, code in (("listenPort=1\n", 16), ("deleteWhen=04\n", 16), ("traceOn=maybe\n", 1)):
            reply = change(cluster.brokers[0], text)
            assert reply.code == code
            assert text.partition("=")[0] in (reply.remark or "")


def test_the_guide_names_every_setting() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/serving.md").read_text()
    with Cluster() as cluster:
        shown = settings_of(cluster.brokers[0])
    assert [name for name in shown if f"`{name}`" not in guide] == []


# ---- VIP channel -------------------------------------------------------------------------------


def test_a_client_of_the_vip_channel_sends_to_a_broker_that_has_one() -> None:
    options = ClientOptions(vip_channel=True)
    with (
        Cluster(vip=True) as cluster,
        Producer(cluster.name_server, group="P", client_options=options) as producer,
    ):
        host, _, port = cluster.brokers[0].rpartition(":")
        vip = f"{host}:{int(port) - 2}"
        assert broker_of(cluster).vip_address == vip
        producer.send(Message("T", b"1"))
        assert vip in producer.client.stats().connections
        with connection(vip) as peer:  # the same service: it answers all requests
            assert peer.ask(pull_request(0)).code in (ResponseCode.SUCCESS, 19)


def test_a_broker_has_no_vip_channel_unless_told() -> None:
    with Cluster() as cluster:
        assert broker_of(cluster).vip_address is None


@pytest.mark.parametrize(
    ("ports", "problem"),
    [
        ({"broker_port": 2}, "broker_port=2 leaves no port for the VIP channel"),
        ({"broker_port": 9878, "nameserver_port": 9876}, "nameserver_port=9876 is the VIP channel"),
    ],
)
def test_ports_that_cannot_have_a_vip_channel_are_refused_at_once(
    ports: dict[str, int], problem: str
) -> None:
    with pytest.raises(OptionError, match=problem):
        Cluster(vip=True, **ports)  # type: ignore[arg-type]
    Cluster(**ports)  # type: ignore[arg-type]
