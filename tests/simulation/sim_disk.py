"""The disk of a simulated learner, with its checkpoints and the rows of its journal, and a journal that writes to it."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rl4sys_zmq.delivery.disk_journal import JournalQueue
from rl4sys_zmq.delivery.journal import (
    ClientRow,
    CountSegmentsLostByJournal,
    DeleteCoveredEntries,
    DropClient,
    DropStream,
    JournalBase,
    JournalEntry,
    JournalHealth,
    JournalPage,
    MemoryJournal,
    Operation,
    PageRequest,
    RetireActorStreams,
    StreamRow,
    Write,
)
from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.learner.run.checkpoints import CheckpointedStreamProgress

KEEP = 3
PAGE_BYTES = (1, 2000, 1 << 20)
NOBODY = ClientRow("sim", 0, {}, 0, 0, 0)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint."""

    number: int
    judged: tuple[tuple[int, str], ...]
    marks: tuple[CheckpointedStreamProgress, ...]
    verdicts: Mapping[str, int]


@dataclass
class SimDisk:
    """A run directory."""

    journal_id: int
    clients: dict[str, ClientRow] = field(default_factory=dict)
    streams: dict[Key, StreamRow] = field(default_factory=dict)
    entries: list[tuple[int, JournalEntry]] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    next_row: int = 1
    next_number: int = 1
    sound: int = 2

    def copy(self) -> "SimDisk":
        tables = dict(self.clients), dict(self.streams), list(self.entries), list(self.checkpoints)
        return SimDisk(self.journal_id, *tables, self.next_row, self.next_number, self.sound)

    def keep(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint in one step, and keep the newest three."""
        self.checkpoints = [*self.checkpoints, checkpoint][-KEEP:]
        self.next_number = checkpoint.number + 1
        self.sound += 1

    def rot(self) -> bool:
        """Remove the newest checkpoint, as if it were damaged, and return whether this was possible."""
        if self.sound < 2 or not self.checkpoints:
            return False
        self.checkpoints = self.checkpoints[:-1]
        self.sound = 0
        return True

    def apply(self, operation: Write) -> None:
        match operation:
            case JournalEntry() as e:
                self.entries.append((self.next_row, e))
                self.next_row += 1
                key = e.actor_id, e.origin
                row = self.streams.get(key) or StreamRow(e.client_id, *key, e.origin, e.first_seq, 0, 0, 0, True, False)
                self.streams[key] = replace(
                    row,
                    received=max(row.received, e.end_seq),
                    accepted_steps=row.accepted_steps + e.steps,
                    refused=row.refused + e.refused,
                )
                self._count(e.accepted, e.refused, 0)
            case ClientRow() as c:
                known = self.clients.get(c.client_id)
                totals = known or c
                self.clients[c.client_id] = replace(totals, generation=c.generation, settings=c.settings)
            case StreamRow() as s:
                self._put_stream(s)
            case CountSegmentsLostByJournal():
                self._count(operation.count, 0, operation.count)
                if operation.stream is not None:
                    self._put_stream(operation.stream)
            case DropStream():
                key = operation.actor_id, operation.origin
                self.streams.pop(key, None)
                self.entries = [(row, e) for row, e in self.entries if (e.actor_id, e.origin) != key]
                client = self.clients.get(operation.client_id, NOBODY)
                expired = max(client.expired, operation.origin) if operation.expires else client.expired
                self.clients[client.client_id] = replace(client, expired=expired)
            case DropClient():
                self.entries = []
                if not operation.entries_only:
                    self.clients, self.streams = {}, {}
            case RetireActorStreams():
                for key, row in self.streams.items():
                    if key[0] == operation.actor_id:
                        self.streams[key] = replace(row, incarnation=0, spooled=False, owner="")
            case DeleteCoveredEntries():
                marks = dict(operation.marks)
                self.entries = [(row, e) for row, e in self.entries if e.end_seq > marks.get((e.actor_id, e.origin), 0)]

    def _put_stream(self, row: StreamRow) -> None:
        known = self.streams.get((row.actor_id, row.origin), row)
        self.streams[row.actor_id, row.origin] = replace(
            known,
            incarnation=max(known.incarnation, row.incarnation),
            received=max(known.received, row.received),
            submits=row.submits,
            spooled=row.spooled,
        )

    def _count(self, accepted: int, refused: int, gap: int) -> None:
        row = self.clients.get(NOBODY.client_id, NOBODY)
        self.clients[row.client_id] = replace(
            row, accepted=row.accepted + accepted, refused=row.refused + refused, gap=row.gap + gap
        )


class SlowJournal(MemoryJournal):
    """A journal in memory that commits its entries one call later, as a disk would."""

    def __init__(self) -> None:
        super().__init__()
        self._writing: list[JournalEntry | JournalPage] = []

    def waiting(self) -> list[JournalEntry]:
        return [item for item in (*self._writing, *self._fresh) if isinstance(item, JournalEntry)]

    def queued(self, client_id: str) -> int:
        """Return the number of a client's entries that `committed` has not returned."""
        return sum(entry.client_id == client_id for entry in self.waiting())

    def committed(self) -> list[JournalEntry | JournalPage]:
        """Return the entries that were appended before the previous call."""
        done, self._writing = self._writing, super().committed()
        return done


class SimJournal(JournalBase):
    """A journal on a `SimDisk`. A call writes the operations queued at the call before, or a part of them.

    The learner may die between two parts.

    Attributes:
        full: True while the disk has no room for entries. Operations that need no room continue.
    """

    durable = True

    def __init__(self, disk: SimDisk, rng: random.Random, written: Callable[[Write], None]) -> None:
        self.journal_id = disk.journal_id
        self.full = False
        self._disk, self._rng, self._written = disk, rng, written
        self._backlog = JournalQueue()
        self._due = 0

    def append(self, batch: Sequence[JournalEntry]) -> None:
        self._backlog.extend(batch)

    def _enqueue(self, operation: Operation) -> None:
        """Queue an operation. The page of a read gets a random size."""
        if isinstance(operation, PageRequest):
            operation = replace(operation, max_bytes=min(operation.max_bytes, self._rng.choice(PAGE_BYTES)))
        self._backlog.extend([operation])

    def waiting(self) -> list[JournalEntry]:
        return [item for item in self._backlog if isinstance(item, JournalEntry)]

    def queued(self, client_id: str) -> int:
        """Return the number of a client's operations that are not done."""
        return sum(operation.client_id == client_id for operation in self._backlog)

    def committed(self) -> list[JournalEntry | JournalPage]:
        """Do the operations that are due, and return the written entries and the pages that were read."""
        left = self._due if self._rng.random() < 0.7 else self._rng.randint(0, self._due)
        fresh: list[JournalEntry | JournalPage] = []
        while left > 0:
            room = (1, 0) if self.full else (0, 1 << 40)
            group = self._backlog.next_group(*room) or (self._backlog.relief() if self.full else [])
            if not group:
                break
            group = self._cut(group, left)
            for operation in group:
                self._do(operation, fresh)
            self._backlog.done(group)
            left -= len(group)
        self._due = len(self._backlog)
        return fresh

    def _cut(self, group: list[Operation], left: int) -> list[Operation]:
        """Return the part of a group that is written before the learner may die."""
        return group[:left]

    def _do(self, operation: Operation, fresh: list[JournalEntry | JournalPage]) -> None:
        if isinstance(operation, PageRequest):
            fresh.append(self._page(operation))
            return
        self._disk.apply(operation)
        self._written(operation)
        if isinstance(operation, JournalEntry):
            fresh.append(operation)

    def _page(self, read: PageRequest) -> JournalPage:
        rows = [(row, e) for row, e in self._disk.entries if row > read.after_row]
        size = count = 0
        for _, entry in rows:
            if count and size + entry.nbytes > read.max_bytes:
                break
            size += entry.nbytes
            count += 1
        last = rows[count - 1][0] if count else read.after_row
        return JournalPage(read.client_id, read.token, tuple(e for _, e in rows[:count]), last, len(rows) > count, 0)

    def state(self) -> JournalHealth:
        return JournalHealth(True, 0, 0, 0, len(self._backlog), "full" if self.full else "", 0, 0, 0.0, 0)

    def stop(self) -> None:
        """Do nothing."""

    def join(self, timeout_s: float | None = None) -> bool:
        return True
