"""The actor's segments on disk, from the moment they are finished until the learner's journal has them.

``DIR/spool.db`` (sqlite, WAL) survives the end of the process, ``kill -9`` included, and not a power cut. ``DIR/lock`` is
held by the one process that uses it. The spool is a FIFO of packed segments: *rows* in the file, and behind them, while the
disk refuses, segments in memory. From the head some are *taken*: numbered, and with the session.

**Numbers are positions.** No number is written when a segment is sent. `base_seq`, the number of the oldest segment, changes in
the same transaction that deletes rows; a segment's number is `base_seq` plus its position. So that this holds at any
moment at which the process may die:

- Only the tail that is not taken is ever dropped, and rows are gone from the file before the next one is taken. If the disk
  refuses, the drop does not happen.
- Deleting what is durable may be late or lost: the learner's next Welcome says so again.
- What is in memory lies behind all rows, and goes into the file in order, what is taken included.

**After a start** nobody knows which rows have numbers: any, or none. The first Welcome says ``R`` (received) and ``D``
(durable). Let ``B`` be `base_seq` in the file, ``e`` the rows evicted since the start, which were the oldest, and ``m`` what is
left of those that the file had at the start. The learner has ``r = min(R - B, e + m)`` of these ``e + m``.

- ``min(e, r)`` of the evicted had arrived: they were not dropped, and the base moves over them. The other evicted ones had
  not, so nobody knows them by a number, and ``R`` is the number of the oldest row.
- The first ``r - min(e, r)`` rows have arrived: those below ``D`` are deleted, the others are taken. What follows is new.
- ``R - B - r`` segments arrived that were in memory only when the process died. They count as submitted. While rows before
  them must be kept, placeholders keep their numbers: segments that the learner refuses as items, should it ever ask.

What was put in after the start can't have been received, and must not be counted among the ``e + m`` by a later start that finds
no Welcome in between: the file says from which row on (`SpoolMeta.sure_from`). All this is committed before anything is taken, so
that ``B``, ``e`` and `sure_from` can't be applied twice.

**The law of a spool**, at every moment and over all starts: ``submitted = dropped + base_seq + len(spool)``. It holds in the file
too, for what is in the file; a file in which it does not hold is damaged.

A damaged file can't say which numbers are in use. The new one takes a new `origin`, which makes it another stream, and a new
`actor_id` unless one was given. A damaged row that has no number yet is dropped; one that may have one becomes a placeholder.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import sqlite3
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rl4sys_zmq.actor.segment_queue import QueueHead
from rl4sys_zmq.actor.spool_file import FLUSH_BYTES, SpoolDamaged, SpoolEntry, SpoolFile, SpoolMeta, is_damage, placeholder
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.incarnation import first_incarnation, next_incarnation
from rl4sys_zmq.errors import SpoolError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.wire import PackedSegment

__all__ = ["Spool", "SpoolLimits"]

log = logging.getLogger(__name__)

RETRY_S = 1.0
RELEASE_S = 0.2
MAX_HOLE = 65_536


@dataclass(frozen=True, slots=True)
class SpoolLimits:
    """What a spool may hold. Beyond it, the oldest segments that are not taken are dropped.

    Attributes:
        max_bytes: of the columns of all segments (``spool_bytes``).
        max_age_s: the age of a segment (``spool_age``); None for no limit.
        memory_items: how many may wait in memory while the disk refuses (``overflow``).
        memory_bytes: the bytes of those (``overflow``).
    """

    max_bytes: int
    max_age_s: float | None = None
    memory_items: int = 1024
    memory_bytes: int = 256 << 20


class Spool(Resource):
    """A durable FIFO of segments, for one actor.

    One thread uses it at a time. After the constructor no method raises because of the disk: `error` says what it refuses,
    `counters` count ``spool_errors``, ``spool_damaged_files``, ``spool_damaged_rows`` and ``spool_placeholders``.

    Attributes:
        actor_id: kept in the spool.
        origin: the incarnation that began the numbering.
        incarnation: of this start; larger than that of any start before.
        error: why the disk refuses at the moment, or None.
        reconciled: a Welcome has been applied; before that nothing can be taken.
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
        """Opens the spool, or makes it.

        Args:
            folder: of its own; made with mode 0700.
            client_id: whose segments it holds.
            limits: what it may hold.
            actor_id: the one that the spool must have; made up for a new one if None.
            clock: Unix time in seconds; a jump of it is a jump of ages.
            monotonic: in seconds, for what is retried or done later.

        Raises:
            SpoolError: it is in use, can't be read or written, or belongs to another client, actor or version of the library.
        """
        self.counters = Counters()
        self.error: str | None = None
        self.reconciled = False
        self._limits = limits
        self._clock, self._monotonic = clock, monotonic
        self._taken: deque[SpoolEntry] = deque()
        self._untaken: deque[SpoolEntry] = deque()
        self._memory: deque[SpoolEntry] = deque()
        self._nbytes = self._untaken_steps = self._unsure = 0
        self._dirty = False
        self._synced_at = self._retry_at = 0.0
        self._file = SpoolFile(folder)
        try:
            self._meta = self._open(client_id, actor_id)
        except BaseException:
            self._abandon()
            raise
        self.actor_id, self.origin, self.incarnation = self._meta.actor_id, self._meta.origin, self._meta.incarnation
        _open_spools.add(self)

    # ---- what is in it

    def __len__(self) -> int:
        return len(self._taken) + len(self._untaken)

    @property
    def base_seq(self) -> int:
        """The number of the oldest segment, or of the next one: what a Hello says as its first."""
        return self._meta.base_seq

    @property
    def journal_id(self) -> int:
        """The journal of the learner that was met last; 0 for none."""
        return self._meta.journal_id

    @property
    def taken_items(self) -> int:
        """How many are numbered."""
        return len(self._taken)

    @property
    def untaken_items(self) -> int:
        """How many are not numbered yet (or, before `reconcile`, perhaps)."""
        return len(self._untaken)

    @property
    def untaken_steps(self) -> int:
        """The steps of those."""
        return self._untaken_steps

    @property
    def memory_items(self) -> int:
        """How many are in memory only, because the disk refuses: what a kill would lose."""
        return len(self._memory)

    @property
    def nbytes(self) -> int:
        """The bytes of all columns in it."""
        return self._nbytes

    @property
    def submitted(self) -> int:
        """How many were put in since the spool was made."""
        return self._meta.submitted

    @property
    def dropped(self) -> dict[str, int]:
        """How many were dropped since the spool was made, by reason. May fall, when the learner turns out to have them."""
        return dict(self._meta.dropped)

    def heads(self) -> Iterator[QueueHead]:
        """Those that are not taken, oldest first; anything that changes the spool ends it."""
        return (entry.head for entry in self._untaken)

    def peek(self) -> QueueHead | None:
        """The oldest that is not taken."""
        return self._untaken[0].head if self._untaken else None

    # ---- in and out

    def put(self, segments: Sequence[PackedSegment]) -> None:
        """Adds segments, and drops the oldest beyond the bounds; in the file when this returns, unless the disk refuses.

        Args:
            segments: in order; their `large` frames must not change any more.
        """
        put_at, next_id = self._clock(), self._meta.next_id
        for p in segments:
            head = QueueHead(p.generation, p.oldest_version, p.steps, p.nbytes, len(p.large))
            entry = SpoolEntry(next_id, head, put_at, p)
            next_id += 1
            self._untaken.append(entry)
            self._memory.append(entry)
            self._nbytes += p.nbytes
            self._untaken_steps += p.steps
        self._meta = replace(self._meta, next_id=next_id, submitted=self._meta.submitted + len(segments))
        self._dirty = True
        if self.error is None or self._monotonic() >= self._retry_at:
            self._sync()
        self._bound_memory()

    def take(self, max_items: int, max_bytes: int) -> list[PackedSegment]:
        """The next segments, which become taken: the first has the number ``base_seq + taken_items``.

        The first is given whatever its size. Empty before `reconcile`, and while the disk can't be read.
        """
        if not self.reconciled or not self._file.is_open:
            return []
        while self._untaken:
            chosen: list[SpoolEntry] = []
            size = 0
            for entry in itertools.islice(self._untaken, max_items):
                size += entry.head.nbytes
                if chosen and size > max_bytes:
                    break
                chosen.append(entry)
            packed = self._read(chosen)
            if packed is None:
                return []
            sound = list(itertools.takewhile(lambda p: p is not None, packed))
            if chosen and not sound:
                self.counters.add("spool_damaged_rows")
                log.error("%s: a segment in the spool is damaged and is dropped", self._file.path)
                if self.drop_head(1, "spool_damaged"):
                    continue
                sound = [placeholder()]  # the disk refuses: it stays, and takes a number
            for _ in sound:
                self._take_one()
            return [p for p in sound if p is not None]
        return []

    def drop_head(self, count: int, reason: str) -> int:
        """Drops the oldest `count` that are not taken, counted as `reason`; all of them, or none when the disk refuses.

        Returns:
            How many were dropped.
        """
        count = min(count, len(self._untaken))
        if not count or self.error is not None or not self._sync([(reason, count)]):
            return 0
        return count

    def untake(self) -> None:
        """Nothing is taken any more: a new session will say in its Welcome what it has; `reconcile` comes next."""
        if not self.reconciled:
            return
        self._unsure = len(self._taken)
        self._untaken_steps += sum(e.head.steps for e in self._taken)
        self._untaken.extendleft(reversed(self._taken))
        self._taken.clear()
        self.reconciled = False

    def release(self, durable_seq: int) -> None:
        """Forgets the taken segments below `durable_seq`; the file follows within `RELEASE_S`, or with the next `put`."""
        count = min(durable_seq - self._meta.base_seq, len(self._taken))
        if count <= 0:
            return
        for _ in range(count):
            self._forget(self._taken.popleft())
        self._meta = replace(self._meta, base_seq=self._meta.base_seq + count)
        self._dirty = True
        self.tick()

    def reconcile(self, received: int, durable: int) -> list[PackedSegment] | None:
        """Applies the first Welcome after a start or `untake`; see the module's text.

        Args:
            received: the learner's marks, for a Hello that said `base_seq`; and
            durable: likewise.

        Returns:
            The segments that are received and not durable, from `base_seq` on: they are taken. None when the disk refuses:
            nothing can be taken yet; call it again. When it was called before: an empty list.
        """
        if self.reconciled or not self._file.is_open:
            return []
        base, evicted = self._meta.base_seq, sum(n for _, n in self._meta.evicted)
        received = max(received, base)
        known = min(received - base, evicted + self._unsure)
        back = min(evicted, known)
        held, hole = known - back, received - base - known
        gone = min(max(min(durable, received) - base - back, 0), held)
        kept = list(itertools.islice(self._untaken, gone, held))
        blanks = hole if kept and kept[-1].packed is None and hole <= MAX_HOLE else 0
        if hole > blanks:  # nothing before the hole must be kept, or can be
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
            log.warning("%s: the learner has %d segments that an earlier process did not store any more", self._file.path, hole)
            self.counters.add("spool_placeholders", blanks)
        if not self._apply(meta, held, gone, blanks):
            return None
        packed = self._read(list(self._taken))
        if packed is None:
            self.untake()
            return None
        damaged = sum(p is None for p in packed) - blanks
        if damaged:
            log.error(
                "%s: %d segments that the learner has received, and not made durable, are damaged", self._file.path, damaged
            )
            self.counters.add("spool_damaged_rows", damaged)
        return [p if p is not None else placeholder() for p in packed]

    def set_journal(self, journal_id: int) -> None:
        """Notes the journal of the learner that was met."""
        if journal_id != self._meta.journal_id:
            self._meta = replace(self._meta, journal_id=journal_id)
            self._dirty = True
            self._sync()

    def set_incarnation(self, incarnation: int) -> None:
        """Notes the higher incarnation that this start goes on as, so that the next one is higher still."""
        self.incarnation = incarnation
        self._meta = replace(self._meta, incarnation=incarnation)
        self._dirty = True
        self._sync()

    def tick(self) -> None:
        """Does what has become due: late deletions, drops by age, another try of the disk."""
        if self._monotonic() >= self.next_deadline():
            self._sync()

    def next_deadline(self) -> float:
        """When `tick` wants to be called, monotonic in seconds; infinity when nothing is due."""
        if not self._file.is_open:
            return float("inf")
        if self.error is not None:
            return self._retry_at
        if self._memory:
            return self._synced_at
        due = self._synced_at + RELEASE_S if self._dirty else float("inf")
        if self._limits.max_age_s is not None and self._untaken:
            left = self._untaken[0].put_at + self._limits.max_age_s - self._clock()
            due = min(due, self._monotonic() + max(0.0, left))
        return due

    def close(self) -> None:
        """Writes what can be written and gives the folder free."""
        if self._file.is_open:
            while self._sync() and self._memory:
                pass
            if self._memory:
                log.error("%s: %d segments in memory are lost, %s", self._file.path, len(self._memory), self.error)
        self._abandon()

    def disown(self) -> None:
        """In a forked child: lets go of the parent's file and lock without touching them. Called by itself after `os.fork`."""
        _open_spools.discard(self)
        self._file.disown()

    # ---- the file

    def _open(self, client_id: str, actor_id: str | None) -> SpoolMeta:
        """Reads the file, or makes it, and stores this start."""
        try:
            try:
                meta = self._file.open()
                if meta is not None:
                    self._load(meta, client_id, actor_id)
            except (SpoolDamaged, sqlite3.DatabaseError, ValueError, KeyError, TypeError) as exc:
                if not is_damage(exc):
                    raise
                aside = self._file.move_aside(int(self._clock() * 1e3))
                self.counters.add("spool_damaged_files")
                log.error("the spool %s is damaged (%s): it is now %s, and what it held is not sent", self._file.path, exc, aside)
                meta = self._file.open()
            rng = random.SystemRandom()
            start = first_incarnation(self._clock(), rng)
            if meta is None:
                meta = SpoolMeta(client_id, actor_id or uuid.uuid4().hex, start, start)
            else:
                meta = replace(meta, incarnation=max(next_incarnation(meta.incarnation, rng), start))
                meta = meta if meta.sure_from is not None else replace(meta, sure_from=meta.next_id)
            self._file.write(meta, self._first_id(meta))
        except (sqlite3.Error, OSError) as exc:
            raise SpoolError(f"the spool {self._file.path} can't be used: {exc}") from exc
        return meta

    def _load(self, meta: SpoolMeta, client_id: str, actor_id: str | None) -> None:
        for name, given, stored in (("client_id", client_id, meta.client_id), ("actor_id", actor_id, meta.actor_id)):
            if given is not None and given != stored:
                raise SpoolError(
                    f"the spool {self._file.path} has the {name} {stored!r}, not {given!r}; give each actor its own folder"
                )
        entries = self._file.entries(meta)
        self._untaken.extend(entries)
        self._nbytes = sum(e.head.nbytes for e in entries)
        self._untaken_steps = sum(e.head.steps for e in entries)
        self._unsure = sum(meta.sure_from is None or e.id < meta.sure_from for e in entries)

    def _sync(self, drops: Sequence[tuple[str, int]] = ()) -> bool:
        """One transaction: deletes what was released and what is to be dropped, inserts what is in memory.

        Args:
            drops: reasons and how many to drop from the head of what is not taken; empty: what is beyond the bounds.

        Returns:
            False when the disk refused: nothing has changed then.
        """
        if not self._file.is_open:
            return False
        drops = drops or self._excess()
        count = sum(n for _, n in drops)
        dropped = list(itertools.islice(self._untaken, count))
        lost = set(map(id, dropped))
        inserted: list[SpoolEntry] = []
        size = 0
        for entry in self._memory:
            if id(entry) not in lost:
                if inserted and size > FLUSH_BYTES:
                    break
                inserted.append(entry)
                size += entry.head.nbytes
        meta = self._counted(drops)
        left = sum(id(e) not in lost for e in self._memory) - len(inserted)
        rows = len(self) - count - left
        if not self._try(replace(meta, rows=rows, submitted=meta.submitted - left), dropped, inserted):
            return False
        for entry in dropped:
            self._untaken.popleft()
            self._untaken_steps -= entry.head.steps
            self._forget(entry)
        self._unsure = max(0, self._unsure - count)
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
            log.warning("%s: the disk works again", self._file.path)
        self.error = None
        return True

    def _refused(self, exc: Exception) -> None:
        self.counters.add("spool_errors")
        if self.error is None:
            log.error("%s: the disk refuses (%s); segments wait in memory", self._file.path, exc)
        self.error = f"{type(exc).__name__}: {exc}"
        self._retry_at = self._monotonic() + RETRY_S

    def _apply(self, meta: SpoolMeta, held: int, gone: int, blanks: int) -> bool:
        """Commits what `reconcile` found, then makes it so here: `gone` deleted, the rest of `held` and `blanks` taken."""
        entries = list(self._untaken)
        deleted, kept = entries[:gone], entries[gone:held]
        last = kept[-1].id if kept else 0
        placeholders = [SpoolEntry(last + 1 + n, QueueHead(0, 0, 0, 0, 0), self._clock(), None) for n in range(blanks)]
        meta = replace(meta, next_id=meta.next_id + blanks)
        left = sum(e.packed is not None for e in entries[gone:])
        stored = replace(meta, rows=len(entries) - gone + blanks - left, submitted=meta.submitted - left)
        in_file = [e for e in deleted if e.packed is None]
        if meta != self._meta and not self._try(stored, in_file, placeholders, (last, blanks)):
            return False
        for entry in entries[held:]:
            entry.id += blanks
        self._untaken = deque(entries[held:])
        self._untaken_steps -= sum(e.head.steps for e in entries[:held])
        for entry in deleted:
            self._forget(entry)
        self._taken.extend([*kept, *placeholders])
        self._meta, self._unsure, self.reconciled = meta, 0, True
        return True

    def _read(self, entries: Sequence[SpoolEntry]) -> list[PackedSegment | None] | None:
        """The segments of consecutive entries, None in the place of a damaged one; None when the disk refuses."""
        try:
            return self._file.read(entries)
        except sqlite3.Error as exc:
            self._refused(exc)
            return None

    # ---- small parts

    def _excess(self) -> list[tuple[str, int]]:
        """What must be dropped from the head of what is not taken: the reasons, and how many."""
        old = excess = 0
        size = self._nbytes
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
        """The numbers after these drops; those that the learner may have received are noted in order."""
        dropped, evicted, unsure = dict(self._meta.dropped), list(self._meta.evicted), self._unsure
        for reason, count in drops:
            dropped[reason] = dropped.get(reason, 0) + count
            perhaps = min(count, unsure)
            unsure -= perhaps
            if perhaps and evicted and evicted[-1][0] == reason:
                evicted[-1] = (reason, evicted[-1][1] + perhaps)
            elif perhaps:
                evicted.append((reason, perhaps))
        return replace(self._meta, dropped=dropped, evicted=tuple(evicted))

    def _bound_memory(self) -> None:
        """While the disk refuses: drops the oldest in memory that can't have a number."""
        size = sum(e.head.nbytes for e in self._memory)
        while self.error is not None and (len(self._memory) > self._limits.memory_items or size > self._limits.memory_bytes):
            ahead = len(self._untaken) - len(self._memory)  # not taken, and in the file; negative: taken, and in memory
            at = max(0, self._unsure - ahead)
            if at >= len(self._memory):
                return
            entry = self._memory[at]
            del self._untaken[ahead + at]
            self._untaken_steps -= entry.head.steps
            size -= entry.head.nbytes
            del self._memory[at]
            self._nbytes -= entry.head.nbytes
            self._meta = replace(
                self._meta, dropped={**self._meta.dropped, "overflow": self._meta.dropped.get("overflow", 0) + 1}
            )

    def _first_id(self, meta: SpoolMeta) -> int:
        """Of the oldest segment that is kept, or of the next one."""
        first = self._taken[0] if self._taken else self._untaken[0] if self._untaken else None
        return first.id if first is not None else meta.next_id

    def _take_one(self) -> None:
        entry = self._untaken.popleft()
        self._untaken_steps -= entry.head.steps
        self._taken.append(entry)

    def _forget(self, entry: SpoolEntry) -> None:
        """It has left the deques of what is taken and what is not."""
        self._nbytes -= entry.head.nbytes
        if entry.packed is not None:
            self._memory.remove(entry)

    def _abandon(self) -> None:
        """Closes the file, whatever happens."""
        _open_spools.discard(self)
        self._file.close()


_open_spools: weakref.WeakSet[Spool] = weakref.WeakSet()


def _disown_all() -> None:
    for spool in list(_open_spools):
        spool.disown()


os.register_at_fork(after_in_child=_disown_all)


def _taken_back(dropped: dict[str, int], evicted: Sequence[tuple[str, int]], count: int) -> dict[str, int]:
    """The drops without the first `count` of `evicted`, which the learner turned out to have."""
    dropped = dict(dropped)
    for reason, number in evicted:
        mistaken = min(number, count)
        dropped[reason] -= mistaken
        count -= mistaken
    return dropped
