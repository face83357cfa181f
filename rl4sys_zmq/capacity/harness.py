"""The harness of the measurements: an algorithm without training, child processes, and senders of trajectories.

The messages are encoded before the measurement, so that the learner limits the speed and not the senders.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.transports import Poller, Socket, Source
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySpec, Segment, Space
from rl4sys_zmq.wire import decode, encode, join_submit, pack_segment
from rl4sys_zmq.wire.messages import Ack, Heartbeat, Hello, Refused, Submit, Welcome

PATIENCE_S = 60.0
"""Longest time to wait for a child process, in seconds."""
START_S = 20.0
"""Longest time until the first steps of senders arrive, in seconds."""
SEED = 20_240_501
UNLIMITED = (1 << 63) - 1
POLL_S = 0.05
AHEAD = 4
"""Number of segments for which each of several actors requests credit in advance."""
DEMAND = 1 << 50


@contextlib.contextmanager
def child(target: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run `target` in a new process during the ``with`` block. Yield one end of a pipe; its first argument is the other end."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=target, args=(there, *arguments))
    process.start()
    there.close()
    try:
        yield here
        process.join(PATIENCE_S)
    finally:
        if process.is_alive():
            process.terminate()
            process.join()
        here.close()


@contextlib.contextmanager
def senders(targets: Sequence[tuple[Callable[..., None], tuple[object, ...]]], seconds: float) -> Iterator[None]:
    """Run functions in processes of their own during the ``with`` block. Their last argument is the Unix time of their end."""
    spawn = multiprocessing.get_context("spawn")
    until_s = time.time() + START_S + seconds
    running = [spawn.Process(target=target, args=(*args, until_s)) for target, args in targets]
    for process in running:
        process.start()
    try:
        yield
    finally:
        for process in running:
            process.terminate()
            process.join()


@dataclass(frozen=True, kw_only=True)
class TrajectoryKind:
    """A kind of trajectory for measurements: its name in the output, number of steps, spaces, and True if it has masks."""

    name: str
    steps: int
    observation_space: Space
    action_space: Space
    masks: bool = False


P1 = TrajectoryKind(name="P1", steps=200, observation_space=BoxSpace((8,)), action_space=DiscreteSpace(4))
SMALL = TrajectoryKind(name="small", steps=10, observation_space=BoxSpace((4,)), action_space=DiscreteSpace(2))
"""Trajectories that are so short that each costs more than its bytes."""


def make_segment(payload: TrajectoryKind, generation: int) -> Segment:
    rng, steps = np.random.default_rng(SEED), payload.steps
    obs, act = payload.observation_space, payload.action_space
    assert isinstance(obs, BoxSpace) and isinstance(act, BoxSpace | DiscreteSpace)
    actions: Any
    if isinstance(act, DiscreteSpace):
        actions = rng.integers(0, act.n, steps)
        masks = np.ones((steps, act.n), np.bool_) if payload.masks else None
    else:
        actions, masks = rng.standard_normal((steps, *act.shape)).astype(np.float32), None
    if obs.dtype == "|u1":
        observations: Any = rng.integers(0, 256, (steps, *obs.shape), dtype=np.uint8)
    else:
        observations = rng.standard_normal((steps, *obs.shape)).astype(obs.dtype)
    return Segment(
        observations,
        actions,
        rng.standard_normal(steps).astype(np.float32),
        -rng.random(steps).astype(np.float32),
        np.zeros(steps, np.uint64),
        masks,
        generation,
        7,
        0,
        terminated=True,
        truncated=False,
        episode_return=1.0,
        episode_length=steps,
    )


def body_bytes(payload: TrajectoryKind, batch: int) -> list[int]:
    """Return the size of each frame of a message with `batch` trajectories, in bytes."""
    return [memoryview(f).nbytes for f in encode(join_submit(0, UNLIMITED, [pack_segment(make_segment(payload, 1))] * batch))]


def send(address: str, kind: TrajectoryKind, batch: int, actors: int, name: str, until_s: float) -> None:
    """Join a learner as several actors, and send as fast as it grants credit, until the Unix time `until_s`.

    A single actor requests unlimited credit. Otherwise, each requests credit for a few segments, so that the learner
    acknowledges each message.
    """
    ahead = UNLIMITED if actors == 1 else AHEAD * kind.steps
    with contextlib.ExitStack() as stack:
        poller, connected = stack.enter_context(Poller()), dict[Source, _Actor]()
        for number in range(actors):
            dealer = stack.enter_context(Socket.dealer(address, send_hwm=100_000))
            poller.register(dealer)
            dealer.send(encode(Hello("lab", f"{name}-{number}", 1, 0, 0, 0)))
            connected[dealer] = _Actor(dealer, kind, batch, ahead)
        while time.time() < until_s:
            for socket in poller.poll(POLL_S):
                connected[socket].receive()
                connected[socket].send()


class _Actor:
    """One simulated actor. It sends the same encoded message many times, each time with new segment numbers."""

    def __init__(self, dealer: Socket, kind: TrajectoryKind, batch: int, ahead: int) -> None:
        self._dealer, self._kind, self._batch, self._ahead = dealer, kind, batch, ahead
        self._ready: Submit | None = None
        self._segment_bytes = self._seq = 0
        self._ack = Ack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {})

    def receive(self) -> None:
        while (frames := self._dealer.recv(MAX_MESSAGE_FRAMES)) is not None:
            answer = decode(frames)
            if isinstance(answer, Ack):
                self._ack = answer
            elif isinstance(answer, Welcome):
                packed = pack_segment(make_segment(self._kind, answer.generation))
                whole = join_submit(0, UNLIMITED, [packed] * self._batch)
                self._ready = dataclasses.replace(whole, digests=tuple(xxhash.xxh3_64_intdigest(f) for f in whole.body))
                self._segment_bytes = packed.nbytes
                self._dealer.send(encode(Heartbeat(self._ahead)))
            elif isinstance(answer, Refused):
                raise RuntimeError(f"refused: {answer}")

    def send(self) -> None:
        while self._ready is not None:
            ack, end = self._ack, self._seq + self._batch
            if (
                end > ack.credit_items
                or (end - 1) * self._kind.steps >= ack.credit_steps
                or (end - ack.received) * self._segment_bytes > ack.credit_bytes
            ):
                return
            want = min(UNLIMITED, end * self._kind.steps + self._ahead)
            self._dealer.send(encode(dataclasses.replace(self._ready, first_seq=self._seq, want_steps=want)))
            self._seq = end


class UntrainedAlgorithm:
    """An algorithm that counts the segments and steps that it observes. It never updates, and never makes actors wait."""

    kind: ClassVar[str] = "offpolicy"
    rollout_length = 16
    publish_every_updates = 1
    max_policy_lag: int | None = None

    def __init__(self, spec: PolicySpec) -> None:
        self.segments = self.steps = self.updates = 0
        self._spec = spec

    def spec(self) -> PolicySpec:
        return self._spec

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        self.segments += 1
        self.steps += segment.steps

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        return None

    def demand(self) -> int:
        return DEMAND

    def snapshot(self) -> dict[str, NDArray[Any]]:
        return self._spec.views(np.zeros(self._spec.size, np.float32))

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore nothing."""

    def checkpoint(self) -> Any:
        return self.updates

    def restore(self, kept: Any) -> None:
        self.updates = kept

    def numbers_to_check(self) -> Sequence[NDArray[Any]]:
        return [np.array([self.updates], np.float32)]

    def discard(self) -> Sequence[int]:
        return []
