"""A simulated learner thread. Its state is the list of the segments with their verdicts; its marks and messages are real."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl4sys_zmq.delivery.credit import DataAmount
from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.learner.training.checkpointing import CheckpointMarks
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot
from rl4sys_zmq.weights import EncodingOptions, digest, encode_update
from rl4sys_zmq.wire import SegmentSchema, encode, read_segments, spec_to_document
from rl4sys_zmq.wire.messages import Frame, Verdict
from rl4sys_zmq.wire.thread_messages import (
    AssignClient,
    CheckpointResult,
    DataDemand,
    DeliverSegments,
    PolicyPublished,
    SaveCheckpoint,
    SegmentVerdicts,
    StreamEnded,
    ThreadFailed,
    ThreadMessage,
    ThreadReady,
    WorkerMessage,
    decode_thread_message,
)
from simulation.history import History
from simulation.schedule import Schedule
from simulation.sim_disk import Checkpoint, SimDisk

MAX_STEPS = 6
"""The largest number of steps in a segment. A longer segment is refused, but not the other segments of its message."""

BATCH_STEPS = 24
INBOX_MESSAGES = 4
"""The capacity of the pipeline to a learner thread, in messages."""

SPEC = mlp_spec(BoxSpace((1,)), DiscreteSpace(2), "categorical", ())
SCHEMA = SegmentSchema(SPEC.observation_space, SPEC.action_space, MAX_STEPS)
_FLAT = np.zeros(SPEC.size, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class ThreadSite:
    """The surroundings of a learner thread."""

    key: bytes
    disk: SimDisk | None
    is_full: Callable[[], bool]
    reach: Callable[[str], None]


class Given:
    """A message with segments, decoded by a learner thread."""

    def __init__(self, message: DeliverSegments) -> None:
        self.batch = read_segments(message.body)
        assert message.batch is None or message.batch.heads.tobytes() == self.batch.heads.tobytes()
        self.key: Key = message.actor_id, message.origin
        self.skip, self.first_seq = message.skip, self.batch.first_seq
        self.refused = self.batch.errors(SCHEMA)
        taken = [int(steps) for place, steps in enumerate(self.batch.steps) if place >= self.skip and place not in self.refused]
        self.load = DataAmount(sum(taken), len(taken), sum(len(frame) for frame in message.body))


class SimThread:
    """One start of a learner thread: a `WorkerHandle`."""

    crash = ""
    failure: ThreadFailed | None = None
    silent_s = 0.0

    def __init__(
        self, history: History, rng: random.Random, schedule: Schedule, judged: list[tuple[int, str]] | None, site: ThreadSite
    ) -> None:
        self.inbox: deque[ThreadMessage | Given] = deque()
        self.words: list[list[Frame]] = []
        self.progress = CheckpointMarks()
        self.judged = list(judged or ())
        self.taken_messages = 0
        self.is_ready = False
        self.alive = True
        self._history, self._rng, self._offpolicy, self._pace = history, rng, schedule.offpolicy, schedule.pace
        self._site, self._follows = site, judged is not None
        self._since: list[tuple[int, str]] = []
        self._batch: list[tuple[Key, int, int]] = []
        self._batch_steps = 0
        self._said: list[tuple[Key, int, str]] = []
        self._demand = (0, 0)

    def send(self, message: WorkerMessage) -> bool:
        if not self.alive or len(self.inbox) >= INBOX_MESSAGES:
            return False
        self.inbox.append(Given(message) if isinstance(message, DeliverSegments) else decode_thread_message(message))
        return True

    def end(self, *, replaced: bool) -> None:
        self.alive = False

    def join(self, timeout_s: float | None = None) -> bool:
        return True

    def abort(self) -> bool:
        """Return True: the thread has ended with `end`."""
        return True

    def describe(self) -> dict[str, Any]:
        return {"engine": "simulated"}

    def _say(self, message: ThreadMessage) -> None:
        self.words.append([self._site.key, *encode(message)])

    def fail(self) -> None:
        self._say(ThreadFailed("ArithmeticError: planted", ""))

    def load(self, disk: SimDisk) -> ThreadReady:
        number = 0
        if disk.checkpoints:
            saved = disk.checkpoints[-1]
            number = saved.number
            self.judged, self.progress = list(saved.judged), CheckpointMarks(saved.marks, saved.verdicts)
        self._history.begin_thread(segment for segment, _ in self.judged)
        return self._ready(number)

    def _ready(self, number: int) -> ThreadReady:
        marks, verdicts = self.progress.as_documents(), dict(self.progress.verdicts)
        return ThreadReady(spec_to_document(SPEC), "onpolicy", 0, -1, number, marks, verdicts, [])

    def save_and_say(self, token: int = 0) -> None:
        """Write a checkpoint, and report it or the reason of a failure."""
        disk = self._site.disk
        if disk is None:
            self._say(CheckpointResult(token, 0, 0, [], 0.0, ""))
        elif self._site.is_full():
            self._history.counts["checkpoints.failed"] += 1
            self._say(CheckpointResult(token, 0, 0, [], 0.0, "the disk is full"))
        else:
            self._history.counts["checkpoints"] += 1
            message = self.save(disk, self._site.reach)
            self._say(CheckpointResult(token, message.number, message.version, message.marks, 0.0, ""))

    def save(self, disk: SimDisk, reach: Callable[[str], None]) -> CheckpointResult:
        """Write a checkpoint of the last barrier. `reach` is called in the middle of it, and may raise."""
        saved = self._checkpoint(disk.next_number)
        reach("in_checkpoint")
        disk.keep(saved)
        self.progress.moved = False
        return CheckpointResult(0, saved.number, 0, [[m.actor_id, m.origin, m.next_seq] for m in saved.marks], 0.0, "")

    def _checkpoint(self, number: int) -> Checkpoint:
        return Checkpoint(number, tuple(self.judged), self.progress.marks(), dict(self.progress.verdicts))

    @property
    def judged_now(self) -> list[tuple[int, str]]:
        """The segments with their verdicts, with those since the last barrier."""
        return self.judged + self._since

    @property
    def wants_steps(self) -> int:
        """The number of steps that are missing for a batch."""
        return BATCH_STEPS - self._batch_steps

    def work(self, *, flush: bool) -> None:
        """Read some of the messages, or all with `flush`, and report the verdicts and the demand."""
        while self.inbox and (flush or self._rng.random() < self._pace):
            self._follow(self.inbox.popleft())
        if flush:
            self._train()
        if self.is_ready:
            self._tell()

    def _tell(self) -> None:
        said: dict[tuple[Key, str], list[list[int]]] = {}
        for key, seq, verdict in self._said:
            ranges = said.setdefault((key, verdict), [])
            if ranges and ranges[-1][1] == seq:
                ranges[-1][1] = seq + 1
            else:
                ranges.append([seq, seq + 1])
        for ((actor_id, origin), verdict), ranges in said.items():
            self._say(SegmentVerdicts(actor_id, origin, ranges, verdict, "", ""))
        self._said.clear()
        demand = self.taken_messages, self.wants_steps
        if demand != self._demand:
            self._demand = demand
            self._say(DataDemand(self.wants_steps, self.taken_messages, 0))

    def _follow(self, message: ThreadMessage | Given) -> None:
        match message:
            case AssignClient():
                self._begin(message)
            case Given():
                self._read(message)
            case SaveCheckpoint():
                if message.partial:
                    self._train()
                self._tell()
                self.save_and_say(message.token)
            case StreamEnded():
                self.progress.forget((message.actor_id, message.origin))
            case _:
                raise AssertionError(f"{type(message).__name__} is not for a learner thread")

    def _begin(self, assign: AssignClient) -> None:
        if self._site.disk is not None:
            self._say(self.load(self._site.disk))
        else:
            self._history.begin_thread((segment for segment, _ in self.judged), rolls_back=self._follows)
            self._say(self._ready(0))
        snapshot = PolicySnapshot(assign.generation, 0, digest(_FLAT), _FLAT)
        header, payload = encode_update(assign.policy_id, None, snapshot, EncodingOptions())
        state = _FLAT.view(np.uint8).data
        whole = len(payload) == len(state)
        self._say(PolicyPublished(0, snapshot.digest, (state, header) if whole else (state, header, payload)))
        self.is_ready = True

    def _read(self, given: Given) -> None:
        key = given.key
        for index, segment in enumerate(given.batch.segments()[given.skip :], given.skip):
            seq = given.first_seq + index
            self.progress.receive(key, seq, seq + 1)
            if index in given.refused:
                self.progress.record_verdict(key, Verdict.REFUSED)
                continue
            self._observe(key, seq, segment.episode_id, segment.steps)
            if self._batch_steps >= BATCH_STEPS:
                self._train()  # a batch may be full in the middle of a message, and a mark then lies inside its entry
        self.taken_messages += 1
        self._after_message()

    def _observe(self, key: Key, seq: int, segment: int, steps: int) -> None:
        self._history.observe(segment)
        fate = self._rng.random()
        if fate < 0.1:
            verdict = Verdict.STALE if fate < 0.04 else Verdict.EVALUATED if fate < 0.07 else Verdict.QUARANTINED
            self._dispose(key, seq, segment, verdict)
        elif self._offpolicy:
            self._dispose(key, seq, segment, Verdict.TRAINED)
        else:
            self._batch.append((key, seq, segment))
            self._batch_steps += steps

    def _after_message(self) -> None:
        if not self._batch:
            self._barrier()

    def _train(self) -> None:
        for key, seq, segment in self._batch:
            self._dispose(key, seq, segment, Verdict.TRAINED)
        self._batch.clear()
        self._batch_steps = 0
        self._barrier()

    def _barrier(self) -> None:
        self.progress.barrier()
        self.judged += self._since
        self._since.clear()

    def _dispose(self, key: Key, seq: int, segment: int, verdict: str) -> None:
        self.progress.record_verdict(key, verdict)
        self._history.counts[verdict] += 1
        self._since.append((segment, verdict))
        self._said.append((key, seq, verdict))
