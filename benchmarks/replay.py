"""The replay of an off-policy algorithm: times of its calls beside bare numpy, and bytes per transition.

    python benchmarks/replay.py

The transitions are those of CartPole-v1 (4 numbers), in segments of 32 steps and batches of 64. The bare calls are what no replay
can avoid: random numbers, and a copy of the rows of each array. A time is the least of five means.

The bytes per transition are those of a full replay of Atari-like observations (4 stacked frames of 84 x 84 bytes), beside both
observations of each transition as they are.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from rl4sys_zmq.algorithms.offpolicy.samplers import TorchDraws
from rl4sys_zmq.replay import PriorityOptions, ReplayMemory, ReplayOptions
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment

BATCH, STEPS = 64, 32
VECTOR, IMAGE = BoxSpace((4,)), BoxSpace((4, 84, 84), "|u1", 0, 255)


def main() -> None:
    """Measures, and prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000, help="in each of five means")
    parser.add_argument("--capacity", type=int, default=100_000, help="transitions of the replays that are timed")
    parser.add_argument("--images", type=int, default=2000, help="transitions of the replay with images")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'microseconds':34} uniform   by priority")
    uniform, priority = (times(args.capacity, args.calls, options) for options in (None, PriorityOptions()))
    for name in priority:
        print(f"{name:34} {uniform.get(name, float('nan')):7.1f} {priority[name]:13.1f}")
    print()
    for name, size in image_bytes(args.images).items():
        print(f"{name:60} {size:9,.0f} bytes per transition")


def times(capacity: int, calls: int, priority: PriorityOptions | None) -> dict[str, float]:
    """The times of the calls on a full replay, in microseconds, by name."""
    rng = np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    draws = TorchDraws(generator)
    replay = ReplayMemory(VECTOR, DiscreteSpace(2), ReplayOptions(capacity=capacity, gamma=0.99, n_step=3, priority=priority))
    segments = [segment(rng.normal(size=(STEPS + 1, 4)).astype(np.float32)) for _ in range(100)]
    for index in range(-(-capacity // STEPS)):
        replay.add(segments[index % len(segments)])
    rows = replay.draw(BATCH, draws)
    errors = np.abs(rng.normal(size=BATCH)).astype(np.float32)
    arrays = [
        np.zeros((capacity, *shape), dtype) for shape, dtype in (((4,), "f4"), ((4,), "f4"), ((), "i8"), ((), "f4"), ((), "f4"))
    ]
    found = {
        "bare: random numbers": mean_us(lambda _: torch.randint(capacity, (BATCH,), generator=generator).numpy(), calls),
        "bare: copies of 64 rows": mean_us(lambda _: [array[rows] for array in arrays], calls),
        "add a segment of 32 steps": mean_us(lambda i: replay.add(segments[i % len(segments)]), calls),
        "draw 64 rows": mean_us(lambda _: replay.draw(BATCH, draws), calls),
        "gather 64 rows": mean_us(lambda _: replay.gather(rows), calls),
    }
    if priority is not None:
        found["weights of 64 rows"] = mean_us(lambda _: replay.weights(rows, 0.5), calls)
        found["update 64 priorities"] = mean_us(lambda _: replay.update_priorities(rows, errors), calls)
    return found


def mean_us(call: Callable[[int], object], calls: int) -> float:
    """The least of five means of the time of a call, which gets its number, in microseconds."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for index in range(calls):
            call(index)
        best = min(best, (time.perf_counter() - began) / calls)
    return 1e6 * best


def image_bytes(capacity: int) -> dict[str, float]:
    """The bytes per transition of a full replay of stacked images, in memory and in two checkpoints, by name."""
    rng = np.random.default_rng(0)
    replay = ReplayMemory(IMAGE, DiscreteSpace(2), ReplayOptions(capacity=capacity, gamma=0.99))
    frames = rng.integers(0, 256, (capacity + STEPS + 3, 84, 84), np.uint8)
    for first in range(0, capacity, STEPS):
        replay.add(segment(np.stack([frames[first + t : first + t + 4] for t in range(STEPS + 1)])))
    stored = replay.frames * 84 * 84 / len(replay)
    whole = replay.state()
    pieces_before = [part["piece"] for part in whole["pieces"]]
    names = {piece.name for piece in pieces_before}
    replay.add(segment(rng.integers(0, 256, (STEPS + 1, 4, 84, 84), np.uint8)))
    pieces_after = [part["piece"] for part in replay.state(names)["pieces"]]
    sizes = [
        sum(array.nbytes for piece in pieces for array in (piece.arrays or {}).values())
        for pieces in (pieces_before, pieces_after)
    ]
    return {
        "bare: both observations of each transition": 2 * 4 * 84 * 84,
        "frames in memory, each once": stored,
        "the first checkpoint": sizes[0] / len(replay),
        "a checkpoint after 32 more steps without a common frame": sizes[1] / len(replay),
    }


def segment(observations: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Segment:
    """A segment of an episode that goes on, with these observations ``[T + 1, *obs]``."""
    steps = len(observations) - 1
    return Segment(
        observations=observations,
        actions=np.arange(steps) % 2,
        rewards=np.ones(steps, np.float32),
        log_probs=np.zeros(steps, np.float32),
        versions=np.zeros(steps, np.uint64),
        masks=None,
        generation=1,
        episode_id=1,
        segment_index=0,
        terminated=False,
        truncated=False,
    )


if __name__ == "__main__":
    main()
