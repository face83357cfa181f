"""The learner's core: the logic of the gateway thread, without a socket, a thread or a clock.

The gateway thread drives it with sockets, the simulator in ``tests/simulation`` with a simulated network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, assert_never

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.journal import JournalContent
from rl4sys_zmq.errors import ConfigError, ProtocolError, RefusalReason, RL4SysError, restart_command
from rl4sys_zmq.interfaces import EventSink, Journal
from rl4sys_zmq.learner.alarms import SEGMENT_QUARANTINED, WORKER_CRASHED, WORKER_SILENT
from rl4sys_zmq.learner.gateway.actor_sessions import ActorSessionHandler
from rl4sys_zmq.learner.gateway.client import ClientState, LearnerThreadState
from rl4sys_zmq.learner.gateway.client_registry import ClientRegistry
from rl4sys_zmq.learner.gateway.client_worker import MAX_FAILED_STARTS
from rl4sys_zmq.learner.gateway.core_callbacks import CoreCallbacks
from rl4sys_zmq.learner.gateway.dispatcher import SegmentDispatcher
from rl4sys_zmq.learner.gateway.operator import PARAMETERS_CHANGED, OperatorCommandExecutor
from rl4sys_zmq.learner.gateway.system import SystemTable
from rl4sys_zmq.learner.run.log_files import CLIENT_READY
from rl4sys_zmq.liveness import BEACON_TOPIC, MOST_BEHIND_S, NEWCOMER_BEACON_S, WEIGHTS_TOPIC, WORKER_SILENCE_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.security.access import AccessList
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Frame, Verdict
from rl4sys_zmq.wire.thread_messages import (
    CheckpointResult,
    DataDemand,
    FromRemoteWorker,
    OperatorAlarm,
    PolicyPublished,
    QuarantinedSegment,
    SegmentVerdicts,
    ThreadFailed,
    ThreadMessage,
    ThreadReady,
    ToLearnerThread,
    TrainingMetrics,
    decode_thread_message,
)

log = get_logger(__name__)

BACKLOG_RETRY_S = 0.005
"""Time after which a message is sent again to a learner thread whose queue was full, in seconds."""


class LearnerCore:
    """The logic of a learner. Use it in one thread only.

    Attributes:
        start_notes: Lines of text for a person about the parameters in which the learner's configuration differs from the
            earlier run.
        system: The figures of the processes of this learner, and of actors that report theirs.
        actor_sessions: The handler of the messages of actors and operators.
    """

    def __init__(
        self, config: LearnerConfig, journal: Journal, sink: EventSink, authorizer: Authorizer, callbacks: CoreCallbacks
    ) -> None:
        self.counters = Counters()
        self.start_notes: list[str] = []
        self.config, self.journal, self.sink, self.callbacks = config, journal, sink, callbacks
        self._authorizer = authorizer
        self.registry = ClientRegistry(config, journal, callbacks)
        self.dispatcher = SegmentDispatcher(self)
        self.system = SystemTable(config.system_every_s, sink, self.counters, callbacks)
        self.actor_sessions = ActorSessionHandler(self, authorizer)
        self.operator = OperatorCommandExecutor(self)

    def restore(self, restored: JournalContent, rolled_back: str = "") -> None:
        """Create the clients that an earlier run has recorded, and start their learner threads."""
        for client in self.registry.restore(restored, rolled_back):
            self.start_notes += client.notes()
            if client.changes:
                self.sink.event(PARAMETERS_CHANGED, client_id=client.settings.client_id, changes=client.changes, by="file")

    def on_worker(self, frames: Sequence[Frame]) -> None:
        """Handle a message of a learner thread. Drop and count it if the thread was replaced."""
        client = self.registry.by_key(bytes(frames[0]))
        if client is None:
            self.counters.add("worker_messages_fenced")
            return
        with self._failing(client, "a message of its learner thread"):
            self._on_message(client, decode_thread_message(frames[1:]))

    @contextmanager
    def _failing(self, client: ClientState, cause: str) -> Iterator[None]:
        """Stop this client, and not the learner, if the ``with`` block raises an exception. The log names the `cause`."""
        try:
            yield
        except Exception as exc:
            log.exception("client %s: %s could not be handled", client.client_id, cause)
            self._on_failed(client, ThreadFailed(f"{type(exc).__name__}: {exc}"[:1000], ""))

    def _on_message(self, client: ClientState, message: ThreadMessage) -> None:
        match message:
            case ThreadReady():
                self._on_ready(client, message)
            case PolicyPublished():
                self._on_published(client, message)
            case SegmentVerdicts():
                self._on_verdicts(client, message)
            case DataDemand():
                client.on_demand(message)
            case TrainingMetrics():
                client.training.note(message)
                self.sink.metrics(client.client_id, message)
            case CheckpointResult():
                self.dispatcher.checkpointed(client, message)
            case QuarantinedSegment():
                self.sink.dead_letter(client.client_id, message)
            case OperatorAlarm():
                client.alarms.note(message.name, message.text, message.count)
            case ThreadFailed():
                self._on_ended(client, message)
            case FromRemoteWorker() | ToLearnerThread():
                raise ProtocolError(RefusalReason.DIRECTION, f"a learner thread must not send {type(message).__name__}")
            case _:
                assert_never(message)

    def _on_ready(self, client: ClientState, message: ThreadReady) -> None:
        client.ready(message)
        if client.settings.algorithm_type not in ("", message.kind):
            log.warning(
                "client %s: the configuration says type %r, but algorithm %s is of type %s",
                client.client_id,
                client.settings.algorithm_type,
                client.settings.algorithm_name,
                message.kind,
            )
        for problem in message.damaged:
            log.error("client %s: a damaged checkpoint was put aside: %s", client.client_id, problem)
            self.counters.add("checkpoints_damaged")
            self.sink.event("checkpoint_damaged", client_id=client.client_id, checkpoint=problem)
        if client.settings.init and not message.checkpoint:
            self.sink.event("warm_started", client_id=client.client_id, init=client.settings.init)
        if client.replay.token:
            client.rewind(message)
        began: dict[str, Any] = {"checkpoint": message.checkpoint, "steps": message.steps, "episodes": message.episodes}
        began |= {"algorithm": client.settings.algorithm_name, "parameters": client.parameters}
        self.sink.event(CLIENT_READY, client_id=client.client_id, **began)

    def _on_published(self, client: ClientState, message: PolicyPublished) -> None:
        publishing = client.publishing
        with self.registry.changing():
            frames = publishing.history.publish(message)
            first = client.state is not LearnerThreadState.RUNNING
            if first:
                client.state, client.known = LearnerThreadState.RUNNING, True
                client.checkpoints.on_first_version(message.version)
        if first:
            self.journal.put_client(client.row())
        self.callbacks.publish(WEIGHTS_TOPIC + publishing.topic, frames)
        if self.callbacks.offer_policy(client):
            self._beacon(client)  # an actor that uses the inference service learns of a version from its beacon only
        self.actor_sessions.admit_waiting(client, self.callbacks.monotonic())

    def _on_verdicts(self, client: ClientState, message: SegmentVerdicts) -> None:
        stream, verdicts = client.table.get(message.actor_id, message.origin), client.books.verdicts
        count = sum(end - first for first, end in message.ranges)
        if message.replaces:
            count = stream.correct(count, message.verdict, message.replaces) if stream is not None else count
            verdicts[message.replaces] -= count
        elif stream is not None:
            count = stream.dispose(message.ranges, message.verdict)
        if stream is not None:
            client.dirty.add(stream.actor_id)
        verdicts[message.verdict] += count
        if message.verdict == Verdict.QUARANTINED:
            text = f"{message.reason or 'no reason given'} (actor {message.actor_id})"
            client.alarms.note(SEGMENT_QUARANTINED, text, sum(end - first for first, end in message.ranges))

    def on_worker_ended(self, key: bytes) -> None:
        """Handle the end of a worker that is a process. After a crash, the client gets another worker after a pause."""
        self.callbacks.poll_workers()  # its last messages
        client = self.registry.by_key(key)
        ended = client.worker.handle if client is not None else None
        if client is None or ended is None or ended.alive:
            return
        with self._failing(client, "the end of its worker"):
            if ended.failure is not None:
                self._on_ended(client, ended.failure)
            elif ended.crash:
                self._on_crashed(client, ended.crash)

    def _on_ended(self, client: ClientState, failure: ThreadFailed) -> None:
        if failure.crashed:
            self._on_crashed(client, failure.error)
        else:
            self._on_failed(client, failure)

    def _on_crashed(self, client: ClientState, crash: str) -> None:
        with self.registry.changing():
            restarts = self.registry.suspend(client, crash)
        self.counters.add("workers_crashed")
        if not restarts:
            text = f"{crash}; {MAX_FAILED_STARTS} workers in a row have ended before they were ready; see the learner's log"
            self._on_failed(client, ThreadFailed(text, ""))
            return
        pause_s = max(0.0, (client.worker.restart_at or 0.0) - self.callbacks.monotonic())
        text = f"{crash}; another one starts in {pause_s:.1f} s"
        client.alarms.note(WORKER_CRASHED, text)
        self.sink.event("worker_crashed", client_id=client.client_id, crash=crash, restart_in_s=round(pause_s, 3))
        self.actor_sessions.close_client_sessions(client, "the client's worker has crashed; send HELLO again")
        client.checkpoints.give_up(crash)

    def _restart(self, client: ClientState) -> None:
        """Start the worker of a client whose pause after a crash is over. A failed start counts as another crash."""
        try:
            with self.registry.changing():
                rolled_back = self.registry.restart(client, give_up_pending=False)
        except ConfigError as exc:  # the next attempt would fail too
            self._on_failed(client, ThreadFailed(f"no worker can be started: {exc}"[:1000], ""))
        except RL4SysError as exc:
            self._on_crashed(client, f"no worker can be started: {exc}"[:1000])
        else:
            self.sink.event("client_restarted", client_id=client.client_id, rolled_back=rolled_back, gives_up=False)

    def _on_failed(self, client: ClientState, message: ThreadFailed) -> None:
        with self.registry.changing():
            stillborn = self.registry.fail(client, message)
        self.counters.add("clients_failed")
        self.sink.event("client_failed", client_id=client.client_id, error=message.error)
        peers = [client.table.peer_of(s) for s in client.table.live()]
        for peer in filter(None, (*peers, *client.waiting)):
            self.actor_sessions.refuse(peer, RefusalReason.CONFIG if stillborn else RefusalReason.FAILED, message.error)
        client.waiting.clear()
        client.checkpoints.give_up(message.error)

    def turn(self) -> None:
        """Continue operators' commands, grant credit, acknowledge, and log alarms. Call this in each turn of the loop."""
        self.operator.turn()
        room_bytes = self.dispatcher.room_bytes()
        for client in self.registry:
            if client.worker.restart_at is not None and self.callbacks.monotonic() >= client.worker.restart_at:
                self._restart(client)
            self.actor_sessions.send_acks(client, room_bytes)
            self._report_alarms(client)
            publishing = client.publishing
            if publishing.beacon_due and self.callbacks.monotonic() >= publishing.next_beacon_at:
                self._beacon(client)

    def poll_timeout_s(self, now: float, most_s: float) -> float:
        """Return for how long the gateway thread can wait for messages before its next task, at most `most_s`, in seconds."""
        for client in self.registry:
            if client.worker.restart_at is not None:
                most_s = min(most_s, client.worker.restart_at - now)
            if client.worker.backlog:
                most_s = min(most_s, BACKLOG_RETRY_S)
            most_s = min(most_s, client.next_grant_at - now)
            if client.publishing.beacon_due:
                most_s = min(most_s, client.publishing.next_beacon_at - now)
        return max(0.0, most_s)

    def each_second(self, now: float, behind_s: float = 0.0) -> None:
        """Do the tasks of each second: publish beacons, and look for silent actors, ended workers and idle clients.

        `behind_s` is the time for which messages of actors can have waited unread, in seconds.
        """
        read_s = now - min(behind_s, MOST_BEHIND_S)
        self.dispatcher.relieve()
        self.dispatcher.check(now)
        self._rotate_topics(self._authorizer.lapsed(self.callbacks.unix()))
        self.operator.expire(now)
        for client in self.registry:
            if client.is_wanted:
                client.busy_at = now
            if client.ended_unexpectedly:
                self.on_worker_ended(client.worker.key)  # the engine can be about to call this
                if client.ended_unexpectedly:
                    self._on_failed(client, ThreadFailed("its learner thread ended without an error; see the learner's log", ""))
                continue
            silent_s = client.worker.handle.silent_s if client.worker.handle is not None else 0.0
            if silent_s > WORKER_SILENCE_S:
                text = f"its worker has given no sign of life for {silent_s:.0f} s; is it stopped?"
                text += f" To replace it: {restart_command(client.client_id)}"
                client.alarms.note(WORKER_SILENT, text)
            if client.state is LearnerThreadState.RUNNING:
                self._beacon(client)
                self.actor_sessions.send_beacons(client)
            for stream in client.table.silent(read_s):
                peer = client.table.peer_of(stream)
                if peer is not None:
                    self.actor_sessions.close_session(peer, client, stream)
                    self.sink.event("actor_silent", client_id=client.client_id, actor_id=stream.actor_id)
            client.dirty.update(s.actor_id for s in client.table.live())
            self.dispatcher.expire(client, now)

    def _report_alarms(self, client: ClientState) -> None:
        for alarm in client.alarms.due():
            log.warning("client %s: alarm %s (%d so far): %s", client.client_id, alarm.name, alarm.count, alarm.text)
            self.sink.event("alarm", client_id=client.client_id, alarm=alarm.name, count=alarm.count, text=alarm.text)
            if client.state is LearnerThreadState.RUNNING:
                self._beacon(client)

    def _beacon(self, client: ClientState) -> None:
        publishing = client.publishing
        publishing.beacon_due = False
        publishing.next_beacon_at = self.callbacks.monotonic() + NEWCOMER_BEACON_S
        self.callbacks.publish(BEACON_TOPIC + publishing.topic, encode(client.beacon()))

    def client_of_topic(self, topic: bytes) -> ClientState | None:
        """Return the client whose weights or beacons have this topic, or None."""
        if topic[:1] not in (WEIGHTS_TOPIC, BEACON_TOPIC):
            return None
        return next((client for client in self.registry if client.publishing.topic == topic[1:]), None)

    def on_subscribed(self, client: ClientState, topic: bytes) -> None:
        """Handle a new subscription. After one to beacons, the next `turn` publishes a beacon for the new subscriber.

        A beacon goes to all subscribers, so new subscribers share one. With one beacon for each, 1,000 actors that join would
        cause half a million messages.
        """
        if topic[:1] == BEACON_TOPIC and client.state is LearnerThreadState.RUNNING:
            client.publishing.beacon_due = True

    def change_access(self, access: AccessList) -> None:
        """Apply a new access list."""
        losers = self._authorizer.replace(access)
        self._rotate_topics(losers)
        self.sink.event("access_changed", listed=len(access.by_name), lost_rights=sorted(losers))

    def _rotate_topics(self, losers: set[str]) -> None:
        # A user that has lost the right to read a policy can still be subscribed, and libzmq cannot revoke a subscription.
        for client in self.registry if losers else ():
            client.publishing.change_topic()
            self.actor_sessions.close_client_sessions(client, "the access list has changed; send HELLO again")

    def report(self, now: float) -> dict[str, Any]:
        """Return the part of the status about the journal, the clients, the relays and the processes."""
        return {
            "journal": asdict(self.journal.state()),
            "clients": {client.client_id: client.report(now) for client in self.registry},
            "relays": self.actor_sessions.relays.report(now),
            "system": list(self.system.report(now)),
        }

    def close_sessions(self, error: Exception) -> None:
        """Begin to close: fail the operators' commands, ask the learner threads to end, and refuse all actors."""
        self.operator.close(error)  # first, since a command may wait for the end of a learner thread
        for client in self.registry:
            client.worker.end()
        for peer in list(self.actor_sessions.sessions):
            self.actor_sessions.refuse(peer, RefusalReason.CLOSING, "the learner is shutting down")

    def close(self, error: Exception) -> None:
        """Finish closing: fail all commands and checkpoint requests in progress, and end the learner threads."""
        pending = {c.client_id: c.table.pending for c in self.registry if c.table.pending}
        if pending:
            self.sink.event("closed_with_pending_segments", pending=pending)
        for client in self.registry:
            client.worker.end()
            for future in client.checkpoints.asked.values():
                future.set_exception(error)
        self.operator.close(error)
