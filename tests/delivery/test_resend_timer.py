"""Tests of `ResendTimer`: its estimate against a slow twin of RFC 6298, Karn's algorithm, its limits, and a slow learner."""

import random
from collections import deque

import pytest

from rl4sys_zmq.delivery.resend_timer import ResendTimer
from rl4sys_zmq.liveness import SEGMENT_RESEND


class NoJitter(random.Random):
    """A source of random numbers whose `uniform` returns the middle, so that pauses have their nominal lengths."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


@pytest.fixture
def timer() -> ResendTimer:
    return ResendTimer(NoJitter())


def measure(timer: ResendTimer, now: float, seq: int, took_s: float) -> float:
    timer.sent(now, seq)
    timer.acknowledged(now + took_s, seq + 1, waiting=False)
    return now + took_s


def pause_s(timer: ResendTimer, now: float, seq: int) -> float:
    timer.sent(now, seq)
    return timer.at - now


def rfc_6298(times_s: list[float]) -> float:
    """Return the retransmission timeout after these measurements (RFC 6298, section 2), within the limits of the library."""
    srtt = rttvar = 0.0
    for number, r in enumerate(times_s):
        if number == 0:
            srtt, rttvar = r, r / 2
        else:
            rttvar = (1 - 1 / 4) * rttvar + 1 / 4 * abs(srtt - r)
            srtt = (1 - 1 / 8) * srtt + 1 / 8 * r
    return min(max(srtt + 4 * rttvar, SEGMENT_RESEND.first_s), SEGMENT_RESEND.most_s)


def test_the_pause_is_that_of_rfc_6298(timer: ResendTimer, seed: int) -> None:
    rng = random.Random(seed)
    times_s: list[float] = []
    now = 1.0
    for seq in range(200):
        times_s.append(rng.expovariate(1 / rng.choice([0.01, 0.5, 3.0])))
        now = measure(timer, now, 2 * seq, times_s[-1])
        assert pause_s(timer, now, 2 * seq + 1) == pytest.approx(rfc_6298(times_s))
        timer.stop()


def test_the_first_pause_is_short(timer: ResendTimer) -> None:
    assert pause_s(timer, 1.0, 0) == pytest.approx(SEGMENT_RESEND.first_s)


def test_a_later_segment_does_not_move_the_deadline(timer: ResendTimer) -> None:
    timer.sent(1.0, 0)
    at = timer.at
    timer.sent(1.3, 1)
    assert timer.at == at
    assert (timer.expired(at - 0.01), timer.expired(at)) == (False, True)


def test_a_resend_before_the_pause_has_passed_does_not_double_it(timer: ResendTimer) -> None:
    """A new session, or a report of a gap, makes the actor resend at once."""
    timer.sent(1.0, 0)
    timer.resent(1.2)
    timer.resent(1.4)
    assert timer.at == pytest.approx(1.9)


def test_an_acknowledgement_after_a_refusal_ends_the_doubling(timer: ResendTimer) -> None:
    """With a rate limit, the learner refuses segments at once. It is not slow, so the actor need not wait for long."""
    timer.sent(1.0, 0)
    for _ in range(4):
        timer.resent(timer.at)
        timer.refused()
    now = timer.at
    timer.acknowledged(now, 1, waiting=True)
    assert timer.at - now == pytest.approx(0.5)


def test_each_resend_doubles_the_pause(timer: ResendTimer) -> None:
    now, pauses = 1.0, []
    timer.sent(now, 0)
    for _ in range(8):
        pauses.append(timer.at - now)
        now = timer.at
        timer.resent(now)
    assert pauses == pytest.approx([0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0])


def test_the_acknowledgement_of_a_resent_segment_is_not_measured(timer: ResendTimer) -> None:
    """Karn's algorithm: the pause stays doubled until a segment that was sent once is acknowledged."""
    timer.sent(1.0, 0)
    for _ in range(3):
        timer.resent(timer.at)
    now = 20.0
    timer.acknowledged(now, 1, waiting=False)
    assert not timer.expired(1e9)
    assert pause_s(timer, now, 1) == pytest.approx(4.0)
    timer.acknowledged(now + 0.1, 2, waiting=False)
    assert pause_s(timer, now + 0.1, 2) == pytest.approx(0.5)


def test_a_new_session_keeps_the_estimate_and_forgets_the_doubling(timer: ResendTimer) -> None:
    now = measure(timer, 1.0, 0, 1.0)
    timer.sent(now, 1)
    timer.resent(timer.at)
    timer.resent(timer.at)
    timer.reset()
    assert not timer.expired(1e9)
    assert pause_s(timer, now, 2) == pytest.approx(3.0)


@pytest.mark.parametrize("ack_s", [0.05, 1.0, 2.5])
def test_a_slow_learner_gets_few_segments_twice(ack_s: float, seed: int) -> None:
    """The learner acknowledges each segment after `ack_s` seconds, the actor sends four segments per second for 100 s."""
    timer = ResendTimer(random.Random(seed))
    acks: deque[tuple[float, int]] = deque()
    resends = 0
    for tick in range(10_000):
        now = 1.0 + tick / 100
        if tick % 25 == 0:
            seq = tick // 25
            timer.sent(now, seq)
            acks.append((now + ack_s, seq + 1))
        while acks and acks[0][0] <= now:
            received = acks.popleft()[1]
            timer.acknowledged(now, received, waiting=bool(acks))
        if timer.expired(now):
            resends += 1
            timer.resent(now)
    assert resends <= 4
