"""Random schedules of faults break no guarantee, and the rules would notice if one were broken."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import replace

import pytest

from rl4sys_zmq.delivery import ActorSession, CreditPool, MemoryLedger, Redial, Stream, StreamTable
from rl4sys_zmq.errors import Refusal
from rl4sys_zmq.testing.history import RULES, History, Violation
from rl4sys_zmq.testing.sim_learner import LearnerParts, SlowLedger
from rl4sys_zmq.testing.simulator import Schedule, Simulation, simulate
from rl4sys_zmq.wire.messages import Verdict

SCHEDULES = int(os.environ.get("RL4SYS_SCHEDULES", "500"))
MUTANT_SCHEDULES = 400
CALM = Schedule(2, 20, 5.0, 0.0, 0.0, 0.0, 0.0, False, 0.01, 30.0, 0, 0, 0, 0)
MANY_LIVES = Schedule(2, 25, 12.0, 0.05, 0.1, 0.0, 0.0, True, 2.0, 30.0, 0, 0, 6, 0)
LONG_SILENCES = Schedule(2, 25, 20.0, 0.3, 0.0, 0.0, 0.0, False, 0.2, 4.0, 0, 0, 0, 4)


def test_no_schedule_breaks_a_guarantee(seed):
    totals: Counter[str] = Counter()
    began = time.perf_counter()
    for offset in range(SCHEDULES):
        totals.update(simulate(seed + offset).history.counts)
    print(f"{SCHEDULES} schedules from seed {seed}, {SCHEDULES / (time.perf_counter() - began):.0f}/s: {dict(totals)}")
    happened = {
        "accepted",
        "refused",
        "trained",
        "stale",
        "quarantined",
        "redials",
        "damaged",
        "actor_restarts",
        "thread_restarts",
    }
    assert happened <= set(totals)
    assert totals["lives"] > SCHEDULES


def test_a_seed_repeats_its_schedule():
    first, second = simulate(7), simulate(7)
    assert (first.schedule, first.messages, first.history.counts) == (second.schedule, second.messages, second.history.counts)


def test_without_faults_everything_is_trained_and_nothing_sent_twice():
    history = simulate(1, schedule=CALM).history
    done = sum(history.counts[v] for v in (Verdict.TRAINED, Verdict.STALE, Verdict.QUARANTINED))
    assert done == history.counts["accepted"] == history.counts["submitted"] - history.counts["refused"]
    assert not any(history.counts[k] for k in ("redials", "refused.gap", "refused.no_session", "dropped_at_source"))


def test_a_dead_learner_costs_what_the_queue_cannot_hold_and_no_more():
    plan = replace(CALM, segments=200, drop=1.0)
    history = simulate(3, schedule=plan).history
    assert history.counts["dropped_at_source"] > 0
    assert (
        history.counts["submitted"]
        == history.counts["dropped_at_source"] + history.counts["accepted"] + history.counts["refused"]
    )


# ---- planted bugs


class NoDedupe(Stream):
    def admit(self, first_seq, count):
        super().admit(first_seq, count)
        return 0


class GapAccepted(Stream):
    def admit(self, first_seq, count):
        self.received = max(self.received, first_seq)
        return super().admit(first_seq, count)


class AckBeforeCommit(Stream):
    def ack(self, **kwargs):
        return replace(super().ack(**kwargs), durable=self.received)


class DurableNeverMoves(Stream):
    def commit(self, end_seq):
        pass


def table_of(stream_class):
    """A table whose streams are of another class."""

    class Table(StreamTable):
        def open(self, hello, peer, now):
            stream, old = super().open(hello, peer, now)
            stream.__class__ = stream_class
            return stream, old

    return LearnerParts(table=Table)


class ForgetsMarks(StreamTable):
    def expire(self, now):
        super().expire(now)
        self._expired.clear()


class NoFencing(StreamTable):
    def open(self, hello, peer, now):
        stream = self._streams.get(hello.actor_id)
        if stream is not None and stream.incarnation != hello.incarnation:
            del self._streams[hello.actor_id]
        return super().open(hello, peer, now)


class OneStreamForAllIncarnations(StreamTable):
    def open(self, hello, peer, now):
        stream = self._streams.get(hello.actor_id)
        if stream is not None:
            stream.incarnation = hello.incarnation
        return super().open(hello, peer, now)


class GrantsTwice(CreditPool):
    def grant(self, streams, now):
        for stream in (granted := list(streams)):
            stream.credit_steps = max(stream.credit_steps, min(stream.want_steps, stream.accepted_steps + 24))
            stream.progress_at = now
        return granted


class LeaksCredit(CreditPool):
    """Counts what is delivered twice, so that the demand is used up too soon."""

    def delivered(self, steps):
        self.delivered_steps += 2 * steps


class CommitsTwice(SlowLedger):
    def committed(self):
        done = super().committed()
        return done + done[-1:]


class LosesEntries(SlowLedger):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def append(self, batch):
        self.calls += 1
        if self.calls % 10:
            super().append(batch)


class BelievesAnyAck(ActorSession):
    def _on_ack(self, now, ack):
        self._next_seq, true = max(self._next_seq, ack.received), self._next_seq
        super()._on_ack(now, ack)
        self._next_seq = true


class ReleasesOnReceived(ActorSession):
    def _on_ack(self, now, ack):
        super()._on_ack(now, replace(ack, durable=ack.received))


class NeverResends(ActorSession):
    def _resend(self, now):
        self._resend_at = 0.0
        return []


class CountsVerdictsAgain(ActorSession):
    def _on_welcome(self, now, welcome):
        self._session_verdicts = {}
        return super()._on_welcome(now, welcome)


class NeverSaysHelloAgain(ActorSession):
    def _on_refused(self, now, refused):
        return [] if refused.code == Refusal.NO_SESSION else super()._on_refused(now, refused)


class ForgetsItsWindowOnRedial(ActorSession):
    def tick(self, now, held):
        actions = super().tick(now, held)
        if any(isinstance(a, Redial) for a in actions):
            self._window.clear()
        return actions


class IgnoresCredit(ActorSession):
    def can_take(self):
        return self.state.value == "joined"


MUTANTS = {
    "no_dedupe": ({"parts": table_of(NoDedupe)}, {"identity", "order"}),
    "gap_accepted": ({"parts": table_of(GapAccepted)}, {"order"}),
    "ack_before_commit": ({"parts": table_of(AckBeforeCommit)}, {"released"}),
    "durable_never_moves": ({"parts": table_of(DurableNeverMoves)}, {"wedged"}),
    "forgets_marks": ({"parts": LearnerParts(table=ForgetsMarks), "schedule": LONG_SILENCES}, {"once", "order"}),
    "no_fencing": (
        {"parts": LearnerParts(table=NoFencing), "schedule": MANY_LIVES},
        {"once", "order", "released", "verdicts", "wedged"},
    ),
    "one_stream_for_all": (
        {"parts": LearnerParts(table=OneStreamForAllIncarnations)},
        {"released", "order", "identity", "wedged"},
    ),
    "seq_reuse": ({"reuse_incarnations": True}, {"identity", "released", "wedged", "order", "conserved"}),
    "grants_twice": ({"parts": LearnerParts(pool=GrantsTwice)}, {"credit"}),
    "leaks_credit": ({"parts": LearnerParts(pool=LeaksCredit)}, {"wedged", "credit"}),
    "disposes_twice": ({"parts": LearnerParts(ledger=CommitsTwice)}, {"once"}),
    "loses_entries": ({"parts": LearnerParts(ledger=LosesEntries)}, {"wedged", "released", "disposed"}),
    "believes_any_ack": ({"actor_session": BelievesAnyAck}, {"released", "wedged"}),
    "releases_on_received": ({"actor_session": ReleasesOnReceived}, {"released"}),
    "never_resends": ({"actor_session": NeverResends}, {"wedged"}),
    "counts_verdicts_again": ({"actor_session": CountsVerdictsAgain}, {"verdicts"}),
    "never_says_hello_again": ({"actor_session": NeverSaysHelloAgain}, {"wedged"}),
    "forgets_its_window": ({"actor_session": ForgetsItsWindowOnRedial}, {"released", "wedged", "conserved"}),
    "ignores_credit": ({"actor_session": IgnoresCredit, "schedule": CALM}, {"credit"}),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name, seed):
    planted, rules = MUTANTS[name]
    for offset in range(MUTANT_SCHEDULES):
        try:
            simulate(seed + offset, **planted)
        except Violation as caught:
            print(f"{name}: caught after {offset + 1} schedules by {caught}")
            assert caught.rule in rules
            return
        except (AssertionError, KeyError) as exc:
            pytest.fail(f"{name}: {exc!r}")
    pytest.fail(f"{MUTANT_SCHEDULES} schedules did not notice {name}")


def test_the_rules_have_names():
    assert {rule for _, rules in MUTANTS.values() for rule in rules} <= set(RULES)
    with pytest.raises(Violation, match="identity"):
        history = History()
        history.assign(("a", 1), 0, 5)
        history.assign(("a", 1), 0, 6)


def test_a_violation_names_its_seed():
    with pytest.raises(Violation) as caught:
        for seed in range(50):
            simulate(seed, actor_session=NeverResends)
    assert any(note.startswith("seed ") for note in caught.value.__notes__)


def test_the_ledger_in_memory_needs_no_second_call():
    history = Simulation(5, schedule=CALM, parts=LearnerParts(ledger=MemoryLedger)).run()
    assert history.counts["accepted"] == len(history.committed)


def test_schedules_are_as_varied_as_they_should_be():
    drawn = [Schedule.draw(random.Random(n)) for n in range(200)]
    assert {s.reorder for s in drawn} == {True, False}
    assert any(s.clean for s in drawn)
    assert {s.actors for s in drawn} == {1, 2, 3}
