"""An actor that plays CartPole in several environments. It corrupts a share of its segments, or one on request."""

import contextlib
import dataclasses
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from harness.talk import obey, options, say

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor import segments
from rl4sys_zmq.errors import RewardError
from rl4sys_zmq.ops.playing import EpisodeCounts, play
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import pack_segment

FLT_MAX = float(np.finfo(np.float32).max)

given = options()
rng = random.Random(given["seed"])
pack = pack_segment
spoilt: Counter[str] = Counter()
counts: Counter[str] = Counter()
once: list[str] = []


def put(segment: Segment, column: str, value: float) -> Segment:
    changed = getattr(segment, column).copy()
    changed.reshape(-1)[rng.randrange(changed.size)] = value
    return dataclasses.replace(segment, **{column: changed})


def scale(segment: Segment, column: str, factor: float) -> Segment:
    return dataclasses.replace(segment, **{column: (getattr(segment, column) * np.float32(factor)).astype(np.float32)})


KINDS: dict[str, Callable[[Segment], Segment]] = {
    **{
        f"{column} {name}": (lambda s, c=column, v=value: put(s, c, v))  # type: ignore[misc]
        for column in ("observations", "rewards", "log_probs")
        for name, value in (("FLT_MAX", FLT_MAX), ("-FLT_MAX", -FLT_MAX), ("1e30", 1e30), ("1e19", 1e19))
    },
    "log_probs -1e38": lambda s: put(s, "log_probs", -1e38),
    "log_probs 0.7": lambda s: put(s, "log_probs", 0.7),
    "log_probs -99": lambda s: put(s, "log_probs", -99.0),
    "return 1e30": lambda s: dataclasses.replace(s, episode_return=1e30) if s.episode_return is not None else s,
    "observations subnormal": lambda s: scale(s, "observations", 1e-40),
    "rewards subnormal": lambda s: scale(s, "rewards", 1e-40),
    "rewards late": lambda s: s,  # `Poisoned.add_to_trajectory` does this
}


def is_beyond(segment: Segment) -> bool:
    """Return True if the segment has a number that no sensor, reward or probability of this task can have."""
    largest = max(float(np.abs(column).max()) for column in (segment.observations, segment.rewards))
    improbable = not bool(((segment.log_probs > -100.0) & (segment.log_probs < 0.001)).all())
    return largest > 1e12 or improbable or abs(segment.episode_return or 0.0) > 1e15


def spoil(segment: Segment) -> Any:
    kind = ""
    if once:
        kind = once.pop()
    elif given["kinds"] and rng.random() < given["share"]:
        kind = rng.choice(given["kinds"])
    segment = KINDS[kind](segment) if kind else segment
    spoilt[kind] += bool(kind)
    counts["segments"] += 1
    counts["beyond"] += is_beyond(segment)
    return pack(segment)


class Poisoned:
    """An agent whose rewards sometimes change after the step."""

    def __init__(self, agent: RL4SysAgent) -> None:
        self._agent, self.spec = agent, agent.spec
        self.request_for_actions, self.mark_end_of_trajectory = agent.request_for_actions, agent.mark_end_of_trajectory

    @property
    def version(self) -> int:
        return self._agent.version

    def add_to_trajectory(self, traj: Any, action: Any) -> None:
        """Store a step. Its reward may change later."""
        self._agent.add_to_trajectory(traj, action)
        if "rewards late" in given["kinds"] and rng.random() < given["share"] / 32:
            with contextlib.suppress(RewardError):
                action.update_reward(1e30)
                spoilt["rewards late"] += 1


class Aim(EpisodeCounts):
    """Counts of episodes, done when the mean of a hundred returns reaches the target, or at a stop."""

    @property
    def done(self) -> bool:
        return stopping.is_set() or (len(self.returns) == 100 and self.mean >= given["target"])

    @property
    def mean(self) -> float:
        """The mean of the last hundred returns."""
        return float(np.mean(self.returns)) if self.returns else 0.0


def work() -> None:
    try:
        play(Poisoned(agent), environments, list(range(len(environments))), tally)  # type: ignore[arg-type]
        counts["reached"] = not stopping.is_set()
    except Exception as exc:  # the status reports it to the test
        errors.append(repr(exc))


def status() -> dict[str, Any]:
    return {
        "done": not worker.is_alive(),
        "errors": errors,
        "mean": tally.mean,
        "steps": tally.steps,
        "episodes": tally.episodes,
        "spoilt": dict(spoilt),
        "stats": agent.stats(),
        **counts,
    }


def finish(timeout_s: float) -> dict[str, Any]:
    stopping.set()
    worker.join(timeout_s)
    agent.flush(timeout_s)
    return status()


def one(kind: str) -> bool:
    once.append(kind)
    return True


setattr(segments, "pack_segment", spoil)  # noqa: B010 the module does not export it
environments: list[Any] = [gymnasium.make("CartPole-v1", disable_env_checker=True) for _ in range(given["num_envs"])]
space = environments[0]
agent = RL4SysAgent(
    config=AgentConfig(
        observation_space=space.observation_space, action_space=space.action_space, native="never", **given["config"]
    )
)
stopping, tally = threading.Event(), Aim(None)
errors: list[str] = []
worker = threading.Thread(target=work, name="host")
worker.start()
say({"version": agent.version})
try:
    obey(status=status, finish=finish, one=one)
finally:
    stopping.set()
    worker.join(30.0)
    agent.close()
    for environment in environments:
        environment.close()
