"""The spool: a queue on disk that keeps finished segments until the learner has recorded them. The module imports sqlite.

The spool survives the end of the process, also by ``kill -9``, but not a loss of power. Its file is ``DIR/spool.db`` (sqlite,
WAL). While the disk fails, new segments wait in memory.

The oldest segments can be *taken*: a taken segment has a sequence number, and the session sends it. It stays in the spool until
the learner's journal has recorded it. All other segments have no sequence number, and the oldest of these are dropped if a
limit is exceeded. After a start it is unknown which segments the learner has received; `Spool.reconcile` finds out.

The counts add up, at every moment and over all starts, also in the file alone: ``submitted = dropped + base_seq + len(spool)``.

A damaged file does not show which sequence numbers are in use. So a new file replaces the damaged one and begins a new
numbering, which the learner recognizes by the new `origin`. The actor also gets a new `actor_id`, unless the configuration sets
one. A damaged row without a sequence number is dropped. A damaged row that can have a sequence number becomes a placeholder.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rl4sys_zmq.actor.io.spool_file import (
    FLUSH_BYTES,
    SpoolDamagedError,
    SpoolEntry,
    SpoolFile,
    SpoolMeta,
    is_damage,
    placeholder,
)
from rl4sys_zmq.actor.segments import QueuedSegmentInfo
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.incarnation import first_incarnation, next_incarnation
from rl4sys_zmq.errors import SpoolError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import new_actor_id
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.wire import PackedSegment

log = get_logger(__name__)

# The sequence number of a segment is its position in the FIFO. The file does not have the number of each segment. The number is
# `base_seq`, the number of the oldest segment in the spool, plus the segment's position. `base_seq` changes in the same
# transaction that deletes rows. The following rules keep the numbers right whenever the process ends:
#
# - Only segments that are not taken are dropped. Their rows are deleted before the next segment is taken. If the disk fails, no
#   row is dropped.
# - The deletion of rows that the learner has recorded can be late, or lost with the process. The next Welcome (the learner's
#   answer in the handshake) repeats the number up to which they can be deleted.
# - Segments in memory are newer than all rows. They are written to the file in order, taken ones too.
#
# After a start it is unknown which rows have a sequence number: all, some or none. The first Welcome has two numbers: R, the
# next sequence number that the learner expects, and D, below which its journal has recorded all segments. Let B be the
# `base_seq` in the file, e the number of rows dropped since the start (evicted; they were the oldest rows), and m the number of
# rows that the file had at the start and still has. Of these e + m rows, the learner has received the oldest r = min(R - B, e +
# m):
#
# - min(e, r) of them were evicted. They no longer count as dropped, and `base_seq` increases by their number. The learner has
#   not received the other evicted rows. These have no sequence number.
# - The other r - min(e, r) are the first rows in the file. Those with numbers below D are deleted, the others are taken. The
#   rows after them have no sequence number.
# - The learner has also received R - B - r segments that were only in memory when the earlier process ended. They count as
#   submitted. If rows before them must be kept, placeholders (empty segments) take their positions. The learner refuses a
#   placeholder that is sent.
#
# The learner cannot have received rows that were added after the start. A later start must not count these rows in m if no
# Welcome came in between, so the file records the id of the first of them (`SpoolMeta.sure_from`). All changes are committed
# before a segment is taken, so that B, e and `sure_from` are applied only once.

RETRY_S = 1.0
DELETE_DELAY_S = 0.2
MAX_HOLE = 65_536


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """The limits of a spool. Beyond them, the oldest segments that have not been sent are dropped and counted."""

    max_bytes: int  # largest size of the columns of all segments. Drops count as `spool_bytes`
    max_age_s: float | None = None  # largest age of a segment, None for no limit. Drops count as `spool_age`
    memory_items: int = 1024  # largest number of segments in memory while the disk fails. Drops count as `overflow`
    memory_bytes: int = 256 << 20  # largest size of these. Drops count as `overflow`


class Spool(Resource):
    """A FIFO of the finished segments of one actor, on disk. One thread uses it at a time.

    After the constructor, no method raises because of the disk: `error` has the last error, None while the disk works.

    The actor keeps `actor_id` over all starts. `incarnation` is the number of this start, `origin` the incarnation at which the
    sequence numbers began.
    """

    def __init__(
        self,
        folder: Path,
        client_id: str,
        limits: SpoolLimits,
        *,
        actor_id: str | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = Counters()  # `spool_errors`, `spool_damaged_files`, `spool_damaged_rows` and `spool_placeholders`
        self.error: str | None = None
        self.reconciled = False  # true once `reconcile` has succeeded. Before that, no segment can be taken
        self._limits = limits
        self._clock, self._monotonic = clock, monotonic
        self._taken: deque[SpoolEntry] = deque()
        self._untaken: deque[SpoolEntry] = deque()
        self._memory: deque[SpoolEntry] = deque()
        self.nbytes = self.untaken_steps = self._possibly_received = 0
        self._dirty = False
        self._synced_at = self._retry_at = 0.0
        self._file = SpoolFile(folder)
        try:
            self._meta = self._open(client_id, actor_id)
        except BaseException:
            self._file.close()
            raise
        self.actor_id, self.origin, self.incarnation = self._meta.actor_id, self._meta.origin, self._meta.incarnation

    def __len__(self) -> int:
        return len(self._taken) + len(self._untaken)

    @property
    def base_seq(self) -> int:
        return self._meta.base_seq

    @property
    def journal_id(self) -> int:
        return self._meta.journal_id

    @property
    def untaken_items(self) -> int:
        """The number of segments that `take` can still return. Before `reconcile`, the learner can have some of them."""
        return len(self._untaken)

    @property
    def memory_items(self) -> int:
        return len(self._memory)

    @property
    def submitted(self) -> int:
        return self._meta.submitted

    @property
    def dropped(self) -> dict[str, int]:
        """The number of segments dropped since the spool was created, by reason. `reconcile` subtracts what the learner has."""
        return dict(self._meta.dropped)

    def peek(self) -> QueuedSegmentInfo | None:
        return self._untaken[0].head if self._untaken else None

    def put(self, segments: Sequence[PackedSegment]) -> None:
        """Add segments, and write about `FLUSH_BYTES` bytes of them to the file. `tick` writes the remaining segments."""
        put_at, first_id = self._clock(), self._meta.next_id
        for row_id, p in enumerate(segments, first_id):
            head = QueuedSegmentInfo(p.generation, p.oldest_version, p.steps, p.nbytes)
            entry = SpoolEntry(row_id, head, put_at, p)
            self._untaken.append(entry)
            self._memory.append(entry)
            self.nbytes += p.nbytes
            self.untaken_steps += p.steps
        count = len(segments)
        self._meta = replace(self._meta, next_id=first_id + count, submitted=self._meta.submitted + count)
        self._dirty = True
        if self.error is None or self._monotonic() >= self._retry_at:
            self._sync()
        self._bound_memory()

    def take(self) -> PackedSegment | None:
        """Give the next segment its sequence number, and return it for the session to send."""
        while self.reconciled and self._file.is_open and self._untaken:
            packed = self._read([self._untaken[0]])
            if packed is None:
                return None
            segment = packed[0]
            if segment is None:
                self.counters.add("spool_damaged_rows")
                log.error("%s: a segment in the spool is damaged and is dropped", self._file.path)
                if self.drop_head(1, "spool_damaged"):
                    continue
                segment = placeholder()  # the disk fails: the row stays and gets a number
            entry = self._untaken.popleft()
            self.untaken_steps -= entry.head.steps
            self._taken.append(entry)
            return segment
        return None

    def drop_head(self, count: int, reason: str) -> int:
        """Drop the oldest `count` untaken segments for `reason`. Return the number dropped, 0 if the disk fails."""
        count = min(count, len(self._untaken))
        return count if count and self.error is None and self._sync([(reason, count)]) else 0

    def untake(self) -> None:
        """Put all taken segments back into the queue, without a sequence number, for a new session."""
        if not self.reconciled:
            return
        self._possibly_received = len(self._taken)
        self.untaken_steps += sum(e.head.steps for e in self._taken)
        self._untaken.extendleft(reversed(self._taken))
        self._taken.clear()
        self.reconciled = False

    def release(self, durable_seq: int) -> None:
        """Discard the taken segments with sequence numbers below `durable_seq`. The learner has recorded them."""
        count = min(durable_seq - self._meta.base_seq, len(self._taken))
        if count <= 0:
            return
        for _ in range(count):
            self._forget(self._taken.popleft())
        self._meta = replace(self._meta, base_seq=self._meta.base_seq + count)
        self._dirty = True
        self.tick()

    def reconcile(self, received: int, durable: int) -> list[PackedSegment] | None:
        """Find out which segments the learner has, from its marks `received` and `durable`, once after the start of the actor.

        Return the segments that it has received and that are not durable. Return None if the disk fails.
        """
        if self.reconciled or not self._file.is_open:
            return []
        base, evicted = self._meta.base_seq, sum(n for _, n in self._meta.evicted)
        received = max(received, base)
        known = min(received - base, evicted + self._possibly_received)
        back = min(evicted, known)
        held, hole = known - back, received - base - known
        gone = min(max(min(durable, received) - base - back, 0), held)
        kept = list(itertools.islice(self._untaken, gone, held))
        blanks = hole if kept and kept[-1].packed is None and hole <= MAX_HOLE else 0
        if hole > blanks:  # no segment before the hole must be kept, or none can be
            gone, first = held, received
        else:
            first = base + back + gone
        meta = replace(
            self._meta,
            base_seq=first,
            sure_from=None,
            evicted=(),
            submitted=self._meta.submitted + hole,
            dropped=_taken_back(self._meta.dropped, self._meta.evicted, back),
        )
        if hole:
            log.warning("%s: the learner has %d segments that an earlier process did not store", self._file.path, hole)
            self.counters.add("spool_placeholders", blanks)
        if not self._apply(meta, held, gone, blanks):
            return None
        packed = self._read(list(self._taken))
        if packed is None:
            self.untake()
            return None
        damaged = sum(p is None for p in packed) - blanks
        if damaged:
            log.error("%s: %d segments are damaged that the learner has received but not made durable", self._file.path, damaged)
            self.counters.add("spool_damaged_rows", damaged)
        return [p if p is not None else placeholder() for p in packed]

    def set_journal(self, journal_id: int) -> None:
        if journal_id != self._meta.journal_id:
            self._record(replace(self._meta, journal_id=journal_id))

    def set_incarnation(self, incarnation: int) -> None:
        """Give this start a higher number, because the learner knows a later start."""
        self.incarnation = incarnation
        self._record(replace(self._meta, incarnation=incarnation))

    def _record(self, meta: SpoolMeta) -> None:
        self._meta, self._dirty = meta, True
        self._sync()

    def tick(self) -> None:
        """Do the work whose time has come: delayed deletions, drops by age, another attempt to write to a failed disk."""
        if self._monotonic() >= self.next_deadline():
            self._sync()

    def next_deadline(self) -> float:
        if not self._file.is_open:
            return float("inf")
        if self.error is not None:
            return self._retry_at
        if self._memory:
            return self._synced_at
        due = self._synced_at + DELETE_DELAY_S if self._dirty else float("inf")
        if self._limits.max_age_s is not None and self._untaken:
            left = self._untaken[0].put_at + self._limits.max_age_s - self._clock()
            due = min(due, self._monotonic() + max(0.0, left))
        return due

    def close(self) -> None:
        """Write the segments in memory to the file if possible. Then close the file and release the lock."""
        if self._file.is_open:
            while self._sync() and self._memory:
                pass
            if self._memory:
                log.error("%s: %d segments in memory are lost: %s", self._file.path, len(self._memory), self.error)
        self._file.close()

    def _open(self, client_id: str, actor_id: str | None) -> SpoolMeta:
        """Read the file, or create it, and record this start of the actor under a new incarnation."""
        try:
            try:
                meta = self._file.open()
                if meta is not None:
                    self._load(meta, client_id, actor_id)
            except (SpoolDamagedError, sqlite3.DatabaseError, ValueError, KeyError, TypeError) as exc:
                if not is_damage(exc):
                    raise
                aside = self._file.move_aside(int(self._clock() * 1e3))
                self.counters.add("spool_damaged_files")
                log.error(
                    "the spool %s is damaged (%s): it is renamed %s, its segments are not sent", self._file.path, exc, aside
                )
                meta = self._file.open()
            rng = random.SystemRandom()
            start = first_incarnation(self._clock(), rng)
            if meta is None:
                meta = SpoolMeta(client_id, actor_id or new_actor_id(), start, start)
            else:
                meta = replace(meta, incarnation=max(next_incarnation(meta.incarnation, rng), start))
                meta = meta if meta.sure_from is not None else replace(meta, sure_from=meta.next_id)
            self._file.write(meta, self._first_id(meta))
        except (sqlite3.Error, OSError) as exc:
            raise SpoolError(f"the spool {self._file.path} can't be used: {exc}") from exc
        return meta

    def _load(self, meta: SpoolMeta, client_id: str, actor_id: str | None) -> None:
        for name, wanted, stored in (("client_id", client_id, meta.client_id), ("actor_id", actor_id, meta.actor_id)):
            if wanted is not None and wanted != stored:
                raise SpoolError(
                    f"the spool {self._file.path} has the {name} {stored!r}, not {wanted!r}; give each actor its own folder"
                )
        entries = self._file.entries(meta)
        self._untaken.extend(entries)
        self.nbytes = sum(e.head.nbytes for e in entries)
        self.untaken_steps = sum(e.head.steps for e in entries)
        self._possibly_received = sum(meta.sure_from is None or e.id < meta.sure_from for e in entries)

    def _sync(self, drops: Sequence[tuple[str, int]] = ()) -> bool:
        """Update the file in one transaction: delete dropped segments, insert those in memory. Return False if it fails."""
        if not self._file.is_open:
            return False
        drops = drops or self._over_limits()
        count = sum(n for _, n in drops)
        dropped = list(itertools.islice(self._untaken, count))
        lost = set(dropped)
        waiting = [entry for entry in self._memory if entry not in lost]
        inserted: list[SpoolEntry] = []
        size = 0
        for entry in waiting:
            if inserted and size > FLUSH_BYTES:
                break
            inserted.append(entry)
            size += entry.head.nbytes
        meta = self._counted(drops)
        left = len(waiting) - len(inserted)
        rows = len(self) - count - left
        if not self._try(replace(meta, rows=rows, submitted=meta.submitted - left), dropped, inserted):
            return False
        for entry in dropped:
            self._untaken.popleft()
            self.untaken_steps -= entry.head.steps
            self._forget(entry)
        self._possibly_received = max(0, self._possibly_received - count)
        for entry in inserted:
            self._memory.popleft()
            entry.packed = None
        self._meta, self._dirty, self._synced_at = meta, False, self._monotonic()
        return True

    def _try(
        self, meta: SpoolMeta, deleted: Sequence[SpoolEntry], inserted: Sequence[SpoolEntry], shift: tuple[int, int] = (0, 0)
    ) -> bool:
        try:
            self._file.write(meta, self._first_id(meta), deleted, inserted, shift)
        except (sqlite3.Error, OSError) as exc:
            self._refused(exc)
            return False
        if self.error is not None:
            log.warning("%s: the disk can be used again", self._file.path)
        self.error = None
        return True

    def _refused(self, exc: Exception) -> None:
        self.counters.add("spool_errors")
        if self.error is None:
            log.error("%s: the disk fails (%s); segments wait in memory", self._file.path, exc)
        self.error = f"{type(exc).__name__}: {exc}"
        self._retry_at = self._monotonic() + RETRY_S

    def _apply(self, meta: SpoolMeta, held: int, gone: int, blanks: int) -> bool:
        """Write the result of `reconcile` to the file, and then to this object. Return False if the disk fails."""
        entries = list(self._untaken)
        deleted, kept = entries[:gone], entries[gone:held]
        last = kept[-1].id if kept else 0
        placeholders = [SpoolEntry(last + 1 + n, QueuedSegmentInfo(0, 0, 0, 0), self._clock(), None) for n in range(blanks)]
        meta = replace(meta, next_id=meta.next_id + blanks)
        left = sum(e.packed is not None for e in entries[gone:])
        stored = replace(meta, rows=len(entries) - gone + blanks - left, submitted=meta.submitted - left)
        in_file = [e for e in deleted if e.packed is None]
        if meta != self._meta and not self._try(stored, in_file, placeholders, (last, blanks)):
            return False
        for entry in entries[held:]:
            entry.id += blanks
        self._untaken = deque(entries[held:])
        self.untaken_steps -= sum(e.head.steps for e in entries[:held])
        for entry in deleted:
            self._forget(entry)
        self._taken.extend([*kept, *placeholders])
        self._meta, self._possibly_received, self.reconciled = meta, 0, True
        return True

    def _read(self, entries: Sequence[SpoolEntry]) -> list[PackedSegment | None] | None:
        """Read the segments of consecutive entries; None in place of a damaged segment. Return None alone if the disk fails."""
        try:
            return self._file.read_segments(entries)
        except sqlite3.Error as exc:
            self._refused(exc)
            return None

    def _over_limits(self) -> list[tuple[str, int]]:
        """Return how many of the oldest untaken segments exceed the limits on age and size, by reason."""
        old = excess = 0
        size = self.nbytes
        horizon = self._clock() - self._limits.max_age_s if self._limits.max_age_s is not None else float("-inf")
        for entry in self._untaken:
            if not excess and entry.put_at <= horizon:
                old += 1
            elif size > self._limits.max_bytes:
                excess += 1
            else:
                break
            size -= entry.head.nbytes
        return [(reason, n) for reason, n in (("spool_age", old), ("spool_bytes", excess)) if n]

    def _counted(self, drops: Sequence[tuple[str, int]]) -> SpoolMeta:
        """Return the spool's counts with `drops` added. `evicted` counts drops that the learner can have received."""
        evicted, unsure = list(self._meta.evicted), self._possibly_received
        for reason, count in drops:
            perhaps = min(count, unsure)
            unsure -= perhaps
            if perhaps and evicted and evicted[-1][0] == reason:
                evicted[-1] = (reason, evicted[-1][1] + perhaps)
            elif perhaps:
                evicted.append((reason, perhaps))
        dropped = Counter(self._meta.dropped) + Counter(dict(drops))
        return replace(self._meta, dropped=dict(dropped), evicted=tuple(evicted))

    def _bound_memory(self) -> None:
        """Drop segments if the disk fails and those in memory exceed the limits: the oldest that `take` has not returned."""
        size = sum(e.head.nbytes for e in self._memory)
        while self.error is not None and (len(self._memory) > self._limits.memory_items or size > self._limits.memory_bytes):
            ahead = len(self._untaken) - len(self._memory)  # those in the file; negative: the number taken and in memory
            at = max(0, self._possibly_received - ahead)
            if at >= len(self._memory):
                return
            entry = self._memory[at]
            del self._untaken[ahead + at]
            self.untaken_steps -= entry.head.steps
            size -= entry.head.nbytes
            del self._memory[at]
            self.nbytes -= entry.head.nbytes
            self._meta = replace(self._meta, dropped=dict(Counter(self._meta.dropped) + Counter(overflow=1)))

    def _first_id(self, meta: SpoolMeta) -> int:
        """Return the row id of the oldest segment, or of the next row if the spool is empty."""
        first = self._taken[0] if self._taken else self._untaken[0] if self._untaken else None
        return first.id if first is not None else meta.next_id

    def _forget(self, entry: SpoolEntry) -> None:
        self.nbytes -= entry.head.nbytes
        if entry.packed is not None:
            self._memory.remove(entry)


def _taken_back(dropped: dict[str, int], evicted: Sequence[tuple[str, int]], count: int) -> dict[str, int]:
    """Return the counts of drops by reason without the first `count` evicted segments, which the learner has after all."""
    dropped = dict(dropped)
    for reason, number in evicted:
        mistaken = min(number, count)
        dropped[reason] -= mistaken
        count -= mistaken
    return dropped
