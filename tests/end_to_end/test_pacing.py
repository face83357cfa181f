"""Credit: simulators wait for it, hosts never wait. Segments that are too old are dropped or corrected, and counted."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kit import until

from rl4sys_zmq.delivery.credit import DataAmount, LearnerThreadBacklog
from rl4sys_zmq.errors import Closed, LearnerUnavailable
from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

STEPS = 64


def simulate(agent: Any, calls: int, width: int = 2, meet: threading.Barrier | None = None) -> None:
    """Take `calls` steps in `width` environments. Actors that share `meet` begin each segment of 8 steps together."""
    trajs: Any = None
    for call in range(calls):
        if meet and call % 8 == 0:
            meet.wait(60.0)
        trajs, actions = agent.request_for_actions(trajs, np.zeros((width, 4), dtype=np.float32))
        for traj, action in zip(trajs, actions, strict=True):
            action.update_reward(1.0)
            agent.add_to_trajectory(traj, action)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Yield the event that lets slow updates end. It is set at the end."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("pacing_lag", [0, 1, 2])
def test_waiting_actors_are_no_older_than_the_pacing_means(lab: Any, pacing_lag: int) -> None:
    """Two actors of 2 environments. An actor below its limit may start 16 steps. The pool counts the steps that arrive.

    So at the start of the next batch, up to 15 steps of each actor can be one version older than `pacing_lag`. The actors keep
    in step: the credit of one that the system suspends would be granted to the other, and its data would be older still.
    """
    factory = FakeAlgorithm.factory(steps_per_update=STEPS, rollout_length=8)
    register_algorithm("PACED", factory)
    learner = lab.learner(pacing_lag=pacing_lag)
    agents = [lab.agent(learner, algorithm_name="PACED", overflow="wait") for _ in range(2)]
    meet = threading.Barrier(len(agents))
    threads = [threading.Thread(target=simulate, args=(agent, 160, 2, meet)) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    for agent in agents:
        agent.flush(20.0)
    learner.drain(timeout_s=20.0)  # the last episodes do not end: 608 steps arrive, in nine batches and a part of one
    client = learner.status()["clients"]["lab"]
    assert client["version"] == 10
    lags = {int(lag.split("-")[0]): steps for lag, steps in client["policy_lags"].items()}
    assert sum(lags.values()) == client["steps"] == 608
    assert max(lags) <= pacing_lag + 1, lags
    assert lags.get(pacing_lag + 1, 0) <= 9 * 2 * 15, lags
    for agent in agents:
        assert agent.stats()["dropped_at_source"] == 0


@pytest.mark.parametrize(("kind", "lag"), [("onpolicy", 0), ("offpolicy", 1)])
def test_the_default_pacing_depends_on_the_kind_of_algorithm(inproc_lab: Any, kind: str, lag: int) -> None:
    register_algorithm("PACED", FakeAlgorithm.factory(kind, steps_per_update=STEPS, rollout_length=8))
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, algorithm_name="PACED", overflow="wait")
    simulate(agent, 200)
    agent.flush(20.0)
    client = learner.status()["clients"]["lab"]
    assert client["pacing_lag"] == lag
    assert client["policy_lag"] <= lag


@pytest.mark.parametrize(("kind", "batches"), [("onpolicy", 2), ("offpolicy", 1)])
def test_off_policy_actors_collect_nothing_ahead_with_the_first_version(
    inproc_lab: Any, release: threading.Event, kind: str, batches: int
) -> None:
    """The first batch of an off-policy algorithm contains the steps of `learning_starts`, so it can be large."""
    fake = FakeAlgorithm.factory(kind, steps_per_update=STEPS, rollout_length=8, slow_s=60.0, release=release)
    register_algorithm("SLOW", fake)
    learner = inproc_lab.learner(pacing_lag=1)
    agent = inproc_lab.agent(learner, algorithm_name="SLOW", overflow="wait", wait_timeout_s=0.5)
    with pytest.raises(LearnerUnavailable):
        simulate(agent, 3 * STEPS, width=1)
    assert agent.version == 0
    assert 0 <= agent.stats()["steps"] - batches * STEPS < 8, "a segment that began below the limit is finished"


def test_a_host_that_only_acts_never_waits(inproc_lab: Any, release: threading.Event) -> None:
    register_algorithm("STUCK", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16, slow_s=60.0, release=release))
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, algorithm_name="STUCK", queue_items=8)
    for _ in range(100):
        inproc_lab.episode(agent, 16)
    stats = agent.stats()
    assert stats["submitted"] == 100
    assert stats["dropped"]["overflow"] > 50
    release.set()
    agent.flush(20.0)
    stats = agent.stats()
    assert stats["submitted"] == stats["dropped_at_source"] + stats["refused"] + stats["accepted"]


def test_waiting_ends_with_the_timeout_and_with_close(inproc_lab: Any, release: threading.Event) -> None:
    register_algorithm("STUCK", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16, slow_s=60.0, release=release))
    learner = inproc_lab.learner(pacing_lag=0)
    agent = inproc_lab.agent(learner, algorithm_name="STUCK", overflow="wait", wait_timeout_s=0.1)
    with pytest.raises(LearnerUnavailable, match=r"answers, .* within 0\.1 s .*credit.* raise wait_timeout_s"):
        simulate(agent, 100)
    assert agent.stats()["credit_wait_s"] >= 0.1
    caught: list[BaseException] = []
    patient = inproc_lab.agent(learner, algorithm_name="STUCK", overflow="wait")

    def wait() -> None:
        try:
            simulate(patient, 100)
        except Closed as exc:
            caught.append(exc)

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: patient._io.host.waiting, "the thread waits for credit")
    patient.close(0.1)
    thread.join(10.0)
    assert caught


@pytest.mark.parametrize("on_lag", ["drop", "correct"])
def test_old_data_is_dropped_or_corrected(inproc_lab: Any, on_lag: str) -> None:
    """Five segments: four of the version that trains on them, and one of version 0, which is sent at version 3."""
    factory = FakeAlgorithm.factory(steps_per_update=16, rollout_length=16)
    register_algorithm("LAGGED", factory)
    learner = inproc_lab.learner(max_policy_lag=0, on_lag=on_lag)
    agent = inproc_lab.agent(learner, algorithm_name="LAGGED", swap="episode")
    traj, action = agent.request_for_action(None, np.zeros(4, dtype=np.float32))
    inproc_lab.train(agent, 16, 1, 2, 3)
    action.update_reward(1.0)
    agent.mark_end_of_trajectory(traj, action)  # its action was chosen by version 0
    inproc_lab.train(agent, 16, 4)
    agent.flush(20.0)
    stats, client = agent.stats(), learner.status()["clients"]["lab"]
    verdicts, lost = client["verdicts"], stats["dropped"].get("lag", 0)
    (algorithm,) = factory.made
    assert stats["submitted"] == 5 and stats["accepted"] == client["accepted"] == 5 - lost
    if on_lag == "drop":  # by the actor, or by the learner if the actor had not heard of the version
        assert (verdicts["trained"], verdicts["stale"] + lost) == (4, 1)
        assert (algorithm.steps, algorithm.corrected) == (4 * 16, 0)
    else:
        assert (verdicts["trained"], verdicts["stale"], lost) == (5, 0, 0)
        assert (algorithm.steps, algorithm.corrected) == (4 * 16 + 1, 1)


@pytest.mark.parametrize("swap", ["step", "episode"])
def test_each_environment_of_a_batch_changes_its_policy_at_its_own_time(inproc_lab: Any, swap: str) -> None:
    register_algorithm("LAGGED", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16))
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, algorithm_name="LAGGED", swap=swap)
    observations = np.arange(12, dtype=np.float32).reshape(3, 4)
    trajs, actions = agent.request_for_actions(None, observations)
    assert [action.stamp.version for action in actions] == [0, 0, 0]
    inproc_lab.train(agent, 16, 1)
    for traj, action in zip(trajs, actions, strict=True):
        action.update_reward(0.0)
        agent.add_to_trajectory(traj, action)
    agent.mark_end_of_trajectory(trajs[1], actions[1])
    trajs, actions = agent.request_for_actions(trajs, observations)
    old = 1 if swap == "step" else 0
    assert [action.stamp.version for action in actions] == [old, 1, old]
    for row, action in zip(observations, actions, strict=True):
        np.testing.assert_array_equal(action.obs, row)


def test_credit_that_would_never_come_back_is_corrected(inproc_lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, overflow="wait", rollout_length=4)
    accept, wrong = LearnerThreadBacklog.accept, [DataAmount(5 * 16, 3, 1000)]

    def miscount(transit: LearnerThreadBacklog, load: DataAmount) -> None:
        accept(transit, load)
        if wrong:
            transit.waiting.add(wrong.pop())

    monkeypatch.setattr(LearnerThreadBacklog, "accept", miscount)
    for _ in range(200):
        inproc_lab.episode(agent, 2)  # without a correction, a later call would wait forever
    learner.wait(client_id="lab", version=20, timeout_s=20.0)
    alarms = until(lambda: learner.status()["clients"]["lab"]["alarms"], "an alarm")
    assert set(alarms) == {"credit_corrected"}
    assert alarms["credit_corrected"]["count"] == 1
    assert "80 steps in 3 segments" in alarms["credit_corrected"]["text"]
    assert until(lambda: agent.stats()["alarms"], "the actor's alarm") == {"credit_corrected": 1}
