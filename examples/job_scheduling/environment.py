"""A Gymnasium environment in which an agent decides which of the waiting jobs of a cluster runs next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from job_scheduling.features import FEATURES, WINDOW, FeatureReader
from job_scheduling.heuristics import HEURISTICS, STATIC, schedule
from job_scheduling.rollout import ranks, roll_out, roll_out_from
from job_scheduling.simulator import OBJECTIVES, SHORT_JOB_S, Schedule, Simulator
from job_scheduling.trace import Trace
from rl4sys_zmq.errors import ConfigError

__all__ = ["REWARDS", "Scheduling", "SchedulingEnv", "best_reference"]

REWARDS = ("rollout", "accrued", "end")
"""The kinds of rewards: what each decision saves, what has accrued since the last decision, or all at the end."""

ATTEMPTS = 100
"""The number of episodes that are drawn until one has a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """The rules of an environment.

    Attributes:
        length: The number of jobs of an episode.
        backfilling: True to let other jobs start while the chosen one cannot.
        objective: The measure of a schedule, one of `OBJECTIVES`.
        rewards: The kind of rewards, one of `REWARDS`.
        reference: The heuristic with which the agent is compared, or None.
        horizon: The number of jobs, of those submitted after a decision, whose part of the objective counts for its reward in
            rollouts; None for all. It needs a mean as the objective.
        clip: The largest absolute value of a reward of rollouts; None for no limit.

    Raises:
        ConfigError: If a value is invalid.
    """

    length: int = 1024
    backfilling: bool = False
    objective: str = "bounded_slowdown"
    rewards: str = "rollout"
    reference: str | None = "F1"
    horizon: int | None = None
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(f"an episode needs jobs; length is {self.length}", key="length")
        if self.objective not in OBJECTIVES:
            raise ConfigError(f"unknown objective {self.objective!r}; known are {', '.join(OBJECTIVES)}", key="objective")
        if self.reference is not None and self.reference not in HEURISTICS:
            raise ConfigError(f"unknown reference {self.reference!r}; known are {', '.join(HEURISTICS)}", key="reference")
        if self.rewards not in REWARDS:
            raise ConfigError(f"unknown rewards {self.rewards!r}; known are {', '.join(REWARDS)}", key="rewards")
        if self.rewards == "rollout" and self.reference not in STATIC:
            raise ConfigError(f"rollouts need a reference of {', '.join(STATIC)}, not {self.reference}", key="reference")
        if self.horizon is not None and self.horizon < 0:
            raise ConfigError(f"a horizon is a number of jobs from 0, not {self.horizon}", key="horizon")
        if self.clip is not None and not self.clip > 0.0:
            raise ConfigError(f"the largest reward must be above 0, not {self.clip}", key="clip")


def best_reference(backfilling: bool) -> str:
    """Return the classic scheduler that is the best one on most workloads."""
    return "F2" if backfilling else "F1"


class SchedulingEnv(gym.Env[NDArray[np.float32], np.int64]):
    """An episode schedules consecutive jobs of a trace on an empty cluster.

    - The observation has a row of `FEATURES` for each of the first `WINDOW` waiting jobs, in the order of submission; zeros where
      no job is. If more jobs wait, those with the lowest score of F1 are seen.
    - The action is a row. ``info["action_mask"]`` is True for the rows with a job.
    - The rewards of an episode add up to ``-objective``, or with a reference to ``1 - objective / objective of the reference``
      (the difference of the two if the reference has 0; divided by its absolute value for the utilisation).
    - A reward of the kind ``rollout`` is what a decision saves if the reference makes all decisions after it: the objective of
      the schedule expected before the decision minus that of the schedule expected after it. This is potential-based shaping
      (Ng, Harada & Russell 1999) with the reference's result as the potential. It is zero where the agent agrees with the
      reference. With `Scheduling.horizon` or
      `Scheduling.clip`, the rewards no longer add up.
    - A reward of the kind ``accrued`` is the part of the objective that has accrued since the last decision. The utilisation
      does not accrue, so its reward comes at the end, as with ``end``.
    - A decision with one waiting job is made without the agent.

    The jobs of an episode are drawn at random from all traces. ``reset(options={"trace": 0, "start": 1024})`` names the trace and
    its first job.
    """

    def __init__(self, traces: Sequence[Trace], rules: Scheduling | None = None) -> None:
        """Prepare the environment.

        Args:
            traces: The traces that episodes are taken from.
            rules: The rules; None for the defaults.

        Raises:
            ConfigError: If there is no trace, or one has fewer jobs than an episode.
        """
        self.rules = rules or Scheduling()
        shortest = min((len(trace.jobs) for trace in traces), default=0)
        if shortest < self.rules.length:
            raise ConfigError(f"an episode has {self.rules.length} jobs, and the shortest trace {shortest}", key="length")
        self._traces = list(traces)
        self.observation_space = gym.spaces.Box(-1.0, 2.0, (WINDOW, len(FEATURES)), np.float32)
        self.action_space = gym.spaces.Discrete(WINDOW)
        self._dense = self.rules.rewards == "accrued" and self.rules.objective != "utilisation"
        self._visible = np.zeros(0, dtype=np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode, as `gymnasium.Env.reset` describes.

        Raises:
            ConfigError: If the options name jobs that do not exist, or the jobs leave nothing to decide.
        """
        super().reset(seed=seed)
        options = options or {}
        for _ in range(1 if "start" in options else ATTEMPTS):
            self._begin(options)
            self._skip()
            if not self._simulator.finished:
                return self._observe()
        raise ConfigError(
            "the jobs of the episode start one by one, so there is nothing to decide: the trace has too little load"
        )

    def _begin(self, options: Mapping[str, Any]) -> None:
        """Choose the jobs of an episode, and prepare an empty cluster."""
        rules = self.rules
        index = int(options.get("trace", self.np_random.integers(len(self._traces))))
        if not 0 <= index < len(self._traces):
            raise ConfigError(f"there is no trace {index}; there are {len(self._traces)}", key="trace")
        trace = self._traces[index]
        last = len(trace.jobs) - rules.length
        start = int(options.get("start", self.np_random.integers(last + 1)))
        if not 0 <= start <= last:
            raise ConfigError(f"no episode begins with job {start}; the last one begins with {last}", key="start")
        jobs = self._jobs = trace.jobs.take(slice(start, start + rules.length))
        self._simulator = Simulator(jobs, trace.processors, backfilling=rules.backfilling)
        self._features = FeatureReader(self._simulator)
        self._reference: Schedule | None = None
        if rules.rewards == "rollout":
            self._places = ranks(jobs, HEURISTICS[str(rules.reference)])
            self._rollout = roll_out(self._simulator.copy(), self._places)
            self._reference = self._rollout.schedule(jobs, trace.processors)
            self._expected = self._reference
        elif rules.reference is not None:
            self._reference = schedule(jobs, trace.processors, HEURISTICS[rules.reference], backfilling=rules.backfilling)
        self._start_s = np.full(len(jobs), np.inf)
        self._noted = 0
        self._accrued = 0.0

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Start the job of a row, as `gymnasium.Env.step` describes.

        When the episode has ended, ``info["schedule"]`` is the `Schedule`. With a reference, ``info["saved"]`` is the part of its
        objective that the agent has saved.

        Raises:
            ValueError: If no job is in this row, or the episode has ended.
        """
        if not 0 <= action < len(self._visible):
            raise ValueError(f"row {action} has no job; {len(self._visible)} rows have one (see action_mask)")
        job = int(self._visible[action])
        reward = 0.0
        if self.rules.rewards == "rollout":
            reward = self._saved_by(job)
        self._simulator.start(job)
        self._skip()
        ended = self._simulator.finished
        observation, info = self._observe()
        if self._dense:
            accrued = self._accrual()
            reward, self._accrued = accrued - self._accrued, accrued
        if ended:
            done = info["schedule"] = self._simulator.schedule()
            if self._reference is not None:
                info["saved"] = self._final(done)
            if self.rules.rewards != "rollout" and not self._dense:
                reward = self._final(done)
            elif self._dense and self._reference is None:
                reward -= done.objective(self.rules.objective) + self._accrued  # what a schedule without any wait would have
        return observation, reward, ended, False, info

    def _saved_by(self, job: int) -> float:
        """Return the part of the objective that a decision saves if the reference makes all the later ones."""
        if job == min(self._simulator.waiting, key=self._places.__getitem__):
            return 0.0
        before, rules = self._expected, self.rules
        self._rollout = roll_out_from(self._simulator, self._places, job, self._rollout)
        after = self._expected = self._rollout.schedule(self._jobs, self._simulator.machine)
        if rules.horizon is None:
            saved = before.objective(rules.objective) - after.objective(rules.objective)
        else:
            some = self._simulator.arrived + rules.horizon
            saved = before.first(some).objective(rules.objective) - after.first(some).objective(rules.objective)
            saved *= min(some, len(self._jobs)) / len(self._jobs)
        saved = self._share(saved)
        return saved if rules.clip is None else min(max(saved, -rules.clip), rules.clip)

    def _skip(self) -> None:
        """Make all decisions that have one choice, and note the start times."""
        simulator = self._simulator
        while len(simulator.waiting) == 1:
            simulator.start(simulator.waiting[0])
        for job in simulator.order[self._noted :]:
            self._start_s[job] = simulator.start_s(job)
        self._noted = len(simulator.order)

    def _final(self, done: Schedule) -> float:
        """Return the sum of the rewards of an episode."""
        objective = done.objective(self.rules.objective)
        if self._reference is None:
            return -objective
        return self._share(self._reference.objective(self.rules.objective) - objective)

    def _share(self, saved: float) -> float:
        """Return a difference as a part of the reference's objective."""
        assert self._reference is not None
        return saved / (abs(self._reference.objective(self.rules.objective)) or 1.0)

    def _accrual(self) -> float:
        """Return the sum of the rewards so far."""
        now_s = np.inf if self._simulator.finished else self._simulator.now_s
        mine = self._waited(self._start_s, now_s)
        if self._reference is None:
            return -mine
        objective = self._reference.objective(self.rules.objective)
        return (self._waited(self._reference.start_s, now_s) - mine) / (objective or 1.0)

    def _waited(self, start_s: NDArray[np.float64], now_s: float) -> float:
        """Return the part of the objective that jobs with these start times have accrued by waiting until now."""
        jobs = self._jobs
        waits_s = np.minimum(start_s, now_s) - jobs.submit_s
        if self.rules.objective != "bounded_slowdown":
            return float(np.maximum(waits_s, 0.0).mean())
        slowdowns = (waits_s + jobs.run_s) / np.maximum(jobs.run_s, SHORT_JOB_S)
        return float(np.maximum(slowdowns - 1.0, 0.0).mean())

    def _observe(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Return the observation, and the info with the mask."""
        self._visible, observation = self._features.read()
        return observation, {"action_mask": np.arange(WINDOW) < len(self._visible)}
