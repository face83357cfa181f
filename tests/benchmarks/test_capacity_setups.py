"""The set-ups whose predictions are compared with what they reach."""

from __future__ import annotations

from bench.capacity import SETUPS, measure_setup, predicted_rate
from rl4sys_zmq.capacity.constants import RECORDED


def test_a_set_up_is_predicted_and_run() -> None:
    for setup in SETUPS:
        assert predicted_rate(setup, RECORDED) > 0
    found = measure_setup(SETUPS[2], RECORDED, seconds=0.3, versions=3)
    assert found.measured > 0 and found.ratio == found.predicted / found.measured
