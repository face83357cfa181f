"""The reference for receiving trajectories: a plain ROUTER loop, beside `rl4sys_zmq.capacity.measure_paths`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import zmq

from rl4sys_zmq.capacity.harness import P1, SEED, TrajectoryKind, body_bytes, senders
from rl4sys_zmq.capacity.measure_paths import ReceivingSpeed, measure, wait_for
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

__all__ = ["PAYLOADS", "bytes_per_item", "raw"]

RAW_HWM = 64
PAYLOADS = {
    p.name: p
    for p in (
        P1,
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


def bytes_per_item(kind: TrajectoryKind, batch: int) -> float:
    """Return the size of a message in bytes, divided by the number of trajectories in the message."""
    return sum(body_bytes(kind, batch)) / batch


def raw(kind: TrajectoryKind, *, batch: int, processes: int, seconds: float) -> ReceivingSpeed:
    """Measure the reference for a learner that keeps its data in memory: a plain ROUTER loop that receives the same messages.

    The messages have the same number of bytes and frames.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.set_hwm(RAW_HWM)
    router.linger = 0
    port = router.bind_to_random_port("tcp://127.0.0.1")
    sizes, messages, ending = body_bytes(kind, batch), [0], threading.Event()

    def take() -> None:
        while not ending.is_set():
            if router.poll(50):
                frames = router.recv_multipart(copy=False)
                assert len(frames[-1]) == sizes[-1]
                messages[0] += 1

    thread = threading.Thread(target=take)
    thread.start()
    try:
        with senders([(send_raw, (f"tcp://127.0.0.1:{port}", sizes))] * processes, seconds):
            wait_for(lambda: messages[0])
            return ReceivingSpeed(*measure(lambda: messages[0] * batch * kind.steps, seconds)[:2])
    finally:
        ending.set()
        thread.join()
        router.close()
        context.term()


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
