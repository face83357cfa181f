"""What the state of an algorithm has disposed of: the marks that make a checkpoint and the journal agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rl4sys_zmq.delivery import Key
from rl4sys_zmq.learner.checkpoints import Mark
from rl4sys_zmq.wire.messages import Verdict

__all__ = ["Progress"]

_COUNTED = (Verdict.TRAINED, Verdict.STALE, Verdict.QUARANTINED, Verdict.REFUSED)


class _Tally:
    """One stream: where it stands, and its verdicts."""

    __slots__ = ("next_seq", "verdicts")

    def __init__(self, next_seq: int, verdicts: Mapping[str, int]) -> None:
        self.next_seq = next_seq
        self.verdicts = {verdict: verdicts.get(verdict, 0) for verdict in _COUNTED}


class Progress:
    """Marks by stream, as of the last *barrier*: a moment at which the state has disposed of all that it was given.

    What came since is kept apart. A checkpoint carries the marks of the barrier, because the state of an on-policy algorithm
    leaves out what waits for the next update; the journal still has that.

    Attributes:
        verdicts: the client's totals at the barrier, of streams that were forgotten since among them.
        steps: environment steps observed at the barrier.
        moved: whether there was a barrier after new segments since somebody set this to False.
    """

    def __init__(self, marks: Iterable[Mark] = (), verdicts: Mapping[str, int] | None = None) -> None:
        self.verdicts = {verdict: (verdicts or {}).get(verdict, 0) for verdict in _COUNTED}
        self._marks = {(m.actor_id, m.origin): _Tally(m.next_seq, m.verdicts) for m in marks}
        self._since: dict[Key, _Tally] = {}
        self.steps = 0
        self.moved = False

    def take(self, key: Key, first: int, end: int) -> None:
        """The next segments of a stream were taken: those from `first` to below `end`."""
        since = self._since.get(key)
        if since is None:
            since = self._since[key] = _Tally(first, {})
        since.next_seq = end

    def dispose(self, key: Key, verdict: str, count: int = 1, but: str = "") -> None:
        """Segments that were taken since the barrier met their verdict; with `but`, earlier ones met it in place of that one."""
        if but:
            self._correct(key, {verdict: count, but: -count})
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
        """Everything taken has been disposed of."""
        self.moved |= bool(self._since)
        for key, since in self._since.items():
            tally = self._marks.setdefault(key, _Tally(0, {}))
            tally.next_seq = since.next_seq
            for verdict, count in since.verdicts.items():
                tally.verdicts[verdict] += count
                self.verdicts[verdict] += count
        self._since.clear()

    def forget(self, key: Key) -> None:
        """Nothing of this stream is in the journal any more."""
        self._marks.pop(key, None)

    def marks(self) -> tuple[Mark, ...]:
        """The marks at the barrier, for a checkpoint."""
        return tuple(Mark(actor, origin, t.next_seq, dict(t.verdicts)) for (actor, origin), t in self._marks.items())

    def as_documents(self) -> list[Any]:
        """The same, as `Ready` says them."""
        return [[m.actor_id, m.origin, m.next_seq, m.verdicts] for m in self.marks()]
