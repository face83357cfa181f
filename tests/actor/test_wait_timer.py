"""The measurement of waiting time, with a clock that the test moves."""

from __future__ import annotations

import pytest

from rl4sys_zmq.actor.components import WaitTimer


def test_time_counts_within_the_block_for_each_thread_and_while_it_lasts() -> None:
    now = [100.0]
    timer = WaitTimer(lambda: now[0])
    now[0] += 5
    assert timer.seconds == 0
    with timer:
        now[0] += 2
        assert timer.seconds == 2
        with timer:  # like a second thread
            now[0] += 1
        now[0] += 1
    now[0] += 50
    assert timer.seconds == 2 + 2 * 1 + 1


def test_a_wait_that_fails_counts() -> None:
    now = [0.0]
    timer = WaitTimer(lambda: now[0])
    with pytest.raises(KeyError), timer:
        now[0] += 3
        raise KeyError
    assert timer.seconds == 3
