"""Closed segments on their way to the outbox: in order, and only when their last reward has come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rl4sys_zmq.actor.builder import SegmentBuilder
from rl4sys_zmq.actor.outbox import Outbox
from rl4sys_zmq.actor.trajectory import RL4SysTrajectory

__all__ = ["Handover"]


class Handover:
    """What host threads do with a segment that is closed.

    One lock, shared by host threads alone (the I/O thread never takes it, and nothing waits under it): a thread may expire the
    late segments of another's trajectory while a reward for one of them comes in.

    Attributes:
        late: the closed segments that wait for rewards, with the time until when; replaced or extended under the lock.
    """

    def __init__(self, outbox: Outbox, reward_timeout_s: float, wake: Callable[[], None]) -> None:
        self._outbox = outbox
        self._reward_timeout_s = reward_timeout_s
        self._wake = wake
        self._lock = threading.RLock()
        self.late: list[tuple[float, RL4SysTrajectory, SegmentBuilder]] = []

    def close(self, traj: RL4SysTrajectory, builder: SegmentBuilder) -> None:
        """Takes the trajectory's next closed segment."""
        with self._lock:
            traj._closed.append(builder)
            if builder.missing:
                self.late.append((time.monotonic() + self._reward_timeout_s, traj, builder))
            self._release(traj)

    def reward(self, builder: SegmentBuilder, row: int, reward: float) -> None:
        """Writes a reward while segments wait for some, and hands over what waited for this one.

        Raises:
            RewardError: when the segment has left.
        """
        with self._lock:
            builder.set_reward(row, reward)
            trajs = {id(t): t for _, t, b in self.late if not b.missing}
            self.late = [entry for entry in self.late if entry[2].missing]
            for traj in trajs.values():
                self._release(traj)

    def expire(self) -> None:
        """Drops the segments whose rewards have not come in time, and counts them."""
        now = time.monotonic()
        with self._lock:
            expired = [entry for entry in self.late if entry[0] <= now]
            self.late = [entry for entry in self.late if entry[0] > now]
            for _, traj, builder in expired:
                builder.left = True
                traj._lost = True
                traj._closed.remove(builder)
                self._outbox.put_items += 1
                self._outbox.dropped.add("reward_timeout")
                self._release(traj)

    def _release(self, traj: RL4SysTrajectory) -> None:
        """Hands over a trajectory's closed segments, in order, as far as their rewards are there."""
        while traj._closed and not traj._closed[0].missing:
            builder = traj._closed.pop(0)
            traj._sum += builder.reward_sum
            ended = builder.terminated or builder.truncated
            total = traj._sum if ended and not traj._lost else None
            self._outbox.put(builder.build(traj.episode_id, total, traj.steps if ended else None))
            self._wake()
