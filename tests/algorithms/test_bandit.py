"""Tests of the linear bandit: its posterior against a slow twin, its regret against uniform choices, and a learner with it."""

from typing import Any

import numpy as np
import pytest
from kit import open_agent, segment_with

from rl4sys_zmq.algorithms import ALGORITHMS, make_algorithm
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.policies import RandomSource, build_policy
from rl4sys_zmq.testing import check_algorithm
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, PolicySnapshot, Segment

OBS, ACTIONS = BoxSpace((3,)), DiscreteSpace(3, start=1)
STRATEGIES = ("thompson", "ucb", "greedy", "softmax")


def bandit(**parameters: Any) -> Any:
    return make_algorithm("BANDIT", OBS, ACTIONS, {"steps_per_update": 8, **parameters}, 0)


def decisions(observations: Any, actions: Any, rewards: Any, **options: Any) -> Segment:
    count = len(actions)
    columns: dict[str, Any] = {
        "observations": np.asarray(observations, np.float32),
        "actions": np.asarray(actions, np.int64),
        "rewards": np.asarray(rewards, np.float32),
        "log_probs": np.full(count, -1.0, np.float32),
    }
    return segment_with(count, **{**columns, **options})


def some_decisions(count: int, seed: int = 0) -> Segment:
    rng = np.random.default_rng(seed)
    return decisions(rng.normal(size=(count, 3)), rng.integers(1, 4, count), rng.normal(size=count))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_keeps_the_contract_of_an_algorithm(strategy: str) -> None:
    parameters = {"strategy": strategy, "steps_per_update": 50, "forgetting": 0.99, "propensity_samples": 32}
    observations = OBS if strategy != "ucb" else DictSpace({"load": OBS, "kind": DiscreteSpace(2)})
    check_algorithm(ALGORITHMS.get("bandit"), observation_space=observations, action_space=ACTIONS, parameters=parameters)


@pytest.mark.parametrize("forgetting", [1.0, 0.9])
def test_the_posterior_is_that_of_ridge_regression(forgetting: float) -> None:
    """The twin takes one decision after another, with explicit inverses, in two updates of several segments."""
    algorithm = bandit(ridge=0.5, forgetting=forgetting)
    precision = [0.5 * np.eye(4) for _ in range(3)]
    moment = [np.zeros(4) for _ in range(3)]
    for seeds in ((1, 2), (3,)):
        for seed in seeds:
            segment = some_decisions(8, seed)
            algorithm.observe(segment)
            for row, action, reward in zip(segment.observations, segment.actions, segment.rewards, strict=True):
                x = np.append(row, 1.0).astype(float)
                for one in range(3):
                    precision[one] = forgetting * precision[one] + (1 - forgetting) * 0.5 * np.eye(4)
                    moment[one] = forgetting * moment[one]
                precision[action - 1] += np.outer(x, x)
                moment[action - 1] += float(reward) * x
        assert algorithm.update() is not None
    tensors = algorithm.snapshot()
    for one in range(3):
        inverse = np.linalg.inv(precision[one])
        np.testing.assert_allclose(tensors["means"][one], inverse @ moment[one], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(tensors["factors"][one].T @ tensors["factors"][one], inverse, rtol=1e-5, atol=1e-6)
        assert np.array_equal(tensors["factors"][one], np.tril(tensors["factors"][one]))


def test_the_last_observation_of_a_part_of_an_episode_is_no_decision() -> None:
    whole, cut = bandit(), bandit()
    segment = some_decisions(8)
    whole.observe(segment)
    rows: Any = segment.observations
    cut.observe(decisions(np.vstack([rows, [[9.0, 9.0, 9.0]]]), segment.actions, segment.rewards, terminated=False))
    whole.update()
    cut.update()
    assert np.array_equal(whole.snapshot()["means"], cut.snapshot()["means"])


def test_an_update_waits_for_enough_decisions() -> None:
    algorithm = bandit()
    algorithm.observe(some_decisions(5))
    assert algorithm.demand() == 3 and algorithm.update() is None
    assert algorithm.update(partial=True)["charts/decisions"] == 5
    assert algorithm.demand() == 8 and algorithm.update(partial=True) is None


def test_parameters_that_change() -> None:
    algorithm = bandit(strategy="greedy")
    assert algorithm.snapshot()["epsilon"] == pytest.approx(0.1)
    algorithm.change({"strategy": "greedy", "epsilon": 0.0, "scale": 2.0, "steps_per_update": 4})
    assert (float(algorithm.snapshot()["epsilon"][0]), float(algorithm.snapshot()["scale"][0])) == (0.0, 2.0)
    assert algorithm.demand() == 4
    assert float(bandit().snapshot()["epsilon"][0]) == 0.0


def test_a_posterior_that_cannot_be_computed_is_not_finite_and_goes_away_with_its_data() -> None:
    """The learner thread checks the weights, and restores the state before the update."""
    algorithm = bandit()
    before = algorithm.state()
    algorithm.observe(decisions(np.full((8, 3), 1e15), np.ones(8), np.ones(8)))
    algorithm.update()
    assert not np.isfinite(algorithm.snapshot()["factors"]).all()
    algorithm.load(before)
    assert np.isfinite(algorithm.snapshot()["factors"]).all()


def test_a_posterior_becomes_a_prior() -> None:
    """After a further update, the means are those of one bandit that has seen all decisions, to the precision of float32."""
    first, both, second = bandit(ridge=2.0), bandit(ridge=2.0), bandit(ridge=2.0)
    for algorithm in (first, both):
        algorithm.observe(some_decisions(8, 1))
        algorithm.update()
    second.load_policy(first.snapshot())
    assert np.array_equal(second.snapshot()["means"], first.snapshot()["means"])
    for algorithm in (second, both):
        algorithm.observe(some_decisions(8, 2))
        algorithm.update()
    np.testing.assert_allclose(second.snapshot()["means"], both.snapshot()["means"], rtol=1e-4, atol=1e-5)
    singular = {**first.snapshot(), "factors": np.zeros((3, 4, 4), np.float32)}
    with pytest.raises(ConfigError, match="cannot be inverted"):
        second.load_policy(singular)


@pytest.mark.parametrize("forgetting", [1.0, 0.9])
def test_a_smaller_ridge_leaves_a_posterior_that_became_a_prior_as_it_is(forgetting: float) -> None:
    first = bandit(ridge=50.0)
    first.observe(some_decisions(8, 1))
    first.update()
    second = bandit(ridge=50.0, forgetting=forgetting)
    second.load_policy(first.snapshot())
    second.change({"steps_per_update": 8, "ridge": 1.0, "forgetting": forgetting})
    third = bandit(ridge=1.0, forgetting=forgetting)
    third.load(second.state())
    given = np.linalg.inv(first.snapshot()["factors"].astype(np.float64))
    more = some_decisions(8, 2)
    for algorithm in (second, third):
        algorithm.observe(more)
        algorithm.update()
    lower = np.linalg.inv(second.snapshot()["factors"].astype(np.float64))
    kept = forgetting**8
    features = np.concatenate([more.observations, np.ones((8, 1))], axis=1)
    weighted = features * forgetting ** np.arange(7, -1, -1)[:, None]
    for action in range(3):
        rows = more.actions == action + 1
        expected = kept * given[action] @ given[action].T + (1 - kept) * np.eye(4) + weighted[rows].T @ features[rows]
        np.testing.assert_allclose(lower[action] @ lower[action].T, expected, rtol=1e-4, atol=1e-3)
    for name, tensor in second.snapshot().items():
        np.testing.assert_array_equal(tensor, third.snapshot()[name])


def test_bad_configurations_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs a Discrete action space"):
        make_algorithm("BANDIT", OBS, BoxSpace((1,)), {}, 0)
    with pytest.raises(ConfigError, match=r"BANDIT has no such parameter.*did you mean 'epsilon'"):
        bandit(epsilom=0.1)
    with pytest.raises(ConfigError, match=r"forgetting: expected a number above 0 and at most 1"):
        bandit(forgetting=0.0)
    with pytest.raises(ConfigError, match="expected"):
        bandit().load({**bandit().state(), "gram": np.zeros((1, 2, 2))})


COEFFICIENTS = np.array([[1.0, 0.0, -0.5], [-0.5, 1.0, 0.0], [0.0, -0.5, 1.0]])
"""The true linear model of the rewards in the tests below."""


def regret(strategy: str, seed: int, steps: int = 1500) -> float:
    """Return the mean regret of a bandit in the synthetic problem, over the last third of the decisions."""
    rng, sampler = np.random.default_rng(seed), RandomSource(seed)
    algorithm = bandit(strategy=strategy, scale=0.3, propensity_samples=16)
    spec, lost = algorithm.spec(), []
    for step in range(steps // 8):
        policy = build_policy(spec, PolicySnapshot(1, step, 0, *spec.flatten(algorithm.snapshot())))
        contexts = rng.normal(size=(8, 3)).astype(np.float32)
        actions, _, _ = policy.act_batch(contexts, None, sampler, True)
        means = contexts @ COEFFICIENTS.T
        got = means[np.arange(8), actions - 1]
        lost.append(means.max(axis=1) - got)
        algorithm.observe(decisions(contexts, actions, got + rng.normal(0.0, 0.3, 8)))
        algorithm.update()
    return float(np.concatenate(lost)[-steps // 3 :].mean())


@pytest.mark.parametrize("strategy", ["thompson", "ucb", "greedy"])
def test_its_regret_is_far_below_that_of_uniform_choices(strategy: str) -> None:
    rng = np.random.default_rng(0)
    means = rng.normal(size=(10_000, 3)) @ COEFFICIENTS.T
    uniform = float((means.max(axis=1) - means.mean(axis=1)).mean())
    limit = 0.15 if strategy == "greedy" else 0.05  # a tenth of the decisions stays random
    assert regret(strategy, 1) < limit * uniform


def test_it_learns_through_a_learner_from_rewards_that_come_late() -> None:
    config = LearnerConfig(bind="inproc://bandit", run_dir=None)
    with Learner(config) as learner:
        parameters = {"scale": 0.3, "steps_per_update": 16, "propensity_samples": 64}
        given = {"algorithm_name": "BANDIT", "algorithm_parameters": parameters, "overflow": "wait"}
        with open_agent(learner, "cache", observation_space=OBS, action_space=ACTIONS, **given) as agent:
            assert agent.spec.kind == "linear_bandit"
            rng = np.random.default_rng(2)
            waiting: list[tuple[Any, Any, float]] = []
            lost: list[float] = []
            for step in range(1200):
                context = rng.normal(size=3).astype(np.float32)
                mask = np.ones(3, bool)
                mask[rng.integers(3)] = False
                traj, action = agent.request_for_action(None, context, mask)
                agent.add_to_trajectory(traj, action)
                means = np.where(mask, COEFFICIENTS @ context, -np.inf)
                assert mask[action.act - 1]
                lost.append(float(means.max() - means[action.act - 1]))
                waiting.append((traj, action, float(means[action.act - 1] + rng.normal(0.0, 0.1))))
                while len(waiting) > (3 if step < 1199 else 0):
                    old, late, reward = waiting.pop(0)
                    late.update_reward(reward)
                    agent.mark_end_of_trajectory(old, late)
            agent.flush(20.0)
        client = learner.status()["clients"]["cache"]
    assert client["state"] == "running" and not client["verdicts"].get("quarantined")
    assert 0.0 < client["scalars"]["charts/mean_propensity"] <= 1.0
    assert np.mean(lost[-300:]) < 0.25 * np.mean(lost[:60])
