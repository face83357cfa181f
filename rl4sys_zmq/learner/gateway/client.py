"""The state of one client, as the gateway thread keeps it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from rl4sys_zmq.delivery.credit import CreditAllocator, StallTimer, stall_reason
from rl4sys_zmq.delivery.journal import ClientRow, StreamRow
from rl4sys_zmq.delivery.stream import Key, SegmentStream
from rl4sys_zmq.delivery.table import StreamTable
from rl4sys_zmq.learner.alarms import Alarms
from rl4sys_zmq.learner.gateway.admission import ClientSettings
from rl4sys_zmq.learner.gateway.client_parts import (
    CheckpointRecord,
    ClientPublishing,
    JournalReplayProgress,
    SegmentCounts,
    TrainingFigures,
)
from rl4sys_zmq.learner.gateway.client_worker import ClientWorkers
from rl4sys_zmq.learner.gateway.core_callbacks import CoreCallbacks
from rl4sys_zmq.learner.gateway.parameters import algorithm_parameters, parameters_shown
from rl4sys_zmq.learner.registry.algorithm_entry import default_pacing_lag
from rl4sys_zmq.limits import MAX_SEGMENT_STEPS
from rl4sys_zmq.loopback import is_loopback
from rl4sys_zmq.policies import StoredPolicy
from rl4sys_zmq.wire import SegmentSchema, spec_from_document
from rl4sys_zmq.wire.messages import Beacon, Hello, Verdict
from rl4sys_zmq.wire.thread_messages import ChangeParameters, ChangeWeightsLevel, CheckpointResult, DataDemand, ThreadReady

Relays = list[list[str]]
"""The relays for an actor, nearest first, each as ``[URI, public key or ""]``."""

ACTORS_SHOWN = 100
"""Largest number of actors in the report of a client. Live actors come first, then those with the latest messages."""

RECORDED = ("client_id", "actor_id", "origin", "incarnation", "accepted_steps", "refused", "submits", "spooled", "owner")
"""The attributes of a stream that `StreamRow` has under the same names."""

SHOWN = ("library", "address", "relay", "incarnation", "spooled", "received", "durable", "trained", "pending", "accepted_steps")
"""The attributes of a stream that the report has under the same names."""


class LearnerThreadState(StrEnum):
    """The state of a client's learner thread."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"


class ClientState:
    """The gateway's record of one client. Only the gateway thread uses it.

    Attributes:
        table: The streams of all actors of the client, and the sessions of the live ones.
        pool: The division of credit for the current learner thread among the actors.
        dirty: The ids of the actors that need an acknowledgement.
        next_ack_at: The earliest time for the next acknowledgements, on the monotonic clock, in seconds.
        waiting: Actors' requests for sessions while the learner thread starts, by routing id, each with the name of its user,
            its IP address and the relays for its actor.
        known: True if the journal has a record of this client.
        parameters: The parameters of the algorithm in force, with defaults; empty until the first learner thread is ready.
        stalled_s: The time for which actors and learner thread could work but no data has moved, in seconds; 0 if not stalled.
        busy_at: The time when the client was created or last had a live or waiting actor, on the monotonic clock, in seconds.
    """

    def __init__(
        self,
        settings: ClientSettings,
        policy_id: bytes,
        generation: int,
        table: StreamTable,
        checkpoints: str,
        callbacks: CoreCallbacks,
    ) -> None:
        self.settings = settings
        self._monotonic = callbacks.monotonic
        self.table = table
        self.worker = ClientWorkers(policy_id, callbacks.monotonic)
        self.publishing = ClientPublishing(policy_id, generation)
        self.books = SegmentCounts()
        self.checkpoints = CheckpointRecord(checkpoints)
        self.replay = JournalReplayProgress()
        self.pool = CreditAllocator()
        self.training = TrainingFigures(callbacks.monotonic, callbacks.unix)
        self.alarms = Alarms(callbacks.monotonic, callbacks.unix)
        self.state = LearnerThreadState.STARTING
        self.error = ""
        self.algorithm_type = ""
        self.rollout_length = 0
        self.max_policy_lag = -1
        self.schema: SegmentSchema | None = None
        self.parameters: dict[str, Any] = {}
        self.waiting: dict[bytes, tuple[Hello, str, str, Relays]] = {}
        self.dirty: set[str] = set()
        self.next_ack_at = 0.0
        self.known = False
        self.busy_at = callbacks.monotonic()
        self._stall = StallTimer()
        self.stalled_s = 0.0

    @property
    def client_id(self) -> str:
        """The client's name."""
        return self.settings.client_id

    @property
    def is_caught_up(self) -> bool:
        """True if the learner thread runs, and all segments that it must receive again after a restart were queued for it."""
        return self.state is LearnerThreadState.RUNNING and not self.replay.token

    @property
    def is_wanted(self) -> bool:
        """True if an actor of this client has a session, or waits for one while the learner thread starts."""
        return self.table.has_live or bool(self.waiting)

    @property
    def is_expendable(self) -> bool:
        """True if this client can be removed without loss: it was ready, and has no data, no checkpoint and no live actor."""
        began = self.schema is None or self.replay.token or self.state is LearnerThreadState.STARTING
        holds = self.books.accepted or self.books.verdicts[Verdict.REFUSED] or self.checkpoints.newest.number
        return not (began or holds or self.checkpoints.error or self.is_wanted)

    @property
    def next_grant_at(self) -> float:
        """The monotonic time at which credit and acknowledgements are due, in seconds; infinity if none are."""
        return max(self.next_ack_at, 0.0 if self.dirty else self.pool.retry_at)

    @property
    def ended_unexpectedly(self) -> bool:
        """True if the learner thread has ended without having been asked to, and without reporting an error."""
        asked = self.state is LearnerThreadState.FAILED or self.worker.restart_at is not None
        return not asked and not any(handle.alive for handle in self.worker.handles)

    def beacon(self) -> Beacon:
        """Return the beacon for the client's newest policy version."""
        return self.publishing.history.beacon(self.alarms.counts())

    def row(self) -> ClientRow:
        """Return the record of this client for the journal. The totals in it are 0, since the journal counts them itself."""
        return ClientRow(self.client_id, self.publishing.history.generation, self.settings.to_json(), 0, 0, 0)

    @staticmethod
    def stream_row(stream: SegmentStream) -> StreamRow:
        """Return the record of one stream for the journal."""
        return StreamRow(first_seq=0, received=stream.durable, **{name: getattr(stream, name) for name in RECORDED})

    def roll_back(self) -> int:
        """Give up all accepted segments without a verdict, and return their number.

        Call this when the learner thread is replaced and the journal is in memory, so that nothing can be replayed.
        """
        lost = self.table.roll_back()
        self.books.rolled_back += lost
        for stream in self.table.all():
            CreditAllocator.reclaim(stream)
        return lost

    def ready(self, message: ThreadReady) -> None:
        """Store what a learner thread reports when it is ready to train: the policy and the training totals."""
        spec = spec_from_document(message.spec, message.body)
        self.publishing.describe(message, spec, self.settings.writing(spec, near=self.publishing.near))
        self.algorithm_type = message.kind
        self.rollout_length, self.max_policy_lag = message.rollout_length, message.max_policy_lag
        self.schema = SegmentSchema.of(spec, MAX_SEGMENT_STEPS)
        self.parameters = parameters_shown(self.settings.kind, self.settings.in_force)
        self.worker.devices = message.devices
        self.training.continue_from(message)

    def note_subscriber(self, host: str, *, relays: bool) -> None:
        """Record that a peer may subscribe to the weights, from an IP address (empty: this machine). `relays`: it is a relay.

        After the first one on another machine, the level ``auto`` of the weights is 1.
        """
        publishing = self.publishing
        if not publishing.near or not (relays or (host and not is_loopback(host))):
            return
        publishing.near = False
        level = self.settings.writing(near=False).level
        if level != self.settings.writing(near=True).level:
            if publishing.spec is not None:
                publishing.history.describe(publishing.policy_id, self.settings.writing(publishing.spec, near=False))
            if self.worker.handle is not None:
                self.worker.send(ChangeWeightsLevel(level))

    def use_parameters(self) -> None:
        """Queue the parameters in `settings` for the learner thread, if it runs. Call this after they have changed."""
        self.parameters = parameters_shown(self.settings.kind, self.settings.in_force)
        if self.worker.handle is not None:
            self.worker.send(ChangeParameters(algorithm_parameters(self.settings.in_force)))

    def rewind(self, message: ThreadReady) -> None:
        """Return the counts to the checkpoint that the learner thread has loaded. Begin to deliver later segments again."""
        marks = {(actor_id, origin): (seq, verdicts) for actor_id, origin, seq, verdicts in message.marks}
        self.table.rewind(marks)
        self.books.rewind(message.verdicts)
        for stream in self.table.all():
            CreditAllocator.reclaim(stream)
        self.replay.segments = self.replay.page_after = 0
        self.checkpoints.loaded(message.checkpoint, self._monotonic())
        if message.checkpoint:
            self._note_checkpoint({key: seq for key, (seq, _) in marks.items()})
        self.books.balance(self.table.pending)

    def caught_up(self) -> int:
        """End the delivery of journal entries to a new learner thread. Count segments that the journal lacks as rolled back.

        Return the number of these segments.
        """
        self.replay.token = 0
        for stream in self.table.all():
            stream.replay_ends()
        return self.books.balance(self.table.pending)

    def checkpointed(self, message: CheckpointResult) -> dict[Key, int]:
        """Record the result of a checkpoint. Return the mark of each stream below which the journal can now delete entries."""
        trim = self.checkpoints.written(message, self._monotonic())
        if self.checkpoints.newest is message:
            self._note_checkpoint(self.checkpoints.marks)
        return trim

    def _note_checkpoint(self, marks: Mapping[Key, int]) -> None:
        for key, seq in marks.items():
            stream = self.table.get(*key)
            if stream is not None:
                stream.checkpointed = max(stream.checkpointed, min(seq, stream.received))

    def on_demand(self, message: DataDemand) -> None:
        """Record how many more steps the learner thread can use, and how many messages it has received."""
        self.pool.demand(message.usable_steps, message.messages, message.min_version)
        # An actor that has neither sent nor requested anything needs no ack now; all actors get one each second.
        self.dirty.update(s.actor_id for s in self.table.live() if s.want_steps or s.received)

    def look_for_stall(self, now: float) -> str:
        """Set `stalled_s`, and return the reason of a stall, or "".

        Call this only while the journal works and has completed all operations for this client.
        """
        reason = ""
        if self.state is LearnerThreadState.RUNNING and not self.worker.backlog and self.replay.page_after is None:
            reason = "the replay is not complete, but no page of the journal is outstanding" if self.replay.token else ""
            reason = reason or stall_reason(self.pool, self.table.live())
        sent, version = (self.pool.transit.messages, self.pool.grants), self.publishing.history.version
        progress = (self.worker.starts, self.books.accepted, sent, self.replay.segments, version)
        self.stalled_s = self._stall.look(now, progress, reason)
        return reason

    def stored_policy(self) -> StoredPolicy:
        """Return the newest version, with the training that it comes from. The call fails before the first version."""
        assert self.publishing.spec is not None
        origin = self.training.policy_origin(self.client_id, self.settings.algorithm_name)
        return StoredPolicy(self.publishing.spec, self.publishing.history.newest, origin)

    def report(self, now: float) -> dict[str, Any]:
        """Return the client's part of the learner's status, as JSON."""
        history, books, checkpoints = self.publishing.history, self.books, self.checkpoints
        newest, transit = checkpoints.newest, self.pool.transit
        shown = actors = self.table.current()
        if len(actors) > ACTORS_SHOWN:
            shown = heapq.nlargest(ACTORS_SHOWN, actors, key=lambda s: (self.table.is_live(s), s.last_seen))
        lag = self.settings.pacing_lag
        return {
            "state": str(self.state),
            "error": self.error,
            "algorithm": self.settings.algorithm_name,
            "parameters": self.parameters,
            "generation": history.generation,
            "version": history.version,
            "digest": f"{history.digest:016x}",
            "weights_level": self.settings.writing(near=self.publishing.near).level,
            **self.training.report(now, books.verdicts[Verdict.EVALUATED]),
            "pacing_lag": lag if lag is not None else default_pacing_lag(self.settings.kind, self.algorithm_type),
            "accepted": books.accepted,
            "pending": self.table.pending,
            "rolled_back": books.rolled_back,
            "gap": books.gap,
            "resuming": bool(self.replay.token),
            "queued": transit.items,
            "queued_bytes": transit.nbytes,
            "queued_steps": transit.steps,
            "stalled_s": round(self.stalled_s, 3),
            "checkpoint": {
                "number": newest.number,
                "version": newest.version,
                "age_s": round(now - checkpoints.saved_at, 3) if newest.number else None,
                "duration_s": round(newest.duration_s, 4),
                "error": checkpoints.error,
            },
            "restarts": self.worker.starts - 1,
            "worker": self.worker.report(now),
            "verdicts": dict(books.verdicts),
            "credit_steps": max(0, self.pool.free_steps),
            "counters": books.counters.snapshot(),
            "alarms": self.alarms.report(),
            "actors_total": len(actors),
            "actors_live": len(self.table.live()),
            "actors": {s.actor_id: _actor_report(s, now, live=self.table.is_live(s)) for s in shown},
        }


def _actor_report(stream: SegmentStream, now: float, *, live: bool) -> dict[str, Any]:
    return {
        "live": live,
        "silent_s": round(now - stream.last_seen, 3),
        "checkpointed": min(stream.checkpointed, stream.trained),
        "credit_steps": stream.credit_steps,
        "verdicts": dict(stream.verdicts),
        **{name: getattr(stream, name) for name in SHOWN},
    }
