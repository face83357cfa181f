"""What a journal has still to do: in which order, and how much at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from rl4sys_zmq.delivery.journal import JournalEntry, StreamRow
from rl4sys_zmq.delivery.journal_rows import DropClient, DropEntries, DropStream, Read, RetireActor, Trim, Write, stored_bytes

__all__ = ["Backlog", "Operation"]

GROUP_ITEMS = 512
GROUP_BYTES = 8 << 20
"""How much one transaction takes at most: it bounds how long an ack waits, and the write-ahead log."""

Operation = Write | Read


class Backlog:
    """Operations in the order of their calls. Nothing leaves it before it is done."""

    def __init__(self) -> None:
        self._operations: deque[Operation] = deque()

    def __len__(self) -> int:
        return len(self._operations)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    def extend(self, operations: Iterable[Operation]) -> None:
        """Takes operations."""
        self._operations.extend(operations)

    def next_group(self, used_bytes: int, max_bytes: int) -> list[Operation]:
        """The head as far as one transaction takes it and there is room: writes, or one read. Empty when nothing fits."""
        group: list[Operation] = []
        size = 0
        for operation in islice(self._operations, GROUP_ITEMS):
            if isinstance(operation, Read):
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
        """What may overtake entries that can't be committed: a read, which writes nothing, else what frees room.

        A trim or a drop concerns entries that were committed before it was asked for. A drop stays behind when its own
        stream has something queued before it; a client's reads stay behind such a drop, and behind an actor's retirement.
        What gives up all entries of a client takes those along that are queued before it: together they need no room.
        """
        if given_up := self._given_up():
            return given_up
        changed: set[tuple[str, str, int]] = set()
        named: set[tuple[str, str]] = set()
        held: set[str] = set()
        frees: list[Operation] = []
        for operation in self._operations:
            if isinstance(operation, Read) and operation.client_id not in held:
                return [operation]
            if isinstance(operation, Trim):
                frees.append(operation)
            elif isinstance(operation, RetireActor):
                held.add(operation.client_id)  # a read behind it tells that it is done
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
        """The first operation that gives up a client's entries, behind what is queued for that client before it."""
        for place, drop in enumerate(self._operations):
            if isinstance(drop, DropClient | DropEntries):
                before = islice(self._operations, place)
                own = (o for o in before if o.client_id == drop.client_id and not isinstance(o, Read))
                return [*own, drop]
        return []

    def done(self, group: Sequence[Operation]) -> None:
        """Takes a group away, which keeps the order that it had here."""
        operations = self._operations
        if operations[0] is group[0] and operations[len(group) - 1] is group[-1]:
            for _ in group:
                operations.popleft()
            return
        gone = {id(operation) for operation in group}
        self._operations = deque(operation for operation in operations if id(operation) not in gone)
