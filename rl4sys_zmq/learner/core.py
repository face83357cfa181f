"""The learner's core: everything that the gateway thread decides, without a socket, a thread or a clock of its own.

Messages of actors, words of learner threads and the time go in; what follows from them leaves through `Ports`, the journal and
the sink. The gateway thread drives it with sockets, the simulator with a network of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any, assert_never

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import Journal, Restored
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.learner.alarms import SEGMENT_QUARANTINED
from rl4sys_zmq.learner.client import Client, ClientState, new_topic
from rl4sys_zmq.learner.client_registry import ClientRegistry
from rl4sys_zmq.learner.dispatcher import SegmentDispatcher
from rl4sys_zmq.learner.endpoint import ActorEndpoint
from rl4sys_zmq.learner.operator import Operator, OperatorParts
from rl4sys_zmq.learner.ports import Ports
from rl4sys_zmq.learner.recorder import EventSink
from rl4sys_zmq.learner.weight_history import BEACON_TOPIC, WEIGHTS_TOPIC
from rl4sys_zmq.security import AccessList, Authorizer
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import (
    Alarm,
    Checkpointed,
    Command,
    CommandDone,
    DeadLetter,
    Demand,
    Disposed,
    Failed,
    Frame,
    Message,
    Metrics,
    Published,
    Ready,
    ToActor,
    ToLearner,
    ToWorker,
    Verdict,
)

__all__ = ["BACKLOG_RETRY_S", "LearnerCore"]

log = logging.getLogger(__name__)

BACKLOG_RETRY_S = 0.005
"""After how long a full pipeline of a learner thread is tried again, in seconds."""


class LearnerCore:
    """All clients of a learner, their actors and their learner threads. One thread uses it.

    Attributes:
        counters: The learner's.
        registry: The clients.
        endpoint: The sessions of their actors; messages of actors go in there.
        published: Held while clients and versions change, and notified then: other threads wait for that.
    """

    def __init__(self, config: LearnerConfig, journal: Journal, sink: EventSink, guard: Authorizer, ports: Ports) -> None:
        """Make it, without clients.

        Args:
            config: The learner's.
            journal: Where accepted segments go. Its owner closes it.
            sink: Where figures and events go.
            guard: Rights and quotas.
            ports: The world outside.
        """
        self.counters = Counters()
        self.published = threading.Condition()
        self._journal, self._sink, self._guard, self._ports = journal, sink, guard, ports
        self.registry = ClientRegistry(config, journal, ports)
        self._dispatcher = SegmentDispatcher(self.registry, journal, self.counters, sink)
        self.endpoint = ActorEndpoint(config, self.registry, journal, guard, self.counters, sink, ports)
        self._operator = Operator(
            OperatorParts(
                registry=self.registry,
                endpoint=self.endpoint,
                dispatcher=self._dispatcher,
                journal=journal,
                counters=self.counters,
                sink=sink,
                published=self.published,
                ports=ports,
                idle_client_s=config.idle_client_s,
            )
        )
        self._dispatcher.heard = self._operator.heard
        self.endpoint.obey, self.endpoint.make_room = self._operator.do, self._operator.make_room

    def restore(self, restored: Restored) -> None:
        """Make the clients that the journal remembers, and start their learner threads.

        Raises:
            ConfigError: When the configuration of one contradicts what it was.
        """
        self.registry.restore(restored)

    # ---- learner threads

    def on_worker(self, frames: Sequence[Frame]) -> None:
        """Take what a learner thread says: its key, then a message. The last words of an earlier life are not for anybody."""
        client = self.registry.speaking(bytes(frames[0]))
        if client is None:
            return
        try:
            self._on_words(client, decode(frames[1:]))
        except Exception as exc:  # an algorithm that says the impossible stops its client, not the learner
            log.exception("the learner thread of %s was not understood", client.client_id)
            self._on_failed(client, Failed(f"{type(exc).__name__}: {exc}"[:1000], ""))

    def _on_words(self, client: Client, message: Message) -> None:
        match message:
            case Ready():
                self._on_ready(client, message)
            case Published():
                self._on_published(client, message)
            case Disposed():
                self._on_disposed(client, message)
            case Demand():
                client.demanded(message)
            case Metrics():
                client.note(message)
                self._sink.metrics(client.client_id, message)
            case Checkpointed():
                self._dispatcher.checkpointed(client, message)
            case DeadLetter():
                self._sink.dead_letter(client.client_id, message)
            case Alarm():
                client.alarms.note(message.name, message.text, message.count)
            case Failed():
                self._on_failed(client, message)
            case ToLearner() | ToActor() | ToWorker():
                raise ProtocolError(Refusal.DIRECTION, f"{type(message).__name__} from a learner thread")
            case _:
                assert_never(message)

    def _on_ready(self, client: Client, message: Ready) -> None:
        client.ready(message)
        if client.settings.algorithm_type not in ("", message.kind):
            words = "%s: the configuration says type %r, but %s is %s"
            log.warning(words, client.client_id, client.settings.algorithm_type, client.settings.algorithm_name, message.kind)
        for name in message.damaged:
            log.error("client %s: checkpoint %s is damaged and was put aside", client.client_id, name)
            self.counters.add("checkpoints_damaged")
            self._sink.event("checkpoint_damaged", client_id=client.client_id, checkpoint=name)
        if client.replaying:
            client.rewind(message)
            if message.checkpoint:
                self._sink.event("checkpoint_loaded", client_id=client.client_id, checkpoint=message.checkpoint)

    def _on_published(self, client: Client, message: Published) -> None:
        with self.published:
            out = client.weight_history.publish(message)
            first, client.state = client.state is not ClientState.RUNNING, ClientState.RUNNING
            self.published.notify_all()
        if first:
            client.known = True
            self._journal.put_client(client.row())
        self._ports.publish(WEIGHTS_TOPIC + client.topic, out)
        if client.spec is not None and self._ports.offer_policy(client.client_id, client.spec, client.weight_history.newest):
            self._beacon(client)  # an actor that acts by the service hears of a version by its beacon alone
        self.endpoint.admit_waiting(client, self._ports.clock.monotonic())

    def _on_disposed(self, client: Client, message: Disposed) -> None:
        stream = client.table.get(message.actor_id, message.origin)
        count = sum(end - first for first, end in message.ranges)
        if message.but:
            count = stream.correct(count, message.verdict, message.but) if stream is not None else count
            client.verdicts[message.but] -= count
        elif stream is not None:
            count = stream.dispose(message.ranges, message.verdict)
        if stream is not None:
            client.dirty.add(stream.actor_id)
        client.verdicts[message.verdict] += count
        if message.verdict == Verdict.QUARANTINED:
            text = f"{message.reason or 'no reason given'} (actor {message.actor_id})"
            client.alarms.note(SEGMENT_QUARANTINED, text, sum(end - first for first, end in message.ranges))

    def _on_failed(self, client: Client, message: Failed) -> None:
        with self.published:
            stillborn = self.registry.fail(client, message)
            self.published.notify_all()
        self.counters.add("clients_failed")
        self._sink.event("client_failed", client_id=client.client_id, error=message.error)
        peers = [client.table.peer_of(s) for s in client.table.live()]
        for peer in (*peers, *client.waiting):
            if peer is not None:
                self.endpoint.refuse(peer, Refusal.CONFIG if stillborn else Refusal.FAILED, message.error)
        client.waiting.clear()
        self._dispatcher.give_up(client, message.error)

    # ---- turns and the clock

    def on_journal(self) -> None:
        """Hand on what the journal has committed or read to the learner threads, and what waits for room in their queues."""
        self._dispatcher.dispatch()

    def turn(self) -> None:
        """Carry on with commands, grant credit, and send the acks and alarms that are due."""
        self._operator.turn()
        room_bytes = self._dispatcher.room_bytes()
        for client in self.registry:
            self.endpoint.settle(client, room_bytes)
            self._sound(client)

    def rest_s(self, now: float, most_s: float) -> float:
        """Return for how long there is nothing to do unless something comes, at most `most_s` seconds."""
        for client in self.registry:
            if client.backlog:
                most_s = min(most_s, BACKLOG_RETRY_S)
            if client.dirty:
                most_s = min(most_s, client.settles_at - now)
        return max(0.0, most_s)

    def each_second(self, now: float) -> None:
        """Do what is due once a second: beacons, leases, silent actors, stalls, checkpoints for a journal that fills up."""
        self._dispatcher.relieve()
        self._dispatcher.check(now)
        self._hide_from(self._guard.lapsed(self._ports.clock.unix()))
        self._operator.expire(now)
        for client in self.registry:
            if client.is_wanted:
                client.busy_at = now
            if client.gone:
                self._ports.hear_workers()  # its last words, if there are any
                if client.state is not ClientState.FAILED:
                    self._on_failed(client, Failed("its learner thread ended without a word; see the learner's log", ""))
                continue
            if client.state is ClientState.RUNNING:
                self._beacon(client)
            for stream in client.table.silent(now):
                peer = client.table.peer_of(stream)
                if peer is not None:
                    self.endpoint.close_session(peer, client, stream)
                    self._sink.event("actor_silent", client_id=client.client_id, actor_id=stream.actor_id)
            client.dirty.update(s.actor_id for s in client.table.live())
            self._dispatcher.expire(client, now)

    def _sound(self, client: Client) -> None:
        """Says a client's alarms in the log, and to its actors, if they are due."""
        for alarm in client.alarms.due():
            log.warning("client %s: alarm %s (%d so far): %s", client.client_id, alarm.name, alarm.count, alarm.text)
            fields = {"client_id": client.client_id, "alarm": alarm.name, "count": alarm.count, "text": alarm.text}
            self._sink.event("alarm", **fields)
            if client.state is ClientState.RUNNING:
                self._beacon(client)

    def _beacon(self, client: Client) -> None:
        self._ports.publish(BEACON_TOPIC + client.topic, encode(client.beacon()))

    # ---- subscribers and rights

    def wanted_by(self, topic: bytes) -> Client | None:
        """Return the client whose weights or beacons have this topic."""
        return self.registry.by_topic(topic[1:]) if topic[:1] in (WEIGHTS_TOPIC, BEACON_TOPIC) else None

    def on_subscribed(self, client: Client, topic: bytes) -> None:
        """Give a new subscriber a beacon at once: what was published before it was there is invisible to it."""
        if topic[:1] == BEACON_TOPIC and client.state is ClientState.RUNNING:
            self._beacon(client)

    def change_access(self, access: AccessList) -> None:
        """Put a new list of keys in force.

        A key that has lost the right to read a policy may still be subscribed to it, and libzmq can't take that back: the policy
        gets another topic, which its actors learn in a new handshake.
        """
        losers = self._guard.replace(access)
        self._hide_from(losers)
        self._sink.event("access_changed", listed=len(access.by_name), lost_rights=sorted(losers))

    def _hide_from(self, losers: set[str]) -> None:
        for client in self.registry if losers else ():
            client.topic = new_topic()
            self.endpoint.dismiss(client, "the rights have changed: say HELLO again")

    # ---- operators

    def do(self, command: Command) -> Future[CommandDone]:
        """Begin an operator's command; see `Operator.do`."""
        return self._operator.do(command)

    def save(self, *, partial: bool) -> Future[dict[str, str]]:
        """Ask all clients for a checkpoint; see `SegmentDispatcher.save`."""
        return self._dispatcher.save(partial=partial)

    def report(self, now: float) -> dict[str, Any]:
        """Return the state of the journal and of all clients, as a JSON document."""
        return {
            "journal": asdict(self._journal.state()),
            "clients": {client.client_id: client.report(now) for client in self.registry},
        }

    # ---- the end

    def close_sessions(self, error: Exception) -> None:
        """End commands with this error, tell learner threads to finish, and tell the actors that the learner ends."""
        self._operator.close(error)  # before a learner thread ends that a command waits for
        for client in self.registry:
            client.end_thread()
        self.endpoint.close_sessions()

    def close(self, error: Exception) -> None:
        """End everything that is still under way with this error, and record what stays behind."""
        pending = {c.client_id: c.table.pending for c in self.registry if c.table.pending}
        if pending:
            self._sink.event("closed_with_pending_segments", pending=pending)
        for client in self.registry:
            client.end_thread()
        self._dispatcher.close(error)
        self._operator.close(error)
