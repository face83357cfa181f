"""The engine ``ray``: each client is trained in an actor of a Ray cluster, on any of its nodes.

This module and the gateway do not import Ray. The *driver* (`ray_driver`), a process of its own, is connected to Ray. A thread
of the learner (`ray_connection`) starts the driver, and exchanges packets with it.

Ray places a worker, and reports its end. Ray does not restart a worker: a revived worker would have the key of a worker that
was replaced. The learner starts another worker with a new key, as for a process.
"""

from __future__ import annotations

import itertools

from rl4sys_zmq.config import ResourcesConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.engines.base import EngineEntry, GatewayEndpoints, WorkerAssignment
from rl4sys_zmq.learner.engines.remote_start import RemoteWorkerStart
from rl4sys_zmq.remote.handle import RemoteWorker
from rl4sys_zmq.remote.ray_connection import RayDriverThread, RayProcess
from rl4sys_zmq.remote.ray_process import LOCAL, cluster_address, placement_problem, ray_amounts

LOOPBACK, ALL_INTERFACES = "tcp://127.0.0.1:0", "tcp://0.0.0.0:0"


class RayEngine:
    def __init__(self, gateway: GatewayEndpoints) -> None:
        self._gateway, self._config = gateway, gateway.config
        address = cluster_address(self._config.ray_address)
        self._bind = LOOPBACK if address == LOCAL else ALL_INTERFACES
        self._known = set(gateway.resumed)
        self._numbers = itertools.count(1)
        self._connection = RayDriverThread(address)
        self._connection.start()

    def start(self, assignment: WorkerAssignment) -> RemoteWorker:
        """Start a worker that trains one client, as soon as there is a connection to Ray and a node for it.

        The first worker of a new client fails if no node has the resources. Later ones wait, because a lost node can return.
        """
        client_id, number = assignment.client_id, next(self._numbers)
        wanted, waits = ray_amounts(self._resources(client_id)), client_id in self._known
        self._known.add(client_id)

        def launch(start: RemoteWorkerStart) -> RayProcess:
            process = RayProcess(number, client_id, wanted, start, waits=waits)
            self._connection.add(process)
            return process

        advertise = "" if self._bind == LOOPBACK else self._config.advertise or ""
        return RemoteWorker(assignment, self._gateway.connect_worker(assignment, self._bind, advertise), launch)

    def wait_ready(self) -> None:
        """Wait until the driver is connected to Ray, and check the resources of the clients in the configuration."""
        self._connection.wait_connected()
        for client_id, entry in self._config.clients.items():
            if (entry.engine or self._config.engine).lower() == ENTRY.name and client_id not in self._gateway.resumed:
                problem = placement_problem(ray_amounts(self._resources(client_id)), self._connection.nodes)
                if problem:
                    key = f"clients.{client_id}.resources"
                    raise ConfigError(f"{key}: {problem}; change the resources, or add a node to the cluster", key=key)

    def close(self) -> None:
        self._connection.stop()
        self._connection.join()

    def _resources(self, client_id: str) -> ResourcesConfig:
        return self._config.client(client_id).resources or ResourcesConfig()


ENTRY = EngineEntry(
    name="ray",
    factory=RayEngine,
    summary="an actor of a Ray cluster, on any of its nodes",
    reserves=True,
    isolated=True,
)
