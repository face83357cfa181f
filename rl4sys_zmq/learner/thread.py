"""A learner thread: one client's algorithm, fed through a PULL, answering through a PUSH, in wire messages only."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from typing import cast

import numpy as np

from rl4sys_zmq.errors import Closed, ConfigError, ProtocolError
from rl4sys_zmq.learner.algorithms import Algorithm, resolve_algorithm
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Poller, Socket
from rl4sys_zmq.values import DiscreteSpace, PolicySnapshot, Segment, space_from
from rl4sys_zmq.weights import digest, encode_update
from rl4sys_zmq.wire import SegmentSchema, decode, encode, read_submit, spec_to_document
from rl4sys_zmq.wire.messages import (
    Assign,
    Deliver,
    Demand,
    Disposed,
    Failed,
    Message,
    Metrics,
    Published,
    Ready,
    Stop,
    Submit,
    Verdict,
)

__all__ = ["LearnerThread", "content_error"]

log = logging.getLogger(__name__)

METRICS_PERIOD_S = 0.1
DRAIN_MESSAGES = 256
MAX_SEGMENT_STEPS = 1 << 20
MAX_MESSAGE_FRAMES = 256
QUEUE_MESSAGES = 64
GATEWAY_TIMEOUT_S = 2.0
IDLE_S = 0.5


class LearnerThread(Worker):
    """Connects to the gateway's two pipeline ends, is told by `Assign` what to be, and learns until `Stop`.

    Nothing but frames goes in or out, so the same body can run in another process on other addresses.
    """

    def __init__(self, name: str, key: bytes, down: str, up: str) -> None:
        """Makes it; `start` starts it.

        Args:
            name: of the thread.
            key: put before every message upstream, so that the gateway knows who speaks.
            down: address of the gateway's PUSH.
            up: address of the gateway's PULL.
        """
        super().__init__(name)
        self._key = key
        self._down, self._up = down, up
        self._stopping = threading.Event()

    def run(self) -> None:
        """The thread's body."""
        with Socket.pull(connect=self._down, hwm=QUEUE_MESSAGES) as down, Socket.push(connect=self._up) as up:
            mouth = _Mouth(up, self._key)
            try:
                try:
                    _Learning(down, mouth, self._stopping).run()
                except Closed:
                    raise
                except Exception as exc:  # noqa: BLE001 - the border of a client: it stops this client alone
                    mouth.say(Failed(_plain(f"{type(exc).__name__}: {exc}"[:1000]), _plain(traceback.format_exc()[-8000:])))
            except Closed as exc:
                log.warning("%s ends without a last word: %s", self.name, exc)

    def stop(self) -> None:
        """Ends the thread when it next finds nothing to read; the gateway's `Stop` message comes in order with the data."""
        self._stopping.set()


class _Mouth:
    """The end that speaks upstream: waits for the gateway's PULL, which is never full for long."""

    def __init__(self, up: Socket, key: bytes) -> None:
        self._up, self._key = up, key

    def say(self, message: Message) -> None:
        """Sends, or raises when the gateway is gone."""
        if not self._up.send_wait([self._key, *encode(message)], GATEWAY_TIMEOUT_S):
            raise Closed(f"the gateway has not read for {GATEWAY_TIMEOUT_S:g} s")


class _Learning:
    """The state of a running learner thread."""

    def __init__(self, down: Socket, mouth: _Mouth, stopping: threading.Event) -> None:
        self._down, self._say = down, mouth.say
        self._stopping = stopping
        self._poller = Poller()
        self._poller.register(down)
        self._assign = self._wait_for_assignment()
        self._algorithm = self._build()
        self._spec = self._algorithm.spec()
        own_limit = -1 if self._algorithm.max_policy_lag is None else self._algorithm.max_policy_lag
        self._max_policy_lag = self._assign.max_policy_lag if self._assign.max_policy_lag >= 0 else own_limit
        self._schema = SegmentSchema(self._spec.observation_space, self._spec.action_space, MAX_SEGMENT_STEPS)
        self._snapshot: PolicySnapshot | None = None
        self._version = -1
        self._updates = 0
        self._taken_steps = 0
        self._observed_steps = self._said_steps = 0
        self._lag_sum = self._lag_steps = 0
        self._slack_steps = 0
        self._demand = Demand(0, 0, 0)
        self._taken_items = 0
        self._pending: list[tuple[str, int, int]] = []
        self._disposed: dict[tuple[str, int, str, str], list[list[int]]] = {}
        self._scalars: dict[str, float] = {}
        self._episodes: list[list[float]] = []
        self._metrics_at = 0.0
        self._began = 0.0

    def run(self) -> None:
        """Until `Stop`."""
        algorithm = self._algorithm
        self._say(Ready(spec_to_document(self._spec), algorithm.kind, algorithm.rollout_length, self._max_policy_lag))
        self._publish()
        self._tell()
        while True:
            self._poller.poll(METRICS_PERIOD_S if self._news else IDLE_S)
            for _ in range(DRAIN_MESSAGES):
                message = self._read()
                if message is None:
                    break
                if isinstance(message, Stop):
                    self._tell()
                    self._say_metrics(0.0)
                    return
                self._take(cast(Deliver, message))
                if not self._algorithm.demand():
                    break  # a batch is full: what has come beyond it belongs to the next
            self._train()
            self._tell()
            self._say_metrics(METRICS_PERIOD_S)

    # ---- building

    def _wait_for_assignment(self) -> Assign:
        while True:
            message = self._read()
            if isinstance(message, Assign):
                return message
            if isinstance(message, Stop):
                raise Closed("stopped before it was assigned a client")
            self._poller.poll(IDLE_S)

    def _read(self) -> Message | None:
        frames = self._down.recv(MAX_MESSAGE_FRAMES)
        if frames is not None:
            return decode(frames)
        return Stop() if self._stopping.is_set() else None

    def _build(self) -> Algorithm:
        a = self._assign
        spaces = space_from(a.observation_space), space_from(a.action_space)
        make = resolve_algorithm(a.algorithm_name)
        torch = sys.modules.get("torch")
        if torch is not None:
            # Small networks: a second thread doubles the CPU and gains nothing. Before anything is computed, because
            # the number of threads changes the last bits.
            torch.set_num_threads(1)
        algorithm = make(*spaces, a.parameters, a.seed)
        size = algorithm.spec().size
        if size > a.max_parameters:
            raise ConfigError(f"a policy of {size} parameters; max_parameters is {a.max_parameters}", key="max_parameters")
        if a.publish_every_updates:
            algorithm.publish_every_updates = a.publish_every_updates
        return algorithm

    # ---- data in

    def _take(self, message: Deliver) -> None:
        self._began = self._began or time.monotonic()
        submit = cast(Submit, decode(message.body))
        for index, segment in enumerate(read_submit(submit)):
            if index < message.skip or isinstance(segment, ProtocolError) or self._schema.check(segment) is not None:
                continue  # seen before, or refused by the gateway by this same rule
            seq = submit.first_seq + index
            self._taken_items += 1
            self._taken_steps += segment.steps
            stream = message.actor_id, message.incarnation
            reason = content_error(segment, self._schema, self._assign.generation, self._version)
            if reason:
                self._dispose(*stream, seq, Verdict.QUARANTINED, reason)
                continue
            lag = self._lag(segment)
            late = 0 <= self._max_policy_lag < lag
            if late and self._assign.on_lag == "drop":
                self._dispose(*stream, seq, Verdict.STALE)
                continue
            self._observe(segment, lag, late)
            if self._algorithm.kind == "onpolicy":
                self._pending.append((*stream, seq))
            else:
                self._dispose(*stream, seq, Verdict.TRAINED)

    def _observe(self, segment: Segment, lag: int, late: bool) -> None:
        self._algorithm.observe(segment, correct=late)
        self._observed_steps += segment.steps
        self._lag_sum += lag * segment.steps
        self._lag_steps += segment.steps
        if segment.episode_return is not None and segment.episode_length is not None:
            self._episodes.append([self._observed_steps, segment.episode_return, segment.episode_length])

    def _lag(self, segment: Segment) -> int:
        """Versions behind, by the oldest step; data of another generation was made before version 0 of this one."""
        return self._version - (int(segment.versions.min()) if segment.generation == self._assign.generation else 0)

    def _dispose(self, actor_id: str, incarnation: int, seq: int, verdict: str, reason: str = "") -> None:
        ranges = self._disposed.setdefault((actor_id, incarnation, verdict, reason), [])
        if ranges and ranges[-1][1] == seq:
            ranges[-1][1] = seq + 1
        else:
            ranges.append([seq, seq + 1])

    # ---- learning

    def _train(self) -> None:
        while (metrics := self._algorithm.update()) is not None:
            self._updates += 1
            self._scalars.update(metrics)
            for actor_id, incarnation, seq in self._pending:
                self._dispose(actor_id, incarnation, seq, Verdict.TRAINED)
            self._pending.clear()
            self._tell_dispositions()
            if self._updates % self._algorithm.publish_every_updates == 0:
                self._publish()

    def _publish(self) -> None:
        flat = self._spec.flatten(self._algorithm.snapshot())
        self._version += 1
        new = PolicySnapshot(self._assign.generation, self._version, digest(flat), flat)
        body: tuple[bytes, ...] = encode_update(self._assign.policy_id, new.generation, None, new)
        if self._snapshot is not None:
            body = (*body, *encode_update(self._assign.policy_id, new.generation, self._snapshot, new))
        self._snapshot = new
        self._say(Published(new.version, new.digest, body))
        self._scalars["dist/version"] = new.version
        self._slack_steps = round(self._assign.pacing_lag * self._algorithm.demand())
        if self._lag_steps:
            self._scalars["dist/policy_lag"] = self._lag_sum / self._lag_steps
            self._lag_sum = self._lag_steps = 0

    # ---- words upstream

    def _tell_dispositions(self) -> None:
        for (actor_id, incarnation, verdict, reason), ranges in self._disposed.items():
            self._say(Disposed(actor_id, incarnation, ranges, verdict, reason))
        self._disposed.clear()

    def _tell(self) -> None:
        """Dispositions and demand, when there is something new to say."""
        self._tell_dispositions()
        steps = max(self._demand.steps, self._taken_steps + self._algorithm.demand() + self._slack_steps)
        demand = Demand(steps, self._taken_items, self._version)
        if demand != self._demand:
            self._demand = demand
            self._say(demand)

    @property
    def _news(self) -> bool:
        """There are figures that nobody was told."""
        return bool(self._scalars or self._episodes or self._observed_steps != self._said_steps)

    def _say_metrics(self, period_s: float) -> None:
        now = time.monotonic()
        if self._news and now - self._metrics_at >= period_s:
            self._metrics_at = now
            self._said_steps = self._observed_steps
            self._scalars["charts/SPS"] = self._observed_steps / max(now - self._began, 1e-3)
            scalars = {k: float(v) for k, v in self._scalars.items()}
            self._say(Metrics(self._observed_steps, self._updates, scalars, self._episodes))
            self._scalars, self._episodes = {}, []


def _plain(text: str) -> str:
    """Text that can travel, whatever an exception put into it."""
    return text.encode("ascii", "backslashreplace").decode()[:12_000]


def content_error(segment: Segment, schema: SegmentSchema, generation: int, version: int) -> str:
    """Why a segment must not be trained on, or an empty string: not finite, out of range, all masked, or from the future."""
    for name in ("observations", "actions", "rewards", "log_probs"):
        column = getattr(segment, name)
        if column.dtype.kind == "f" and not np.isfinite(column).all():
            return f"{name} are not finite"
    if segment.episode_return is not None and not np.isfinite(segment.episode_return):
        return "the episode's return is not finite"
    for name, column, space in (
        ("actions", segment.actions, schema.action_space),
        ("observations", segment.observations, schema.observation_space),
    ):
        if isinstance(space, DiscreteSpace) and not ((column >= space.start) & (column < space.start + space.n)).all():
            return f"{name} lie outside {space.start} to {space.start + space.n - 1}"
    if segment.generation > generation or (segment.generation == generation and int(segment.versions.max()) > version):
        return (
            f"it was made by version {int(segment.versions.max())} of generation {segment.generation}, which was never published"
        )
    if segment.masks is not None and not segment.masks[: segment.steps].any(axis=1).all():
        return "a mask forbids every action"
    return ""
