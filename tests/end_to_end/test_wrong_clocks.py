"""Values that depend on a clock: generations, the age of a cached policy, the age of segments in a spool."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import drained, until

from rl4sys_zmq.errors import PolicyStale

from .conftest import Lab

pytestmark = pytest.mark.usefixtures("form")

DAY_S = 86_400.0
NOBODY = {"connect_timeout_s": 1.0}


@pytest.fixture
def step_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that shifts the wall clock of this process by some seconds."""
    told_s = time.time

    def step(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: told_s() + seconds)

    return step


def test_a_learner_without_a_memory_whose_clock_went_back_begins_a_later_generation(
    inproc_lab: Lab, step_clock: Callable[[float], None]
) -> None:
    """The actor's segments are then of an earlier generation. The learner quarantines segments of a later one."""
    bind = inproc_lab.new_address()
    step_clock(DAY_S)
    learner = inproc_lab.learner(bind)
    agent = inproc_lab.agent(learner)
    inproc_lab.train(agent, 16, 1)
    generation = agent.generation
    learner.close()
    inproc_lab.episode(agent, 16)
    step_clock(-DAY_S)
    again = inproc_lab.learner(bind)
    until(lambda: agent.generation > generation)
    client = drained(again, agent)
    assert client["verdicts"]["quarantined"] == 0
    assert client["accepted"] == client["verdicts"]["trained"] + client["verdicts"]["stale"] + client["gap"] == 2


@pytest.mark.parametrize(("step_s", "stale"), [(0.0, False), (-30.0, False), (-DAY_S, True), (DAY_S, True)])
def test_a_policy_of_unknown_age_is_not_taken_for_a_young_one(
    inproc_lab: Lab, tmp_path: Path, step_clock: Callable[[float], None], step_s: float, stale: bool
) -> None:
    learner = inproc_lab.learner()
    cache = tmp_path / "policy"
    inproc_lab.agent(learner, policy_cache=cache).close()
    step_clock(step_s)
    options: dict[str, Any] = {"policy_cache": cache, "policy_max_age_s": 3600.0, "on_stale": "raise", **NOBODY}
    agent = inproc_lab.agent("inproc://nobody-there", **options)
    if stale:
        with pytest.raises(PolicyStale):
            agent.request_for_action(None, np.zeros(4, dtype=np.float32))
    else:
        agent.request_for_action(None, np.zeros(4, dtype=np.float32))


def test_a_clock_that_is_set_makes_no_segment_in_a_spool_older(
    inproc_lab: Lab, tmp_path: Path, step_clock: Callable[[float], None]
) -> None:
    """As on a machine without a clock battery, which gets the time when its network is up."""
    step_clock(-1.79e9)
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner, spool=tmp_path / "spool", spool_max_age_s=3600.0)
    learner.close()
    for _ in range(3):
        inproc_lab.episode(agent, 4)
    until(lambda: agent.stats()["spool"]["items"] == 3)
    step_clock(0.0)
    inproc_lab.episode(agent, 4)
    until(lambda: agent.stats()["spool"]["items"] == 4)
    assert agent.stats()["dropped_at_source"] == 0
