import errno
import os
import resource
import select
import socket
import threading
from typing import Any

import pytest

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.transports import Poller, Wakeup


def rings(wakeup: Any) -> bool:
    return bool(select.select([wakeup], [], [], 0)[0])


def test_coalesces_and_clears() -> None:
    with Wakeup() as wakeup:
        assert not rings(wakeup) and not wakeup.clear()
        for _ in range(100_000):  # one byte for each call would fill the socketpair
            wakeup.set()
        assert rings(wakeup)
        assert wakeup.clear()
        assert not rings(wakeup) and not wakeup.clear()
        wakeup.set()
        assert rings(wakeup)


def test_used_up_descriptors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socketpair", refuse)
    with pytest.raises(TransportError, match="Too many open files; raise the limit with ulimit -n"):
        Wakeup()


def test_a_descriptor_above_1023_can_wait_and_close() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2048)), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while taken[-1] < 1024:
            taken.append(os.dup(taken[0]))
        wakeup = Wakeup()
        assert wakeup.fileno() > 1023 and not wakeup.wait(0.0)
        wakeup.set()
        assert wakeup.wait(10.0)
        wakeup.close()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_after_close_nothing_happens() -> None:
    for rung in (False, True):
        wakeup = Wakeup()
        if rung:
            wakeup.set()
        wakeup.close()
        wakeup.close()
        wakeup.set()


def test_a_byte_of_a_forked_child_adds_no_token() -> None:
    wakeup = Wakeup()
    wakeup._writer.send(b"\0")  # as `set` does in a forked child, which shares the socketpair but has its own token
    assert wakeup.clear()
    wakeup.set()
    assert wakeup.clear()
    wakeup.close()
    wakeup.set()  # a second token would be sent on the closed descriptor


def test_no_wakeup_is_lost() -> None:
    """Producers append items and call `set`. The loop waits, clears and then reads. It sees every item."""
    each, producers = 5_000, 4
    items: list[int] = []
    with Wakeup() as wakeup, Poller() as poller:
        poller.register(wakeup)

        def produce() -> None:
            for number in range(each):
                items.append(number)
                wakeup.set()

        threads = [threading.Thread(target=produce, name="rl4sys-producer") for _ in range(producers)]
        for thread in threads:
            thread.start()
        seen = 0
        while seen < each * producers:
            assert poller.poll(10.0) == {wakeup}, f"{seen} items seen, {len(items)} handed over, and nobody rang"
            wakeup.clear()
            seen = len(items)
        for thread in threads:
            thread.join()
        wakeup.clear()
        assert not rings(wakeup)


def test_closing_races_with_setting() -> None:
    for _ in range(200):
        wakeup = Wakeup()
        go = threading.Barrier(2)

        def ring(wakeup: Any = wakeup, go: Any = go) -> None:
            go.wait()
            for _ in range(50):
                wakeup.set()

        thread = threading.Thread(target=ring, name="rl4sys-ringer")
        thread.start()
        go.wait()
        wakeup.close()
        thread.join()
