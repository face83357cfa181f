"""The journal on disk: its queue, its thread, and the reaction to disk errors."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rl4sys_zmq.delivery.journal import (
    ClientRow,
    CountSegmentsLostByJournal,
    DeleteCoveredEntries,
    DropClient,
    DropStream,
    JournalBase,
    JournalContent,
    JournalEntry,
    JournalHealth,
    JournalPage,
    Operation,
    PageRequest,
    RetireActorStreams,
    StreamRow,
)
from rl4sys_zmq.delivery.journal_file import (
    NO_RECOVERY,
    Connect,
    Fsync,
    JournalLock,
    JournalLossRules,
    JournalOpenOptions,
    connect,
    open_journal_file,
    reopen,
)
from rl4sys_zmq.delivery.journal_marks import JournalLoss
from rl4sys_zmq.delivery.journal_rows import JournalFile
from rl4sys_zmq.errors import JournalError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Worker

log = get_logger(__name__)

# Interval at which an idle journal checks that its files were not deleted, moved or replaced.
CHECK_S = 1.0
# Operations in one transaction, at most.
GROUP_ITEMS = 512
# Bytes in one transaction. This limits the delay of an ack and the size of the write-ahead log.
GROUP_BYTES = 8 << 20


class JournalQueue:
    """The operations that a journal has to do, in the order of the calls of `Journal`. Each stays until it is done."""

    def __init__(self) -> None:
        self._operations: deque[Operation] = deque()

    def __len__(self) -> int:
        return len(self._operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def extend(self, operations: Iterable[Operation]) -> None:
        self._operations.extend(operations)

    def next_group(self, used_bytes: int, max_bytes: int) -> list[Operation]:
        """Return the operations of the next transaction: one read, or all writes at the front of the queue that fit.

        The result is [] if the first write would make the stored entries larger than `max_bytes`.
        """
        group: list[Operation] = []
        size = 0
        for operation in islice(self._operations, GROUP_ITEMS):
            if isinstance(operation, PageRequest):
                return group or [operation]
            if isinstance(operation, JournalEntry):
                nbytes = operation.stored_bytes
                taken = used_bytes + size
                if (group and size + nbytes > GROUP_BYTES) or (taken and taken + nbytes > max_bytes):
                    break
                size += nbytes
            group.append(operation)
        return group

    def relief(self) -> list[Operation]:
        """Return operations that can be done while the journal is full: one read, or writes that need no further room.

        - The removal of all entries of a client comes first, together with the client's operations queued before it. Together
          they need no additional room.
        - A trim is always possible, because its entries are committed already.
        - The removal of a stream must wait for operations on the same stream before it. The retirement of an actor must wait
          for operations on any of its streams before it.
        - A client's reads must wait behind a removal that waits, and behind the retirement of an actor.
        """
        if given_up := self._given_up():
            return given_up
        changed: set[tuple[str, str, int]] = set()
        named: set[tuple[str, str]] = set()
        held: set[str] = set()
        frees: list[Operation] = []
        for operation in self._operations:
            if isinstance(operation, PageRequest) and operation.client_id not in held:
                return [operation]
            if isinstance(operation, DeleteCoveredEntries):
                frees.append(operation)
            elif isinstance(operation, RetireActorStreams):
                held.add(operation.client_id)  # a read behind it confirms that it is done
                if (operation.client_id, operation.actor_id) not in named:
                    frees.append(operation)
            elif isinstance(operation, (JournalEntry, StreamRow)):
                changed.add((operation.client_id, operation.actor_id, operation.origin))
                named.add((operation.client_id, operation.actor_id))
            elif isinstance(operation, DropStream):
                if (operation.client_id, operation.actor_id, operation.origin) in changed:
                    held.add(operation.client_id)
                else:
                    frees.append(operation)
        return frees[:GROUP_ITEMS]

    def _given_up(self) -> list[Operation]:
        """Return a client's writes up to the first operation that deletes all its entries; [] if none is queued."""
        for place, drop in enumerate(self._operations):
            if isinstance(drop, DropClient):
                before = islice(self._operations, place)
                own = (o for o in before if o.client_id == drop.client_id and not isinstance(o, PageRequest))
                return [*own, drop]
        return []

    def done(self, group: Sequence[Operation]) -> None:
        """Remove operations that are done from the queue. `group` must be in the order of the queue."""
        operations = self._operations
        if operations[0] is group[0] and operations[len(group) - 1] is group[-1]:
            for _ in group:
                operations.popleft()
            return
        gone = {id(operation) for operation in group}
        self._operations = deque(operation for operation in operations if id(operation) not in gone)


class DiskJournal(Worker, JournalBase):
    """A journal in one SQLite file, which one thread writes.

    Call `open`, then make the calls of `Journal` from one thread, then call `stop` and `join`. Calls are queued in order, and
    many are committed in one transaction.

    - Full or failing disk: if the stored entries reach `max_bytes`, or the disk fails, no data is lost. Operations stay
      queued, `state().error` has the reason, and the thread retries every `retry_s` seconds. Removals and reads need not wait
      for entries that do not fit. The queue has no limit: the caller must watch `state().queued_bytes` and stop granting
      credit.
    - Lost data: the file ``journal.marks`` in the same folder records the result of each commit before `committed` returns the
      entries. `open` compares the two files.
    - Deleted or replaced file: the thread detects this at the next commit, or within a second, and writes the file again from
      the open SQLite connection, which still has all data. Until then, `committed` returns nothing.
    - Size: `max_bytes` limits the stored messages, without SQLite's overhead of 200 to 300 bytes per entry and some MB for its
      write-ahead log. The file never shrinks. An entry larger than `max_bytes` is committed if no other entry is stored, so
      that it cannot block the journal forever. SQLite rejects an entry of 1 GB or more.
    """

    durable = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: Fsync,
        max_bytes: int,
        wake: Callable[[], None],
        retry_s: float = 0.5,
        connect: Connect = connect,
        recovery: JournalLossRules = NO_RECOVERY,
    ) -> None:
        """Create the journal. Call `open` to start it.

        The journal's thread calls `wake` when `committed` has results, or when a problem starts or ends. `max_bytes` limits the
        size of all stored entries. `connect` opens the SQLite connection. `recovery` says if a loss of data is accepted. A lock
        on `path` + ".lock" excludes other processes.
        """
        super().__init__("rl4sys-journal")
        self.journal_id = 0
        self.loss: JournalLoss | None = None
        self._path = Path(path)
        self._opening = JournalOpenOptions(self._path, fsync, connect, recovery)
        self._retry_s, self._wake = retry_s, wake
        self._opened = threading.Event()
        self._restored: JournalContent | None = None
        self._refusal: JournalError | None = None
        # Used by the journal's thread only.
        self._backlog = JournalQueue()
        self._lock: JournalLock
        self._file: JournalFile
        self._repaired = 0
        self._unreported: list[JournalEntry | JournalPage] = []
        self._look_at = 0.0
        # Shared between threads, protected by `_condition`.
        self._condition = threading.Condition()
        self._incoming: deque[Operation] = deque()
        self._fresh: list[JournalEntry | JournalPage] = []
        self._stopping = self._hurry = False
        self._queued: Counter[str] = Counter()
        self._health = JournalHealth(durable=True, max_bytes=max_bytes)  # without `queued_items`

    def open(self) -> JournalContent:
        """Start the thread and open the file. Return the journal's id, clients and streams, but no entries.

        Raises:
            JournalLost: If data is missing, and `recovery` does not accept the loss.
            JournalError: If another process uses the file, or the file cannot be written, or is not a journal of this version.
        """
        self.start()
        self._opened.wait()
        if self._restored is None:
            self.join()
            self.raise_if_dead()
            raise self._refusal or JournalError(str(self._path), "the journal was stopped before it was open", "create a new one")
        return self._restored

    def stop(self) -> None:
        """Make the thread end after one attempt to commit the queued operations. Later operations are not done."""
        with self._condition:
            self._stopping = True
            self._condition.notify()

    def append(self, batch: Sequence[JournalEntry]) -> None:
        nbytes = sum(entry.nbytes for entry in batch)
        with self._condition:
            self._incoming.extend(batch)
            self._queued.update(entry.client_id for entry in batch)
            self._health.queued_bytes += nbytes
            if not self._health.error:
                self._condition.notify()

    def committed(self) -> list[JournalEntry | JournalPage]:
        with self._condition:
            fresh, self._fresh = self._fresh, []
        return fresh

    def state(self) -> JournalHealth:
        """Return the journal's condition. Any thread can call this."""
        with self._condition:
            return replace(self._health, queued_items=self._queued.total())

    def queued(self, client_id: str) -> int:
        with self._condition:
            return self._queued[client_id]

    def _enqueue(self, operation: Operation) -> None:
        hurry = not isinstance(operation, ClientRow | StreamRow | CountSegmentsLostByJournal)
        with self._condition:
            self._incoming.append(operation)
            self._queued[operation.client_id] += 1
            self._hurry |= hurry
            if hurry or not self._health.error:
                self._condition.notify()

    def run(self) -> None:
        """Open the file, do the queued operations until `stop`, and close the file: the code of the thread."""
        try:
            with JournalLock(self._path) as self._lock:
                self._file, inspection = open_journal_file(self._opening)
                with contextlib.closing(self._file):
                    self.loss, self._health.used_bytes = inspection.loss, inspection.used_bytes
                    self._health.lost = sum(self.loss.segments.values()) if self.loss is not None else 0
                    self._health.damaged = self._repaired = inspection.repaired
                    self._restored = self._file.tables.cache.rows.restored()
                    self.journal_id = self._restored.journal_id
                    self._opened.set()
                    self._serve()
        except JournalError as error:
            self._refusal = error
        finally:
            self._opened.set()

    def on_death(self, error: BaseException) -> None:
        """Make `state` report the error that ended the thread."""
        with self._condition:
            self._health.error = f"the journal's thread ended with an error: {error!r}"
        self._wake()

    def _serve(self) -> None:
        while True:
            stopping = self._gather()
            done = self._work()
            if stopping and not (done and self._backlog):
                if not done:
                    log.error("%s: %d operations were not committed: %s", self._path, len(self._backlog), self._health.error)
                return

    def _gather(self) -> bool:
        """Wait for an operation or the time of a check, and move new operations into the queue. Return True after `stop`."""
        with self._condition:
            if self._health.error:
                self._condition.wait_for(lambda: self._stopping or self._hurry, self._retry_s)
            else:
                self._condition.wait_for(lambda: self._stopping or self._incoming or self._backlog, CHECK_S)
            self._hurry = False
            self._backlog.extend(self._incoming)
            self._incoming.clear()
            return self._stopping

    def _work(self) -> bool:
        """Commit one transaction. If the journal is full, first do writes that need no room. Return True on success."""
        group: list[Operation] = []
        health = self._health
        try:
            self._restore_files()
            self._report()
            group = self._backlog.next_group(health.used_bytes, health.max_bytes)
            if health.error or not group:
                while relief := self._backlog.relief():
                    self._do(relief)
                group = self._backlog.next_group(health.used_bytes, health.max_bytes)
            if group:
                self._do(group)
        except (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.IntegrityError):
            raise  # a bug in this code, which a retry cannot fix
        except (sqlite3.Error, OSError) as error:
            return self._set_problem(f"{self._path} cannot be written: {error}")
        except JournalError as error:
            return self._set_problem(str(error))
        if not group and self._backlog:
            return self._set_problem(
                f"{self._path} is full: {health.used_bytes} of {health.max_bytes} bytes; save a checkpoint, or raise the limit"
            )
        return self._set_problem("")

    def _restore_files(self) -> None:
        """Write the journal's file and ``journal.marks`` again if they were deleted, moved or replaced."""
        now = time.monotonic()
        if not self._health.error and now < self._look_at:
            return  # `_report` checks the files again before it reports a commit
        self._look_at = now + CHECK_S
        missing = self._file.missing()
        if not missing:
            if not self._file.marks.present:
                log.warning("the marks file of %s was deleted or replaced; it is written again", self._path)
                self._file.marks.renew()
            return
        self._set_problem(f"{missing} was deleted, moved or replaced; no segments are acknowledged until it is written again")
        reopen(self._file, self._opening, self._lock)
        with self._condition:
            self._health.rescued += 1
        log.error("%s was written again from the open journal; no data is lost", self._path)

    def _report(self) -> None:
        """Write the last commits to ``journal.marks``, check the journal's files, and let `committed` return the results."""
        self._file.mark_commits()
        if not self._unreported:
            return
        if missing := self._file.missing(thorough=False):
            raise FileNotFoundError(f"{missing} was deleted, moved or replaced")
        fresh, self._unreported = self._unreported, []
        with self._condition:
            self._fresh += fresh
            self._queued -= Counter(item.client_id for item in fresh)
            self._health.queued_bytes -= sum(item.nbytes for item in fresh if isinstance(item, JournalEntry))
        self._wake()

    def _set_problem(self, problem: str) -> bool:
        with self._condition:
            changed = bool(problem) != bool(self._health.error)
            self._health.error = problem
            self._health.failures += bool(problem)
        if changed:
            log.log(logging.ERROR if problem else logging.INFO, "%s", problem or f"{self._path} works again")
            self._wake()
        return not problem

    def _do(self, group: Sequence[Operation]) -> None:
        """Do a group of operations, one transaction or one read, take them off the queue, and report the results."""
        fresh: list[JournalEntry | JournalPage]
        rest: list[DeleteCoveredEntries] = []
        if isinstance(group[0], PageRequest):
            fresh, grown, seconds = [self._file.tables.page(group[0])], 0, None
        else:
            began = time.monotonic()
            grown, rest = self._file.write([operation for operation in group if not isinstance(operation, PageRequest)])
            seconds = time.monotonic() - began
            fresh = [operation for operation in group if isinstance(operation, JournalEntry)]
        self._backlog.done(group)
        self._backlog.extend(rest)
        self._unreported += fresh
        with self._condition:
            self._health.used_bytes += grown
            self._queued.update(trim.client_id for trim in rest)
            # entries and reads count as done when they are reported
            self._queued -= Counter(o.client_id for o in group if not isinstance(o, JournalEntry | PageRequest))
            self._health.damaged = len(self._file.tables.damaged) + self._repaired
            if seconds is not None:
                self._health.commits += 1
                self._health.commit_s = seconds
        self._report()
