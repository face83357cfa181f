"""Tests of the call queue, with which one thread calls functions for others: results, exceptions and the end."""

import threading

import pytest

from rl4sys_zmq.errors import Closed
from rl4sys_zmq.transports import Poller, ThreadCallQueue


def test_functions_run_in_the_thread_and_their_results_and_exceptions_reach_the_caller() -> None:
    queue = ThreadCallQueue("lab")

    def serve() -> None:
        with Poller() as poller:
            poller.register(queue.wakeup)
            while not queue.stopping:
                poller.poll(60.0)
                queue.serve()
        queue.refuse_all()

    thread = threading.Thread(target=serve, name="served")
    thread.start()
    try:
        assert queue.call(lambda: threading.current_thread().name).result(30.0) == "served"
        with pytest.raises(ZeroDivisionError):
            queue.call(lambda: 1 // 0).result(30.0)
    finally:
        queue.stop()
        thread.join(30.0)
        queue.release(alive=thread.is_alive())
    assert not thread.is_alive()


def test_what_waits_at_the_end_and_what_comes_later_is_refused() -> None:
    queue = ThreadCallQueue("lab")
    waiting = queue.call(lambda: 1)
    queue.stop()
    with pytest.raises(Closed, match="the lab is closed"):
        queue.call(lambda: 2)
    queue.refuse_all()
    with pytest.raises(Closed, match="the lab is closed"):
        waiting.result(0.0)
    queue.release(alive=False)


def test_a_thread_that_outlives_the_wait_for_it_closes_the_descriptor_at_its_end() -> None:
    queue = ThreadCallQueue("lab")
    queue.stop()
    queue.release(alive=True)
    assert queue.wakeup.fileno() >= 0
    queue.refuse_all()
    assert queue.wakeup.fileno() == -1
