"""The timers of the protocol: pauses between attempts, deadlines, and the relations between timeouts."""

import random

import pytest

from rl4sys_zmq import liveness
from rl4sys_zmq.liveness import CALL_RESEND, IO_RESTART, SEGMENT_RESEND, Backoff, SilenceTimer, is_silent, jittered


def test_pauses_double_up_to_the_longest() -> None:
    assert [Backoff(0.5, 4.0).pause_s(attempts) for attempts in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]


@pytest.mark.parametrize("backoff", [SEGMENT_RESEND, CALL_RESEND, IO_RESTART])
def test_a_pause_after_many_attempts_is_the_longest(backoff: Backoff) -> None:
    assert backoff.pause_s(100_000) == backoff.most_s


def test_jitter_is_within_a_fifth() -> None:
    rng = random.Random(1)
    pauses = [jittered(10.0, rng) for _ in range(1000)]
    assert 8.0 <= min(pauses) < 8.1 and 11.9 < max(pauses) <= 12.0


def test_a_timer_expires_at_its_deadline_and_starts_again() -> None:
    timer = SilenceTimer(3.0, 10.0)
    assert timer.deadline == 13.0
    assert not timer.expired(12.9) and timer.expired(13.0)
    timer.restart(13.0)
    assert not timer.expired(15.9) and timer.expired(16.0)


def test_a_peer_is_silent_after_its_timeout() -> None:
    assert not is_silent(13.0, 10.0, 3.0)
    assert is_silent(13.1, 10.0, 3.0)


def test_a_silence_outlasts_the_messages_that_may_be_missed() -> None:
    assert liveness.SILENCE_S == 3 * liveness.HEARTBEAT_S
    assert liveness.PUBLISHER_SILENCE_S > liveness.MISSED_MESSAGES * liveness.BEACON_S
    assert sum(CALL_RESEND.pause_s(attempts) for attempts in range(2)) < liveness.SILENCE_S  # a call was sent three times by then
    assert liveness.MISSED_MESSAGES * CALL_RESEND.most_s < liveness.SESSION_S
