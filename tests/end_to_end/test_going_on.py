"""A learner that continues: no acknowledged segment is lost or trained twice when it or its learner threads restart."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import drained

from rl4sys_zmq.config import ClientConfig
from rl4sys_zmq.errors import ClientFailed, ConfigError, LearnerUnavailable
from rl4sys_zmq.learner import Learner, register_algorithm
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.learner.run.deadletters import list_letters, read_letter
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.wire import decode, read_submit

from .conftest import Lab

FACTORY = FakeAlgorithm.factory(steps_per_update=8, rollout_length=16)
register_algorithm("GOES_ON", FACTORY)


def start(lab: Lab, run_dir: Path, **options: Any) -> Learner:
    return lab.learner(run_dir=run_dir, **{"checkpoint_every_s": 0.05, **options})


def settled(learner: Learner, client_id: str = "lab") -> dict[str, Any]:
    """Return the client's status once it has stopped resuming, and check the conservation law."""
    learner.wait(client_id=client_id, version=0, timeout_s=20.0)
    while (client := learner.status()["clients"][client_id])["resuming"]:
        pass
    v = client["verdicts"]
    assert client["accepted"] == v["trained"] + v["stale"] + v["quarantined"] + client["pending"] + client["rolled_back"], client
    return dict(client)


def joined(lab: Lab, learner: Learner, **options: Any) -> Any:
    return lab.agent(learner, **{"algorithm_name": "GOES_ON", **options})


def test_a_learner_that_is_started_again_goes_on(inproc_lab: Lab, tmp_path: Path) -> None:
    first = start(inproc_lab, tmp_path / "run")
    agent = joined(inproc_lab, first)
    for _ in range(11):
        inproc_lab.episode(agent, 2)
    agent.flush(20.0)
    first.wait(client_id="lab", version=2, timeout_s=20.0)
    before = settled(first)
    agent.close()
    first.close()
    second = start(inproc_lab, tmp_path / "run")
    assert second.resumed_clients == ("lab",)
    after = settled(second)
    assert (after["accepted"], after["rolled_back"], after["gap"]) == (11, 0, 0)
    assert (after["version"], after["digest"]) == (before["version"], before["digest"]), "closing writes a last checkpoint"
    assert after["generation"] > before["generation"]
    assert after["pending"] == 11 - after["verdicts"]["trained"] == 3, "what waited for a full batch waits again"
    second.drain(timeout_s=20.0)
    assert settled(second)["pending"] == 0
    keys = FACTORY.made[-1].keys
    assert len(keys) == len(set(keys)) == 11


def test_drain_waits_for_a_client_that_starts(inproc_lab: Lab, tmp_path: Path) -> None:
    """After the start of a learner its clients are still starting. Segments that waited for a full batch before are trained."""
    go = threading.Event()
    go.set()

    def slow(*arguments: Any) -> FakeAlgorithm:
        assert go.wait(20.0)
        return FACTORY(*arguments)

    register_algorithm("STARTS_SLOWLY", slow)
    first = start(inproc_lab, tmp_path / "run")
    agent = joined(inproc_lab, first, algorithm_name="STARTS_SLOWLY")
    for _ in range(11):
        inproc_lab.episode(agent, 2)
    agent.flush(20.0)
    agent.close()
    first.close()
    go.clear()
    second = start(inproc_lab, tmp_path / "run")
    assert second.status()["clients"]["lab"]["state"] == "starting"
    with pytest.raises(LearnerUnavailable, match="the start of client 'lab'"):
        second.drain(timeout_s=0.1)
    go.set()
    second.drain(timeout_s=20.0)
    client = settled(second)
    assert (client["accepted"], client["verdicts"]["trained"], client["pending"]) == (11, 11, 0)


def test_a_busy_learner_thread_that_was_replaced_writes_no_checkpoint(inproc_lab: Lab, tmp_path: Path) -> None:
    factory = FakeAlgorithm.factory(steps_per_update=4, rollout_length=4, slow_s=30.0)
    register_algorithm("BUSY", factory)
    learner = start(inproc_lab, tmp_path / "run", shutdown_timeout_s=20.0)
    agent = joined(inproc_lab, learner, algorithm_name="BUSY")
    learner.save(timeout_s=20.0)
    inproc_lab.episode(agent, 4)
    agent.flush(20.0)
    learner.restart("lab")
    settled(learner)
    store = CheckpointStore(tmp_path / "run" / "checkpoints" / "lab")
    factory.release.set()
    learner.drain(timeout_s=20.0)
    found = store.load()
    assert found is not None and found[0].generation == settled(learner)["generation"]
    assert settled(learner)["verdicts"]["trained"] == 1


def test_what_an_algorithm_fails_on_can_be_given_up(inproc_lab: Lab, tmp_path: Path) -> None:
    register_algorithm("FAILS", FakeAlgorithm.factory(steps_per_update=4, rollout_length=4, fail_after_updates=0))
    learner = start(inproc_lab, tmp_path / "run")
    agent = joined(inproc_lab, learner, algorithm_name="FAILS")
    inproc_lab.episode(agent, 4)
    with pytest.raises(ClientFailed):
        agent.wait_version(1, 20.0)
    learner.restart("lab")
    with pytest.raises(ClientFailed):
        learner.wait(client_id="lab", version=1, timeout_s=20.0)
    learner.restart("lab", give_up_pending=True)
    client = settled(learner)
    assert (client["accepted"], client["rolled_back"], client["pending"]) == (1, 1, 0)


def test_a_segment_that_the_algorithm_does_not_take_is_buried(inproc_lab: Lab, tmp_path: Path) -> None:
    learner = start(inproc_lab, tmp_path / "run")
    agent = joined(inproc_lab, learner, algorithm_name="PICKY")
    for steps in (2, 3, 4, 2):
        inproc_lab.episode(agent, steps)
    inproc_lab.episode(agent, 5, reward=1.0)
    drained(learner, agent)
    client = settled(learner)
    assert (client["verdicts"]["quarantined"], client["verdicts"]["trained"]) == (1, 4)
    learner.close()
    (letter,) = list_letters(tmp_path / "run" / "dead")
    assert (letter.client_id, letter.actor_id, letter.seq) == ("lab", agent.actor_id, 1) and "three steps" in letter.reason
    message = decode(list(read_letter(letter.path)))
    (segment,) = read_submit(message)  # type: ignore[arg-type]
    assert segment.steps == 3  # type: ignore[union-attr]


def test_an_entry_that_contradicts_the_run_is_refused(inproc_lab: Lab, tmp_path: Path) -> None:
    first = start(inproc_lab, tmp_path / "run")
    joined(inproc_lab, first).close()
    first.close()
    entry = {"lab": ClientConfig(algorithm_name="PICKY")}
    with pytest.raises(ConfigError, match="algorithm_name of client 'lab' is 'PICKY' in the configuration, but 'GOES_ON'"):
        start(inproc_lab, tmp_path / "run", clients=entry)


def test_never_sets_the_old_state_aside(inproc_lab: Lab, tmp_path: Path) -> None:
    first = start(inproc_lab, tmp_path / "run")
    agent = joined(inproc_lab, first)
    inproc_lab.episode(agent, 2)
    agent.flush(20.0)
    agent.close()
    first.close()
    second = start(inproc_lab, tmp_path / "run", resume="never")
    assert second.resumed_clients == () and second.status()["clients"] == {}
    assert len(list((tmp_path / "run").glob("before-*/journal.db"))) == 1


def test_going_back_to_a_checkpoint_says_what_it_costs(inproc_lab: Lab, tmp_path: Path) -> None:
    first = start(inproc_lab, tmp_path / "run", checkpoint_every_s=1e6)
    agent = joined(inproc_lab, first)
    digests = {}
    for round_number in (1, 2, 3, 4):
        for _ in range(4):
            inproc_lab.episode(agent, 2)
        agent.flush(20.0)
        first.save(timeout_s=20.0)
        digests[round_number] = settled(first)["digest"]
    agent.close()
    first.close()
    folder = tmp_path / "run" / "checkpoints" / "lab"
    numbers = sorted(int(path.name) for path in folder.glob("[0-9]*"))
    target = numbers[0]
    copied = folder / f"{target:08d}.abandoned"
    shutil.copytree(folder / f"{target:08d}", copied)
    with pytest.raises(ConfigError, match=f"{copied.name} holds checkpoint {target}; rename it to {target:08d} first"):
        start(inproc_lab, tmp_path / "run", resume=str(copied))
    manifest = json.loads((folder / f"{target:08d}" / "manifest.json").read_text())
    back = start(inproc_lab, tmp_path / "run", resume=str(folder / f"{target:08d}"))
    assert back.rollback is not None and back.rollback.checkpoint == target
    client = settled(back)
    trained = manifest["verdicts"]["trained"]
    assert client["accepted"] == 16 and client["verdicts"]["trained"] >= trained
    back.drain(timeout_s=20.0)
    client = settled(back)
    assert client["pending"] == 0 and client["rolled_back"] == 16 - client["verdicts"]["trained"]
    keys = FACTORY.made[-1].keys
    assert len(keys) == len(set(keys)) == client["verdicts"]["trained"]
    assert not np.isnan(client["steps"])
