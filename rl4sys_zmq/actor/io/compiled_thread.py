"""The compiled form of an actor's I/O: a thread of compiled code, and a thread in Python that watches it.

The compiled thread (``native/src/actor``) has the sockets, the session, the weights and the outbox, and never holds the GIL.
The watch thread writes its log and the policy cache. It sleeps until there is something to do. The classes here have the
interfaces of those in `thread`, `shared_state`, `weight_subscriber` and `segments`, as far as an agent uses them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.io.shared_state import ActorSharedState, SegmentStartConditions, SessionParameters
from rl4sys_zmq.actor.io.thread import explain_absence
from rl4sys_zmq.actor.io.weight_subscriber import WeightSubscriber
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.session import SessionState
from rl4sys_zmq.errors import (
    ClientFailed,
    ConfigError,
    HandshakeRefused,
    LearnerUnavailable,
    ProtocolError,
    RefusalReason,
    RL4SysError,
)
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies import Policy, build_policy
from rl4sys_zmq.policies.compiled import CompiledPolicy
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.transports.context import context
from rl4sys_zmq.values import PolicySnapshot, PolicySpec, Segment
from rl4sys_zmq.wire import spec_from_document, spec_to_document
from rl4sys_zmq.wire.layout import describe
from rl4sys_zmq.wire.messages import Hello
from rl4sys_zmq.wire.segments import segment_columns, segment_flags

if TYPE_CHECKING:
    from rl4sys_zmq import _native
    from rl4sys_zmq.actor.io.policy_cache import ActorPolicyCache
    from rl4sys_zmq.security.keys import UserKeys

log = get_logger(__name__)

SLICE_S = 0.05
"""Longest wait without the GIL of a host thread, so that a signal handler of the host runs soon."""
WATCH_S = 1.0
"""Longest sleep of the watch thread, which then looks whether the learner is absent."""
KEPT = 4
"""The number of policies whose Python objects are kept: the current one, and those to which a rollback can lead."""


class FormLacks(HandshakeRefused):
    """The compiled form of an actor cannot use what the learner's Welcome describes.

    Attributes:
        reason: What it lacks.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(RefusalReason.SPEC, f"{reason}; set native: never to use the pure form", "spec")
        self.reason = reason


class CompiledIOThread(Worker):
    """The I/O of one actor in compiled code, with the interface of `ActorIOThread`. `run` is the watch thread."""

    def __init__(
        self, native: ModuleType, config: AgentConfig, hello: Hello, outbox: CompiledOutbox, keys: UserKeys | None = None
    ) -> None:
        super().__init__(f"rl4sys-actor-{hello.actor_id[-8:]}")
        self._config = config
        own = [] if keys is None else [keys.own.public, keys.own.secret, keys.learner_public]
        self.native: _native.IoThread = native.IoThread(_settings(config, hello, own), context(), config.cache_file is not None)
        self.outbox = outbox
        outbox.native = self.native
        self.host = CompiledSharedState(self.native, config)
        self.counters = CompiledCounters(self.native)
        self.session = CompiledSession(self.native)
        self.weight_subscriber = CompiledWeightSubscriber(self.native, config)
        self._policy_cache: ActorPolicyCache | None = None

    def wake_now(self) -> None:
        self.native.wake()

    def wake_unless_resting(self) -> None:
        self.native.wake_unless_resting()

    def stop(self) -> None:
        self.native.request_stop()

    def release(self) -> None:
        """Do nothing: the compiled thread closes what it has at its end."""

    @property
    def waiting_segments(self) -> int:
        return _number(self.native, "waiting")

    @property
    def idle(self) -> bool:
        """True if all finished segments have been sent, and the learner has recorded all of them."""
        status = self.native.status()
        return not status["waiting"] and not status["in_flight"]

    def explain_absence(self, stage: str, timeout_s: float, probe_s: float = 0.5) -> LearnerUnavailable:
        """Return the error for an unavailable learner, as `ActorIOThread.explain_absence` does."""
        return explain_absence(self._config, self.session.state, self.host, stage, timeout_s, probe_s)

    def run(self) -> None:
        """Load the cached policy, start the compiled thread, and handle its events until it ends."""
        try:
            self._open()
        except RL4SysError as exc:
            self.host.open_error = exc
            return
        finally:
            self.host.opened.set()
            self.native.notify()
        try:
            self.native.start()
            while self._watch(self.native.next_event(WATCH_S)):
                pass
            if self._policy_cache is not None:
                self._policy_cache.save(force=True)
        finally:
            self.native.join()

    def _open(self) -> None:
        config = self._config
        if config.cache_file is None:
            return
        from rl4sys_zmq.actor.io.policy_cache import ActorPolicyCache

        subscriber = cast(WeightSubscriber, self.weight_subscriber)
        self._policy_cache = ActorPolicyCache(config, config.cache_file, subscriber, self.host, self.counters)
        self._policy_cache.take_up()
        if self.weight_subscriber.lacks:
            raise self.host.lacking(self.weight_subscriber.lacks)

    def _watch(self, event: tuple[str, int, str] | None) -> bool:
        try:
            if self._policy_cache is not None:
                self._policy_cache.report_absence(time.monotonic(), self.explain_absence)
            return self._handle(event)
        except Exception:  # as in `ActorIOThread.run`, it must not end the thread
            log.exception("an event of the I/O thread of an actor of %s was not handled", self._config.client_id)
            self.counters.add("io_restarts")
            return event is None or event[0] != "ended"

    def _handle(self, event: tuple[str, int, str] | None) -> bool:
        """Handle one event. Return False at the end of the compiled thread."""
        match event:
            case ("log", level, text):
                log.log(level, "%s", text)
            case ("policy", _, _) if self._policy_cache is not None:
                self._policy_cache.save()
            case ("ended", _, _):
                return False
        return True


def _settings(config: AgentConfig, hello: Hello, keys: list[str]) -> dict[str, Any]:
    return {
        **{name: getattr(hello, name) for name in _HELLO},
        "address": config.address,
        "keys": keys,
        "explore": config.explore,
        "drops": config.overflow != "wait" or not config.explore,
        "compress": config.compression == "zstd",
        "queue_items": config.queue_items,
        "queue_bytes": config.queue_bytes,
        "linger_s": config.linger_ms / 1000,
        "send_frequency": config.send_frequency,
        "learners_relays": config.relays is None,
    }


_HELLO = (
    "client_id", "actor_id", "incarnation", "algorithm_name", "algorithm_parameters", "algorithm_type", "observation_space",
    "action_space", "submits", "library", "weights",
)  # fmt: skip


class _Changes:
    """Waits of host threads for the compiled thread, with methods of `threading.Condition`. It has no lock in Python."""

    def __init__(self, native: _native.IoThread) -> None:
        self._native, self._seen = native, threading.local()

    def __enter__(self) -> None:
        self._seen.number = self._native.changes()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def wait(self, timeout: float) -> None:
        """Wait for a change since the last call, for a short time only: the caller repeats the call."""
        self._seen.number = self._native.wait_change(self._seen.number, max(0.0, min(timeout, SLICE_S)))

    def notify_all(self) -> None:
        self._native.notify()


class CompiledSharedState(ActorSharedState):
    """An `ActorSharedState` whose values are those of the compiled thread."""

    def __init__(self, native: _native.IoThread, config: AgentConfig) -> None:
        self._native, self._config = native, config
        self.changed = _Changes(native)  # type: ignore[assignment]
        self.opened = threading.Event()
        self.open_error = None
        self._absence: LearnerUnavailable | None = None
        self._failed: tuple[list[str], RL4SysError] | None = None

    @property
    def error(self) -> RL4SysError | None:  # type: ignore[override]
        return self._known_error(self._native.gate()[5])

    def _known_error(self, said: list[str] | None) -> RL4SysError | None:
        if said is None:
            return None
        failed = self._failed
        if failed is None or failed[0] != said:
            failed = self._failed = said, self._error_of(*said)
        return failed[1]

    def _error_of(self, kind: str, code: str, text: str, field: str) -> RL4SysError:
        if kind == "client_failed":
            return ClientFailed(self._config.client_id, text)
        if kind != "unsupported":
            return HandshakeRefused(RefusalReason(code), text, field)
        return self.lacking(text)

    def lacking(self, reason: str) -> RL4SysError:
        """Return the error for a policy that the compiled form lacks."""
        if self._config.native == "always":
            return ConfigError(f"native: {reason}; set native: auto", key="native")
        return FormLacks(reason)

    @property
    def lacks(self) -> str:
        """The part of the learner's policy that the compiled form lacks; empty if none is known."""
        error = self.open_error or self.error
        return error.reason if isinstance(error, FormLacks) else ""

    @property
    def credit_gate(self) -> SegmentStartConditions:  # type: ignore[override]
        limit, generation, min_version, stage, _, said = self._native.gate()
        return SegmentStartConditions(limit, generation, min_version, self._known_error(said), stage)

    @property
    def session_parameters(self) -> SessionParameters | None:
        said = self._native.parameters()
        return None if said is None else SessionParameters(**said)

    @session_parameters.setter
    def session_parameters(self, parameters: SessionParameters | None) -> None:
        if parameters is not None:
            self._native.set_parameters(asdict(parameters))

    @property
    def stage(self) -> str:  # type: ignore[override]
        return self._native.gate()[3]

    @property
    def joined(self) -> bool:  # type: ignore[override]
        return self._native.gate()[4]

    @property
    def absence(self) -> LearnerUnavailable | None:  # type: ignore[override]
        return None if self._absence is None or self.joined else self._absence

    def set_absence(self, error: LearnerUnavailable) -> None:
        self._absence = error

    @property
    def current_at(self) -> float:
        return self._native.current_at()

    @current_at.setter
    def current_at(self, seconds: float) -> None:
        self._native.set_current_at(seconds)

    @property
    def starting_at(self) -> float:  # type: ignore[override]
        return self._native.starting_at()

    @property
    def want_steps(self) -> int:
        return self._native.want_steps()

    @want_steps.setter
    def want_steps(self, steps: int) -> None:
        self._native.set_want_steps(steps)

    @property
    def waiting(self) -> int:  # type: ignore[override]
        return self._native.count_waiting(0)

    @property
    def flushing(self) -> int:  # type: ignore[override]
        return self._native.count_flushing(0)

    def count_waiting(self, count: int) -> None:
        self._native.count_waiting(count)

    def count_flushing(self, count: int) -> None:
        self._native.count_flushing(count)

    def inherit(self, other: ActorSharedState) -> None:
        self.session_parameters = other.session_parameters
        self.current_at = other.current_at

    def renew_lock(self) -> None:
        """Do nothing: the locks are the compiled thread's."""

    def notify(self) -> None:
        self._native.notify()


class CompiledCounters(Counters):
    """The counters of a compiled thread, and those that are added in Python."""

    def __init__(self, native: _native.IoThread) -> None:
        super().__init__()
        self._native = native

    def get(self, name: str) -> int:
        return self.snapshot().get(name, 0)

    def snapshot(self) -> dict[str, int]:
        counts = super().snapshot()
        for name, count in self._native.status()["counters"].items():
            counts[name] = counts.get(name, 0) + count
        return counts


class CompiledSession:
    """The session of a compiled thread, as it was at the end of the thread's last turn."""

    def __init__(self, native: _native.IoThread) -> None:
        self._native = native

    @property
    def state(self) -> SessionState:
        return SessionState(self._native.status()["state"])

    @property
    def verdicts(self) -> dict[str, int]:
        counts: dict[str, int] = self._native.status()["verdicts"]
        return counts

    def _leave(self, leaving: bool) -> None:
        self._native.set_leaving(leaving)

    leaving = property(fset=_leave)

    def __getattr__(self, name: str) -> int:
        if name not in _NUMBERS:
            raise AttributeError(name)
        return _number(self._native, name)


_NUMBERS = frozenset({"accepted", "credit_steps", "durable", "in_doubt", "in_flight", "sent_steps", "unreceived"})


def _number(native: _native.IoThread, name: str) -> int:
    number: int = native.status()[name]
    return number


class CompiledWeightSubscriber:
    """The policies of a compiled thread as objects of Python, one for each policy."""

    relay = ""  # the compiled form has no relays

    def __init__(self, native: _native.IoThread, config: AgentConfig) -> None:
        self._native, self._config = native, config
        self.lacks = ""  # what the compiled form lacks for the policy of an earlier start
        self._policies: deque[tuple[int, Any, Policy]] = deque(maxlen=KEPT)  # with their keys, newest last
        self._spec: tuple[int, PolicySpec | None] = (0, None)
        self._lock = threading.RLock()  # held while an object is made, so that each policy has one

    @property
    def policy(self) -> Policy | None:
        key = self._native.policy_key()
        policies = self._policies
        if policies and policies[-1][0] == key:
            return policies[-1][2]
        return self._find(key) if key else None

    def _find(self, key: int) -> Policy | None:
        with self._lock:
            for known in self._policies:
                if known[0] == key:
                    return known[2]
            native = self._native.policy()
            if native is None:
                return None
            newest, generation, version, digest, others = native.head()
            if newest != key and (known_policy := next((k[2] for k in self._policies if k[0] == newest), None)) is not None:
                return known_policy
            spec = self.spec
            assert spec is not None
            flat: NDArray[np.float32] = np.frombuffer(memoryview(native), dtype=np.float32)
            snapshot = PolicySnapshot(generation, version, digest, flat, others)
            # With extra columns, numpy keeps the recurrent state.
            policy: Policy = build_policy(spec, snapshot) if spec.columns else CompiledPolicy(spec, native, snapshot)
            self._policies.append((newest, native, policy))
            return policy

    @property
    def spec(self) -> PolicySpec | None:
        key = self._native.document_key()
        held = self._spec
        if held[0] != key:
            with self._lock:
                document = self._native.document()
                assert document is not None
                held = self._spec = key, spec_from_document(document)
        return held[1]

    @property
    def alarms(self) -> dict[str, int]:
        return self._native.alarms()

    @property
    def held(self) -> tuple[int, int]:
        policy = self.policy
        return (policy.generation, policy.version) if policy is not None else (0, 0)

    def take_up(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        """Start with a policy of an earlier start. If the compiled form lacks it, do nothing but set `lacks`."""
        flat = np.ascontiguousarray(snapshot.flat, dtype=np.float32)
        numbers = snapshot.generation, snapshot.version, snapshot.digest
        try:
            self._native.take_up(spec_to_document(spec), *numbers, flat, bytes(snapshot.others))
        except NotImplementedError as exc:
            self.lacks = str(exc)

    def inherit(self, other: Any) -> None:
        """Start with the policy of `other`, the parent's subscriber, in a forked child."""
        policy, spec = other.policy, other.spec
        if policy is not None and spec is not None:
            self.take_up(spec, policy.snapshot)

    def renew_lock(self) -> None:
        self._lock = threading.RLock()

    def roll_back(self, bad: Policy) -> Policy | None:
        """Replace the current policy, if it is `bad`, by the version before. Return None if no earlier version is in memory."""
        native = next((known[1] for known in tuple(self._policies) if known[2] is bad), None)
        if native is None:  # not of this process, or long ago
            return self.policy
        return self.policy if self._native.roll_back(native) else None

    def was_rolled_back(self, policy: Policy) -> bool:
        """Return True if `roll_back` has replaced this policy. Any thread can call this method."""
        return self._native.was_rolled_back(policy.generation, policy.version)

    def saw(self, stamp: tuple[int, int]) -> None:
        """Do nothing: the learner chooses no action for an actor of the compiled form."""


class CompiledOutbox(Resource):
    """The outbox of a compiled thread, with the interface of `Outbox` for host threads. It packs each segment at once."""

    native: _native.IoThread
    spool = None
    in_hand = 0

    def put(self, segment: Segment) -> None:
        """Pack a segment, and queue it. If the queue is then full, the oldest segments are dropped."""
        try:
            letters, columns = segment_columns(segment)
            versions = segment.versions
            oldest, mixed = int(versions.min()), bool((versions != versions[0]).any())
            layout = describe(letters, tuple((column.dtype, column.shape[1:]) for column in columns), segment.source)
            if not mixed:
                columns[letters.index("v")] = versions[:0]
            total = 0.0 if segment.episode_return is None else segment.episode_return
            numbers = segment.generation, segment.episode_id, segment.segment_index, oldest, total
            lengths = segment.episode_length or 0, segment.steps, segment_flags(segment, mixed=mixed)
            self.native.put(*numbers, *lengths, layout, [np.ascontiguousarray(column) for column in columns])
        except (ProtocolError, TypeError, ValueError):
            if "not_encodable" not in self.dropped:
                log.exception("a segment of %d steps can't be encoded, and is dropped", segment.steps)
            self.native.put_dropped("not_encodable", segment.steps)

    def count_dropped(self, reason: str) -> None:
        self.native.put_dropped(reason, 0)

    @property
    def put_steps(self) -> int:
        return self.native.put_steps()

    @property
    def put_items(self) -> int:
        return _number(self.native, "put_items")

    @property
    def items(self) -> int:
        return _number(self.native, "items")

    @property
    def steps(self) -> int:
        return _number(self.native, "steps")

    @property
    def submitted(self) -> int:
        return self.put_items

    @property
    def dropped(self) -> dict[str, int]:
        counts: dict[str, int] = self.native.status()["dropped"]
        return counts

    def close(self) -> None:
        """Do nothing: the segments are the compiled thread's."""
