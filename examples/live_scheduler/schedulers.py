"""The schedulers of the daemon: the classic ones, a random one, and an actor with a learned policy.

Each chooses one of the waiting jobs. It starts as soon as it fits, and until then no other job is chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from job_scheduling.features import WINDOW, FeatureReader
from job_scheduling.heuristics import HEURISTICS, Heuristic
from job_scheduling.policy import ACTION_SPACE, OBSERVATION_SPACE
from job_scheduling.simulator import SHORT_JOB_S
from job_scheduling.trace import Jobs
from live_scheduler.jobs import ClusterView, Job
from rl4sys_zmq import AgentConfig, RL4SysAgent, RL4SysError
from rl4sys_zmq.actor import RL4SysAction, RL4SysTrajectory
from rl4sys_zmq.errors import ConfigError

__all__ = ["CLIENT", "SCHEDULERS", "PolicyScheduler", "Scheduler", "SlowdownMeter", "make_scheduler"]

log = logging.getLogger(__name__)

CLIENT = "scheduler"
"""The client of the learner. It is that of ``python -m job_scheduling.train``."""

REWARD_SCALE = 2e-5
"""The reward for a slowdown of 1. Rewards then have the size of those in the simulator."""


class Scheduler(Protocol):
    """A scheduler."""

    def choose(self, view: ClusterView, slowdown: float) -> int:
        """Return the row of the job that is next.

        Args:
            view: The state of the machine; at least two jobs wait.
            slowdown: The slowdown that jobs have accrued by waiting since the last decision.
        """

    def rest(self, slowdown: float) -> None:
        """Note that no job waits any more. The argument is that of `choose`."""

    def status(self) -> dict[str, Any]:
        """Return figures for the users of the daemon."""

    def close(self) -> None:
        """Release what the scheduler holds."""


class SlowdownMeter:
    """The bounded slowdown that jobs accrue by waiting, by their requested times. Minus its growth is the reward."""

    def __init__(self) -> None:
        self._started = self._last = 0.0

    def started(self, job: Job, now_s: float) -> None:
        """Note that a job does not wait any more."""
        self._started += _accrued(job, now_s)

    def growth(self, waiting: Sequence[Job], now_s: float) -> float:
        """Return what has accrued since the last call."""
        last, self._last = self._last, self._started + sum(_accrued(job, now_s) for job in waiting)
        return self._last - last


def _accrued(job: Job, now_s: float) -> float:
    return max((now_s - job.submit_s + job.requested_s) / max(job.requested_s, SHORT_JOB_S) - 1.0, 0.0)


class ClassicScheduler:
    """One of the classic schedulers."""

    def __init__(self, heuristic: Heuristic) -> None:
        self._heuristic = heuristic

    def choose(self, view: ClusterView, slowdown: float) -> int:
        """Return the row of the job with the lowest score."""
        return int(self._heuristic(view.jobs, view.now_s).argmin())

    def rest(self, slowdown: float) -> None:
        """Do nothing."""

    def status(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def close(self) -> None:
        """Do nothing."""


class RandomScheduler(ClassicScheduler):
    """A random choice."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        super().__init__(lambda jobs, now_s: rng.random(len(jobs)))


class PolicyScheduler:
    """An actor: it chooses with the newest policy of its learner, and with a classic scheduler until it has one.

    No decision waits for the learner. While the learner is away, the actor keeps its policy. The policy is also in a file, so
    a daemon that starts without the learner has it at once.

    Attributes:
        agent: The actor.
    """

    def __init__(self, config: AgentConfig, heuristic: Heuristic) -> None:
        """Connect to the learner, for at most ``connect_timeout_s``.

        Args:
            config: The configuration of the actor.
            heuristic: The classic scheduler that stands in for the policy.

        Raises:
            RL4SysError: If the learner refuses this actor, or the configuration is invalid.
        """
        self._heuristic = heuristic
        self._view: tuple[Jobs, float] | None = None
        self._trajectory: RL4SysTrajectory | None = None
        self._last: RL4SysAction | None = None
        self._failures = 0
        self.agent = RL4SysAgent(config=config, baseline=self._baseline)

    def choose(self, view: ClusterView, slowdown: float) -> int:
        """Return the row of the job that the policy takes."""
        self._reward(slowdown)
        seen, features = FeatureReader(view).read()
        self._view = view.jobs.take(seen), view.now_s
        try:
            mask = np.arange(WINDOW) < len(seen)
            self._trajectory, action = self.agent.request_for_action(self._trajectory, features, mask)
            self.agent.add_to_trajectory(self._trajectory, action)
        except RL4SysError:
            self._failures += 1
            log.exception("the actor has failed; the classic scheduler decides")
            return int(seen[self._baseline(features, None)])
        self._last = action
        return int(seen[action.act])

    def rest(self, slowdown: float) -> None:
        """End the episode: what comes next does not depend on the last choices."""
        self._reward(slowdown)
        if self._trajectory is not None and self._last is not None:
            self.agent.mark_end_of_trajectory(self._trajectory, self._last)
        self._trajectory = self._last = None

    def status(self) -> dict[str, Any]:
        """Return the version of the policy (-1: none yet), the time since the learner's last message, and the failures."""
        stats = self.agent.stats()
        return {"version": stats["version"], "policy_age_s": stats["policy_age_s"], "failures": self._failures}

    def close(self) -> None:
        """Send what is finished, and end the actor."""
        self.agent.close()

    def _reward(self, slowdown: float) -> None:
        if self._last is not None:
            self._last.update_reward(-REWARD_SCALE * slowdown)

    def _baseline(self, observation: NDArray[Any], mask: NDArray[np.bool_] | None) -> int:
        assert self._view is not None
        jobs, now_s = self._view
        return int(self._heuristic(jobs, now_s).argmin())


SCHEDULERS = (*HEURISTICS, "random", "policy")
"""The names of the schedulers."""


def make_scheduler(
    name: str, folder: Path, *, learner: str | None = None, learn: bool = False, timeout_s: float = 1.0, seed: int = 1
) -> Scheduler:
    """Return a scheduler.

    Args:
        name: One of `SCHEDULERS`.
        folder: The folder of the daemon. The actor keeps its policy there.
        learner: The address of the learner. Only for ``policy``.
        learn: True to explore and to train on the daemon's jobs. Only for ``policy``.
        timeout_s: The longest time to wait for the learner at the start. Only for ``policy``.
        seed: The seed of random choices.

    Raises:
        ConfigError: If the name is unknown, or an argument is missing.
        RL4SysError: As `PolicyScheduler`.
    """
    if name in HEURISTICS:
        return ClassicScheduler(HEURISTICS[name])
    if name == "random":
        return RandomScheduler(seed)
    if name != "policy":
        raise ConfigError(f"unknown scheduler {name!r}; known are {', '.join(SCHEDULERS)}", key="scheduler")
    if learner is None:
        raise ConfigError("the scheduler policy needs the address of a learner (--learner)", key="learner")
    config = AgentConfig(
        client_id=CLIENT,
        plugins=("job_scheduling.policy",),
        observation_space=OBSERVATION_SPACE,
        action_space=ACTION_SPACE,
        train_server_address=learner,
        connect_timeout_s=timeout_s,
        policy_cache=folder / "policy",
        explore=learn,
        seed=seed,
    )
    return PolicyScheduler(config, HEURISTICS["SJF"])
