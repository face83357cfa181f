"""The example of a store with late rewards in a short form: its store, the order of its rewards, and a whole run."""

import random
from typing import Any

import pytest
import store_tuning as example
from kit import open_agent

from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment

STEPS = 700
"""The number of steps: three and a half episodes."""


def test_a_store_returns_the_newest_value_of_each_key() -> None:
    rng, store, twin = random.Random(5), example.Store(), dict[int, int]()
    for number in range(5000):
        key = rng.randrange(300)
        if rng.random() < 0.5:
            store.put(key, number)
            twin[key] = number
        else:
            assert store.get(key) == twin.get(key)
        if number % 500 == 0:
            store.most_runs = rng.choice(example.RUNS)
    assert store.moved > 0


def test_the_work_is_the_compared_and_the_moved_keys() -> None:
    store = example.Store()
    for key in range(2 * example.TABLE):  # the second run is one too many
        store.put(key, key)
    assert (len(store.runs), store.moved, store.compared) == (1, 2 * example.TABLE, 0)
    store.get(0)
    assert store.compared == (2 * example.TABLE).bit_length()
    store.most_runs = 2
    for key in range(example.TABLE):
        store.put(key, -key)
    store.compared = 0
    assert (store.get(7), store.compared) == (-7, example.TABLE.bit_length())
    store.compared = 0
    assert store.get(example.TABLE) == example.TABLE
    assert store.compared == example.TABLE.bit_length() + (2 * example.TABLE).bit_length()
    store.most_runs = 1
    store.tidy()
    assert (len(store.runs), store.moved) == (1, 4 * example.TABLE)


def test_the_workload_is_repeatable_and_has_every_phase() -> None:
    steps = list(example.workload(3000, seed=4))
    assert steps == list(example.workload(3000, seed=4))
    assert {step.share for step in steps} == set(example.READ_SHARES)
    assert {len(step.keys) for step in steps} == {example.OPERATIONS}
    assert {step.share for step in steps if step.reads == 0} == {0.0}


def test_each_late_reward_reaches_its_own_action_over_the_ends_of_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    works: list[float] = []
    episodes: dict[int, dict[int, list[float]]] = {}
    execute, observe = example.TunedStore.execute, FakeAlgorithm.observe

    def note_work(self: example.TunedStore, step: example.Step, action: int) -> float:
        works.append(execute(self, step, action))
        return works[-1]

    def note_rewards(self: FakeAlgorithm, segment: Segment, *, correct: bool = False) -> None:
        episodes.setdefault(segment.episode_id, {})[segment.segment_index] = segment.rewards.tolist()
        observe(self, segment, correct=correct)

    monkeypatch.setattr(example, "OPERATIONS", 20)
    monkeypatch.setattr(example.TunedStore, "execute", note_work)
    monkeypatch.setattr(FakeAlgorithm, "observe", note_rewards)
    register_algorithm("LATE_STORE", FakeAlgorithm.factory(steps_per_update=64, rollout_length=64))
    with Learner(LearnerConfig(bind="inproc://late-store", run_dir=None)) as learner:
        spaces: dict[str, Any] = {"observation_space": BoxSpace((3,)), "action_space": DiscreteSpace(len(example.RUNS))}
        with open_agent(learner, linger_ms=5_000, algorithm_name="LATE_STORE", queue_items=1000, **spaces) as agent:
            example.learn(agent, STEPS, seed=1)
            agent.flush(timeout_s=20)
            assert agent.stats()["dropped_at_source"] == 0
        learner.drain(timeout_s=20)
    rewards = [reward for segments in episodes.values() for index in sorted(segments) for reward in segments[index]]
    assert len(episodes) == 4
    assert rewards == pytest.approx([-work / 10 for work in works])
    assert len(works) == STEPS


@pytest.mark.parametrize("words", [["--steps", "9"], ["--evaluate", "0"]])
def test_a_number_that_is_too_small_is_refused(words: list[str], call: Any) -> None:
    with pytest.raises(SystemExit):
        call(example, *words)
