"""A simulated actor: a host that produces segments, a bounded queue, and the production session."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.incarnation import first_incarnation, next_incarnation
from rl4sys_zmq.delivery.session import (
    Action,
    ActorSession,
    Reconnect,
    ReplaceSockets,
    SendMessage,
    SessionJoined,
    SessionState,
    StreamRestarted,
)
from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import PackedSegment, encode, pack_segment
from rl4sys_zmq.wire.messages import Ack, Frame, Hello, Message, Verdict, Welcome
from simulation.sim_spool import SimSpool
from simulation.sim_thread import MAX_STEPS

if TYPE_CHECKING:
    from simulation.sim_network import SimNetwork

QUEUE_ITEMS = 40
BATCH_ITEMS = 4
BEGAN_S = 1.8e9
DAY_S = 86_400.0
LOST_SPOOL = 0.25
"""The chance that an actor with a wrong clock finds its spool gone at a start."""


@dataclass
class Link:
    """One connection of one actor to one start of the learner."""

    peer: bytes
    life: int
    front: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})


@dataclass(frozen=True)
class ActorParts:
    """The classes that an actor is built from."""

    session: Callable[[Hello, Counters, random.Random], ActorSession] = ActorSession
    spool: Callable[[], SimSpool] = SimSpool
    reuse_incarnations: bool = False


class SimActor:
    """A host that produces segments, with its queue and its session."""

    def __init__(self, sim: SimNetwork, index: int, number: int) -> None:
        self.index, self.number, self.ended = index, number, False
        self.stream: Key = (f"actor-{index}", 0)
        self.owner = self.stream[0]
        self.pure = True
        self._sim = sim
        self._spooled = sim.schedule.spooled
        self._spool = sim.actor_parts.spool()
        self._starts = 0
        self._serial = itertools.count(number << 32)
        self._ticks = 0
        self._incarnation = 0
        self._stopped: deque[tuple[int, Message]] | None = None

    @property
    def held(self) -> int:
        return len(self._spool.rows)

    @property
    def wanted_steps(self) -> int:
        """The credit to request: the number of steps that it has sent and that wait in its queue."""
        return self.session.sent_steps + self._spool.waiting_steps

    @property
    def accounted(self) -> int:
        """The actor's count of the segments that it has or that the learner accepted or refused."""
        session = self.session
        accepted, refused = session.accepted, session.verdicts[Verdict.REFUSED]
        return self._spool.waiting + session.unreceived + accepted + refused

    @property
    def is_caught_up(self) -> bool:
        """True if it has joined and its queue is empty."""
        return not self.held and self.session.state is SessionState.JOINED

    def start(self) -> None:
        rng, wrong = self._sim.rng, self._sim.schedule.clock != "right"
        again = self._spooled and self._starts > 0 and not (wrong and rng.random() < LOST_SPOOL)
        if not (self._sim.actor_parts.reuse_incarnations and self._starts):
            self._starts += 1
            least = next_incarnation(self._incarnation, rng) if again else 0
            self._incarnation = max(least, first_incarnation(self._clock_s(), rng))
        incarnation = self._incarnation
        if again:
            self._spool.reopen(rng)
        else:
            self._spool = self._sim.actor_parts.spool()
            self._spool.reconciled = not self._spooled
            self._sim.history.abandon(self.stream)
            self.stream = self.stream[0], incarnation
            self.pure = True
            self.owner = f"{self.stream[0]}/{self.number}/{self._starts}"
        rng = random.Random(self._sim.rng.random())
        hello = Hello(
            "sim",
            self.stream[0],
            incarnation,
            self._spool.base_seq,
            0,
            0,
            origin=self.stream[1] if self._spooled else 0,
            journal_id=self._spool.journal_id if self._spooled else 0,
            spooled=self._spooled,
        )
        self.session = self._sim.actor_parts.session(hello, Counters(), rng)
        self._dial()

    def restart(self) -> None:
        """End the process, with or without closing its session, and start another one under its name."""
        self._sim.history.counts["actor_restarts"] += 1
        if self._sim.rng.random() < 0.5 and self._stopped is None:
            self._do(self.session.close(self._sim.now))
        self._stopped = None
        self.start()

    def end(self) -> None:
        self.ended = True
        self._sim.history.abandon(self.stream)
        if self._sim.rng.random() < 0.5 and self._stopped is None:
            self._do(self.session.close(self._sim.now))
        self._stopped = deque()

    def stop(self) -> None:
        """Stop the process, as with SIGSTOP. Its messages wait."""
        self._stopped = deque() if self._stopped is None else self._stopped

    def wake(self) -> None:
        """Continue the process, as with SIGCONT, and process the messages that waited."""
        if self._stopped is None or self.ended:
            return
        waiting, self._stopped = self._stopped, None
        for life, message in waiting:
            if life == self._sim.life:  # as with all messages: the connection ended with the learner's process
                self.on_message(message)
        self._work()

    def _clock_s(self) -> float:
        sim = self._sim
        if sim.schedule.clock == "still":
            return BEGAN_S
        step_s = sim.rng.choice([0.0, DAY_S, -DAY_S]) if sim.schedule.clock == "steps" else 0.0
        return BEGAN_S + sim.now + step_s

    def produce(self) -> None:
        """Produce a segment. One in ten is longer than the learner accepts."""
        if self._stopped is not None:
            return
        history = self._sim.history
        steps = MAX_STEPS + 1 if self._sim.rng.random() < 0.1 else self._sim.rng.randint(1, MAX_STEPS)
        segment = next(self._serial)
        history.submit(self.owner, segment)
        dropped = self._spool.put(segment, packed_segment(segment, steps), QUEUE_ITEMS)
        if dropped is not None:
            history.drop(dropped)
        if self._sim.rng.random() < 0.3:
            self._spool.sync()
        self._work()

    def on_message(self, message: Message) -> None:
        if self._stopped is not None:
            self._stopped.append((self._sim.life, message))
            return
        self._do(self.session.on_message(self._sim.now, message))
        while self._spool.taken > self.session.in_flight:
            seq, _ = self._spool.release()
            self._sim.history.release(self.stream, seq)
        self._work()

    def hear(self, frames: list[Frame], link: Link) -> None:
        """Send a message to this actor over the faulty network, and sometimes an ack that lies."""
        self._sim.carry(self, link, frames, up=False)
        if not self._sim.quiet and self._sim.rng.random() < self._sim.schedule.lie:
            end = self._spool.base_seq + self._spool.taken + self._sim.rng.choice([1000, 1 << 62])
            lie = Ack(self.session.generation, end, end, end, 0, 0, 0, 0, 0, 0, {})
            self._sim.carry(self, link, encode(lie), up=False)

    def _dial(self) -> None:
        self.link = self._sim.dial(self)
        self._do(self.session.open(self._sim.now, (0, 0)))
        self._schedule_tick()

    def _work(self) -> None:
        """Do one turn of the I/O thread: number and send segments, request credit, and run the timers."""
        if self._stopped is not None:
            return
        now, session, spool = self._sim.now, self.session, self._spool
        while spool.waiting and session.can_take():
            batch: list[PackedSegment] = []
            steps = 0
            while spool.waiting and len(batch) < BATCH_ITEMS:
                if batch and not session.has_room(len(batch), steps):
                    break
                _, segment, packed = spool.take()
                self._sim.history.assign(self.stream, session.received + session.unreceived + len(batch), segment)
                batch.append(packed)
                steps += packed.steps
            self._do(session.take(now, batch))
        self._do(session.want(now, self.wanted_steps))
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
                case SendMessage(message):
                    self._sim.carry(self, self.link, encode(message), up=True)
                case Reconnect():
                    self._sim.history.counts["redials"] += 1
                    self._dial()
                    return
                case SessionJoined(welcome):
                    self._on_joined(welcome)
                case StreamRestarted():
                    self._on_renewed()
                    self._dial()  # a late reply to an old HELLO must not reach this session
                    return
                case ReplaceSockets(incarnation):
                    self._sim.history.counts["raised"] += 1
                    self._incarnation, self.stream = incarnation, (self.stream[0], self.session.origin)
                    self._dial()
                    return

    def _on_joined(self, welcome: Welcome) -> None:
        history, spool = self._sim.history, self._spool
        history.counts["joined"] += 1
        self.pure &= spool.journal_id in (0, welcome.journal_id)
        spool.journal_id = welcome.journal_id
        if spool.reconciled:
            return
        history.counts["reconciled"] += 1
        gone, kept = spool.reconcile(welcome.received, welcome.durable)
        for seq, segment in gone:
            history.assign(self.stream, seq, segment)
            history.release(self.stream, seq)
        self.session.recover(kept)
        history.counts["recovered"] += len(kept)
        for offset, (segment, _) in enumerate(itertools.islice(spool.rows, spool.taken)):
            history.assign(self.stream, spool.base_seq + offset, segment)

    def _on_renewed(self) -> None:
        self._sim.history.counts["renewed"] += 1
        self._sim.history.doubt(self._spool.forget_taken())
        self.stream = self.stream[0], self.session.origin
        self.pure = False


def packed_segment(segment: int, steps: int) -> PackedSegment:
    rows = np.zeros(steps, dtype=np.float32)
    observations = np.zeros((steps, 1), dtype=np.float32)
    actions, versions = np.zeros(steps, dtype=np.int64), np.zeros(steps, dtype=np.uint64)
    return pack_segment(Segment(observations, actions, rows, rows, versions, None, 1, segment, 0, True, False, False, 0.0, steps))
