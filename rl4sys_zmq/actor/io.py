"""The actor's I/O thread: owner of the DEALER and the SUB, the only one that touches a network.

Host threads leave finished segments in the outbox and ring the wakeup; they read two references, `policy` and `gate`, which
are replaced whole. An exception in here is counted and everything is made anew; it never reaches the host.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from dataclasses import dataclass

from rl4sys_zmq.actor.follower import Follower
from rl4sys_zmq.actor.outbox import Outbox
from rl4sys_zmq.actor.policies import Policy
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import Action, ActorSession, Joined, Redial, Rejected, Renewed, Send, SessionState, Waiting
from rl4sys_zmq.errors import ClientFailed, HandshakeRefused, ProtocolError, Refusal, RL4SysError
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Address, Poller, Socket, Wakeup
from rl4sys_zmq.values import PolicySpec
from rl4sys_zmq.wire import PackedSegment, decode, encode, pack_segment
from rl4sys_zmq.wire.messages import Fetch, Hello, Message, Refused, Weights, Welcome

__all__ = ["ActorIO", "Gate"]

log = logging.getLogger(__name__)

RESTART_S = 0.2
MAX_BATCH_STEPS = 16_384
MAX_BODY_FRAMES = 200
MAX_MESSAGE_FRAMES = 256
SEND_HWM = 8192
"""Messages in the DEALER: more than credit ever allows, for a message that does not fit leaves a gap to be mended."""


@dataclass(frozen=True, slots=True)
class Gate:
    """What a host that waits must know.

    Attributes:
        limit_steps: it may start a segment while it has finished fewer steps than this, counted since the start.
        generation: of the policy to start with.
        min_version: the least version of it.
        error: why nothing will come, or None.
        stage: what the I/O thread is waiting for, for messages.
    """

    limit_steps: int
    generation: int
    min_version: int
    error: RL4SysError | None
    stage: str


class ActorIO(Worker):
    """One actor's network.

    Attributes:
        gate: what waiting hosts look at.
        changed: notified after `policy` or `gate` changed, when somebody waits.
        welcome: the learner's last answer to HELLO.
        counters: what happened, by name.
    """

    def __init__(self, config: AgentConfig, hello: Hello, outbox: Outbox) -> None:
        super().__init__(f"rl4sys-actor-{hello.actor_id[:8]}")
        self.welcome: Welcome | None = None
        self.changed = threading.Condition()
        self.counters = Counters()
        self.gate = Gate(0, 0, 0, None, "the learner to answer")
        self.want_steps = 0
        self.flushing = 0
        self.waiting = 0
        self._config = config
        self._outbox = outbox
        self._address = Address.parse(config.address)
        self._wakeup = Wakeup()
        self._rng = random.Random(hello.incarnation)
        self._session = ActorSession(hello, self.counters, self._rng)
        self._follower = Follower(self._address, self.counters, self._rng, self._fetch, self._on_new_policy)
        self._assigned_steps = 0
        self._oldest_since: float | None = None
        self._error: RL4SysError | None = None
        self._joined = False
        self._stage = self.gate.stage
        self._redial = False
        self._dealer: Socket
        self._poller: Poller
        self._stopping = threading.Event()

    # ---- for host threads

    def wake(self) -> None:
        """Makes the thread look at the outbox and the wishes."""
        self._wakeup.set()

    def stop(self) -> None:
        """Says goodbye and ends."""
        self._stopping.set()
        self._wakeup.set()

    def release(self) -> None:
        """Closes what outlives the thread; after `join`."""
        self._wakeup.close()

    @property
    def policy(self) -> Policy | None:
        """The current policy, None before the first snapshot."""
        return self._follower.policy

    @property
    def spec(self) -> PolicySpec | None:
        """The policy's description, None before the handshake."""
        return self._follower.spec

    @property
    def session(self) -> ActorSession:
        """The protocol's state; read its numbers only."""
        return self._session

    @property
    def idle(self) -> bool:
        """Nothing is queued and everything sent is durable."""
        return not len(self._outbox) and not self._session.in_flight

    # ---- the thread

    def run(self) -> None:
        """Serves until `stop`; an exception is counted and the sockets are made anew."""
        while not self._stopping.is_set():
            try:
                self._serve()
            except Exception as exc:  # the host must never notice; stats() and the log do
                log.exception("the I/O thread of an actor of %s starts again", self._config.client_id)
                self.counters.add("io_restarts")
                self._set_stage(f"its I/O thread to start again ({type(exc).__name__}: {exc})")
                self._stopping.wait(RESTART_S)

    def _serve(self) -> None:
        """One life of the sockets."""
        with Poller() as poller, Socket.dealer(self._address, send_hwm=SEND_HWM) as dealer:
            self._dealer, self._poller = dealer, poller
            poller.register(dealer)
            poller.register(self._wakeup)
            try:
                self._do(self._session.open(time.monotonic(), self._follower.held))
                while not self._redial and not self._stopping.is_set():
                    self._turn()
                if self._stopping.is_set():
                    self._do(self._session.close(time.monotonic()))
            finally:
                self._redial = False
                self._follower.leave()

    def _turn(self) -> None:
        now = time.monotonic()
        deadline = min(self._session.next_deadline(), self._follower.next_deadline)
        if self._oldest_since is not None:
            deadline = min(deadline, self._oldest_since + self._config.linger_ms / 1000)
        self._poller.poll(min(max(0.0, deadline - now), 1.0))
        self._wakeup.clear()
        self._follower.read()
        self._read_dealer()
        now = time.monotonic()
        self._ship(now)
        need = max(self._outbox.steps, self.want_steps - self._assigned_steps)
        self._do(self._session.want(now, self._session.sent_steps + need))
        self._do(self._session.tick(now, self._follower.held))
        self._follower.tick(now)
        self._update_gate()

    # ---- the learner's words

    def _read_dealer(self) -> None:
        while True:
            try:
                frames = self._dealer.recv(MAX_MESSAGE_FRAMES)
                if frames is None:
                    return
                message = decode(frames)
                if isinstance(message, Weights):
                    self._follower.on_fetched(message)
            except ProtocolError as exc:
                self.counters.add(f"refused.{exc.code.value}")
                if exc.code is Refusal.VERSION:
                    self._set_error(HandshakeRefused(exc.code, f"it answers in {exc.detail}; install the same major version"))
                continue
            self._do(self._session.on_message(time.monotonic(), message))

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(message):
                    self._send(message)
                case Joined(welcome):
                    self._on_joined(welcome)
                case Renewed(in_doubt):
                    words = "%s: silent for longer than the lease; %d segments are in doubt, the rest goes on"
                    log.warning(words, self._config.client_id, in_doubt)
                case Rejected(refused):
                    self._on_rejected(refused)
                case Waiting(refused):
                    if refused.code != Refusal.NO_SESSION:
                        self._set_stage(f"a place: {refused.reason}")
                case Redial():
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
        try:
            self._follower.join(welcome, self._poller)
        except RL4SysError as exc:
            self._session.reject(time.monotonic())
            self._set_error(exc)
            return
        if self.welcome is not None:
            log.warning("%s: joined again, generation %d", self._config.client_id, welcome.generation)
        self.welcome = welcome
        self._error, self._joined = None, True
        self._update_gate()  # before the first weights: who waits for those must not find the old error
        self.counters.add("joined")

    def _on_new_policy(self) -> None:
        with self.changed:
            self._notify()

    def _on_rejected(self, refused: Refused) -> None:
        if refused.code == Refusal.FAILED:
            self._set_error(ClientFailed(self._config.client_id, refused.reason))
        else:
            code = Refusal(refused.code) if refused.code in set(Refusal) else Refusal.MALFORMED
            self._set_error(HandshakeRefused(code, refused.reason, refused.field))

    # ---- segments

    def _ship(self, now: float) -> None:
        """Sends what may leave: enough for a message, or waiting long enough, or asked for."""
        self._drop_stale()
        if not len(self._outbox):
            self._oldest_since = None
            return
        if self._oldest_since is None:
            self._oldest_since = now
        due = (
            len(self._outbox) >= self._config.send_frequency
            or now - self._oldest_since >= self._config.linger_ms / 1000
            or self.flushing
            or self.waiting
            or self._session.sent_steps + self._outbox.steps >= self._session.credit_steps
        )
        while due and self._session.can_take():
            batch = self._take_batch()
            if not batch:
                break
            self._do(self._session.take(now, batch))
        if not len(self._outbox):
            self._oldest_since = None

    def _take_batch(self) -> list[PackedSegment]:
        batch: list[PackedSegment] = []
        steps = size = frames = 0
        limit = self.welcome.max_message_bytes if self.welcome is not None else 0
        while steps < MAX_BATCH_STEPS and frames < MAX_BODY_FRAMES and len(batch) < max(1, self._config.send_frequency):
            segment = self._outbox.peek()
            if segment is None or (batch and (not self._room(steps, len(batch)) or size + 2 * segment.nbytes > limit)):
                break
            segment = self._outbox.pop()
            if segment is None:
                break
            packed = pack_segment(segment)
            self._assigned_steps += packed.steps
            if packed.nbytes + 65_536 > limit:
                self._outbox.dropped.add("too_large")
                continue
            batch.append(packed)
            steps, size, frames = steps + packed.steps, size + packed.nbytes, frames + len(packed.large)
        return batch

    def _room(self, steps: int, items: int) -> bool:
        session = self._session
        return session.sent_steps + steps < session.credit_steps and session.has_room(items)

    def _drop_stale(self) -> None:
        """Drops at the source what has grown too old to be of use, where the learner would drop it anyway."""
        welcome = self.welcome
        if welcome is None or welcome.max_policy_lag < 0 or welcome.on_lag != "drop" or self.policy is None:
            return
        generation, version = self._follower.held
        while (segment := self._outbox.peek()) is not None:
            oldest = int(segment.versions.min()) if segment.generation == generation else 0
            if version - oldest <= welcome.max_policy_lag:
                return
            dropped = self._outbox.pop()
            if dropped is not None:
                self._assigned_steps += dropped.steps
                self._outbox.dropped.add("lag")

    # ---- the gate

    def _update_gate(self) -> None:
        session = self._session
        joined = session.state is SessionState.JOINED
        limit = self._assigned_steps + session.credit_steps - session.sent_steps if joined else 0
        generation = self.welcome.generation if self.welcome is not None else 0
        stage = "credit or newer weights" if joined else self._stage
        if joined and self.policy is None:
            stage = "the first weights"
        gate = Gate(limit, generation, session.min_version, self._error, stage)
        if gate != self.gate or self.flushing:
            with self.changed:
                self.gate = gate
                self._notify()

    def _set_error(self, error: RL4SysError) -> None:
        if str(error) != str(self._error):
            log.warning("%s: %s", self._config.client_id, error)
        self._error = error
        with self.changed:
            self.gate = Gate(0, self.gate.generation, 0, error, self.gate.stage)
            self._notify()

    def _set_stage(self, stage: str) -> None:
        self._stage = stage
        self.gate = Gate(0, self.gate.generation, 0, self._error, stage)

    def _notify(self) -> None:
        """Wakes waiting hosts; the caller holds `changed`. A host that only acts never takes that lock."""
        self.changed.notify_all()
