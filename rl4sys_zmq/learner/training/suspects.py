"""The segments in training, and the detection of those that crash the learner's process when they are trained on.

``training.mark`` lists the segments that are in training at the moment. If a new process finds segments in this file, the
previous process ended during their training. Unless that process was asked to end, the segments become *suspects*. The file is
not flushed to the disk, so it survives the end of the process, but not a loss of power.

One crash proves nothing, because a process can be killed from outside. So suspects are first trained on separately: an
on-policy algorithm tries each half of them, and an off-policy algorithm takes them one at a time. If the process crashes again,
only the suspects that were in training both times remain. So it takes about log2(n) crashes to find one segment in a batch of
n. A suspect whose training completes is no longer a suspect. These are quarantined:

- a single remaining suspect, after `ENDS_ALONE` crashes in a row with this result;
- a group of suspects that cannot be separated, because training on each half of it does no harm, after `ENDS_TOGETHER`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.learner.run.worker_storage import MARK_BYTES, MAX_RANGES, SegmentRange, SuspectStorage, encode_range, read_mark
from rl4sys_zmq.learner.training.validation import DecodedSegmentMessage
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.values import Segment

log = get_logger(__name__)

ENDS_ALONE = 3
ENDS_TOGETHER = 5

MAX_CONDEMNED = 1024
_HEAD_BYTES = 16
Number = tuple[str, int, int]


@dataclass(slots=True, eq=False)
class SegmentInTraining:
    """A segment that an algorithm received and may receive again, for example after an update was undone."""

    message: DecodedSegmentMessage | None  # None if it was discarded to save memory
    index: int  # of the segment in the message
    key: Key
    seq: int
    correct: bool  # for `Algorithm.observe`: the segment is so old that it needs importance weights

    @property
    def segment(self) -> Segment:
        assert self.message is not None
        return self.message.segments[self.index]


def to_ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending integers as ranges ``(first, end)`` of consecutive integers. A range does not include `end`."""
    if not numbers:
        return []
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return [(numbers[0], numbers[-1] + 1)]
    breaks = [n for n in range(1, len(numbers)) if numbers[n] != numbers[n - 1] + 1]
    return [(numbers[a], numbers[b - 1] + 1) for a, b in itertools.pairwise([0, *breaks, len(numbers)])]


def streams_of(held: Iterable[SegmentInTraining]) -> list[tuple[Key, int, int]]:
    """Return segments as ranges ``(stream, first, end)`` of sequence numbers."""
    by_stream: dict[Key, list[int]] = {}
    for one in held:
        by_stream.setdefault(one.key, []).append(one.seq)
    return [(key, *run) for key, numbers in by_stream.items() for run in to_ranges(numbers)]


class CrashSuspectRecord:
    """The record of the segments in training, and of those suspected of earlier crashes, for the next worker.

    A learner thread uses this object; only `expect_end` can be called from any thread.
    """

    def __init__(self, storage: SuspectStorage | None) -> None:
        self.finding = ""  # a sentence about the crash of the previous process during training
        self.repeated = False  # that process had suspects in training, so at least two have crashed
        self._storage = storage
        self._in_hand: list[SegmentRange] = []
        self._bytes = 0
        self._suspected: set[Number] = set()
        self._to_quarantine: dict[Number, str] = {}
        self._ends = self._same = 0
        self._disabled = storage is None
        if storage is not None:
            try:
                suspects, mark = storage.read()
                self._remember(suspects)
                self._update_suspects(read_mark(mark))
                storage.begin()
            except OSError as exc:
                self._give_up(exc)

    def close(self, *, crashed: bool = False) -> None:
        if not crashed:
            self.clear()
        self._disabled = True

    def expect_end(self, *, disable: bool = False) -> None:
        """Record that the thread was asked to end, so that no segment becomes a suspect. `disable` ends all recording."""
        if self._disabled or self._storage is None:
            return
        self._disabled = disable
        self._storage.excuse()

    def note(self, key: Key, first: int, end: int) -> None:
        """Record that the segments ``[first, end)`` of a stream are in training too.

        Do nothing if the storage records only the segments of each update (`SuspectStorage.each_message` is False).
        """
        if not self._disabled and len(self._in_hand) < MAX_RANGES and self._storage is not None and self._storage.each_message:
            self._write([(key, first, end)])

    def record(self, held: Sequence[SegmentInTraining]) -> None:
        """Record that exactly these segments are in training."""
        if self._disabled:
            return
        self.clear()
        self._write(streams_of(held)[:MAX_RANGES])

    def clear(self) -> None:
        if self._in_hand and not self._disabled:
            self._in_hand.clear()
            self._bytes = 0
            self._write([])

    def clear_pending(self) -> None:
        """Record that training on the recorded segments has completed: none of them is in training or a suspect any more."""
        self._clear_suspects(self._in_hand)
        self.clear()

    def clear_suspects(self, held: Iterable[SegmentInTraining]) -> None:
        """Stop suspecting these segments, because training on them has completed."""
        if self._suspected:
            self._clear_suspects(streams_of(held))

    def contains_suspects(self, key: Key, first: int, end: int) -> bool:
        return bool(self._suspected) and any(self.suspects(key, seq) for seq in range(first, end))

    def suspects(self, key: Key, seq: int) -> bool:
        return (*key, seq) in self._suspected

    def reasons(self, key: Key, first: int, end: int) -> dict[int, str]:
        """Return the reason for each segment in ``[first, end)`` that must be quarantined, by its offset from `first`."""
        condemned = self._to_quarantine
        return {seq - first: condemned[*key, seq] for seq in range(first, end) if (*key, seq) in condemned} if condemned else {}

    def parts(self, held: Sequence[SegmentInTraining]) -> list[list[SegmentInTraining]]:
        """Return the suspects in up to two halves, for separate training: a crash tells which half has the cause."""
        suspects = [one for one in held if (*one.key, one.seq) in self._suspected] if self._suspected else []
        half = len(suspects) // 2
        return [part for part in (suspects[:half], suspects[half:]) if part]

    def _update_suspects(self, in_hand: Sequence[SegmentRange]) -> None:
        now = {(*key, seq) for key, first, end in in_hand for seq in range(first, min(end, first + MAX_RANGES))}
        now -= self._to_quarantine.keys()
        if not now:
            return
        both = now & self._suspected
        self._same = self._same + 1 if both and both == self._suspected else 0
        self._ends = self._ends + 1 if both else 1
        self._suspected = both or now
        self.repeated = bool(both)
        count = len(self._suspected)
        self.finding = (
            f"the process ended while it trained on {len(now)} segments; {count} of them are suspects, after {self._ends} ends"
        )
        if self._same + 1 >= (ENDS_ALONE if count == 1 else ENDS_TOGETHER):
            alone = "this segment" if count == 1 else f"this segment, or another of {count} that were trained on together,"
            why = f"{alone} ended the learner's process {self._ends} times in a row during training"
            self._to_quarantine.update(dict.fromkeys(sorted(self._suspected), why))
            self.finding = f"{count} segments will be quarantined: they ended the process {self._ends} times in a row"
            self._reset()
        self._save()

    def _clear_suspects(self, ranges: Sequence[SegmentRange]) -> None:
        left = {number for number in self._suspected if not any(_holds(one, number) for one in ranges)}
        if len(left) < len(self._suspected):
            self._suspected = left
            if not left:
                self._reset()
            self._save()

    def _reset(self) -> None:
        self._suspected, self._ends, self._same = set(), 0, 0

    def _write(self, ranges: Sequence[SegmentRange]) -> None:
        data = b"".join(encode_range(*one) for one in ranges)
        end = self._bytes + len(data)
        if self._storage is None or _HEAD_BYTES + end > MARK_BYTES:
            return
        self._in_hand += ranges
        self._storage.write(self._bytes, data, len(self._in_hand))
        self._bytes = end

    def _remember(self, suspects: bytes) -> None:
        if not suspects:
            return
        try:
            known: Any = json.loads(suspects)
            self._suspected = {(str(a), int(o), int(s)) for a, o, s in known["suspected"]}
            self._to_quarantine = {(str(a), int(o), int(s)): str(why) for a, o, s, why in known["condemned"]}
            self._ends, self._same = int(known["ends"]), int(known["same"])
        except (ValueError, KeyError, TypeError) as exc:
            log.warning("the record of suspects cannot be read, and is discarded: %s", exc)

    def _save(self) -> None:
        assert self._storage is not None
        condemned = list(self._to_quarantine.items())[-MAX_CONDEMNED:]
        known = {
            "suspected": sorted(self._suspected),
            "condemned": [[*number, why] for number, why in condemned],
            "ends": self._ends,
            "same": self._same,
        }
        try:
            self._storage.save(json.dumps(known).encode())
        except OSError as exc:
            self._give_up(exc)

    def _give_up(self, exc: OSError) -> None:
        """Stop recording after an error of the disk. Training continues without the record."""
        self._disabled = True
        log.warning("training.mark cannot be written, so a segment that ends the process would not be found: %s", exc)


def _holds(one: SegmentRange, number: Number) -> bool:
    (actor_id, origin), first, end = one
    return number[:2] == (actor_id, origin) and first <= number[2] < end
