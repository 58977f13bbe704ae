"""Clients that run the network checks before they start."""

from __future__ import annotations

import asyncio

import pytest

from downrange import AsyncClient, Client, Producer
from downrange.embedded import Cluster
from downrange.errors import CheckFailed
from downrange.model import Message
from downrange.options import ClientOptions

CHECKING = ClientOptions(check_on_start=True)


def test_a_client_starts_when_all_checks_pass() -> None:
    with (
        Cluster(brokers=2) as cluster,
        Producer(cluster.name_server, group="g", client_options=CHECKING) as producer,
    ):
        assert producer.send(Message("orders", b"1")).attempts == 1

        async def start() -> None:
            async with AsyncClient(cluster.name_server, options=CHECKING) as client:
                assert client.state == "running"

        asyncio.run(start())


def test_a_client_does_not_start_with_one_of_its_name_servers_away() -> None:
    with Cluster() as cluster:
        servers = [cluster.name_server, "127.0.0.1:1"]
        with pytest.raises(CheckFailed, match=r"1\. name server 127\.0\.0\.1:1, tcp") as caught:
            Client(servers, options=CHECKING).start()
        assert len(caught.value.findings) == 1

        async def start() -> None:
            await AsyncClient(servers, options=CHECKING).start()

        with pytest.raises(CheckFailed, match="connection refused"):
            asyncio.run(start())
