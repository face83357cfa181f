"""What `compression` saves and costs: trajectories of real environments, coded and not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import Batch, join_submit, pack_segment

__all__ = ["Coded", "measure_coding"]

T = TypeVar("T")

STEPS, SEGMENTS = 200, 64


@dataclass(frozen=True, slots=True)
class Coded:
    """Per trajectory of 200 steps.

    Attributes:
        plain_bytes, coded_bytes: of its columns.
        encode_us, decode_us: what coding adds, on one core.
    """

    plain_bytes: float
    coded_bytes: float
    encode_us: float
    decode_us: float

    @property
    def break_even_mbit_s(self) -> float:
        """Of a link on which the saved bytes take as long as coding and decoding them."""
        return 8 * (self.plain_bytes - self.coded_bytes) / (self.encode_us + self.decode_us)


def measure_coding(env_id: str, batch: int, seed: int) -> Coded:
    """Random play of one environment.

    Args:
        env_id: of Gymnasium, with discrete actions.
        batch: trajectories in a message.
        seed: of the environment and the actions.
    """
    packed = [pack_segment(segment) for segment in _played(env_id, seed)]
    parts = [packed[i : i + batch] for i in range(0, SEGMENTS, batch)]
    plain_s, plain = _timed(lambda: [join_submit(0, 0, part) for part in parts])
    coded_s, coded = _timed(lambda: [join_submit(0, 0, part, coded=True) for part in parts])
    read_plain_s, _ = _timed(lambda: [Batch(message) for message in plain])
    read_coded_s, _ = _timed(lambda: [Batch(message) for message in coded])
    plain_bytes, coded_bytes = (sum(len(f) for message in sent for f in message.body) / SEGMENTS for sent in (plain, coded))
    each_us = 1e6 / SEGMENTS
    return Coded(plain_bytes, coded_bytes, each_us * (coded_s - plain_s), each_us * (read_coded_s - read_plain_s))


def _timed(call: Callable[[], T], repeat: int = 7) -> tuple[float, T]:
    """The least time of several, in seconds, and what came out."""
    least = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        out = call()
        least = min(least, time.perf_counter() - began)
    return least, out


def _played(env_id: str, seed: int) -> list[Segment]:
    import gymnasium

    rng: Any = np.random.default_rng(seed)
    env: Any = gymnasium.make(env_id)
    choices = int(env.action_space.n)
    segments = []
    observation, _ = env.reset(seed=seed)
    for number in range(SEGMENTS):
        rows, actions, rewards = [], [], []
        for _ in range(STEPS):
            rows.append(observation)
            actions.append(int(rng.integers(choices)))
            observation, reward, terminated, truncated, _ = env.step(actions[-1])
            rewards.append(reward)
            if terminated or truncated:
                observation, _ = env.reset()
        segments.append(
            Segment(
                np.array([*rows, observation], dtype=env.observation_space.dtype),
                np.array(actions, dtype=np.int64),
                np.array(rewards, dtype=np.float32),
                np.log(rng.dirichlet(np.full(choices, 4.0), STEPS)[:, 0]).astype(np.float32),
                np.full(STEPS, 7, dtype=np.uint64),
                None,
                1,
                number,
                0,
                terminated=False,
                truncated=True,
                episode_return=1.0,
                episode_length=STEPS,
            )
        )
    env.close()
    return segments
