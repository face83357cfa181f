"""The actor's I/O thread. It alone uses the network sockets, the spool (queue on disk) and the policy cache (policy in a file).

Host threads put finished segments (runs of steps) into a queue, the outbox, and wake this thread. They read its attributes
`policy` and `credit_gate`. Both are immutable objects that this thread replaces as a whole, so reading them needs no lock.
After an exception the thread counts the error and creates new sockets. The host gets no exception.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from rl4sys_zmq.actor.io.batch_sender import BatchSender
from rl4sys_zmq.actor.io.segment_queue import MemorySegmentQueue, Outbox, SegmentQueue
from rl4sys_zmq.actor.io.session_parameters import SegmentStartConditions, SessionParameters
from rl4sys_zmq.actor.io.throttle import REST_S, IOThrottle
from rl4sys_zmq.actor.io.weight_subscriber import WeightSubscriber
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import (
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
from rl4sys_zmq.liveness import IO_RESTART, SILENCE_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies import Policy
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Address, Wakeup, explain
from rl4sys_zmq.transports.greeting import explain_silence
from rl4sys_zmq.transports.network import ConnectingSocket, Keys, LocalSocketFactory, SocketFactory, SocketPoller
from rl4sys_zmq.values import PolicySpec
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import Beacon, FetchWeights, Hello, Message, Refused, WeightsReply, Welcome

if TYPE_CHECKING:  # modules for optional features are imported only by actors that use them
    from rl4sys_zmq.actor.io.policy_cache import ActorPolicyCache
    from rl4sys_zmq.actor.io.spool import Spool
    from rl4sys_zmq.security import UserKeys

log = get_logger(__name__)

ACK_READ_INTERVAL_S = 0.25
"""Longest time for which acknowledgements stay unread if no thread waits for them, in seconds.

Reading several at once saves work.
"""
EVENTS_S = 1.0
"""The interval at which an actor with a session reads the connection events of its DEALER socket, in seconds."""
MAX_WEIGHTS_READ_S = 0.05
"""The time after which a turn reads no further weights, in seconds, so that a flood of them delays nothing else."""
PROBE_S = 0.2
"""Longest time for one check of an address by this thread, in seconds. The thread does nothing else meanwhile."""
MAX_MESSAGE_FRAMES = 256
SEND_HWM = 8192
"""The high-water mark of the DEALER socket, in messages.

It is higher than the number of messages that the learner permits, so that the socket drops no message.
"""


class ActorIOThread(Worker):
    """The thread that does the network and disk I/O of one actor.

    Attributes:
        credit_gate: The conditions under which a host thread can start a segment (run of steps), or the error that prevents it.
        changed: A condition variable that is notified after each change of `policy` or `credit_gate`.
        counters: The counters of this thread.
        opened: An event that is set once the spool (queue on disk) and the policy cache (policy in a file) have been opened.
            `open_error` is then the error, or None.
        current_at: The monotonic time of the learner's last message in a session, in seconds. Before the first message: the
            time at which the cached policy was saved.
        starting_at: The monotonic time at which the learner last answered that it starts the training, in seconds.
        absence: The error that says why this start has no session, from `AgentConfig.connect_timeout_s` after the start on. None
            before that, and from the first session on.
    """

    def __init__(self, config: AgentConfig, hello: Hello, outbox: Outbox, keys: UserKeys | None = None) -> None:
        """Create the thread without starting it.

        `hello` is the first message to the learner. If the actor has a spool (queue on disk), the thread later replaces the
        actor's name and incarnation (number of this start) in `hello` by those of the spool.
        """
        super().__init__(f"rl4sys-actor-{hello.actor_id[:8]}")
        self.opened = threading.Event()
        self.open_error: RL4SysError | None = None
        self.current_at = self.starting_at = float("-inf")
        self.absence: LearnerUnavailable | None = None
        self.changed = threading.Condition()
        self.counters = Counters()
        self.credit_gate = SegmentStartConditions(0, 0, 0, None, "the learner to answer")
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
        self._release_lock = threading.Lock()
        self._released = self._ended = False
        self._rng = random.Random(hello.incarnation)
        self._session = self._new_session()
        self._weight_subscriber = WeightSubscriber(
            self._address, self._keys, self.counters, self._rng, self._fetch, self._on_new_policy, config
        )
        self._last_policy = _last_policy(config, self._weight_subscriber, self.counters)
        self._io_scheduler = IOThrottle()
        self._batch_sender = BatchSender(config, self._segment_queue, self._session, self._io_scheduler.yield_to_host)
        self._error: RL4SysError | None = None
        self._joined = False
        self._stage = self.credit_gate.stage
        self._reconnect = False
        self._version_errors = 0
        self._seen_items = 0
        self._events_at = 0.0
        self._report_absence_at = float("inf")
        self._dealer: ConnectingSocket
        self._poller: SocketPoller
        self._stopping = False

    # ---- for host threads

    def wake(self) -> None:
        """Wake the thread now, so that it sends finished steps and requests credit (permission to send more steps)."""
        self._wakeup.set()

    def wake_up(self) -> None:
        """Wake the thread, unless it is in a short sleep: after that, within `REST_S` seconds, it reads the queue anyway."""
        if not self._io_scheduler.resting:
            self._wakeup.set()

    def stop(self) -> None:
        """Make the thread end the session and stop."""
        self._stopping = True  # no lock, because a signal handler can call this method in the middle of itself
        self._wakeup.set()

    def release(self) -> None:
        """Close the descriptor that wakes the thread: now, or at the end of the thread if it still runs. Call `stop` first."""
        with self._release_lock:
            self._released = True
            if self._ended or not self.alive:
                self._wakeup.close()

    def renew_lock(self) -> None:
        """Replace the lock, in a forked child."""
        self.changed = threading.Condition()

    @property
    def session_parameters(self) -> SessionParameters | None:
        """The session parameters that the learner last sent; before that, those saved by an earlier start, or None."""
        return self._batch_sender.session_parameters

    @property
    def weight_subscriber(self) -> WeightSubscriber:
        """The object that receives the weights and has the current policy. Host threads read only its policy and spec."""
        return self._weight_subscriber

    @property
    def policy(self) -> Policy | None:
        """The current policy, None before the first weights."""
        return self._weight_subscriber.policy

    @property
    def spec(self) -> PolicySpec | None:
        """The description of the policy, None before the handshake."""
        return self._weight_subscriber.spec

    @property
    def session(self) -> ActorSession:
        """The session (connection with handshake) with the learner. Host threads only read its state and counts."""
        return self._session

    @property
    def segment_queue(self) -> SegmentQueue:
        """The queue of finished segments (runs of steps) that have not been sent. Host threads only read its counts."""
        return self._segment_queue

    @property
    def spool(self) -> Spool | None:
        """The queue of segments (runs of steps) on disk, None if the actor has none. Host threads only read its counts."""
        return self._segment_queue.spool

    @property
    def waiting_segments(self) -> int:
        """The number of finished segments (runs of steps) that have not been sent."""
        return self._segment_queue.items + self._segment_queue.in_hand

    @property
    def idle(self) -> bool:
        """True if all finished segments (runs of steps) have been sent, and the learner has recorded all of them."""
        return not self.waiting_segments and not self._session.in_flight

    def inherit(self, other: ActorIOThread) -> None:
        """Use the policy of `other`, the I/O thread of a forked child's parent. Call this method before `start`."""
        self._batch_sender.session_parameters, self.current_at = other.session_parameters, other.current_at
        self._weight_subscriber.inherit(other._weight_subscriber)

    def roll_back(self, bad: Policy) -> Policy | None:
        """Go back to the policy version before `bad`, as `WeightSubscriber.roll_back` does. Any thread can call this method."""
        return self._weight_subscriber.roll_back(bad)

    def explain_absence(self, stage: str, timeout_s: float, probe_s: float = 0.5) -> LearnerUnavailable:
        """Return the error for a learner that is not available. If the learner never answered, add a reason and a remedy.

        Args:
            stage: What the actor was waiting for, as text.
            timeout_s: The length of the wait, in seconds. 0 adds no reason.
            probe_s: Longest time for one check of the address, in seconds. The call can take three times as long.
        """
        hint, config = "", self._config
        joined = self._session.state is SessionState.JOINED
        if timeout_s and not joined and self.starting_at == float("-inf"):
            reason = explain_silence(config.address, has_keys=config.keys is not None, timeout_s=probe_s)
            hint = f"{reason}; `rl4sys-learner doctor {config.train_server_address}` tests each step" if reason else ""
        return LearnerUnavailable(config.address, stage, round(timeout_s, 3), hint, answers=joined)

    def set_absence(self, error: LearnerUnavailable) -> None:
        """Set `absence`, unless a session has begun meanwhile. Any thread can call this method."""
        with self.changed:
            if not self.counters.get("joined"):
                self.absence = error

    # ---- the thread

    def run(self) -> None:
        """Run the loop of the thread until `stop` is called. After an exception, count it, pause, and create new sockets."""
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
                    self._set_stage(f"its I/O thread to restart ({type(exc).__name__}: {exc})")
                    self._pause(IO_RESTART.pause_s(restarts))
                    restarts += 1
            if self._last_policy is not None:
                self._last_policy.save(self.session_parameters, force=True)
        finally:
            self._segment_queue.close()
            with self._release_lock:
                self._ended = True
                if self._released:
                    self._wakeup.close()

    def _pause(self, seconds: float) -> None:
        """Wait for some seconds, or until `stop`."""
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0.0:
            self._wakeup.wait(left)
            self._wakeup.clear()

    def _open(self) -> None:
        """Open the spool (queue on disk) and load the policy that an earlier start saved, if the configuration has them.

        Raises:
            SpoolError: If the spool cannot be used.
        """
        config = self._config
        if config.spool is not None:
            from rl4sys_zmq.actor.io.spool import Spool, SpoolLimits
            from rl4sys_zmq.actor.io.spooled_queue import SpooledSegmentQueue

            limits = SpoolLimits(config.spool_max_bytes, config.spool_max_age_s, config.queue_items, config.queue_bytes)
            began_s = time.time() - time.monotonic()  # setting the clock later does not change the age of a segment
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
            self._report_absence_at = time.monotonic() + (config.connect_timeout_s or SILENCE_S)

    def _new_session(self) -> ActorSession:
        config = self._config
        coded = config.compression == "zstd"
        return ActorSession(self._hello, self.counters, self._rng, coded=coded, images=config.images)

    def _serve(self, network: SocketFactory) -> None:
        """Send and receive with one set of sockets, until the sockets must be replaced or the thread stops."""
        with network.poller() as poller, network.dealer(self._address, send_hwm=SEND_HWM, keys=self._keys) as dealer:
            self._dealer, self._poller = dealer, poller
            try:
                poller.register(dealer)
                self._listens = True
                poller.register(self._wakeup)
                self._weight_subscriber.network = network
                self._perform(self._session.open(time.monotonic(), self._weight_subscriber.held))
                while not self._reconnect and not self._stopping:
                    self._turn()
                if self._stopping:
                    while self._segment_queue.fill():
                        pass
                    self._perform(self._session.close(time.monotonic()))
            finally:
                self._reconnect = False
                self._weight_subscriber.leave()

    def _turn(self) -> None:
        io_scheduler, session = self._io_scheduler, self._session
        if io_scheduler.busy and session.state is SessionState.JOINED and not (self._urgent or self._stopping):
            ready, listened = self._rest(), False
        else:
            ready, listened = self._wait()
        now = time.monotonic()
        segments, self._seen_items = self._outbox.put_items != self._seen_items, self._outbox.put_items
        io_scheduler.turn(now, segments=segments)
        # Each read of a socket releases the GIL to a host thread and takes it back.
        if self._wakeup in ready:
            self._wakeup.clear()
        if any(source is not self._wakeup and source is not self._dealer for source in ready):
            while self._weight_subscriber.read() and time.monotonic() < now + MAX_WEIGHTS_READ_S:
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
        for actions in self._batch_sender.send_due(
            now, self._weight_subscriber.held if self.policy is not None else None, urgent=self._urgent
        ):
            self._perform(actions)
        self._perform(session.want(now, self._batch_sender.wanted_steps(now, self.want_steps)))
        self._perform(session.tick(now, self._weight_subscriber.held))
        self._weight_subscriber.tick(now)
        self._segment_queue.tick()
        self._update_credit_gate()
        if now >= self._report_absence_at:
            self._report_absence(now)

    def _report_absence(self, now: float) -> None:
        """Log once that the learner does not answer, for an actor that acts by its cached policy and so waits for nothing."""
        timeout_s = self._config.connect_timeout_s or SILENCE_S
        starting_until = self.starting_at + max(SILENCE_S, timeout_s)
        if now < starting_until:  # the learner answers, but is not ready
            self._report_absence_at = starting_until
            return
        self._report_absence_at = float("inf")
        policy = self.policy
        if self.counters.get("joined") or self._error is not None or policy is None:
            return
        error = self.explain_absence(self._stage, timeout_s, PROBE_S)
        words = "%s: %s; the actor acts by its cached policy, version %d, and keeps asking"
        log.warning(words, self._config.client_id, error, policy.version)
        self.set_absence(error)

    @property
    def _urgent(self) -> bool:
        return bool(self.waiting or self.flushing)

    def _rest(self) -> Collection[object]:
        """Sleep for at most `REST_S` seconds, to handle many segments and acknowledgements at once. Return the ready sockets.

        New weights, and a host thread that begins to wait, end the sleep early. A new segment (run of steps) does not: the
        thread reads the queue of finished segments after the sleep.
        """
        self._listen(False)
        self._io_scheduler.resting = True
        try:
            return self._poller.poll(REST_S)
        finally:
            self._io_scheduler.resting = False

    def _wait(self) -> tuple[Collection[object], bool]:
        """Wait for work. Return the sockets that are ready, and True if the wait included the socket of the session."""
        listens = self._must_listen()
        self._listen(listens)
        deadlines = self._session.next_deadline(), self._weight_subscriber.next_deadline, self._segment_queue.next_deadline()
        left = min(*deadlines, self._batch_sender.next_deadline) - time.monotonic()
        return self._poller.poll(min(max(0.0, left), 1.0 if listens else ACK_READ_INTERVAL_S)), listens

    def _must_listen(self) -> bool:
        """Return True if the learner's next message must be read at once.

        Return False if that message can only be an acknowledgement for which no thread waits. The thread then reads several
        acknowledgements at once later, which saves work.
        """
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
        """Find out which segments of the spool (queue on disk) the learner has received, after its first answer to this start.

        The spool discards the segments (runs of steps) that the learner has recorded. The session keeps the segments that the
        learner has received but not recorded so far. If the disk fails, the next call repeats the work.
        """
        segment_queue, session = self._segment_queue, self._session
        if segment_queue.spool is None or segment_queue.spool.reconciled or session.state is not SessionState.JOINED:
            return
        kept = segment_queue.reconcile(session.received, session.durable)
        if kept is not None:
            session.recover(kept)

    # ---- messages from the learner

    def _read_dealer(self) -> None:
        while True:
            try:
                frames = self._dealer.recv(MAX_MESSAGE_FRAMES)
                if frames is None:
                    return
                message = decode(frames)
                if isinstance(message, WeightsReply):
                    self._weight_subscriber.on_fetched(message)
                elif isinstance(message, Beacon):
                    self._weight_subscriber.on_learner_beacon(message)
            except ProtocolError as exc:
                self.counters.add(f"refused.{exc.code.value}")
                self._version_errors += exc.code is RefusalReason.VERSION
                # A single one can be a flipped bit, and a learner that has sent a Welcome uses this version.
                if (
                    exc.code is RefusalReason.VERSION
                    and self._version_errors > 1
                    and self._session.state is not SessionState.JOINED
                ):
                    self._set_error(HandshakeRefused(exc.code, f"it uses {exc.detail}; install the same major version"))
                continue
            self._version_errors = 0
            self._perform(self._session.on_message(time.monotonic(), message))
            if self._session.state is SessionState.JOINED:
                self.current_at = time.monotonic()

    def _read_events(self) -> None:
        """Record the reasons for failed connections, so that error messages can tell a wrong key from an absent learner."""
        for event in self._dealer.events():
            if not event.is_failure:
                continue
            self.counters.add(f"connections.{event.name}")
            if self._session.state is SessionState.JOINED:
                continue
            words = explain(event, "actor")
            if event.is_final:
                self._session.reject(time.monotonic())
                self._set_error(HandshakeRefused(RefusalReason.FORBIDDEN, words, "keys"))
            else:
                self._set_stage(f"the handshake: {words}")

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            self._io_scheduler.yield_to_host()
            match action:
                case SendMessage(message):
                    self._send(message)
                case SessionJoined(welcome):
                    self._on_joined(welcome)
                case StreamRestarted(in_doubt):
                    words = "%s: silent for longer than the lease, so it joins as a new incarnation; %d segments are in doubt"
                    log.warning(words, self._config.client_id, in_doubt)
                case ReplaceSockets(incarnation):
                    self._on_raised(incarnation)
                case SessionRefused(refused):
                    self._on_rejected(refused)
                case SessionTemporarilyRefused(refused):
                    if refused.code == RefusalReason.STARTING:
                        self.starting_at = time.monotonic()
                    if refused.code != RefusalReason.NO_SESSION:
                        self._set_stage(f"the learner to accept this actor: {refused.reason}")
                case Reconnect():
                    self.counters.add("redials")
                    if self._joined:
                        log.warning("%s: the learner at %s is silent; reconnecting", self._config.client_id, self._address.uri)
                    self._joined = False
                    self._set_stage("the learner to answer")
                    self._reconnect = True

    def _send(self, message: Message) -> None:
        if not self._dealer.send(encode(message)):
            self.counters.add("sends_refused.full")  # the session's timers resend the messages that need it

    def _fetch(self, message: FetchWeights) -> None:
        if self._session.state is SessionState.JOINED:
            self._send(message)

    def _on_joined(self, welcome: Welcome) -> None:
        if welcome.gap:
            log.warning("%s: the learner has lost %d segments that it had acknowledged", self._config.client_id, welcome.gap)
        if self._config.type not in (None, welcome.algorithm_type):
            words = "%s: the configuration has type %r, but the algorithm %s is %s"
            log.warning(words, self._config.client_id, self._config.type, welcome.algorithm_name, welcome.algorithm_type)
        self._reconcile()  # even if this session fails next, the next HELLO must not claim that these were released
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
        self._update_credit_gate()  # before the first weights: a thread that waits for those must not see the old error
        with self.changed:
            self.counters.add("joined")
            self.absence = None

    def _on_new_policy(self) -> None:
        with self.changed:
            self._notify()
        self._io_scheduler.yield_now()  # to the threads that waited for it
        if self._last_policy is not None:
            self._last_policy.save(self.session_parameters)

    def _on_raised(self, incarnation: int) -> None:
        """Continue with a higher incarnation (number of a start), because the learner has a record of a later start.

        The thread then uses new sockets, so that no answer to the old HELLO arrives.
        """
        words = "%s: the learner has a record of a later incarnation of %s; this start continues as incarnation %d"
        log.warning(words, self._config.client_id, self._hello.actor_id, incarnation)
        if (spool := self.spool) is not None:
            spool.set_incarnation(incarnation)
        self._reconnect = True

    def _on_rejected(self, refused: Refused) -> None:
        if refused.code == RefusalReason.FAILED:
            self._set_error(ClientFailed(self._config.client_id, refused.reason))
        else:
            code = RefusalReason(refused.code) if refused.code in set(RefusalReason) else RefusalReason.MALFORMED
            self._set_error(HandshakeRefused(code, refused.reason, refused.field))

    # ---- the credit gate

    def _update_credit_gate(self) -> None:
        session = self._session
        joined = session.state is SessionState.JOINED
        limit = self._batch_sender.assigned_steps + session.credit_steps - session.sent_steps if joined else 0
        generation = self.session_parameters.generation if self.session_parameters is not None else 0
        stage = "credit or newer weights" if joined else self._stage
        if joined and self.policy is None:
            stage = "the first weights"
        credit_gate = SegmentStartConditions(limit, generation, session.min_version, self._error, stage)
        if credit_gate != self.credit_gate or self.flushing:
            with self.changed:
                self.credit_gate = credit_gate
                self._notify()

    def _set_error(self, error: RL4SysError) -> None:
        if str(error) != str(self._error):
            log.warning("%s: %s", self._config.client_id, error)
        self._error = error
        with self.changed:
            self.credit_gate = SegmentStartConditions(0, self.credit_gate.generation, 0, error, self.credit_gate.stage)
            self._notify()

    def _set_stage(self, stage: str) -> None:
        self._stage = stage
        self.credit_gate = SegmentStartConditions(0, self.credit_gate.generation, 0, self._error, stage)

    def _notify(self) -> None:
        """Wake the host threads that wait. The caller holds the lock of `changed`, which requests for actions never take."""
        self.changed.notify_all()


def _last_policy(config: AgentConfig, weight_subscriber: WeightSubscriber, counters: Counters) -> ActorPolicyCache | None:
    path = config.cache_file
    if path is None:
        return None
    from rl4sys_zmq.actor.io.policy_cache import ActorPolicyCache

    return ActorPolicyCache(config, path, weight_subscriber, counters)


def _network(config: AgentConfig) -> SocketFactory:
    if not config.sidecar:
        return LocalSocketFactory()
    from rl4sys_zmq.transports.sidecar_sockets import SidecarSocketFactory

    return SidecarSocketFactory()
