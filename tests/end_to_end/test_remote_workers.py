"""Workers on "other machines": processes that reach the learner over tcp with CURVE alone, and none of its files."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.remote_engine import ELSEWHERE

from rl4sys_zmq.learner.checkpoints import CheckpointStore

from .conftest import Lab
from .test_engines import PATIENCE_S, balanced, client_of, is_there, play, trained, until

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Learners and agents that are closed when the test ends; over ipc alone."""
    with ExitStack() as stack:
        yield Lab(stack, lambda: pytest.fail("the options name the address"))


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {
        "bind": f"ipc://{tmp_path}/l",
        "run_dir": tmp_path / "run",
        "plugins": ("harness.engine_plugin", "harness.remote_engine"),
        "engine": ELSEWHERE,
        "checkpoint_every_s": 0.2,
        "shutdown_timeout_s": 20.0,
    }


def test_a_killed_worker_is_replaced_and_its_successor_fetches_the_checkpoint(lab: Lab, options: dict[str, Any]) -> None:
    learner = lab.learner(**options)
    agent = lab.agent(learner, algorithm_name="IMPORTABLE")
    play(agent, 6)
    before = trained(learner, 6)
    assert before["worker"]["engine"] == ELSEWHERE and is_there(before["worker"]["pid"])
    learner.save(timeout_s=PATIENCE_S)
    os.kill(before["worker"]["pid"], signal.SIGKILL)
    until(lambda: client_of(learner)["restarts"] == 1 and client_of(learner)["state"] == "running", "another worker")
    play(agent, 6)
    after = trained(learner, 12)
    balanced(after, 12)
    assert after["generation"] > before["generation"] and after["version"] > before["version"]
    assert after["checkpoint"]["number"] >= 1 and "SIGKILL" in after["worker"]["last_crash"]
    agent.close()
    learner.close()
    assert not is_there(after["worker"]["pid"])
    found = CheckpointStore(options["run_dir"] / "checkpoints" / "lab").load()
    assert found is not None and found[0].verdicts["trained"] == 12
