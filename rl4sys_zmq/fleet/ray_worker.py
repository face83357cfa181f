"""The Ray actor that runs one actor of a fleet as a child process, which ends with its stdin, and so with the Ray actor."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from rl4sys_zmq.fleet.process import ActorProcess, ProcessEngine, actor_environment
from rl4sys_zmq.version import package_version

FOLLOW_S = 0.5
"""Longest time for which `RayFleetActor.follow` waits for news, and by which a stop reaches the actor late, in seconds."""
POLL_S = 0.05
MAX_LINES, MAX_LINE = 20, 500
"""The largest number of lines of output in one result, and of characters in each. Older lines are dropped."""


class RayFleetActor:
    """The object inside a Ray actor, which runs one actor of a fleet. Its methods are called one after the other."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        self._process: ActorProcess | None = None
        self._engine: ProcessEngine | None = None

    def start(self, arguments: Sequence[str], folder: str, version: str) -> dict[str, str]:
        import ray

        error = ""
        if version != package_version():
            error = f"this node has rl4sys_zmq {package_version()}, and the fleet has {version}; install the same version"
        else:
            with contextlib.suppress(OSError):
                os.chdir(folder)
            command = [sys.executable, *arguments]
            self._engine = ProcessEngine(
                lambda index, start: command,
                actor_environment(),
                lambda index, line: self._lines.append(line[:MAX_LINE]),
            )
            self._process = self._engine.start(0, 0)
        return {"node": ray.get_runtime_context().get_node_id(), "host": ray.util.get_node_ip_address(), "error": error}

    def follow(self, grace_s: float | None) -> dict[str, Any]:
        """Wait for a report, output or the end of the actor, at most `FOLLOW_S` seconds, and return them.

        If `grace_s` is a number, first begin to end the actor, as `ActorHandle.stop` does.
        """
        process, engine = self._process, self._engine
        assert process is not None and engine is not None, "start comes first"
        if grace_s is not None:
            process.stop(grace_s)
        before, deadline = process.report, time.monotonic() + FOLLOW_S
        while process.alive and process.report is before and not self._lines and time.monotonic() < deadline:
            engine.poll(POLL_S)
        lines = list(self._lines)
        self._lines.clear()
        report = process.report.to_json() if process.report is not None else ""
        return {"report": report, "lines": lines, "exit_code": process.exit_code}
