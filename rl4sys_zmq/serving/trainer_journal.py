"""The journal of a trainer server: the items that trainer clients sent, in ``RUN_DIR/stores.db``.

`rl4sys_zmq.delivery.DiskJournal` writes it. Its ``client_id`` is the name of a data store of the server, ``actor_id`` the name
of a trainer client, ``origin`` the lineage of that client's data store, and a sequence number the number of an item in that
store. An entry is one list of items, encoded as a call message.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4sys_zmq.delivery.disk_journal import DiskJournal
from rl4sys_zmq.delivery.journal import JournalEntry, JournalHealth, JournalPage, StreamRow
from rl4sys_zmq.delivery.journal_file import Fsync
from rl4sys_zmq.errors import CallRefusalReason, JournalError, ProtocolError, RunDirectoryError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.private import make_private
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import CallRefusedByCallback
from rl4sys_zmq.serving.trainer_transfer import pack_items, unpack_items
from rl4sys_zmq.wire.rpc import Call, decode_call, encode_call

log = get_logger(__name__)

PAGE_BYTES = 16 << 20
NO_LIMIT = 1 << 62
"""`TrainerServer` limits the entries of each data store instead."""

StreamKey = tuple[str, int]
"""The name of a trainer client, and the lineage of its data store."""


@dataclass(frozen=True, slots=True)
class NextItemPosition:
    """The position of a data store of the server: the number that its next item gets, with the lineage of the store."""

    lineage: int
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class JournaledItems:
    store: str
    stream: StreamKey
    first_id: int  # number of the first item in the trainer client's data store
    items: list[Any]  # empty for an entry that only records `place`
    place: NextItemPosition  # position in the server's data store at which the first item is inserted


class StoreJournal(Resource):
    """The journal of a trainer server on disk. Any thread can use it."""

    def __init__(self, run_dir: Path, fsync: Fsync) -> None:
        try:
            make_private(run_dir)
        except OSError as exc:
            raise RunDirectoryError(f"the run directory {run_dir} cannot be created: {exc.strerror}") from exc
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._pages: dict[int, JournalPage] = {}
        self._tokens = itertools.count(1)
        self._closing = False
        self._journal = DiskJournal(run_dir / "stores.db", fsync=fsync, max_bytes=NO_LIMIT, wake=self._on_journal)
        # the trainer clients' data stores in the file, each with the number of the next item
        self.streams: tuple[StreamRow, ...] = self._journal.open().streams

    def commit(self, update: JournaledItems) -> int:
        """Write items, wait until they survive the end of the process, and return their size in bytes."""
        entry = _entry(update)
        with self._changed:
            self._refuse_if_failing()
            self._waiting.add(id(entry))
            self._journal.append([entry])
            # If the disk starts to fail now, keep waiting: the journal tries again until the entry is committed.
            self._changed.wait_for(lambda: id(entry) not in self._waiting or self._closing or self._journal.error is not None)
            if id(entry) in self._waiting:
                if self._journal.error is not None:
                    self._refuse_if_failing()
                raise CallRefusedByCallback(CallRefusalReason.CLOSING, "the trainer stopped before its journal had the data")
        return entry.nbytes

    def note(self, update: JournaledItems) -> None:
        """Queue an entry that only records the number of the store's next item, without waiting for the disk."""
        with self._changed:
            self._journal.append([_entry(update)])

    def updates(self, store: str) -> Iterator[tuple[JournaledItems, int]]:
        """Yield each entry of a data store with its size in bytes, oldest first. Damaged entries are logged and left out."""
        after, more = 0, True
        while more:
            page = self._page(store, after)
            if page.damaged:
                log.error("store %s: %d entries of the journal are damaged, and their items are lost", store, page.damaged)
            for entry in page.entries:
                yield _decode(entry), entry.nbytes
            after, more = page.last_row, page.more

    def trim(self, store: str, marks: Mapping[StreamKey, int]) -> None:
        """Delete old items of a data store. For each stream, `marks` has the number of the first item to keep."""
        with self._changed:
            self._journal.trim(store, marks)

    def state(self) -> JournalHealth:
        return self._journal.state()

    def give_up(self) -> None:
        """End all waits in `commit` with an error, because the server stops."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self) -> None:
        """Write the queued entries, and close the file. A second call does nothing."""
        self.give_up()
        self._journal.stop()
        self._journal.join()

    def _page(self, store: str, after: int) -> JournalPage:
        with self._changed:
            token = next(self._tokens)
            self._journal.read(store, token, after, PAGE_BYTES)
            self._changed.wait_for(lambda: token in self._pages or self._closing or bool(self._journal.state().error))
            if token not in self._pages:
                raise JournalError(f"the journal of store {store}", self._journal.state().error or "was closed", "see the disk")
            return self._pages.pop(token)

    def _refuse_if_failing(self) -> None:
        error = self._journal.state().error
        if error:
            raise CallRefusedByCallback(CallRefusalReason.BUSY, f"the trainer's journal accepts nothing: {error}")

    def _on_journal(self) -> None:
        """Wake the threads that wait for written entries or read pages. Called in the journal's thread."""
        with self._changed:
            for safe in self._journal.committed():
                if isinstance(safe, JournalPage):
                    self._pages[safe.token] = safe
                else:
                    self._waiting.discard(id(safe))
            self._changed.notify_all()


def _entry(update: JournaledItems) -> JournalEntry:
    (client, lineage), count, place = update.stream, len(update.items), update.place
    payload = {**pack_items(update.items), "place": [place.lineage, place.number]}
    return JournalEntry(
        client_id=update.store,
        actor_id=client,
        origin=lineage,
        first_seq=update.first_id,
        end_seq=update.first_id + count,
        steps=count,
        skip=0,
        refused=0,
        frames=tuple(encode_call(Call(update.first_id, lineage, 0, 0, True, update.store, payload))),
    )


def _decode(entry: JournalEntry) -> JournaledItems:
    """Decode an entry. The entry's checksum is verified already, so a failure means that another version wrote the entry."""
    try:
        payload = decode_call(entry.frames).payload
        place = NextItemPosition(*payload["place"])
        return JournaledItems(entry.client_id, (entry.actor_id, entry.origin), entry.first_seq, unpack_items(payload), place)
    except (ProtocolError, CallRefusedByCallback, KeyError, TypeError) as exc:
        raise JournalError(
            "stores.db", f"has an entry that is not an update ({exc})", "open it with the version that wrote it"
        ) from exc
