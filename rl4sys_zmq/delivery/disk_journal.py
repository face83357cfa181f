"""The journal on disk: its thread, its transactions, and what happens when the disk is full or fails."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from rl4sys_zmq.delivery.journal import ClientRow, JournalEntry, JournalPage, JournalState, Restored, StreamRow
from rl4sys_zmq.delivery.journal_backlog import Backlog, Operation
from rl4sys_zmq.delivery.journal_cache import Changes
from rl4sys_zmq.delivery.journal_file import (
    NO_RECOVERY,
    Connect,
    Fsync,
    JournalFile,
    Opening,
    Recovery,
    connect,
    open_journal_file,
    reopen,
)
from rl4sys_zmq.delivery.journal_loss import Loss
from rl4sys_zmq.delivery.journal_rows import DropClient, DropEntries, DropStream, Gap, Read, RetireActor, Trim, Write
from rl4sys_zmq.errors import JournalError
from rl4sys_zmq.resource import Worker

__all__ = ["DiskJournal"]

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often a journal with nothing to do looks whether its file is still in its place, in seconds."""


class DiskJournal(Worker):
    """A journal in one SQLite file, written by one thread over one connection.

    The owner calls `open`, then hands the `Journal` calls to one thread, then `stop` and `join`. Calls queue in order; the
    thread takes what has gathered and commits it in one transaction, so that many small entries cost one commit.

    When the entries have reached `max_bytes`, or the disk fails, nothing is lost: operations stay queued in order,
    `state().error` says why, and they are tried again each `retry_s` seconds. Trims, drops and reads do not wait behind
    entries for which there is no room. The queue itself has no bound; its owner watches `state().queued_bytes` and stops credit.

    Beside it lies ``journal.marks``, which says what every commit has led to, before anybody is told of the commit. `open`
    compares the two, and refuses a journal that lacks something (`JournalLost`) unless it is to accept that. A file that is
    deleted, moved or replaced under the open journal is noticed at the next commit, or within a second, before anything more
    is told. It is then made anew from what the connection still holds, which is everything.

    `max_bytes` counts the stored messages, not SQLite's own 200 to 300 bytes for each entry. The pages that a trim frees are
    used again; the file never shrinks, and beside it lies a write-ahead log of some MB. One entry that is larger than
    `max_bytes` is taken when nothing else is stored, so that it can't stop the journal for good. SQLite refuses an entry of
    1 GB or more.
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
        recovery: Recovery = NO_RECOVERY,
    ) -> None:
        """Args:
        path: the file, in a folder that exists; `path` + ".lock" keeps other processes out.
        fsync: "normal" survives the process, "always" also the machine's loss of power.
        max_bytes: what the entries may take.
        wake: called in the journal's thread when `committed` or `state` has news.
        retry_s: how long to wait after a failure, in seconds.
        connect: makes the connection.
        recovery: what to do when something of it is gone.
        """
        super().__init__("rl4sys-journal")
        self.journal_id = 0
        self.loss: Loss | None = None
        self._path = Path(path)
        self._opening = Opening(self._path, fsync, connect, recovery)
        self._max_bytes, self._retry_s, self._wake = max_bytes, retry_s, wake
        self._opened = threading.Event()
        self._restored: Restored | None = None
        self._refusal: JournalError | None = None
        # The thread's own.
        self._backlog = Backlog()
        self._file: JournalFile
        self._unmarked: list[Changes] = []
        self._unsaid: list[JournalEntry | JournalPage] = []
        self._look_at = 0.0
        # Shared, under the lock.
        self._news = threading.Condition()
        self._incoming: deque[Operation] = deque()
        self._fresh: list[JournalEntry | JournalPage] = []
        self._stopping = self._hurry = False
        self._problem = ""
        self._queued: Counter[str] = Counter()
        self._queued_bytes = self._used_bytes = 0
        self._commits = self._failures = self._damaged = self._rescued = 0
        self._commit_s = 0.0

    # What the owner calls.

    def open(self) -> Restored:
        """Starts the thread; returns what the file knows once it has been opened.

        Entries are not read here: damage among them shows when they are.

        Raises:
            JournalLost: when the journal, or a part of it, is gone, and that was not to be accepted.
            JournalError: when the file is held by another process, can't be written, or is no journal of this version.
        """
        self.start()
        self._opened.wait()
        if self._restored is None:
            self.join()
            self.raise_if_dead()
            raise self._refusal or JournalError(str(self._path), "the journal was stopped before it was open", "open another one")
        return self._restored

    def stop(self) -> None:
        """Commits what is queued, with one try if the journal is failing, and ends. What is called later is not done."""
        with self._news:
            self._stopping = True
            self._news.notify()

    def append(self, batch: Sequence[JournalEntry]) -> None:
        """Takes entries."""
        nbytes = sum(entry.nbytes for entry in batch)
        with self._news:
            self._incoming.extend(batch)
            self._queued.update(entry.client_id for entry in batch)
            self._queued_bytes += nbytes
            if not self._problem:
                self._news.notify()

    def committed(self) -> list[JournalEntry | JournalPage]:
        """What has become safe, or has been read, since the last call, in order."""
        with self._news:
            fresh, self._fresh = self._fresh, []
        return fresh

    def put_client(self, row: ClientRow) -> None:
        """A new client, with its totals, or the generation and settings of a known one."""
        self._enqueue(row)

    def put_stream(self, row: StreamRow) -> None:
        """A new stream, or what a HELLO changes in a known one; marks only grow."""
        self._enqueue(row)

    def drop_stream(self, client_id: str, actor_id: str, origin: int, *, expires: bool = True) -> None:
        """Forgets a stream and its entries."""
        self._enqueue(DropStream(client_id, actor_id, origin, expires), hurry=True)

    def drop_client(self, client_id: str) -> None:
        """Forgets a client with all that is its own."""
        self._enqueue(DropClient(client_id), hurry=True)

    def drop_entries(self, client_id: str) -> None:
        """Gives up all entries of a client."""
        self._enqueue(DropEntries(client_id), hurry=True)

    def retire_actor(self, client_id: str, actor_id: str) -> None:
        """Lets the streams of an actor speak for it no more."""
        self._enqueue(RetireActor(client_id, actor_id), hurry=True)

    def add_gap(self, client_id: str, count: int, stream: StreamRow | None = None) -> None:
        """Counts segments that are gone, and moves their stream's mark over them in the same transaction."""
        self._enqueue(Gap(client_id, count, stream))

    def trim(self, client_id: str, marks: Mapping[tuple[str, int], int]) -> None:
        """Gives up the entries below the marks."""
        self._enqueue(Trim(client_id, tuple(marks.items())), hurry=True)

    def read(self, client_id: str, token: int, after_row: int, max_bytes: int) -> None:
        """Asks for a `JournalPage`."""
        self._enqueue(Read(client_id, token, after_row, max_bytes), hurry=True)

    def state(self) -> JournalState:
        """How it fares."""
        with self._news:
            return JournalState(
                durable=True,
                used_bytes=self._used_bytes,
                max_bytes=self._max_bytes,
                queued_bytes=self._queued_bytes,
                queued_items=self._queued.total(),
                error=self._problem,
                commits=self._commits,
                failures=self._failures,
                commit_s=self._commit_s,
                damaged=self._damaged,
                lost=sum(self.loss.segments.values()) if self.loss is not None else 0,
                rescued=self._rescued,
            )

    def queued(self, client_id: str) -> int:
        """Return how many operations of a client are not done."""
        with self._news:
            return self._queued[client_id]

    def _enqueue(self, operation: Operation, *, hurry: bool = False) -> None:
        with self._news:
            self._incoming.append(operation)
            self._queued[operation.client_id] += 1
            self._hurry |= hurry
            if hurry or not self._problem:
                self._news.notify()

    # The thread.

    def run(self) -> None:
        """Opens the file, does what is queued until `stop`, closes it."""
        try:
            with open_journal_file(self._opening) as opened:
                self._file, self._used_bytes, self._damaged = opened, opened.used_bytes, opened.repaired
                self.loss = opened.loss
                self._restored = opened.tables.image.rows.restored()
                self.journal_id = self._restored.journal_id
                self._opened.set()
                self._serve()
        except JournalError as error:
            self._refusal = error
        finally:
            self._opened.set()

    def on_death(self, error: BaseException) -> None:
        """Says so in `state`."""
        with self._news:
            self._problem = f"the journal's thread died: {error!r}"
        self._wake()

    def _serve(self) -> None:
        while True:
            stopping = self._gather()
            done = self._work()
            if stopping and not (done and self._backlog):
                if not done:
                    log.error("%s: %d operations were never committed: %s", self._path, len(self._backlog), self._problem)
                return

    def _gather(self) -> bool:
        """Waits until there is something to do, to look at, or to try again; returns whether this is the end."""
        with self._news:
            if self._problem:
                self._news.wait_for(lambda: self._stopping or self._hurry, self._retry_s)
            else:
                self._news.wait_for(lambda: self._stopping or self._incoming or self._backlog, LOOK_S)
            self._hurry = False
            self._backlog.extend(self._incoming)
            self._incoming.clear()
            return self._stopping

    def _work(self) -> bool:
        """Commits one group, after what frees room if the last one failed; returns whether that went well."""
        group: list[Operation] = []
        try:
            self._stay()
            self._say()
            group = self._backlog.next_group(self._used_bytes, self._max_bytes)
            if self._problem or not group:
                while relief := self._backlog.relief():
                    self._do(relief)
                group = self._backlog.next_group(self._used_bytes, self._max_bytes)
            if group:
                self._do(group)
        except (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.IntegrityError):
            raise  # a fault of this code: trying again will not cure it
        except (sqlite3.Error, OSError) as error:
            return self._settle(f"{self._path} can't be written: {error}")
        except JournalError as error:
            return self._settle(str(error))
        if not group and self._backlog:
            return self._settle(
                f"{self._path} is full: {self._used_bytes} of {self._max_bytes} bytes; a checkpoint frees room, or a larger limit"
            )
        return self._settle("")

    def _stay(self) -> None:
        """Puts the file back in its place when it is not there any more: deleted, moved, or replaced.

        Raises:
            JournalError, OSError, sqlite3.Error: when that can't be done now.
        """
        now = time.monotonic()
        if not self._problem and now < self._look_at:
            return  # whatever is committed is told after another look
        self._look_at = now + LOOK_S
        missing = self._file.missing()
        if not missing:
            if not self._file.marks.present:
                log.warning("the marks of %s were deleted or replaced, and are written anew", self._path)
                self._file.marks.renew()
            return
        self._settle(f"{missing} was deleted, moved or replaced under the running learner; nothing is acknowledged meanwhile")
        reopen(self._file)
        with self._news:
            self._rescued += 1
        log.error("%s was made anew from what was open; nothing of it is lost", self._path)

    def _say(self) -> None:
        """Tells what has been committed, once the marks say it too and the file is known to be in its place.

        Raises:
            FileNotFoundError: when it is not.
            OSError: when the marks can't be written.
        """
        while self._unmarked:
            self._file.marks.note(self._unmarked[0])
            del self._unmarked[0]
        if not self._unsaid:
            return
        if missing := self._file.missing(thorough=False):
            raise FileNotFoundError(f"{missing} was deleted, moved or replaced")
        fresh, self._unsaid = self._unsaid, []
        with self._news:
            self._fresh += fresh
            self._note_done(item.client_id for item in fresh)
            self._queued_bytes -= sum(item.nbytes for item in fresh if isinstance(item, JournalEntry))
        self._wake()

    def _note_done(self, client_ids: Iterable[str]) -> None:
        """Count operations as done, under the lock."""
        self._queued.subtract(client_ids)
        for client_id in [client_id for client_id, count in self._queued.items() if not count]:
            del self._queued[client_id]

    def _settle(self, problem: str) -> bool:
        with self._news:
            changed = bool(problem) != bool(self._problem)
            self._problem = problem
            self._failures += bool(problem)
        if changed:
            log.log(logging.ERROR if problem else logging.INFO, "%s", problem or f"{self._path} is written again")
            self._wake()
        return not problem

    def _do(self, group: Sequence[Operation]) -> None:
        """One transaction, or one read; then `committed` has the results and the backlog has lost the group."""
        fresh: list[JournalEntry | JournalPage]
        rest: list[Trim] = []
        if isinstance(group[0], Read):
            fresh, grown, seconds = [self._file.tables.read(group[0])], 0, None
        else:
            began = time.monotonic()
            grown, rest = self._transact([operation for operation in group if not isinstance(operation, Read)])
            seconds = time.monotonic() - began
            fresh = [operation for operation in group if isinstance(operation, JournalEntry)]
        self._backlog.done(group)
        self._backlog.extend(rest)
        self._unsaid += fresh
        with self._news:
            self._used_bytes += grown
            self._queued.update(trim.client_id for trim in rest)
            self._note_done(
                o.client_id for o in group if not isinstance(o, JournalEntry | Read)
            )  # those are done when they are told
            self._damaged = len(self._file.tables.damaged) + self._file.repaired
            if seconds is not None:
                self._commits += 1
                self._commit_s = seconds
        self._say()

    def _transact(self, group: Sequence[Write]) -> tuple[int, list[Trim]]:
        db, tables = self._file.db, self._file.tables
        db.execute("BEGIN IMMEDIATE")
        try:
            result = tables.apply(group)
            self._file.marks.drop(tables.image.changes)
            db.execute("COMMIT")
        except BaseException:
            tables.image.revert()
            if db.in_transaction:
                with contextlib.suppress(sqlite3.Error):  # the first error is the one to tell
                    db.execute("ROLLBACK")
            raise
        self._unmarked.append(tables.image.commit())
        return result
