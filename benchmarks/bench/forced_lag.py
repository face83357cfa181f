"""A training in one process in which the actions come from a policy that is a given number of versions old.

The algorithm gets its data as in a learner thread, but there are no sockets and no threads. So a run depends only on its
settings, and the age of the data is exact.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from rl4sys_zmq.algorithms import Algorithm, make_algorithm
from rl4sys_zmq.policies import Policy, RandomSource, build_policy
from rl4sys_zmq.values import PolicySnapshot, Segment, observation_space_from, space_from

__all__ = ["LagRun", "LagResult", "train_with_lag"]

RECENT = 100
"""The number of the latest training episodes whose mean return is the score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRun:
    """The settings of one training.

    Attributes:
        env_id: The id of a Gymnasium environment.
        algorithm: The name of the algorithm.
        parameters: The parameters of the algorithm.
        lag: The number of versions by which the acting policy is older than the newest one, as soon as there are so many.
        seed: The seed of the algorithm, the actions and the environments.
        num_envs: The number of environments, which are stepped in turn.
        max_steps: The number of environment steps after which the training ends.
        target_return: The score at which the training ends: the mean return of the last `RECENT` training episodes.
    """

    env_id: str
    algorithm: str
    parameters: Mapping[str, Any] = field(repr=False)
    lag: int
    seed: int
    num_envs: int = 8
    max_steps: int = 300_000
    target_return: float = 475.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LagResult:
    """The result of one training.

    Attributes:
        solved_steps: The number of steps at which the score reached the target; None if it did not.
        steps: The number of steps in all.
        updates: The number of updates.
        score: The score at the end.
        best: The highest score.
        episodes: The number of steps at the end of each training episode, about, and the episode's return.
    """

    solved_steps: int | None
    steps: int
    updates: int
    score: float
    best: float
    episodes: tuple[tuple[int, float], ...] = field(default=(), repr=False)


class _Episode:
    """One environment with the segment that is being collected from it."""

    def __init__(self, env_id: str, seed: int) -> None:
        self.env = gymnasium.make(env_id)
        self._seed: int | None = seed
        self._episodes = 0
        self._number = seed << 32
        self._begin()

    def _begin(self) -> None:
        self.observation, _ = self.env.reset(seed=self._seed)
        self._seed = None
        self._number += 1
        self._index, self._total, self._length = 0, 0.0, 0
        self._clear()

    def _clear(self) -> None:
        self._rows: list[tuple[Any, Any, float, float, int]] = []

    def step(self, raw: Any, action: Any, log_prob: float, version: int, longest: int) -> tuple[Segment | None, float | None]:
        """Take one step. Return the segment that it completes, and the return of the episode that it ends."""
        before = self.observation
        self.observation, reward, terminated, truncated, _ = self.env.step(action)
        self._rows.append((before, raw, float(reward), log_prob, version))
        self._total += float(reward)
        self._length += 1
        over = terminated or truncated
        if not over and len(self._rows) < longest:
            return None, None
        segment = self._segment(terminated, truncated)
        total = self._total
        if over:
            self._begin()
            return segment, total
        self._index += 1
        self._clear()
        return segment, None

    def _segment(self, terminated: bool, truncated: bool) -> Segment:
        observations, actions, rewards, log_probs, versions = zip(*self._rows, strict=True)
        over = terminated or truncated
        return Segment(
            observations=np.stack(observations if terminated else (*observations, self.observation)),
            actions=np.stack(actions),
            rewards=np.array(rewards, np.float32),
            log_probs=np.array(log_probs, np.float32),
            versions=np.array(versions, np.uint64),
            masks=None,
            generation=1,
            episode_id=self._number,
            segment_index=self._index,
            terminated=terminated,
            truncated=truncated and not terminated,
            episode_return=self._total if over else None,
            episode_length=self._length if over else None,
        )


class _Actor:
    """The acting policy, which is a number of versions older than the newest one."""

    def __init__(self, algorithm: Algorithm, lag: int, seed: int) -> None:
        self._algorithm, self._rng = algorithm, RandomSource(seed)
        self._policies: deque[Policy] = deque(maxlen=lag + 1)
        self._version = -1
        self.publish()

    def publish(self) -> None:
        """Make the algorithm's current weights the newest version."""
        self._version += 1
        spec = self._algorithm.spec()
        weights = spec.flatten(self._algorithm.snapshot())
        self._policies.append(build_policy(spec, PolicySnapshot(1, self._version, 0, *weights)))

    def steps(self, episodes: list[_Episode]) -> Iterator[tuple[Segment | None, float | None]]:
        """Take one step in each environment, and yield the completed segments and the returns of ended episodes."""
        policy, longest = self._policies[0], self._algorithm.rollout_length
        raws, actions, log_probs = policy.act_batch(np.stack([e.observation for e in episodes]), None, self._rng, True)
        for episode, raw, action, log_prob in zip(episodes, raws, actions, log_probs.tolist(), strict=True):
            yield episode.step(raw, action, log_prob, policy.version, longest)


def train_with_lag(run: LagRun) -> LagResult:
    """Train until the target or the largest number of steps is reached. The score is read after each update."""
    episodes = [_Episode(run.env_id, 1000 * run.seed + k) for k in range(run.num_envs)]
    env = episodes[0].env
    spaces = observation_space_from(env.observation_space), space_from(env.action_space)
    algorithm = make_algorithm(run.algorithm, *spaces, run.parameters, run.seed)
    actor, recent = _Actor(algorithm, run.lag, run.seed), deque[float](maxlen=RECENT)
    ended: list[tuple[int, float]] = []
    steps = updates = 0
    score = best = -np.inf
    try:
        while steps < run.max_steps and best < run.target_return:
            for segment, total in actor.steps(episodes):
                if segment is None:
                    continue
                algorithm.observe(segment)
                steps += segment.steps
                if total is not None:
                    recent.append(total)
                    ended.append((steps, total))
                while algorithm.update() is not None:
                    updates += 1
                    actor.publish()
                    score = float(np.mean(recent)) if len(recent) == RECENT else score
                    best = max(best, score)
    finally:
        for episode in episodes:
            episode.env.close()
    return LagResult(
        solved_steps=steps if best >= run.target_return else None,
        steps=steps,
        updates=updates,
        score=score,
        best=best,
        episodes=tuple(ended),
    )
