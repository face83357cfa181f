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
from collections.abc import Callable
from functools import partial

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import ActorSession
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.testing.history import History, Violation
from rl4sys_zmq.testing.schedule import Schedule
from rl4sys_zmq.testing.sim_actor import Link, SimActor
from rl4sys_zmq.testing.sim_learner import LearnerParts, SimLearner
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import Frame, Hello, Message

__all__ = ["Schedule", "Simulation", "simulate"]

TURN_S = 0.1
PROBES = 3
QUIET_S = 240.0

SessionFactory = Callable[[Hello, Counters, random.Random], ActorSession]


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
        self.make_session, self.reuse_incarnations = actor_session, reuse_incarnations
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._life = 0
        self._learner: SimLearner | None = None
        self._partitioned: dict[int, float] = {}
        self._peers: dict[bytes, tuple[SimActor, Link]] = {}
        self._actors = [SimActor(self, index) for index in range(self.schedule.actors)]

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
        for actor in self._actors if not self.schedule.reorder else ():  # an ack before its Welcome may be counted twice
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
            actor, link = self._peers[peer]
            actor.hear(message, link)

    # ---- the network

    def _partition(self) -> None:
        self._partitioned[self.rng.randrange(len(self._actors))] = self.now + self.rng.choice([1.0, 5.0, 9.0])

    def dial(self, actor: SimActor) -> Link:
        """A fresh connection."""
        peer = next(self._count).to_bytes(5, "big")
        link = Link(peer, self._life)
        self._peers[peer] = actor, link
        return link

    def carry(self, actor: SimActor, link: Link, message: Message, *, up: bool) -> None:
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

    def _arrive_up(self, link: Link, life: int, frames: list[Frame]) -> None:
        """What an actor had queued may reach the next life of the learner; what was on the wire does not."""
        if self._learner is not None and (life == self._life or self.rng.random() < 0.5):
            self._deliver(self._learner.on_frames(self.now, link.peer, frames))

    def _arrive_down(self, actor: SimActor, link: Link, life: int, frames: list[Frame]) -> None:
        if link is not actor.link or life != self._life:
            return
        try:
            message = decode(frames)
        except ProtocolError:
            self.history.counts["damaged"] += 1
            return
        actor.on_message(message)


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
