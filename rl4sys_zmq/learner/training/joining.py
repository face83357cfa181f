"""The joining of short messages that wait for a learner thread, so that it works on many segments at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from rl4sys_zmq.wire import SegmentBatchReader
from rl4sys_zmq.wire.thread_messages import DeliverSegments, WorkerMessage

MAX_JOINED, MAX_SEGMENTS = 64, 1024
"""Largest number of messages that are joined, and of their segments: after the end of a worker process, each is a suspect."""

SHORT_BYTES = 1 << 16
"""Size in bytes up to which a message is joined with others. The copy of a longer one would cost more than its decoding."""


def is_joinable(message: DeliverSegments) -> bool:
    """Return True if a message is short and new, its reader is here, and all its segments are valid and have one layout."""
    batch = message.batch
    if batch is None or message.skip or message.refused:
        return False
    return batch.is_simple and sum(map(len, message.body)) <= SHORT_BYTES


def take_joined(first: DeliverSegments, queue: deque[WorkerMessage]) -> list[DeliverSegments]:
    """Join a message with those at the head of `queue`, for each stream, and remove them from it. `first` is joinable.

    Messages of a stream stay in their order. Streams are in the order of their first message.
    """
    streams: dict[tuple[str, int], list[list[DeliverSegments]]] = {(first.actor_id, first.origin): [[first]]}
    segments = len(first.batch or ())
    for _ in range(MAX_JOINED - 1):
        if not queue or not isinstance(message := queue[0], DeliverSegments) or not is_joinable(message):
            break
        segments += len(message.batch or ())
        if segments > MAX_SEGMENTS:
            break
        queue.popleft()
        runs = streams.setdefault((message.actor_id, message.origin), [])
        if runs and _continues(runs[-1][-1], message):
            runs[-1].append(message)
        else:
            runs.append([message])
    joined = [_join(run) for run in chain.from_iterable(streams.values())]
    # The gateway counts messages in the order in which it sent them, so all of these count as taken with the last.
    total = sum(message.joined for message in joined)
    return [*(replace(message, joined=0) for message in joined[:-1]), replace(joined[-1], joined=total)]


def _continues(last: DeliverSegments, message: DeliverSegments) -> bool:
    before, batch = last.batch, message.batch
    assert before is not None and batch is not None
    return before.first_seq + len(before) == batch.first_seq and before.layout == batch.layout


def _join(messages: Sequence[DeliverSegments]) -> DeliverSegments:
    first = messages[0]
    if len(messages) == 1:
        return first
    body = tuple(chain.from_iterable(message.body for message in messages))
    batch = SegmentBatchReader.join([message.batch for message in messages if message.batch is not None])
    return DeliverSegments(first.actor_id, first.origin, 0, 0, body, batch, sum(message.joined for message in messages))
