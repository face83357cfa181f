"""The journal of a trainer's data stores on disk. It uses the learner's journal under other names.

One file, ``RUN_DIR/stores.db``, has the tables of `rl4sys_zmq.delivery.DiskJournal`. In this file a *client* is a data store
of the server, an *actor* is a trainer client, an *origin* is the lineage of that client's data store, and a *sequence number*
is the number of an item there. The mark of a stream is therefore the acknowledged id plus one, and the difference between its
mark and its number of items is what was dropped at the source. An entry is one update, encoded as a call message.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4sys_zmq.delivery import JournalEntry, JournalHealth, JournalPage, StreamRow
from rl4sys_zmq.delivery.disk_journal import DiskJournal
from rl4sys_zmq.delivery.journal_file import Fsync
from rl4sys_zmq.errors import CallRefusal, JournalError, ProtocolError, RunDirectoryError
from rl4sys_zmq.private import make_private
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import RefuseCall
from rl4sys_zmq.serving.trainer_items import pack_items, unpack_items
from rl4sys_zmq.wire.rpc import Call, decode_call, encode_call

__all__ = ["StorePosition", "StoreJournal", "StreamKey", "JournaledItems"]

log = logging.getLogger(__name__)

PAGE_BYTES = 16 << 20
NO_LIMIT = 1 << 62
"""The journal has no size limit of its own, because each store trims its entries; see `TrainerServer`."""

StreamKey = tuple[str, int]
"""The name of the trainer client, and the lineage of its data store."""


@dataclass(frozen=True, slots=True)
class StorePosition:
    """The position in a data store of the server at which the next item is inserted.

    Attributes:
        lineage: Lineage of the store: the random number that identifies the numbering of its items. A new store has another.
        number: Number that the next inserted item gets.
    """

    lineage: int
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class JournaledItems:
    """Items that one trainer client sent to one store.

    Attributes:
        store: Name of the store.
        stream: Stream of the items.
        first_id: Number of the first item in the trainer client's store.
        items: The items.
        place: Position at which they are inserted.
    """

    store: str
    stream: StreamKey
    first_id: int
    items: list[Any]
    place: StorePosition


class StoreJournal(Resource):
    """The journal that commits updates, and returns them after a restart. Any thread can use it."""

    def __init__(self, run_dir: Path, fsync: Fsync) -> None:
        """Open the file, or create it.

        Raises:
            RunDirectoryError: If the folder cannot be created.
            JournalError: If the file is in use, cannot be read or written, or belongs to another version.
        """
        try:
            make_private(run_dir)
        except OSError as exc:
            raise RunDirectoryError(f"the run directory {run_dir} cannot be created: {exc.strerror}") from exc
        self._news = threading.Condition()
        self._waiting: set[int] = set()
        self._pages: dict[int, JournalPage] = {}
        self._tokens = itertools.count(1)
        self._closing = False
        self._journal = DiskJournal(run_dir / "stores.db", fsync=fsync, max_bytes=NO_LIMIT, wake=self._take_news)
        self.streams: tuple[StreamRow, ...] = self._journal.open().streams

    def commit(self, update: JournaledItems) -> int:
        """Commit an update; return its size in bytes when it is durable.

        Raises:
            Refuse: If the disk fails before the update is queued, the journal's thread ended, or the server stops.
        """
        entry = _entry(update)
        with self._news:
            self._refuse_if_failing()
            self._waiting.add(id(entry))
            self._journal.append([entry])
            # If the disk starts to fail now, keep waiting: the journal tries again until the entry is committed.
            self._news.wait_for(lambda: id(entry) not in self._waiting or self._closing or self._journal.error is not None)
            if id(entry) in self._waiting:
                if self._journal.error is not None:
                    self._refuse_if_failing()
                raise RefuseCall(CallRefusal.CLOSING, "the trainer stopped before its journal had the data")
        return entry.nbytes

    def note(self, update: JournaledItems) -> None:
        """Queue an update after the earlier ones, without waiting for it."""
        with self._news:
            self._journal.append([_entry(update)])

    def updates(self, store: str) -> Iterator[tuple[JournaledItems, int]]:
        """Yield a store's updates, oldest first, with their sizes in bytes. Skip and log damaged entries.

        Raises:
            JournalError: If the file cannot be read.
        """
        after, more = 0, True
        while more:
            page = self._page(store, after)
            if page.damaged:
                log.error("store %s: %d entries of the journal are damaged, and their items are lost", store, page.damaged)
            for entry in page.entries:
                yield _decode(entry), entry.nbytes
            after, more = page.last_row, page.more

    def trim(self, store: str, marks: Mapping[StreamKey, int]) -> None:
        """Discard the items of a store below the marks: for each stream, the number of the first item to keep."""
        with self._news:
            self._journal.trim(store, marks)

    def state(self) -> JournalHealth:
        """Return the state of the journal."""
        return self._journal.state()

    def give_up(self) -> None:
        """End all waits for commits, because the server stops."""
        with self._news:
            self._closing = True
            self._news.notify_all()

    def close(self) -> None:
        """Commit what is queued, and close the file. A second call does nothing."""
        self.give_up()
        self._journal.stop()
        self._journal.join()

    def _page(self, store: str, after: int) -> JournalPage:
        with self._news:
            token = next(self._tokens)
            self._journal.read(store, token, after, PAGE_BYTES)
            self._news.wait_for(lambda: token in self._pages or self._closing or bool(self._journal.state().error))
            if token not in self._pages:
                raise JournalError(f"the journal of store {store}", self._journal.state().error or "was closed", "see the disk")
            return self._pages.pop(token)

    def _refuse_if_failing(self) -> None:
        error = self._journal.state().error
        if error:
            raise RefuseCall(CallRefusal.BUSY, f"the trainer's journal accepts nothing: {error}")

    def _take_news(self) -> None:
        """Collect commits and pages; called in the journal's thread."""
        with self._news:
            for safe in self._journal.committed():
                if isinstance(safe, JournalPage):
                    self._pages[safe.token] = safe
                else:
                    self._waiting.discard(id(safe))
            self._news.notify_all()


def _entry(update: JournaledItems) -> JournalEntry:
    (client, lineage), count = update.stream, len(update.items)
    return JournalEntry(
        client_id=update.store,
        actor_id=client,
        origin=lineage,
        first_seq=update.first_id,
        end_seq=update.first_id + count,
        steps=count,
        skip=0,
        refused=0,
        frames=tuple(_encode(update)),
    )


def _encode(update: JournaledItems) -> list[Any]:
    place = update.place
    payload = {**pack_items(update.items), "place": [place.lineage, place.number]}
    _, lineage = update.stream
    return encode_call(Call(update.first_id, lineage, 0, 0, True, update.store, payload))


def _decode(entry: JournalEntry) -> JournaledItems:
    """Decode an entry. Its checksum was verified, so an entry that cannot be decoded belongs to another version.

    Raises:
        JournalError: If it cannot be decoded.
    """
    try:
        payload = decode_call(entry.frames).payload
        place = StorePosition(*payload["place"])
        return JournaledItems(entry.client_id, (entry.actor_id, entry.origin), entry.first_seq, unpack_items(payload), place)
    except (ProtocolError, RefuseCall, KeyError, TypeError) as exc:
        raise JournalError(
            "stores.db", f"has an entry that is not an update ({exc})", "open it with the version that wrote it"
        ) from exc
