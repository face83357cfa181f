"""What trainers' stores have accepted, on disk: the learner's journal, by another set of names.

One file, ``RUN_DIR/stores.db``, with the tables of `rl4sys_zmq.delivery.DiskJournal`. There a *client* is a data store of the
server, an *actor* a trainer client, an *origin* the lineage of that client's data store, and a *sequence number* the number of
an item there. So the mark of a stream is the acknowledged id plus one, and what is missing between the count of its items and
its mark was dropped at the source. An entry is one update, written as a message of calls.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4sys_zmq.delivery import JournalEntry, JournalPage, JournalState, StreamRow
from rl4sys_zmq.delivery.disk_journal import DiskJournal
from rl4sys_zmq.delivery.journal_file import Fsync
from rl4sys_zmq.errors import CallRefusal, JournalError, ProtocolError, RunDirectoryError
from rl4sys_zmq.private import make_private
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import Refuse
from rl4sys_zmq.serving.trainer_items import pack_items, unpack_items
from rl4sys_zmq.wire.rpc import Call, decode_call, encode_call

__all__ = ["StorePosition", "StoreJournal", "StreamKey", "StoreUpdate"]

log = logging.getLogger(__name__)

PAGE_BYTES = 16 << 20
NO_LIMIT = 1 << 62
"""Each store trims its own entries; see `TrainerServer`."""

StreamKey = tuple[str, int]
"""Whose items: the client's name, and the lineage of its data store."""


@dataclass(frozen=True, slots=True)
class StorePosition:
    """Where in the server's store an update goes.

    Attributes:
        lineage: the store's.
        number: what its first item gets there.
    """

    lineage: int
    number: int


@dataclass(frozen=True, slots=True, eq=False)
class StoreUpdate:
    """Items that one client has sent to one store.

    Attributes:
        store: the store's name.
        stream: whose items.
        first_id: the number of the first item in the client's store.
        items: they.
        place: where they go.
    """

    store: str
    stream: StreamKey
    first_id: int
    items: list[Any]
    place: StorePosition


class StoreJournal(Resource):
    """Commits updates, and gives them back after a restart. Any thread may use it."""

    def __init__(self, run_dir: Path, fsync: Fsync) -> None:
        """Opens the file, or makes it.

        Raises:
            RunDirectoryError: when there can be no such folder.
            JournalError: when the file is in use, can't be written or read, or is another version's.
        """
        try:
            make_private(run_dir)
        except OSError as exc:
            raise RunDirectoryError(f"the run directory {run_dir} cannot be made: {exc.strerror}") from exc
        self._news = threading.Condition()
        self._waiting: set[int] = set()
        self._pages: dict[int, JournalPage] = {}
        self._tokens = itertools.count(1)
        self._closing = False
        self._journal = DiskJournal(run_dir / "stores.db", fsync=fsync, max_bytes=NO_LIMIT, wake=self._take_news)
        self.streams: tuple[StreamRow, ...] = self._journal.open().streams

    def commit(self, update: StoreUpdate) -> int:
        """Writes an update down; returns when it is safe, and how many bytes it takes.

        Raises:
            Refuse: when the disk refuses, or the server stops.
        """
        entry = _entry(update)
        with self._news:
            self._refuse_if_failing()
            self._waiting.add(id(entry))
            self._journal.append([entry])
            # A disk that begins to refuse is waited for: what was handed to the journal will be committed some time.
            self._news.wait_for(lambda: id(entry) not in self._waiting or self._closing or self._journal.error is not None)
            if id(entry) in self._waiting:
                if self._journal.error is not None:
                    self._refuse_if_failing()
                raise Refuse(CallRefusal.CLOSING, "the trainer stops before its journal has the data")
        return entry.nbytes

    def note(self, update: StoreUpdate) -> None:
        """Has an update written down after those before it; nobody waits for it."""
        with self._news:
            self._journal.append([_entry(update)])

    def updates(self, store: str) -> Iterator[tuple[StoreUpdate, int]]:
        """What it has of a store, in the order of the commits, each with its bytes. Damaged entries are left out and logged.

        Raises:
            JournalError: when the file cannot be read.
        """
        after, more = 0, True
        while more:
            page = self._page(store, after)
            if page.damaged:
                log.error("store %s: %d entries of the journal are damaged and are lost", store, page.damaged)
            for entry in page.entries:
                yield _decode(entry), entry.nbytes
            after, more = page.last_row, page.more

    def trim(self, store: str, marks: Mapping[StreamKey, int]) -> None:
        """Gives up the items of a store below the marks: for each stream, the number from which on they are kept."""
        with self._news:
            self._journal.trim(store, marks)

    def state(self) -> JournalState:
        """How it fares."""
        return self._journal.state()

    def give_up(self) -> None:
        """Nobody waits for a commit from now on: the server stops."""
        with self._news:
            self._closing = True
            self._news.notify_all()

    def close(self) -> None:
        """Commits what is queued, and closes the file. A second call does nothing."""
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
            raise Refuse(CallRefusal.BUSY, f"the trainer's journal takes nothing: {error}")

    def _take_news(self) -> None:
        """Called in the journal's thread."""
        with self._news:
            for safe in self._journal.committed():
                if isinstance(safe, JournalPage):
                    self._pages[safe.token] = safe
                else:
                    self._waiting.discard(id(safe))
            self._news.notify_all()


def _entry(update: StoreUpdate) -> JournalEntry:
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


def _encode(update: StoreUpdate) -> list[Any]:
    place = update.place
    payload = {**pack_items(update.items), "place": [place.lineage, place.number]}
    _, lineage = update.stream
    return encode_call(Call(update.first_id, lineage, 0, 0, True, update.store, payload))


def _decode(entry: JournalEntry) -> StoreUpdate:
    """An entry's bytes have been verified: what they do not decode to is another version's.

    Raises:
        JournalError: then.
    """
    try:
        payload = decode_call(entry.frames).payload
        place = StorePosition(*payload["place"])
        return StoreUpdate(entry.client_id, (entry.actor_id, entry.origin), entry.first_seq, unpack_items(payload), place)
    except (ProtocolError, Refuse, KeyError, TypeError) as exc:
        raise JournalError(
            "stores.db", f"has an entry that is no update ({exc})", "open it with the version that wrote it"
        ) from exc
