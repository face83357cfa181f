"""An engine for tests, ``elsewhere``: each worker runs as on another machine, in a process with its own working directory.

Environment variables of the learner's process that begin with ``RL4SYS_`` reach the worker.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.children import PYTHONPATH
from rl4sys_zmq.child_process import end_text
from rl4sys_zmq.learner.engines.base import ENGINES, EngineEntry, GatewayEndpoints, WorkerAssignment
from rl4sys_zmq.learner.engines.remote_start import RemoteWorkerStart
from rl4sys_zmq.remote.handle import RemoteWorker

ELSEWHERE = "elsewhere"
PROGRAM = Path(__file__).with_name("remote_program.py")
STARTS: list[RemoteWorkerStart] = []
"""The start data of all workers that this process has started, for a test that pretends to be one of them."""


class RemoteProgram:
    """A process that runs `remote_program.py`. It implements `RemoteProcess`."""

    def __init__(self, start: RemoteWorkerStart) -> None:
        STARTS.append(start)
        self._folder = tempfile.TemporaryDirectory(prefix="rl4w-")
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": PYTHONPATH, "HOME": self._folder.name}
        environment |= {name: value for name, value in os.environ.items() if name.startswith("RL4SYS_")}
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._folder.name,
            env=environment,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(start.to_json() + "\n")
        self._process.stdin.close()

    def wait(self, timeout_s: float) -> str | None:
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            said = output.read().strip()
        self._folder.cleanup()
        return said if code == 0 else end_text(code)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

    def describe(self) -> dict[str, Any]:
        """Return nothing in addition to the report of every remote worker."""
        return {}


class Elsewhere:
    """The engine."""

    def __init__(self, gateway: GatewayEndpoints) -> None:
        self._gateway = gateway

    def start(self, assignment: WorkerAssignment) -> RemoteWorker:
        link = self._gateway.connect_worker(assignment, "tcp://127.0.0.1:0", "")
        return RemoteWorker(assignment, link, RemoteProgram)

    def wait_ready(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


ENGINES.add(EngineEntry(name=ELSEWHERE, factory=Elsewhere), replace=True)
