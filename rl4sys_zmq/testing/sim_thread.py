"""A learner thread for the simulator: its state is the list of what it was trained on, its marks are those in earnest."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from rl4sys_zmq.delivery import Entry, Key
from rl4sys_zmq.learner.progress import Progress
from rl4sys_zmq.testing.history import History
from rl4sys_zmq.testing.schedule import Schedule
from rl4sys_zmq.testing.sim_disk import Checkpoint, SimDisk
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
from rl4sys_zmq.wire import Batch, SegmentSchema, decode
from rl4sys_zmq.wire.messages import Checkpointed, Ready, Submit, Verdict

__all__ = ["BATCH_STEPS", "MAX_STEPS", "SCHEMA", "SimThread"]

MAX_STEPS = 6
"""Longer segments are refused as items."""

BATCH_STEPS = 24
SCHEMA = SegmentSchema(BoxSpace((1,)), DiscreteSpace(2), MAX_STEPS)


class SimThread:
    """One life of a learner thread.

    Attributes:
        inbox: what it has been given and has not read: entries, and how many segments of each message to skip.
        progress: the marks of its state.
        judged: the state at the last barrier: (segment, verdict).
        taken_messages: how many messages it has taken.
    """

    def __init__(self, history: History, rng: random.Random, schedule: Schedule, judged: list[tuple[int, str]]) -> None:
        """Args:
        history: told of what is observed.
        rng: of verdicts and of pace.
        schedule: how fast it is, and whether it trains on each segment at once.
        judged: a state that outlived the thread before, on a ledger in memory; nothing feeds it again.
        """
        self.inbox: deque[tuple[Entry, int]] = deque()
        self.progress = Progress()
        self.judged = list(judged)
        self.taken_messages = 0
        self._history, self._rng, self._offpolicy, self._pace = history, rng, schedule.offpolicy, schedule.pace
        self._since: list[tuple[int, str]] = []
        self._batch: list[tuple[Key, int, int]] = []
        self._batch_steps = 0
        self._said: list[tuple[Key, int, str]] = []

    # ---- checkpoints

    def load(self, disk: SimDisk) -> Ready:
        """Takes up the newest checkpoint."""
        number = 0
        if disk.checkpoints:
            saved = disk.checkpoints[-1]
            number = saved.number
            self.judged, self.progress = list(saved.judged), Progress(saved.marks, saved.verdicts)
        self._history.begin_thread(segment for segment, _ in self.judged)
        return Ready({}, "", 0, -1, number, self.progress.as_documents(), dict(self.progress.verdicts), [])

    def save(self, disk: SimDisk, reach: Callable[[str], None]) -> Checkpointed:
        """Writes a checkpoint of the last barrier; `reach` is told how far it is, and may not return."""
        saved = self._checkpoint(disk.next_number)
        reach("in_checkpoint")
        disk.keep(saved)
        self.progress.moved = False
        return Checkpointed(0, saved.number, 0, [[m.actor_id, m.origin, m.next_seq] for m in saved.marks], 0.0, "")

    def _checkpoint(self, number: int) -> Checkpoint:
        return Checkpoint(number, tuple(self.judged), self.progress.marks(), dict(self.progress.verdicts))

    # ---- data

    @property
    def judged_now(self) -> list[tuple[int, str]]:
        """What has met its verdict, since the last barrier too."""
        return self.judged + self._since

    @property
    def wants_steps(self) -> int:
        """How many more steps make a batch."""
        return BATCH_STEPS - self._batch_steps

    def work(self, *, flush: bool) -> list[tuple[Key, int, str]]:
        """Reads some of what it was given, or all of it; returns what has met its verdict."""
        while self.inbox and (flush or self._rng.random() < self._pace):
            self._read(*self.inbox.popleft())
        if flush:
            self._train()
        said, self._said = self._said, []
        return said

    def _read(self, entry: Entry, skip: int) -> None:
        submit = decode(entry.frames)
        assert isinstance(submit, Submit)
        key = entry.actor_id, entry.origin
        batch = Batch(submit)
        refused = batch.errors(SCHEMA)
        for index, segment in enumerate(batch.segments()[skip:], skip):
            seq = submit.first_seq + index
            self.progress.take(key, seq, seq + 1)
            if index in refused:
                self.progress.dispose(key, Verdict.REFUSED)
                continue
            self._observe(key, seq, segment.episode_id, segment.steps)
            if self._batch_steps >= BATCH_STEPS:
                self._train()  # a batch may be full in the middle of a message, and a mark then lies inside its entry
        self.taken_messages += 1
        self._after_message()

    def _observe(self, key: Key, seq: int, segment: int, steps: int) -> None:
        self._history.observe(segment)
        fate = self._rng.random()
        if fate < 0.1:
            self._dispose(key, seq, segment, Verdict.STALE if fate < 0.05 else Verdict.QUARANTINED)
        elif self._offpolicy:
            self._dispose(key, seq, segment, Verdict.TRAINED)
        else:
            self._batch.append((key, seq, segment))
            self._batch_steps += steps

    def _after_message(self) -> None:
        if not self._batch:
            self._barrier()

    def _train(self) -> None:
        for key, seq, segment in self._batch:
            self._dispose(key, seq, segment, Verdict.TRAINED)
        self._batch.clear()
        self._batch_steps = 0
        self._barrier()

    def _barrier(self) -> None:
        self.progress.barrier()
        self.judged += self._since
        self._since.clear()

    def _dispose(self, key: Key, seq: int, segment: int, verdict: str) -> None:
        self.progress.dispose(key, verdict)
        self._history.counts[verdict] += 1
        self._since.append((segment, verdict))
        self._said.append((key, seq, verdict))
