"""Random take-overs and skipped actions: what the learner sees is what the environment's own log has."""

import os
import random
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import drained, until
from numpy.typing import NDArray

from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.ops.report import conservation_error, report_lines
from rl4sys_zmq.replay.memory import ReplayMemory
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment

from .conftest import Lab

PAD, SOURCES = BoxSpace((2,), low=-1.0, high=1.0), ("human", "safety")


@dataclass
class Log:
    """The log of an environment. A step's observation has its number `n`; its reward depends on `n`.

    Attributes:
        actions: The action that was done in each step that was added, by the number of the step.
        sources: The source of each of these steps; empty if the policy's action was done.
        terminal: The numbers of the last steps of episodes that ended in a terminal state.
    """

    actions: dict[int, Any] = field(default_factory=dict)
    sources: dict[int, str] = field(default_factory=dict)
    terminal: set[int] = field(default_factory=set)

    def check(self, segments: list[Segment], number_of: Any, *, squash: bool) -> None:
        """Check that segments have each added step once, with its own action, reward and successor, and no other transition."""
        seen: list[int] = []
        last: dict[int, tuple[int, int]] = {}
        for segment in segments:
            numbers = [number_of(row) for row in segment.observations]
            steps = numbers[: segment.steps]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "a transition that did not happen"
            assert segment.terminated == (steps[-1] in self.terminal) == (len(numbers) == segment.steps)
            assert not self.terminal & set(steps[:-1])
            np.testing.assert_array_equal(segment.rewards, [reward_of(n) for n in steps])
            done = np.array([self.actions[n] for n in steps])
            if squash and segment.actions.dtype.kind == "f":
                np.testing.assert_allclose(np.tanh(segment.actions), done, rtol=1e-5)
            else:
                np.testing.assert_array_equal(segment.actions, done)
            assert {self.sources[n] for n in steps} == {segment.source}
            known = np.isfinite(segment.log_probs)
            assert known.all() or segment.source
            index, end = last.get(segment.episode_id, (-1, -1))
            if index + 1 == segment.segment_index and index >= 0:
                assert steps[0] == end + 1, "consecutive segments are joined"
            last[segment.episode_id] = segment.segment_index, steps[-1]
            seen += steps
        assert sorted(seen) == sorted(self.actions)


def reward_of(number: int) -> float:
    return float(number % 17) - 4.0


class Host:
    """A host that overrides and skips actions at random, and adds them up to `lag` steps late, in order."""

    def __init__(self, agent: Any, log: Log, *, image: bool, lag: int, seed: int) -> None:
        self.agent, self.log, self.lag, self.rng, self.next = agent, log, lag, random.Random(seed), 0
        self.image = image

    def observation(self, number: int) -> NDArray[Any]:
        if self.image:
            return np.stack([np.full((36, 36), number >> shift & 255, np.uint8) for shift in (0, 8, 16)])
        return np.full(4, number, np.float32)

    def number_of(self, row: NDArray[Any]) -> int:
        return sum(int(row[k, 0, 0]) << 8 * k for k in range(3)) if self.image else int(row[0])

    def replacement(self) -> Any:
        if isinstance(self.agent.spec.action_space, DiscreteSpace):
            return self.rng.randrange(3)
        return np.array([self.rng.choice((-1.0, 1.0, self.rng.uniform(-1, 1))) for _ in range(2)], np.float32)

    def add(self, traj: Any, number: int, action: Any, *, end: bool = False) -> None:
        action.update_reward(reward_of(number))
        self.log.actions[number], self.log.sources[number] = np.copy(action.act), action.source
        if end:
            self.log.terminal.add(number)
            self.agent.mark_end_of_trajectory(traj, action)
        else:
            self.agent.add_to_trajectory(traj, action)

    def act(self, trajs: Any, numbers: list[int]) -> tuple[Any, Any]:
        observations = [self.observation(n) for n in numbers]
        if len(numbers) > 1:
            return self.agent.request_for_actions(trajs, np.stack(observations))  # type: ignore[no-any-return]
        traj, action = self.agent.request_for_action(trajs[0], observations[0])
        return [traj], [action]

    def run(self, steps: int, width: int) -> None:
        trajs: Any = [None] * width
        queues: list[deque[tuple[int, Any]]] = [deque() for _ in range(width)]
        numbers, self.next = [1000 * k for k in range(width)], 1000 * width
        for _ in range(steps):
            trajs, actions = self.act(trajs, numbers)
            for k, action in enumerate(actions):
                if self.rng.random() < 0.3:
                    action.override(self.replacement(), source=self.rng.choice(SOURCES))
                queues[k].append((numbers[k], action))
                ended = self.rng.random() < 0.05
                while queues[k] and (len(queues[k]) > self.rng.randrange(self.lag + 1) or ended):
                    number, oldest = queues[k].popleft()
                    if self.rng.random() < 0.2:
                        continue  # the host did something else, and does not add the action
                    self.add(trajs[k], number, oldest, end=ended and not queues[k])
                numbers[k] += 1
                if ended:
                    if not trajs[k].completed:
                        self.agent.mark_end_of_trajectory(trajs[k])  # without the last action, which was skipped
                    numbers[k], self.next = self.next, self.next + 1000
        for traj, queue in zip(trajs, queues, strict=True):
            while queue:
                self.add(traj, *queue.popleft())
            if not traj.completed and len(traj):
                self.agent.mark_end_of_trajectory(traj, truncated=True, final_obs=self.observation(numbers[trajs.index(traj)]))

    def run_bursts(self, bursts: int, width: int) -> None:
        """Request actions in bursts, and add them a burst or two later, also after the end of their trajectory."""
        trajs: Any = [None] * width
        queues: list[deque[tuple[int, Any]]] = [deque() for _ in range(width)]
        numbers, added = [100_000 * k for k in range(width)], [0] * width
        last: list[Any] = [None] * width

        def add(k: int, most: int) -> None:
            while len(queues[k]) > most:
                number, action = queues[k].popleft()
                if self.rng.random() < 0.05:
                    continue  # this one is never added
                added[k] += 1
                last[k] = number, action
                self.add(trajs[k], number, action)
                if added[k] % 9 == 0:
                    self.log.terminal.add(number)
                    self.agent.mark_end_of_trajectory(trajs[k], action)

        for _ in range(bursts):
            for k in range(width):
                add(k, BURST)
            for _ in range(self.rng.randrange(1, BURST)):
                trajs, actions = self.act(trajs, numbers)
                for k, action in enumerate(actions):
                    if self.rng.random() < 0.1:
                        action.override(self.replacement(), source="human")
                    queues[k].append((numbers[k], action))
                    numbers[k] += 1
        for k, traj in enumerate(trajs):
            add(k, 0)
            number, action = last[k]
            self.agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=self.observation(number + 1))


BURST = 40
SAC = {"learning_starts": 50, "train_frequency": 40, "hidden_sizes": [8], "rollout_length": 16}
DQN = {**SAC, "n_step": 3}
BATCH = {"steps_per_update": 64, "minibatch_size": 32, "update_epochs": 1, "rollout_length": 16}
PPO = {**BATCH, "hidden_sizes": [8]}
REMOTE = {"inference": "remote", "inference_timeout_s": 20.0}
CASES: dict[str, tuple[str, Any, dict[str, Any], dict[str, Any]]] = {
    # algorithm, actions, parameters, options of the agent
    "PPO": ("PPO", DiscreteSpace(3), PPO, {}),
    "PPO, Box": ("PPO", PAD, PPO, {}),
    "DQN": ("DQN", DiscreteSpace(3), DQN, {}),
    "SAC": ("SAC", PAD, SAC, {}),
    "GRU": ("PPO", DiscreteSpace(3), {**BATCH, "network": {"kind": "gru", "units": 4}}, {}),
    "ONNX": ("PPO", DiscreteSpace(3), {**BATCH, "network": "cnn"}, {}),
    "remote": ("DQN", DiscreteSpace(3), DQN, REMOTE),
    "remote, Box": ("SAC", PAD, SAC, REMOTE),
}


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> list[ReplayMemory]:
    """Return a list to which a replay of this process is added with each segment that it gets."""
    found: list[ReplayMemory] = []
    add = ReplayMemory.add

    def note(self: ReplayMemory, segment: Segment) -> None:
        found.append(self)
        add(self, segment)

    monkeypatch.setattr(ReplayMemory, "add", note)
    return found


@pytest.mark.parametrize(("width", "lag"), [(1, 0), (1, 5), (3, 0), (3, 4)], ids=["one", "late", "batch", "late batch"])
@pytest.mark.parametrize("case", CASES)
def test_the_learners_transitions_are_those_of_the_environment(
    inproc_lab: Lab, observed: list[Segment], memories: list[ReplayMemory], case: str, width: int, lag: int
) -> None:
    pytest.importorskip("torch")
    image = case == "ONNX"
    if image:
        pytest.importorskip("onnxruntime")
    algorithm, actions, parameters, options = CASES[case]
    learner = inproc_lab.learner(torch_threads=1, inference="auto")
    space = BoxSpace((3, 36, 36), "|u1", 0, 255) if image else BoxSpace((4,), low=-1e6, high=1e6)
    agent = inproc_lab.agent(
        learner, algorithm_name=algorithm, algorithm_parameters={**parameters, "seed": 1}, action_space=actions,
        observation_space=space, overflow="wait", rollout_length=16, **options,
    )  # fmt: skip
    log = Log()
    host = Host(agent, log, image=image, lag=lag, seed=width + lag)
    host.run(STEPS // width, width)
    drained(learner, agent)
    status = learner.status()
    client = status["clients"]["lab"]
    overridden = sum(1 for source in log.sources.values() if source)
    assert conservation_error(client) == "" and not client["verdicts"]["quarantined"], client["verdicts"]
    assert agent.stats()["counters"]["overridden_steps"] == overridden == client["scalars"]["charts/overridden_steps"] > 0
    assert any(f"overridden steps {overridden:,}" in line for line in report_lines(status, 0.0))
    if algorithm == "PPO":
        assert not any(segment.source for segment in observed) and client["verdicts"]["overridden"] > 0
        log.actions = {number: action for number, action in log.actions.items() if not log.sources[number]}
    else:
        assert client["verdicts"]["overridden"] == 0
    log.check(observed, host.number_of, squash=algorithm == "PPO")
    if memories:
        check_rows(memories[0], log, host.number_of, int(parameters.get("n_step", 1)))


@pytest.mark.parametrize("width", [1, 3], ids=["one", "batch"])
@pytest.mark.parametrize("case", ["PPO", "DQN", "SAC", "GRU"])
def test_actions_that_are_added_after_the_end_of_their_trajectory_are_trained(
    inproc_lab: Lab, observed: list[Segment], memories: list[ReplayMemory], case: str, width: int
) -> None:
    pytest.importorskip("torch")
    algorithm, actions, parameters, _ = CASES[case]
    learner = inproc_lab.learner(torch_threads=1, on_lag="correct")  # nothing is dropped for its lag
    agent = inproc_lab.agent(
        learner, algorithm_name=algorithm, algorithm_parameters={**parameters, "seed": 1}, action_space=actions,
        observation_space=BoxSpace((4,), low=-1e6, high=1e6), rollout_length=16, queue_items=1 << 16,
    )  # fmt: skip
    log = Log()
    host = Host(agent, log, image=False, lag=0, seed=width)
    host.run_bursts(min(STEPS // 5, 1200 // width), width)  # 45,000 steps at most, as many as queue and replay hold
    agent.flush(20.0)
    stats = agent.stats()
    assert (stats["dropped"], stats["counters"].get("late_actions_dropped", 0)) == ({}, 0)
    assert stats["steps"] == len(log.actions) > STEPS
    client = drained(learner)
    assert conservation_error(client) == "" and not client["verdicts"]["quarantined"], client["verdicts"]
    if algorithm == "PPO":
        log.actions = {number: action for number, action in log.actions.items() if not log.sources[number]}
    log.check(observed, host.number_of, squash=algorithm == "PPO")
    if memories:
        check_rows(memories[0], log, host.number_of, int(parameters.get("n_step", 1)))


STEPS = 10_000 if os.environ.get("RL4SYS_SOAK") else 240


def check_rows(memory: ReplayMemory, log: Log, number_of: Any, n_step: int) -> None:
    """Check each row of a replay: its action is the one that was done, and its successor follows within `n_step` steps."""
    rows = memory.gather(np.arange(len(memory)))
    numbers = [number_of(row) for row in rows.observations]
    assert sorted(numbers) == sorted(log.actions)
    actions = np.reshape(rows.actions, (len(numbers), -1))
    for number, successor, action in zip(numbers, map(number_of, rows.successors), actions, strict=True):
        np.testing.assert_array_equal(action, np.reshape(log.actions[number], -1))
        through = range(number, successor)
        assert number in log.terminal or (1 <= len(through) <= n_step and all(n in log.actions for n in through))


def test_spool_journal_and_counts_keep_overridden_steps_over_a_restart(inproc_lab: Lab, tmp_path: Path) -> None:
    """An on-policy algorithm waits for its batch. After the restart, the segments have their sources and get their verdicts."""
    register_algorithm("WAITS", FakeAlgorithm.factory(steps_per_update=1 << 20, rollout_length=4))
    address, options = inproc_lab.new_address(), {"algorithm_name": "WAITS", "spool": str(tmp_path / "spool")}

    def play(agent: Any) -> None:
        traj: Any = None
        for step in range(6):
            traj, action = agent.request_for_action(traj, np.full(4, step, np.float32))
            if step in (2, 3):
                action.override(1, source="rule")
            agent.add_to_trajectory(traj, action)
            action.update_reward(0.0)
        agent.mark_end_of_trajectory(traj, action)

    with Learner(LearnerConfig(bind=address, run_dir=tmp_path / "run")) as first:
        agent = inproc_lab.agent(first, **options)
        play(agent)
        agent.flush(20.0)
    play(agent)
    agent.close(0.0)
    with Learner(LearnerConfig(bind=address, run_dir=tmp_path / "run")) as second:
        again = inproc_lab.agent(second, **options)
        client = drained(second, again)
        assert (client["accepted"], client["verdicts"]["trained"], client["verdicts"]["overridden"]) == (6, 4, 2)
        assert conservation_error(client) == ""
        again.close()
    with Learner(LearnerConfig(bind=address, run_dir=tmp_path / "run")) as third:
        inproc_lab.agent(third, **options).close()
        until(lambda: third.status()["clients"]["lab"]["scalars"].get("charts/overridden_steps") == 4.0, "the count")
