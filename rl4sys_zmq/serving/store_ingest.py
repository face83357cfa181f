"""One data store of a trainer: what its clients send goes in once, whatever is sent again, and whoever is killed.

A *stream* is what one client sends out of one data store of its own, under the numbers that the items have there. Its *mark*,
the acknowledged id, is the last number that this side has. An update is taken in this order: the journal has it, the mark moves,
the store has it, the client is answered.

Each update in the journal says where the store stood when it came: with that, all updates before it are in the store, but for
the items that the store would not have. A store that refused some of the last update says so in a *note*, an update of no items.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import StreamRow
from rl4sys_zmq.errors import CallRefusal, Closed, StoreError
from rl4sys_zmq.rpc import Refuse
from rl4sys_zmq.serving.data import DataStoreBase
from rl4sys_zmq.serving.trainer_journal import StoreJournal, StorePosition, StoreUpdate, StreamKey

__all__ = ["InsertRequest", "StoreIngest", "InsertResult"]

log = logging.getLogger(__name__)

MAX_STREAMS = 100_000
"""How many streams one store knows. They are never forgotten: one that came back would be taken for a new one."""
TRIM_UPDATES = 32
"""The journal is told to forget so many updates at once."""
_WILL_PASS = (OSError, MemoryError, StoreError, Closed)
"""What a store raises that may take the same item later. Anything else is said of the item."""


@dataclass(frozen=True, slots=True)
class InsertRequest:
    """What a client sends.

    Attributes:
        stream: its name and its store's lineage.
        after: the mark on which it builds.
        known: the highest mark of this stream that it ever got from a trainer.
        first: the number of the first item.
        items: they have consecutive numbers.
    """

    stream: StreamKey
    after: int
    known: int
    first: int
    items: list[Any]


@dataclass(frozen=True, slots=True)
class InsertedItems:
    """Items that have come into the store.

    Attributes:
        client: who sent them.
        acked: the mark of their stream.
        items: they, without those that the store would not have.
    """

    client: str
    acked: int
    items: list[Any]


@dataclass(frozen=True, slots=True)
class InsertResult:
    """What became of an offer.

    Attributes:
        acked: the mark now. Below `InsertRequest.after` nothing was taken, and the client goes on from here.
        fresh: how many items had not come before.
        dropped: how many numbers before the first were never sent, as their store had dropped them.
        error: what the store said of an item that it would not have, or of all of them for now.
        arrival: what is in the store with it; None when nothing is, or the store takes nothing for now.
    """

    acked: int
    fresh: int = 0
    dropped: int = 0
    error: Exception | None = None
    arrival: InsertedItems | None = None


class StoreIngest:
    """A registered data store. `settle` and `take` are called by one thread at a time.

    Attributes:
        name: its name.
        store: it.
        counters: ``accepted`` (items), ``duplicates``, ``dropped_at_source``, ``forgotten`` (numbers that an earlier trainer had
            acknowledged and nobody has any more), ``refused.data`` (items that the store would not have), ``refilled``.
    """

    def __init__(self, name: str, store: DataStoreBase, journal: StoreJournal | None, journal_bytes: int) -> None:
        self.name, self.store = name, store
        self.counters = Counters()
        self._journal, self._journal_bytes = journal, journal_bytes
        self._marks: dict[StreamKey, int] = {}
        self._owed: deque[Any] = deque()
        self._came: list[Any] = []
        self._sender: StreamKey | None = None  # of what is owed, or has come
        self._apart = False  # what comes next does not follow what is in the store
        self._unsure = False  # the store stands elsewhere than the journal's last place and its items say
        self._kept: deque[tuple[StreamKey, int, int, int]] = deque()  # stream, end, items, bytes
        self._kept_items = self._kept_bytes = 0
        self._gone: dict[StreamKey, int] = {}
        self._gone_updates = 0

    def refill(self, streams: Iterable[StreamRow]) -> None:
        """Takes up what the journal has: the marks, and the items that the store does not have (any more).

        A store that is kept on disk has its items already, but for those that the journal got last.

        Raises:
            JournalError: when the journal cannot be read.
            StoreError: when the store takes nothing.
        """
        assert self._journal is not None
        empty, missing = self.store.latest_data_id() < 0, list[StoreUpdate]()
        self._apart = not empty  # nobody knows whether what it refused, or lost, was the last
        for update, nbytes in self._journal.updates(self.name):
            self._keep(update, nbytes)
            place = update.place
            if place.lineage == self.store.lineage and place.number <= self.store.latest_data_id() + 1:
                missing.clear()  # they are in, or were refused
            missing.append(update)
            if empty:  # so all of them are missing, and need not be held
                self._fill(missing)
        self._fill(missing)
        for row in streams:
            if row.client_id == self.name:
                mark = row.received - 1
                self._apart |= self.mark((row.actor_id, row.origin)) < mark
                self._marks[row.actor_id, row.origin] = mark
        self._note()

    def mark(self, stream: StreamKey) -> int:
        """The acknowledged id of a stream; -1 when nothing of it is here."""
        return self._marks.get(stream, -1)

    def settle(self) -> InsertedItems | None:
        """Inserts what was accepted when the store took nothing.

        Returns:
            What has come into the store, if there was something.

        Raises:
            Refuse: when the store still takes nothing.
        """
        if self._owed and (error := self._pay()) is not None and self._owed:
            raise Refuse(CallRefusal.BUSY, f"store {self.name} takes nothing for now: {type(error).__name__}: {error}")
        return self._arrival()

    def take(self, offer: InsertRequest) -> InsertResult:
        """Takes what is new in an offer; nothing is owed, as `settle` was called.

        Raises:
            Refuse: when nothing is taken, and the client may offer it again.
        """
        acked = self.mark(offer.stream)
        if offer.after > acked:
            return InsertResult(acked)
        duplicates = min(max(acked + 1 - offer.first, 0), len(offer.items))
        fresh, first = offer.items[duplicates:], offer.first + duplicates
        self.counters.add("duplicates", duplicates)
        if first + len(fresh) <= acked + 1:
            return InsertResult(acked)
        if acked < 0 and len(self._marks) >= MAX_STREAMS:
            raise Refuse(CallRefusal.BUSY, f"store {self.name} knows {MAX_STREAMS} streams and takes no more")
        if self._journal is not None:
            update = StoreUpdate(self.name, offer.stream, first, fresh, self._place())
            self._keep(update, self._journal.commit(update))
            self._unsure = False
        self._marks[offer.stream] = first + len(fresh) - 1
        forgotten = max(0, min(first - 1, offer.known) - acked)
        dropped = first - 1 - acked - forgotten
        self.counters.add("forgotten", forgotten)
        self.counters.add("dropped_at_source", dropped)
        self._apart |= first > acked + 1
        self._owed.extend(fresh)
        self._sender = offer.stream
        error = self._pay()
        self.counters.add("accepted", len(fresh))
        return InsertResult(self._marks[offer.stream], len(fresh), dropped, error, self._arrival())

    def status(self) -> dict[str, Any]:
        """What it holds."""
        return {
            "items": len(self.store),
            "latest_data_id": self.store.latest_data_id(),
            "streams": len(self._marks),
            "journal_items": self._kept_items,
            "journal_bytes": self._kept_bytes,
            "owed": len(self._owed),
        }

    def _fill(self, updates: list[StoreUpdate]) -> None:
        """Inserts what the journal has and the store has not, and empties the list.

        Raises:
            StoreError: when the store takes nothing.
        """
        for update in updates:
            items, place = update.items, update.place
            if place.lineage == self.store.lineage:
                items = items[max(0, self.store.latest_data_id() + 1 - place.number) :]
            self.counters.add("refilled", len(items))
            self._apart |= update.first_id > self.mark(update.stream) + 1
            self._marks[update.stream] = update.first_id + len(update.items) - 1
            self._unsure |= bool(items)
            self._owed.extend(items)
            error = self._pay()
            if self._owed:
                problem = f"takes nothing of what the journal has: {type(error).__name__}: {error}"
                raise StoreError(self.name, problem) from error
            self._came.clear()
        updates.clear()

    def _pay(self) -> Exception | None:
        """Inserts what is owed; returns what the store said, if it would not have something."""
        before, items = self.store.latest_data_id(), list(self._owed)
        if not items:
            return None
        try:
            self._begin_anew()
            self.store.batch_insert(items)
        except Exception as exc:  # noqa: BLE001 (a user's store may raise anything; what it has taken is taken)
            first = exc
        else:
            self._owed.clear()
            self._came += items
            return None
        for _ in range(self.store.latest_data_id() - before):
            self._came.append(self._owed.popleft())
        while self._owed:
            try:
                self._begin_anew()
                self.store.insert(self._owed[0])
            except _WILL_PASS as exc:
                return exc
            except Exception as exc:  # noqa: BLE001
                log.warning("store %s does not have an item: %s: %s", self.name, type(exc).__name__, exc)
                self.counters.add("refused.data")
                self._apart = self._unsure = True
            else:
                self._came.append(self._owed[0])
            self._owed.popleft()
        return first

    def _begin_anew(self) -> None:
        if self._apart:
            self.store.gap()
            self._apart = False

    def _arrival(self) -> InsertedItems | None:
        """What has come into the store, once nothing of it is owed any more."""
        if self._owed:
            return None
        self._note()
        items, self._came = self._came, []
        if not items:
            return None
        assert self._sender is not None
        return InsertedItems(self._sender[0], self.mark(self._sender), items)

    # ---- what the journal has

    def _note(self) -> None:
        """Has the journal say where the store stands, where its updates do not."""
        if self._unsure and self._journal is not None and self._kept and not self._owed:
            stream, end, _, _ = self._kept[-1]
            self._journal.note(StoreUpdate(self.name, stream, end, [], self._place()))
            self._unsure = False

    def _place(self) -> StorePosition:
        return StorePosition(self.store.lineage, self.store.latest_data_id() + 1)

    def _keep(self, update: StoreUpdate, nbytes: int) -> None:
        """Notes an update of the journal, and has the oldest forgotten that a restart would not need."""
        assert self._journal is not None
        count = len(update.items)
        if not count:  # it is forgotten with the update before it, which has the same end, or after it
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
