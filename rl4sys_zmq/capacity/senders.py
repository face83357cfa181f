"""The senders of the ingress benchmark, and the three kinds of trajectories that they send.

Each sender runs in a separate process and prepares its messages in advance, so that the benchmark measures the receiver.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash
import zmq

from rl4sys_zmq.transports import Poller, Socket
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment, Space
from rl4sys_zmq.wire import decode, encode, join_submit, pack_segment
from rl4sys_zmq.wire.messages import Ack, Heartbeat, Hello, Message, Refused, Welcome

__all__ = [
    "PAYLOADS",
    "RAW_HWM",
    "SEED",
    "SMALL",
    "TrajectoryKind",
    "body_bytes",
    "bytes_per_item",
    "make_segment",
    "send_ours",
    "send_raw",
]

SEED = 20_240_501
UNLIMITED = (1 << 63) - 1
MAX_FRAMES = 256
RAW_HWM = 64


@dataclass(frozen=True, kw_only=True)
class TrajectoryKind:
    """A kind of trajectory to send: its length, spaces and columns.

    Attributes:
        name: Name in the output, such as ``P1``.
        steps: Number of steps of a trajectory.
        observation_space, action_space: Spaces of the observations and the actions.
        masks: True if each step has a mask of allowed actions.
    """

    name: str
    steps: int
    observation_space: Space
    action_space: Space
    masks: bool = False


PAYLOADS = {
    p.name: p
    for p in (
        TrajectoryKind(
            name="P1",
            steps=200,
            observation_space=BoxSpace((8,)),
            action_space=DiscreteSpace(4),
        ),
        TrajectoryKind(
            name="P2",
            steps=100,
            observation_space=BoxSpace((2, 128, 128, 3), "|u1", 0, 255),
            action_space=BoxSpace((7,)),
        ),
        TrajectoryKind(
            name="P3",
            steps=1000,
            observation_space=BoxSpace((1024,)),
            action_space=DiscreteSpace(128),
            masks=True,
        ),
    )
}


SMALL = TrajectoryKind(
    name="small",
    steps=10,
    observation_space=BoxSpace((4,)),
    action_space=DiscreteSpace(2),
)
"""Trajectories that are so short that each costs more than its bytes."""


def make_segment(payload: TrajectoryKind, generation: int) -> Segment:
    """Return a test trajectory of random numbers: a segment (consecutive steps) that is a whole episode.

    Args:
        payload: The kind of trajectory.
        generation: The number of the learner thread that trains the policy, from the learner's message `Welcome`.
    """
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


def bytes_per_item(payload: TrajectoryKind, batch: int) -> float:
    """Return the size of a message in bytes, divided by the number of trajectories in the message."""
    return sum(body_bytes(payload, batch)) / batch


def send_ours(address: str, payload: TrajectoryKind, batch: int, name: str, until_s: float) -> None:
    """Join a learner as an actor, and send trajectories as fast as its flow control allows, until `until_s` (Unix time)."""
    with Socket.dealer(address, send_hwm=100_000) as dealer, Poller() as poller:
        poller.register(dealer)
        hear = _MessageReader(dealer, poller)
        dealer.send(encode(Hello("lab", name, 1, 0, 0, 0)))
        while not isinstance(welcome := hear(10.0), Welcome):
            if isinstance(welcome, Refused) or welcome is None:
                raise RuntimeError(f"expected a Welcome, received {welcome}")
        packed = pack_segment(make_segment(payload, welcome.generation))
        whole = join_submit(0, UNLIMITED, [packed] * batch)
        ready = dataclasses.replace(whole, digests=tuple(xxhash.xxh3_64_intdigest(f) for f in whole.body))
        dealer.send(encode(Heartbeat(UNLIMITED)))
        ack = Ack(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {})
        seq = 0
        while time.time() < until_s:
            end = seq + batch
            in_flight = (end - ack.received) * packed.nbytes
            free = end <= ack.credit_items and in_flight <= ack.credit_bytes and end * packed.steps <= ack.credit_steps
            if free:
                dealer.send(encode(dataclasses.replace(ready, first_seq=seq)))
                seq += batch
            message = hear(0.0 if free else 0.05)
            while message is not None:
                if isinstance(message, Ack):
                    ack = message
                elif isinstance(message, Refused):
                    raise RuntimeError(f"refused: {message}")
                message = hear(0.0)


class _MessageReader:
    """A callable that returns the next message from the learner, or None if none arrives within `timeout_s` seconds."""

    def __init__(self, dealer: Socket, poller: Poller) -> None:
        self._dealer, self._poller = dealer, poller

    def __call__(self, timeout_s: float) -> Message | None:
        frames = self._dealer.recv(MAX_FRAMES)
        if frames is None and timeout_s and self._poller.poll(timeout_s):
            frames = self._dealer.recv(MAX_FRAMES)
        return None if frames is None else decode(frames)


def send_raw(address: str, sizes: list[int], until_s: float) -> None:
    """Send messages with frames of the given sizes from a plain DEALER as fast as possible, until `until_s` (Unix time)."""
    frames = [np.random.default_rng(SEED).bytes(n) for n in sizes]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.set_hwm(RAW_HWM)
    dealer.linger = 0
    dealer.connect(address)
    poll: Callable[[int, int], int] = dealer.poll
    while time.time() < until_s:
        if poll(100, zmq.POLLOUT):
            dealer.send_multipart(frames)
    dealer.close()
    context.term()
