"""The gateway's view of one client: its learner thread, its streams, its credit and its publications."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import CreditPool, Stream
from rl4sys_zmq.learner.admission import ClientSettings
from rl4sys_zmq.learner.publisher import Publications
from rl4sys_zmq.learner.thread import LearnerThread
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.values import PolicySpec
from rl4sys_zmq.wire import SegmentSchema
from rl4sys_zmq.wire.messages import Frame, Hello, Metrics, Verdict

__all__ = ["Client", "ClientState", "Episodes"]

EPISODES_KEPT = 100


class ClientState(StrEnum):
    """Of a client's learner thread."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Episodes:
    """The last episodes that ended: their mean return and mean length, and how many there were in all."""

    total: int
    mean_return: float | None
    mean_length: float | None


class Client:
    """One client. Only the gateway thread touches it."""

    def __init__(self, settings: ClientSettings, policy_id: bytes, generation: int) -> None:
        self.settings = settings
        self.policy_id = policy_id
        self.state = ClientState.STARTING
        self.error = ""
        self.trace = ""
        self.life = 0
        self.restarts = 0
        self.thread: LearnerThread | None = None
        self.push: Socket | None = None
        self.spec: dict[str, Any] = {}
        self.rollout_length = 0
        self.schema: SegmentSchema | None = None
        self.publications = Publications(generation)
        self.pool = CreditPool()
        self.streams: dict[str, Stream] = {}
        self.peers: dict[str, bytes] = {}
        self.backlog: deque[list[Frame]] = deque()
        self.waiting: dict[bytes, Hello] = {}
        self.counters = Counters()
        self.metrics = Metrics(0, 0, {}, [])
        self.dirty: set[str] = set()
        self.verdicts = dict.fromkeys(Verdict.ALL, 0)
        self.accepted = 0
        self.rolled_back = 0
        self._returns: deque[tuple[float, float]] = deque(maxlen=EPISODES_KEPT)
        self._episodes = 0
        self._steps_seen: deque[tuple[float, int]] = deque(maxlen=64)

    @property
    def client_id(self) -> str:
        """Its name."""
        return self.settings.client_id

    @property
    def key(self) -> bytes:
        """What its learner thread puts before its words; changes with each life of the thread."""
        return self.policy_id + self.life.to_bytes(4, "little")

    @property
    def pending(self) -> int:
        """Segments accepted and not yet disposed of."""
        disposed = sum(self.verdicts[v] for v in (Verdict.TRAINED, Verdict.STALE, Verdict.QUARANTINED))
        return self.accepted - disposed - self.rolled_back

    def ready(self, spec: PolicySpec, document: dict[str, Any], rollout_length: int, max_steps: int) -> None:
        """Takes the learner thread's description of its policy."""
        self.spec, self.rollout_length = document, rollout_length
        self.schema = SegmentSchema(spec.observation_space, spec.action_space, max_steps)

    def note(self, metrics: Metrics) -> None:
        """Takes the learner thread's figures."""
        merged = {**self.metrics.scalars, **metrics.scalars}
        self.metrics = Metrics(metrics.step, metrics.update, merged, metrics.episodes)
        self._steps_seen.append((time.monotonic(), metrics.step))
        for _, total, length in metrics.episodes:
            self._returns.append((total, length))
            self._episodes += 1

    @property
    def episodes(self) -> Episodes:
        """Of the last hundred episodes."""
        if not self._returns:
            return Episodes(0, None, None)
        returns, lengths = zip(*self._returns, strict=True)
        return Episodes(self._episodes, sum(returns) / len(returns), sum(lengths) / len(lengths))

    @property
    def steps_per_s(self) -> float:
        """Environment steps taken per second, over the last reports."""
        if len(self._steps_seen) < 2:
            return 0.0
        (t0, s0), (t1, s1) = self._steps_seen[0], self._steps_seen[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else 0.0

    def report(self, now: float) -> dict[str, Any]:
        """This client's part of the learner's status."""
        pub, episodes = self.publications, self.episodes
        return {
            "state": str(self.state),
            "error": self.error,
            "algorithm": self.settings.algorithm_name,
            "generation": pub.generation,
            "version": pub.version,
            "digest": f"{pub.digest:016x}",
            "updates": self.metrics.update,
            "steps": self.metrics.step,
            "steps_per_s": self.steps_per_s,
            "episodes": episodes.total,
            "mean_return": episodes.mean_return,
            "mean_length": episodes.mean_length,
            "policy_lag": self.metrics.scalars.get("dist/policy_lag", 0.0),
            "scalars": dict(self.metrics.scalars),
            "accepted": self.accepted,
            "pending": self.pending,
            "rolled_back": self.rolled_back,
            "restarts": self.restarts,
            "verdicts": dict(self.verdicts),
            "credit_steps": max(0, self.pool.limit_steps - self.pool.delivered_steps),
            "actors": {
                s.actor_id: {
                    "incarnation": s.incarnation,
                    "silent_s": round(now - s.last_seen, 3),
                    "received": s.received,
                    "durable": s.durable,
                    "trained": s.trained,
                    "pending": s.pending,
                    "accepted_steps": s.accepted_steps,
                    "credit_steps": s.credit_steps,
                    "verdicts": dict(s.verdicts),
                }
                for s in self.streams.values()
            },
            "counters": self.counters.snapshot(),
        }
