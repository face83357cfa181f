"""Many simulated actors without threads. They join, send at a rate, pause, and report their counters."""

import threading
import time
from typing import Any

from harness.session_load import SessionLoad
from harness.talk import obey, options, say

from rl4sys_zmq.transports import raise_descriptor_limit

PATIENCE_S = 120.0
DESCRIPTORS_PER_ACTOR = 4
"""A connection and a mailbox for each of the two sockets."""

given = options()
loads: list[SessionLoad] = []
pause = threading.Event()


def join(count: int) -> int:
    seed = given["seed"] + len(loads)
    loads.append(SessionLoad(given["address"], count, "FAKE", seed))
    loads[-1].start()
    wait_for(lambda: loads[-1].joined == count)
    return sum(load.joined for load in loads)


def send(rate: float) -> bool:
    """Set the number of segments that each actor sends per second. With 0 they pause."""
    for load in loads:
        load.rate = rate
    return True


def settle() -> dict[str, Any]:
    wait_for(lambda: not any(load.rate_in_use or load.in_flight for load in loads))
    counters: dict[str, int] = {}
    for load in loads:
        for name, count in load.counters.items():
            counters[name] = counters.get(name, 0) + count
    return {
        "joined": sum(load.joined for load in loads),
        "submitted": sum(load.submitted for load in loads),
        "accepted": sum(load.accepted for load in loads),
        "published": sum(load.published for load in loads),
        "latencies_s": [round(latency, 4) for load in loads for latency in load.latencies_s],
        "errors": [error for load in loads for error in load.errors],
        "counters": counters,
    }


def wait_for(done: Any) -> None:
    """Wait for a condition. Fail if a thread has failed or the time is over."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        for load in loads:
            load.raise_if_dead()
        assert time.monotonic() < deadline, {"joined": [load.joined for load in loads], "in flight": [x.in_flight for x in loads]}
        pause.wait(0.02)


raise_descriptor_limit(DESCRIPTORS_PER_ACTOR * given["most"] + 256)
say("ready")
try:
    obey(join=join, send=send, settle=settle)
finally:
    for load in loads:
        load.stop()
    for load in loads:
        load.join()
