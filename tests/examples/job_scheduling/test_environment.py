"""The environment: features, mask, rewards that add up, and bad input."""

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from job_scheduling.environment import REWARDS, Scheduling, SchedulingEnv
from job_scheduling.features import FEATURES, WINDOW
from job_scheduling.heuristics import HEURISTICS, schedule
from job_scheduling.lublin import generate
from job_scheduling.planning import LATER_COST
from job_scheduling.simulator import OBJECTIVES, Schedule, Simulator
from job_scheduling.trace import Jobs, Trace
from rl4sys_zmq.errors import ConfigError


def play(env: SchedulingEnv, rng: np.random.Generator | None = None, **reset: Any) -> tuple[Schedule, list[float]]:
    """Schedule an episode at random, or the shortest job first. Return the schedule and the rewards."""
    observation, info = env.reset(**reset)
    rewards, ended = [], False
    while not ended:
        assert env.observation_space.contains(observation)
        rows = np.flatnonzero(info["action_mask"])
        action = rng.choice(rows) if rng is not None else rows[observation[rows, 1].argmin()]
        observation, reward, ended, truncated, info = env.step(action)
        assert not truncated
        rewards.append(reward)
    if env.rules.reference is not None:
        assert info["saved"] == pytest.approx(sum(rewards))
    return info["schedule"], rewards


TRACE, BUSY = generate(400, 64, seed=2, load=3.0), generate(400, 64, seed=2, load=9.0)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("reference", [None, "F1", "SJF"])
@pytest.mark.parametrize("backfilling", [False, True])
def test_the_rewards_add_up(objective: str, reference: str | None, backfilling: bool) -> None:
    sums = []
    for kind in REWARDS if reference is not None else ("accrued", "end"):
        rules = Scheduling(length=120, backfilling=backfilling, objective=objective, reference=reference, rewards=kind)
        done, rewards = play(SchedulingEnv([TRACE], rules), np.random.default_rng(1), seed=3)
        objective_of = done.objective(objective)
        if reference is None:
            expected = -objective_of
        else:
            other = schedule(done.jobs, 64, HEURISTICS[reference], backfilling=backfilling).objective(objective)
            expected = (other - objective_of) / abs(other)
        assert sum(rewards) == pytest.approx(expected)
        sums.append(expected)
        if kind != "rollout":
            assert any(rewards[:-1]) == (kind == "accrued" and objective != "utilisation")
    assert len(set(sums)) == 1  # the same jobs in the same order


@pytest.mark.parametrize("backfilling", [False, True])
def test_a_rollout_reward_is_that_of_two_whole_schedules(backfilling: bool) -> None:
    horizon, clip, length = 10, 0.002, 80
    env = SchedulingEnv([BUSY], Scheduling(length=length, backfilling=backfilling, horizon=horizon, clip=clip))
    rng, order, clipped = np.random.default_rng(2), list[int](), 0
    _, info = env.reset(options={"trace": 0, "start": 20})
    jobs = BUSY.jobs.take(slice(20, 20 + length))
    total = schedule(jobs, 64, HEURISTICS["F1"], backfilling=backfilling).objective("bounded_slowdown")

    def expected(chosen: list[int]) -> tuple[Simulator, Simulator]:
        """Return the cluster after the chosen jobs, and that after F1 has chosen all others."""
        simulator = Simulator(jobs, 64, backfilling=backfilling)
        for job in chosen:
            while len(simulator.waiting) == 1:
                simulator.start(simulator.waiting[0])
            simulator.start(job)
        while len(simulator.waiting) == 1:
            simulator.start(simulator.waiting[0])
        end = simulator.copy()
        while not end.finished:
            waiting = np.array(end.waiting)
            end.start(int(waiting[HEURISTICS["F1"](jobs.take(waiting), 0.0).argmin()]))
        return simulator, end

    now, before = expected(order)
    ended = False
    while not ended:
        row = int(rng.integers(info["action_mask"].sum()))
        order.append(now.waiting[row])
        some = min(now.arrived + horizon, length)
        now, after = expected(order)
        saved = (before.schedule().slowdowns()[:some].sum() - after.schedule().slowdowns()[:some].sum()) / length / total
        _, reward, ended, _, info = env.step(np.int64(row))
        assert reward == pytest.approx(np.clip(saved, -clip, clip), abs=1e-12)
        clipped += abs(reward) == clip
        before = after
    assert clipped


@pytest.mark.parametrize("backfilling", [False, True])
def test_the_features_of_a_decision(backfilling: bool) -> None:
    # Job 0 runs alone, from 0 to 1000. At 0 the others wait too.
    columns = np.array([0.0, 0.0, 0.0]), np.array([999.0, 99.0, 9.0]), np.array([999.0, 99.0, 9.0]), np.array([3, 2, 1])
    env = SchedulingEnv(
        [Trace(Jobs(*columns), 4)], Scheduling(length=3, reference=None, rewards="accrued", backfilling=backfilling)
    )
    observation, info = env.reset()
    assert info["action_mask"].tolist() == [True] * 3 + [False] * (WINDOW - 3)
    assert not observation[3:].any()
    observation, reward, _, _, info = env.step(np.int64(0))
    assert (reward, info["action_mask"].sum()) == (0.0, 2)  # no time has passed
    expected = {
        "time waited": (0.0, 0.0),
        "requested time": (2 / 5, 1 / 5),
        "score of F2": (math.log10(1 + math.sqrt(99) * 2 - 3) / 5, 0.0),
        "logarithm of processors": (math.log2(3) / math.log2(5), 1 / math.log2(5)),
        "score of F1": (math.log10(1 + math.log10(99) * 2 - math.log10(9)) / 5, 0.0),
        "delay": (3 / 5, 0.0),  # 999 s
        "free processors after the start": (-1 / 4, 0.0),
        # With backfilling: the rate of the other job. Else: if job 1 is next, job 2 waits for 999 s, and has the smaller size.
        "outlook": (math.log10(1 + 100 / 10) / 5, math.log10(1 + 100 / 99) / 5)
        if backfilling
        else (math.log10(1 + 99.9 - 0.1 + LATER_COST) / 5, 0.0),
    }
    for column, name in enumerate(FEATURES):
        assert observation[:2, column] == pytest.approx(expected[name]), name
    # Job 1 starts at 999 s. With backfilling, job 2 runs before, and else after it. Nothing depends on one job alone.
    _, reward, ended, _, info = env.step(np.int64(0))
    assert ended and not info["action_mask"].any()
    slowdowns = 1, (999 + 99) / 99, 1 if backfilling else (999 + 9) / 10
    assert info["schedule"].slowdowns() == pytest.approx(slowdowns)
    assert reward == pytest.approx(-sum(slowdowns) / 3)


def test_of_many_waiting_jobs_those_are_seen_that_f1_prefers() -> None:
    count = 300
    rng = np.random.default_rng(1)
    run_s = rng.integers(10, 1000, count).astype(float)
    jobs = Jobs(np.zeros(count), run_s, run_s, rng.integers(1, 65, count))
    env = SchedulingEnv([Trace(jobs, 64)], Scheduling(length=count))
    observation, info = env.reset()
    score = np.log10(run_s) * jobs.processors
    seen = np.flatnonzero(score <= np.sort(score)[WINDOW - 1])
    assert info["action_mask"].all()
    assert observation[:, 1] == pytest.approx(np.log10(1 + run_s[seen]) / 5)
    done, _ = play(env, rng)
    assert len(done.start_s) == count


def test_equal_seeds_give_equal_episodes() -> None:
    traces = [TRACE, generate(300, 64, seed=5, load=0.8)]
    env = SchedulingEnv(traces, Scheduling(length=60))
    first, again, other = (play(env, np.random.default_rng(1), seed=seed)[0] for seed in (1, 1, 2))
    assert first.start_s.tolist() == again.start_s.tolist()
    assert first.start_s.tolist() != other.start_s.tolist()


def test_bad_input_is_an_error() -> None:
    with pytest.raises(ConfigError, match="unknown objective 'fame'"):
        Scheduling(objective="fame")
    with pytest.raises(ConfigError, match="unknown reference 'F9'"):
        Scheduling(reference="F9")
    with pytest.raises(ConfigError, match="unknown rewards 'praise'; known are rollout, accrued, end"):
        Scheduling(rewards="praise")
    for reference in ("WFP3", None):
        with pytest.raises(ConfigError, match=f"rollouts need a reference of FCFS, SJF, F1, F2, F3, F4, not {reference}"):
            Scheduling(reference=reference)
    with pytest.raises(ConfigError, match="a number of jobs from 0, not -1"):
        Scheduling(horizon=-1)
    with pytest.raises(ConfigError, match=r"above 0, not 0\.0"):
        Scheduling(clip=0.0)
    with pytest.raises(ConfigError, match="length is 0"):
        Scheduling(length=0)
    with pytest.raises(ConfigError, match="the shortest trace 400"):
        SchedulingEnv([TRACE], Scheduling(length=401))
    with pytest.raises(ConfigError, match="the shortest trace 0"):
        SchedulingEnv([])
    env = SchedulingEnv([TRACE], Scheduling(length=100))
    with pytest.raises(ConfigError, match="no episode begins with job 301; the last one begins with 300"):
        env.reset(options={"start": 301})
    with pytest.raises(ConfigError, match="no trace 1; there are 1"):
        env.reset(options={"trace": 1})
    _, info = env.reset(seed=1)
    with pytest.raises(ValueError, match="has no job"):
        env.step(np.int64(info["action_mask"].sum()))
    alone = Jobs(np.array([0.0, 100.0, 200.0, 300.0, 400.0]), np.full(5, 10.0), np.full(5, 10.0), np.full(5, 8))
    with pytest.raises(ConfigError, match="nothing to decide"):
        SchedulingEnv([Trace(alone, 8)], Scheduling(length=5)).reset(seed=1)
