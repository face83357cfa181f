"""A learner for the simulator: what the gateway does, on a virtual clock, without a socket or a thread."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

from rl4sys_zmq.delivery import Entry, Key, Ledger, Load, Page, StallWatch, Stream, StreamRow, stall_reason
from rl4sys_zmq.delivery.credit import IDLE_S
from rl4sys_zmq.delivery.journal_rows import DropStream, Gap, Write
from rl4sys_zmq.errors import Refusal
from rl4sys_zmq.testing.history import History
from rl4sys_zmq.testing.schedule import Schedule
from rl4sys_zmq.testing.sim_client import SETTINGS, LearnerParts, SimClient
from rl4sys_zmq.testing.sim_disk import SimDisk, SimJournal, SlowLedger
from rl4sys_zmq.testing.sim_reception import Answers, SimReception
from rl4sys_zmq.testing.sim_rules import JUDGED, Books, Violation
from rl4sys_zmq.testing.sim_thread import SCHEMA
from rl4sys_zmq.wire import Batch, decode
from rl4sys_zmq.wire.messages import Demand, Refused, Submit, Verdict

__all__ = ["LearnerParts", "SimClient", "SimLearner"]

SILENCE_S = 3.0
MAX_STALL_S = 2.0
"""How long a client may stand still that could go on: a turn of the learner's and the network's delays lie in between."""


class SimLearner(SimReception):
    """One life of a learner with one client.

    `on_frames` and `turn` return what is to be sent, as (peer, message).

    Attributes:
        reach: called with the name of each of `schedule.CRASH_POINTS` that is passed; it may raise.
        full: whether the disk takes nothing at the moment.
    """

    def __init__(
        self,
        now: float,
        disk: SimDisk | None,
        generation: Callable[[], int],
        schedule: Schedule,
        parts: LearnerParts,
        history: History,
        rng: random.Random,
    ) -> None:
        """Args:
        now: the time.
        disk: what it finds, or None for a ledger in memory.
        generation: a new one.
        schedule: of the simulation.
        parts: what it is built from.
        history: the onlooker.
        rng: of everything random here.
        """
        self.reach: Callable[[str], None] = lambda point: None
        self.full = False
        self._watch = StallWatch()
        self._disk, self._parts, self._rng = disk, parts, rng
        self._new_generation = generation
        self._journal = parts.journal(disk, random.Random(rng.random()), self._written) if disk is not None else None
        ledger: Ledger = self._journal or parts.ledger()
        lease_s = schedule.lease_s
        table = parts.table("sim", silence_s=SILENCE_S, lease_s=lease_s, max_actors=16, ledger_id=ledger.ledger_id)
        client = parts.client(SETTINGS, b"sim     ", generation(), table, "disk" if disk is not None else "")
        super().__init__(now, client, table, ledger, schedule, history)
        self._save_at = now + rng.expovariate(1 / schedule.checkpoint_s)
        row = disk.clients.get("sim") if disk is not None else None
        if disk is not None and row is not None:
            client.accepted, client.gap, table.expired = row.accepted, row.gap, row.expired
            table.restore(disk.streams.values(), now)
            table.expired = row.expired
        self._begin_thread([])
        self._on_ready()

    def _begin_thread(self, judged: list[tuple[int, str]]) -> None:
        """A learner thread starts; it is ready a turn later."""
        rng = random.Random(self._rng.random())
        thread = self._parts.thread(self._history, rng, self._schedule, judged)
        self.client.begin(thread, self._parts.pool(), durable=self._disk is not None)
        self.ready = False

    def _on_ready(self) -> Answers:
        """Goes back with the learner thread to where it starts from, and lets the actors in."""
        client, thread = self.client, self.client.thread
        self.ready = True
        if self._disk is not None:
            client.rewind(thread.load(self._disk))
        else:
            judged = (segment for segment, _ in thread.judged)
            self._history.begin_thread(judged, rolls_back=client.life > 1)
        self._ledger.put_client(client.row())
        self._demand()
        return self.admit_waiting()

    def restart_thread(self) -> Answers:
        """The learner thread dies, perhaps with a last checkpoint, and another one takes its place."""
        client = self.client
        self._history.counts["thread_restarts"] += 1
        if self._disk is not None:
            if self.ready and self._rng.random() < 0.5:
                client.thread.work(flush=self._rng.random() < 0.5)
                client.thread.save(self._disk, self.reach)  # nobody hears of it
            judged = []
        else:
            for _ in range(2):  # in earnest the ledger in memory writes at once
                self._dispatch()
            judged = client.thread.judged_now
            client.roll_back()
        client.publications = type(client.publications)(self._new_generation())
        self._begin_thread(judged)
        out: Answers = []
        for stream in self._table.live():
            peer = self._table.peer_of(stream)
            if peer is not None:
                self.hang_up(peer, stream)
                out.append((peer, Refused(Refusal.NO_SESSION, "", "the client was restarted")))
        return out

    # ---- turns

    def turn(self, now: float, *, flush: bool = False) -> Answers:
        """Dispatches what is written, lets the learner thread work, writes checkpoints, grants credit and acknowledges."""
        self.now = now
        self.reach("before_commit")
        self._dispatch()
        self.reach("after_commit")
        out = [] if self.ready else self._on_ready()
        self._hear_thread(flush=flush)
        if self._disk is not None and (flush or now >= self._save_at) and not self.full:
            self._save_at = now + self._rng.expovariate(1 / self._schedule.checkpoint_s)
            self._save(self._disk)
        return out + self._acknowledge()

    def _dispatch(self) -> None:
        client = self.client
        if self._journal is not None:
            self._journal.full = self.full
        for safe in self._ledger.committed():
            if isinstance(safe, Entry):
                if self._disk is None:
                    self._history.write((safe.actor_id, safe.origin), safe.first_seq, safe.end_seq)
                stream = self._table.get(safe.actor_id, safe.origin)
                if stream is not None:
                    stream.commit(safe.end_seq)
                    client.dirty.add(stream.actor_id)
                if not client.replaying:
                    client.hand_on(safe)
            elif safe.token == client.replaying:
                self._on_page(safe)
        if client.page_after is not None and not client.thread.inbox:
            after, client.page_after = client.page_after, None
            self._ledger.read("sim", client.replaying, after, self._rng.choice([1, 2000, 1 << 20]))

    def _on_page(self, page: Page) -> None:
        for entry in page.entries:
            self.client.replay(entry)
        if page.more:
            self.client.page_after = page.last_row
            return
        self.client.caught_up()
        self.client.dirty.update(s.actor_id for s in self._table.live())
        self.check_books()

    def _written(self, operation: Write) -> None:
        match operation:
            case Entry():
                self._history.write((operation.actor_id, operation.origin), operation.first_seq, operation.end_seq)
            case Gap():
                self._history.write_gap()
            case DropStream():
                self._history.drop_stream((operation.actor_id, operation.origin))
            case StreamRow():
                self._history.write_stream((operation.actor_id, operation.origin), operation.received)

    def _hear_thread(self, *, flush: bool) -> None:
        for (actor_id, origin), seq, verdict in self.client.thread.work(flush=flush):
            stream = self._table.get(actor_id, origin)
            count = 1 if stream is None else stream.dispose([[seq, seq + 1]], verdict)
            self.client.verdicts[verdict] += count
            self.client.dirty.add(actor_id)
        self._demand()

    def _demand(self) -> None:
        thread, pool = self.client.thread, self.client.pool
        if thread.taken_messages != pool.transit.messages or thread.wants_steps > pool.usable_steps:
            self.client.demanded(Demand(thread.wants_steps, thread.taken_messages, 0))

    def _save(self, disk: SimDisk) -> None:
        if not self.client.thread.progress.moved:
            return
        self._history.counts["checkpoints"] += 1
        message = self.client.thread.save(disk, self.reach)
        self.reach("after_checkpoint")
        trim = self.client.checkpointed(message)
        if trim:
            self._ledger.trim("sim", trim)

    def _acknowledge(self) -> Answers:
        self._check_transit()
        self._check_stall()
        client = self.client
        if not client.dirty:
            return []
        live = self._table.live()
        client.dirty.update(s.actor_id for s in client.pool.grant(live, self.now))
        self._check_credit(live)
        shares = client.shares(0 if self._ledger.state().error else 1)
        out: Answers = []
        for stream in live:
            peer = self._table.peer_of(stream)
            if stream.actor_id in client.dirty and peer is not None:
                ack = client.ack(stream, shares)
                self._history.say(stream.key, ack.received, ack.durable)
                out.append((peer, ack))
        client.dirty.clear()
        return out

    def each_second(self, now: float) -> None:
        """Hangs up on the silent and ends leases."""
        self.now = now
        for stream in self._table.silent(now):
            peer = self._table.peer_of(stream)
            if peer is not None:
                self.hang_up(peer, stream)
        current = {s.key for s in self._table.current()}
        for stream in self._table.expire(now, self.client.trimmed):
            current_still, lease_s = stream.key in current, self._schedule.lease_s
            self._history.forget_stream(stream.key, self.silent_s(stream), lease_s, current=current_still)
            self._ledger.drop_stream("sim", stream.actor_id, stream.origin)
            if self._disk is None:
                self._history.drop_stream(stream.key)
            self.client.thread.progress.forget(stream.key)
        if self.ready and not self.client.replaying:
            self.check_books()

    # ---- checks

    @property
    def busy(self) -> bool:
        """There is something that a turn would do."""
        client = self.client
        return bool(
            not self.ready or client.replaying or client.thread.inbox or client.table.pending or self._ledger.state().queued_items
        )

    def check_books(self) -> None:
        """The client's accounts are right."""
        client = self.client
        judged = sum(client.verdicts[verdict] for verdict in JUDGED)
        refused = client.verdicts[Verdict.REFUSED]
        self._history.check_books(Books(client.accepted, refused, judged, client.table.pending, client.rolled_back, client.gap))

    def stream(self, key: Key) -> Stream | None:
        """One of its streams."""
        return self._table.get(*key)

    def _check_credit(self, live: Sequence[Stream]) -> None:
        pool = self.client.pool
        promised = sum(max(0, s.credit_steps - s.accepted_steps) for s in live if self.now - s.progress_at < IDLE_S)
        came, limit = pool.transit.taken.steps + pool.transit.steps, pool.limit_steps + self.client.slack_steps
        if came + promised > limit:
            raise Violation("credit", f"{came} came, {promised} are promised; the limit is {limit}")

    def _check_transit(self) -> None:
        """The pool counts as waiting and on its way what really is."""
        if self.client.replaying or not self.ready:
            return
        transit, thread = self.client.pool.transit, self.client.thread
        on_way = [_load(entry, skip) for entry, skip in thread.inbox]
        waiting = []
        for entry in self._ledger.waiting() if isinstance(self._ledger, SimJournal | SlowLedger) else ():
            stream = self._table.get(entry.actor_id, entry.origin)
            if stream is not None and stream.counted(entry.end_seq):
                waiting.append(_load(entry, entry.skip))
        for name, counted, real in ("on their way", transit.on_way, on_way), ("waiting", transit.waiting, waiting):
            total = Load()
            for load in real:
                total.add(load)
            if counted != total:
                raise Violation("transit", f"{counted} are counted as {name}, {total} are")

    def _check_stall(self) -> None:
        """Nothing stands still that could go on, once the faults are over."""
        client, live = self.client, self._table.live()
        able = self.ready and not client.replaying and not self.full and not client.thread.inbox
        reason = stall_reason(client.pool, live) if able else ""
        progress = (client.accepted, client.pool.transit.messages, tuple(client.verdicts.values()), client.life)
        still_s = self._watch.look(self.now, progress, reason)
        if still_s > MAX_STALL_S:
            raise Violation("stalled", f"for {still_s:.1f} s: {reason}")


@functools.lru_cache(maxsize=1024)
def _load(entry: Entry, skip: int) -> Load:
    """Count what a learner thread takes of an entry, from its frames alone."""
    submit = decode(entry.frames, verify=False)
    assert isinstance(submit, Submit)
    batch = Batch(submit)
    refused = batch.errors(SCHEMA)
    taken = [int(steps) for place, steps in enumerate(batch.steps) if place >= skip and place not in refused]
    return Load(sum(taken), len(taken), entry.nbytes)
