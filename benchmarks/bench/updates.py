"""Updates of an algorithm on random data, which `benchmarks/ranks.py` and `benchmarks/devices.py` time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from rl4sys_zmq.algorithms import Algorithm, make_algorithm
from rl4sys_zmq.learner.training.building import place_algorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment, space_to_json
from rl4sys_zmq.wire.thread_messages import AssignClient

__all__ = ["ACTIONS", "OBSERVATIONS", "hidden_width", "layer_parameters", "placed_algorithm", "random_segment", "updates_per_s"]

OBSERVATIONS, ACTIONS = BoxSpace((8,)), DiscreteSpace(4)


def placed_algorithm(
    stack: ExitStack, name: str, parameters: Mapping[str, Any], *, ranks: int = 1, device: str = "cpu", tf32: bool = False
) -> Algorithm:
    """Build an algorithm on a device, with its ranks (the processes that train together).

    Args:
        stack: Ends the ranks.
        name: The name of the algorithm.
        parameters: Its parameters.
        ranks: The number of ranks.
        device: The option ``device``.
        tf32: True to allow TensorFloat-32 in this process.
    """
    spaces = space_to_json(OBSERVATIONS), space_to_json(ACTIONS)
    assign = AssignClient(
        "c", bytes(8), 1, name, dict(parameters), *spaces, seed=1, max_policy_lag=-1, on_lag="drop", pacing_lag=-1,
        publish_every_updates=0, max_parameters=1 << 30, checkpoints="", checkpoint_every_s=10.0, journal_id=1,
        torch_threads=1, learners=ranks, device=device, tf32=tf32,
    )  # fmt: skip
    algorithm = make_algorithm(name, OBSERVATIONS, ACTIONS, parameters, 1)
    _, group = place_algorithm(algorithm, assign, threading.Event())
    if group is not None:
        stack.enter_context(group).start()
    return algorithm


def random_segment(steps: int) -> Segment:
    """Return a segment of random steps that ends an episode."""
    rng = np.random.default_rng(0)
    return Segment(
        observations=rng.normal(size=(steps, *OBSERVATIONS.shape)).astype(np.float32),
        actions=rng.integers(0, ACTIONS.n, steps),
        rewards=rng.normal(size=steps).astype(np.float32),
        log_probs=np.full(steps, -np.log(ACTIONS.n), np.float32),
        versions=np.zeros(steps, np.uint64),
        masks=None,
        generation=1,
        episode_id=1,
        segment_index=0,
        terminated=True,
        truncated=False,
    )


def updates_per_s(update: Callable[[], None], seconds: float) -> float:
    """Return the number of updates per second, over at least one update, until a GPU has finished them."""
    began, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - began < seconds:
        update()
        count += 1
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return count / (time.perf_counter() - began)


def layer_parameters(hidden: int) -> int:
    """Return the number of parameters of a perceptron with two hidden layers of `hidden` units."""
    return (OBSERVATIONS.size + 1) * hidden + (hidden + 1) * hidden + (hidden + 1) * ACTIONS.n


def hidden_width(parameters: int, networks: int) -> int:
    """Return the width of two hidden layers with which so many networks have at most `parameters` parameters, at least 1."""
    return max((w for w in range(1, 20_000) if networks * layer_parameters(w) <= parameters), default=1)
