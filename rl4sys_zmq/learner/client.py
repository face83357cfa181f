"""The gateway's view of one client: its learner thread, its actors, its credit and its publications."""

from __future__ import annotations

import time
from collections import deque
from enum import StrEnum
from typing import Any

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import CreditPool, Stream, StreamTable
from rl4sys_zmq.learner.admission import ClientSettings
from rl4sys_zmq.learner.publisher import Publications
from rl4sys_zmq.learner.thread import MAX_SEGMENT_STEPS, LearnerThread
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import SegmentSchema, encode, spec_from_document
from rl4sys_zmq.wire.messages import Ack, Frame, Hello, Metrics, Ready, Stop, Verdict

__all__ = ["Client", "ClientState"]

EPISODES_KEPT = 100
QUEUE_ITEMS = 4096
"""How many segments may wait for one learner thread; credit keeps actors below it."""

QUEUE_MESSAGES = 2 * QUEUE_ITEMS + 16


class ClientState(StrEnum):
    """Of a client's learner thread."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"


class Client:
    """One client. Only the gateway thread touches it.

    Attributes:
        table: its actors.
        pool: the credit of the learner thread's present life.
        publications: what it has published in the present generation.
        verdicts: what became of its segments, over all lives.
        dirty: the actors that are owed an ack.
        waiting: hellos that came while the learner thread was starting, by peer.
        backlog: messages for the learner thread that are not in its pipeline yet.
    """

    def __init__(self, settings: ClientSettings, policy_id: bytes, generation: int, table: StreamTable) -> None:
        self.settings = settings
        self.policy_id = policy_id
        self.table = table
        self.state = ClientState.STARTING
        self.error = ""
        self.welcome_spec: dict[str, Any] = {}
        self.algorithm_type = ""
        self.rollout_length = 0
        self.max_policy_lag = -1
        self.schema: SegmentSchema | None = None
        self.publications = Publications(generation)
        self.pool = CreditPool()
        self.push: Socket | None = None
        self.backlog: deque[list[Frame]] = deque()
        self.waiting: dict[bytes, Hello] = {}
        self.dirty: set[str] = set()
        self.counters = Counters()
        self.verdicts = dict.fromkeys(Verdict.ALL, 0)
        self.accepted = 0
        self.delivered_items = self.taken_items = 0
        self.rolled_back = 0
        self.threads: list[LearnerThread] = []
        self.life = 0
        self._metrics = Metrics(0, 0, {}, [])
        self._returns: deque[tuple[float, float]] = deque(maxlen=EPISODES_KEPT)
        self._episodes = 0
        self._pace: deque[tuple[float, int]] = deque(maxlen=64)

    @property
    def client_id(self) -> str:
        """Its name."""
        return self.settings.client_id

    @property
    def key(self) -> bytes:
        """What its learner thread puts before its words; changes with each life of the thread."""
        return self.policy_id + self.life.to_bytes(4, "little")

    @property
    def queued(self) -> int:
        """Segments that were accepted in this life of the learner thread, and that it has not read yet."""
        return self.delivered_items - self.taken_items

    def share_items(self) -> int:
        """How many more segments each of the actors that submit may send."""
        free = max(0, QUEUE_ITEMS - self.queued)
        senders = sum(s.submits for s in self.table.live())
        return max(1, free // max(1, senders)) if free else 0

    def ack(self, stream: Stream, share_items: int) -> Ack:
        """What one of its actors is told."""
        generation, min_version = self.publications.generation, self.pool.min_version
        return stream.ack(generation=generation, free_items=share_items, min_version=min_version)

    def start(self, up: str, max_parameters: int) -> None:
        """Gives it a (new) learner thread, whose pipeline ends are at `up` and below it."""
        self.life += 1
        down = f"{up}-{self.key.hex()}"
        self.state, self.error = ClientState.STARTING, ""
        self.pool = CreditPool()
        self.delivered_items = self.taken_items = 0
        self.push = Socket.push(bind=down, hwm=QUEUE_MESSAGES)
        assign = self.settings.assign(self.policy_id, self.publications.generation, max_parameters)
        self.backlog.append(encode(assign))
        thread = LearnerThread(f"rl4sys-learner-{self.client_id}", self.key, down, up)
        thread.start()
        self.threads.append(thread)

    @property
    def gone(self) -> bool:
        """The learner thread has ended though nobody told it to."""
        return self.state is not ClientState.FAILED and not any(t.alive for t in self.threads)

    def end_thread(self) -> None:
        """Tells the learner thread to finish what it has been given, and to end."""
        if self.push is not None:
            self.push.send(encode(Stop()))
            self.push.close()
            self.push = None
        self.backlog.clear()
        for thread in self.threads:
            thread.stop()
        self.threads = [t for t in self.threads if t.alive]

    def roll_back(self) -> int:
        """Gives up what is pending, because its learner thread is gone; returns how many segments that are."""
        lost = self.table.roll_back()
        self.rolled_back += lost
        for stream in self.table.all():
            CreditPool.reclaim(stream)
        return lost

    def ready(self, message: Ready) -> None:
        """Takes the learner thread's description of its policy."""
        spec = spec_from_document(message.spec)
        self.welcome_spec, self.algorithm_type = message.spec, message.kind
        self.rollout_length, self.max_policy_lag = message.rollout_length, message.max_policy_lag
        self.schema = SegmentSchema(spec.observation_space, spec.action_space, MAX_SEGMENT_STEPS)

    def note(self, metrics: Metrics) -> None:
        """Takes the learner thread's figures."""
        merged = {**self._metrics.scalars, **metrics.scalars}
        self._metrics = Metrics(metrics.step, metrics.update, merged, [])
        self._pace.append((time.monotonic(), metrics.step))
        self._episodes += len(metrics.episodes)
        self._returns.extend((total, length) for _, total, length in metrics.episodes)

    def report(self, now: float) -> dict[str, Any]:
        """This client's part of the learner's status; means are over its last hundred episodes."""
        pub, metrics, count = self.publications, self._metrics, len(self._returns)
        return {
            "state": str(self.state),
            "error": self.error,
            "algorithm": self.settings.algorithm_name,
            "generation": pub.generation,
            "version": pub.version,
            "digest": f"{pub.digest:016x}",
            "updates": metrics.update,
            "steps": metrics.step,
            "steps_per_s": self._steps_per_s(now),
            "episodes": self._episodes,
            "mean_return": sum(r for r, _ in self._returns) / count if count else None,
            "mean_length": sum(n for _, n in self._returns) / count if count else None,
            "policy_lag": metrics.scalars.get("dist/policy_lag", 0.0),
            "scalars": metrics.scalars,
            "accepted": self.accepted,
            "pending": self.table.pending,
            "rolled_back": self.rolled_back,
            "restarts": self.life - 1,
            "verdicts": dict(self.verdicts),
            "credit_steps": max(0, self.pool.limit_steps - self.pool.delivered_steps),
            "counters": self.counters.snapshot(),
            "actors": {
                s.actor_id: {
                    "live": self.table.peer_of(s) is not None,
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
                for s in self.table.all()
            },
        }

    def _steps_per_s(self, now: float) -> float:
        """Environment steps taken per second, from the oldest report kept until now."""
        if len(self._pace) < 2:
            return 0.0
        (began, first), (_, last) = self._pace[0], self._pace[-1]
        return (last - first) / max(now - began, 1e-3)
