"""The marks and verdicts of an algorithm's state, which keep a checkpoint and the journal consistent.

The *mark* of a stream is the next sequence number: the algorithm has seen all segments below it. A *verdict* says what became of
a segment: trained, stale, quarantined, or refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rl4sys_zmq.delivery import Key
from rl4sys_zmq.learner.checkpoints import Mark
from rl4sys_zmq.wire.messages import Verdict

__all__ = ["Progress"]

_COUNTED = (Verdict.TRAINED, Verdict.STALE, Verdict.QUARANTINED, Verdict.REFUSED)


class _Tally:
    """The progress in one stream: the sequence number of the next segment, and the number of segments for each verdict."""

    __slots__ = ("next_seq", "verdicts")

    def __init__(self, next_seq: int, verdicts: Mapping[str, int]) -> None:
        self.next_seq = next_seq
        self.verdicts = {verdict: verdicts.get(verdict, 0) for verdict in _COUNTED}


class Progress:
    """Marks by stream, as of the last *barrier*: a moment when the state has disposed of all segments it was given.

    Changes since then are kept apart. A checkpoint carries the marks of the barrier, because the state of an on-policy
    algorithm leaves out the segments that wait for the next update. The journal still has those.

    Attributes:
        verdicts: The client's totals at the barrier, including streams that were discarded since.
        steps: Environment steps observed at the barrier.
        moved: True if a barrier followed new segments since the caller last set this to False.
    """

    def __init__(self, marks: Iterable[Mark] = (), verdicts: Mapping[str, int] | None = None) -> None:
        self.verdicts = {verdict: (verdicts or {}).get(verdict, 0) for verdict in _COUNTED}
        self._marks = {(m.actor_id, m.origin): _Tally(m.next_seq, m.verdicts) for m in marks}
        self._since: dict[Key, _Tally] = {}
        self.steps = 0
        self.moved = False

    def take(self, key: Key, first: int, end: int) -> None:
        """Record that segments ``[first, end)``, the next of a stream, were received."""
        since = self._since.get(key)
        if since is None:
            since = self._since[key] = _Tally(first, {})
        since.next_seq = end

    def record_verdict(self, key: Key, verdict: str, count: int = 1, replaces: str = "") -> None:
        """Record a verdict on segments received since the barrier, in place of the verdict `replaces` if one is given."""
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
        """Mark all received segments as disposed of."""
        self.moved |= bool(self._since)
        for key, since in self._since.items():
            tally = self._marks.setdefault(key, _Tally(0, {}))
            tally.next_seq = since.next_seq
            for verdict, count in since.verdicts.items():
                tally.verdicts[verdict] += count
                self.verdicts[verdict] += count
        self._since.clear()

    def forget(self, key: Key) -> None:
        """Discard the mark of a stream that the journal no longer has."""
        self._marks.pop(key, None)

    def marks(self) -> tuple[Mark, ...]:
        """Return the marks at the barrier, for a checkpoint."""
        return tuple(Mark(actor, origin, t.next_seq, dict(t.verdicts)) for (actor, origin), t in self._marks.items())

    def as_documents(self) -> list[Any]:
        """Return the marks as `Ready` carries them."""
        return [[m.actor_id, m.origin, m.next_seq, m.verdicts] for m in self.marks()]
