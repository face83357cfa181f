"""The state of one client, as the learner's network thread keeps it."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from enum import StrEnum
from typing import Any

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import (
    ClientRow,
    CreditAllocator,
    DataAmount,
    Journal,
    JournalEntry,
    Key,
    SegmentStream,
    StallTimer,
    StreamRow,
    StreamTable,
    replay_entry,
    stall_reason,
)
from rl4sys_zmq.delivery.weight_history import WeightHistory
from rl4sys_zmq.interfaces import LearnerThreadHandle
from rl4sys_zmq.learner.alarms import Alarms
from rl4sys_zmq.learner.gateway.admission import ClientSettings
from rl4sys_zmq.learner.gateway.core_callbacks import SYSTEM_CLOCK, Clock, CoreCallbacks
from rl4sys_zmq.learner.gateway.parameters import algorithm_parameters, parameters_shown
from rl4sys_zmq.learner.gateway.training_figures import TrainingFigures
from rl4sys_zmq.limits import MAX_SEGMENT_STEPS
from rl4sys_zmq.liveness import WORKER_RESTART
from rl4sys_zmq.values import PolicySpec
from rl4sys_zmq.weights import TAG_KEY_BYTES
from rl4sys_zmq.wire import SegmentSchema, encode, spec_from_document
from rl4sys_zmq.wire.messages import Beacon, Frame, Hello, Verdict, WeightsSource
from rl4sys_zmq.wire.thread_messages import ChangeParameters, CheckpointResult, DataDemand, DeliverSegments, ThreadReady

Relays = list[list[str]]
"""The relays (processes that pass weights on) for an actor, nearest first, each as ``[URI, public key or ""]``."""

STEADY_S = 30.0
"""Time for which a worker must have trained so that its crash is followed by the shortest pause, in seconds."""

MAX_FAILED_STARTS = 5
"""Number of workers in a row that can crash before they are ready. After that, the client has failed."""


def new_topic() -> bytes:
    """Return a random PUB/SUB topic (8 bytes) for a client's weights.

    A peer cannot guess it, so only invited peers subscribe.
    """
    return os.urandom(8)


class LearnerThreadState(StrEnum):
    """The state of a client's learner thread (the thread that trains the client's policy): starting, running or failed."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"


class ClientState:
    """The state of one client, a policy with its learner thread and its actors, in the gateway (the learner's network thread).

    Only the thread of `LearnerCore` uses this class. The client gets a new learner thread at each start and restart. A *stream*
    is the numbered segments of one actor. *Credit* is the amount of data that an actor is allowed to send. The *journal* is the
    record of accepted segments. A *replay* sends segments from the journal to a learner thread that has loaded a checkpoint.

    Attributes:
        table: The streams of all actors of the client, and the sessions of the live ones.
        pool: The division of credit for the current learner thread among the actors.
        weight_history: The recent weights that the current learner thread has published.
        verdicts: The number of segments by verdict (result, such as trained or stale). The numbers go back when the learner
            thread returns to a checkpoint.
        dirty: The ids of the actors that need an `Ack` message.
        next_ack_at: The earliest time for the next `Ack` messages, on the monotonic clock, in seconds.
        beacon_due: True if a new subscriber waits for a beacon, the message with the newest version.
        next_beacon_at: The earliest time for the next beacon to new subscribers, on the monotonic clock, in seconds.
        waiting: The HELLOs (requests for a session) that arrived while the learner thread was starting, by routing id, each
            with the name of its user and the relays (processes that pass weights on) for its actor.
        worker: The handle of the current learner thread; None after `end_thread`.
        started_at: The time when the current learner thread was started, on the monotonic clock, in seconds.
        restart_at: The time when a new worker starts after a crash, on the monotonic clock, in seconds; None at all
            other times.
        devices: The device of each rank (process that computes the gradients together with others) of the current learner thread.
        workers: The handles of all learner threads of the client that can still be running.
        backlog: The encoded messages to send to the learner thread, oldest first. They stay here while the queue of the thread
            is full.
        known: True if the journal has a record of this client.
        rollback_asked: True if an operator has asked to give up accepted segments; False again after the replay.
        replaying: The number of the replay in progress, by which the pages read from the journal for it are recognized; 0 if
            there is no replay. During a replay, the learner thread receives new segments through these pages too.
        page_after: The row of the journal after which the next page of the replay begins; None if no page has to be requested.
        topic: The PUB topic of the client's weights and beacons (messages with the newest version): 8 bytes, without the first
            byte, which is the kind of the message.
        tag_key: The secret key of the tags of published versions (`rl4sys_zmq.weights.tag_of`); empty if versions get no tags.
        parameters: The parameters of the algorithm in force, with defaults; empty until the first learner thread is ready.
        last_crash: A description of the last crash of a worker; empty without one.
        training: The figures of the training: steps, updates, returns and policy lags.
        stalled_s: The time for which actors and learner thread could work but no data has moved, in seconds; 0 if not stalled.
        alarms: The alarms (counted problems) of the client since the start of the learner.
        saved: The report of the newest checkpoint. Its number is 0 if there is none.
        saved_at: The time when that checkpoint was written or loaded, on the monotonic clock, in seconds.
        save_error: The reason why the last checkpoint could not be written; empty if it was written.
        busy_at: The time when the client was created or last had a live or waiting actor, on the monotonic clock, in seconds.
    """

    def __init__(
        self,
        settings: ClientSettings,
        policy_id: bytes,
        generation: int,
        table: StreamTable,
        checkpoints: str,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self.policy_id = policy_id
        self.topic = new_topic()
        self.tag_key = b""
        self.table = table
        self.checkpoints = checkpoints
        self.state = LearnerThreadState.STARTING
        self.error = ""
        self.welcome_spec: dict[str, Any] = {}
        self.welcome_body: tuple[Frame, ...] = ()
        self.spec: PolicySpec | None = None
        self.algorithm_type = ""
        self.rollout_length = 0
        self.max_policy_lag = -1
        self.schema: SegmentSchema | None = None
        self.weight_history = WeightHistory(generation)
        self.pool = CreditAllocator()
        self._stall = StallTimer()
        self.stalled_s = 0.0
        self.worker: LearnerThreadHandle | None = None
        self.devices: list[str] = []
        self.workers: list[LearnerThreadHandle] = []
        self.backlog: deque[list[Frame]] = deque()
        self.waiting: dict[bytes, tuple[Hello, str, Relays]] = {}
        self.dirty: set[str] = set()
        self.next_ack_at = 0.0
        self.beacon_due, self.next_beacon_at = False, 0.0
        self.counters = Counters()
        self.alarms = Alarms(clock.monotonic, clock.unix)
        self.verdicts = dict.fromkeys(Verdict.ALL, 0)
        self.accepted = self.gap = 0
        self.rolled_back = 0
        self.known = self.rollback_asked = False
        self.busy_at = self.started_at = clock.monotonic()
        self.replaying = self.replayed = 0
        self.page_after: int | None = None
        self.saved = CheckpointResult(0, 0, 0, [], 0.0, "")
        self.saved_at = 0.0
        self.save_error = ""
        self._older_marks: dict[Key, int] = {}
        self._newer_marks: dict[Key, int] = {}
        self.life = 0
        self.restart_at: float | None = None
        self.crashes = 0
        self._crashes_in_a_row = self._failed_starts = 0
        self.last_crash = ""
        self._token = b""
        self.parameters: dict[str, Any] = {}
        self.training = TrainingFigures(clock)

    @property
    def client_id(self) -> str:
        """The client's name."""
        return self.settings.client_id

    @property
    def key(self) -> bytes:
        """The bytes that identify the current learner thread: the first frame of each of its messages.

        A restart changes the key. It has random bytes, so that a process that an earlier learner has started cannot have it.
        """
        return self.policy_id + self.life.to_bytes(4, "little") + self._token

    @property
    def queued(self) -> int:
        """The number of accepted segments that the current learner thread has not received so far."""
        return self.pool.transit.items

    @property
    def is_caught_up(self) -> bool:
        """True if the learner thread runs, and all segments that it must receive again after a restart were queued for it."""
        return self.state is LearnerThreadState.RUNNING and not self.replaying

    @property
    def is_wanted(self) -> bool:
        """True if an actor of this client is connected, or waits for its connection while the learner thread starts."""
        return self.table.has_live or bool(self.waiting)

    @property
    def is_expendable(self) -> bool:
        """True if this client can be removed without loss: it was ready, and has no data, no checkpoint and no live actor."""
        began = self.schema is None or self.replaying or self.state is LearnerThreadState.STARTING
        holds = self.accepted or self.verdicts[Verdict.REFUSED] or self.saved.number or self.save_error
        return not (began or holds or self.is_wanted)

    def beacon(self) -> Beacon:
        """Return the periodic message to actors with the newest version of the policy, its digest, and the number of alarms."""
        return self.weight_history.beacon(self.alarms.counts())

    def row(self) -> ClientRow:
        """Return the record of this client for the journal, so that a later run can create the client again.

        The journal is the learner's record of clients and accepted segments. The totals in the returned record are 0, since the
        journal keeps its own.
        """
        return ClientRow(self.client_id, self.weight_history.generation, self.settings.to_json(), 0, 0, 0)

    def stream_row(self, stream: SegmentStream) -> StreamRow:
        """Return the record of one stream for the journal.

        The journal is the learner's record of accepted segments. A later run reads the stream from it, so that the actor can
        continue the numbering.
        """
        return StreamRow(
            self.client_id,
            stream.actor_id,
            stream.origin,
            stream.incarnation,
            0,
            stream.durable,
            stream.accepted_steps,
            stream.refused,
            stream.submits,
            stream.spooled,
            stream.owner,
        )

    def start(self, callbacks: CoreCallbacks, config: LearnerConfig, journal: Journal) -> None:
        """Start a new learner thread for this client, and queue its first message, an `AssignClient` with all settings."""
        self.life += 1
        self._token = os.urandom(8)
        self.restart_at = None
        self.replaying = self.life if journal.durable else 0
        self.page_after = None
        self.state, self.error = LearnerThreadState.STARTING, ""
        self.started_at = self._clock.monotonic()
        self.pool = CreditAllocator()
        if config.relays and not self.tag_key:
            self.start_tagging()
        assign = self.settings.assign(
            self.policy_id, self.weight_history.generation, config, checkpoints=self.checkpoints, journal_id=journal.journal_id
        )
        self.backlog.append(encode(assign))
        self.worker = callbacks.start_worker(assign, self.key)
        self.workers.append(self.worker)

    @property
    def next_grant_at(self) -> float:
        """The time at which credit should be granted and acknowledgements sent, in seconds; infinity if there is no need."""
        return max(self.next_ack_at, 0.0 if self.dirty else self.pool.retry_at)

    @property
    def ended_unexpectedly(self) -> bool:
        """True if the learner thread has ended without having been asked to, and without reporting an error."""
        asked = self.state is LearnerThreadState.FAILED or self.restart_at is not None
        return not asked and not any(worker.alive for worker in self.workers)

    def suspend(self, crash: str) -> bool:
        """Record a crash of the worker, and set the time when the next one starts (`restart_at`).

        The pause becomes longer with each crash, unless the worker had trained for `STEADY_S`. The client is in the state
        ``starting`` until the next worker is ready.
        """
        now = self._clock.monotonic()
        self.crashes += 1
        self.last_crash = crash
        ready = self.state is LearnerThreadState.RUNNING
        if ready and now - self.started_at >= STEADY_S:
            self._crashes_in_a_row = 0
        self._failed_starts = 0 if ready else self._failed_starts + 1
        self.end_thread(replaced=True)
        self.replaying, self.page_after = 0, None  # pages that the journal still reads are for the worker that has crashed
        if self._failed_starts >= MAX_FAILED_STARTS:
            self._failed_starts = 0
            return False
        self.restart_at = now + WORKER_RESTART.pause_s(self._crashes_in_a_row)
        self._crashes_in_a_row += 1
        self.state, self.started_at = LearnerThreadState.STARTING, now
        return True

    def end_thread(self, *, replaced: bool = False) -> None:
        """Discard the messages that wait to be sent to the learner thread, and ask the thread to end."""
        self.worker = None
        self.devices = []
        self.backlog.clear()
        for worker in self.workers:
            worker.end(replaced=replaced)
        self.workers = [worker for worker in self.workers if worker.alive]

    def roll_back(self) -> int:
        """Give up all accepted segments without a verdict (result), and return their number. They count as rolled back.

        Call this when the learner thread is replaced and the journal is in memory, so that no segments can be replayed to the
        new thread.
        """
        lost = self.table.roll_back()
        self.rolled_back += lost
        for stream in self.table.all():
            CreditAllocator.reclaim(stream)
        return lost

    def ready(self, message: ThreadReady) -> None:
        """Store the description of the policy and the training totals that a learner thread sends when it is ready to train."""
        spec = self.spec = spec_from_document(message.spec, message.body)
        self.welcome_spec, self.welcome_body, self.algorithm_type = message.spec, message.body, message.kind
        self.rollout_length, self.max_policy_lag = message.rollout_length, message.max_policy_lag
        self.weight_history.describe(self.policy_id, self.settings.writing(spec))
        self.weight_history.tag_with(self.tag_key)
        self.schema = SegmentSchema.of(spec, MAX_SEGMENT_STEPS)
        self.parameters = parameters_shown(self.settings.kind, self.settings.in_force)
        self.devices = message.devices
        self.training.begin(message)

    def on_running(self, version: int) -> None:
        """Record that the learner thread has published its first version, which is that of the checkpoint that it has loaded."""
        self.state, self.known = LearnerThreadState.RUNNING, True
        if self.saved.version < 0:
            self.saved = replace(self.saved, version=version)

    def start_tagging(self) -> None:
        """Publish a tag with each version from now on, under a new key, so that actors can take the weights from relays.

        The actors get the key in their next `Welcome`.
        """
        self.tag_key = os.urandom(TAG_KEY_BYTES)
        self.weight_history.tag_with(self.tag_key)

    def change_topic(self) -> None:
        """Continue the publication of weights under a new topic, and with tags under a new key."""
        self.topic = new_topic()
        if self.tag_key:
            self.start_tagging()

    def weights_source(self, pub: str) -> WeightsSource:
        """Return the answer to a relay that asks where this client's weights are published."""
        history = self.weight_history
        return WeightsSource(
            client_id=self.client_id,
            policy_id=self.policy_id,
            topic=self.topic,
            generation=history.generation,
            version=history.version,
            digest=history.digest,
            tensors=self.welcome_spec["tensors"],
            pub=pub,
        )

    def use_parameters(self) -> None:
        """Queue the parameters in `settings` for the learner thread, if it runs. Call this after they have changed."""
        self.parameters = parameters_shown(self.settings.kind, self.settings.in_force)
        if self.worker is not None:
            self.backlog.append(encode(ChangeParameters(algorithm_parameters(self.settings.in_force))))

    # ---- return to a checkpoint

    def rewind(self, message: ThreadReady) -> None:
        """Return to the state of the checkpoint that the learner thread has loaded, and begin the replay of later segments.

        This resets the counts of verdicts (results for segments) and the position in each stream.
        """
        marks = {(actor_id, origin): (seq, verdicts) for actor_id, origin, seq, verdicts in message.marks}
        self.table.rewind(marks)
        for verdict in Verdict.ALL:
            if verdict != Verdict.DUPLICATE:
                self.verdicts[verdict] = message.verdicts.get(verdict, 0)
        self._older_marks = self._newer_marks = {}
        for stream in self.table.all():
            CreditAllocator.reclaim(stream)
        self.replayed = 0
        self.page_after = 0
        # The version follows with the first publication.
        self.saved, self.saved_at = CheckpointResult(0, message.checkpoint, -1, [], 0.0, ""), self._clock.monotonic()
        if message.checkpoint:
            for key, (seq, _) in marks.items():
                known = self.table.get(*key)
                if known is not None:
                    known.checkpointed = max(known.checkpointed, min(seq, known.received))
        self._balance()

    def replay(self, entry: JournalEntry) -> None:
        """Queue a stored message of segments for a learner thread that has returned to a checkpoint.

        If the checkpoint includes all segments of the message, this does nothing. If it includes only the first ones, these are
        skipped.
        """
        stream = self.table.get(entry.actor_id, entry.origin)
        if stream is None or self.schema is None:
            return
        refused = stream.verdicts[Verdict.REFUSED]
        again = replay_entry(stream, self.schema, entry)
        self.verdicts[Verdict.REFUSED] += stream.verdicts[Verdict.REFUSED] - refused
        if again is not None:
            self.replayed += again.load.items
            self.send(entry, again.skip, again.load, waited=entry.accepted > 0 and stream.counted(entry.end_seq))

    def send_committed(self, entry: JournalEntry) -> None:
        """Queue segments that an actor has sent for the learner thread, after the journal has committed them."""
        stream = self.table.get(entry.actor_id, entry.origin)
        if stream is not None and not stream.counted(entry.end_seq):
            self.replay(entry)  # accepted by an earlier thread; with a full disk, a replayed page can overtake such an entry
        else:
            # An entry of refused segments alone was not counted: its stream can end before the journal commits it.
            waited = stream is not None and entry.accepted > 0
            self.send(entry, entry.skip, DataAmount(entry.steps, entry.accepted, entry.nbytes), waited=waited)

    def send(self, entry: JournalEntry, skip: int, load: DataAmount, *, waited: bool) -> None:
        """Queue the segments of a journal entry for the learner thread, and count them as sent to it."""
        self.pool.transit.send(load, waited=waited)
        self.deliver(entry, skip)

    def deliver(self, entry: JournalEntry, skip: int) -> None:
        """Queue the segments of a journal entry for the learner thread, without counting them. `send` also counts them."""
        self.backlog.append(encode(DeliverSegments(entry.actor_id, entry.origin, skip, entry.refused, entry.frames)))

    def caught_up(self) -> int:
        """End the replay of accepted segments from the journal, and count the missing ones as rolled back."""
        self.replaying = 0
        for stream in self.table.all():
            stream.replay_ends()
        before = self.rolled_back
        self._balance()
        return self.rolled_back - before

    def _balance(self) -> None:
        """Correct the number of segments that were given up (`rolled_back`) from the other counts.

        These are the accepted segments that have no verdict (result) and do not wait for one either.
        """
        judged = sum(self.verdicts[v] for v in Verdict.FINAL)
        self.rolled_back = max(0, self.accepted - judged - self.table.pending)

    def checkpointed(self, message: CheckpointResult) -> dict[Key, int]:
        """Record the result of a checkpoint, and return the positions up to which the journal can now delete entries.

        The journal is the record of accepted segments. It must keep those that a restart could need. The positions are those of
        the checkpoint before this one. So if this checkpoint is damaged later, the journal still has all segments since the one
        before.
        """
        self.save_error = message.error
        if message.error or not message.number:
            return {}
        self.saved, self.saved_at = message, self._clock.monotonic()
        self._older_marks, self._newer_marks = self._newer_marks, {(a, o): seq for a, o, seq in message.marks}
        for key, seq in self._newer_marks.items():
            stream = self.table.get(*key)
            if stream is not None:
                stream.checkpointed = max(stream.checkpointed, seq)
        return self._older_marks

    def trimmed(self, stream: SegmentStream) -> bool:
        """Return True if the journal has no entries of a stream.

        The record of the stream can then be discarded, because no segments can be replayed from the journal.
        """
        return not self.checkpoints or self._older_marks.get(stream.key, 0) >= stream.accepted_end

    def on_demand(self, message: DataDemand) -> None:
        """Record how many more steps the learner thread can use, and how many messages it has received.

        The actors that request credit (permission to send steps) then get an `Ack`, since credit may be available now.
        """
        self.pool.demand(message.usable_steps, message.messages, message.min_version)
        # An actor that has neither sent nor requested anything needs no ack now; all actors get one each second.
        self.dirty.update(s.actor_id for s in self.table.live() if s.want_steps or s.received)

    def look_for_stall(self, now: float) -> str:
        """Check for a stall: the learner thread can use data, actors request credit (permission to send), and no data moves.

        Set `stalled_s` to the time for which this has lasted. Call this only while the journal works and has completed all
        operations for this client.
        """
        reason = ""
        if self.state is LearnerThreadState.RUNNING and not self.backlog and self.page_after is None:
            reason = "the replay is not complete, but no page of the journal is outstanding" if self.replaying else ""
            reason = reason or stall_reason(self.pool, self.table.live())
        sent = self.pool.transit.messages, self.pool.grants
        progress = (self.life, self.accepted, sent, self.replayed, self.weight_history.version)
        self.stalled_s = self._stall.look(now, progress, reason)
        return reason
