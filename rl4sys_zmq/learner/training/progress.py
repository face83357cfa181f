"""The record of which segments are part of an algorithm's state, so that a checkpoint and the journal agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.learner.run.checkpoints import CheckpointedStreamProgress
from rl4sys_zmq.wire.messages import Verdict

_COUNTED = (*Verdict.FINAL, Verdict.REFUSED)


@dataclass(frozen=True, slots=True)
class ObservedDataCounts:
    """Counts of the steps and episodes that an algorithm has received so far, as a checkpoint stores them."""

    steps: int = 0
    episodes: int = 0
    recent: tuple[tuple[float, int], ...] = ()  # return and length of the latest of these episodes, oldest first
    overridden_steps: int = 0  # also those that the algorithm has not received


class _StreamProgress:
    __slots__ = ("next_seq", "verdicts")

    def __init__(self, next_seq: int, verdicts: Mapping[str, int]) -> None:
        self.next_seq = next_seq
        self.verdicts = {verdict: verdicts.get(verdict, 0) for verdict in _COUNTED}


class CheckpointProgress:
    """The mark and the verdicts of each stream, as of the last barrier.

    A *barrier* is a moment when every received segment has a verdict, for example right after an update. A checkpoint stores
    the marks of the last barrier. Segments received after the barrier wait for the next update of an on-policy algorithm and
    are not part of its saved state; after a restart, the journal delivers them again.
    """

    def __init__(self, marks: Iterable[CheckpointedStreamProgress] = (), verdicts: Mapping[str, int] | None = None) -> None:
        # Those of removed streams count too.
        self.verdicts = {verdict: (verdicts or {}).get(verdict, 0) for verdict in _COUNTED}
        self._marks = {(m.actor_id, m.origin): _StreamProgress(m.next_seq, m.verdicts) for m in marks}
        self._since: dict[Key, _StreamProgress] = {}  # since the last barrier
        self.observed = ObservedDataCounts()  # until the last barrier
        self.moved = False  # since the last checkpoint: the owner sets it to False then

    def receive(self, key: Key, first: int, end: int) -> None:
        """Record that the segments ``[first, end)`` were received. They must be the next segments of their stream."""
        since = self._since.get(key)
        if since is None:
            since = self._since[key] = _StreamProgress(first, {})
        since.next_seq = end

    def record_verdict(self, key: Key, verdict: str, count: int = 1, replaces: str = "") -> None:
        if replaces:
            self._correct(key, {verdict: count, replaces: -count})
        else:
            self._since[key].verdicts[verdict] += count

    def _correct(self, key: Key, changes: Mapping[str, int]) -> None:
        tally = self._since.get(key) or self._marks.get(key)
        for verdict, change in changes.items():
            if tally is not None:
                tally.verdicts[verdict] += change
            if key not in self._since:
                self.verdicts[verdict] += change
        self.moved = True

    def barrier(self) -> None:
        """Record that all segments received so far have a verdict and are part of the algorithm's state."""
        self.moved |= bool(self._since)
        for key, since in self._since.items():
            tally = self._marks.get(key) or self._marks.setdefault(key, _StreamProgress(0, {}))
            tally.next_seq = since.next_seq
            for verdict, count in since.verdicts.items():
                tally.verdicts[verdict] += count
                self.verdicts[verdict] += count
        self._since.clear()

    def forget(self, key: Key) -> None:
        """Remove the mark of a stream, because the learner has deleted its records."""
        self._marks.pop(key, None)

    def marks(self) -> tuple[CheckpointedStreamProgress, ...]:
        """Return the marks of the last barrier, for a checkpoint."""
        return tuple(
            CheckpointedStreamProgress(actor, origin, t.next_seq, dict(t.verdicts)) for (actor, origin), t in self._marks.items()
        )

    def as_documents(self) -> list[Any]:
        """Return `marks` as lists ``[actor_id, origin, next_seq, verdicts]``, for `ThreadReady`."""
        return [[m.actor_id, m.origin, m.next_seq, m.verdicts] for m in self.marks()]
