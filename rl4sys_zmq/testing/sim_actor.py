"""An actor for the simulator: a host that hands over segments, the bounded queue, and the session in earnest."""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import Action, Joined, Redial, Send
from rl4sys_zmq.testing.sim_learner import MAX_STEPS
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import PackedSegment, pack_segment
from rl4sys_zmq.wire.messages import Ack, Hello, Message

if TYPE_CHECKING:
    from rl4sys_zmq.testing.simulator import Simulation

__all__ = ["Link", "SimActor"]

QUEUE_ITEMS = 40
BATCH_ITEMS = 4


@dataclass
class Link:
    """One connection of one actor to one life of the learner."""

    peer: bytes
    life: int
    front: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})


class SimActor:
    """A host that hands over segments, the bounded queue, and the session."""

    def __init__(self, sim: Simulation, index: int) -> None:
        self.index = index
        self._sim = sim
        self._incarnation = 0
        self._serial = itertools.count(index << 32)
        self._ticks = 0

    @property
    def stream(self) -> tuple[str, int]:
        """Who it is."""
        return f"actor-{self.index}", self._incarnation

    @property
    def held(self) -> int:
        """Segments that it has not got rid of."""
        return len(self._queue) + len(self._window)

    def start(self) -> None:
        """A process begins, with nothing."""
        self._incarnation += not (self._sim.reuse_incarnations and self._incarnation)
        self._queue: deque[tuple[int, PackedSegment]] = deque()
        self._window: deque[tuple[int, int]] = deque()
        rng = random.Random(self._sim.rng.random())
        hello = Hello("sim", f"actor-{self.index}", self._incarnation, 0, 0, 0)
        self.session = self._sim.make_session(hello, Counters(), rng)
        self._dial()

    def restart(self) -> None:
        """It is killed, and another process takes its name."""
        self._sim.history.counts["actor_restarts"] += 1
        self.start()

    def produce(self) -> None:
        """The host hands over a segment; one in ten is longer than the learner takes."""
        steps = MAX_STEPS + 1 if self._sim.rng.random() < 0.1 else self._sim.rng.randint(1, MAX_STEPS)
        segment = next(self._serial)
        self._queue.append((segment, _packed(segment, steps)))
        self._sim.history.submit(self.stream, segment)
        if len(self._queue) > QUEUE_ITEMS:
            self._sim.history.drop(self.stream, self._queue.popleft()[0])
        self._work()

    def on_message(self, message: Message) -> None:
        """The learner said something."""
        self._do(self.session.on_message(self._sim.now, message))
        self._note_released()
        self._work()

    def hear(self, message: Message, link: Link) -> None:
        """Somebody sends it a message; the network decides what comes of it."""
        self._sim.carry(self, link, message, up=False)
        if not self._sim.quiet and self._sim.rng.random() < self._sim.schedule.lie:
            end = self.session.submitted + self._sim.rng.choice([1000, 1 << 62])
            lie = Ack(self.session.generation, end, end, end, 0, 0, 0, 0, 0, {})
            self._sim.carry(self, link, lie, up=False)

    def _dial(self) -> None:
        self.link = self._sim.dial(self)
        self._do(self.session.open(self._sim.now, (0, 0)))
        self._schedule_tick()

    def _work(self) -> None:
        """What the I/O thread does in a turn."""
        now, session = self._sim.now, self.session
        while self._queue and session.can_take():
            batch: list[PackedSegment] = []
            steps = 0
            while self._queue and len(batch) < BATCH_ITEMS:
                if batch and not (session.sent_steps + steps < session.credit_steps and session.has_room(len(batch))):
                    break
                segment, packed = self._queue.popleft()
                seq = session.submitted + len(batch)
                self._sim.history.assign(self.stream, seq, segment)
                self._window.append((seq, segment))
                batch.append(packed)
                steps += packed.steps
            self._do(session.take(now, batch))
        waiting = sum(packed.steps for _, packed in self._queue)
        self._do(session.want(now, session.sent_steps + waiting))
        self._do(session.tick(now, (0, 0)))
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        self._ticks += 1
        mine = self._ticks
        self._sim.at(
            max(self._sim.now + 0.001, self.session.next_deadline()), lambda: self._work() if mine == self._ticks else None
        )

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(message):
                    self._sim.carry(self, self.link, message, up=True)
                case Redial():
                    self._sim.history.counts["redials"] += 1
                    self._dial()
                    return
                case Joined():
                    self._sim.history.counts["joined"] += 1

    def _note_released(self) -> None:
        while len(self._window) > self.session.in_flight:
            seq, _ = self._window.popleft()
            self._sim.history.release(self.stream, seq)


def _packed(segment: int, steps: int) -> PackedSegment:
    rows = np.zeros(steps, dtype=np.float32)
    observations = np.zeros((steps, 1), dtype=np.float32)
    actions, versions = np.zeros(steps, dtype=np.int64), np.zeros(steps, dtype=np.uint64)
    return pack_segment(Segment(observations, actions, rows, rows, versions, None, 1, segment, 0, True, False, False, 0.0, steps))
