"""The session of the compiled form: it keeps the guarantees, and does in each call what the session in Python does."""

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from delivery.test_simulator import BUSY, CALM, CLOCK_STEPS, COPIES, CRASHES, FULL_DISKS, LONG_SILENCES, MANY_LIVES, RELICS
from kit import random_segment
from simulation.native_session import NativeSession, PairedSession
from simulation.schedule import Schedule
from simulation.sim_actor import ActorParts
from simulation.simulator import simulate

from rl4sys_zmq import native
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.session import SessionState
from rl4sys_zmq.errors import RefusalReason
from rl4sys_zmq.wire import PackedSegment, pack_segment
from rl4sys_zmq.wire.messages import Ack, Beacon, Hello, Message, Refused, Verdict, Welcome

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.reason())

SOAK = bool(os.environ.get("RL4SYS_SOAK"))
SCHEDULES = int(os.environ.get("RL4SYS_SCHEDULES", "5000" if SOAK else "50"))
RANDOM_LIVES = 50_000 if SOAK else 300
CALLS = 120
SESSIONS: dict[str, Any] = {"alone": NativeSession, "in lock-step": PairedSession}
FAULTS = BUSY, CALM, CLOCK_STEPS, COPIES, CRASHES, FULL_DISKS, LONG_SILENCES, MANY_LIVES, RELICS


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("session", SESSIONS)
def test_no_schedule_breaks_a_guarantee(seed: int, session: str) -> None:
    totals: Counter[str] = Counter()
    actor = ActorParts(session=SESSIONS[session])
    for offset in range(SCHEDULES):
        drawn = Schedule.draw(random.Random(seed + offset))
        totals.update(simulate(seed + offset, schedule=replace(drawn, spooled=False), actor=actor).history.counts)
    print(f"{SCHEDULES} schedules from seed {seed}: {dict(totals)}")
    assert totals["lives"] > SCHEDULES


@pytest.mark.parametrize("schedule", FAULTS)
def test_under_each_kind_of_fault_both_do_the_same(seed: int, schedule: Schedule) -> None:
    simulate(seed, schedule=schedule, actor=ActorParts(session=SESSIONS["in lock-step"]))


def _segment(seed: int, steps: int = 0) -> PackedSegment:
    rng = random.Random(seed)
    steps, end = steps or rng.choice([1, 3, 100]), rng.choice(["terminated", "cut"])
    return pack_segment(random_segment(steps, seed, end, masked=rng.random() < 0.3))


LARGE = [_segment(seed, 9_000) for seed in range(3)]
"""Segments whose columns have frames of their own. A few of them are too many for one message that is sent again."""


class Life:
    """One session in lock-step, and random calls and messages, most of them near to what a learner would send."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = self.rng.choice([0.0, 1e6])
        hello = Hello(
            "c",
            "a",
            self.rng.choice([1, 1 << 60]),
            self.rng.choice([0, 0, 5]),
            0,
            0,
            "PPO",
            {"lr": 0.5, "layers": [64, 2**40], "name": "é", "none": None},
            "onpolicy",
            {"type": "Box", "shape": [2], "low": -1.0},
            submits=self.rng.random() < 0.9,
            library="rl4sys_zmq",
            origin=self.rng.choice([0, 0, 1]),
            journal_id=self.rng.choice([0, 0, 7]),
            weights={"level": 1},
            previously_welcomed=False,
            relay="tcp://*:1",
        )
        self.packed = [_segment(self.rng.randrange(1 << 30)) for _ in range(4)]
        self.session = PairedSession(hello, Counters(), self.rng, coded=self.rng.random() < 0.1)
        self.session.open(self.now, (0, 0))

    def play(self) -> None:
        rng, session = self.rng, self.session
        steps: list[Callable[[], object]] = [
            lambda: session.tick(self.now, (rng.randrange(3), rng.randrange(9))),
            lambda: session.on_message(self.now, self._message()),
            lambda: session.on_message(self.now, self._message()),
            lambda: session.on_message(self.now, self._message()),
            self._take,
            self._take,
            lambda: session.want(self.now, self._near(session.sent_steps + 20)),
            lambda: session.has_room(rng.randrange(3), rng.randrange(30)),
        ]
        for _ in range(CALLS):
            self.now += rng.choice([0.0, 0.0, 0.0, 0.01, 0.1, 0.2, 0.4, 0.7]) if rng.random() < 0.95 else 3.5
            if rng.random() < 0.2:
                self.now = max(self.now, session.next_deadline())
                session.tick(self.now, (0, 0))
            rng.choice(steps)()
            chance = rng.random()
            if chance < 0.02:
                session.open(self.now, (1, 2))
            elif chance < 0.03:
                session.leaving = not session.leaving
            elif chance < 0.035:
                session.reject(self.now)
        session.close(self.now)
        session.tick(self.now + 9.0, (1, 2))

    def _take(self) -> None:
        if self.session.can_take():
            packed = self.rng.choices(self.packed, k=self.rng.choice([1, 1, 2, 3, 40]))
            if self.rng.random() < 0.03:
                packed += self.rng.choices(LARGE, k=3)
            self.session.take(self.now, packed, self.rng.choice([0, 10]))

    def _near(self, number: int) -> int:
        """Return the number, one nearby or, seldom, any other one."""
        chance = self.rng.random()
        if chance < 0.02:
            return self.rng.choice([0, 1 << 40, 1 << 62])
        change = self.rng.choice([0, -3, -2, -1, 1, 2, 20]) if chance < 0.12 else 0
        return min(max(0, number + change), 1 << 62)

    def _message(self) -> Message:
        rng, session = self.rng, self.session
        end, generation = session.received + session.unreceived, session.generation
        received = self._near(rng.choice([end, rng.randint(session.received, end)]))
        durable = self._near(rng.randint(min(session.durable, received), received))
        accepted = self._near(session.sent_steps)
        joined = session.state is SessionState.JOINED
        match rng.randrange(20):
            case chance if chance < (1 if joined else 12):
                return self._welcome(received, durable, accepted)
            case 12 | 13 | 14:
                code = rng.choice([*(reason.value for reason in RefusalReason), "gap", "gap", "fenced", "expired", "new", ""])
                field = rng.choice(["", "", "keys", "rate", "actor_id"])
                incarnation = rng.choice([0, 0, 1, self._near(session.origin)])
                return Refused(code, field, "a reason", self._near(session.received), incarnation)
            case 15:
                return Beacon(1, 2, 3)
            case _:
                generation = generation if rng.random() < 0.9 else self._near(generation)
                credit = self._near(accepted + 30), self._near(end + 5), self._near(rng.choice([0, 400, 1 << 20]))
                return Ack(generation, received, durable, 0, 0, accepted, *credit, rng.randrange(3), self._verdicts())

    def _welcome(self, received: int, durable: int, accepted: int) -> Welcome:
        rng = self.rng
        return Welcome(
            policy_id=b"12345678",
            topic=b"87654321",
            journal_id=rng.choice([7, 7, 7, 8]),
            gap=rng.choice([0, 0, 2]),
            generation=self._near(self.session.generation + 1),
            version=0,
            digest=1 << 63,
            spec={},
            pub="",
            received=received,
            durable=durable,
            accepted_steps=accepted,
            algorithm_name="PPO",
            algorithm_type="onpolicy",
            rollout_length=0,
            max_policy_lag=-1,
            on_lag="drop",
            max_message_bytes=1 << 20,
            max_segment_steps=100,
            heartbeat_s=rng.choice([1, 1.0, 1.0, 2.0, 2.0, 0.001, 0.3, 1e9]),
        )

    def _verdicts(self) -> dict[str, Any]:
        odd = [0, 1, 2, 3, 5, 9, 9, -1, True, None, 0.5, "2", 1 << 40]
        names = [*Verdict.ALL, "unknown"]
        return {name: self.rng.choice(odd if self.rng.random() < 0.1 else odd[:7]) for name in names if self.rng.random() < 0.7}


@pytest.mark.timeout(3_600)
def test_random_calls_have_equal_results(seed: int) -> None:
    for number in range(seed, seed + RANDOM_LIVES):
        try:
            Life(number).play()
        except AssertionError as exc:
            exc.add_note(f"life {number}")
            raise


def test_the_compiled_session_refuses_calls_that_it_does_not_know() -> None:
    session = cast(Any, native.load()).Session({"client_id": "c"}, 1, False)
    for name, arguments in ("open", []), ("tick", ["x", 0, 0]), ("jump", [0.0]), ("take", [0.0, [[]], 0]):
        with pytest.raises(RuntimeError):
            session.call(name, arguments)
    assert session.look()["state"] == "joining"
