"""The parts of an agent in one process, the state of each thread that uses it, and the waits for its I/O thread."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import xxhash

from rl4sys_zmq.actor.action import AgentIdentity, PolicyStamp
from rl4sys_zmq.actor.io.thread import ActorIOThread
from rl4sys_zmq.actor.io.weight_subscriber import PlaceholderPolicy
from rl4sys_zmq.actor.remote import InferenceCaller
from rl4sys_zmq.actor.segments import LateRewardQueue, Outbox
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.incarnation import first_incarnation
from rl4sys_zmq.delivery.session import SessionState
from rl4sys_zmq.errors import Closed, ConfigError, LearnerUnavailable, ProtocolError
from rl4sys_zmq.liveness import CLIENT_START_S, SILENCE_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import new_actor_id
from rl4sys_zmq.native import VARIABLE, require
from rl4sys_zmq.native import default as default_form
from rl4sys_zmq.native import load as load_native
from rl4sys_zmq.native import reason as why_not_loaded
from rl4sys_zmq.policies import Act, ExtraColumnPolicy, Policy, RandomSource, bind
from rl4sys_zmq.policies.column_policy import BoundStep
from rl4sys_zmq.values import space_to_json
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Hello

if TYPE_CHECKING:
    from rl4sys_zmq.security.keys import UserKeys

log = get_logger(__name__)

PURE_WAIT_S = 1.0
"""Longest wait for the end of the compiled thread, before the pure one takes its place."""


class ThreadState:
    """The data of an agent for one host thread: the policy in use, the random numbers, and the last action."""

    __slots__ = (
        "_explore", "_owner", "act", "batch_width", "calls_until_cut", "chooser", "last_act", "policy", "sampler", "stamp", "step"
    )  # fmt: skip

    act: Act
    step: BoundStep  # method `step` of `policy`, bound as `act` is, if the policy has extra columns
    stamp: PolicyStamp  # policy version as the thread's actions record it. The actions share this object

    def __init__(self, sampler: RandomSource, explore: bool, owner: AgentIdentity) -> None:
        self._explore, self._owner = explore, owner
        self.sampler = sampler
        self.policy: Policy | None = None
        self.chooser: Any = None  # the compiled function in `act`, if there is one
        self.last_act: Any = None  # copy of the last environment action, for use after invalid input
        self.calls_until_cut = 0  # number of batched requests until all trajectories of the batch are cut together
        self.batch_width = 0  # number of environments in the last batched request

    def use(self, policy: Policy) -> None:
        if policy is not self.policy:
            if isinstance(policy, ExtraColumnPolicy):
                self.step = policy.bind_step(self.sampler, self._explore)
            self.act = bind(policy, self.sampler, self._explore)
            self.chooser = getattr(self.act, "chooser", None)
            self.stamp = PolicyStamp(policy.generation, policy.version, self._owner, "", _reference(policy), self.sampler)
            self.policy = policy


def _reference(policy: Policy) -> Callable[[], Policy | None]:
    """Return a weak reference to a policy; a strong one if its class permits no weak one."""
    try:
        return weakref.ref(policy)
    except TypeError:
        return lambda: policy


class CurrentThreadState(threading.local):
    """A thread-local holder: its attribute `state` is the `ThreadState` of the current host thread."""

    def __init__(
        self,
        seed: int,
        numbers: itertools.count[int],
        explore: bool,
        owner: AgentIdentity,
        new_sampler: Callable[[int], RandomSource] = RandomSource,
    ) -> None:
        self.state = ThreadState(new_sampler(seed << 32 | next(numbers)), explore, owner)


def exploration_place(actor_id: str) -> float:
    """Return an actor's number in ``[0, 1)``, by which `epsilon_ladder` sets its exploration. It depends only on the name."""
    # The numbers of many names are spread evenly, so the actors need not know each other.
    return (xxhash.xxh3_64_intdigest(actor_id.encode()) >> 11) * 2.0**-53


class WaitTimer:
    """A stopwatch for the time that threads spend in ``with`` blocks of this object, summed over the threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()  # a signal handler can read `seconds` while its thread holds the lock
        self._waiting = 0
        self._at_s = self._total_s = 0.0

    def renew_lock(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        with self._lock:
            self._add_passed()
            self._waiting += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._add_passed()
            self._waiting -= 1

    def _add_passed(self) -> None:
        now = self._clock()
        self._total_s += self._waiting * (now - self._at_s)
        self._at_s = now

    @property
    def seconds(self) -> float:
        """The time that threads have spent in the ``with`` blocks so far, in seconds, as a sum over the threads.

        The time in blocks that have not ended is included.
        """
        with self._lock:
            self._add_passed()
            return self._total_s


class AgentComponents:
    """The parts that make up an agent in one process. The agent in a forked child creates new ones.

    Attributes:
        form: ``compiled``, or ``pure`` with the reason.
        no_policy: The placeholder for the policy of an actor that started without its learner, until the first policy arrives.
    """

    def __init__(
        self, config: AgentConfig, keys: UserKeys | None, counters: Counters, parent: AgentComponents | None = None
    ) -> None:
        """Start the I/O thread, and wait until it has opened the spool and the policy cache."""
        self.config = config
        self.actor_id = config.actor_id or new_actor_id()
        drops = config.on_bad_input == "drop"
        self.owner: AgentIdentity = AgentIdentity(counters, drops_bad_input=drops) if parent is None else parent.owner
        self.counters = counters
        self.no_policy: PlaceholderPolicy | None = parent.no_policy if parent is not None else None
        self.closed = False
        self.credit_wait = WaitTimer()  # time that host threads have waited in `admit`
        self._waits = config.overflow == "wait" and config.explore
        hello = _hello(config, self.actor_id)
        try:
            encode(hello)
        except ProtocolError as exc:
            raise ConfigError(f"the configuration cannot be encoded: {exc.detail}", key="algorithm_parameters") from exc
        self._hello, self._keys = hello, keys
        self._settling = threading.Lock()
        reason = why_pure(config) if parent is None or parent.form == "compiled" else parent.form.removeprefix("pure: ")
        self.io = self._new_io(reason)
        self.outbox = self.io.outbox
        seed = config.seed if config.seed is not None else random.SystemRandom().getrandbits(128)
        if parent is not None:
            self.io.host.inherit(parent.io.host)
            self.io.weight_subscriber.inherit(parent.io.weight_subscriber)
            seed = seed << 32 | os.getpid()
        self.pending = LateRewardQueue(
            self.outbox, config.reward_timeout_s, self.io.wake_unless_resting, evaluates=not config.explore
        )
        self.remote = InferenceCaller(config, counters) if config.inference != "local" else None
        self._start_io()
        self.settle_form()  # for the policy in the cache
        if self.outbox.spool is not None:
            self.actor_id = self.outbox.spool.actor_id
        self.threads = CurrentThreadState(seed, itertools.count(), config.explore, self.owner, self._sampler())

    def _new_io(self, reason: str) -> ActorIOThread:
        """Return the I/O thread: compiled, or for a `reason` in pure Python."""
        config, self.form = self.config, f"pure: {reason}" if reason else "compiled"
        hello = replace(self._hello, library=f"{self._hello.library} {self.form}")
        if reason:
            outbox = Outbox(config.queue_items, config.queue_bytes, drops=not self._waits)
            return ActorIOThread(config, hello, outbox, self._keys)
        from rl4sys_zmq.actor.io.compiled_thread import CompiledIOThread, CompiledOutbox

        return cast(ActorIOThread, CompiledIOThread(require(), config, hello, CompiledOutbox(), self._keys))

    def _start_io(self) -> None:
        try:
            self.io.start()
            self.io.host.opened.wait()
        except BaseException:  # also an exception of a signal handler, such as KeyboardInterrupt
            self.io.stop()
            self.io.release()
            raise

    def _sampler(self) -> Callable[[int], RandomSource]:
        place = exploration_place(self.actor_id)
        if self.form != "compiled":
            return lambda seed: RandomSource(seed, place)
        from rl4sys_zmq.policies.compiled import CompiledRandomSource

        return lambda seed: CompiledRandomSource(require(), seed, place)

    def settle_form(self) -> bool:
        """Change to the pure form if the learner's policy needs it, before any policy has come. Return True after a change."""
        reason = getattr(self.io.host, "lacks", "")
        if not reason or self.has_policy:
            return False
        with self._settling:
            before = self.io
            if self.form != "compiled":
                return True
            log.info("%s: uses the pure form: %s", self.config.client_id, reason)
            before.stop()
            before.join(PURE_WAIT_S)
            self._hello = replace(self._hello, incarnation=self._hello.incarnation + 1)
            self.io = self._new_io(reason)
            self.outbox = self.io.outbox
            self.pending.use(self.outbox, self.io.wake_unless_resting)
            self._start_io()
        return True

    def renew_locks(self) -> None:
        """Replace the locks, in a forked child. A thread of the parent, which the child does not have, can hold the old locks."""
        for part in (self.pending, self.credit_wait, self.io.host, self.io.weight_subscriber):
            part.renew_lock()

    @property
    def longest_segment(self) -> int:
        parameters = self.io.host.session_parameters
        return parameters.max_segment_steps if parameters is not None else 1

    @property
    def policy(self) -> Policy:
        """The current policy; before the first one arrives, `no_policy`, which cannot act."""
        placeholder = self.no_policy
        if placeholder is not None and not self.has_policy:
            return placeholder
        policy = self.io.weight_subscriber.policy
        assert policy is not None
        return policy

    @property
    def has_policy(self) -> bool:
        """True if a policy and the session parameters have arrived, from the learner or from the policy cache."""
        return self.io.weight_subscriber.policy is not None and self.io.host.session_parameters is not None

    def mask_refusal(self) -> str:
        """Return the reason why the host may give no action masks; empty if masks are allowed."""
        parameters = self.io.host.session_parameters
        return parameters.no_masks if parameters is not None and self.config.explore else ""

    @property
    def policy_age_s(self) -> float:
        """The time since the learner's last message, or since the cached policy was saved, in seconds."""
        return max(0.0, time.monotonic() - self.io.host.current_at)

    def join(self, timeout_s: float, *, patient: bool) -> None:
        """Wait `timeout_s` for the learner's answer and a policy. With `patient`, wait longer while the training starts."""
        if not timeout_s and not self.has_policy and self.io.host.open_error is None:
            # A refusal that happens to be here already is no different from one that comes a moment later: `stats` has it.
            raise LearnerUnavailable(self.config.address, self.io.host.credit_gate.stage, 0.0)
        began = time.monotonic()
        until, limit = began + timeout_s, began + (CLIENT_START_S if patient and timeout_s else 0.0)
        while True:
            try:
                self.wait(lambda: self.has_policy, until - time.monotonic())
                return
            except LearnerUnavailable as exc:
                # An overloaded learner answers late, so the wait goes on for a while after its last answer that it starts.
                later = min(self.io.host.starting_at + max(SILENCE_S, timeout_s), limit)
                if later <= until:
                    raise self.io.explain_absence(exc.stage, until - began) from None
                if until == began + timeout_s:
                    log.info("%s: %s; waiting for at most %g s", self.config.client_id, exc.stage, CLIENT_START_S)
                until = later

    def admit(self, steps: int) -> None:
        """Wait until the learner grants credit for `steps` steps and the policy version that it requires has arrived."""
        if not self._waits or self._granted(steps):
            return
        host = self.io.host
        host.count_waiting(1)
        try:
            self.io.wake_now()
            with self.credit_wait:
                self.wait(lambda: self._granted(steps), self.config.wait_timeout_s)
        finally:
            host.count_waiting(-1)

    def _granted(self, steps: int) -> bool:
        """Return True if a segment can start now. Also ask for credit for the next two segments of `steps` steps."""
        host, finished = self.io.host, self.outbox.put_steps
        wanted = finished + 2 * steps
        if wanted > host.want_steps:
            host.want_steps = wanted
            self.io.wake_unless_resting()
        credit_gate, policy = host.credit_gate, self.policy
        return (
            finished < credit_gate.limit_steps
            and policy.generation == credit_gate.generation
            and policy.version >= credit_gate.min_version
        )

    def wait(self, ready: Callable[[], bool], timeout_s: float, stage: str | Callable[[], str] | None = None) -> None:
        """Wait until the I/O thread's work makes `ready` return True. Error messages name the awaited event by `stage`."""
        deadline = time.monotonic() + timeout_s
        while True:
            host = self.io.host
            self.io.wake_now()
            with host.changed:
                while not ready():
                    if self.settle_form() or host is not self.io.host:
                        break
                    error = host.open_error or host.credit_gate.error
                    if error is not None:
                        raise error.with_traceback(None)
                    if self.closed and not host.flushing:
                        raise Closed("this agent was closed")
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise self._unavailable(stage() if callable(stage) else stage, timeout_s)
                    host.changed.wait(min(left, 0.25))
                else:
                    return

    def _unavailable(self, stage: str | None, timeout_s: float) -> LearnerUnavailable:
        """Return the error for an event that did not come in time: `stage`, or the event that the I/O thread waits for."""
        joined, waits_for = self.io.session.state is SessionState.JOINED, self.io.host.credit_gate.stage
        hint = "" if joined or not stage else f"it was waiting for {waits_for}"
        if joined and not stage:
            hint = "`rl4sys-learner status` shows whether it trains; raise wait_timeout_s if it does"
        return LearnerUnavailable(self.config.address, stage or waits_for, timeout_s, hint, answers=joined)


def why_pure(config: AgentConfig) -> str:
    """Return the reason why an actor with this configuration uses the pure form; empty if it uses the compiled one.

    Raises:
        ConfigError: If there is a reason, and the configuration has ``native: always``.
    """
    lacks = {
        "a spool": config.spool is not None,
        "relays": bool(config.relays),
        "a sidecar": config.sidecar,
        f"inference: {config.inference}": config.inference != "local",
        "image codecs": config.images is not None,
        "report_system": config.report_system,
    }
    missing = [what for what, wanted in lacks.items() if wanted]
    default = default_form()
    if (config.native or default) == "never":
        return "native: never" if config.native else f"{VARIABLE}=never"
    reason = f"the compiled form has no support for {missing[0]}" if missing else ""
    if not reason and load_native() is None:
        reason = why_not_loaded()
        if config.native is None and default == "always":
            raise ConfigError(f"{VARIABLE}=always, but {reason}", key="native")
    if reason and config.native == "always":
        raise ConfigError(f"native: {reason}; set native: auto", key="native")
    return reason


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
