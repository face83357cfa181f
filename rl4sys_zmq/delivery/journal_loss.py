"""The detection of lost journal data, by comparing the journal with ``journal.marks`` and with checkpoints.

If the journal says that it never received segments that one of these records, it has lost data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rl4sys_zmq.delivery.journal import ClientRow
from rl4sys_zmq.delivery.journal_cache import ClientAndStreamRows, RowKey


@dataclass(frozen=True, slots=True)
class JournalStateInCheckpoint:
    """The information about the journal in a client's checkpoint."""

    client_id: str
    journal_id: int  # journal that the learner used when it wrote the checkpoint
    judged: int  # number of accepted segments that the checkpoint covers
    # sequence number below which the checkpoint covers all segments, by (actor_id, origin) of the stream
    marks: Mapping[tuple[str, int], int]


@dataclass(slots=True)
class JournalLoss:
    """The data that a journal lacks. It is false (as a bool) if no data is missing."""

    whole: bool = False  # True if there is no readable journal, although ``journal.marks`` has a record of one
    # number of accepted segments that the journal lacks, by client id
    segments: dict[str, int] = field(default_factory=dict)
    # number of missing segments that no checkpoint covers, and that are therefore lost, by client id. A client is absent if
    # number cannot be determined
    uncovered: dict[str, int] = field(default_factory=dict)
    streams: int = 0  # number of streams in which the journal lacks segments that were acknowledged to the actor
    # ids of other journals: ``journal.marks`` or a checkpoint was written for them, and this journal does not continue them
    unknown_lineages: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.whole or self.segments or self.streams or self.unknown_lineages)

    def words(self) -> str:
        """Return a description of the loss as one line, for error messages."""
        parts = [
            f"client {client_id!r}: {count} acknowledged segments, {self._gone(client_id)}"
            for client_id, count in sorted(self.segments.items())
        ]
        if self.streams:
            parts.append(f"{self.streams} streams are below the marks acknowledged to their actors")
        return "; ".join(parts) or "the amount is unknown"

    def figures(self) -> dict[str, Any]:
        """Return the numbers of missing segments and streams as JSON values, for the event log."""
        return {"segments": dict(self.segments), "uncovered": dict(self.uncovered), "streams": self.streams}

    def _gone(self, client_id: str) -> str:
        gone = self.uncovered.get(client_id)
        if gone is None:
            return "and those accepted after its newest checkpoint"
        return f"of which {gone} are in no checkpoint"


def find_loss(
    journal: ClientAndStreamRows | None, remembered: ClientAndStreamRows | None, witnesses: Sequence[JournalStateInCheckpoint]
) -> JournalLoss:
    """Compare a journal (None if unreadable) with ``journal.marks`` (None if missing) and the newest checkpoints.

    Clients and streams that were removed on purpose are in neither file, because they are removed from ``journal.marks``
    first.
    """
    loss = JournalLoss(whole=journal is None and remembered is not None and bool(remembered.clients or remembered.streams))
    known = journal or remembered or ClientAndStreamRows()
    ours = {known.journal_id, *known.lineages}
    have = journal or ClientAndStreamRows()
    if remembered is not None and remembered.journal_id:
        if remembered.journal_id == known.journal_id:
            _compare(have, remembered, loss)
        elif remembered.journal_id not in ours and (remembered.clients or remembered.streams):
            loss.unknown_lineages.add(remembered.journal_id)
            _compare(ClientAndStreamRows(), remembered, loss)
    for witness in witnesses:
        if witness.journal_id not in ours:
            loss.unknown_lineages.add(witness.journal_id)
            loss.segments.setdefault(witness.client_id, witness.judged)
        elif witness.journal_id == have.journal_id:
            _compare_checkpoint(have, witness, loss)
    _count_uncovered(loss, have, remembered, witnesses)
    return loss


def _compare(have: ClientAndStreamRows, remembered: ClientAndStreamRows, loss: JournalLoss) -> None:
    for client_id, row in remembered.clients.items():
        known = have.clients.get(client_id)
        missing = row.accepted - (known.accepted if known is not None else 0)
        if missing > 0 or known is None:
            loss.segments[client_id] = max(0, missing)
    for key, stream in remembered.streams.items():
        other = have.streams.get(key)
        loss.streams += other is None or other.received < stream.received


def _compare_checkpoint(have: ClientAndStreamRows, witness: JournalStateInCheckpoint, loss: JournalLoss) -> None:
    known = have.clients.get(witness.client_id)
    missing = witness.judged - (known.accepted if known is not None else 0)
    if missing > 0:
        loss.segments[witness.client_id] = max(missing, loss.segments.get(witness.client_id, 0))
    for (actor_id, origin), mark in witness.marks.items():
        stream = have.streams.get((witness.client_id, actor_id, origin))  # a dropped stream can still be in a checkpoint
        loss.streams += stream is not None and stream.received < mark


def _count_uncovered(
    loss: JournalLoss,
    have: ClientAndStreamRows,
    remembered: ClientAndStreamRows | None,
    witnesses: Sequence[JournalStateInCheckpoint],
) -> None:
    if remembered is None:
        return
    judged = {w.client_id: w.judged for w in witnesses if w.journal_id == remembered.journal_id}
    for client_id, missing in loss.segments.items():
        if client_id in remembered.clients:
            known = have.clients.get(client_id)
            beyond = judged.get(client_id, 0) - (known.accepted if known is not None else 0)
            loss.uncovered[client_id] = max(0, missing - max(0, beyond))


def merge(
    journal: ClientAndStreamRows, remembered: ClientAndStreamRows | None, witnesses: Sequence[JournalStateInCheckpoint]
) -> ClientAndStreamRows:
    """Return the clients and streams with which a journal continues after an accepted loss of data.

    They have the highest numbers in the journal, ``journal.marks`` and the checkpoints, so the segments that the journal lacks
    count as rolled back. A record of another journal is ignored, and the id of that journal is added to `lineages`.
    """
    rows = ClientAndStreamRows(journal.journal_id, set(journal.lineages), dict(journal.clients), dict(journal.streams))
    if remembered is not None and remembered.journal_id == rows.journal_id:
        rows.lineages |= remembered.lineages
        for client_id, row in remembered.clients.items():
            rows.clients[client_id] = _higher_client(rows.clients.get(client_id), row)
        for key, stream in remembered.streams.items():
            known = rows.streams.get(key)
            if known is None or known.received < stream.received:
                rows.streams[key] = stream
    elif remembered is not None and remembered.journal_id:
        rows.lineages.add(remembered.journal_id)
    for witness in witnesses:
        if witness.journal_id != rows.journal_id:
            rows.lineages.add(witness.journal_id)
        else:
            _raise_to(rows, witness)
    return rows


def _higher_client(known: ClientRow | None, row: ClientRow) -> ClientRow:
    if known is None:
        return row
    generation, expired = max(known.generation, row.generation), max(known.expired, row.expired)
    best = row if row.accepted > known.accepted else known
    settings = known.settings or row.settings
    return replace(best, generation=generation, expired=expired, settings=settings)


def _raise_to(rows: ClientAndStreamRows, witness: JournalStateInCheckpoint) -> None:
    client = rows.clients.get(witness.client_id)
    if client is not None and client.accepted < witness.judged:
        rows.clients[witness.client_id] = replace(client, accepted=witness.judged)
    for (actor_id, origin), mark in witness.marks.items():
        key: RowKey = (witness.client_id, actor_id, origin)
        stream = rows.streams.get(key)
        if stream is not None and stream.received < mark:
            rows.streams[key] = replace(stream, received=mark)
