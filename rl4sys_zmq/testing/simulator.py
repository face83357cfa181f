"""Delivery under a random schedule of faults, without sockets, threads or a clock: one learner, some actors, a bad network.

`simulate(seed)` runs one schedule and raises `Violation` when a guarantee breaks; the same seed does the same again. The
parts that are tested are those that run in earnest: `ActorSession`, `StreamTable`, `take_submit`, `CreditPool`, the codec.
A planted bug goes in through `LearnerParts` or `actor_session`, to see that the rules would catch it.

A connection does not outlive the life of the learner that it was made to: what a learner sent before it died never arrives
after what its successor sends, as with TCP. Within a connection a schedule may lose, repeat, damage and (some schedules)
reorder whatever it likes, which TCP would not.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import Action, ActorSession, Joined, Redial, Send
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.testing.history import History, Violation
from rl4sys_zmq.testing.sim_learner import MAX_STEPS, LearnerParts, SimLearner
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import PackedSegment, decode, encode, pack_segment
from rl4sys_zmq.wire.messages import Ack, Frame, Hello, Message

__all__ = ["Schedule", "Simulation", "simulate"]

TURN_S = 0.1
QUEUE_ITEMS = 40
BATCH_ITEMS = 4
PROBES = 3
QUIET_S = 240.0

SessionFactory = Callable[[Hello, Counters, random.Random], ActorSession]


@dataclass(frozen=True)
class Schedule:
    """The faults of one simulation, drawn from its seed.

    Attributes:
        actors: how many.
        segments: how many each actor's host hands over while there are faults.
        faults_s: how long there are faults, in virtual seconds.
        drop, repeat, damage: the chances that a message is lost, comes twice, or comes with a byte changed.
        lie: the chance that an actor is sent an acknowledgement of things that it never sent.
        reorder: whether messages of one connection may overtake each other.
        delay_s: the longest delay of a message.
        lease_s: of the learner.
        learner_restarts, thread_restarts, actor_restarts, partitions: how many of each.
    """

    actors: int
    segments: int
    faults_s: float
    drop: float
    repeat: float
    damage: float
    lie: float
    reorder: bool
    delay_s: float
    lease_s: float
    learner_restarts: int
    thread_restarts: int
    actor_restarts: int
    partitions: int

    @property
    def clean(self) -> bool:
        """Nothing goes wrong and nobody is slow: credit is kept to the letter."""
        faults = self.drop, self.repeat, self.damage, self.lie, self.reorder, self.partitions
        restarts = self.learner_restarts, self.thread_restarts, self.actor_restarts
        return not any(faults) and not any(restarts) and self.delay_s <= 0.2

    @classmethod
    def draw(cls, rng: random.Random) -> Schedule:
        """A random schedule."""
        bad = rng.random() < 0.8
        return cls(
            actors=rng.randint(1, 3),
            segments=rng.randint(5, 25),
            faults_s=rng.choice([4.0, 10.0, 20.0]),
            drop=rng.choice([0.0, 0.05, 0.3]) if bad else 0.0,
            repeat=rng.choice([0.0, 0.1]) if bad else 0.0,
            damage=rng.choice([0.0, 0.0, 0.02]) if bad else 0.0,
            lie=rng.choice([0.0, 0.0, 0.05]) if bad else 0.0,
            reorder=bad and rng.random() < 0.5,
            delay_s=rng.choice([0.01, 0.2, 2.0]),
            lease_s=rng.choice([4.0, 30.0]),
            learner_restarts=rng.choice([0, 0, 1, 2]),
            thread_restarts=rng.choice([0, 0, 1]),
            actor_restarts=rng.choice([0, 0, 1, 2]),
            partitions=rng.choice([0, 0, 1, 2]),
        )


@dataclass
class _Link:
    """One connection of one actor to one life of the learner."""

    peer: bytes
    life: int
    front: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})


class Simulation:
    """One learner, its actors and the network between them, on a virtual clock."""

    def __init__(
        self,
        seed: int,
        *,
        schedule: Schedule | None = None,
        parts: LearnerParts | None = None,
        actor_session: SessionFactory = ActorSession,
        reuse_incarnations: bool = False,
    ) -> None:
        """Args:
        seed: of everything random.
        schedule: the faults; drawn from the seed unless given.
        parts: what the learner is built from.
        actor_session: the actor's side of the protocol.
        reuse_incarnations: plants a bug: a restarted actor takes the incarnation of its predecessor.
        """
        self.rng = random.Random(seed)
        self.schedule = schedule or Schedule.draw(self.rng)
        self.history = History()
        self.now = 0.0
        self.messages = 0
        self.quiet = False
        self._parts = parts or LearnerParts()
        self._session, self._reuse = actor_session, reuse_incarnations
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._life = 0
        self._learner: SimLearner | None = None
        self._partitioned: dict[int, float] = {}
        self._peers: dict[bytes, _Actor] = {}
        self._actors = [_Actor(self, index) for index in range(self.schedule.actors)]

    def run(self) -> History:
        """Plays the schedule, waits until everything has drained, and checks.

        Raises:
            Violation: when a guarantee is broken.
        """
        plan = self.schedule
        self._start_learner()
        for actor in self._actors:
            actor.start()
            for _ in range(plan.segments):
                self.at(self.rng.uniform(0, plan.faults_s), actor.produce)
        for _ in range(plan.learner_restarts):
            self.at(self.rng.uniform(0, plan.faults_s), self._kill_learner)
        for _ in range(plan.thread_restarts):
            self.at(self.rng.uniform(0, plan.faults_s), self._restart_thread)
        for _ in range(plan.actor_restarts):
            self.at(self.rng.uniform(0, plan.faults_s), self.rng.choice(self._actors).restart)
        for _ in range(plan.partitions):
            self.at(self.rng.uniform(0, plan.faults_s), self._partition)
        self._play(plan.faults_s)
        self._calm()
        deadline = self.now + QUIET_S
        while self.now < deadline and not self._drained():
            self._play(min(deadline, self.now + 1.0))
        self._finish()
        return self.history

    def at(self, time: float, event: Callable[[], None]) -> None:
        """Calls `event` when the clock shows `time`."""
        heapq.heappush(self._events, (time, next(self._count), event))

    def _play(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def _calm(self) -> None:
        """The faults end; every actor hands over a few more segments, which must get through too."""
        self.quiet = True
        self._partitioned.clear()
        if self._learner is None:
            self._start_learner()
        for actor in self._actors:
            for _ in range(PROBES):
                self.at(self.now + self.rng.uniform(0, 5), actor.produce)
        self._play(self.now + 5.0)

    def _drained(self) -> bool:
        return all(actor.held == 0 for actor in self._actors)

    def _finish(self) -> None:
        for actor in self._actors:
            self.history.check(actor.stream, actor.held)
        assert self._learner is not None
        for _ in range(3):
            self._deliver(self._learner.turn(self.now, flush=True))
        self._play(self.now + 5.0)
        self.history.check_disposed()
        self._learner.check()
        for actor in self._actors:
            self.history.check_verdicts(actor.stream, actor.session.verdicts)

    # ---- the learner

    def _start_learner(self) -> None:
        self._life += 1
        self.history.begin_life()
        seed = self.rng.random()
        self._learner = SimLearner(self._life, self.schedule.lease_s, self._parts, self.history, random.Random(seed))
        self._learner.strict = self.schedule.clean
        self._turn(self._learner)
        self._second(self._learner)

    def _turn(self, learner: SimLearner) -> None:
        if learner is self._learner:
            self._deliver(learner.turn(self.now))
            self.at(self.now + TURN_S, lambda: self._turn(learner))

    def _second(self, learner: SimLearner) -> None:
        if learner is self._learner:
            learner.each_second(self.now)
            self.at(self.now + 1.0, lambda: self._second(learner))

    def _kill_learner(self) -> None:
        if self._learner is not None:
            self._learner = None
            self.at(min(self.now + self.rng.choice([0.1, 1.0, 5.0]), self.schedule.faults_s), self._revive)

    def _revive(self) -> None:
        if self._learner is None:
            self._start_learner()

    def _restart_thread(self) -> None:
        if self._learner is not None:
            self._deliver(self._learner.restart_thread())

    def _deliver(self, answers: list[tuple[bytes, Message]]) -> None:
        for peer, message in answers:
            self._peers[peer].hear(message)

    # ---- the network

    def _partition(self) -> None:
        self._partitioned[self.rng.randrange(len(self._actors))] = self.now + self.rng.choice([1.0, 5.0, 9.0])

    def dial(self, actor: _Actor) -> _Link:
        """A fresh connection."""
        peer = next(self._count).to_bytes(5, "big")
        self._peers[peer] = actor
        return _Link(peer, self._life)

    def carry(self, actor: _Actor, link: _Link, message: Message, *, up: bool) -> None:
        """Puts a message on a connection, which does with it what the schedule allows."""
        plan, rng = self.schedule, self.rng
        self.messages += 1
        if self._partitioned.get(actor.index, -1.0) > self.now or (not self.quiet and rng.random() < plan.drop):
            return
        frames = encode(message)
        copies = 2 if not self.quiet and rng.random() < plan.repeat else 1
        for _ in range(copies):
            sent = frames
            if not self.quiet and rng.random() < plan.damage:
                bad = bytearray(frames[0])
                bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
                sent = [bytes(bad), *frames[1:]]
            arrival = self.now + rng.uniform(0, 0.01 if self.quiet else plan.delay_s)
            if not plan.reorder:
                arrival = link.front[up] = max(arrival, link.front[up])
            arrive = partial(self._arrive_up, link) if up else partial(self._arrive_down, actor, link)
            self.at(arrival, partial(arrive, self._life, sent))

    def _arrive_up(self, link: _Link, life: int, frames: list[Frame]) -> None:
        """What an actor had queued may reach the next life of the learner; what was on the wire does not."""
        if self._learner is not None and (life == self._life or self.rng.random() < 0.5):
            self._deliver(self._learner.on_frames(self.now, link.peer, frames))

    def _arrive_down(self, actor: _Actor, link: _Link, life: int, frames: list[Frame]) -> None:
        if link is not actor.link or life != self._life:
            return
        try:
            message = decode(frames)
        except ProtocolError:
            self.history.counts["damaged"] += 1
            return
        actor.on_message(message)


class _Actor:
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
        self._incarnation += not (self._sim._reuse and self._incarnation)
        self._queue: deque[tuple[int, PackedSegment]] = deque()
        self._window: deque[tuple[int, int]] = deque()
        rng = random.Random(self._sim.rng.random())
        hello = Hello("sim", f"actor-{self.index}", self._incarnation, 0, 0, 0)
        self.session = self._sim._session(hello, Counters(), rng)
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

    def hear(self, message: Message) -> None:
        """Somebody sends it a message; the network decides what comes of it."""
        self._sim.carry(self, self.link, message, up=False)
        if not self._sim.quiet and self._sim.rng.random() < self._sim.schedule.lie:
            end = self.session.submitted + self._sim.rng.choice([1000, 1 << 62])
            lie = Ack(end, end, end, 0, 0, 0, 0, 0, {})
            self._sim.carry(self, self.link, lie, up=False)

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


def simulate(
    seed: int,
    *,
    schedule: Schedule | None = None,
    parts: LearnerParts | None = None,
    actor_session: SessionFactory = ActorSession,
    reuse_incarnations: bool = False,
) -> Simulation:
    """Runs one schedule, and returns the simulation with its history.

    Raises:
        Violation: when a guarantee is broken; its message names the seed.
    """
    simulation = Simulation(
        seed, schedule=schedule, parts=parts, actor_session=actor_session, reuse_incarnations=reuse_incarnations
    )
    try:
        simulation.run()
    except Violation as exc:
        exc.add_note(f"seed {seed}: {simulation.schedule}")
        raise
    return simulation
