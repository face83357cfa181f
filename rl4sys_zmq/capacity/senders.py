"""Processes that send trajectories to a learner which is measured. Their messages are ready, so the learner is the limit."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.transports import Poller, Socket, Source
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment, Space
from rl4sys_zmq.wire import decode, encode, join_submit, pack_segment
from rl4sys_zmq.wire.messages import Ack, Heartbeat, Hello, Refused, Submit, Welcome

__all__ = ["P1", "SEED", "SMALL", "TrajectoryKind", "body_bytes", "make_segment", "send"]

SEED = 20_240_501
UNLIMITED = (1 << 63) - 1
POLL_S = 0.05
AHEAD = 4
"""Number of segments for which each of several actors requests credit in advance."""


@dataclass(frozen=True, kw_only=True)
class TrajectoryKind:
    """A kind of trajectory to send: its name in the output, length, spaces and masks."""

    name: str
    steps: int
    observation_space: Space
    action_space: Space
    masks: bool = False


P1 = TrajectoryKind(name="P1", steps=200, observation_space=BoxSpace((8,)), action_space=DiscreteSpace(4))
SMALL = TrajectoryKind(name="small", steps=10, observation_space=BoxSpace((4,)), action_space=DiscreteSpace(2))
"""Trajectories that are so short that each costs more than its bytes."""


def make_segment(payload: TrajectoryKind, generation: int) -> Segment:
    """Return a segment of random numbers that is a whole episode."""
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
    """Join a learner as actors, and send as fast as its flow control allows, until `until_s` (Unix time).

    Several actors request credit for few segments each, so that the learner acknowledges each of their messages.
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
    """One actor, with a message that is ready but for its numbers."""

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
        """Send messages until the credit is used up."""
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
