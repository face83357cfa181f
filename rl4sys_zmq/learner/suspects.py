"""Segments that end the process in which they are trained on: noted before, remembered after, condemned when it happens again.

A small file says which segments are in hand: it is written before they are observed or trained on, and says nothing afterwards.
It outlives the process, not the machine's power: nothing is flushed. A start that finds segments in it knows that the process
before ended in the middle of them, and suspects them.

One end proves nothing, for anybody may kill a process. So suspects are only fed more carefully: an on-policy algorithm first
tries the two halves of them apart, an off-policy one takes them one at a time. If the process ends again, those that were in hand
both times are suspected further, at most half of them: a batch of n segments takes about log2(n) ends. What was suspected and is
then trained on without an end is suspected no longer. Condemned is

- a segment that is alone under suspicion, after `ENDS_ALONE` ends in a row that left nothing else;
- a group that can't be told apart, because its halves do no harm, after `ENDS_TOGETHER` likewise.

To condemn what is innocent, kills from outside would have to hit each of these trainings in turn, for one that completes acquits.
An orderly end excuses what is in hand.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rl4sys_zmq.delivery import Key
from rl4sys_zmq.learner.held_segments import HeldSegment, streams_of
from rl4sys_zmq.private import make_private

__all__ = ["ENDS_ALONE", "ENDS_TOGETHER", "CrashSuspects"]

log = logging.getLogger(__name__)

ENDS_ALONE = 3
ENDS_TOGETHER = 5

MARK, MEMORY = "training.mark", "suspects.json"
MARK_BYTES = 1 << 18
MAX_RANGES = 1024  # with the longest names they fit
MAX_CONDEMNED = 1024
_HEAD = struct.Struct("<4sIII")  # magic, excused, how many ranges, their bytes
_RANGE = struct.Struct("<HQQQ")  # bytes of the actor's name, origin, first, end
_MAGIC = b"R4TM"

Range = tuple[Key, int, int]
Number = tuple[str, int, int]


class CrashSuspects:
    """What is in hand in this process, and what may have ended the ones before. One thread uses it, but for `excuse`.

    Attributes:
        story: what was found at the start, in words; empty if the process before ended well.
        repeated: whether it is not the first of its kind.
    """

    def __init__(self, folder: Path | None) -> None:
        """Reads what the process before has left.

        Args:
            folder: the client's checkpoints; None: nothing is noted, because what was received does not outlive the process.
        """
        self.story = ""
        self.repeated = False
        self._folder = folder
        self._map: mmap.mmap | None = None
        self._in_hand: list[Range] = []
        self._bytes = 0
        self._suspected: set[Number] = set()
        self._spans: dict[Key, tuple[int, int]] = {}
        self._condemned: dict[Number, str] = {}
        self._ends = self._same = 0
        self._muted = folder is None
        if folder is not None:
            try:
                make_private(folder)
                self._remember(folder)
                self._map = self._open(folder / MARK)
            except OSError as exc:
                self._give_up(exc)

    def close(self) -> None:
        """Nothing is in hand any more."""
        self.clear()
        self._muted = True
        self._map = None  # not closed: another thread may be about to use it

    def excuse(self, *, mute: bool = False) -> None:
        """The process, or this thread, is told to end: that it ends with something in hand means nothing. From any thread.

        Args:
            mute: another thread uses the file from now on.
        """
        mark = self._map  # memory, so that the gateway thread may write to it
        if self._muted or mark is None:
            return
        self._muted = mute
        struct.pack_into("<I", mark, 4, 1)

    # ---- in hand

    def note(self, key: Key, first: int, end: int) -> None:
        """Segments ``[first, end)`` of a stream come into hand, beside what is there."""
        if not self._muted and len(self._in_hand) < MAX_RANGES:
            name = key[0].encode()
            self._write([(key, first, end)], _RANGE.pack(len(name), key[1], first, end) + name)

    def begin(self, held: Sequence[HeldSegment]) -> None:
        """These segments are in hand, and no others."""
        if self._muted:
            return
        self.clear()
        ranges = streams_of(held)[:MAX_RANGES]
        names = [(key[0].encode(), key[1], first, end) for key, first, end in ranges]
        self._write(ranges, b"".join(_RANGE.pack(len(n), origin, a, b) + n for n, origin, a, b in names))

    def clear(self) -> None:
        """Nothing is in hand."""
        if self._in_hand and not self._muted:
            self._in_hand.clear()
            self._bytes = 0
            self._write([], b"")

    def settle(self) -> None:
        """What is in hand was trained on, and the process is still there."""
        if self._suspected:
            self._acquit({n for n in self._suspected if any(_holds(one, n) for one in self._in_hand)})
        self.clear()

    def acquit(self, held: Iterable[HeldSegment]) -> None:
        """These segments were trained on, and the process is still there."""
        if self._suspected:
            self._acquit({(*one.key, one.seq) for one in held})

    # ---- suspicion

    def concerns(self, key: Key, first: int, end: int) -> bool:
        """Tells if there may be suspects among the segments ``[first, end)`` of a stream."""
        least, most = self._spans.get(key, (0, -1)) if self._spans else (0, -1)
        return first <= most and least < end

    def suspects(self, key: Key, seq: int) -> bool:
        """Tells if a segment is suspected."""
        return (*key, seq) in self._suspected

    def reason(self, key: Key, seq: int) -> str:
        """Why a segment is condemned; empty if it is not."""
        return self._condemned.get((*key, seq), "") if self._condemned else ""

    def parts(self, held: Sequence[HeldSegment]) -> list[list[HeldSegment]]:
        """The suspects among segments, as parts to be tried apart."""
        found = [one for one in held if (*one.key, one.seq) in self._suspected] if self._suspected else []
        half = len(found) // 2
        return [part for part in (found[:half], found[half:]) if part]

    def _judge(self, in_hand: Sequence[Range]) -> None:
        """The process before ended with these in hand."""
        now = {(*key, seq) for key, first, end in in_hand for seq in range(first, min(end, first + MAX_RANGES))}
        now -= self._condemned.keys()
        if not now:
            return
        both = now & self._suspected
        self._same = self._same + 1 if both and both == self._suspected else 0
        self._ends = self._ends + 1 if both else 1
        self._suspected = both or now
        self.repeated = bool(both)
        count = len(self._suspected)
        self.story = (
            f"the process ended while {len(now)} segments were trained on; {count} are suspected, after {self._ends} ends"
        )
        if self._same + 1 >= (ENDS_ALONE if count == 1 else ENDS_TOGETHER):
            alone = "it" if count == 1 else f"it, or one of {count} that were trained on together,"
            why = f"{alone} ended the learner's process {self._ends} times in a row while it was trained on"
            self._condemned.update(dict.fromkeys(sorted(self._suspected), why))
            self.story = f"{count} segments are condemned: they ended the process {self._ends} times in a row"
            self._forget()
        self._span()
        self._save()

    def _acquit(self, numbers: set[Number]) -> None:
        if self._suspected & numbers:
            self._suspected -= numbers
            if not self._suspected:
                self._forget()
            self._span()
            self._save()

    def _span(self) -> None:
        """Notes between which numbers the suspects of each stream lie."""
        self._spans = {}
        for actor_id, origin, seq in self._suspected:
            least, most = self._spans.get((actor_id, origin), (seq, seq))
            self._spans[actor_id, origin] = min(least, seq), max(most, seq)

    def _forget(self) -> None:
        self._suspected, self._ends, self._same = set(), 0, 0

    # ---- files

    def _open(self, path: Path) -> mmap.mmap:
        """Judges what the mark says, wipes it and maps it, so that a note costs no call of the system."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._judge(_read(file))
            os.pwrite(file, _HEAD.pack(_MAGIC, 0, 0, 0).ljust(MARK_BYTES, b"\0"), 0)  # so that the disk has room for all of it
            return mmap.mmap(file, MARK_BYTES)
        finally:
            os.close(file)

    def _write(self, ranges: Sequence[Range], data: bytes) -> None:
        end = self._bytes + len(data)
        if self._map is None or _HEAD.size + end > MARK_BYTES:
            return
        self._map[_HEAD.size + self._bytes : _HEAD.size + end] = data
        self._in_hand += ranges
        self._bytes = end
        struct.pack_into("<II", self._map, 8, len(self._in_hand), end)

    def _remember(self, folder: Path) -> None:
        try:
            known: Any = json.loads((folder / MEMORY).read_text())
            self._suspected = {(str(a), int(o), int(s)) for a, o, s in known["suspected"]}
            self._condemned = {(str(a), int(o), int(s)): str(why) for a, o, s, why in known["condemned"]}
            self._ends, self._same = int(known["ends"]), int(known["same"])
            self._span()
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as exc:
            log.warning("%s is not readable, and starts anew: %s", folder / MEMORY, exc)

    def _save(self) -> None:
        assert self._folder is not None
        condemned = list(self._condemned.items())[-MAX_CONDEMNED:]
        known = {
            "suspected": sorted(self._suspected),
            "condemned": [[*number, why] for number, why in condemned],
            "ends": self._ends,
            "same": self._same,
        }
        path = self._folder / f".{MEMORY}"
        try:
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(known, file)
            path.replace(self._folder / MEMORY)
        except OSError as exc:
            self._give_up(exc)

    def _give_up(self, exc: OSError) -> None:
        """Goes on without notes, for training is worth more."""
        self._muted = True
        log.warning("%s: what is trained on can't be noted, so a segment that ends the process would not be found: %s", MARK, exc)


def _holds(one: Range, number: Number) -> bool:
    (actor_id, origin), first, end = one
    return number[:2] == (actor_id, origin) and first <= number[2] < end


def _read(file: int) -> list[Range]:
    """What a mark says is in hand; nothing if that is excused, or the mark is none."""
    head = os.pread(file, _HEAD.size, 0)
    if len(head) < _HEAD.size:
        return []
    magic, excused, count, size = _HEAD.unpack(head)
    if magic != _MAGIC or excused or not 0 < count <= MAX_RANGES:
        return []
    data = os.pread(file, size, _HEAD.size)
    found: list[Range] = []
    at = 0
    while len(found) < count and at + _RANGE.size <= len(data):
        length, origin, first, end = _RANGE.unpack_from(data, at)
        at += _RANGE.size
        name = data[at : at + length].decode("utf-8", "replace")
        at += length
        found.append(((name, origin), first, end))
    return found
