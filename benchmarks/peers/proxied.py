"""Apache RocketMQ 5.5.0 with its gRPC proxy inside the broker's process.

So all clients of a comparison use the same broker, and gRPC pays for no further process between.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.apache.artifacts import resolve
from tests.apache.cluster import ApacheCluster
from tests.apache.ports import draw_name_server_port
from tests.apache.processes import ChildProcess

if TYPE_CHECKING:
    from tests.apache.brokers import BrokerProcess

VERSION = "5.5.0"
_MAIN_CLASS = "org.apache.rocketmq.proxy.ProxyStartup"
_HEAP_MIB = 2048


class ProxiedCluster(ApacheCluster):
    """One name server, and one broker that answers the remoting protocol and gRPC.

    Attributes:
        proxy_port: The port of gRPC.
    """

    def __init__(self) -> None:
        """Describe the cluster; `with` starts it.

        Raises:
            ApacheUnavailable: Java or the jars are missing.
        """
        artifacts = resolve(VERSION, with_proxy=True)
        super().__init__(VERSION, artifacts=artifacts, purpose="benchmark")
        self.proxy_port = 0

    @property
    def proxy(self) -> str:
        """Return "127.0.0.1:port" of gRPC."""
        return f"127.0.0.1:{self.proxy_port}"

    def _launch_broker(self, broker: BrokerProcess) -> None:
        self.proxy_port = draw_name_server_port()
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "grpcServerPort": self.proxy_port,
            "remotingListenPort": draw_name_server_port(),
            "localServeAddr": "127.0.0.1",
        }
        proxy_file = broker.folder / "rmq-proxy.json"
        proxy_file.write_text(json.dumps(settings), encoding="utf-8")
        command = self._java(_MAIN_CLASS, broker.folder, _HEAP_MIB, self._server_properties())
        command.insert(1, "-XX:MaxDirectMemorySize=1g")
        arguments = ["-pm", "local", "-n", self.name_server]
        arguments += ["-bc", str(broker.configuration), "-pc", str(proxy_file)]
        broker.log_start = broker.log.stat().st_size if broker.log.exists() else 0
        broker.child = ChildProcess(
            broker.name,
            [*command, *arguments],
            output=broker.log,
            directory=broker.folder,
            environment=self._environment(),
        )
