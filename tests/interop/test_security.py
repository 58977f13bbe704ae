"""Java clients that sign their requests or use TLS, on our servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from downrange.embedded import Cluster
from downrange.options import ListenerOptions
from downrange.server.access.file import AccessFile
from downrange.server.run.cluster import ClusterOptions, ClusterServer
from downrange.server.run.runner import ServerThread
from downrange.tls import client_context, server_context
from tests.apache import probe
from tests.apache.fixtures import ACCOUNTS
from tests.apache.java_client import JavaClient, JavaError, body_of, message
from tests.apache.security import make_tls_files
from tests.interop.scene import Addresses, Scene
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

    from tests.apache.fixtures import ApacheVersions, UniqueName

USER = ACCOUNTS.others[0]
NO_PERMISSION = 16


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Addresses]:
    """Give our cluster with the same accounts as Apache's clusters with access control."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "plain_acl.yml"
    file.write_text(ACCOUNTS.plain_acl_yaml(), encoding="utf-8")
    server = ClusterServer(ClusterOptions(store=str(folder / "store")), access=AccessFile(file))
    with ServerThread(server):
        yield Addresses(server.name_server.address, [server.brokers[0].address])


def test_accounts_may_do_what_the_access_file_says(
    guarded: Addresses, java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    scene = Scene(java, guarded, unique_name, stopper)
    body = unique_name("body").encode()
    signed, unsigned = scene.producer(account=USER), scene.producer()
    assert scene.send(signed, [message("OpenTopic", body)])[0]["status"] == "SEND_OK"
    for producer, topic in ((unsigned, "OpenTopic"), (signed, "OtherTopic")):
        with pytest.raises(JavaError) as refused:
            scene.send(producer, [message(topic, b"refused")])
        assert refused.value.code == NO_PERMISSION
    consumer = scene.consumer("OpenTopic", "OpenGroup", account=USER)
    wait_until(lambda: body in [body_of(one) for one in scene.java.received(consumer, 0)])
    scene.stop(signed, unsigned, consumer)


def test_members_that_let_the_broker_share_the_queues_need_the_same_permissions(
    guarded: Addresses,
    apache_versions: ApacheVersions,
    unique_name: UniqueName,
    stopper: ThreadPoolExecutor,
) -> None:
    scene = Scene(apache_versions.java_client("5.5.0"), guarded, unique_name, stopper)
    body, options = unique_name("body").encode(), {"clientRebalance": False}
    producer = scene.producer(account=USER)
    scene.send(producer, [message("OpenTopic", body)])
    consumer = scene.consumer("OpenTopic", "OpenGroup", account=USER, options=options)
    wait_until(lambda: body in [body_of(one) for one in scene.java.received(consumer, 0)])
    admin = Scene(scene.java, guarded, unique_name, stopper, account=ACCOUNTS.admin)
    words = ("setConsumeMode", "-t", "OpenTopic", "-g", "OpenGroup", "-m", "PULL")
    user = Scene(scene.java, guarded, unique_name, stopper, account=USER)
    assert "CODE: 16" in user.mqadmin(*words, "-b", guarded.brokers[0])
    assert "success" in admin.mqadmin(*words, "-b", guarded.brokers[0])
    scene.stop(producer, consumer)


def test_tools_sign_for_the_administrator(
    guarded: Addresses, java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor
) -> None:
    admin = Scene(java, guarded, unique_name, stopper, account=ACCOUNTS.admin)
    stranger = Scene(java, guarded, unique_name, stopper, account=USER)
    topic, broker = unique_name("topic"), guarded.brokers[0]
    assert "CODE: 16" in stranger.mqadmin("updateTopic", "-t", topic, "-b", broker)
    assert "success" in admin.mqadmin("updateTopic", "-t", topic, "-b", broker)
    assert "V5_5_0" in admin.mqadmin("clusterList")
    producer = admin.producer()
    (sent,) = admin.send(producer, [message(topic, b"signed", keys="k")])
    assert sent["msgId"] in admin.mqadmin("queryMsgByKey", "-t", topic, "-k", "k")
    found = admin.mqadmin("queryMsgByUniqueKey", "-t", topic, "-i", sent["msgId"])
    assert "Queue Offset" in found
    admin.stop(producer)


def test_clients_speak_tls(
    java: JavaClient, unique_name: UniqueName, stopper: ThreadPoolExecutor, tmp_path: Path
) -> None:
    files = make_tls_files(tmp_path)
    listener = ListenerOptions(tls_mode="enforcing")
    with (
        Cluster(
            tls=server_context(files.certificate, files.key),
            client_tls=client_context(ca=files.authority),
            listener=listener,
        ) as cluster,
        JavaClient(java.version, java.artifacts, tls=files) as secured,
    ):
        for address in (cluster.name_server, *cluster.brokers):
            with pytest.raises(OSError, match=r"closed|reset"):
                probe.call(address, probe.GET_ROUTE, {"topic": "TBW102"})
        scene = Scene(secured, cluster, unique_name, stopper)
        patient = {"sendMsgTimeout": 30_000}  # the first TLS handshake of a JVM takes a while
        topic, producer = unique_name("topic"), scene.producer(options=patient)
        (sent,) = scene.send(producer, [message(topic, b"secret", keys="k")])
        assert sent["status"] == "SEND_OK"
        assert [body_of(one) for one in scene.received(scene.consumer(topic), 1)] == [b"secret"]
        route = json.loads(_json_of(scene.mqadmin("topicRoute", "-t", topic)))
        assert route["brokerDatas"][0]["brokerName"] == "broker-a"


def _json_of(printed: str) -> str:
    """Return the JSON of a tool's output, with quotes added to its numeric key."""
    text = printed[printed.index("{\n") : printed.rindex("}") + 1]
    return text.replace("0:", '"0":')
