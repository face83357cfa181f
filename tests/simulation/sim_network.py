"""The clock of a simulation, and the network between its learner and its actors."""

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial

from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.wire import decode
from rl4sys_zmq.wire.messages import Frame
from simulation.history import History
from simulation.schedule import Schedule
from simulation.sim_actor import ActorParts, Link, SimActor
from simulation.sim_learner import Answers


class SimNetwork:
    """A queue of timed events, and a network whose messages a schedule may lose, repeat, damage, delay and reorder."""

    def __init__(self, seed: int, schedule: Schedule | None, actor_parts: ActorParts) -> None:
        self.rng = random.Random(seed)
        self.schedule = schedule or Schedule.draw(self.rng)
        self.history = History()
        self.now = 0.0
        self.messages = self.life = 0
        self.quiet = False
        self.actor_parts = actor_parts
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._partitioned: dict[int, float] = {}
        self._peers: dict[bytes, tuple[SimActor, Link]] = {}
        self.actors = [SimActor(self, index, index) for index in range(self.schedule.actors)]

    def learner_hears(self, peer: bytes, frames: list[Frame]) -> None:
        """Pass a message from an actor to the learner. A subclass implements this method."""
        raise NotImplementedError

    def at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._count), event))

    def play(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def calm(self) -> None:
        self.quiet = True
        self._partitioned.clear()

    def partition(self) -> None:
        """Cut the network of one random actor for 1, 5 or 9 seconds."""
        self._partitioned[self.rng.randrange(self.schedule.actors)] = self.now + self.rng.choice([1.0, 5.0, 9.0])

    def deliver(self, answers: Answers) -> None:
        for peer, frames in answers:
            actor, link = self._peers[peer]
            actor.hear(frames, link)

    def is_gone(self, peer: bytes) -> bool:
        """Return whether the actor of a connection has opened another one since."""
        actor, link = self._peers[peer]
        return actor.link is not link

    def dial(self, actor: SimActor) -> Link:
        peer = next(self._count).to_bytes(5, "big")
        link = Link(peer, self.life)
        self._peers[peer] = actor, link
        return link

    def carry(self, actor: SimActor, link: Link, frames: list[Frame], *, up: bool) -> None:
        """Send a message over a connection, with the faults of the schedule."""
        plan, rng = self.schedule, self.rng
        self.messages += 1
        if self._partitioned.get(actor.index, -1.0) > self.now or (not self.quiet and rng.random() < plan.drop):
            return
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
            self.at(arrival, partial(arrive, self.life, sent))

    def _arrive_up(self, link: Link, life: int, frames: list[Frame]) -> None:
        """Deliver a message to the learner.

        If the learner has restarted since the message was sent, the message was in the actor's queue with a chance of 0.5.
        Otherwise it was on the wire, and is lost.
        """
        if life == self.life or self.rng.random() < 0.5:
            self.learner_hears(link.peer, frames)

    def _arrive_down(self, actor: SimActor, link: Link, life: int, frames: list[Frame]) -> None:
        if link is not actor.link or life != self.life:
            return
        try:
            message = decode(frames)
        except ProtocolError:
            self.history.counts["damaged"] += 1
            return
        actor.on_message(message)
