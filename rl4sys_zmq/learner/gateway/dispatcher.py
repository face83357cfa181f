"""The delivery of segments from the journal to learner threads, and requests for checkpoints."""

from __future__ import annotations

import itertools
from concurrent.futures import Future
from typing import TYPE_CHECKING

from rl4sys_zmq.delivery.credit import STALL_S, DataAmount
from rl4sys_zmq.delivery.intake import replay_entry
from rl4sys_zmq.delivery.journal import JournalEntry, JournalPage
from rl4sys_zmq.delivery.stream import SegmentStream
from rl4sys_zmq.errors import restart_command
from rl4sys_zmq.learner.alarms import CREDIT_CORRECTED, STALLED
from rl4sys_zmq.learner.gateway.client import ClientState, LearnerThreadState
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.wire.messages import Verdict
from rl4sys_zmq.wire.thread_messages import CheckpointResult, DeliverSegments, SaveCheckpoint, StreamEnded

if TYPE_CHECKING:
    from rl4sys_zmq.learner.gateway.core import LearnerCore

log = get_logger(__name__)

CHECKPOINT_FILL, PARTIAL_BATCH_FILL = 0.5, 0.9
"""Fill levels of the journal, as fractions of its size limit. From `CHECKPOINT_FILL` on, checkpoints are requested, because the
journal can then delete entries. Above `PARTIAL_BATCH_FILL`, learner threads train on their incomplete batches first."""

PAGE_BYTES = 16 << 20
UNBOUNDED_BYTES = 1 << 40
"""Free space reported for a journal without a limit, in bytes."""


class SegmentDispatcher:
    """The sender of segments to learner threads: new ones after the journal has committed them, and those of a replay.

    A replay delivers journal entries again to a learner thread that has loaded a checkpoint.

    The object also requests checkpoints. Only the thread of `LearnerCore` uses it.
    """

    def __init__(self, core: LearnerCore) -> None:
        self._core, self._registry, self._journal = core, core.registry, core.journal
        self._counters, self._sink = core.counters, core.sink
        self._save_tokens = itertools.count(1)
        self._rescued = 0

    def dispatch(self) -> None:
        """Send the learner threads all queued messages, and the segments that the journal has committed or read back."""
        for item in self._journal.committed():
            if isinstance(item, JournalPage) and self._core.operator.on_page(item):
                continue
            client = self._registry.get(item.client_id)
            if client is None:
                continue
            if isinstance(item, JournalEntry):
                stream = client.table.get(item.actor_id, item.origin)
                if stream is not None:
                    stream.commit(item.end_seq)
                    client.dirty.add(stream.actor_id)
                if not client.replay.token and client.worker.handle is not None:
                    self.send_committed(client, stream, item)
            elif item.token == client.replay.token:
                self._on_page(client, item)
        for client in self._registry:
            worker, replay = client.worker, client.replay
            while worker.backlog and worker.handle is not None and worker.handle.send(worker.backlog[0]):
                worker.backlog.popleft()
            if replay.page_after is not None and not worker.backlog:
                after, replay.page_after = replay.page_after, None
                self._journal.read(client.client_id, replay.token, after, PAGE_BYTES)

    def send_committed(self, client: ClientState, stream: SegmentStream | None, entry: JournalEntry) -> None:
        """Queue segments that an actor has sent for the learner thread, after the journal has committed them."""
        if stream is not None and not stream.counted(entry.end_seq):
            self.send_again(client, entry)  # accepted by an earlier thread; with a full disk, a replayed page can overtake it
        else:
            # An entry of refused segments alone was not counted: its stream can end before the journal commits it.
            waited = stream is not None and entry.accepted > 0
            self.send(client, entry, entry.skip, DataAmount(entry.steps, entry.accepted, entry.nbytes), waited=waited)

    def send_again(self, client: ClientState, entry: JournalEntry) -> None:
        """Queue an entry for a learner thread that has returned to a checkpoint, without the segments in the checkpoint."""
        stream = client.table.get(entry.actor_id, entry.origin)
        if stream is None or client.schema is None:
            return
        refused = stream.verdicts[Verdict.REFUSED]
        again = replay_entry(stream, client.schema, entry)
        client.books.verdicts[Verdict.REFUSED] += stream.verdicts[Verdict.REFUSED] - refused
        if again is not None:
            client.replay.segments += again.load.items
            self.send(client, entry, again.skip, again.load, waited=entry.accepted > 0 and stream.counted(entry.end_seq))

    def send(self, client: ClientState, entry: JournalEntry, skip: int, load: DataAmount, *, waited: bool) -> None:
        """Queue a journal entry for the learner thread, without its first `skip` segments, and count `load` as sent.

        `waited` is True if the data was counted as waiting before.
        """
        client.pool.transit.send(load, waited=waited)
        client.worker.backlog.append(
            DeliverSegments(entry.actor_id, entry.origin, skip, entry.refused, entry.frames, entry.batch)
        )

    def check(self, now: float) -> None:
        """Correct wrong counts of waiting segments, and find clients that can make no progress. Note an alarm for each."""
        failing = bool(self._journal.state().error)
        busy = {c.client_id for c in self._registry if failing or self._journal.queued(c.client_id)}
        self.dispatch()  # for entries that were committed before `queued` was read
        for client in self._registry:
            if client.client_id in busy:
                client.stalled_s = 0.0
                continue
            # With nothing left to write, no segment waits. One that stayed counted would reduce the credit for good.
            counted = client.worker.handle is not None and not client.replay.token  # the counts cover one learner thread
            wrong = client.pool.transit.correct_waiting() if counted else None
            if wrong is not None:
                text = f"{wrong} were counted as waiting, but the journal has nothing left to write; the count was corrected"
                client.alarms.note(CREDIT_CORRECTED, text)
                client.dirty.update(s.actor_id for s in client.table.live())
            reason = client.look_for_stall(now)
            if client.stalled_s > STALL_S:
                text = f"nothing has moved for {client.stalled_s:.1f} s: {reason}"
                client.alarms.note(STALLED, f"{text}; if it stays so: {restart_command(client.client_id)}")

    def _on_page(self, client: ClientState, page: JournalPage) -> None:
        if page.damaged:
            log.error("client %s: %d entries of the journal are damaged and are lost", client.client_id, page.damaged)
            self._counters.add("entries_damaged", page.damaged)
        for entry in page.entries:
            self.send_again(client, entry)
        if page.more:
            client.replay.page_after = page.last_row
            return
        lost = client.caught_up()
        client.dirty.update(s.actor_id for s in client.table.live())
        replay = client.replay
        if lost and replay.rollback_asked:
            log.warning("client %s: %d acknowledged segments are rolled back, as an operator asked", client.client_id, lost)
        elif lost:
            log.error("client %s: %d acknowledged segments are lost (counted as rolled back)", client.client_id, lost)
        replay.rollback_asked = False
        if replay.segments or lost:
            self._sink.event("fed_again", client_id=client.client_id, segments=replay.segments, rolled_back=lost)

    def room_bytes(self) -> int:
        """Return the free space of the journal, in bytes."""
        state = self._journal.state()
        if state.error:
            return 0  # actors keep their segments
        return max(0, state.max_bytes - state.used_bytes - state.queued_bytes) if state.max_bytes else UNBOUNDED_BYTES

    def relieve(self) -> None:
        """Request checkpoints of all clients if the journal becomes full, or if its file was deleted and written anew.

        In the second case, the earlier checkpoints may have been deleted too.
        """
        state = self._journal.state()
        rescued = state.rescued > self._rescued
        if rescued:
            self._rescued = state.rescued
            self._counters.add("journal_rescued")
            self._sink.event("journal_rescued", times=state.rescued)
        fill = (state.used_bytes + state.queued_bytes) / state.max_bytes if state.max_bytes else 0.0
        for client in self._registry if rescued or fill >= CHECKPOINT_FILL else ():
            if client.is_caught_up and (rescued or (client.books.accepted and not client.worker.backlog)):
                client.worker.send(SaveCheckpoint(0, fill > PARTIAL_BATCH_FILL))

    def expire(self, client: ClientState, now: float) -> None:
        """Delete the records of streams that can no longer continue and whose segments are no longer needed."""
        for stream in client.table.expire(now, client.checkpoints.trimmed):
            self._journal.drop_stream(client.client_id, stream.actor_id, stream.origin)
            if client.worker.handle is not None:
                client.worker.send(StreamEnded(stream.actor_id, stream.origin))

    def save(self, *, partial: bool) -> dict[str, Future[str]]:
        """Request a checkpoint of every running client, with `partial` after training on incomplete batches.

        The result of each client's future is the error; empty if the checkpoint was written.
        """
        token, futures = next(self._save_tokens), {}
        for client in self._registry:
            if client.state is LearnerThreadState.RUNNING:
                futures[client.client_id] = client.checkpoints.asked[token] = Future()
                client.worker.send(SaveCheckpoint(token, partial))
        return futures

    def checkpointed(self, client: ClientState, message: CheckpointResult) -> None:
        """Record the result of a checkpoint, and let the journal delete entries."""
        trim = client.checkpointed(message)
        if trim:
            self._journal.trim(client.client_id, trim)
        if message.error:
            self._counters.add("checkpoints_failed")
        self._sink.event(
            "checkpoint_failed" if message.error else "checkpoint",
            client_id=client.client_id,
            number=message.number,
            version=message.version,
            duration_s=round(message.duration_s, 4),
            error=message.error,
        )
        client.dirty.update(s.actor_id for s in client.table.live())
        asked = client.checkpoints.asked.pop(message.token, None)
        if asked is not None:
            asked.set_result(message.error)
