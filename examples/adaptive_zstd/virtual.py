"""A sender in virtual time, and the training with it: measured costs of compression, and a model of queue, socket and link."""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from adaptive_zstd.bandwidth import GRID_S, KINDS, MB, Profile, profile
from adaptive_zstd.data import Costs, sample
from adaptive_zstd.view import QUEUE, View
from rl4sys_zmq import RL4SysAgent

EPISODE = 256
"""Blocks of an episode."""
SECONDS = 20.0
"""Length of a profile in training."""


@dataclass(frozen=True)
class Machine:
    """The properties of a machine that differ and change. Training varies them, so that the policy relies on none of them.

    Attributes:
        slowness: The factor on the times of compression over time, ``[T]``: above 1 while others use the processor.
        jitter: The standard deviation of the logarithm of each time of compression.
        pause_share: The share of blocks during which the sender is not scheduled, for 10 ms on the mean.
        overhead_s: The time of a block beside its compression: the sample, the policy, the queue.
        hidden_bytes: The kernel's buffers take so many bytes before the socket blocks.
        chunk_bytes: The socket takes more bytes when so many have left these buffers.
    """

    slowness: NDArray[np.float64]
    jitter: float = 0.0
    pause_share: float = 0.0
    overhead_s: float = 2e-4
    hidden_bytes: float = 120e3
    chunk_bytes: float = 1.0

    @classmethod
    def random(cls, steps: int, rng: np.random.Generator) -> "Machine":
        """Return a machine whose speed changes every few seconds. A third of the time it is as fast as in the measurement."""
        seconds = steps * GRID_S
        changes = np.sort(rng.uniform(0.0, seconds, 5))
        parts = np.exp(np.maximum(rng.uniform(-0.8, 1.5, 6), 0.0) + rng.normal(0.0, 0.1, 6))
        hidden_bytes = rng.uniform(8e4, 2.5e5)
        return cls(
            slowness=parts[np.searchsorted(changes, np.arange(steps) * GRID_S)],
            jitter=rng.uniform(0.0, 0.3),
            pause_share=rng.uniform(0.0, 0.08),
            overhead_s=rng.uniform(1.5e-4, 6e-4),
            hidden_bytes=hidden_bytes,
            chunk_bytes=rng.uniform(4e3, 0.4 * hidden_bytes),
        )


class VirtualSender:
    """A sender whose compression takes the measured times, and whose link is computed from the profile."""

    def __init__(self, costs: Costs, bandwidth: Profile, machine: Machine, seed: int = 0) -> None:
        """Begin at time 0.

        Args:
            costs: The sizes and times of the blocks.
            bandwidth: The bandwidth over time, ``[T]``.
            machine: The processor and the kernel.
            seed: Of the jitter and the pauses.
        """
        self.view, self.now_s = View(), 0.0
        self._costs, self._machine, self._rng = costs, machine, np.random.default_rng(seed)
        self._usual_s = costs.times_s.mean(axis=0)
        # After its end the profile goes on with its mean, for the blocks that are then on their way. The smallest slope keeps the
        # function invertible where the link is stalled.
        self._times_s = np.append(np.arange(len(bandwidth) + 1) * GRID_S, 1e6)
        self._capacity = _integral(np.maximum(bandwidth, 1.0), self._times_s)
        # At each time the best fixed level sends so many blocks a second: the slower of the processor and the link counts.
        by_link = np.maximum(bandwidth, 1.0)[:, None] / costs.sizes.mean(axis=0)
        rates = np.minimum(by_link, 1.0 / (self._usual_s * machine.slowness[:, None] + machine.overhead_s))
        self._best = rates.argmax(axis=1)
        self._reference = _integral(rates.max(axis=1), self._times_s)
        self._totals, self._finished_s = [0.0], [0.0]
        """Bytes up to the end of each block, and the time at which the receiver has it."""
        self._sends: deque[tuple[float, float, float]] = deque()
        """Bytes, start and end of each send that has not ended."""
        self._last_end_s = 0.0

    def over(self) -> bool:
        """Return True when the profile has ended."""
        return max(self.now_s, self._finished_s[-1]) >= len(self._best) * GRID_S

    def send(self, row: int, action: int) -> float:
        """Compress a block and put it into the queue. Return the reward.

        The link is busy with this block for some time. In this time the level that is best at each bandwidth would send so many
        mean blocks. The reward is the share of this block in a mean one, less this number: a sum over blocks is the lead over
        that level.
        """
        machine, rng = self._machine, self._rng
        moment = min(int(self.now_s / GRID_S), len(self._best) - 1)
        best = self._best[moment]
        size = self._costs.sizes[row, action]
        took_s = self._costs.times_s[row, action] * machine.slowness[moment] * math.exp(machine.jitter * rng.normal())
        if rng.random() < machine.pause_share:
            took_s += rng.exponential(0.01)
        ready_s = self.now_s + took_s + machine.overhead_s
        starts = [start_s for _, start_s, _ in self._sends if start_s > ready_s]
        self.now_s = max(ready_s, starts[-QUEUE]) if len(starts) >= QUEUE else ready_s
        start_s = max(self.now_s, self._last_end_s)
        at = np.interp(max(start_s, self._finished_s[-1]), self._times_s, self._capacity)
        self._totals.append(self._totals[-1] + size)
        self._finished_s.append(float(np.interp(at + size, self._capacity, self._times_s)))
        chunks = math.ceil(max(self._totals[-1] - machine.hidden_bytes, 0.0) / machine.chunk_bytes)
        self._last_end_s = max(start_s + 2e-5, self._received_s(min(chunks * machine.chunk_bytes, self._totals[-1])))
        self._sends.append((size, start_s, self._last_end_s))
        self.view.compressed(action, size, took_s, self._usual_s[action])
        self._look()
        began, ended = np.interp(self._finished_s[-2:], self._times_s, self._reference)
        share = self._costs.sizes[row, best] / self._costs.sizes[:, best].mean()
        return max(float(share - ended + began), -10.0)

    def _received_s(self, total: float) -> float:
        """Return the time at which the receiver has so many bytes."""
        block = bisect_left(self._totals, total)
        at = np.interp(self._finished_s[block], self._times_s, self._capacity) - (self._totals[block] - total)
        return float(np.interp(at, self._capacity, self._times_s))

    def delivered(self) -> int:
        """Return the number of blocks that the receiver has by now."""
        return bisect_right(self._finished_s, self.now_s) - 1

    def _look(self) -> None:
        view = self.view
        while self._sends and self._sends[0][2] <= self.now_s:
            size, start_s, end_s = self._sends.popleft()
            view.sends.append((size, start_s, end_s))
        behind = [size for size, start_s, _ in self._sends if start_s > self.now_s]
        view.waiting, view.waiting_bytes = len(behind), sum(behind)
        view.sending_s = self.now_s - self._sends[0][1] if self._sends else 0.0


def _integral(rates: NDArray[np.float64], times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the integral of a rate at each time, ``[T + 2]``, from its values, ``[T]``, and their mean after that."""
    return np.concatenate([[0.0], np.cumsum(np.append(rates, rates.mean()) * np.diff(times_s))])


def random_sender(costs: Costs, rng: np.random.Generator) -> VirtualSender:
    """Return a sender with a random profile, on a random machine."""
    low = math.exp(rng.uniform(math.log(0.2), math.log(4.0)))
    high = min(low * math.exp(rng.uniform(0.0, 3.0)), 12.0)
    bandwidth = profile(str(rng.choice(KINDS)), SECONDS, low * MB, high * MB, rng.uniform(0.7, 6.0), rng)
    return VirtualSender(costs, bandwidth, Machine.random(len(bandwidth), rng), seed=int(rng.integers(2**31)))


def train(agent: RL4SysAgent, blocks: list[bytes], costs: Costs, steps: int, seed: int) -> None:
    """Train the policy on random profiles."""
    rng = np.random.default_rng(seed)
    estimates = [sample(block) for block in blocks]
    done = episodes = 0
    total = 0.0
    while done < steps:
        sender = random_sender(costs, rng)
        row, traj = int(rng.integers(len(blocks))), None
        for _ in range(EPISODE):
            traj, action = agent.request_for_action(traj, sender.view.observation(estimates[row]))
            reward = sender.send(row, int(action.act))
            agent.add_to_trajectory(traj, action)
            action.update_reward(reward)
            total += reward
            done += 1
            row = (row + 1) % len(blocks)
            if sender.over():
                break
        assert traj is not None
        agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=sender.view.observation(estimates[row]))
        episodes += 1
        if episodes % 200 == 0:
            print(f"{done} blocks: mean lead {total / 200 / EPISODE:+.3f}, policy version {agent.version}", flush=True)
            total = 0.0
