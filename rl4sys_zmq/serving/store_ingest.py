"""The insertion of received items into a trainer's data store, each item once, despite resends and killed processes.

A *stream* is the sequence of items that a trainer client sends from one of its data stores. Items keep the numbers of that
store. The *mark* of a stream is the number of the last item that the server has and acknowledges.

An *update* is a list of items with consecutive numbers. The server processes an update in this order:

1. The journal records the update.
2. The mark of the stream increases.
3. The store inserts the items.
4. The trainer client gets the reply.

An update in the journal also records the store's position (the number of its next item) before the update. After a restart,
this position shows that the store has all earlier updates, except for items that it rejected. If the store rejected items of
the last update, a *note*, which is an update without items, records the position after that update.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.dedup import count_received
from rl4sys_zmq.delivery.journal import StreamRow
from rl4sys_zmq.errors import CallRefusalReason, Closed, StoreFileError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.rpc import CallRefusedByCallback
from rl4sys_zmq.serving.data import DataStoreBase
from rl4sys_zmq.serving.trainer_journal import JournaledItems, NextItemPosition, StoreJournal, StreamKey
from rl4sys_zmq.values.trees import Tree

log = get_logger(__name__)

MAX_STREAMS = 100_000
"""Largest number of streams into one store. The server forgets none, because its resent items would then count as new."""
TRIM_UPDATES = 32
"""Number of old journal entries that are deleted at once."""
_TRANSIENT = (OSError, MemoryError, StoreFileError, Closed)
"""Exceptions of a store after which the same item is tried again later. After any other, the item is dropped."""


DataCallback = Callable[[str, dict[str, Any]], object]


class StoreInserter:
    """An object that records actors' items in the journal, inserts them into one data store, and calls the trainer's callback.

    One thread at a time can call `insert_waiting`, `insert` and `report`. `TrainerServer.status` describes the counters.
    """

    def __init__(
        self,
        name: str,
        store: DataStoreBase,
        journal: StoreJournal | None,
        journal_bytes: int,
        callback: DataCallback | None = None,
    ) -> None:
        self.name, self.store = name, store
        self._callback = callback
        self.counters = Counters()
        self._journal, self._journal_bytes = journal, journal_bytes
        self._marks: dict[StreamKey, int] = {}
        self._waiting: deque[Any] = deque()
        self._inserted: list[Any] = []
        self._sender: StreamKey | None = None  # the stream of `_waiting` and `_inserted`
        self._gap_pending = False  # the next item does not follow the last one in the store
        self._unsure = False  # the store's position is not what the journal's last update implies
        self._kept: deque[tuple[StreamKey, int, int, int]] = deque()  # stream, end, items, bytes
        self._kept_items = self._kept_bytes = 0
        self._gone: dict[StreamKey, int] = {}
        self._gone_updates = 0

    def refill(self, streams: Iterable[StreamRow]) -> None:
        """Restore the marks of all streams after a restart, and insert the journal's items that the store lacks.

        A store in memory lacks all items, a store on disk only the last ones. `streams` are the journal's records.
        """
        assert self._journal is not None
        empty, missing = self.store.latest_data_id() < 0, list[JournaledItems]()
        self._gap_pending = not empty  # the last items before the restart may have been rejected or lost
        for update, nbytes in self._journal.updates(self.name):
            self._keep(update, nbytes)
            place = update.place
            if place.lineage == self.store.lineage and place.number <= self.store.latest_data_id() + 1:
                missing.clear()  # they are in the store, or were rejected
            missing.append(update)
            if empty:  # all of them are missing, so fill at once
                self._fill(missing)
        self._fill(missing)
        for row in streams:
            if row.client_id == self.name:
                mark = row.received - 1
                self._gap_pending |= self.mark((row.actor_id, row.origin)) < mark
                self._marks[row.actor_id, row.origin] = mark
        self._note()

    def mark(self, stream: StreamKey) -> int:
        """Return the number of the last item that the server has from a stream, or -1."""
        return self._marks.get(stream, -1)

    def insert_waiting(self) -> None:
        """Insert accepted items that the store could not take earlier, for example because its disk was full.

        If some of them still wait afterwards, refuse the call with the code ``busy``.
        """
        if self._waiting and (error := self._insert_waiting()) is not None and self._waiting:
            problem = f"store {self.name} accepts nothing for now: {type(error).__name__}: {error}"
            raise CallRefusedByCallback(CallRefusalReason.BUSY, problem)
        self._tell()

    def insert(self, stream: StreamKey, items: list[Any], *, after: int, known: int, first: int) -> dict[str, Tree]:
        """Record the new ones of a stream's items in the journal, insert them into the store, and return the reply.

        `items` have the numbers from `first` on. The trainer client has read its store after the number `after`, and has seen
        acknowledgements up to the number `known`. If the mark is below `after`, nothing is accepted, and the client continues
        after ``acked``, the mark in the reply. Call `insert_waiting` first, and
        `report` with the reply afterwards.
        """
        acked = self.mark(stream)
        if after > acked:
            return _reply(acked)
        duplicates = count_received(acked + 1, first, len(items))
        fresh, first = items[duplicates:], first + duplicates
        self.counters.add("duplicates", duplicates)
        if first + len(fresh) <= acked + 1:
            return _reply(acked)
        if acked < 0 and len(self._marks) >= MAX_STREAMS:
            problem = f"store {self.name} has {MAX_STREAMS} streams, the most that it can have"
            raise CallRefusedByCallback(CallRefusalReason.BUSY, problem)
        if self._journal is not None:
            update = JournaledItems(self.name, stream, first, fresh, self._place())
            self._keep(update, self._journal.commit(update))
            self._unsure = False
        self._marks[stream] = first + len(fresh) - 1
        forgotten = max(0, min(first - 1, known) - acked)
        dropped = first - 1 - acked - forgotten
        self.counters.add("forgotten", forgotten)
        self.counters.add("dropped_at_source", dropped)
        self._gap_pending |= first > acked + 1
        self._waiting.extend(fresh)
        self._sender = stream
        error = self._insert_waiting()
        self.counters.add("accepted", len(fresh))
        return _reply(self._marks[stream], len(fresh), dropped, error)

    def report(self, reply: dict[str, Tree]) -> dict[str, Tree]:
        """Call the trainer's callback with the inserted items. Return the reply, with the callback's exception if any."""
        error = self._tell()
        return reply if error is None else {**reply, "error": _text_of(error)}

    def status(self) -> dict[str, Any]:
        """Return the sizes of the store and of its part of the journal. ``owed`` counts accepted items that still wait."""
        return {
            "items": len(self.store),
            "latest_data_id": self.store.latest_data_id(),
            "streams": len(self._marks),
            "journal_items": self._kept_items,
            "journal_bytes": self._kept_bytes,
            "owed": len(self._waiting),
        }

    def _fill(self, updates: list[JournaledItems]) -> None:
        for update in updates:
            items, place = update.items, update.place
            if place.lineage == self.store.lineage:
                items = items[max(0, self.store.latest_data_id() + 1 - place.number) :]
            self._gap_pending |= update.first_id > self.mark(update.stream) + 1
            self._marks[update.stream] = update.first_id + len(update.items) - 1
            self._unsure |= bool(items)
            self._waiting.extend(items)
            error = self._insert_waiting()
            if self._waiting:
                problem = f"rejects the items of the journal: {type(error).__name__}: {error}"
                raise StoreFileError(self.name, problem) from error
            self.counters.add("refilled", len(self._inserted))
            self._inserted.clear()
        updates.clear()

    def _insert_waiting(self) -> Exception | None:
        """Insert the accepted items, and drop those that the store rejects. Return the store's first exception, or None."""
        before, items = self.store.latest_data_id(), list(self._waiting)
        if not items:
            return None
        try:
            self._apply_gap()
            self.store.batch_insert(items)
        except Exception as exc:  # noqa: BLE001 (a user's store can raise anything, and keeps what it has inserted)
            first = exc
        else:
            self._waiting.clear()
            self._inserted += items
            return None
        for _ in range(self.store.latest_data_id() - before):
            self._inserted.append(self._waiting.popleft())
        while self._waiting:
            try:
                self._apply_gap()
                self.store.insert(self._waiting[0])
            except _TRANSIENT as exc:
                return exc
            except Exception as exc:  # noqa: BLE001
                log.warning("store %s rejected an item: %s: %s", self.name, type(exc).__name__, exc)
                self.counters.add("refused.data")
                self._gap_pending = self._unsure = True
            else:
                self._inserted.append(self._waiting[0])
            self._waiting.popleft()
        return first

    def _apply_gap(self) -> None:
        if self._gap_pending:
            self.store.gap()
            self._gap_pending = False

    def _tell(self) -> Exception | None:
        """Call the trainer's callback with the newly inserted items, if no item waits. Return its exception, or None."""
        if self._waiting:
            return None
        self._note()
        items, self._inserted = self._inserted, []
        if items and self._callback is not None:
            assert self._sender is not None
            try:
                self._callback(self.name, {"data": items, "last_id": self.mark(self._sender), "client": self._sender[0]})
            except Exception as exc:
                self.counters.add("callback_failed")
                log.exception("the callback for data of %s failed", self.name)
                return exc
        return None

    def _note(self) -> None:
        """Record the number of the store's next item in the journal, unless this number follows from the last entry."""
        if self._unsure and self._journal is not None and self._kept and not self._waiting:
            stream, end, _, _ = self._kept[-1]
            self._journal.note(JournaledItems(self.name, stream, end, [], self._place()))
            self._unsure = False

    def _place(self) -> NextItemPosition:
        return NextItemPosition(self.store.lineage, self.store.latest_data_id() + 1)

    def _keep(self, update: JournaledItems, nbytes: int) -> None:
        """Count a new entry of the journal, and delete old entries that are no longer needed.

        An old entry is deleted if the newer ones alone fill the store, or if the entries exceed the limit in bytes.
        """
        assert self._journal is not None
        count = len(update.items)
        if not count:  # a note is trimmed with the update before it, which has the same end, or after it
            return
        self._kept.append((update.stream, update.first_id + count, count, nbytes))
        self._kept_items += count
        self._kept_bytes += nbytes
        while len(self._kept) > 1 and (
            self._kept_items - self._kept[0][2] >= self.store.capacity or self._kept_bytes > self._journal_bytes
        ):
            stream, end, count, nbytes = self._kept.popleft()
            self._kept_items -= count
            self._kept_bytes -= nbytes
            self._gone[stream] = end
            self._gone_updates += 1
        if self._gone_updates >= TRIM_UPDATES:
            self._journal.trim(self.name, self._gone)
            self._gone, self._gone_updates = {}, 0


def _reply(acked: int, fresh: int = 0, dropped: int = 0, error: Exception | None = None) -> dict[str, Tree]:
    return {"acked": acked, "fresh": fresh, "dropped": dropped, "error": None if error is None else _text_of(error)}


def _text_of(error: Exception) -> list[Tree]:
    return [type(error).__name__, str(error)[:1000]]
