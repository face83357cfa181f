"""The kill gate for workers in processes, here and on "another machine": they and their learner are killed or stopped."""

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from harness.children import is_there

from rl4sys_zmq import native
from rl4sys_zmq.learner.gateway.operator import RESTART
from rl4sys_zmq.ops.requests import request_command
from rl4sys_zmq.wire.messages import OperatorCommand

from .conftest import LabForm, Report, Tier
from .kill_lab import Lab
from .test_kills import BATCH, LEAST, assert_gate, three_actors

pytestmark = pytest.mark.timeout(1_800)

ALGORITHMS = {"RECORD_ON": BATCH, "RECORD_OFF": BATCH}
PLUGINS = ["harness.recorders", "harness.remote_engine"]
CONFIG: dict[str, Any] = {"plugins": PLUGINS, "algorithms": ALGORITHMS}


class Workers:
    """The worker process of one client, found through the learner's status."""

    def __init__(self, lab: Lab, client: str) -> None:
        self._lab, self._client, self._pause = lab, client, threading.Event()

    def running(self, other_than: int = 0) -> int:
        found: dict[str, Any] = {}

        def ready() -> bool:
            self._pause.wait(0.05)
            found.update(self._lab.status(self._client))
            return found.get("state") == "running" and found["worker"].get("pid") not in (None, other_than)

        self._lab.loop.until(ready, 60.0, "a worker that trains")
        return int(found["worker"]["pid"])

    def gone(self, pid: int) -> None:
        self._lab.loop.until(lambda: not is_there(pid), 30.0, f"the end of worker {pid}")

    def acks(self, least: int = LEAST) -> None:
        before = self._lab.acked()
        self._lab.loop.until(lambda: self._lab.acked() >= before + least, 60.0, "acks")


@pytest.mark.parametrize("engine", ["process", "elsewhere"])
@pytest.mark.parametrize("client", ["on", "off"])
def test_workers_and_their_learner_are_killed(
    client: str, engine: str, folder: Path, seed: int, tier: Tier, report: Report
) -> None:
    if client == "off" and not tier.long:
        pytest.skip("the long tier alone: RL4SYS_SOAK=1")
    with Lab(folder, seed, parameters=BATCH, engine=engine, **CONFIG) as lab:
        workers = Workers(lab, client)
        lab.serving()
        actors = three_actors(lab, client)
        pid = workers.running()
        kills = tier.size(1, 60)
        for number in range(kills):
            workers.acks(round(lab.loop.uniform(1, LEAST)))
            os.kill(pid, signal.SIGKILL)
            pid = workers.running(other_than=pid)
            if number % 20 == 0:  # a grey failure: the old worker resumes beside its successor, unless it was killed before
                workers.acks()
                os.kill(pid, signal.SIGSTOP)
                request_command(lab.address, OperatorCommand(RESTART, client), 60.0)
                stopped, pid = pid, workers.running(other_than=pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGCONT)
                workers.gone(stopped)
                workers.acks()
                lab.learner.kill()
                workers.gone(pid)
                lab.serving()
                pid = workers.running(other_than=pid)
        workers.acks()
        form = LabForm(native.form().partition(":")[0])
        assert_gate(lab, client, lab.finish(*actors), actors, report, form, engine=engine, workers_killed=kills)
        workers.gone(pid)
