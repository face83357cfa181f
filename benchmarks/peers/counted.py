"""The rate at which a peer's server takes steps from senders in processes of their own: what both ingress peers measure alike."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable

START_S = 20.0
WARM_UP_S = 0.5
SPARE_S = 2.0


def steps_per_s(taken: list[int], send: Callable[[int, float], None], port: int, senders: int, seconds: float) -> float:
    """Starts the senders, waits for the first step, and counts.

    Args:
        taken: its only element is raised by the server, by the steps of each trajectory.
        send: a sender's whole life: the server's port, and for how many seconds it sends.
        port: of the server on this machine.
        senders: how many.
        seconds: of counting.
    """
    spawn = multiprocessing.get_context("spawn")
    running = [spawn.Process(target=send, args=(port, seconds + SPARE_S)) for _ in range(senders)]
    for process in running:
        process.start()
    deadline = time.monotonic() + START_S
    while not taken[0]:
        if time.monotonic() > deadline:
            raise TimeoutError("nothing arrived")
        time.sleep(0.01)
    time.sleep(WARM_UP_S)
    began, first = time.monotonic(), taken[0]
    time.sleep(seconds)
    rate = (taken[0] - first) / (time.monotonic() - began)
    for process in running:
        process.join()
    return rate
