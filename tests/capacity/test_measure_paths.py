"""The duration of a measurement of ingress, and the threads in it. No test asserts a measured figure."""

import threading

import pytest

from rl4sys_zmq.capacity import measure_paths


def test_a_measurement_of_ingress_lasts_until_the_first_steps_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine nothing may arrive for longer than the measurement lasts."""
    monkeypatch.setattr(measure_paths, "WARM_UP_S", 0.0)
    counts = iter([7, 7, 7, 12])
    rate, _, shares = measure_paths.measure(lambda: next(counts, 12), 0.0)
    assert rate > 0 and shares == []
    monkeypatch.setattr(measure_paths, "START_S", 0.0)
    with pytest.raises(TimeoutError, match="no steps arrived within 0 s"):
        measure_paths.measure(lambda: 7, 0.0)


def test_threads_of_an_earlier_learner_are_not_measured() -> None:
    ending = threading.Event()
    old, new = (threading.Thread(target=ending.wait, name=f"rl4sys-learner-{name}") for name in ("old", "new"))
    old.start()
    others = set(threading.enumerate())
    new.start()
    try:
        assert measure_paths._threads("rl4sys-learner-", others) == [new.ident]
    finally:
        ending.set()
        old.join()
        new.join()
