"""The benchmark of one actor step: request an action, add it to the trajectory, set its reward.

The baseline is a plain function that does the same work without this library.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.counting import ALGORITHM, HIDDEN, ROLLOUT
from bench.pairs import PairedFigures, measure_pairs
from rl4sys_zmq.actor import AgentConfig, RL4SysAgent, RL4SysTrajectory
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

__all__ = ["ACTIONS", "OBSERVATION", "StepTimeComparison", "forward_only", "measure_recurrent_step", "measure_step", "plain_step"]

OBSERVATION, ACTIONS = 8, 4
SEED = 1
UNITS = 64
"""The number of units of the recurrent policy."""
MANY = 256
"""Number of different observations that a measurement uses in turn."""

Step = Callable[[NDArray[np.float32], float], object]


@dataclass(frozen=True, slots=True)
class StepTimeComparison:
    """The times of a step with this library and with a plain function, in microseconds.

    Attributes:
        medians: The median time, in pairs.
        p99: The 99th percentile, in pairs.
        p999: The 99.9th percentile, in pairs.
        forward_us: The median time of the forward pass alone, in plain numpy.
    """

    medians: PairedFigures
    p99: PairedFigures
    p999: PairedFigures
    forward_us: float


def _layers() -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    rng = np.random.default_rng(SEED)
    sizes = (OBSERVATION, *HIDDEN, ACTIONS)
    return [(rng.normal(0, 0.1, (out, into)).astype(np.float32), np.zeros(out, np.float32)) for into, out in pairwise(sizes)]


def forward_only() -> Step:
    """Return a function that only computes the forward pass of an MLP with layers of 8, 64, 64 and 4, in plain numpy."""
    (w0, b0), (w1, b1), (w2, b2) = _layers()

    def forward(observation: NDArray[np.float32], reward: float) -> NDArray[np.float32]:
        hidden = np.tanh(w0.dot(observation) + b0)
        hidden = np.tanh(w1.dot(hidden) + b1)
        logits: NDArray[np.float32] = w2.dot(hidden) + b2
        return logits

    return forward


def plain_step() -> Step:
    """Return a fast plain function for one step: forward pass, sampling, log-probability, and storing the step in arrays."""
    (w0, b0), (w1, b1), (w2, b2) = _layers()
    dot0, dot1, dot2, add, tanh = w0.dot, w1.dot, w2.dot, np.add, np.tanh
    rng = np.random.default_rng(SEED)
    draws = iter(rng.random(1 << 20).tolist()).__next__
    observations = np.empty((ROLLOUT, OBSERVATION), np.float32)
    actions, versions = np.empty(ROLLOUT, np.int64), np.empty(ROLLOUT, np.uint64)
    rewards, log_probs = np.empty(ROLLOUT, np.float32), np.empty(ROLLOUT, np.float32)
    row = 0

    def step(observation: NDArray[np.float32], reward: float) -> int:
        nonlocal row, draws
        h = dot0(observation)
        add(h, b0, h)
        tanh(h, h)
        h = dot1(h)
        add(h, b1, h)
        tanh(h, h)
        h = dot2(h)
        add(h, b2, h)
        logits = h.tolist()
        top = max(logits)
        total, cumulative = 0.0, []
        for logit in logits:
            total += exp(logit - top)
            cumulative.append(total)
        try:
            cut = draws() * total
        except StopIteration:
            draws = iter(rng.random(1 << 20).tolist()).__next__
            cut = draws() * total
        index = 0
        while cumulative[index] <= cut:
            index += 1
        observations[row] = observation
        actions[row] = index
        log_probs[row] = logits[index] - top - log(total)
        versions[row] = 0
        rewards[row] = reward
        row = (row + 1) % ROLLOUT
        return index

    return step


def agent_for(address: str, **options: Any) -> RL4SysAgent:
    """Return an agent with the spaces of this benchmark, connected to a `CountingLearner` at `address`."""
    given: dict[str, Any] = {
        "client_id": "bench-step",
        "algorithm_name": ALGORITHM,
        "observation_space": BoxSpace((OBSERVATION,)),
        "action_space": DiscreteSpace(ACTIONS),
        "train_server_address": address,
        "seed": SEED,
    }
    return RL4SysAgent(config=AgentConfig(**{**given, **options}))


def agent_step(agent: RL4SysAgent) -> Step:
    """Return a function for one step with an agent, in an endless episode. The agent sends its data every 128 steps."""
    traj: RL4SysTrajectory | None = None
    request, add = agent.request_for_action, agent.add_to_trajectory

    def step(observation: NDArray[np.float32], reward: float) -> None:
        nonlocal traj
        traj, action = request(traj, observation)
        add(traj, action)
        action.update_reward(reward)

    return step


def times_us(step: Step, count: int, pause_s: float = 0.0) -> NDArray[np.float64]:
    """Return the time of each of `count` calls of a function, in microseconds, without the time of reading the clock.

    Args:
        step: The function to measure.
        count: Number of calls.
        pause_s: Time to spend in a busy loop between two calls, in seconds, like a program that computes its environment.
    """
    rng = np.random.default_rng(SEED)
    observations = list(rng.normal(size=(MANY, OBSERVATION)).astype(np.float32))
    clock = time.perf_counter_ns
    taken = np.empty(count)
    empty = min(-(clock() - clock()) for _ in range(1000))
    for i in range(count):
        observation = observations[i % MANY]
        began = clock()
        step(observation, 1.0)
        taken[i] = clock() - began
        if pause_s:
            until = clock() + pause_s * 1e9
            while clock() < until:
                pass
    return (taken - empty) / 1000


def measure_step(address: str, pairs: int, steps: int, pause_s: float = 0.0) -> StepTimeComparison:
    """Measure a step with an agent and a step with the plain function alternately.

    Args:
        address: Address of a `CountingLearner`, to which the agent sends its data.
        pairs: Number of pairs of measurements.
        steps: Number of steps in each measurement.
        pause_s: As in `times_us`.
    """
    with agent_for(address) as agent:
        ours, plain, forward = agent_step(agent), plain_step(), forward_only()
        for step in (ours, plain, forward):
            times_us(step, min(steps, 5000))
        medians, alone = [], []
        tails: dict[float, list[tuple[float, float]]] = {99.0: [], 99.9: []}
        for number in range(pairs):
            order = (ours, plain) if number % 2 == 0 else (plain, ours)
            taken = {step: times_us(step, steps, pause_s) for step in order}
            medians.append((float(np.median(taken[ours])), float(np.median(taken[plain]))))
            for percent, sides in tails.items():
                sides.append((float(np.percentile(taken[ours], percent)), float(np.percentile(taken[plain], percent))))
            alone.append(float(np.median(times_us(forward, steps // 4))))
    return StepTimeComparison(_pairs(medians), _pairs(tails[99.0]), _pairs(tails[99.9]), float(np.median(alone)))


def measure_recurrent_step(address: str, pairs: int, steps: int) -> PairedFigures:
    """Measure a step with a recurrent policy of `UNITS` units and a step with an MLP alternately. Both are steps with an agent.

    Args:
        address: Address of a `CountingLearner`, to which the agents send their data.
        pairs: Number of pairs of measurements.
        steps: Number of steps in each measurement.

    Returns:
        The median times of a step in microseconds.
    """
    options: dict[str, Any] = {"client_id": "bench-gru", "algorithm_parameters": {"units": UNITS}}
    with agent_for(address, **options) as recurrent, agent_for(address) as plain:
        ours, baseline = agent_step(recurrent), agent_step(plain)
        return measure_pairs(
            lambda: float(np.median(times_us(ours, steps))), lambda: float(np.median(times_us(baseline, steps))), pairs
        )


def _pairs(figures: list[tuple[float, float]]) -> PairedFigures:
    return PairedFigures(tuple(a for a, _ in figures), tuple(b for _, b in figures))
