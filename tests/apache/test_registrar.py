"""Our registrar at Apache's name servers, for a broker that does not exist."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from downrange.server.net.remote import RemotePeer
from downrange.server.outputs import BrokerIdentity
from downrange.server.run.registrar import Registrar
from downrange.wire.bodies import DataVersion, RouteBody, TopicConfig, TopicTableBody, decode_body
from downrange.wire.codes import ResponseCode
from downrange.wire.fields import request_command
from downrange.wire.headers import DeleteKeyValueRequest, PutKeyValueRequest, RouteRequest

if TYPE_CHECKING:
    from tests.apache.cluster import ApacheCluster
    from tests.apache.fixtures import UniqueName

WAIT = 60.0


async def _route(remote: RemotePeer, topic: str) -> RouteBody | None:
    reply = await remote.ask(request_command(RouteRequest(topic=topic)), WAIT)
    return decode_body(RouteBody, reply.body) if reply.code == ResponseCode.SUCCESS else None


def test_our_broker_has_routes_at_apache_until_it_unregisters(
    apache: ApacheCluster, unique_name: UniqueName
) -> None:
    names = [unique_name("topic") for _ in range(3)]
    identity = BrokerIdentity(
        name=unique_name("broker"),
        cluster=unique_name("cluster"),
        broker_id=0,
        address="127.0.0.1:1",
        ha_address="127.0.0.1:2",
    )
    table = TopicTableBody(data_version=DataVersion(timestamp=1, counter=1))
    order_topics: list[dict[str, str]] = []

    def add(name: str) -> TopicConfig:
        topic = TopicConfig(topic_name=name, read_queue_nums=3, write_queue_nums=3)
        table.topic_config_table[name] = topic
        return topic

    async def scenario() -> None:
        client = RemotePeer(apache.name_server)
        order = PutKeyValueRequest(namespace="ORDER_TOPIC_CONFIG", key=names[0], value="x:3")
        await client.ask(request_command(order), WAIT)
        add(names[0])
        add(names[1])
        registrar = Registrar(
            identity,
            [apache.name_server],
            lambda: table,
            on_order_topics=order_topics.append,
            announce_timeout=WAIT,
        )
        await registrar.start()
        assert order_topics[0][names[0]] == "x:3"
        route = await _route(client, names[0])
        assert route is not None
        assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}
        assert (route.broker_datas[0].broker_name, route.broker_datas[0].cluster) == (
            identity.name,
            identity.cluster,
        )
        assert [queues.read_queue_nums for queues in route.queue_datas] == [3]

        added = add(names[2])  # now with a table of one topic only
        await registrar.announce([added], DataVersion(timestamp=1, counter=2))
        assert await _route(client, names[2]) is not None
        assert await _route(client, names[0]) is not None

        await registrar.stop()
        async with asyncio.timeout(WAIT):
            while await _route(client, names[0]) is not None:  # noqa: ASYNC110 - a thread of 5.x
                await asyncio.sleep(0.05)
        delete = DeleteKeyValueRequest(namespace="ORDER_TOPIC_CONFIG", key=names[0])
        await client.ask(request_command(delete), WAIT)
        await client.close()

    asyncio.run(scenario())
