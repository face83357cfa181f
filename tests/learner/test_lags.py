"""Tests of the lags of training data: their histogram, and trainings with a forced lag."""

from collections.abc import Iterator
from typing import Any

import pytest

from rl4sys_zmq.learner.lags import LAG_LIMITS, count_lags, lag_report


def test_each_step_is_in_the_bucket_of_its_lag() -> None:
    counts = count_lags({0: 1, 1: 2, 3: 3, 4: 4, 5: 5, 64: 6, 65: 7, 10**9: 8})
    assert len(counts) == len(LAG_LIMITS) + 1
    assert lag_report(counts) == {"0": 1, "1": 2, "3-4": 7, "5-8": 5, "33-64": 6, "65-": 15}
    assert lag_report(count_lags({})) == {}


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `forced_lag`, and the segments that its algorithm observes, each with the newest version at that time."""
    pytest.importorskip("torch")
    pytest.importorskip("gymnasium")
    forced_lag: Any = pytest.importorskip("bench.forced_lag")
    seen: list[tuple[int, Any]] = []
    make = forced_lag.make_algorithm

    def watched_algorithm(*given: Any) -> Any:
        algorithm: Any = make(*given)
        observe, update, updates = algorithm.observe, algorithm.update, [0]

        def counted() -> Any:
            metrics = update()
            updates[0] += metrics is not None
            return metrics

        def noted(segment: Any) -> None:
            seen.append((updates[0], segment))
            observe(segment)

        algorithm.update, algorithm.observe = counted, noted
        return algorithm

    monkeypatch.setattr(forced_lag, "make_algorithm", watched_algorithm)
    yield forced_lag, seen


@pytest.mark.parametrize("lag", [0, 3])
def test_a_forced_training_acts_with_a_policy_of_exactly_that_age(watched: Any, lag: int) -> None:
    forced_lag, seen = watched
    parameters = {"steps_per_update": 32, "rollout_length": 8, "hidden_sizes": [8]}
    run = forced_lag.LagRun(
        env_id="CartPole-v1", algorithm="IMPALA", parameters=parameters, lag=lag, seed=1, num_envs=2, max_steps=600
    )
    result = forced_lag.train_with_lag(run)
    assert result.steps >= 600 and result.solved_steps is None and result.updates - seen[-1][0] in (0, 1)
    for newest, segment in seen:
        assert segment.versions[-1] in (max(0, newest - lag), max(0, newest - lag - 1))  # an update between two environments
        assert segment.steps <= 8 and segment.ended == (segment.episode_return is not None)
    episodes: dict[int, list[Any]] = {}
    for _, segment in seen:
        episodes.setdefault(segment.episode_id, []).append(segment)
    for parts in episodes.values():
        assert [part.segment_index for part in parts] == list(range(len(parts)))
        if parts[-1].ended:
            assert parts[-1].episode_length == sum(part.steps for part in parts) == parts[-1].episode_return
    again = forced_lag.train_with_lag(run)
    assert again == result
