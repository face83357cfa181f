"""Clients that are forgotten during an update, and clients that are idle."""

import time
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.errors import CheckpointError, Closed, LearnerUnavailable, ProtocolError
from rl4sys_zmq.learner import Learner, register_algorithm
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.testing import FakeAlgorithm

from .conftest import Lab

PATIENCE_S = 20.0


def start(lab: Lab, run_dir: Path | None, **options: Any) -> Learner:
    return lab.learner(run_dir=run_dir, **{"checkpoint_every_s": 0.05, **options})


def checkpoints(run_dir: Path, client_id: str = "lab") -> list[Path]:
    return CheckpointStore(run_dir / "checkpoints" / client_id).newest()


def busy(lab: Lab, tmp_path: Path, **options: Any) -> tuple[Learner, Any, Any]:
    """Start a learner with a checkpoint, whose learner thread is then in an update that lasts until the test releases it."""
    factory = FakeAlgorithm.factory(steps_per_update=4, rollout_length=4, slow_s=60.0)
    register_algorithm("BUSY_TO_FORGET", factory)
    learner = start(lab, tmp_path / "run", **options)
    agent = lab.agent(learner, algorithm_name="BUSY_TO_FORGET")
    learner.save(timeout_s=PATIENCE_S)
    lab.episode(agent, 4)
    agent.flush(PATIENCE_S)
    while not factory.made[0].segments:
        pass  # the learner thread has the segment, and starts the update
    return learner, agent, factory


def test_a_busy_learner_thread_is_waited_for_before_its_checkpoints_are_put_aside(inproc_lab: Lab, tmp_path: Path) -> None:
    learner, agent, factory = busy(inproc_lab, tmp_path)
    assert len(checkpoints(tmp_path / "run")) == 1
    with pytest.raises(LearnerUnavailable, match="the result of forget"):
        learner.forget("lab", timeout_s=0.3)
    assert learner.status()["clients"] == {}
    while not agent.stats()["counters"].get("refused_by_learner.conflict"):
        pass  # the client_id is refused until the forget has ended
    assert len(checkpoints(tmp_path / "run")) == 1
    factory.release.set()
    learner.wait(client_id="lab", version=0, timeout_s=PATIENCE_S)
    while agent.generation != learner.status()["clients"]["lab"]["generation"]:
        pass  # a change of the generation would cut the episode
    inproc_lab.episode(agent, 4)
    agent.flush(PATIENCE_S)
    learner.wait(client_id="lab", version=1, timeout_s=PATIENCE_S)
    client = learner.status()["clients"]["lab"]
    assert (client["version"], client["gap"], client["accepted"]) == (1, 1, 2), "it began anew, from no checkpoint"


def test_a_learner_that_is_closed_meanwhile_has_forgotten_nothing(inproc_lab: Lab, tmp_path: Path) -> None:
    learner, agent, factory = busy(inproc_lab, tmp_path, shutdown_timeout_s=0.5)
    with pytest.raises(LearnerUnavailable):
        learner.forget("lab", timeout_s=0.1)
    gateway = learner._running
    agent.close(timeout_s=0.0)
    learner.close()
    factory.release.set()
    assert gateway.join_all(time.monotonic() + PATIENCE_S)
    again = start(inproc_lab, tmp_path / "run")
    again.wait(client_id="lab", version=0, timeout_s=PATIENCE_S)
    assert again.status()["clients"]["lab"]["checkpoint"]["number"] >= 1
    again.drain(timeout_s=PATIENCE_S)
    assert again.status()["clients"]["lab"]["verdicts"]["trained"] == 1


def test_a_client_whose_checkpoints_stay_where_they_are_is_not_forgotten(
    inproc_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = start(inproc_lab, tmp_path / "run")
    agent = inproc_lab.agent(learner)
    inproc_lab.episode(agent, 4)
    agent.flush(PATIENCE_S)

    def refuses(store: CheckpointStore, number: int) -> list[int]:
        raise CheckpointError(store.folder, "no permission")

    with monkeypatch.context() as broken:
        broken.setattr(CheckpointStore, "abandon_after", refuses)
        with pytest.raises(CheckpointError, match="no permission"):
            learner.forget("lab")
    client = learner.status()["clients"]["lab"]
    assert client["state"] == "failed" and "could not be forgotten" in client["error"]
    learner.restart("lab")
    learner.wait(client_id="lab", version=0, timeout_s=PATIENCE_S)
    assert learner.status()["clients"]["lab"]["accepted"] == 1
    assert learner.forget("lab")["accepted"] == 1


def test_actions_are_chosen_for_a_client_that_was_founded_anew(inproc_lab: Lab) -> None:
    learner = start(inproc_lab, None, inference="auto")
    agent = inproc_lab.agent(learner, inference="remote")
    inproc_lab.episode(agent, 2)
    for _ in range(3):
        learner.forget("lab")
        learner.wait(client_id="lab", version=0, timeout_s=PATIENCE_S)
        inproc_lab.episode(agent, 2)
        methods = learner.status()["inference"]["methods"]
        assert [name for name in methods if name.startswith("policy/")] == ["policy/lab"]


def test_commands_under_way_are_bounded_and_end_with_the_learner(inproc_lab: Lab, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("rl4sys_zmq.learner.gateway.operator.MAX_RUNNING", 1)
    learner, agent, factory = busy(inproc_lab, tmp_path, shutdown_timeout_s=0.5)
    with pytest.raises(LearnerUnavailable):
        learner.forget("lab", timeout_s=0.1)
    with pytest.raises(ProtocolError, match="1 commands are in progress"):
        learner.forget("lab")
    gateway = learner._running
    agent.close(timeout_s=0.0)
    learner.close()
    with pytest.raises(Closed):
        learner.forget("lab")
    factory.release.set()
    assert gateway.join_all(time.monotonic() + PATIENCE_S)


def test_an_idle_client_with_data_a_checkpoint_or_an_actor_stays(inproc_lab: Lab, tmp_path: Path) -> None:
    learner = start(inproc_lab, tmp_path / "run", idle_client_s=0.2, checkpoint_every_s=1e6)
    inproc_lab.agent(learner, "saved").close()
    learner.save(timeout_s=PATIENCE_S)
    with_data = inproc_lab.agent(learner, "data")
    inproc_lab.episode(with_data, 2)
    with_data.close()
    inproc_lab.agent(learner, "live")
    inproc_lab.agent(learner, "idle").close()
    while "idle" in learner.status()["clients"]:
        pass
    assert set(learner.status()["clients"]) == {"saved", "data", "live"}
    folders = (tmp_path / "run" / "checkpoints").iterdir()
    assert [path.name for path in folders if CheckpointStore(path).newest()] == ["saved"]
    learner.close()
    assert set(start(inproc_lab, tmp_path / "run").resumed_clients) == {"saved", "data", "live"}, "the journal has lost the other"
