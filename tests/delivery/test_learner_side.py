"""Tests of the learner's side: streams, the table of a client's streams, credit and the journal in memory."""

import dataclasses
import gc
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import segment_with
from numpy.typing import DTypeLike

from rl4sys_zmq.delivery.credit import IDLE_S, LATE_S, RETRY_S, CreditAllocator, DataAmount
from rl4sys_zmq.delivery.intake import SubmitResult, replay_entry, take_submit
from rl4sys_zmq.delivery.journal import JournalEntry, JournalPage, MemoryJournal, StreamRow
from rl4sys_zmq.delivery.stream import CHECKSUMS_KEPT, SegmentStream
from rl4sys_zmq.delivery.table import MAX_SPOOLED, StreamTable
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
from rl4sys_zmq.wire import PackedSegment, SegmentSchema, encode, join_submit, pack_segment
from rl4sys_zmq.wire.messages import Hello, Verdict

SCHEMA = SegmentSchema(BoxSpace((1,)), DiscreteSpace(2), 5)
OURS, OTHER = 77, 78


def stream_of(first_seq: int = 0, actor_id: str = "a", **kwargs: Any) -> SegmentStream:
    return SegmentStream("c", actor_id, 1, first_seq, 0.0, **kwargs)


def take(stream: SegmentStream, count: int, steps: int = 2) -> None:
    """Accept segments whose checksums are their numbers."""
    for _ in range(count):
        stream.accept_all(steps, [stream.received])


def hello(incarnation: int = 1, first_seq: int = 0, actor_id: str = "a", **kwargs: Any) -> Hello:
    return Hello("c", actor_id, incarnation, first_seq, 0, 0, **kwargs)


def spooled(incarnation: int = 1, first_seq: int = 0, origin: int = 1, **kwargs: Any) -> Hello:
    return hello(incarnation, first_seq, origin=origin, spooled=True, **kwargs)


def packed(steps: int = 2, dtype: DTypeLike = np.float32, episode: int = 7) -> PackedSegment:
    observations = np.zeros((steps, 1), dtype)
    whole = segment_with(steps, observations=observations, episode_id=episode, episode_return=0.0, episode_length=steps)
    return pack_segment(whole)


def table(**kwargs: Any) -> StreamTable:
    return StreamTable("c", **{"silence_s": 3.0, "lease_s": 30.0, "max_actors": 2, "journal_id": OURS, **kwargs})


def row(received: int, actor_id: str = "a", origin: int = 1, incarnation: int | None = None, **kwargs: Any) -> StreamRow:
    known = {"accepted_steps": 2 * received, "refused": 0, "submits": True, "spooled": False, "first_seq": 0, **kwargs}
    return StreamRow("c", actor_id, origin, origin if incarnation is None else incarnation, received=received, **known)


def code_of(function: Callable[..., object], *args: object) -> RefusalReason:
    with pytest.raises(ProtocolError) as caught:
        function(*args)
    return caught.value.code


def test_what_was_seen_is_skipped_and_counted() -> None:
    stream = stream_of()
    take(stream, 5)
    assert stream.admit(3, [3, 4, 5, 6]) == 2
    assert stream.admit(0, [0, 1]) == 2
    assert stream.verdicts[Verdict.DUPLICATE] == 4
    assert (stream.received, stream.accepted_steps) == (5, 10)


def test_the_last_contents_are_known_and_older_ones_are_not() -> None:
    stream = stream_of()
    take(stream, CHECKSUMS_KEPT + 3)
    assert CHECKSUMS_KEPT == 64
    assert stream.admit(0, [-1, -1, -1, 3]) == 4
    assert code_of(stream.admit, 3, [-1]) is RefusalReason.EQUIVOCATION
    assert len(stream._checksums) == CHECKSUMS_KEPT


def test_contents_that_this_life_never_saw_are_not_compared() -> None:
    streams = table()
    streams.restore([row(3)], 0.0)
    (stream,) = streams.all()
    assert stream.admit(0, [9, 9, 9]) == 3
    stream.advance_to(10)
    assert stream.admit(2, [9] * 8) == 8


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=20), st.integers(0, 30))
def test_no_segment_is_disposed_of_twice(ranges: list[tuple[int, int]], count: int) -> None:
    stream = stream_of()
    take(stream, count)
    total = sum(stream.dispose([[first, first + length]], Verdict.TRAINED) for first, length in ranges)
    covered = {n for first, length in ranges for n in range(first, min(first + length, count))}
    assert total == len(covered) == stream.verdicts[Verdict.TRAINED]
    assert stream.pending == count - len(covered)
    assert stream.trained == next(n for n in range(count + 1) if n not in covered)


def test_an_ack_says_all_of_it() -> None:
    stream = stream_of(3)
    take(stream, 2)
    stream.credit_steps, stream.checkpointed = 20, 5
    ack = stream.ack(generation=9, free_items=4, free_bytes=1000, min_version=6)
    assert ack.generation == 9
    assert (ack.received, ack.durable, ack.trained, ack.accepted_steps) == (5, 3, 3, 4)
    assert (ack.credit_steps, ack.credit_items, ack.credit_bytes, ack.min_version) == (20, 9, 1000, 6)
    assert ack.checkpointed == 3  # not 5: the learner returned to a state before that checkpoint
    stream.verdicts[Verdict.TRAINED] += 1
    assert ack.verdicts[Verdict.TRAINED] == 0


def test_what_is_not_committed_yet_is_no_hole() -> None:
    stream = stream_of()
    take(stream, 4)
    stream.commit(2)
    stream.rewind(0, {})
    assert stream.replay(0, 2) == 0
    stream.replay_ends()
    assert stream.pending == 4
    take(stream, 1)
    stream.dispose([[0, 5]], Verdict.TRAINED)
    assert (stream.pending, stream.trained) == (0, 5)


@settings(max_examples=300)
@given(st.data())
def test_pending_is_what_was_accepted_and_is_neither_disposed_of_nor_lost(data: st.DataObject) -> None:
    """A stream agrees with a model that keeps one state for each number."""
    stream, model, journal = stream_of(), {}, []
    replayed = 0
    replaying = False
    for _ in range(data.draw(st.integers(1, 15))):
        match data.draw(st.sampled_from(["take", "refuse", "gap", "dispose", "rewind", "replay", "replay_ends"])):
            case "take" | "refuse" as what:
                count = data.draw(st.integers(1, 4))
                first = stream.received
                for seq in range(first, first + count):
                    take(stream, 1)
                    model[seq] = "pending"
                    if what == "refuse":
                        stream.refuse(stream.received - 1)
                        model[seq] = "done"
                stream.commit(stream.received)
                if data.draw(st.booleans()):
                    journal.append((first, first + count))
            case "gap":
                first, end = stream.received, stream.received + data.draw(st.integers(1, 4))
                stream.advance_to(end)
                model.update(dict.fromkeys(range(first, end), "lost"))
            case "dispose":
                waiting = [seq for seq, word in model.items() if word == "pending"]
                for seq in data.draw(st.lists(st.sampled_from(waiting), max_size=4)) if waiting else ():
                    if not replaying or seq < replayed:
                        stream.dispose([[seq, seq + 1]], Verdict.TRAINED)
                        model[seq] = "done"
            case "rewind":
                mark = replayed = data.draw(st.integers(0, stream.trained))
                stream.rewind(mark, {})
                model = {seq: "done" if seq < mark else "pending" for seq in model}
                replaying = True
            case "replay" if replaying:
                for first, end in journal:
                    if end > replayed:
                        assert stream.replay(first, end) == max(0, replayed - first)
                        model.update(dict.fromkeys(range(replayed, first), "lost"))
                        replayed = end
                        break
            case "replay_ends" if replaying:
                while any(end > replayed for _, end in journal):
                    first, end = next(e for e in journal if e[1] > replayed)
                    stream.replay(first, end)
                    model.update(dict.fromkeys(range(replayed, first), "lost"))
                    replayed = end
                stream.replay_ends()
                model.update(dict.fromkeys(range(replayed, stream.durable), "lost"))
                replaying = False
        assert stream.pending == sum(word == "pending" for word in model.values())
        assert stream.trained == next((seq for seq, word in sorted(model.items()) if word == "pending"), stream.received)


def test_a_submit_is_taken_once() -> None:
    stream = stream_of()
    message = join_submit(0, 0, [packed(), packed(3)])
    frames = encode(message)
    intake = take_submit(stream, SCHEMA, message, frames)
    assert (intake.duplicates, intake.refused, intake.accepted) == (0, (), 2)
    assert intake.entry is not None
    assert dataclasses.astuple(intake.entry)[:-2] == ("c", "a", 1, 0, 2, 5, 0, 0)
    assert intake.entry.frames == tuple(frames)
    assert intake.entry.batch is not None and len(intake.entry.batch) == 2
    again = take_submit(stream, SCHEMA, message, frames)
    assert (again.entry, again.duplicates, again.accepted) == (None, 2, 0)
    assert (stream.received, stream.accepted_steps) == (2, 5)


def test_a_compressed_body_is_not_kept_decompressed() -> None:
    message = join_submit(0, 0, [packed(9)] * 9, coded=True)
    assert message.codings
    entry = take_submit(stream_of(), SCHEMA, message, encode(message)).entry
    assert entry is not None and entry.batch is None


def test_a_bad_item_uses_up_its_number_and_its_neighbours_go_on() -> None:
    stream = stream_of()
    message = join_submit(0, 0, [packed(), packed(9), packed(dtype=np.float64), packed(1)])
    intake = take_submit(stream, SCHEMA, message, encode(message))
    assert [e.code for e in intake.refused] == [RefusalReason.RANGE, RefusalReason.SPEC]
    assert intake.entry is not None
    assert (intake.accepted, intake.entry.steps, stream.received) == (2, 3, 4)
    assert (intake.entry.refused, intake.entry.accepted, stream.refused) == (2, 2, 2)
    assert (stream.pending, stream.verdicts[Verdict.REFUSED]) == (2, 2)


def test_a_message_that_does_not_hold_together_moves_nothing() -> None:
    stream = stream_of()
    message = join_submit(0, 0, [packed()])
    message = dataclasses.replace(message, body=(bytes(message.body[0]) + bytes(16),))
    with pytest.raises(ProtocolError):
        take_submit(stream, SCHEMA, message, [])
    assert stream.received == 0


def submit(stream: SegmentStream, first_seq: int, *segments: PackedSegment) -> SubmitResult:
    message = join_submit(first_seq, 0, segments)
    return take_submit(stream, SCHEMA, message, encode(message))


def test_sending_again_in_other_batches_is_no_equivocation() -> None:
    stream = stream_of()
    segments = [packed(n % 5 + 1, episode=n) for n in range(8)]
    submit(stream, 0, *segments[:3])
    assert submit(stream, 1, *segments[1:6]).duplicates == 2
    assert submit(stream, 0, segments[0]).duplicates == 1
    assert submit(stream, 0, *segments).accepted == 2
    assert stream.received == 8


def test_two_actors_under_one_name_are_noticed() -> None:
    stream = stream_of()
    submit(stream, 0, packed(episode=1), packed(episode=2))
    message = join_submit(1, 0, [packed(episode=3), packed(episode=4)])
    assert code_of(take_submit, stream, SCHEMA, message, encode(message)) is RefusalReason.EQUIVOCATION
    assert (stream.received, stream.verdicts[Verdict.DUPLICATE]) == (2, 0)


def entries() -> tuple[list[JournalEntry], SegmentStream]:
    """Return the entries of three messages with eight segments, and their stream. Numbers 1 and 5 are refused."""
    bad = packed(9)
    source = stream_of()
    taken = [
        submit(source, 0, packed(), bad, packed()),
        submit(source, 2, packed(), packed(1), packed(3)),
        submit(source, 4, packed(3), bad, packed(4), packed(5)),
    ]
    return [intake.entry for intake in taken if intake.entry is not None], source


def replayed(stream: SegmentStream, entry: JournalEntry | None) -> tuple[int, int, int] | None:
    """Return the part of an entry that the learner thread gets: the number of segments to skip, of steps and of segments."""
    assert entry is not None
    again = replay_entry(stream, SCHEMA, entry)
    return None if again is None else (again.skip, again.load.steps, again.load.items)


@pytest.mark.parametrize(
    ("mark", "skips", "refused", "pending"),
    [
        (1, [(1, 2, 1), (1, 4, 2), (1, 9, 2)], 2, 5),
        (2, [(2, 2, 1), (1, 4, 2), (1, 9, 2)], 1, 5),
        (3, [None, (1, 4, 2), (1, 9, 2)], 1, 4),
        (4, [None, (2, 3, 1), (1, 9, 2)], 1, 3),
        (6, [None, None, (2, 9, 2)], 0, 2),
        (7, [None, None, (3, 5, 1)], 0, 1),
        (8, [None, None, None], 0, 0),
    ],
)
def test_what_a_state_has_already_is_skipped_within_an_entry_and_not_counted(
    mark: int, skips: list[Any], refused: int, pending: int
) -> None:
    taken, stream = entries()
    stream.commit(8)
    stream.rewind(mark, {Verdict.TRAINED: mark})
    assert [replayed(stream, entry) for entry in taken] == skips
    stream.replay_ends()
    assert (stream.verdicts[Verdict.REFUSED], stream.pending) == (refused, pending)


def test_a_refused_item_that_came_while_the_journal_was_read_is_counted_once() -> None:
    stream = stream_of()
    stream.rewind(0, {})
    intake = submit(stream, 0, packed(), packed(9))
    stream.commit(2)
    assert replayed(stream, intake.entry) == (0, 2, 1)
    assert (stream.pending, stream.verdicts[Verdict.REFUSED]) == (1, 1)


def test_an_older_incarnation_is_fenced_and_a_live_one_defended() -> None:
    streams = table()
    streams.open(hello(5), b"p", 0.0)
    assert code_of(streams.open, hello(4), b"q", 1.0) is RefusalReason.FENCED
    assert code_of(streams.open, hello(6), b"q", 1.0) is RefusalReason.CONFLICT
    opened = streams.open(hello(6), b"q", 4.0)
    stream = opened.stream
    assert (stream.incarnation, stream.origin, stream.received, opened.previous_peer) == (6, 6, 0, b"p")
    assert (opened.fresh, opened.gap) == (True, 0)
    assert streams.get("a", 5) is not stream
    assert code_of(streams.open, hello(5), b"p", 99.0) is RefusalReason.FENCED


def fence(streams: StreamTable, hello: Hello, now: float) -> int:
    """Check that a HELLO is fenced, and return the incarnation in the refusal. 0 means that the refusal is final."""
    with pytest.raises(ProtocolError) as caught:
        streams.open(hello, b"z", now)
    assert caught.value.code is RefusalReason.FENCED
    return caught.value.incarnation


@pytest.mark.parametrize("make", [hello, spooled])
def test_one_that_was_overtaken_is_fenced_until_its_successor_has_been_silent_for_a_lease(make: Callable[..., Hello]) -> None:
    streams = table()
    old = streams.open(make(3, origin=3), b"p", 0.0).stream
    take(old, 5)
    new = streams.open(make(8, origin=8), b"q", 9.0).stream
    relic = make(3, 2, origin=3, journal_id=OURS, previously_welcomed=True)
    assert fence(streams, relic, 10.0) == 0
    assert fence(streams, relic, 38.0) == 0  # silent, but for less than its lease
    streams.close_session(new)
    assert fence(streams, relic, 38.9) == 0
    assert fence(streams, relic, 39.0) == 8
    opened = streams.open(dataclasses.replace(relic, incarnation=11), b"z", 39.0)
    assert opened.stream is old
    assert (opened.fresh, opened.gap, old.received, old.incarnation) == (False, 0, 5, 11)
    assert fence(streams, make(8, origin=8, journal_id=OURS, previously_welcomed=True), 40.0) == 0


def test_the_marks_of_a_spool_outlive_its_successors() -> None:
    """Different spools may take turns under one name. An old process that continues may have a spool too."""
    streams = table()
    for origin in range(1, 13):
        stream = streams.open(spooled(origin, origin=origin), b"p", 9.0 * origin).stream
        take(stream, 2)
        stream.dispose([[0, 2]], Verdict.TRAINED)
    assert [s.key for s in streams.expire(1e6, lambda s: True)] == [("a", 1), ("a", 2), ("a", 3)]
    assert streams.open(spooled(99, 1, origin=4, journal_id=OURS), b"p", 1e6).gap == 0


def test_one_whose_own_numbers_went_on_elsewhere_never_comes_back() -> None:
    """A copy of the spool has continued the same stream. Its numbers may mean other segments than the first start has."""
    streams = table()
    take(streams.open(spooled(3, origin=3), b"p", 0.0).stream, 2)
    streams.close_session(streams.open(spooled(4, 2, origin=3), b"q", 9.0).stream)
    assert fence(streams, spooled(3, 1, origin=3, previously_welcomed=True), 1e6) == 0
    assert fence(streams, spooled(3, 1, origin=3), 1e6) == 4  # a new start may take a higher number


def test_two_starts_with_one_number_are_told_apart() -> None:
    """Two starts have the same incarnation by chance, on a clock that stands still."""
    streams = table()
    stream = streams.open(hello(5), b"p", 0.0).stream
    assert streams.open(hello(5), b"p", 0.1).stream is stream  # its WELCOME was lost
    take(stream, 1)
    assert fence(streams, hello(5), 1.0) == 5
    assert streams.open(hello(5, 1, previously_welcomed=True), b"p", 1.0).stream is stream


def test_nobody_uses_up_the_numbers() -> None:
    streams = table()
    top = (1 << 62) + (1 << 24)
    for far in (top + 1, (1 << 63) - 1):
        assert code_of(streams.open, hello(far), b"p", 0.0) is RefusalReason.RANGE
    streams.close_session(streams.open(hello(top), b"p", 0.0).stream)
    known = fence(streams, hello(7), 1.0)
    streams.open(hello(known + (1 << 24)), b"p", 1.0)
    assert code_of(streams.open, hello(known + (2 << 24) + 1), b"p", 9.0) is RefusalReason.RANGE


def test_the_same_incarnation_takes_up_its_stream_again() -> None:
    streams = table()
    first = streams.open(hello(), b"p", 0.0)
    assert (first.fresh, first.previous_peer, first.gap) == (True, None, 0)
    take(first.stream, 3)
    again, moved = (streams.open(hello(previously_welcomed=True), peer, 1.0) for peer in (b"p", b"q"))
    assert again.stream is moved.stream is first.stream
    assert (again.fresh, again.previous_peer, moved.previous_peer) == (False, None, b"p")
    assert streams.peer_of(first.stream) == b"q"


def test_two_numberings_of_one_incarnation_are_not_mixed() -> None:
    streams = table()
    stream = streams.open(spooled(3, origin=3), b"p", 0.0).stream
    take(stream, 2)
    assert code_of(streams.open, spooled(3, origin=2), b"q", 1.0) is RefusalReason.CONFLICT
    streams.close_session(stream)
    opened = streams.open(spooled(3, origin=2), b"q", 1.0)
    assert (opened.stream.key, opened.stream.received) == (("a", 2), 0)
    assert streams.pending == 2


def test_a_hello_says_what_will_never_come() -> None:
    streams = table()
    opened = streams.open(hello(first_seq=2), b"p", 0.0)
    stream = opened.stream
    assert (opened.gap, opened.fresh) == (2, True)
    assert streams.open(hello(first_seq=6, previously_welcomed=True), b"p", 1.0).gap == 4
    assert stream.received == stream.durable == stream.trained == 6
    assert streams.open(hello(first_seq=4, previously_welcomed=True), b"p", 2.0).gap == 0
    assert (stream.received, stream.pending) == (6, 0)


@pytest.mark.parametrize("journal_id", [0, OTHER])
@pytest.mark.parametrize("make", [hello, spooled])
def test_acknowledged_by_another_journal_is_a_gap(make: Callable[..., Hello], journal_id: int) -> None:
    opened = table().open(make(1, 7, journal_id=journal_id), b"p", 0.0)
    assert (opened.gap, opened.fresh) == (7, True)
    assert (opened.stream.received, opened.stream.durable, opened.stream.pending) == (7, 7, 0)


def test_a_mark_that_ran_out_is_never_begun_again() -> None:
    streams = table()
    stream = streams.open(hello(first_seq=0), b"p", 0.0).stream
    take(stream, 3)
    stream.dispose([[0, 3]], Verdict.TRAINED)
    assert streams.silent(3.0) == []
    assert streams.silent(3.5) == [stream]
    streams.close_session(stream)
    assert streams.expire(30.0, lambda s: True) == []
    assert streams.expire(30.5, lambda s: False) == []
    assert streams.expire(30.5, lambda s: True) == [stream]
    assert streams.all() == streams.current() == []
    for first_seq in (0, 2):
        assert code_of(streams.open, hello(first_seq=first_seq, journal_id=OURS), b"p", 31.0) is RefusalReason.EXPIRED
    assert streams.all() == []
    assert streams.open(hello(2), b"p", 31.0).fresh


def test_numbers_that_an_actor_left_out_are_no_entries_of_the_journal() -> None:
    """A stream can be deleted when a checkpoint covers its last accepted segment. Numbers in a gap after it do not count."""
    stream = table().open(hello(first_seq=7), b"p", 0.0).stream
    assert (stream.received, stream.accepted_end) == (7, 0)
    take(stream, 3)
    stream.advance_to(50)
    assert (stream.received, stream.accepted_end) == (50, 10)


def test_places_are_for_those_who_are_live_or_within_their_lease() -> None:
    streams = table(max_actors=2)
    first = streams.open(hello(actor_id="a"), b"1", 0.0).stream
    second = streams.open(spooled(actor_id="b"), b"2", 0.0).stream
    take(second, 1)
    third = hello(actor_id="c")
    assert code_of(streams.open, third, b"3", 1.0) is RefusalReason.QUOTA
    streams.close_session(second)
    assert code_of(streams.open, third, b"3", 30.0) is RefusalReason.QUOTA  # the lease is not over
    assert streams.open(third, b"3", 30.5).fresh  # the first is live; the second keeps its mark, not its slot
    assert len(streams.all()) == 3
    assert streams.open(spooled(2, actor_id="b"), b"2", 31.0).stream is second  # a known actor may always come back
    assert streams.is_live(first)
    assert code_of(streams.open, hello(actor_id="d"), b"4", 99.0) is RefusalReason.QUOTA


def test_a_record_that_never_had_anything_gives_its_place_to_a_newcomer() -> None:
    streams = table(max_actors=3)
    with_data, empty, evaluator = (streams.open(hello(actor_id=name), b"p" + name.encode(), 0.0).stream for name in "abc")
    take(with_data, 1)
    for stream in (with_data, evaluator, empty):
        streams.close_session(stream)
    assert streams.open(hello(actor_id="d"), b"4", 1.0).evicted == [evaluator], "the first that fell silent"
    assert streams.get("c", 1) is None
    assert streams.open(hello(actor_id="c", journal_id=OURS), b"3", 1.0).evicted == [empty], (
        "which may come back as if it were new"
    )
    assert code_of(streams.open, hello(actor_id="b"), b"2", 1.0) is RefusalReason.QUOTA  # two are live, and "a" has data
    assert streams.get("a", 1) is with_data


def test_no_hello_looks_at_all_records() -> None:
    """The cost of a HELLO that searches for a free slot is the same with a hundred times as many records."""

    def lines(actors: int) -> int:
        streams, count = table(max_actors=actors), 0
        for n in range(actors):
            stream = streams.open(hello(actor_id=str(n)), b"p", 0.0).stream
            take(stream, 1)
            streams.close_session(stream)

        def trace(frame: object, event: str, arg: object) -> Any:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        gc.disable()  # callbacks of objects that other tests have left would be counted
        sys.settrace(trace)
        try:
            code_of(streams.open, hello(actor_id="one more"), b"p", 1.0)
        finally:
            sys.settrace(before)
            gc.enable()
        return count

    lines(10)  # warm up: late imports and caches
    assert lines(1_000) <= lines(10)


def test_an_actor_that_is_dropped_fences_nothing_and_keeps_what_is_pending() -> None:
    streams = table()
    old = streams.open(hello(9), b"p", 0.0).stream
    take(old, 2)
    old.owner = "somebody"
    assert code_of(streams.open, hello(3), b"q", 9.0) is RefusalReason.FENCED
    streams.close_session(old)
    assert streams.retire("a") == [old]
    assert (streams.current(), streams.owner_of("a"), streams.pending) == ([], "", 2)
    fresh = streams.open(hello(3), b"q", 9.0).stream
    assert fresh is not old and streams.pending == 2
    old.dispose([[0, 2]], Verdict.TRAINED)
    assert streams.expire(9.0, lambda s: True) == [old]


def test_a_spool_whose_actor_was_dropped_begins_where_it_is() -> None:
    streams = table()
    stream = streams.open(spooled(9, origin=4), b"p", 0.0).stream
    take(stream, 6)
    stream.dispose([[0, 6]], Verdict.TRAINED)
    streams.close_session(stream)
    streams.retire("a")
    assert streams.expire(0.0, lambda s: True) == [stream]
    opened = streams.open(spooled(10, 6, origin=4, journal_id=OURS), b"p", 1.0)
    assert (opened.gap, opened.stream.received, opened.stream.pending) == (0, 6, 0), "what is below was counted once"
    assert streams.open(spooled(1, 6, actor_id="b", journal_id=OTHER), b"q", 1.0).gap == 6, "that of another journal was not"


def test_a_retired_actor_stays_so_when_a_journal_remembers_it() -> None:
    streams = table()
    streams.restore([row(5, origin=9, incarnation=0), row(1, origin=3)], 0.0)
    assert [s.origin for s in streams.current()] == [3]
    assert streams.open(hello(4), b"p", 1.0).fresh
    assert streams.pending == 6


def test_marks_of_spools_are_bounded() -> None:
    streams = table(max_actors=10**9)
    streams.restore([row(1, actor_id=str(n), spooled=True) for n in range(MAX_SPOOLED)], 0.0)
    assert code_of(streams.open, spooled(actor_id="one more"), b"p", 99.0) is RefusalReason.QUOTA
    assert streams.open(spooled(2, 1, actor_id="7"), b"p", 99.0).gap == 0
    assert streams.open(hello(actor_id="without"), b"p", 99.0).fresh


def test_a_table_takes_up_what_a_journal_remembers() -> None:
    streams = table()
    rows = [
        row(5, origin=2, incarnation=4, spooled=True, refused=1, accepted_steps=11),
        row(3, actor_id="b", origin=7),
        row(9, actor_id="b", origin=6),
        row(0, actor_id="e", submits=False),
    ]
    streams.restore(rows, 100.0)
    spool, b, old, evaluator = (stream for r in rows if (stream := streams.get(r.actor_id, r.origin)) is not None)
    assert (spool.incarnation, spool.received, spool.durable, spool.accepted_steps, spool.refused) == (4, 5, 5, 11, 1)
    assert (spool.spooled, b.spooled, b.submits, evaluator.submits) == (True, False, True, False)
    assert set(streams.current()) == {spool, b, evaluator}
    assert streams.live() == []
    streams.rewind({spool.key: (5, {Verdict.TRAINED: 4, Verdict.REFUSED: 1}), b.key: (1, {Verdict.STALE: 1})})
    assert [s.pending for s in (spool, b, old)] == [0, 2, 9]
    assert (spool.verdicts[Verdict.TRAINED], b.verdicts[Verdict.STALE], old.verdicts[Verdict.TRAINED]) == (4, 1, 0)
    assert streams.expire(129.0, lambda s: True) == []  # leases begin again with the learner's start
    assert code_of(streams.open, hello(6, actor_id="b"), b"p", 101.0) is RefusalReason.FENCED
    assert streams.open(hello(7, 2, actor_id="b", journal_id=OURS, previously_welcomed=True), b"p", 101.0).stream is b
    assert streams.open(spooled(5, 3, origin=2), b"q", 101.0).stream is spool


def wanting(want: int, accepted: int = 0, actor_id: str = "a") -> SegmentStream:
    stream = stream_of(actor_id=actor_id)
    stream.accepted_steps, stream.want_steps = accepted, want
    return stream


def test_credit_is_granted_to_those_who_want_up_to_the_demand() -> None:
    pool, first, second = CreditAllocator(), wanting(20), wanting(100, accepted=50)
    pool.demand(60, 0, 0)
    assert pool.grant([second, first], 0.0) == [first, second]
    assert (first.credit_steps, second.credit_steps) == (20, 90)
    assert pool.grant([first, second], 0.0) == []
    pool.demand(50, 0, 3)
    assert (pool.limit_steps, pool.min_version) == (60, 3)


@given(st.integers(0, 200), st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=5))
def test_promises_never_exceed_the_demand(limit: int, actors: list[tuple[int, int]]) -> None:
    pool = CreditAllocator()
    pool.demand(limit, 0, 0)
    streams = [wanting(want, accepted) for want, accepted in actors]
    while pool.grant(streams, 0.0):
        pass  # an actor that wants more than an equal share gets the rest of the others in the next turn
    promised = sum(max(0, s.credit_steps - s.accepted_steps) for s in streams)
    assert promised <= limit
    hungry = any(s.want_steps > max(s.credit_steps, s.accepted_steps) for s in streams)
    assert promised == limit or not hungry


def test_unused_credit_is_granted_once_more_when_it_is_late() -> None:
    pool, idle, busy = CreditAllocator(), wanting(10), wanting(10)
    pool.demand(10, 0, 0)
    pool.grant([idle], 0.0)
    pool.grant([idle, busy], LATE_S / 2)
    assert (idle.credit_steps, busy.credit_steps, pool.retry_at) == (10, 0, LATE_S / 2 + RETRY_S)
    pool.grant([idle, busy], 2 * LATE_S)
    assert (idle.credit_steps, busy.credit_steps, pool.retry_at) == (10, 10, math.inf)


def paced(pace_s: float, burst: int, want: int = 0, unused: int = 0) -> SegmentStream:
    """Return the stream of an actor that has delivered bursts of this size, one each `pace_s` seconds, until the time 0."""
    stream = stream_of()
    for place in range(20):
        stream.accept_all(burst, [place])
        stream.ready_at = -pace_s
        stream.measure(burst, 0.0)
    stream.want_steps, stream.credit_steps = stream.accepted_steps + want, stream.accepted_steps + unused
    return stream


def test_a_fast_actor_does_not_wait_for_slow_ones_that_have_credit() -> None:
    pool, fast = CreditAllocator(), paced(0.006, 50, want=100)
    slow = [paced(1.0, 50, unused=100) for _ in range(10)]
    pool.demand(100, 0, 0)
    pool.grant([*slow, fast], 0.001)
    assert fast.unused_steps == 100


def test_actors_of_one_speed_share_a_batch_and_do_not_exceed_it() -> None:
    pool, members = CreditAllocator(), [paced(0.06, 60, want=120) for _ in range(8)]
    pool.demand(480, 0, 0)
    pool.grant(members, 0.001)
    assert [stream.unused_steps for stream in members] == [60] * 8
    pool.transit.accept(DataAmount(60, 1, 0))
    members[0].accept_all(60, [0])
    members[0].measure(60, 0.055)
    assert pool.grant(members, 0.055) == [], "the rest of the batch is for those who collect it"


def test_credit_of_an_actor_that_outlasts_the_batch_is_for_a_later_one() -> None:
    pool, fast, slow = CreditAllocator(), paced(0.006, 50, unused=100), paced(1.0, 50, want=100)
    pool.demand(110, 0, 0)
    pool.grant([fast, slow], 0.001)
    assert slow.unused_steps == 100


@pytest.mark.parametrize("verdict", [Verdict.QUARANTINED, Verdict.REFUSED])
def test_quarantined_segments_are_no_progress(verdict: str) -> None:
    pool, bad, good = CreditAllocator(), paced(0.006, 50, unused=100), paced(0.006, 50, want=100)
    pool.demand(100, 0, 0)
    assert pool.grant([bad, good], 0.001) == []
    bad.dispose([[19, 20]], verdict)
    bad.measure(50, 0.001)
    assert (bad.ready_at, bad.rate) == (0.0, 0.0)
    pool.grant([bad, good], 0.001)
    assert good.unused_steps == 100
    bad.dispose([[0, 19]], Verdict.TRAINED)
    assert bad.useful


def test_an_actor_that_returns_its_credit_and_requests_it_again_is_not_waited_for() -> None:
    pool, fickle, good = CreditAllocator(), wanting(50), paced(0.006, 50, want=60)
    pool.demand(60, 0, 0)
    for turn in range(20):
        fickle.request_credit(0)
        fickle.request_credit(50)
        pool.grant([fickle], turn / 100)
        assert fickle.unused_steps == 50
    pool.grant([fickle, good], 0.2)
    assert good.unused_steps == 60


@pytest.mark.parametrize(("stream", "most"), [(wanting(0), 8), (paced(1.0, 4), 84 + 4), (paced(0.01, 50), 1000 + 8 + 5000)])
def test_a_request_is_limited_to_a_segment_and_the_steps_of_a_second(stream: SegmentStream, most: int) -> None:
    assert CreditAllocator().limit_request(stream, 10**6, 8) == pytest.approx(most, abs=4)


def test_who_wants_less_gives_credit_back() -> None:
    stream = wanting(10)
    stream.credit_steps = 10
    stream.request_credit(4)
    assert (stream.want_steps, stream.credit_steps) == (4, 4)
    stream.accepted_steps = 6
    stream.request_credit(2)
    assert stream.credit_steps == 4
    CreditAllocator.reclaim(stream)
    assert (stream.want_steps, stream.credit_steps) == (2, 4)


def test_an_overshoot_is_paid_back_by_all() -> None:
    pool, stream = CreditAllocator(), wanting(100)
    pool.demand(10, 0, 0)
    pool.grant([stream], 0.0)
    pool.transit.accept(DataAmount(13, 1, 100))
    stream.accept_all(13, [0])
    pool.demand(12, 0, 0)
    assert pool.grant([stream], 0.0) == []


def test_an_idle_actor_is_not_granted_its_own_credit_again() -> None:
    pool, idle = CreditAllocator(), wanting(10)
    pool.demand(10, 0, 0)
    pool.grant([idle], 0.0)
    idle.request_credit(30)
    pool.grant([idle], 10 * IDLE_S)
    assert idle.credit_steps == 10


def test_the_memory_journal_keeps_the_order_and_has_nothing_to_read() -> None:
    journal = MemoryJournal()
    entries = [JournalEntry("c", "a", 1, n, n + 1, 1, 0, 0, ()) for n in range(3)]
    journal.append(entries[:2])
    journal.read("c", 5, 0, 1 << 20)
    journal.append(entries[2:])
    *first, page, last = journal.committed()
    assert [*first, last] == entries
    assert isinstance(page, JournalPage)
    assert (page.client_id, page.token, page.entries, page.more, page.damaged) == ("c", 5, (), False, 0)
    assert journal.committed() == []
    assert (journal.durable, journal.state().durable, journal.state().error) == (False, False, "")


def test_every_journal_is_its_own_lineage() -> None:
    ids = {MemoryJournal().journal_id for _ in range(100)}
    assert len(ids) == 100
    assert all(0 < n < 1 << 63 for n in ids)


def test_the_size_of_an_entry_is_that_of_its_frames() -> None:
    frames = (b"12", np.zeros(3, np.float64).data)
    entry = JournalEntry("c", "a", 1, 0, 3, 9, 1, 1, frames)
    assert (entry.nbytes, entry.accepted) == (26, 2)
