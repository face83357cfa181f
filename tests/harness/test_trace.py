"""Tests of traces and their check: it names each planted mistake, and a history without a mistake passes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.trace import LEARNER_LAW, Event, TraceBroken, TraceTail, TraceWriter, read_trace
from harness.trace_check import check_trace

GOOD_LEARNER = {"accepted": 4, "verdicts": {"trained": 3, "stale": 0, "quarantined": 0}, "pending": 1, "rolled_back": 0}

ACTOR_PARTS = ("submitted", "dropped_at_source", "in_actor", "refused", "accepted", "in_doubt")
ACTOR_LAW: dict[str, Any] = dict.fromkeys(ACTOR_PARTS, 1)


def event(kind: str, *ids: str, who: str = "a0", at: int = 0, client: str = "on", life: int = 1, **fields: Any) -> Event:
    return Event(who, life, client, at, kind, ids, fields)


def law(accepted: int, at: int = 100, **changes: int) -> Event:
    parts: dict[str, Any] = {**dict.fromkeys(LEARNER_LAW[1], 0), "trained": accepted, **changes}
    return event("law", who="learner", at=at, side="learner", accepted=accepted, **parts)


def good() -> list[Event]:
    return [
        event("life"),
        event("submitted", "1", at=1),
        event("submitted", "2", at=2),
        event("submitted", "3", at=3),
        event("submitted", "4", at=4),
        event("acked", "1", "2", at=5),
        event("life", who="learner"),
        event("ready", who="learner", at=6),
        law(4),
        event("applied", "1", "2", "3", who="learner", at=101),
    ]


def test_a_good_history() -> None:
    outcome = check_trace(good())
    assert (outcome.submitted, outcome.acked, outcome.applied, outcome.ok) == (4, 2, 3, 2)
    assert (outcome.recovered, outcome.unacked) == (("3",), ("4",))
    assert (outcome.laws, outcome.lives) == (1, 2)
    outcome.check(delivered=False)
    with pytest.raises(TraceBroken, match="1 unacked segments, such as 4"):
        outcome.check()


def replaced(old: Event, new: Event) -> Callable[[list[Event]], list[Event]]:
    return lambda events: [new if e == old else e for e in events]


APPLIED = good()[-1]
MISTAKES: list[tuple[str, str, Callable[[list[Event]], list[Event]]]] = [
    ("lost", "1 lost segments, such as 2", replaced(APPLIED, event("applied", "1", "3", who="learner"))),
    ("twice", "1 duplicate segments, such as 2", replaced(APPLIED, event("applied", "1", "2", "2", "3", who="learner"))),
    ("twice, later", "duplicate", replaced(APPLIED, event("applied", "1", "2", "3", "1", who="learner"))),
    ("unexpected in the state", "1 unexpected segments, such as 9", lambda e: [*e, event("applied", "1", "2", "3", "9")]),
    ("unexpected ack", "unexpected", lambda e: [*e, event("acked", "9", at=7)]),
    ("kept and lost", "1 lost segments, such as 4", lambda e: [*e, event("kept", "4")]),
    ("out of order", "1 reordered segments, such as 2", replaced(APPLIED, event("applied", "1", "3", "2", who="learner"))),
    ("another's state", "2 lost", lambda e: [*e[:-1], event("applied", who="learner")]),
    ("the law", "1 violations, such as learner in life 1", lambda e: [*e, law(5, pending=1)]),
    ("negative", "violations", lambda e: [*e, law(5, trained=6, pending=-1)]),
    ("an actor's law", "violations", lambda e: [*e, event("law", side="actor", **ACTOR_LAW)]),
    ("a learner that says nothing", "recorded no counters", lambda e: [*e, event("ready", who="learner", life=2)]),
    ("forgot an ack", "1 accepted for 'on', 2 were acked before", lambda e: [*e, law(1, at=50)]),
]


@pytest.mark.parametrize(("words", "plant"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_each_mistake_is_found(words: str, plant: Callable[[list[Event]], list[Event]]) -> None:
    with pytest.raises(TraceBroken, match=words):
        check_trace(plant(good())).check(delivered=False)


def test_what_is_counted_explains_a_loss_and_no_more() -> None:
    for counted, lost, fine in ((1, 1, True), (1, 2, False)):
        applied = event("applied", *[str(i) for i in range(1, 3 - lost)], who="learner")
        outcome = check_trace([*good()[:-1], law(4, at=200, trained=4 - counted, rolled_back=counted), applied])
        assert len(outcome.lost) == lost
        assert outcome.counted == {"stale": 0, "quarantined": 0, "rolled_back": counted}
        if fine:
            outcome.check(delivered=False)
        else:
            with pytest.raises(TraceBroken, match="2 lost"):
                outcome.check(delivered=False)


def test_only_the_last_state_of_each_client_counts() -> None:
    events = [
        *good(),
        event("submitted", "off1", who="b0", client="off"),
        event("applied", "off1", "off1", client="off"),
        event("applied", "off1", client="off"),
        event("applied", "1", "2", "3", "4"),
    ]
    outcome = check_trace(events)
    outcome.check()
    assert outcome.applied == 5


def test_a_state_that_was_put_back_may_know_less() -> None:
    check_trace([*good(), law(1, at=50)], one_lineage=False).check(delivered=False)


def test_a_moment_counts_from_before_the_counters_were_read() -> None:
    check_trace([*good(), law(1, at=4)]).check(delivered=False)  # the acks came after this moment


def test_what_is_written_is_read(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "a0.jsonl", client="on") as writer:
        writer.submitted("1")
        writer.kept(["1"])
        writer.acked(["1", "2"])
        writer.note("ready", pending=3)
        writer.law("learner", GOOD_LEARNER, at_ns=7, client="off")
        writer.applied(["2"], client="off")
    began, submitted, kept, acked, ready, counters, applied = read_trace(tmp_path / "a0.jsonl")
    assert (began.kind, began.who, began.life, began.client) == ("life", "a0", 1, "on")
    assert (submitted.kind, submitted.ids, submitted.client) == ("submitted", ("1",), "on")
    assert (kept.ids, acked.ids, ready.fields["pending"]) == (("1",), ("1", "2"), 3)
    assert (counters.at_ns, counters.client, counters.fields["trained"]) == (7, "off", 3)
    assert (applied.client, applied.ids) == ("off", ("2",))
    assert submitted.at_ns <= kept.at_ns <= acked.at_ns <= time.monotonic_ns()


def test_a_torn_last_line_is_left_out_and_the_next_life_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a0.jsonl"
    for life in (1, 2):
        TraceWriter(path).close()
        with path.open("ab") as file:
            file.write(b'{"kind": "acked", "at_ns": 1, "ids": ["tor')
        assert [e.life for e in read_trace(path)] == list(range(1, life + 1))
    TraceWriter(path).close()
    assert [e.life for e in read_trace(path)] == [1, 2, 3]


def test_a_damaged_line_within_a_life_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a0.jsonl"
    with TraceWriter(path) as writer:
        writer.submitted("1")
        path.write_bytes(path.read_bytes()[:-5] + b"\n")
        writer.submitted("2")
    with pytest.raises(TraceBroken, match="line 2 cannot be read"):
        read_trace(path)


def test_a_tail_follows_and_waits_for_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "a0.jsonl"
    tail = TraceTail(path)
    assert (tail.ids("acked"), tail.count("acked"), tail.last("acked")) == (0, 0, {})
    with TraceWriter(path) as writer:
        writer.acked(["1", "2"])
        assert (tail.ids("acked"), tail.count("acked")) == (2, 1)
        with path.open("ab") as file:
            file.write(b'{"kind": "acked", "at_ns": 1, ')
            file.flush()
            assert tail.ids("acked") == 2
            file.write(b'"ids": ["3"]}\n')
        assert tail.ids("acked") == 3
        assert tail.last("acked")["ids"] == ["3"]
