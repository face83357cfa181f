"""The queue of the operations on a journal, and their division into transactions."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from rl4sys_zmq.delivery.journal import JournalEntry, StreamRow
from rl4sys_zmq.delivery.journal_rows import (
    DeleteCoveredEntries,
    DropClient,
    DropClientEntries,
    DropStream,
    PageRequest,
    RetireActorStreams,
    Write,
    stored_bytes,
)

GROUP_ITEMS = 512
# Bytes in one transaction. This limits the delay of an ack and the size of the write-ahead log.
GROUP_BYTES = 8 << 20

Operation = Write | PageRequest


class JournalQueue:
    """The queued operations of a journal, in the order of their calls. An operation stays in the queue until it is done."""

    def __init__(self) -> None:
        self._operations: deque[Operation] = deque()

    def __len__(self) -> int:
        return len(self._operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def extend(self, operations: Iterable[Operation]) -> None:
        """Append operations to the end of the queue."""
        self._operations.extend(operations)

    def next_group(self, used_bytes: int, max_bytes: int) -> list[Operation]:
        """Return the next transaction: the writes at the front of the queue that fit, or one read; [] if the first does not
        fit.
        """
        group: list[Operation] = []
        size = 0
        for operation in islice(self._operations, GROUP_ITEMS):
            if isinstance(operation, PageRequest):
                return group or [operation]
            if isinstance(operation, JournalEntry):
                nbytes = stored_bytes(operation)
                taken = used_bytes + size
                if (group and size + nbytes > GROUP_BYTES) or (taken and taken + nbytes > max_bytes):
                    break
                size += nbytes
            group.append(operation)
        return group

    def relief(self) -> list[Operation]:
        """Return operations that can be done although entries before them do not fit: one read, or operations that free room.

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
        """Return the first operation that deletes all entries of a client, after the earlier writes of that client; or []."""
        for place, drop in enumerate(self._operations):
            if isinstance(drop, DropClient | DropClientEntries):
                before = islice(self._operations, place)
                own = (o for o in before if o.client_id == drop.client_id and not isinstance(o, PageRequest))
                return [*own, drop]
        return []

    def done(self, group: Sequence[Operation]) -> None:
        """Remove operations that are done. They must be in the order of the queue."""
        operations = self._operations
        if operations[0] is group[0] and operations[len(group) - 1] is group[-1]:
            for _ in group:
                operations.popleft()
            return
        gone = {id(operation) for operation in group}
        self._operations = deque(operation for operation in operations if id(operation) not in gone)
