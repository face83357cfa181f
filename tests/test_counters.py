"""Counters that several threads increment."""

import sys
import threading

from rl4sys_zmq.counters import Counters


def test_no_thread_loses_a_count() -> None:
    counters, threads, times = Counters(), 8, 20_000

    def count() -> None:
        for _ in range(times):
            counters.add("a.b")
        counters.add("a.c", 2)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=count) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)
    assert counters.get("a.b") == threads * times and counters.get("nothing") == 0
    assert counters.under("a") == {"b": threads * times, "c": 2 * threads} and counters.total("a") == threads * (times + 2)
    assert counters.snapshot() == {"a.b": threads * times, "a.c": 2 * threads}
