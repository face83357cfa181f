"""The engine that runs each actor on a node of a Ray cluster, as a child process of a Ray actor.

This module does not import Ray; its driver (`ray_driver`), a process behind a socketpair, does. Ray places an actor, and reports
its end. The fleet restarts it.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
from collections.abc import Callable, Sequence
from typing import Any, Final

from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.fleet.engine import TERMINATE_S, ActorEngine, ActorHandle, ActorReport
from rl4sys_zmq.learner.engines.packets import encode_packet
from rl4sys_zmq.remote.ray_process import (
    CLOSE_S,
    CONNECTED,
    ENDED,
    WAITING,
    DriverProcess,
    cluster_address,
    described_cluster,
    nodes_text,
    placement_problem,
)

CPU: Final = {"CPU": 1.0}
"""The resources that Ray reserves for an actor of a fleet, by Ray's names."""

START: Final = "start"
"""To the driver: start an actor. Fields: ``number``, the ``arguments`` of its Python process, and its working ``folder``."""

STOP: Final = "stop"
"""To the driver: begin to end an actor. Fields: ``number`` and ``grace_s``, as in `ActorHandle.stop`."""

NEWS: Final = "news"
"""From the driver: the newest ``report`` of an actor as JSON (empty if there is none), and ``lines`` of its output."""

DRIVER_LOST = 1
"""The exit code of an actor whose driver has ended."""
_PROGRAM = "from rl4sys_zmq.fleet.ray_driver import main; main()"


class RayActorHandle(ActorHandle):
    """A handle to one actor on a node of a Ray cluster. `number` names the actor in packets to and from the driver."""

    def __init__(self, index: int, number: int, start: bytes, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self.index, self.number = index, number
        self.sent = False
        self._start, self._send = start, send

    def request_start(self) -> None:
        self.sent = True
        self._send(self._start)

    def stop(self, grace_s: float) -> None:
        """Tell the driver to end the actor, as `ActorHandle.stop` says. The actor's node does the later steps."""
        if not self.sent:
            self.exit_code = -signal.SIGTERM
        elif self.alive:
            self._send(encode_packet(STOP, number=self.number, grace_s=grace_s if self.report is not None else 0.0))


class RayActorEngine(ActorEngine):
    """The engine that starts each actor of a fleet on a node of a Ray cluster. An actor reserves one CPU.

    Use the engine in one thread.
    """

    def __init__(
        self,
        arguments: Callable[[int, int], Sequence[str]],
        address: str | None,
        on_output: Callable[[int, str], None] = lambda index, line: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Connect to the cluster within a minute.

        Args:
            arguments: Function that gets the arguments of `start`, and returns the command line of an actor after ``python``.
            address: The address of the cluster. None: that in ``RAY_ADDRESS``, else a local Ray.
            on_output: Function that gets the index of an actor and a line of its output.
            say: Function that gets messages for a person.
        """
        self._arguments, self._on_output, self._say = arguments, on_output, say
        self._address = cluster_address(address)
        self._numbers = itertools.count(1)
        self._handles: dict[int, RayActorHandle] = {}
        self._driver: DriverProcess | None = None
        self._nodes: list[dict[str, Any]] = []
        self._problem = ""
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def start(self, index: int, start: int) -> RayActorHandle:
        """Start an actor as soon as a node has a free CPU. If the driver has ended, start another driver first."""
        driver = self._driver or self._start_driver()
        number = next(self._numbers)
        packet = encode_packet(START, number=number, arguments=list(self._arguments(index, start)), folder=os.getcwd())
        handle = self._handles[number] = RayActorHandle(index, number, packet, driver.outbox.append)
        if driver.connected:
            handle.request_start()
        return handle

    def poll(self, timeout_s: float) -> None:
        driver = self._driver
        if driver is None:
            select.select([], [], [], timeout_s)
            return
        try:
            for kind, fields in driver.exchange(timeout_s):
                self._on_packet(kind, fields)
        except EOFError:
            self._lose_driver(driver)
        self._handles = {number: handle for number, handle in self._handles.items() if handle.alive}

    def close(self) -> None:
        """End the driver, which terminates all actors, kills the rest, and ends a local Ray."""
        for handle in self._handles.values():
            handle.exit_code = -signal.SIGTERM
        self._handles = {}
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close(TERMINATE_S + CLOSE_S)

    def _connect(self) -> None:
        self._start_driver()
        while self._driver is not None and not self._nodes:
            self.poll(0.1)
        if self._driver is None:
            raise TransportError(f"ray_address: {described_cluster(self._address)} cannot be used: {self._problem}")
        problem = placement_problem(CPU, self._nodes)
        if problem:
            raise ConfigError(f"{problem}; each actor needs a CPU: add a node to the cluster", key="engine")

    def _start_driver(self) -> DriverProcess:
        self._driver = DriverProcess(_PROGRAM, self._address)
        return self._driver

    def _lose_driver(self, driver: DriverProcess) -> None:
        """Wait for the end of the driver, and record the end of all its actors. The next `start` starts another driver."""
        self._driver = None
        driver.close(CLOSE_S)
        self._problem = driver.problem
        if driver.connected:
            self._say(f"{described_cluster(self._address)}: {self._problem}; all actors start again")
        for handle in self._handles.values():
            handle.exit_code = DRIVER_LOST
            handle.last_output = self._problem

    def _on_packet(self, kind: str, fields: dict[str, Any]) -> None:
        handle = self._handles.get(fields.get("number", 0))
        if kind == CONNECTED:
            self._nodes = fields["nodes"]
            self._say(f"connected to {described_cluster(self._address)}; nodes: {nodes_text(self._nodes)}")
            for each in self._handles.values():
                each.request_start()
        elif kind == WAITING:
            self._say(fields["text"])
        elif handle is None:
            pass  # it has ended, for this process
        elif kind == NEWS:
            handle.report = ActorReport.parse(fields["report"].encode()) or handle.report
            for line in fields["lines"]:
                self._on_output(handle.index, line)
                handle.last_output = line
        elif kind == ENDED:
            handle.exit_code = fields["exit_code"]
            handle.last_output = fields["text"] or handle.last_output
