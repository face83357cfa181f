"""Tests of the messages to a learner thread in the gateway's process: their order, the wake-up, and the limit."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rl4sys_zmq.delivery.credit import QUEUE_MESSAGES
from rl4sys_zmq.learner.engines import thread as engine
from rl4sys_zmq.learner.training.train_loop import LearnerThreadInbox
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.thread_messages import DeliverSegments, SaveCheckpoint, StopThread

UP = "inproc://up-of-inbox"
DELIVERY = DeliverSegments("a", 1, 0, 0, (b"frame",))


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(engine.InProcessLearnerThread, "start", lambda thread: None)
    assignment: Any = type("Assignment", (), {"key": b"k", "client_id": "lab"})
    made = engine.InProcessLearnerThread(assignment, UP)
    yield made
    made.end(replaced=False)


def test_segments_keep_what_was_read_and_their_place(handle: Any) -> None:
    with Socket.pull(connect=handle._down) as pull:
        inbox = LearnerThreadInbox(pull, handle.queue, threading.Event())
        assert inbox.read() is None
        for message in (encode(SaveCheckpoint(3, partial=False)), DELIVERY, encode(SaveCheckpoint(4, partial=True))):
            assert handle.send(message)
        handle.end(replaced=False)
        assert inbox.read() == SaveCheckpoint(3, partial=False)
        assert inbox.read() is DELIVERY
        assert inbox.read() == SaveCheckpoint(4, partial=True)
        assert inbox.read() == StopThread()
        assert inbox.read() is None and not handle.send(DELIVERY)


def test_a_thread_that_waits_is_woken_by_each_first_message(handle: Any) -> None:
    read: list[Any] = []
    waits, done = threading.Event(), threading.Event()

    def listen() -> None:
        with Socket.pull(connect=handle._down) as pull:
            inbox = LearnerThreadInbox(pull, handle.queue, threading.Event())
            waits.set()
            while len(read) < 1000:
                inbox.wait(60.0)
                while (message := inbox.read()) is not None:
                    read.append(message)
        done.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert waits.wait(10)
    sent = [DeliverSegments("a", number, 0, 0, ()) for number in range(1000)]
    assert all(handle.send(message) for message in sent)
    assert done.wait(30)
    thread.join()
    assert all(got is message for got, message in zip(read, sent, strict=True))


def test_a_full_queue_takes_no_more(handle: Any) -> None:
    assert all(handle.send(DELIVERY) for _ in range(QUEUE_MESSAGES))
    assert not handle.send(DELIVERY)
    handle.queue.messages.popleft()
    assert handle.send(DELIVERY)
