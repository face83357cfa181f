"""The loop of an actor with several Gymnasium environments, whose observations form one batch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl4sys_zmq.actor import RL4SysAgent
from rl4sys_zmq.actor.inputs import InputValidator
from rl4sys_zmq.actor.segments import new_column
from rl4sys_zmq.config.options import check_value
from rl4sys_zmq.limits import RECENT_EPISODES
from rl4sys_zmq.ops.episodes import CHECK_STEPS, mask_in
from rl4sys_zmq.values import observation_space_from, space_from
from rl4sys_zmq.values.action_layout import action_layout

CREDIT_WAIT_S = 600.0
"""Longest wait for credit or newer weights. An update of a large network can take minutes, and a learner can start again."""


def seeds_of(seed: int | None, environments: int) -> tuple[int, list[int]]:
    """Return the seed of an agent and those of its environments, from the seed of the actor."""
    agent, others = np.random.SeedSequence(seed).spawn(2)
    return _number(agent), [_number(other) for other in others.spawn(environments)]


def environment_spaces(env: Any, env_id: str) -> dict[str, Any]:
    observations = check_value(f"{env_id}: observation_space", env.observation_space, observation_space_from)
    return {
        "observation_space": observations,
        "action_space": check_value(f"{env_id}: action_space", env.action_space, space_from),
    }


class EpisodeCounts:
    """The counts of episodes and steps of one run."""

    def __init__(self, episodes: int | None = None, steps: int | None = None) -> None:
        self.steps = 0
        self.returns: deque[float] = deque(maxlen=RECENT_EPISODES)  # of the last `RECENT_EPISODES`
        self.episodes = 0  # number of episodes that have ended
        self._limit, self._step_limit = episodes, steps
        self._ended: set[int] | None = None
        self._width = 0
        self.began_s = time.monotonic()  # the monotonic time of the start

    @property
    def done(self) -> bool:
        """True if the run must end: after its steps or episodes, or an episode of each environment since `drain`."""
        if self._ended is not None and len(self._ended) >= self._width:
            return True
        if self.steps_left == 0:
            return True
        return self._limit is not None and self.episodes >= self._limit

    @property
    def steps_left(self) -> int | None:
        """The number of steps that remain; None without a limit."""
        return None if self._step_limit is None else max(0, self._step_limit - self.steps)

    def finish(self) -> None:
        """Let the run end after its current turn. Any thread can call this."""
        self._step_limit = 0

    def begin(self, environments: int) -> None:
        self._width = environments

    def drain(self) -> None:
        """Let each environment end its episode, and then let the run end. Any thread can call this."""
        if self._ended is None:
            self._ended = set()

    def ended(self, environment: int, total: float) -> None:
        self.episodes += 1
        self.returns.append(total)
        if self._ended is not None:
            self._ended.add(environment)

    def summary(self) -> str:
        seconds = time.monotonic() - self.began_s
        mean = f", mean return of the last {len(self.returns)}: {np.mean(self.returns):.1f}" if self.returns else ""
        rate = self.steps / max(seconds, 1e-9)
        return f"{self.episodes:,} episodes, {self.steps:,} steps in {seconds:.1f} s ({rate:,.0f}/s){mean}"


def play(
    agent: RL4SysAgent,
    envs: Sequence[Any],
    seeds: Sequence[int],
    tally: EpisodeCounts,
    *,
    masks: bool = True,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Run all environments until `tally.done`. In each turn, one request returns all actions, then each environment steps.

    At a limit of steps, the steps of unfinished episodes are sent too, but their returns are not reported. `check` is called
    every `CHECK_STEPS` turns, and can raise an exception.
    """
    request, add = agent.request_for_actions, agent.add_to_trajectory
    indices = range(len(envs))
    steps = [env.step for env in envs]
    spec = agent.spec
    layout = action_layout(spec.action_space)
    valid = InputValidator(spec.observation_space, spec.action_space).observation
    shape, dtype = spec.observation_space.shape, np.dtype(spec.observation_space.dtype)

    def read(observation: Any) -> Any:
        fits = type(observation) is np.ndarray and observation.shape == shape and observation.dtype == dtype
        return observation if fits else valid(observation)[0]  # `request` checks the numbers in the batch

    every = np.ones(layout.logits, np.bool_)
    batch: Any = new_column(spec.observation_space, len(envs))
    allowed: list[Any] = [None] * len(envs)
    for i, (env, seed) in enumerate(zip(envs, seeds, strict=True)):
        observation, info = env.reset(seed=seed)
        batch[i], allowed[i] = read(observation), mask_in(info, layout) if masks else None
    obs = batch[:]  # views: assigning to a row of the batch changes them
    totals = [0.0] * len(envs)
    trajs: Any = None
    rounds = 0
    tally.begin(len(envs))

    def choose() -> Any:
        masked = any(mask is not None for mask in allowed)
        return request(trajs, obs, [every if mask is None else mask for mask in allowed] if masked else None)

    while not tally.done:
        trajs, actions = choose()
        taken = indices[: tally.steps_left]
        for i in taken:
            action = actions[i]
            observation, reward, terminated, truncated, info = steps[i](action.act)
            action.update_reward(reward)
            add(trajs[i], action)
            totals[i] += reward
            if terminated or truncated:
                cut = not terminated
                agent.mark_end_of_trajectory(
                    trajs[i],
                    action,
                    truncated=cut,
                    final_obs=observation if cut else None,
                    final_mask=mask_in(info, layout) if cut and masks else None,
                )
                tally.ended(i, float(totals[i]))
                totals[i] = 0.0
                observation, info = envs[i].reset()
            batch[i], allowed[i] = read(observation), mask_in(info, layout) if masks else None
        tally.steps += len(taken)
        rounds += 1
        if rounds % CHECK_STEPS == 0:
            check()
    if trajs is not None and tally.steps_left is not None:
        trajs, _ = choose()  # an action that is not added: so the return of the unfinished episode is unknown
        for i in indices:
            agent.mark_end_of_trajectory(trajs[i], truncated=True, final_obs=batch[i], final_mask=allowed[i])


def _number(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1)[0])
