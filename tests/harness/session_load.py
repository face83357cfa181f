"""Many simulated actors in one process: each has real sockets and a real `ActorSession`, but no thread and no policy.

One thread serves all of them. They join a learner, rest, or send prepared segments (consecutive steps of an episode), and measure
the time until the learner acknowledges each segment. They receive weights and beacons, and do not decode them.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, assert_never

from rl4sys_zmq.capacity.harness import SMALL, make_segment
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.incarnation import first_incarnation
from rl4sys_zmq.delivery.session import (
    Action,
    ActorSession,
    Reconnect,
    ReplaceSockets,
    SendMessage,
    SessionJoined,
    SessionRefused,
    SessionState,
    SessionTemporarilyRefused,
    StreamRestarted,
)
from rl4sys_zmq.liveness import BEACON_TOPIC, WEIGHTS_TOPIC
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.transports import Address, Poller, Socket, Source
from rl4sys_zmq.values import space_to_json
from rl4sys_zmq.wire import PackedSegment, decode, encode, pack_segment
from rl4sys_zmq.wire.messages import FetchWeights, Hello, Welcome

TICK_S = 0.05
"""Time between two looks at the timers of all sessions, in seconds."""
AHEAD = 4
"""Number of segments for which an actor requests credit (permission to send) in advance."""
MAX_FRAMES = 256
MESSAGES_PER_TURN = 64


class SessionLoad(Worker):
    """A thread with the sockets and the sessions of many simulated actors, which send `rate` segments per second each.

    After a change of `rate`, segments at the old rate can leave until `rate_in_use` is the new one.
    """

    def __init__(self, address: str, count: int, algorithm_name: str, seed: int) -> None:
        super().__init__(f"rl4sys-load-{seed}")
        self.rate = self.rate_in_use = 0.0
        self.latencies_s: list[float] = []
        self.published = 0
        self.errors: list[str] = []
        self._address, self._count, self._algorithm_name, self._seed = address, count, algorithm_name, seed
        self._actors: list[_SimulatedActor] = []
        self._by_socket: dict[Source, _SimulatedActor] = {}
        self._poller: Poller
        self._stopping = threading.Event()

    @property
    def joined(self) -> int:
        """The number of actors that the learner has accepted."""
        return sum(actor.session.state is SessionState.JOINED for actor in self._actors)

    @property
    def submitted(self) -> int:
        return sum(actor.submitted for actor in self._actors)

    @property
    def in_flight(self) -> int:
        return sum(actor.session.in_flight for actor in self._actors)

    @property
    def accepted(self) -> int:
        return sum(actor.session.accepted for actor in self._actors)

    @property
    def counters(self) -> dict[str, int]:
        total = Counters()
        for actor in self._actors:
            for name, count in actor.counters.snapshot().items():
                total.add(name, count)
        return total.snapshot()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        """Create the actors, and serve their sockets and timers until `stop`."""
        with Poller() as self._poller:
            try:
                self._create()
                tick_at = 0.0
                while not self._stopping.is_set():
                    self.rate_in_use = rate = self.rate
                    due = tick_at - time.monotonic()
                    for socket in self._poller.poll(max(0.001, min(due, TICK_S))):
                        if (actor := self._by_socket.get(socket)) is not None:  # else closed earlier in this turn
                            self._read(actor, socket)
                    now = time.monotonic()
                    if now >= tick_at:
                        tick_at = now + TICK_S
                        for actor in self._actors:
                            self._serve(actor, now, rate)
            finally:
                for actor in self._actors:
                    self._close(actor)

    def _create(self) -> None:
        rng = random.Random(self._seed)
        spaces: dict[str, Any] = {
            "observation_space": space_to_json(SMALL.observation_space),
            "action_space": space_to_json(SMALL.action_space),
        }
        packed: dict[int, PackedSegment] = {}
        for number in range(self._count):
            name = f"simulated-{self._seed}-{number}"
            hello = Hello(
                "lab",
                name,
                first_incarnation(time.time(), rng),
                0,
                0,
                0,
                algorithm_name=self._algorithm_name,
                **spaces,
            )
            self._actors.append(_SimulatedActor(hello, packed, random.Random(rng.random())))
            self._connect(self._actors[-1])

    def _connect(self, actor: "_SimulatedActor") -> None:
        actor.dealer = Socket.dealer(self._address, send_hwm=8192)
        self._register(actor, actor.dealer)
        self._perform(actor, actor.session.open(time.monotonic(), (0, 0)))

    def _register(self, actor: "_SimulatedActor", socket: Socket) -> None:
        self._by_socket[socket] = actor
        self._poller.register(socket)

    def _release(self, socket: Socket | None) -> None:
        if socket is not None:
            self._poller.unregister(socket)
            self._by_socket.pop(socket, None)
            socket.close()

    def _close(self, actor: "_SimulatedActor") -> None:
        if actor.dealer is not None:
            self._perform(actor, actor.session.close(time.monotonic()))
        self._release(actor.dealer)
        self._release(actor.sub)
        actor.dealer = actor.sub = None

    def _read(self, actor: "_SimulatedActor", socket: Source) -> None:
        for _ in range(MESSAGES_PER_TURN):
            if socket is actor.sub and actor.sub is not None:
                if actor.sub.recv(MAX_FRAMES) is None:
                    return
                self.published += 1
            elif socket is actor.dealer and actor.dealer is not None:
                if (frames := actor.dealer.recv(MAX_FRAMES)) is None:
                    return
                now = time.monotonic()
                self._perform(actor, actor.session.on_message(now, decode(frames)))
                self.latencies_s.extend(actor.acknowledged(now))
            else:  # a message has made the actor replace this socket
                return

    def _serve(self, actor: "_SimulatedActor", now: float, rate: float) -> None:
        self._perform(actor, actor.session.tick(now, (0, 0)))
        if rate and actor.session.state is SessionState.JOINED:
            for actions in actor.segments_due(now, rate):
                self._perform(actor, actions)

    def _perform(self, actor: "_SimulatedActor", actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case SendMessage(message):
                    assert actor.dealer is not None
                    actor.dealer.send(encode(message))
                case SessionJoined(welcome):
                    self._subscribe(actor, welcome)
                case SessionRefused(refused):
                    self.errors.append(f"{refused.code}: {refused.reason}")
                case Reconnect() | ReplaceSockets():
                    self._release(actor.dealer)
                    self._connect(actor)
                case SessionTemporarilyRefused() | StreamRestarted():
                    pass
                case _:
                    assert_never(action)

    def _subscribe(self, actor: "_SimulatedActor", welcome: Welcome) -> None:
        self._release(actor.sub)
        learner = Address.parse(self._address)
        actor.sub = Socket.sub(welcome.pub.replace("*", learner.host), hwm=64)
        for kind in (WEIGHTS_TOPIC, BEACON_TOPIC):
            actor.sub.subscribe(kind + welcome.topic)
        self._register(actor, actor.sub)
        self._perform(actor, [SendMessage(FetchWeights(0, 0))])


class _SimulatedActor:
    """One simulated actor: its session, its sockets, and the times of the segments that it has sent."""

    def __init__(self, hello: Hello, packed: dict[int, PackedSegment], rng: random.Random) -> None:
        self.counters = Counters()
        self.session = ActorSession(hello, self.counters, rng)
        self.dealer: Socket | None = None
        self.sub: Socket | None = None
        self.submitted = 0
        self._packed, self._rng = packed, rng
        self._sent: deque[tuple[int, float]] = deque()
        self._due_at = 0.0
        self._rate = 0.0

    def segments_due(self, now: float, rate: float) -> list[list[Action]]:
        """Return the actions that send the segments due now, at `rate` segments per second, and request credit for more."""
        if rate != self._rate:
            self._rate, self._due_at = rate, now + (self._rng.random() / rate if rate else 0.0)
        actions = []
        while self._due_at <= now and self.session.can_take():
            self._sent.append((self.submitted, now))
            self.submitted += 1
            self._due_at += 1 / rate
            actions.append(self.session.take(now, [self._segment()], AHEAD * SMALL.steps))
        actions.append(self.session.want(now, self.session.sent_steps + AHEAD * SMALL.steps))
        return actions

    def acknowledged(self, now: float) -> list[float]:
        """Return the times from send to acknowledgement of the segments that the last message acknowledged, in seconds."""
        took = []
        while self._sent and self._sent[0][0] < self.session.durable:
            took.append(now - self._sent.popleft()[1])
        return took

    def _segment(self) -> PackedSegment:
        generation = self.session.generation
        if generation not in self._packed:
            self._packed[generation] = pack_segment(make_segment(SMALL, generation))
        return self._packed[generation]
