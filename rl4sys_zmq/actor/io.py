"""The actor's I/O thread: owner of the DEALER, the SUB, the spool and the policy cache: of all that is network or disk.

Host threads leave finished segments in the outbox and ring the wakeup; they read two references, `policy` and `credit_gate`,
which are replaced whole. An exception in here is counted and the sockets are made anew; it never reaches the host.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from rl4sys_zmq.actor.batch_sender import BatchSender
from rl4sys_zmq.actor.io_scheduler import REST_S, IoScheduler
from rl4sys_zmq.actor.outbox import Outbox
from rl4sys_zmq.actor.segment_queue import MemorySegmentQueue, SegmentQueue
from rl4sys_zmq.actor.session_parameters import CreditGate, SessionParameters
from rl4sys_zmq.actor.weight_subscriber import WeightSubscriber
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import (
    Action,
    ActorSession,
    IncarnationRaised,
    Joined,
    Reconnect,
    Rejected,
    Renewed,
    Send,
    SessionState,
    Waiting,
)
from rl4sys_zmq.errors import ClientFailed, HandshakeRefused, ProtocolError, Refusal, RL4SysError
from rl4sys_zmq.policies import Policy
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Address, Wakeup, explain
from rl4sys_zmq.transports.network import Connection, ConnectionPoller, Keys, LocalNetwork, Network
from rl4sys_zmq.values import PolicySpec
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import Fetch, Hello, Message, Refused, Weights, Welcome

if TYPE_CHECKING:  # what only some actors have is loaded for them alone
    from rl4sys_zmq.actor.last_policy import LastPolicy
    from rl4sys_zmq.actor.spool import Spool
    from rl4sys_zmq.security import UserKeys

__all__ = ["ActorIO"]

log = logging.getLogger(__name__)

RESTART_S = (0.2, 5.0)
"""The first pause before the sockets are made anew after an exception, and the longest."""
ACKS_S = 0.25
"""How long acks may lie unread when nobody needs them sooner: then they don't cost a turn of their own."""
EVENTS_S = 1.0
"""How often a joined actor looks for news of its connection."""
MAX_MESSAGE_FRAMES = 256
SEND_HWM = 8192
"""Messages in the DEALER: more than credit ever allows, for a message that does not fit leaves a gap to be mended."""


class ActorIO(Worker):
    """One actor's network and disk.

    Attributes:
        credit_gate: what waiting hosts look at.
        changed: notified after `policy` or `credit_gate` changed, when somebody waits.
        counters: what happened, by name.
        opened: set when the spool and the cache have been looked at; `open_error` then says what can't be used.
        current_at: when the policy was last known to be the newest, in the monotonic clock's seconds.
    """

    def __init__(self, config: AgentConfig, hello: Hello, outbox: Outbox, keys: UserKeys | None = None) -> None:
        """Makes it; `start` starts it.

        Args:
            config: the agent's.
            hello: what to say; with a spool, all but what the spool knows.
            outbox: where host threads leave segments.
            keys: to be known by.
        """
        super().__init__(f"rl4sys-actor-{hello.actor_id[:8]}")
        self.opened = threading.Event()
        self.open_error: RL4SysError | None = None
        self.current_at = float("-inf")
        self.changed = threading.Condition()
        self.counters = Counters()
        self.credit_gate = CreditGate(0, 0, 0, None, "the learner to answer")
        self.want_steps = 0
        self.flushing = 0
        self.waiting = 0
        self._listens = True
        self._config = config
        self._hello = hello
        self._segment_queue: SegmentQueue = MemorySegmentQueue(outbox)
        self._outbox = outbox
        self._address = Address.parse(config.address)
        self._keys: Keys | None = (keys.own.public, keys.own.secret, keys.learner_public) if keys is not None else None
        self._wakeup = Wakeup()
        self._rng = random.Random(hello.incarnation)
        self._session = self._new_session()
        acts = config.inference != "remote"
        self._weight_subscriber = WeightSubscriber(
            self._address, self._keys, self.counters, self._rng, self._fetch, self._on_new_policy, acts
        )
        self._last_policy = _last_policy(config, self._weight_subscriber, self.counters)
        self._io_scheduler = IoScheduler()
        self._batch_sender = BatchSender(config, self._segment_queue, self._session, self._io_scheduler.yield_to_host)
        self._error: RL4SysError | None = None
        self._joined = False
        self._stage = self.credit_gate.stage
        self._redial = False
        self._foreign = 0
        self._seen_items = 0
        self._events_at = 0.0
        self._dealer: Connection
        self._poller: ConnectionPoller
        self._stopping = threading.Event()

    # ---- for host threads

    def wake(self) -> None:
        """Makes the thread look at the outbox and the wishes, at once."""
        self._wakeup.set()

    def wake_up(self) -> None:
        """The same, after a rest if it is at one."""
        if not self._io_scheduler.resting:
            self._wakeup.set()

    def stop(self) -> None:
        """Says goodbye and ends."""
        self._stopping.set()
        self._wakeup.set()

    def release(self) -> None:
        """Closes what outlives the thread; after `join`."""
        self._wakeup.close()

    @property
    def session_parameters(self) -> SessionParameters | None:
        """The learner's, as it said last, or from the policy cache; None before either."""
        return self._batch_sender.session_parameters

    @property
    def weight_subscriber(self) -> WeightSubscriber:
        """What keeps the policy current; read its policy only."""
        return self._weight_subscriber

    @property
    def policy(self) -> Policy | None:
        """The current policy, None before the first snapshot."""
        return self._weight_subscriber.policy

    @property
    def spec(self) -> PolicySpec | None:
        """The policy's description, None before the handshake."""
        return self._weight_subscriber.spec

    @property
    def session(self) -> ActorSession:
        """The protocol's state; read its numbers only."""
        return self._session

    @property
    def segment_queue(self) -> SegmentQueue:
        """Where unnumbered segments are; read its numbers only."""
        return self._segment_queue

    @property
    def spool(self) -> Spool | None:
        """The spool, if there is one; read its numbers only."""
        return self._segment_queue.spool

    @property
    def waiting_segments(self) -> int:
        """Segments that have no number yet."""
        return self._segment_queue.items + self._segment_queue.in_hand

    @property
    def idle(self) -> bool:
        """Nothing is queued or in hand, and everything sent is durable."""
        return not self.waiting_segments and not self._session.in_flight

    def inherit(self, other: ActorIO) -> None:
        """Before the start: takes the policy of another actor, the parent of a forked process."""
        self._batch_sender.session_parameters, self.current_at = other.session_parameters, other.current_at
        self._weight_subscriber.inherit(other._weight_subscriber)

    def roll_back(self, bad: Policy) -> Policy | None:
        """Goes back to the version before `bad`, which is not taken up again; from any thread. None when there is none."""
        return self._weight_subscriber.roll_back(bad)

    # ---- the thread

    def run(self) -> None:
        """Serves until `stop`; an exception is counted and the sockets are made anew."""
        try:
            try:
                self._open()
            except RL4SysError as exc:
                self.open_error = exc
                return
            finally:
                self.opened.set()
                with self.changed:
                    self._notify()
            pause_s = RESTART_S[0]
            while not self._stopping.is_set():
                try:
                    with _network(self._config) as network:
                        while not self._stopping.is_set():
                            self._serve(network)
                            pause_s = RESTART_S[0]
                except Exception as exc:  # the host must never notice; stats() and the log do
                    log.exception("the I/O thread of an actor of %s starts again", self._config.client_id)
                    self.counters.add("io_restarts")
                    self._set_stage(f"its I/O thread to start again ({type(exc).__name__}: {exc})")
                    self._stopping.wait(pause_s)
                    pause_s = min(2 * pause_s, RESTART_S[1])
            if self._last_policy is not None:
                self._last_policy.save(self.session_parameters, force=True)
        finally:
            self._segment_queue.close()

    def _open(self) -> None:
        """Opens what is on the disk.

        Raises:
            SpoolError: when the spool can't be used.
        """
        config = self._config
        if config.spool is not None:
            from rl4sys_zmq.actor.spool import Spool, SpoolLimits
            from rl4sys_zmq.actor.spooled_queue import SpooledSegmentQueue

            limits = SpoolLimits(config.spool_max_bytes, config.spool_max_age_s, config.queue_items, config.queue_bytes)
            began_s = time.time() - time.monotonic()  # a clock that is set meanwhile makes no segment older
            spool = Spool(
                config.spool,
                config.client_id,
                limits,
                actor_id=config.actor_id,
                clock=lambda: began_s + time.monotonic(),
            )
            self._segment_queue = SpooledSegmentQueue(self._outbox, spool)
            self._hello = replace(
                self._hello,
                actor_id=spool.actor_id,
                incarnation=spool.incarnation,
                origin=spool.origin,
                first_seq=spool.base_seq,
                journal_id=spool.journal_id,
                spooled=True,
            )
            self._session = self._new_session()
            self._batch_sender = BatchSender(config, self._segment_queue, self._session, self._io_scheduler.yield_to_host)
        if self._last_policy is not None and self.policy is None and (taken := self._last_policy.take_up()) is not None:
            self._batch_sender.session_parameters, age_s = taken
            self.current_at = time.monotonic() - age_s

    def _new_session(self) -> ActorSession:
        config = self._config
        coded = config.compression == "zstd"
        return ActorSession(self._hello, self.counters, self._rng, coded=coded, images=config.images)

    def _serve(self, network: Network) -> None:
        """One life of the sockets."""
        with network.poller() as poller, network.dealer(self._address, send_hwm=SEND_HWM, keys=self._keys) as dealer:
            self._dealer, self._poller = dealer, poller
            try:
                poller.register(dealer)
                self._listens = True
                poller.register(self._wakeup)
                self._weight_subscriber.network = network
                self._do(self._session.open(time.monotonic(), self._weight_subscriber.held))
                while not self._redial and not self._stopping.is_set():
                    self._turn()
                if self._stopping.is_set():
                    while self._segment_queue.fill():
                        pass
                    self._do(self._session.close(time.monotonic()))
            finally:
                self._redial = False
                self._weight_subscriber.leave()

    def _turn(self) -> None:
        io_scheduler, session = self._io_scheduler, self._session
        if io_scheduler.busy and session.state is SessionState.JOINED and not (self._urgent or self._stopping.is_set()):
            ready, listened = self._rest(), False
        else:
            ready, listened = self._wait()
        now = time.monotonic()
        segments, self._seen_items = self._outbox.put_items != self._seen_items, self._outbox.put_items
        io_scheduler.turn(now, segments=segments)
        # Each look at a socket lets a host's thread have the interpreter, and takes it away again.
        if self._wakeup in ready:
            self._wakeup.clear()
        if any(source is not self._wakeup and source is not self._dealer for source in ready):
            while self._weight_subscriber.read():
                io_scheduler.yield_to_host()
        if not listened or self._dealer in ready:
            self._read_dealer()
        if now >= self._events_at or session.state is not SessionState.JOINED:
            self._events_at = now + EVENTS_S
            self._read_events()
        self._segment_queue.release(session.durable)
        while self._segment_queue.fill():
            io_scheduler.yield_to_host()
        self._reconcile()
        now = time.monotonic()
        for actions in self._batch_sender.ship(
            now, self._weight_subscriber.held if self.policy is not None else None, urgent=self._urgent
        ):
            self._do(actions)
        self._do(session.want(now, self._batch_sender.wanted_steps(now, self.want_steps)))
        self._do(session.tick(now, self._weight_subscriber.held))
        self._weight_subscriber.tick(now)
        self._segment_queue.tick()
        self._update_credit_gate()

    @property
    def _urgent(self) -> bool:
        return bool(self.waiting or self.flushing)

    def _rest(self) -> Collection[object]:
        """Lets segments and acks gather. Weights, and whoever waits, end the rest.

        A host that leaves something in the outbox meanwhile does not ring; what it left before the end of the rest is seen after
        it.
        """
        self._listen(False)
        self._io_scheduler.resting = True
        try:
            return self._poller.poll(REST_S)
        finally:
            self._io_scheduler.resting = False

    def _wait(self) -> tuple[Collection[object], bool]:
        """Waits for something to do; whether it listened to the learner comes with it."""
        listens = self._must_listen()
        self._listen(listens)
        deadlines = self._session.next_deadline(), self._weight_subscriber.next_deadline, self._segment_queue.next_deadline()
        left = min(*deadlines, self._batch_sender.next_deadline) - time.monotonic()
        return self._poller.poll(min(max(0.0, left), 1.0 if listens else ACKS_S)), listens

    def _must_listen(self) -> bool:
        """Whether what the learner says next must be heard at once; acks for segments that nobody asks about need not."""
        session = self._session
        return (
            session.state is not SessionState.JOINED
            or not session.in_flight
            or (self._segment_queue.items > 0 and not session.can_take())
            or self._weight_subscriber.fetching
            or self._urgent
        )

    def _listen(self, listens: bool) -> None:
        if listens is not self._listens:
            if listens:
                self._poller.register(self._dealer)
            else:
                self._poller.unregister(self._dealer)
            self._listens = listens

    def _reconcile(self) -> None:
        """At the first Welcome of this start: numbers what the spool holds, from what the learner says it has."""
        segment_queue, session = self._segment_queue, self._session
        if segment_queue.spool is None or segment_queue.spool.reconciled or session.state is not SessionState.JOINED:
            return
        kept = segment_queue.reconcile(session.received, session.durable)
        if kept is not None:
            session.recover(kept)

    # ---- the learner's words

    def _read_dealer(self) -> None:
        while True:
            try:
                frames = self._dealer.recv(MAX_MESSAGE_FRAMES)
                if frames is None:
                    return
                message = decode(frames)
                if isinstance(message, Weights):
                    self._weight_subscriber.on_fetched(message)
            except ProtocolError as exc:
                self.counters.add(f"refused.{exc.code.value}")
                self._foreign += exc.code is Refusal.VERSION
                # One may be a flipped bit, and a learner that has welcomed us speaks our version.
                if exc.code is Refusal.VERSION and self._foreign > 1 and self._session.state is not SessionState.JOINED:
                    self._set_error(HandshakeRefused(exc.code, f"it answers in {exc.detail}; install the same major version"))
                continue
            self._foreign = 0
            self._do(self._session.on_message(time.monotonic(), message))
            if self._session.state is SessionState.JOINED:
                self.current_at = time.monotonic()

    def _read_events(self) -> None:
        """Why no connection comes about, where libzmq says it: a wrong key must not look like a learner that is away."""
        for event in self._dealer.events():
            if not event.is_failure:
                continue
            self.counters.add(f"connections.{event.name}")
            if self._session.state is SessionState.JOINED:
                continue
            words = explain(event, "actor")
            if event.is_final:
                self._session.reject(time.monotonic())
                self._set_error(HandshakeRefused(Refusal.FORBIDDEN, words, "keys"))
            else:
                self._set_stage(words)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            self._io_scheduler.yield_to_host()
            match action:
                case Send(message):
                    self._send(message)
                case Joined(welcome):
                    self._on_joined(welcome)
                case Renewed(in_doubt):
                    words = "%s: silent for longer than the lease; %d segments are in doubt, the rest goes on"
                    log.warning(words, self._config.client_id, in_doubt)
                case IncarnationRaised(incarnation):
                    self._on_raised(incarnation)
                case Rejected(refused):
                    self._on_rejected(refused)
                case Waiting(refused):
                    if refused.code != Refusal.NO_SESSION:
                        self._set_stage(f"a place: {refused.reason}")
                case Reconnect():
                    self.counters.add("redials")
                    if self._joined:
                        log.warning("%s: the learner at %s is silent; dialling again", self._config.client_id, self._address.uri)
                    self._joined = False
                    self._set_stage("the learner to answer")
                    self._redial = True

    def _send(self, message: Message) -> None:
        if not self._dealer.send(encode(message)):
            self.counters.add("sends_refused.full")  # what matters is resent by the session's timers

    def _fetch(self, message: Fetch) -> None:
        if self._session.state is SessionState.JOINED:
            self._send(message)

    def _on_joined(self, welcome: Welcome) -> None:
        if welcome.gap:
            log.warning("%s: %d segments that were acknowledged are gone on the learner", self._config.client_id, welcome.gap)
        if self._config.type not in (None, welcome.algorithm_type):
            words = "%s: the configuration says type %r, but %s is %s"
            log.warning(words, self._config.client_id, self._config.type, welcome.algorithm_name, welcome.algorithm_type)
        self._reconcile()  # whatever comes of this session, the next HELLO must not claim that these were let go
        self._io_scheduler.yield_to_host()
        try:
            self._weight_subscriber.join(welcome, self._poller)
        except RL4SysError as exc:
            self._session.reject(time.monotonic())
            self._set_error(exc)
            return
        self._io_scheduler.yield_to_host()
        if self.counters.get("joined"):
            log.warning("%s: joined again, generation %d", self._config.client_id, welcome.generation)
        if self.session_parameters is None or self.session_parameters.generation != welcome.generation:
            self._batch_sender.first_version = welcome.version
        self._batch_sender.session_parameters = SessionParameters.of(welcome)
        spool = self.spool
        if spool is not None:
            spool.set_journal(welcome.journal_id)
        self._error, self._joined = None, True
        self._update_credit_gate()  # before the first weights: who waits for those must not find the old error
        self.counters.add("joined")

    def _on_new_policy(self) -> None:
        with self.changed:
            self._notify()
        self._io_scheduler.give_way()  # to whoever waited for it
        if self._last_policy is not None:
            self._last_policy.save(self.session_parameters)

    def _on_raised(self, incarnation: int) -> None:
        """Its number was too low: an answer to a HELLO with that, which may be on its way, must find no socket."""
        words = "%s: a start of %s with a later clock is on record; this one goes on as incarnation %d"
        log.warning(words, self._config.client_id, self._hello.actor_id, incarnation)
        if (spool := self.spool) is not None:
            spool.set_incarnation(incarnation)
        self._redial = True

    def _on_rejected(self, refused: Refused) -> None:
        if refused.code == Refusal.FAILED:
            self._set_error(ClientFailed(self._config.client_id, refused.reason))
        else:
            code = Refusal(refused.code) if refused.code in set(Refusal) else Refusal.MALFORMED
            self._set_error(HandshakeRefused(code, refused.reason, refused.field))

    # ---- the gate

    def _update_credit_gate(self) -> None:
        session = self._session
        joined = session.state is SessionState.JOINED
        limit = self._batch_sender.assigned_steps + session.credit_steps - session.sent_steps if joined else 0
        generation = self.session_parameters.generation if self.session_parameters is not None else 0
        stage = "credit or newer weights" if joined else self._stage
        if joined and self.policy is None:
            stage = "the first weights"
        credit_gate = CreditGate(limit, generation, session.min_version, self._error, stage)
        if credit_gate != self.credit_gate or self.flushing:
            with self.changed:
                self.credit_gate = credit_gate
                self._notify()

    def _set_error(self, error: RL4SysError) -> None:
        if str(error) != str(self._error):
            log.warning("%s: %s", self._config.client_id, error)
        self._error = error
        with self.changed:
            self.credit_gate = CreditGate(0, self.credit_gate.generation, 0, error, self.credit_gate.stage)
            self._notify()

    def _set_stage(self, stage: str) -> None:
        self._stage = stage
        self.credit_gate = CreditGate(0, self.credit_gate.generation, 0, self._error, stage)

    def _notify(self) -> None:
        """Wakes waiting hosts; the caller holds `changed`. A host that only acts never takes that lock."""
        self.changed.notify_all()


def _last_policy(config: AgentConfig, weight_subscriber: WeightSubscriber, counters: Counters) -> LastPolicy | None:
    path = config.cache_file
    if path is None:
        return None
    from rl4sys_zmq.actor.last_policy import LastPolicy

    return LastPolicy(config, path, weight_subscriber, counters)


def _network(config: AgentConfig) -> Network:
    if not config.sidecar:
        return LocalNetwork()
    from rl4sys_zmq.transports.relay import Relay

    return Relay()
