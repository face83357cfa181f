"""Reliability on the host's side: spools, cached and stale policies, a return to an older version, forks and sidecars."""

import gc
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.forks import exit_code_of, work_in_child
from kit import drained, until

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.actor import segments
from rl4sys_zmq.errors import ConfigError, LearnerUnavailable, PolicyStale
from rl4sys_zmq.learner import Learner, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import PackedSegment, pack_segment

from .conftest import Lab

FACTORY = FakeAlgorithm.factory(steps_per_update=4, rollout_length=16)
register_algorithm("HOSTED", FACTORY)
NOBODY = {"connect_timeout_s": 0.3}


def agent_of(lab: Lab, learner: Learner | str, **options: Any) -> RL4SysAgent:
    return lab.agent(learner, **{"algorithm_name": "HOSTED", **options})


def check_law(stats: dict[str, Any]) -> None:
    assert stats["submitted"] == stats["dropped_at_source"] + stats["in_actor"] + stats["refused"] + stats["accepted"], stats


def test_a_spool_outlives_its_process_and_its_learner(lab: Lab, tmp_path: Path) -> None:
    options = {"spool": tmp_path / "spool", "overflow": "drop_oldest"}
    first = lab.learner()
    address = first.address
    agent = agent_of(lab, address, **options)
    for _ in range(3):
        lab.episode(agent, 4)
    agent.flush(20.0)
    first.close()
    for _ in range(5):
        lab.episode(agent, 4)
    agent.close(0.1)
    until(lambda: not agent._io.alive)  # on a busy disk this may take longer than `close` waits
    stats = agent.stats()
    check_law(stats)
    assert (stats["submitted"], stats["accepted"], stats["in_actor"]) == (8, 3, 5)
    name = agent.actor_id
    agent = agent_of(lab, address, **options, **NOBODY)  # acts with the policy in the spool's folder
    assert agent.actor_id == name and agent.version >= 0
    lab.episode(agent, 4)
    second = lab.learner(address)
    agent.flush(20.0)
    check_law(agent.stats())
    assert (agent.stats()["accepted"], agent.stats()["dropped_at_source"]) == (9, 0)
    client = drained(second)
    assert client["verdicts"]["trained"] == 6 and client["gap"] == 3, "the first learner's memory is gone with it"


@pytest.mark.usefixtures("pure_form")
def test_what_is_being_packed_is_still_the_actors(inproc_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that is being packed is neither in the queue nor in the window. `flush` must still wait for it."""
    learner = inproc_lab.learner()
    agent = agent_of(inproc_lab, learner)
    seen: list[tuple[bool, int]] = []

    def watched(segment: Segment) -> PackedSegment:
        seen.append((agent._io.idle, agent.stats()["in_actor"]))
        return pack_segment(segment)

    monkeypatch.setattr(segments, "pack_segment", watched)
    inproc_lab.episode(agent, 4)
    agent.flush(20.0)
    assert seen == [(False, 1)]
    check_law(agent.stats())
    assert agent.stats()["in_actor"] == 0


def test_what_a_spool_can_not_hold_is_counted(inproc_lab: Lab, tmp_path: Path) -> None:
    learner = inproc_lab.learner()
    cache = tmp_path / "policy"
    agent_of(inproc_lab, learner, policy_cache=cache).close()
    learner.close()
    agent = agent_of(
        inproc_lab, "inproc://nobody-there", spool=tmp_path / "spool", policy_cache=cache, spool_max_bytes=1 << 16, **NOBODY
    )
    for _ in range(400):
        inproc_lab.episode(agent, 16)

    def at_rest() -> bool:
        stats = agent.stats()
        return not agent._parts.outbox._memory and stats["submitted"] == stats["dropped_at_source"] + stats["in_actor"]

    until(at_rest)
    stats = agent.stats()
    check_law(stats)
    assert stats["dropped"]["spool_bytes"] > 0 and stats["submitted"] == 400 and stats["spool"]["bytes"] <= 1 << 16


def test_a_cache_of_somebody_else_is_not_used(inproc_lab: Lab, tmp_path: Path) -> None:
    learner = inproc_lab.learner()
    cache = tmp_path / "policy"
    agent_of(inproc_lab, learner, policy_cache=cache).close()
    with pytest.raises(LearnerUnavailable):
        agent_of(inproc_lab, "inproc://nobody-there", client_id="other", policy_cache=cache, **NOBODY)
    assert agent_of(inproc_lab, "inproc://nobody-there", policy_cache=cache, **NOBODY).version == 0


def test_an_actor_with_a_cached_policy_says_that_no_learner_answers(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    learner = lab.learner()
    address, cache = learner.address, tmp_path / "policy"
    agent_of(lab, address, policy_cache=cache).close()
    learner.close()
    agent = agent_of(lab, address, policy_cache=cache, **NOBODY)
    until(lambda: agent.stats()["error"])
    assert agent.stats()["error"].startswith(f"no learner at {address} within 0.3 s (waiting for ")
    (line,) = [record.getMessage() for record in caplog.records if "acts by its cached policy" in record.getMessage()]
    assert line == f"lab: {agent.stats()['error']}; the actor acts by its cached policy, version 0, and keeps asking"
    lab.learner(address)
    until(lambda: agent.stats()["state"] == "joined" and not agent.stats()["error"])


def test_a_stale_policy_is_kept_replaced_or_raised(inproc_lab: Lab, tmp_path: Path) -> None:
    learner = inproc_lab.learner()
    cache = tmp_path / "policy"
    agent_of(inproc_lab, learner, policy_cache=cache).close()
    learner.close()
    stale: dict[str, Any] = {"policy_cache": cache, "policy_max_age_s": 1e-9, **NOBODY}
    observation = np.zeros(4, dtype=np.float32)

    def alone(**options: Any) -> RL4SysAgent:
        return agent_of(inproc_lab, "inproc://nobody-there", **stale, **options)

    assert alone(on_stale="keep").request_for_action(None, observation)[1].log_prob != 0.0
    with pytest.raises(PolicyStale, match="policy_max_age_s"):
        alone(on_stale="raise").request_for_action(None, observation)
    agent = alone(on_stale="baseline")
    traj, action = agent.request_for_action(None, observation, mask=[0, 1])
    assert action.act == 1, "the first that is allowed"
    action.update_reward(1.0)
    agent.mark_end_of_trajectory(traj, action)
    assert agent.stats()["submitted"] == 0 and agent.stats()["counters"]["baseline_actions"] == 1
    _, actions = agent.request_for_actions(None, np.zeros((3, 4), dtype=np.float32))
    assert [a.act for a in actions] == [0, 0, 0]


@pytest.mark.parametrize("unstored", [(16,), (16, 17), (32,)], ids=str)
def test_a_step_that_no_policy_chose_leaves_a_gap_between_full_segments(inproc_lab: Lab, unstored: tuple[int, ...]) -> None:
    factory = FakeAlgorithm.factory(steps_per_update=1, rollout_length=16)
    register_algorithm("PARTED", factory)
    learner = inproc_lab.learner()
    agent = agent_of(inproc_lab, learner, algorithm_name="PARTED", on_stale="baseline", policy_max_age_s=3600.0)
    fallback = agent._open._fallback  # type: ignore[union-attr]
    traj = None
    for step in range(40):
        fallback.max_age_s = -1.0 if step in unstored else 3600.0
        traj, action = agent.request_for_action(traj, np.full(4, step, dtype=np.float32))
        agent.add_to_trajectory(traj, action)
        action.update_reward(1.0)
    assert traj is not None and not traj.is_valid()
    agent.mark_end_of_trajectory(traj, action)
    drained(learner, agent)
    assert [index for _, index in factory.made[-1].keys] == ([0, 2, 3] if 16 in unstored else [0, 1, 3])
    assert (agent.stats()["episodes"], agent.stats()["mean_return"]) == (1, None), "the return lacks a reward"


def test_running_episodes_leave_the_versions_that_were_rolled_back(inproc_lab: Lab) -> None:
    """With ``swap: episode`` too, and for each of several versions."""
    learner = inproc_lab.learner()
    agent = agent_of(inproc_lab, learner, swap="episode")
    running: list[Any] = []
    for version in (1, 2):
        inproc_lab.train(agent, 4, version)
        running.append(agent.request_for_action(None, np.zeros(4, dtype=np.float32))[0])
    assert [agent.rollback(), agent.rollback()] == [1, 0]
    for traj in running:
        assert agent.request_for_action(traj, np.zeros(4, dtype=np.float32))[1].version == 0
    _, actions = agent.request_for_actions(running, np.zeros((2, 4), dtype=np.float32))
    assert [action.version for action in actions] == [0, 0]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_is_another_actor(lab: Lab, tmp_path: Path) -> None:
    if lab.new_address().startswith("inproc"):
        pytest.skip("another process can't reach inproc")
    learner = lab.learner()
    agent = agent_of(lab, learner, spool=tmp_path / "spool")
    running, action = agent.request_for_action(None, np.zeros(4, dtype=np.float32))
    action.update_reward(1.0)
    agent.add_to_trajectory(running, action)
    parent = agent.actor_id

    def child() -> None:
        traj, mine = agent.request_for_action(running, np.ones(4, dtype=np.float32))
        assert traj is not running and agent.actor_id != parent
        agent.add_to_trajectory(traj, mine)
        mine.update_reward(1.0)
        agent.mark_end_of_trajectory(traj, mine)
        agent.flush(20.0)
        assert agent.stats()["accepted"] == 1 and agent.stats()["spool"] is None
        agent.close()

    assert exit_code_of(work_in_child(child)) == 0
    assert exit_code_of(work_in_child(gc.collect)) == 0, "a child that does not use it ends as ever"
    agent.mark_end_of_trajectory(running, action)
    agent.flush(20.0)
    assert agent.actor_id == parent and agent.stats()["accepted"] == 1
    actors = learner.status()["clients"]["lab"]["actors"]
    assert len(actors) == 2 and sum(a["received"] for a in actors.values()) == 2

    def crowd() -> None:
        start = threading.Barrier(4)

        def request(_: int) -> str:
            start.wait(20.0)
            agent.request_for_action(None, np.zeros(4, dtype=np.float32))
            return agent.actor_id

        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(request, range(4)))) == 1
        assert agent.stats()["counters"]["forks"] == 1
        agent.close()

    assert exit_code_of(work_in_child(crowd)) == 0, "all threads of a child are one actor"


def test_sockets_in_a_sidecar(lab: Lab) -> None:
    address = lab.new_address()
    if address.startswith("inproc"):
        with pytest.raises(ConfigError, match="sidecar"):
            agent_of(lab, address, sidecar=True)
        return
    agent = agent_of(lab, lab.learner(), sidecar=True)
    lab.episode(agent, 4)
    assert agent.wait_version(1, 20.0) >= 1
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = {int(pid) for path in children for pid in path.read_text().split()}
    (sidecar,) = [pid for pid in pids if b"sidecar_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(sidecar, signal.SIGKILL)
    lab.episode(agent, 4)
    agent.flush(30.0)
    assert agent.stats()["accepted"] == 2 and agent.stats()["counters"]["io_restarts"] == 1
