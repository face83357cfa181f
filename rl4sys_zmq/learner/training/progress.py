"""The record of which segments are part of an algorithm's state, so that a checkpoint and the journal agree.

The journal is the learner's record of accepted segments, which are consecutive steps of an episode. The segments of one actor
form a stream and are numbered. The *mark* of a stream is the sequence number of the next segment: all segments with lower
numbers are part of the state. A *verdict* is the result for a segment, such as trained, stale or quarantined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.delivery import Key
from rl4sys_zmq.learner.run.checkpoints import CheckpointedStreamProgress
from rl4sys_zmq.wire.messages import Verdict

_COUNTED = (*Verdict.FINAL, Verdict.REFUSED)


@dataclass(frozen=True, slots=True)
class ObservedDataCounts:
    """Counts of the steps and episodes that an algorithm has received so far, as a checkpoint stores them.

    Attributes:
        steps: Number of environment steps.
        episodes: Number of episodes that ended in these steps.
        recent: Return and length in steps of the latest of these episodes, oldest first.
        overridden_steps: Number of steps whose actions the host overrode, also of those that the algorithm has not received.
    """

    steps: int = 0
    episodes: int = 0
    recent: tuple[tuple[float, int], ...] = ()
    overridden_steps: int = 0


class _StreamProgress:
    """The position in one stream, and counts of the results of its segments.

    Attributes:
        next_seq: The sequence number of the next segment.
        verdicts: The number of segments for each verdict (result): trained, stale, quarantined or refused.
    """

    __slots__ = ("next_seq", "verdicts")

    def __init__(self, next_seq: int, verdicts: Mapping[str, int]) -> None:
        self.next_seq = next_seq
        self.verdicts = {verdict: verdicts.get(verdict, 0) for verdict in _COUNTED}


class CheckpointProgress:
    """The next sequence number (mark) and counts of verdicts (results) for each actor's segments, stored by checkpoints.

    A *barrier* is a moment when every received segment has a verdict, for example right after an update. A checkpoint stores
    the marks of the last barrier. Segments received after the barrier wait for the next update of an on-policy algorithm and
    are not part of its saved state; after a restart, the learner's journal delivers them a second time. Until the next barrier,
    their numbers are kept apart.

    Attributes:
        verdicts: The number of segments for each verdict, at the last barrier. Streams (an actor's numbered segments) that were
            removed count too.
        observed: Counts of the data observed until the last barrier.
        moved: True if a barrier has included new segments, or a verdict has changed. The caller sets this to False after a
            checkpoint.
    """

    def __init__(self, marks: Iterable[CheckpointedStreamProgress] = (), verdicts: Mapping[str, int] | None = None) -> None:
        self.verdicts = {verdict: (verdicts or {}).get(verdict, 0) for verdict in _COUNTED}
        self._marks = {(m.actor_id, m.origin): _StreamProgress(m.next_seq, m.verdicts) for m in marks}
        self._since: dict[Key, _StreamProgress] = {}
        self.observed = ObservedDataCounts()
        self.moved = False

    def take(self, key: Key, first: int, end: int) -> None:
        """Record that segments with the numbers ``[first, end)`` were received. They are the next ones of their actor."""
        since = self._since.get(key)
        if since is None:
            since = self._since[key] = _StreamProgress(first, {})
        since.next_seq = end

    def record_verdict(self, key: Key, verdict: str, count: int = 1, replaces: str = "") -> None:
        """Record a verdict for some segments of an actor."""
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
        """Record that all segments received so far have a verdict (result) and are part of the algorithm's state.

        A checkpoint stores the progress as of the last call of this method, which is called the *barrier*.
        """
        self.moved |= bool(self._since)
        for key, since in self._since.items():
            tally = self._marks.setdefault(key, _StreamProgress(0, {}))
            tally.next_seq = since.next_seq
            for verdict, count in since.verdicts.items():
                tally.verdicts[verdict] += count
                self.verdicts[verdict] += count
        self._since.clear()

    def forget(self, key: Key) -> None:
        """Remove the mark (next sequence number) of an actor's segments, because the learner has deleted their records."""
        self._marks.pop(key, None)

    def marks(self) -> tuple[CheckpointedStreamProgress, ...]:
        """Return the next sequence number (mark) of each actor's segments at the last call of `barrier`, for a checkpoint."""
        return tuple(
            CheckpointedStreamProgress(actor, origin, t.next_seq, dict(t.verdicts)) for (actor, origin), t in self._marks.items()
        )

    def as_documents(self) -> list[Any]:
        """Return `marks` as lists, for the message with which a learner thread reports that it is ready.

        Each list is ``[actor_id, origin, next_seq, verdicts]``. The origin is the start of the actor at which the numbering
        began, and the verdicts are the number of segments for each result.
        """
        return [[m.actor_id, m.origin, m.next_seq, m.verdicts] for m in self.marks()]
