"""Feeding the learner threads from the journal, and asking them for the checkpoints that let the journal forget."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from concurrent.futures import Future

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import STALL_S, Journal, JournalEntry, JournalPage
from rl4sys_zmq.learner.alarms import CREDIT_CORRECTED, STALLED
from rl4sys_zmq.learner.client import Client, ClientState
from rl4sys_zmq.learner.client_registry import ClientRegistry
from rl4sys_zmq.learner.recorder import EventSink
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Checkpointed, Forget, Save

__all__ = ["SegmentDispatcher"]

log = logging.getLogger(__name__)

LEDGER_FILLS, LEDGER_FULL = 0.5, 0.9
"""From how full a journal on, of 1, checkpoints are asked for, and partial batches trained."""

PAGE_BYTES = 16 << 20
"""How much of the journal is read at a time to feed a learner thread again."""

UNBOUNDED_BYTES = 1 << 40


class SegmentDispatcher:
    """Used in the thread of the core.

    Attributes:
        heard: looks at each page of the journal first; True when it was not meant for a learner thread.
    """

    def __init__(self, registry: ClientRegistry, journal: Journal, counters: Counters, sink: EventSink) -> None:
        self._registry, self._journal, self._counters, self._sink = registry, journal, counters, sink
        self.heard: Callable[[JournalPage], bool] = lambda page: False
        self._saves: dict[int, tuple[set[str], Future[dict[str, str]], dict[str, str]]] = {}
        self._save_tokens = itertools.count(1)
        self._rescued = 0

    def dispatch(self) -> None:
        """Hands what the journal has made safe, or gives back, to the learner threads."""
        for safe in self._journal.committed():
            if isinstance(safe, JournalPage) and self.heard(safe):
                continue
            client = self._registry.get(safe.client_id)
            if client is None:
                continue
            if isinstance(safe, JournalEntry):
                stream = client.table.get(safe.actor_id, safe.origin)
                if stream is not None:
                    stream.commit(safe.end_seq)
                    client.dirty.add(stream.actor_id)
                if client.replaying or client.worker is None:
                    continue
                client.hand_on(safe)
            elif safe.token == client.replaying:
                self._on_page(client, safe)
        for client in self._registry:
            while client.backlog and client.worker is not None and client.worker.send(client.backlog[0]):
                client.backlog.popleft()
            if client.page_after is not None and not client.backlog:
                after, client.page_after = client.page_after, None
                self._journal.read(client.client_id, client.replaying, after, PAGE_BYTES)

    def check(self, now: float) -> None:
        """Hold the counts of credit against what is there, and look for clients that stand still.

        Where the journal has nothing left to do for a client, nothing can be waiting for it: what is counted as waiting all the
        same is credit that would never come back. The count is corrected then, and the client has an alarm.
        """
        failing = bool(self._journal.state().error)
        busy = {c.client_id for c in self._registry if failing or self._journal.queued(c.client_id)}
        self.dispatch()  # what was written before the journal was asked
        for client in self._registry:
            if client.client_id in busy:
                client.stalled_s = 0.0
                continue
            wrong = client.pool.transit.settle() if not client.replaying else None
            if wrong is not None:
                text = (
                    f"{wrong} were counted as waiting for the journal, which has nothing left to write; the count was corrected"
                )
                client.alarms.note(CREDIT_CORRECTED, text)
                client.dirty.update(s.actor_id for s in client.table.live())
            reason = client.look_for_stall(now)
            if client.stalled_s > STALL_S:
                client.alarms.note(STALLED, f"nothing has moved for {client.stalled_s:.1f} s: {reason}")

    def _on_page(self, client: Client, page: JournalPage) -> None:
        if page.damaged:
            log.error("client %s: %d entries of the journal are damaged and are lost", client.client_id, page.damaged)
            self._counters.add("entries_damaged", page.damaged)
        for entry in page.entries:
            client.replay(entry)
        if page.more:
            client.page_after = page.last_row
            return
        lost = client.caught_up()
        client.dirty.update(s.actor_id for s in client.table.live())
        if lost:
            log.error("client %s: %d acknowledged segments are undone and gone (rolled back)", client.client_id, lost)
        if client.replayed or lost:
            self._sink.event("fed_again", client_id=client.client_id, segments=client.replayed, rolled_back=lost)

    def room_bytes(self) -> int:
        """How many bytes the journal can take; none while it fails, so that actors keep what they have."""
        state = self._journal.state()
        if state.error:
            return 0
        return max(0, state.max_bytes - state.used_bytes - state.queued_bytes) if state.max_bytes else UNBOUNDED_BYTES

    def relieve(self) -> None:
        """Asks for checkpoints while the journal fills up, for they let it forget; near its end after training partial batches.

        And once when its file was gone.
        """
        state = self._journal.state()
        if state.rescued > self._rescued:
            self._rescued = state.rescued
            self._after_rescue()
        if not state.max_bytes or state.used_bytes + state.queued_bytes < LEDGER_FILLS * state.max_bytes:
            return
        partial = state.used_bytes + state.queued_bytes > LEDGER_FULL * state.max_bytes
        for client in self._registry:
            if client.state is ClientState.RUNNING and not client.replaying and not client.backlog and client.accepted:
                client.backlog.append(encode(Save(0, partial)))

    def _after_rescue(self) -> None:
        """The journal's file was gone from under it. The checkpoints may be gone too, so new ones are written."""
        self._counters.add("journal_rescued")
        self._sink.event("journal_rescued", times=self._rescued)
        for client in self._registry:
            if client.state is ClientState.RUNNING and not client.replaying:
                client.backlog.append(encode(Save(0, partial=False)))

    def expire(self, client: Client, now: float) -> None:
        """Forgets the streams of a client that can't go on."""
        for stream in client.table.expire(now, client.trimmed):
            self._journal.drop_stream(client.client_id, stream.actor_id, stream.origin)
            if client.worker is not None:
                client.backlog.append(encode(Forget(stream.actor_id, stream.origin)))

    # ---- checkpoints

    def save(self, *, partial: bool) -> Future[dict[str, str]]:
        """Asks every client for a checkpoint; the result says which could not write one, and why."""
        token, running = next(self._save_tokens), [c for c in self._registry if c.state is ClientState.RUNNING]
        future: Future[dict[str, str]] = Future()
        self._saves[token] = {c.client_id for c in running}, future, {}
        for client in running:
            client.backlog.append(encode(Save(token, partial)))
        if not running:
            self._saves.pop(token)
            future.set_result({})
        return future

    def give_up(self, client: Client, error: str) -> None:
        """A client that has failed writes no checkpoint."""
        for token in list(self._saves):
            self._saved(client.client_id, token, error)

    def close(self, error: Exception) -> None:
        """Nobody will answer any more."""
        for _, future, _ in self._saves.values():
            future.set_exception(error)
        self._saves.clear()

    def checkpointed(self, client: Client, message: Checkpointed) -> None:
        """Notes a checkpoint, and lets the journal forget what the one before it covers."""
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
        self._saved(client.client_id, message.token, message.error)

    def _saved(self, client_id: str, token: int, error: str) -> None:
        waiting, future, errors = self._saves.get(token, (set(), None, {}))
        if client_id in waiting and future is not None:
            waiting.discard(client_id)
            if error:
                errors[client_id] = error
            if not waiting:
                del self._saves[token]
                future.set_result(errors)
