"""Tests of alarms by kind: they are counted and bounded. The log has the first alarm at once, and then one line a minute."""

from rl4sys_zmq.learner.alarms import LOG_EVERY_S, MAX_KINDS, OTHER, Alarms


class Clock:
    """A clock that a test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_log_hears_the_first_of_a_kind_and_then_one_line_a_minute() -> None:
    clock = Clock()
    alarms = Alarms(clock, clock)
    assert alarms.due() == [] and alarms.counts() == {} and alarms.report() == {}
    for n in range(1000):
        alarms.note("update_undone", f"number {n}")
    assert [(a.name, a.count) for a in alarms.due()] == [("update_undone", 1000)]
    assert alarms.due() == []
    clock.now += LOG_EVERY_S / 2
    alarms.note("update_undone", "again", 2)
    alarms.note("stalled", "nothing moves")
    assert [a.name for a in alarms.due()] == ["stalled"], "the first of another kind is said at once"
    clock.now += LOG_EVERY_S / 2
    assert [(a.name, a.count, a.text) for a in alarms.due()] == [("update_undone", 1002, "again")], "what was not said is owed"
    clock.now += 10 * LOG_EVERY_S
    assert alarms.due() == [], "and nothing is said twice"
    assert alarms.report()["update_undone"] == {
        "count": 1002,
        "text": "again",
        "first_unix_s": 100.0,
        "last_unix_s": 100.0 + LOG_EVERY_S / 2,
    }


def test_kinds_and_texts_are_bounded() -> None:
    alarms = Alarms()
    for n in range(10 * MAX_KINDS):
        alarms.note(f"kind {n} {'x' * 1000}", "y" * 10_000)
    counts = alarms.counts()
    assert len(counts) == MAX_KINDS + 1 and sum(counts.values()) == 10 * MAX_KINDS and counts[OTHER] == 9 * MAX_KINDS
    assert all(len(name) <= 64 and len(found["text"]) <= 500 for name, found in alarms.report().items())
