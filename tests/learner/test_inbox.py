"""Tests of the messages to a learner thread in the gateway's process: their order, the wake-up, and the limit."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from kit import segment_with

from rl4sys_zmq.delivery.credit import QUEUE_MESSAGES
from rl4sys_zmq.learner.engines import thread as engine
from rl4sys_zmq.learner.training.joining import MAX_JOINED, SHORT_BYTES
from rl4sys_zmq.learner.training.train_loop import LearnerThreadInbox
from rl4sys_zmq.transports import Socket
from rl4sys_zmq.wire import encode, join_submit, pack_segment, read_segments
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


def submit(actor: str, first_seq: int, steps: Sequence[int] = (2,), **change: Any) -> DeliverSegments:
    """Return the message with segments of an actor that the gateway sends after it has read them."""
    frames = encode(join_submit(first_seq, 0, [pack_segment(segment_with(count)) for count in steps]))
    fields: dict[str, Any] = {"skip": 0, "refused": 0, **change}
    return DeliverSegments(actor, 1, body=tuple(frames), batch=read_segments(frames), **fields)


def places(inbox: LearnerThreadInbox) -> list[tuple[str, int, int, int]]:
    """Read all messages. Return for each the actor, the first number, the number of segments, and the messages taken with it."""
    out = []
    while isinstance(message := inbox.read(), DeliverSegments):
        assert message.batch is not None
        assert len(message.batch.segments()) == len(message.batch)
        out.append((message.actor_id, message.batch.first_seq, len(message.batch), message.joined))
    return out


def test_short_messages_that_wait_are_joined_for_each_stream(handle: Any) -> None:
    with Socket.pull(connect=handle._down) as pull:
        inbox = LearnerThreadInbox(pull, handle.queue, threading.Event())
        for message in (submit("a", 0), submit("b", 5, (3, 1)), submit("a", 1), submit("a", 2), submit("b", 7), submit("a", 4)):
            handle.send(message)
        # The gateway sent them in another order, so all count as taken with the last.
        assert places(inbox) == [("a", 0, 3, 0), ("a", 4, 1, 0), ("b", 5, 3, 6)]


def test_messages_that_are_not_simple_and_other_kinds_keep_their_place(handle: Any) -> None:
    with Socket.pull(connect=handle._down) as pull:
        inbox = LearnerThreadInbox(pull, handle.queue, threading.Event())
        for message in (
            submit("a", 0),
            submit("a", 0, (2, 2), skip=1),
            submit("a", 2, refused=1),
            submit("a", 3),
            submit("a", 4),
        ):
            handle.send(message)
        handle.send(encode(SaveCheckpoint(3, partial=False)))
        handle.send(submit("a", 5))
        assert places(inbox) == [("a", 0, 1, 1), ("a", 0, 2, 1), ("a", 2, 1, 1), ("a", 3, 2, 2)]
        assert places(inbox) == [("a", 5, 1, 1)]


def test_long_messages_and_long_queues_are_divided(handle: Any) -> None:
    with Socket.pull(connect=handle._down) as pull:
        inbox = LearnerThreadInbox(pull, handle.queue, threading.Event())
        long = 1 + SHORT_BYTES // 20
        for message in (submit("a", 0, (1, long)), submit("a", 2), *(submit("a", 3 + number) for number in range(MAX_JOINED))):
            handle.send(message)
        assert [count for _, _, _, count in places(inbox)] == [1, MAX_JOINED, 1]


def test_a_full_queue_takes_no_more(handle: Any) -> None:
    assert all(handle.send(DELIVERY) for _ in range(QUEUE_MESSAGES))
    assert not handle.send(DELIVERY)
    handle.queue.messages.popleft()
    assert handle.send(DELIVERY)
