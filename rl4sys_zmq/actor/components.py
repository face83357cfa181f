"""The parts of an agent in one process, the state of each thread that uses it, and the waits for its I/O thread."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import xxhash

from rl4sys_zmq.actor.io.segment_queue import Outbox
from rl4sys_zmq.actor.io.thread import ActorIOThread
from rl4sys_zmq.actor.remote import InferenceCaller, PlaceholderPolicy
from rl4sys_zmq.actor.segments import AgentIdentity, LateRewardQueue, PolicyStamp
from rl4sys_zmq.actor.wait_timer import WaitTimer
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import SessionState
from rl4sys_zmq.delivery.incarnation import first_incarnation
from rl4sys_zmq.errors import Closed, ConfigError, LearnerUnavailable, ProtocolError
from rl4sys_zmq.liveness import CLIENT_START_S, SILENCE_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies import Act, ExtraColumnPolicy, Policy, RandomSource, bind
from rl4sys_zmq.policies.column_policy import BoundStep
from rl4sys_zmq.values import space_to_json
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Hello

if TYPE_CHECKING:
    from rl4sys_zmq.security import UserKeys

log = get_logger(__name__)


class ThreadState:
    """The state that an agent keeps for one host thread, a thread of the program that embeds it.

    Attributes:
        sampler: The thread's source of random numbers.
        policy: The policy version that the thread acts by, None before the first action.
        act: The method `act` of `policy`, bound to this thread's random numbers and buffers.
        step: The method `step` of `policy` in the same form, if the policy has extra columns.
        stamp: The policy version as the thread's actions record it. The actions share this object.
        last_act: A copy of the thread's last action for the environment, which is used again after invalid input. None before the
            first action, and with ``on_bad_input: raise``.
        calls_until_cut: The number of batched requests until all trajectories of the batch are cut into segments (runs of steps
            to send) together.
        batch_width: The number of environments in the last batched request.
    """

    __slots__ = ("_explore", "_owner", "act", "batch_width", "calls_until_cut", "last_act", "policy", "sampler", "stamp", "step")

    act: Act
    step: BoundStep
    stamp: PolicyStamp

    def __init__(self, seed: int, explore: bool, owner: AgentIdentity, place: float = 0.0) -> None:
        self._explore, self._owner = explore, owner
        self.sampler = RandomSource(seed, place)
        self.policy: Policy | None = None
        self.last_act: Any = None
        self.calls_until_cut = 0
        self.batch_width = 0

    def take(self, policy: Policy) -> None:
        """Make `policy` the policy for the next actions of this thread."""
        if policy is not self.policy:
            if isinstance(policy, ExtraColumnPolicy):
                self.step = policy.bind_step(self.sampler, self._explore)
            self.act = bind(policy, self.sampler, self._explore)
            self.stamp = PolicyStamp(policy.generation, policy.version, self._owner, "", _reference(policy), self.sampler)
            self.policy = policy


def _reference(policy: Policy) -> Callable[[], Policy | None]:
    """Return a weak reference to a policy; a strong one if its class permits no weak one."""
    try:
        return weakref.ref(policy)
    except TypeError:
        return lambda: policy


class CurrentThreadState(threading.local):
    """A thread-local object whose `state` is the `ThreadState` of the current thread of the host program.

    The thread's random numbers depend on the agent's seed and on the number of threads that used the agent before.
    """

    def __init__(self, seed: int, numbers: itertools.count[int], explore: bool, owner: AgentIdentity, place: float = 0.0) -> None:
        self.state = ThreadState(seed << 32 | next(numbers), explore, owner, place)


def exploration_place(actor_id: str) -> float:
    """Return a number in ``[0, 1)`` that depends only on an actor's name, for `RandomSource.place`.

    The numbers of many names are spread evenly, so the actors need not know each other.
    """
    return (xxhash.xxh3_64_intdigest(actor_id.encode()) >> 11) * 2.0**-53


class AgentComponents:
    """The parts that make up an agent in one process. The agent in a forked child process creates new ones.

    Attributes:
        config: The agent's configuration. In a forked child, without the parent's actor name, spool and policy cache.
        actor_id: The name by which the learner identifies the actor.
        owner: The agent, as its actions and trajectories know it. The agent in a forked child has the same object.
        counters: The counters of the host threads.
        outbox: The queue of finished segments (runs of steps), from host threads to the I/O thread.
        io: The I/O thread, which owns the sockets, the spool (queue on disk) and the policy cache (the policy in a file).
        threads: The state of each host thread.
        pending: The closed segments that wait for late rewards before they go into the outbox.
        remote: Calls the learner's inference service. None with ``inference: local``.
        credit_wait: The time that host threads have waited in `admit`, for the learner's credit or for newer weights.
        no_policy: The placeholder for the policy of an actor that started without its learner, until the first policy arrives.
        closed: True once the agent is closed. `wait` then raises Closed.
    """

    def __init__(
        self, config: AgentConfig, keys: UserKeys | None, counters: Counters, parent: AgentComponents | None = None
    ) -> None:
        """Start the I/O thread, and wait until it has opened the files on disk.

        Args:
            config: The agent's configuration.
            keys: The keys to use, None for a learner without keys.
            counters: The counters of the host threads.
            parent: In a forked child, the components of the parent process. The child starts with the parent's policy.

        Raises:
            ConfigError: If the configuration does not fit into the first message to the learner (`Hello`).
        """
        self.config = config
        self.actor_id = config.actor_id or uuid.uuid4().hex
        drops = config.on_bad_input == "drop"
        self.owner: AgentIdentity = AgentIdentity(counters, drops_bad_input=drops) if parent is None else parent.owner
        self.counters = counters
        self.no_policy: PlaceholderPolicy | None = parent.no_policy if parent is not None else None
        self.closed = False
        self.credit_wait = WaitTimer()
        self._waits = config.overflow == "wait" and config.explore
        self.outbox = Outbox(config.queue_items, config.queue_bytes, drops=not self._waits)
        hello = _hello(config, self.actor_id)
        try:
            encode(hello)
        except ProtocolError as exc:
            raise ConfigError(f"the configuration cannot be encoded: {exc.detail}", key="algorithm_parameters") from exc
        self.io = ActorIOThread(config, hello, self.outbox, keys)
        seed = config.seed if config.seed is not None else random.SystemRandom().getrandbits(128)
        if parent is not None:
            self.io.inherit(parent.io)
            seed = seed << 32 | os.getpid()
        self.pending = LateRewardQueue(self.outbox, config.reward_timeout_s, self.io.wake_up, evaluates=not config.explore)
        self.remote = InferenceCaller(config, counters) if config.inference != "local" else None
        try:
            self.io.start()
            self.io.opened.wait()
        except BaseException:  # also an exception of a signal handler, such as KeyboardInterrupt
            self.io.stop()
            self.io.release()
            raise
        if self.io.spool is not None:
            self.actor_id = self.io.spool.actor_id
        place = exploration_place(self.actor_id)
        self.threads = CurrentThreadState(seed, itertools.count(), config.explore, self.owner, place)

    def renew_locks(self) -> None:
        """Replace the locks, in a forked child: a thread that does not exist there can hold them."""
        for part in (self.pending, self.credit_wait, self.io, self.io.weight_subscriber):
            part.renew_lock()

    @property
    def longest_segment(self) -> int:
        """The length of the longest segment (run of steps, sent as a unit) that the learner accepts, in steps."""
        parameters = self.io.session_parameters
        return parameters.max_segment_steps if parameters is not None else 1

    @property
    def policy(self) -> Policy:
        """The current policy; before the first one arrives, `no_policy`, which cannot act.

        Use this property only after the agent's constructor has returned.
        """
        placeholder = self.no_policy
        if placeholder is not None and not self.has_policy:
            return placeholder
        policy = self.io.weight_subscriber.policy
        assert policy is not None
        return policy

    @property
    def has_policy(self) -> bool:
        """True if a policy and the session parameters have arrived, from the learner or from the file of an earlier start."""
        return self.io.policy is not None and self.io.session_parameters is not None

    def mask_refusal(self) -> str:
        """Return the reason why the host must give no action masks: the learner's algorithm ignores them. Empty if it can.

        An agent that does not explore can always give masks, because its steps are not trained on.
        """
        parameters = self.io.session_parameters
        return parameters.no_masks if parameters is not None and self.config.explore else ""

    @property
    def policy_age_s(self) -> float:
        """The time since the learner's last message, in seconds.

        Before the first message: the age of the policy that an earlier start saved in a file; infinite without one.
        """
        return max(0.0, time.monotonic() - self.io.current_at)

    def join(self, timeout_s: float, *, patient: bool) -> None:
        """Wait for at most `timeout_s` seconds until the learner has answered and a policy is available.

        If the policy cache (the last policy, in a file) has a policy, this method does not wait for the learner. If the learner
        does not answer, the error says why, as far as a test of the connection can tell.

        Args:
            timeout_s: Longest time to wait, in seconds. 0 does not wait.
            patient: True to wait longer, for at most `CLIENT_START_S`, while the learner answers that it starts the training. The
                wait ends `timeout_s` seconds after the last such answer, because an overloaded learner answers late.

        Raises:
            LearnerUnavailable, HandshakeRefused, ClientFailed, SpoolError: As for the constructor of `RL4SysAgent`.
        """
        if not timeout_s and not self.has_policy and self.io.open_error is None:
            # A refusal that happens to be here already is no different from one that comes a moment later: `stats` has it.
            raise LearnerUnavailable(self.config.address, self.io.credit_gate.stage, 0.0)
        began = time.monotonic()
        until, limit = began + timeout_s, began + (CLIENT_START_S if patient and timeout_s else 0.0)
        while True:
            try:
                self.wait(lambda: self.has_policy, until - time.monotonic())
                return
            except LearnerUnavailable as exc:
                later = min(self.io.starting_at + max(SILENCE_S, timeout_s), limit)
                if later <= until:
                    raise self.io.explain_absence(exc.stage, until - began) from None
                if until == began + timeout_s:
                    log.info("%s: %s; waiting for at most %g s", self.config.client_id, exc.stage, CLIENT_START_S)
                until = later

    def admit(self, steps: int) -> None:
        """Wait until a new segment (run of steps, sent as a unit) of `steps` steps can start. Only with ``overflow: wait``.

        The learner must have granted credit (a number of steps that the actor may send), and the policy must have at least the
        version that the learner requires. With another ``overflow``, or with ``explore: false``, return at once.

        Raises:
            LearnerUnavailable: If that takes longer than ``wait_timeout_s``.
            ClientFailed: If the learner has stopped the thread that trains this policy.
        """
        if not self._waits:
            return
        io = self.io
        if self._granted(steps):
            return
        io.waiting += 1
        try:
            io.wake()
            with self.credit_wait:
                self.wait(lambda: self._granted(steps), self.config.wait_timeout_s)
        finally:
            io.waiting -= 1

    def _granted(self, steps: int) -> bool:
        """Return True if a new segment (run of steps) can start now. Also request the learner's permission for more steps.

        The request covers the next two segments of `steps` steps.
        """
        io, finished = self.io, self.outbox.put_steps
        wanted = finished + 2 * steps
        if wanted > io.want_steps:
            io.want_steps = wanted
            io.wake_up()
        credit_gate, policy = io.credit_gate, self.policy
        return (
            finished < credit_gate.limit_steps
            and policy.generation == credit_gate.generation
            and policy.version >= credit_gate.min_version
        )

    def wait(self, ready: Callable[[], bool], timeout_s: float, stage: str | Callable[[], str] | None = None) -> None:
        """Wait until `ready` returns True, as a result of the work of the I/O thread.

        Args:
            ready: Returns True once the wait can end. Called in this thread.
            timeout_s: Longest time to wait, in seconds.
            stage: The missing event, for the error message, or a function that returns this text. None names the event that the
                I/O thread waits for.

        Raises:
            LearnerUnavailable: If `ready` does not return True in time.
            Closed: If another thread closes the agent.
            RL4SysError: If the I/O thread reports an error.
        """
        io = self.io
        deadline = time.monotonic() + timeout_s
        io.wake()
        with io.changed:
            while not ready():
                error = io.open_error or io.credit_gate.error
                if error is not None:
                    raise error.with_traceback(None)
                if self.closed and not io.flushing:
                    raise Closed("this agent was closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    words = stage() if callable(stage) else stage
                    joined, what = io.session.state is SessionState.JOINED, words or io.credit_gate.stage
                    hint = "" if joined or not words else f"it was waiting for {io.credit_gate.stage}"
                    if joined and not words:
                        hint = "`rl4sys-learner status` shows whether it trains; raise wait_timeout_s if it does"
                    raise LearnerUnavailable(self.config.address, what, timeout_s, hint, answers=joined)
                io.changed.wait(min(left, 0.25))


def _hello(config: AgentConfig, actor_id: str) -> Hello:
    spaces = (config.observation_space, config.action_space)
    observation, action = (space_to_json(s) if s is not None else {} for s in spaces)
    return Hello(
        config.client_id,
        actor_id,
        first_incarnation(time.time(), random.SystemRandom()),
        0,
        0,
        0,
        config.algorithm_name or "",
        dict(config.algorithm_parameters),
        config.type or "",
        observation,
        action,
        config.submits,
        f"rl4sys_zmq {package_version()}",
        weights=config.weights.to_json(),
        relay=config.relays[0].address if config.relays else "",
    )
