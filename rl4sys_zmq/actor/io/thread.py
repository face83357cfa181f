"""The actor's I/O thread. Only this thread uses the network sockets, the session, the spool and the policy cache.

Host threads put segments into the outbox and wake this thread. They read the policy and `host`, whose immutable objects this
thread replaces as a whole, without a lock. The host gets no exception: the thread counts it and creates new sockets.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from rl4sys_zmq.actor.io.shared_state import REST_S, ActorSharedState, IOThrottle, SessionParameters
from rl4sys_zmq.actor.io.weight_subscriber import WeightSubscriber
from rl4sys_zmq.actor.segments import Outbox
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.session import (
    Action,
    ActorSession,
    Reconnect,
    ReplaceSockets,
    SendMessage,
    SessionJoined,
    SessionRefused,
    SessionState,
    SessionTemporarilyRefused,
    StreamRestarted,
)
from rl4sys_zmq.errors import ClientFailed, HandshakeRefused, LearnerUnavailable, ProtocolError, RefusalReason, RL4SysError
from rl4sys_zmq.interfaces import ConnectingSocket
from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.liveness import IO_RESTART
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.machine import REPORT_S, UsageSampler
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Address, Poller, Wakeup, explain
from rl4sys_zmq.transports.greeting import explain_silence
from rl4sys_zmq.transports.network import Keys, SocketFactory
from rl4sys_zmq.wire import PackedSegment, decode, encode
from rl4sys_zmq.wire.messages import ActorReport, Beacon, FetchWeights, Hello, Message, Refused, WeightsReply, Welcome

if TYPE_CHECKING:  # modules for optional features are imported only by actors that use them
    from rl4sys_zmq.actor.io.policy_cache import ActorPolicyCache
    from rl4sys_zmq.security.keys import UserKeys

log = get_logger(__name__)

ACK_READ_INTERVAL_S = 0.25
"""Longest time for which acknowledgements stay unread if no thread waits for them: reading several saves work."""
EVENTS_S = 1.0
"""The interval at which an actor with a session reads the connection events of its DEALER socket."""
MAX_WEIGHTS_READ_S = 0.05
"""The time after which a turn reads no further weights, so that a flood of them delays nothing else."""
SEND_HWM = 8192
"""In messages. Above what the learner permits, so that the socket drops none."""


MAX_BATCH_STEPS = 16_384
MAX_BATCH_ITEMS, MAX_BATCH_BYTES = 64, 1 << 20
"""The limits of one message, beyond its first ``send_frequency`` segments.

A message with one segment costs the learner nearly as much as a message with 16.
"""
MAX_BODY_FRAMES = 200
ENTRY_BYTES = 65_536
"""An upper limit on the size of a segment's header in a message, in bytes."""
CREDIT_AHEAD_S = 0.5
"""The time after a message during which the actor requests credit in advance, to save a round trip each."""


class BatchSender:
    """The sender that passes segments from the outbox to the session, in batches. The I/O thread uses it."""

    def __init__(
        self,
        config: AgentConfig,
        outbox: Outbox,
        session: ActorSession,
        host: ActorSharedState,
        yield_to_host: Callable[[], None],
    ) -> None:
        self.first_version = 0  # newest policy version when this actor first joined the learner thread that now trains
        self._linger_s = config.linger_ms / 1000
        self._min_batch_items = max(1, config.send_frequency)
        self._config, self._outbox, self._session, self._host = config, outbox, session, host
        self._yield_to_host = yield_to_host
        self._oldest_since: float | None = None
        self._shipped_at = float("-inf")
        self._shipped_steps = 0

    @property
    def next_deadline(self) -> float:
        """The monotonic time at which the oldest queued segment must be sent; infinity if none can be sent."""
        if self._oldest_since is None or not self._session.can_take():
            return float("inf")
        return self._oldest_since + self._linger_s

    @property
    def assigned_steps(self) -> int:
        """The number of steps in segments that have left the outbox, because they were sent or dropped."""
        return self._outbox.put_steps - self._outbox.steps

    def send_due(self, now: float, held: tuple[int, int] | None, *, urgent: bool) -> Iterator[list[Action]]:
        """Pass queued segments to the session, if it is time. The caller must carry out each yielded list at once.

        Such a list has what the session wants to be done, for example to send a message. `held` is the (generation, version)
        that the actor has; with `urgent`, a host thread waits.
        """
        outbox, session = self._outbox, self._session
        if held is not None:
            self._drop_stale(*held)
        if not outbox.items:
            self._oldest_since = None
            return
        if self._oldest_since is None:
            self._oldest_since = now
        due = (
            urgent
            or outbox.items >= self._min_batch_items
            or now - self._oldest_since >= self._linger_s
            or session.sent_steps + outbox.steps >= session.credit_steps
        )
        shipped = 0
        while due and session.can_take() and (batch := self._take_batch()):
            shipped += sum(packed.steps for packed in batch)
            actions = session.take(now, batch, ahead_steps=self._ahead(now, shipped))
            outbox.in_hand = 0
            yield actions
        if shipped:
            self._shipped_at, self._shipped_steps = now, shipped
        if not outbox.items:
            self._oldest_since = None

    def wanted_steps(self, now: float) -> int:
        """Return the total number of steps for which the actor needs credit: all steps sent so far, and the next ones."""
        asked_steps = self._host.want_steps - self.assigned_steps
        return self._session.sent_steps + max(self._outbox.steps, asked_steps, self._ahead(now, self._shipped_steps))

    def _ahead(self, now: float, steps: int) -> int:
        return steps if now - self._shipped_at < CREDIT_AHEAD_S else 0

    def _take_batch(self) -> list[PackedSegment]:
        outbox = self._outbox
        batch: list[PackedSegment] = []
        steps = size = frames = 0
        parameters = self._host.session_parameters
        limit = parameters.max_message_bytes if parameters is not None else 0
        while steps < MAX_BATCH_STEPS and frames < MAX_BODY_FRAMES and len(batch) < max(self._min_batch_items, MAX_BATCH_ITEMS):
            self._yield_to_host()
            head = outbox.peek()
            if head is None or (batch and (not self._session.has_room(len(batch), steps) or size + 2 * head.nbytes > limit)):
                break
            if len(batch) >= self._min_batch_items and size + head.nbytes > MAX_BATCH_BYTES:
                break
            if head.nbytes + ENTRY_BYTES > limit:
                if not outbox.drop("too_large"):
                    break
                continue
            outbox.in_hand = len(batch) + 1
            packed = outbox.take()
            if packed is None:
                outbox.in_hand = len(batch)
                break
            batch.append(packed)
            steps, size, frames = steps + packed.steps, size + packed.nbytes, frames + len(packed.large)
        return batch

    def _drop_stale(self, generation: int, version: int) -> None:
        """Drop segments of policy versions on which the learner would not train, or to which the credit does not apply."""
        outbox, parameters = self._outbox, self._host.session_parameters
        if outbox.spool is not None or not self._config.explore or parameters is None:
            return
        if parameters.max_policy_lag < 0 or parameters.on_lag != "drop":
            return
        lowest = version - parameters.max_policy_lag
        room = self._session.credit_steps - self._session.sent_steps
        # A host that collects faster than the learner trains sends its newest segments.
        if self._config.overflow == "drop_oldest" and room > 0 and not self._session.leaving:
            lowest = max(lowest, outbox.newest_version(room, generation))
        while (head := outbox.peek()) is not None:
            oldest = head.oldest_version
            if head.generation != generation:  # no newer than the first version of the current generation
                oldest = min(oldest, self.first_version)
            if oldest >= lowest or not outbox.drop("lag"):
                return


class ActorIOThread(Worker):
    """The thread that does the network and disk I/O of one actor.

    Host threads use the shared state `host`. Of all other attributes, host threads only read states, counts and the policy.
    """

    def __init__(self, config: AgentConfig, hello: Hello, outbox: Outbox, keys: UserKeys | None = None) -> None:
        super().__init__(f"rl4sys-actor-{hello.actor_id[-8:]}")
        self._usage, self._report_at = UsageSampler(config.spool) if config.report_system else None, 0.0
        self.host = ActorSharedState()
        self.counters = Counters()
        self._config = config
        self._hello = hello
        self.outbox = outbox
        self._address = Address.parse(config.address)
        self._keys: Keys | None = (keys.own.public, keys.own.secret, keys.learner_public) if keys is not None else None
        self._wakeup = Wakeup()
        self._release_lock = threading.Lock()
        self._released = self._ended = False
        self._rng = random.Random(hello.incarnation)
        self._throttle = IOThrottle()
        self._new_session()
        self.weight_subscriber = WeightSubscriber(
            self._address, self._keys, self.counters, self._rng, self._fetch, self._on_new_policy, config
        )
        self._policy_cache: ActorPolicyCache | None = None
        self._joined = self._reconnect = self._stopping = False
        self._version_errors = self._seen_items = 0
        self._events_at = 0.0
        self._dealer: ConnectingSocket
        self._poller: Poller

    def wake_now(self) -> None:
        self._wakeup.set()

    def wake_unless_resting(self) -> None:
        """Wake the thread, unless it is in a short sleep, after which it reads the outbox anyway."""
        if not self._throttle.resting:
            self._wakeup.set()

    def stop(self) -> None:
        self._stopping = True  # no lock, because a signal handler can call this method in the middle of itself
        self._wakeup.set()

    def release(self) -> None:
        """Close the descriptor that wakes the thread: now, or at the end of the thread if it still runs. Call `stop` first."""
        with self._release_lock:
            self._released = True
            if self._ended or not self.alive:
                self._wakeup.close()

    @property
    def waiting_segments(self) -> int:
        return self.outbox.items + self.outbox.in_hand

    @property
    def idle(self) -> bool:
        """True if all finished segments have been sent, and the learner has recorded all of them."""
        return not self.waiting_segments and not self.session.in_flight

    def explain_absence(self, stage: str, timeout_s: float, probe_s: float = 0.5) -> LearnerUnavailable:
        """Return the error for an unavailable learner. If it never answered, probe its address to find a reason and a remedy."""
        return explain_absence(self._config, self.session.state, self.host, stage, timeout_s, probe_s)

    def run(self) -> None:
        """Run the loop of the thread until `stop` is called. After an exception, pause, and create new sockets."""
        try:
            try:
                self._open()
            except RL4SysError as exc:
                self.host.open_error = exc
                return
            finally:
                self.host.opened.set()
                self.host.notify()
            restarts = 0
            while not self._stopping:
                try:
                    with _network(self._config) as network:
                        while not self._stopping:
                            self._serve(network)
                            restarts = 0
                except Exception as exc:  # it must not reach the host; stats() and the log report it
                    log.exception("the I/O thread of an actor of %s failed and restarts", self._config.client_id)
                    self.counters.add("io_restarts")
                    self.host.set_stage(f"its I/O thread to restart ({type(exc).__name__}: {exc})")
                    self._pause(IO_RESTART.pause_s(restarts))
                    restarts += 1
            if self._policy_cache is not None:
                self._policy_cache.save(force=True)
        finally:
            self.outbox.close()
            with self._release_lock:
                self._ended = True
                if self._released:
                    self._wakeup.close()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0.0:
            self._wakeup.wait(left)
            self._wakeup.clear()

    def _open(self) -> None:
        """Open the spool and load the cached policy, if the configuration has them."""
        config = self._config
        if config.spool is not None:
            from rl4sys_zmq.actor.io.spool import Spool, SpoolLimits

            limits = SpoolLimits(config.spool_max_bytes, config.spool_max_age_s, config.queue_items, config.queue_bytes)
            began_s = time.time() - time.monotonic()  # setting the clock later does not change the age of a segment
            spool = self.outbox.spool = Spool(
                config.spool,
                config.client_id,
                limits,
                actor_id=config.actor_id,
                clock=lambda: began_s + time.monotonic(),
            )
            self._hello = replace(
                self._hello,
                actor_id=spool.actor_id,
                incarnation=spool.incarnation,
                origin=spool.origin,
                first_seq=spool.base_seq,
                journal_id=spool.journal_id,
                spooled=True,
            )
            self._new_session()
        if config.cache_file is not None:
            from rl4sys_zmq.actor.io.policy_cache import ActorPolicyCache

            self._policy_cache = ActorPolicyCache(config, config.cache_file, self.weight_subscriber, self.host, self.counters)
            self._policy_cache.take_up()

    def _new_session(self) -> None:
        config, coded = self._config, self._config.compression == "zstd"
        self.session = ActorSession(self._hello, self.counters, self._rng, coded=coded, images=config.images)
        self._batch_sender = BatchSender(config, self.outbox, self.session, self.host, self._throttle.yield_to_host)

    def _serve(self, network: SocketFactory) -> None:
        """Send and receive with one set of sockets, until the sockets must be replaced or the thread stops."""
        with network.poller() as poller, network.dealer(self._address, send_hwm=SEND_HWM, keys=self._keys) as dealer:
            self._dealer, self._poller = dealer, poller
            try:
                poller.register(dealer)
                self._listens = True
                poller.register(self._wakeup)
                self.weight_subscriber.network = network
                self._perform(self.session.open(time.monotonic(), self.weight_subscriber.held))
                while not self._reconnect and not self._stopping:
                    self._turn()
                if self._stopping:
                    while self.outbox.fill_spool():
                        pass
                    self._perform(self.session.close(time.monotonic()))
            finally:
                self._reconnect = False
                self.weight_subscriber.leave()

    def _turn(self) -> None:
        throttle, session = self._throttle, self.session
        if throttle.busy and session.state is SessionState.JOINED and not (self.host.urgent or self._stopping):
            ready, listened = self._rest(), False
        else:
            ready, listened = self._wait()
        now = time.monotonic()
        segments, self._seen_items = self.outbox.put_items != self._seen_items, self.outbox.put_items
        throttle.turn(now, segments=segments)
        # Each read of a socket releases the GIL to a host thread and takes it back.
        if self._wakeup in ready:
            self._wakeup.clear()
        if any(source is not self._wakeup and source is not self._dealer for source in ready):
            while self.weight_subscriber.receive_one() and time.monotonic() < now + MAX_WEIGHTS_READ_S:
                throttle.yield_to_host()
        if not listened or self._dealer in ready:
            self._read_dealer()
        if now >= self._events_at or session.state is not SessionState.JOINED:
            self._events_at = now + EVENTS_S
            self._read_events()
        spool = self.outbox.spool
        if spool is not None:
            spool.release(session.durable)
        while self.outbox.fill_spool():
            throttle.yield_to_host()
        self._reconcile()
        now = time.monotonic()
        held = self.weight_subscriber.held if self.weight_subscriber.policy is not None else None
        for actions in self._batch_sender.send_due(now, held, urgent=self.host.urgent):
            self._perform(actions)
        self._perform(session.want(now, self._batch_sender.wanted_steps(now)))
        self._perform(session.tick(now, self.weight_subscriber.held))
        self.weight_subscriber.tick(now)
        if self._usage is not None and now >= self._report_at and session.state is SessionState.JOINED:
            self._report_at = now + REPORT_S
            self._send(ActorReport(**self._usage.sample()[os.getpid()]))
        if spool is not None:
            spool.tick()
        self._update_credit_gate()
        if self._policy_cache is not None:
            self._policy_cache.report_absence(now, self.explain_absence)

    def _rest(self) -> Collection[object]:
        """Sleep for at most `REST_S` seconds. New weights, and a host thread that begins to wait, end the sleep."""
        self._listen(False)
        self._throttle.resting = True
        try:
            return self._poller.poll(REST_S)
        finally:
            self._throttle.resting = False

    def _wait(self) -> tuple[Collection[object], bool]:
        """Wait for work. Return the ready sockets, and True if the wait included the socket of the session."""
        listens = self._must_listen()
        self._listen(listens)
        deadlines = [self.session.next_deadline(), self.weight_subscriber.next_deadline, self._batch_sender.next_deadline]
        if self.outbox.spool is not None:
            deadlines.append(self.outbox.spool.next_deadline())
        left = min(deadlines) - time.monotonic()
        return self._poller.poll(min(max(0.0, left), 1.0 if listens else ACK_READ_INTERVAL_S)), listens

    def _must_listen(self) -> bool:
        """Return True unless the learner's next message can only be an acknowledgement for which no thread waits."""
        session = self.session
        return (
            session.state is not SessionState.JOINED
            or not session.in_flight
            or (self.outbox.items > 0 and not session.can_take())
            or self.weight_subscriber.fetching
            or self.host.urgent
        )

    def _listen(self, listens: bool) -> None:
        if listens is not self._listens:
            if listens:
                self._poller.register(self._dealer)
            else:
                self._poller.unregister(self._dealer)
            self._listens = listens

    def _reconcile(self) -> None:
        """Find out which segments of the spool the learner has received, once a session has begun."""
        spool, session = self.outbox.spool, self.session
        if spool is None or spool.reconciled or session.state is not SessionState.JOINED:
            return
        kept = spool.reconcile(session.received, session.durable)
        if kept is not None:  # else the disk fails, and the next call tries again
            session.recover(kept)

    def _read_dealer(self) -> None:
        while True:
            try:
                frames = self._dealer.recv(MAX_MESSAGE_FRAMES)
                if frames is None:
                    return
                message = decode(frames)
                if isinstance(message, WeightsReply):
                    self.weight_subscriber.on_fetched(message)
                elif isinstance(message, Beacon):
                    self.weight_subscriber.on_learner_beacon(message)
            except ProtocolError as exc:
                self.counters.add(f"refused.{exc.code.value}")
                self._version_errors += exc.code is RefusalReason.VERSION
                # A single one can be a flipped bit, and a learner that has sent a Welcome uses this version.
                if (
                    exc.code is RefusalReason.VERSION
                    and self._version_errors > 1
                    and self.session.state is not SessionState.JOINED
                ):
                    self._set_error(HandshakeRefused(exc.code, f"it uses {exc.detail}; install the same major version"))
                continue
            self._version_errors = 0
            self._perform(self.session.on_message(time.monotonic(), message))
            if self.session.state is SessionState.JOINED:
                self.host.current_at = time.monotonic()

    def _read_events(self) -> None:
        """Record the reasons for failed connections, so that errors can tell a wrong key from an absent learner."""
        for event in self._dealer.events():
            if not event.is_failure:
                continue
            self.counters.add(f"connections.{event.name}")
            if self.session.state is SessionState.JOINED:
                continue
            reason = explain(event, "actor")
            if event.is_final:
                self.session.reject(time.monotonic())
                self._set_error(HandshakeRefused(RefusalReason.FORBIDDEN, reason, "keys"))
            else:
                self.host.set_stage(f"the handshake: {reason}")

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            self._throttle.yield_to_host()
            match action:
                case SendMessage(message):
                    self._send(message)
                case SessionJoined(welcome):
                    self._on_joined(welcome)
                case StreamRestarted(in_doubt):
                    text = "%s: silent for longer than the lease, so it joins as a new incarnation; %d segments are in doubt"
                    log.warning(text, self._config.client_id, in_doubt)
                case ReplaceSockets(incarnation):
                    self._on_raised(incarnation)
                case SessionRefused(refused):
                    self._on_rejected(refused)
                case SessionTemporarilyRefused(refused):
                    if refused.code == RefusalReason.STARTING:
                        self.host.starting_at = time.monotonic()
                    if refused.code != RefusalReason.NO_SESSION:
                        self.host.set_stage(f"the learner to accept this actor: {refused.reason}")
                case Reconnect():
                    self.counters.add("redials")
                    if self._joined:
                        log.warning("%s: the learner at %s is silent; reconnecting", self._config.client_id, self._address.uri)
                    self._joined = False
                    self.host.set_stage("the learner to answer")
                    self._reconnect = True

    def _send(self, message: Message) -> None:
        if not self._dealer.send(encode(message)):
            self.counters.add("sends_refused.full")  # the session's timers resend the messages that need it

    def _fetch(self, message: FetchWeights) -> None:
        if self.session.state is SessionState.JOINED:
            self._send(message)

    def _on_joined(self, welcome: Welcome) -> None:
        if welcome.gap:
            log.warning("%s: the learner has lost %d segments that it had acknowledged", self._config.client_id, welcome.gap)
        if self._config.type not in (None, welcome.algorithm_type):
            message = "%s: the configuration has type %r, but the algorithm %s is %s"
            log.warning(message, self._config.client_id, self._config.type, welcome.algorithm_name, welcome.algorithm_type)
        self._reconcile()  # even if this session fails next, the next HELLO must not claim that these were released
        self._throttle.yield_to_host()
        try:
            self.weight_subscriber.join(welcome, self._poller)
        except RL4SysError as exc:
            self.session.reject(time.monotonic())
            self._set_error(exc)
            return
        self._throttle.yield_to_host()
        if self.host.joined:
            log.warning("%s: joined again, generation %d", self._config.client_id, welcome.generation)
        before = self.host.session_parameters
        if before is None or before.generation != welcome.generation:
            self._batch_sender.first_version = welcome.version
        self.host.session_parameters = SessionParameters.of(welcome)
        if (spool := self.outbox.spool) is not None:
            spool.set_journal(welcome.journal_id)
        self.host.error, self._joined = None, True
        self._update_credit_gate()  # before the first weights: a thread that waits for those must not see the old error
        self.host.on_joined()
        self.counters.add("joined")

    def _on_new_policy(self) -> None:
        self.host.notify()
        self._throttle.yield_now()  # to the threads that waited for it
        if self._policy_cache is not None:
            self._policy_cache.save()

    def _on_raised(self, incarnation: int) -> None:
        """Continue under a higher incarnation. New sockets keep out answers to the handshake of the lower one."""
        message = "%s: the learner has a record of a later incarnation of %s; this start continues as incarnation %d"
        log.warning(message, self._config.client_id, self._hello.actor_id, incarnation)
        if (spool := self.outbox.spool) is not None:
            spool.set_incarnation(incarnation)
        self._reconnect = True

    def _on_rejected(self, refused: Refused) -> None:
        if refused.code == RefusalReason.FAILED:
            self._set_error(ClientFailed(self._config.client_id, refused.reason))
        else:
            code = RefusalReason(refused.code) if refused.code in set(RefusalReason) else RefusalReason.MALFORMED
            self._set_error(HandshakeRefused(code, refused.reason, refused.field))

    def _update_credit_gate(self) -> None:
        session = self.session
        joined = session.state is SessionState.JOINED
        limit = self._batch_sender.assigned_steps + session.credit_steps - session.sent_steps if joined else 0
        parameters = self.host.session_parameters
        stage = "credit or newer weights" if joined else self.host.stage
        if joined and self.weight_subscriber.policy is None:
            stage = "the first weights"
        self.host.open_gate(limit, parameters.generation if parameters is not None else 0, session.min_version, stage)

    def _set_error(self, error: RL4SysError) -> None:
        if str(error) != str(self.host.error):
            log.warning("%s: %s", self._config.client_id, error)
        self.host.set_error(error)


def explain_absence(
    config: AgentConfig, state: SessionState, host: ActorSharedState, stage: str, timeout_s: float, probe_s: float
) -> LearnerUnavailable:
    """Return the error for an unavailable learner. If it never answered, probe its address to find a reason and a remedy."""
    hint, joined = "", state is SessionState.JOINED
    if timeout_s and not joined and host.starting_at == float("-inf"):
        reason = explain_silence(config.address, has_keys=config.keys is not None, timeout_s=probe_s)
        hint = f"{reason}; `rl4sys-learner doctor {config.train_server_address}` tests each step" if reason else ""
    return LearnerUnavailable(config.address, stage, round(timeout_s, 3), hint, answers=joined)


def _network(config: AgentConfig) -> SocketFactory:
    if not config.sidecar:
        return SocketFactory()
    from rl4sys_zmq.transports.sidecar import SidecarSocketFactory

    return SidecarSocketFactory()
