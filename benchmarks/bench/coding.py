"""The benchmark of the options `compression` and `image_codec`: bytes saved and time spent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.images import ImageFormat
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import SegmentBatchReader, join_submit, pack_segment, with_images

__all__ = ["CODECS", "SCENES", "CodingResult", "measure_coding", "measure_images"]

T = TypeVar("T")

STEPS, SEGMENTS = 200, 64
SCENES = ("still", "scrolling", "camera")
"""The kinds of test images.

``still`` and ``scrolling`` have flat colours and edges, as a simulator draws them. In ``still`` only a disc moves, in
``scrolling`` the whole image. ``camera`` has soft colours that move, and sensor noise.
"""
CODECS = {"zstd": None, "png": ImageFormat("png"), "jpeg 90": ImageFormat("jpeg", 90), "jpeg 50": ImageFormat("jpeg", 50)}
IMAGES, SIDE = 32, 128


@dataclass(frozen=True, slots=True)
class CodingResult:
    """The size and the time of coded data: means for one trajectory of 200 steps, or for one image of 128 x 128 x 3.

    Coding is compression or an image codec.

    Attributes:
        plain_bytes, coded_bytes: Bytes in a message, without and with coding.
        encode_us, decode_us: Time that coding adds at the sender and at the receiver, in microseconds, on one core.
        error: Mean absolute difference between a number of the original and of the decoded image. 0 for trajectories.
    """

    plain_bytes: float
    coded_bytes: float
    encode_us: float
    decode_us: float
    error: float = 0.0

    @property
    def break_even_mbit_s(self) -> float:
        """The network bandwidth, in Mbit/s, below which coding saves more time than it takes."""
        return 8 * (self.plain_bytes - self.coded_bytes) / (self.encode_us + self.decode_us)


def measure_coding(env_id: str, batch: int, seed: int) -> CodingResult:
    """Measure the compression of trajectories from random actions in one environment.

    Args:
        env_id: Gymnasium environment with discrete actions.
        batch: Number of trajectories in a message.
        seed: Seed of the environment and the actions.
    """
    packed = [pack_segment(segment) for segment in _played(env_id, seed)]
    parts = [packed[i : i + batch] for i in range(0, SEGMENTS, batch)]
    plain_s, plain = _timed(lambda: [join_submit(0, 0, part) for part in parts])
    coded_s, coded = _timed(lambda: [join_submit(0, 0, part, coded=True) for part in parts])
    read_plain_s, _ = _timed(lambda: [SegmentBatchReader(message) for message in plain])
    read_coded_s, _ = _timed(lambda: [SegmentBatchReader(message) for message in coded])
    plain_bytes, coded_bytes = (sum(len(f) for message in sent for f in message.body) / SEGMENTS for sent in (plain, coded))
    each_us = 1e6 / SEGMENTS
    return CodingResult(plain_bytes, coded_bytes, each_us * (coded_s - plain_s), each_us * (read_coded_s - read_plain_s))


def measure_images(scene: str, codec: ImageFormat | None, seed: int) -> CodingResult:
    """Measure a codec on a trajectory whose observations are test images.

    Args:
        scene: One of `SCENES`.
        codec: The image codec. None: compression with zstd.
        seed: Seed of the noise.
    """
    images = _images(scene, seed)
    column = np.zeros(IMAGES, np.float32)
    versions = np.full(IMAGES, 7, np.uint64)
    numbers = 1, 1, 0
    segment = Segment(images, column.astype(np.int64), column, column, versions, None, *numbers, True, False, False, 1.0, IMAGES)
    packed = pack_segment(segment)
    plain = join_submit(0, 0, [packed])
    if codec is None:
        coded_s, coded = _timed(lambda: join_submit(0, 0, [packed], coded=True), 3)
    else:
        coded_s, coded = _timed(lambda: join_submit(0, 0, [with_images(packed, codec)]), 3)
    read_plain_s, _ = _timed(lambda: SegmentBatchReader(plain).segments())
    read_coded_s, (got,) = _timed(lambda: SegmentBatchReader(coded).segments(), 3)
    error = float(np.abs(got.observations.astype(np.int16) - images).mean())
    each_us = 1e6 / IMAGES
    plain_bytes, coded_bytes = (sum(map(len, message.body)) / IMAGES for message in (plain, coded))
    return CodingResult(plain_bytes, coded_bytes, each_us * coded_s, each_us * (read_coded_s - read_plain_s), error)


def _images(scene: str, seed: int) -> NDArray[np.uint8]:
    """Return images ``[IMAGES, SIDE, SIDE, 3]`` of a disc that moves over hills or waves."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE]
    out = np.empty((IMAGES, SIDE, SIDE, 3))
    for n, image in enumerate(out):
        if scene == "camera":
            image[:] = 120 + 60 * np.sin((x[..., None] + y[..., None] * np.array((0.5, 1.0, 1.5)) + 3 * n) / 25)
        else:
            along = x + (3 * n if scene == "scrolling" else 0)
            hills = 80 + 12 * np.sin(along / 11) + 6 * np.sin(along / 5)
            image[:] = np.where((y > hills)[..., None], (60, 120, 50), (135, 206, 235))
        image[(x - 30 - 2 * n) ** 2 + (y - 50) ** 2 < 120] = 200, 40, 40
    noise = rng.normal(0.0, 2.0, out.shape) if scene == "camera" else 0.0
    return (out + noise).clip(0, 255).astype(np.uint8)


def _timed(call: Callable[[], T], repeat: int = 7) -> tuple[float, T]:
    """Call a function `repeat` times. Return the shortest time in seconds, and the result of the last call."""
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
