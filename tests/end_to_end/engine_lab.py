"""Helpers for tests with a process per client or for the learner: they wait for processes and for values of the status."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.children import PYTHONPATH, is_there
from kit import until

from rl4sys_zmq.learner import Learner
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore

from .conftest import Lab, play

PATIENCE_S = 60.0
PLUGIN = "harness.engine_plugin"
SERVE = """
import json, sys
from rl4sys_zmq.learner import Learner, LearnerConfig
with Learner(LearnerConfig.from_mapping(json.loads(sys.argv[1]))) as learner:
    print(learner.address, flush=True)
    sys.stdin.read()
"""


@contextmanager
def serving(bind: str, **options: Any) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a learner process, which knows FAKE. Yield the process and its address."""
    options = {"bind": bind, "run_dir": None, "plugins": ["end_to_end.conftest"], **options}
    command, env = [sys.executable, "-c", SERVE, json.dumps(options)], {**os.environ, "PYTHONPATH": PYTHONPATH}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()
            process.wait(10)


def worker_options(folder: Path, engine: str = "process", *plugins: str) -> dict[str, Any]:
    """Return the options of a learner with a process per client, whose files are in `folder`."""
    return {
        "bind": f"ipc://{folder}/l",
        "run_dir": folder / "run",
        "plugins": (PLUGIN, *plugins),
        "engine": engine,
        "checkpoint_every_s": 0.2,
        "shutdown_timeout_s": 20.0,
    }


def client_of(learner: Learner, client_id: str = "lab") -> dict[str, Any]:
    found: dict[str, Any] = learner.status()["clients"].get(client_id, {"state": "none"})
    return found


def trained(learner: Learner, count: int, client_id: str = "lab") -> dict[str, Any]:
    """Return the client's status, once at least `count` segments are trained and none is pending."""

    def ready() -> dict[str, Any] | None:
        client = client_of(learner, client_id)
        done = client["state"] == "running" and client["verdicts"]["trained"] >= count and not client["pending"]
        return client if done else None

    return until(ready, f"{count} segments are trained on")


def client_when(learner: Learner, holds: Callable[[dict[str, Any]], object], timeout_s: float = PATIENCE_S) -> dict[str, Any]:
    """Return the client's status, once `holds` is true for it."""

    def ready() -> dict[str, Any] | None:
        client = client_of(learner)
        return client if holds(client) else None

    return until(ready, lambda: client_of(learner), timeout_s)


def balanced(client: dict[str, Any], count: int) -> None:
    """Assert that each accepted segment was trained once."""
    assert (client["accepted"], client["verdicts"]["trained"], client["rolled_back"], client["gap"]) == (count, count, 0, 0)


def check_a_relic(
    lab: Lab, options: dict[str, Any], stopped: Callable[[int], None], replace: Callable[[Learner], None]
) -> Learner:
    """Stop a worker, replace it, and let it continue: it ends by itself and changes nothing."""
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 4)
    old = trained(learner, 4)["worker"]["pid"]
    learner.save(timeout_s=PATIENCE_S)
    stopped(old)
    play(agent, 6)  # on their way to the stopped process
    until(lambda: client_of(learner)["accepted"] > 5, "enough for an update are accepted")
    replace(learner)
    now = trained(learner, 10)
    assert now["worker"]["pid"] != old and is_there(old)
    checkpoints = options["run_dir"] / "checkpoints" / "lab"
    assert options["engine"] != "process" or int((checkpoints / ".writer").read_text()) == now["generation"]
    os.kill(old, signal.SIGCONT)
    until(lambda: not is_there(old), "the old worker ends by itself")
    play(agent, 4)
    after = trained(learner, 14)
    balanced(after, 14)
    assert after["generation"] == now["generation"] and after["worker"]["pid"] == now["worker"]["pid"]
    assert "crashes" not in after["worker"]
    learner.save(timeout_s=PATIENCE_S)
    found = CheckpointStore(checkpoints).load()
    assert found is not None and found[0].generation == after["generation"] and found[0].verdicts["trained"] == 14
    return learner
