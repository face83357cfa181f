"""Tests of DQN: its targets against a slow twin, its exact schedule, and its state bit for bit."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit import assert_same_state, open_agent, random_segment, segment_with, until

from rl4sys_zmq.algorithms.offpolicy.dqn import C51, DQN
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.replay import TransitionBatch
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment, Space

from .policy_twin import policy_outputs

BOX = BoxSpace((3,))
SMALL: dict[str, Any] = {"hidden_sizes": [8], "batch_size": 16, "learning_starts": 20, "train_frequency": 4, "buffer_size": 200}


def make(actions: int = 3, *, space: Space = BOX, start: int = 0, seed: int = 0, **parameters: Any) -> DQN:
    return DQN(space, DiscreteSpace(actions, start), {**SMALL, **parameters}, seed)


def make_segment(steps: int, seed: int = 0, *, end: str = "cut", masked: bool = False) -> Segment:
    return random_segment(steps, seed, end, masked=masked)


def train(algorithm: DQN) -> list[Mapping[str, float]]:
    out = []
    while (metrics := algorithm.update()) is not None:
        out.append(metrics)
    return out


def test_box_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="Discrete action space"):
        DQN(BOX, BoxSpace((2,)), {}, 0)


@given(size=st.integers(1, 6), double=st.booleans(), masked=st.booleans(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_targets_match_the_slow_twin(size: int, double: bool, masked: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    algorithm = make(double_q=double, seed=seed % 1000)
    # Training makes the online network differ from its target.
    algorithm.observe(make_segment(40, seed=1))
    train(algorithm)
    masks = rng.random((size, 3)) < 0.5
    masks[:, 1] |= ~masks.any(axis=1)
    batch = TransitionBatch(
        observations=np.zeros((size, 3), np.float32),
        actions=np.zeros(size, np.int64),
        returns=rng.normal(size=size).astype(np.float32),
        discounts=rng.choice([0.0, 0.9, 0.81], size).astype(np.float32),
        successors=rng.normal(size=(size, 3)).astype(np.float32),
        masks=masks if masked else None,
    )
    state, spec = algorithm.state(), algorithm.spec()

    def q(which: str, row: int) -> list[float]:
        tensors = spec.views(np.append(state["networks"][which].numpy(), np.float32(0)))
        return [float(v) for v in policy_outputs(spec, tensors, batch.successors[row : row + 1])[0]]

    slow = []
    for row in range(size):
        online, target = q("online", row), q("target", row)
        allowed = [a for a in range(3) if not masked or masks[row, a]]
        best = max(allowed, key=lambda a: (online if double else target)[a])
        slow.append(batch.returns[row] + batch.discounts[row] * target[best])
    found = algorithm._targets(algorithm._columns(batch)).squeeze(1)
    np.testing.assert_allclose(found.numpy(), slow, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("forbidden", range(3))
def test_targets_at_the_end_of_a_truncated_episode_leave_out_forbidden_actions(
    forbidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask goes from the actor's `final_mask` over the wire into the replay, and from there into the targets."""
    kept: list[Segment] = []
    monkeypatch.setattr(DQN, "observe", lambda self, segment, *, correct=False: kept.append(segment))
    final, mask = np.array([0.5, -1.0, 2.0], np.float32), np.arange(3) != forbidden
    with Learner(LearnerConfig(bind="inproc://*", run_dir=None)) as learner:
        given = {"algorithm_parameters": SMALL, "observation_space": BOX, "action_space": DiscreteSpace(3)}
        with open_agent(learner, "dqn", algorithm_name="DQN", **given) as agent:
            traj, action = None, None
            for step in range(5):
                traj, action = agent.request_for_action(traj, np.full(3, step, np.float32), np.arange(3) != step % 3)
                action.update_reward(1.0)
                agent.add_to_trajectory(traj, action)
            assert traj is not None
            agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=final, final_mask=mask)
            agent.flush(10.0)
            until(lambda: len(kept) == 1)
    monkeypatch.undo()
    algorithm = make(n_step=3, gamma=0.5, double_q=False)
    algorithm.observe(kept[0])
    batch: Any = algorithm._replay.gather(np.arange(5))
    values = policy_outputs(algorithm.spec(), algorithm.snapshot(), final[None])[0].numpy()
    expected = [1.75 + 0.125 * values[mask].max(), 1.5 + 0.25 * values[mask].max(), 1.0 + 0.5 * values[mask].max()]
    found = algorithm._targets(algorithm._columns(batch)).squeeze(1).numpy()
    np.testing.assert_allclose(found[2:], expected, rtol=1e-5)


def test_it_learns_the_values_of_a_corridor_with_a_start_offset_and_one_hot_observations() -> None:
    # From state 4, action 6 has the reward 0 and leads to state 5. There, action 7 has the reward 1 and ends the episode. So
    # Q*(4, 6) = gamma, and Q*(5, 7) = 1.
    space = DiscreteSpace(2, start=4)
    algorithm = make(2, space=space, start=6, gamma=0.5, learning_rate=0.01, gradient_steps=10, target_net_update_frequency=20)
    walk = segment_with(
        2, observations=np.array([4, 5]), actions=np.array([6, 7]), rewards=np.array([0, 1], np.float32), episode_id=99
    )
    for _ in range(60):
        algorithm.observe(walk)
        train(algorithm)
    values = policy_outputs(algorithm.spec(), algorithm.snapshot(), np.array([4, 5]))
    assert [float(values[0, 0]), float(values[1, 1])] == pytest.approx([0.5, 1.0], abs=0.02)


@given(
    lengths=st.lists(st.integers(1, 23), min_size=1, max_size=25),
    frequency=st.integers(1, 9),
    gradient_steps=st.integers(1, 3),
    starts=st.integers(0, 60),
    eager=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_updates_follow_steps_exactly_whatever_the_timing(
    lengths: list[int], frequency: int, gradient_steps: int, starts: int, eager: bool
) -> None:
    algorithm = make(train_frequency=frequency, gradient_steps=gradient_steps, learning_starts=starts, batch_size=2)
    done = 0
    for index, length in enumerate(lengths):
        algorithm.observe(make_segment(length, index))
        if eager:
            done += len(train(algorithm))
    done += len(train(algorithm))
    assert done == sum(step > starts and step % frequency == 0 for step in range(1, sum(lengths) + 1))
    assert algorithm.state()["gradient_steps"] == done * gradient_steps


@given(
    ratio=st.floats(0.1, 20),
    lags=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    starts=st.integers(0, 40),
    every=st.integers(1, 5),
)
@settings(max_examples=25, deadline=None)
def test_samples_per_insert_hold_and_the_credit_is_less_while_training_lags(
    ratio: float, lags: list[int], starts: int, every: int
) -> None:
    algorithm = make(samples_per_insert=ratio, learning_starts=starts, batch_size=8, rollout_length=4)
    algorithm.publish_every_updates = every
    tolerance = max(8, 4 * ratio)
    for index, updates in enumerate(lags):
        before = algorithm.demand()
        wanted = min(4, before)
        if wanted:
            algorithm.observe(make_segment(wanted, index))
            assert algorithm.demand() == before - wanted
        done = [algorithm.update() for _ in range(updates)]
        assert wanted or updates == 0 or done[0] is not None, "neither side may wait for the other"
        if algorithm._pace.steps >= starts:
            assert abs(ratio * (algorithm._pace.steps - starts) - 8 * algorithm._pace.units) <= tolerance + 1e-6
    while algorithm.update() is not None:
        pass
    assert algorithm.demand() > 0


@pytest.mark.parametrize("change", [{"batch_size": 2}, {"batch_size": 32}, {"gradient_steps": 4}])
def test_the_ratio_counts_samples_that_were_drawn_before_a_change(change: dict[str, Any]) -> None:
    ratio: dict[str, Any] = {"samples_per_insert": 4, "samples_per_insert_tolerance": 128}
    parameters = {**ratio, "batch_size": 8, "gradient_steps": 1, "learning_starts": 20, "buffer_size": 2000}
    algorithm = make(**parameters)
    algorithm.observe(make_segment(420))
    drawn = 8 * len(train(algorithm))
    algorithm.change({**parameters, **change})
    before = algorithm._pace.samples
    assert before == drawn and abs(drawn - 4 * 400) <= 128
    algorithm.observe(make_segment(200, 1))
    train(algorithm)
    assert abs(algorithm._pace.samples - before - 4 * 200) <= 128


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"samples_per_insert": 8, "samples_per_insert_tolerance": 15}, "15 is too small; expected at least 256"),
        ({"samples_per_insert": 8, "traj_per_epoch": 1}, "8 contradicts traj_per_epoch 1"),
        ({"samples_per_insert": 0}, "samples_per_insert"),
    ],
)
def test_wrong_ratios_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**wrong)


def test_units_count_steps_as_stable_baselines3_does() -> None:
    """With rl-zoo's values for CartPole-v1, Stable-Baselines3 2.9 first trains after 1024 steps, then after each 256."""
    algorithm = make(learning_starts=1000, train_frequency=256, gradient_steps=2, buffer_size=2000)
    due = []
    for step in range(64, 1600, 64):
        assert algorithm.demand() == (1024 if step <= 1024 else 1280 if step <= 1280 else 1536) - step + 64
        algorithm.observe(make_segment(64, step))
        due += [step] * len(train(algorithm))
    assert due == [1024, 1280, 1536]


def test_demand_is_what_the_next_version_still_needs() -> None:
    algorithm = make(learning_starts=20, train_frequency=4)
    algorithm.publish_every_updates = 3
    assert algorithm.demand() == 32
    algorithm.observe(make_segment(27))
    assert (algorithm.demand(), len(train(algorithm)), algorithm.demand()) == (5, 1, 5)
    algorithm.observe(make_segment(50))
    assert algorithm.demand() == 0
    assert len(train(algorithm)) == (77 - 20) // 4 - 1
    assert algorithm.demand() == 20 + 15 * 4 - 77


def test_a_version_comes_about_every_256_steps() -> None:
    assert make(train_frequency=4).publish_every_updates == 64
    assert make(train_frequency=1000).publish_every_updates == 1


def test_rl4sys_keys() -> None:
    p = make(train_iters=3, target_update=50, end_e=0.1, epsilon_min=0.02, max_grad_norm=0).parameters
    assert (p.gradient_steps, p.max_grad_norm, p.epsilon_end, p.epsilon_at(10**9)) == (3, None, 0.1, 0.1)
    assert (p.target_every, p.target_steps) == (None, 50)
    assert make(target_update=50, target_network_frequency=8).parameters.target_steps == 8
    factor = make(epsilon_decay=0.995, epsilon_min=0.02, end_e=0.1).parameters
    assert factor.epsilon_at(100) == pytest.approx(0.995**100) and factor.epsilon_at(10**6) == 0.02
    assert factor.rl4sys_notes() == [
        "epsilon_decay 0.995: a factor of epsilon per step, down to 0.02",
        "end_e 0.1: ignored, because epsilon_decay ends at epsilon_min 0.02",
    ]
    assert make(epsilon_decay=0.01).parameters.epsilon_at(30) == pytest.approx(0.7), "up to 0.5 it is a difference"


def test_the_target_network_follows_by_interval_and_by_share() -> None:
    algorithm = make(learning_starts=0, target_net_update_frequency=3)
    for unit in range(1, 7):
        algorithm.observe(make_segment(4, unit))
        assert len(train(algorithm)) == 1
        state = algorithm.state()["networks"]
        assert torch.equal(state["online"], state["target"]) == (unit in {3, 6})
    soft = make(learning_starts=0, target_net_update_frequency=1, tau=0.25)
    before = soft.state()["networks"]["target"]
    soft.observe(make_segment(4))
    train(soft)
    torch.testing.assert_close(soft.state()["networks"]["target"], 0.75 * before + 0.25 * soft.state()["networks"]["online"])


@pytest.mark.parametrize(
    ("interval", "parameters", "units"),
    [
        (9, {}, {1, 3, 5, 7}),
        (4, {}, set(range(1, 9))),
        (1, {"train_iters": 3}, set(range(1, 9))),
        (16, {}, {2, 6}),
        (9, {"samples_per_insert": 2.0, "samples_per_insert_tolerance": 64.0}, {9, 11, 13, 15}),
    ],
)
@pytest.mark.parametrize("segment_steps", [4, 1, 40], ids=["a unit each", "a step each", "all at once"])
def test_the_target_network_follows_before_the_first_unit_after_a_multiple_of_the_interval(
    interval: int, parameters: dict[str, Any], units: set[int], segment_steps: int
) -> None:
    """The steps that the unit needs count, however many have arrived.

    The first unit needs 12 steps, and each other four more. The tolerance of `samples_per_insert` allows eight units at 8 steps.
    """
    dqn = make(learning_starts=8, train_frequency=4, batch_size=8, target_network_frequency=interval, **parameters)
    arrived = unit = 0
    while arrived < 40:
        dqn.observe(make_segment(segment_steps, arrived))
        arrived += segment_steps
        before = dqn.state()["networks"]
        while dqn.update() is not None:
            unit += 1
            expected = before["online" if unit in units else "target"]
            assert torch.equal(dqn.state()["networks"]["target"], expected), unit
            before = dqn.state()["networks"]
    assert unit >= 8


@pytest.mark.parametrize(
    ("algorithm", "interval", "parameters"),
    [(DQN, 1000, {}), (DQN, 200, {"target_update": 200}), (DQN, 90, {"target_network_frequency": 90}), (C51, 500, {})],
)
def test_with_units_of_episodes_the_target_network_follows_after_observed_steps(
    algorithm: type[DQN], interval: int, parameters: dict[str, Any]
) -> None:
    small = {"hidden_sizes": [8], "batch_size": 16, "buffer_size": 200, "learning_starts": 0, "train_iters": 2}
    units = {**small, "traj_per_epoch": 3, **parameters}
    dqn, other = (algorithm(BOX, DiscreteSpace(3), units, seed) for seed in (0, 1))
    steps = last = updates = 0
    for unit in range(1, 41):
        before = dqn.state()["networks"]
        for episode in range(3):
            length = 7 + unit % 5 * 10 + episode
            steps += length
            dqn.observe(make_segment(length, 3 * unit + episode, end="terminated"))
        assert len(train(dqn)) == 1
        due = steps // interval > last // interval
        last, updates = (steps, updates + 1) if due else (last, updates)
        expected = before["online" if due else "target"]
        assert torch.equal(dqn.state()["networks"]["target"], expected), (unit, due)
        if unit == 20:
            other.load(dqn.state())
    assert updates >= 3
    assert dqn.parameters.rl4sys_notes()[-1] == (
        f"target network: an update before the first unit after each multiple of {interval} steps"
    )
    for unit in range(21, 41):
        for episode in range(3):
            other.observe(make_segment(7 + unit % 5 * 10 + episode, 3 * unit + episode, end="terminated"))
        train(other)
    assert_same_state(dqn.state(), other.state())


def test_an_undone_unit_undoes_the_update_of_the_target_network() -> None:
    dqn = make(traj_per_epoch=1, target_network_frequency=30, learning_starts=0)
    for seed in range(3):
        dqn.observe(make_segment(20, seed, end="terminated"))
    before = dqn.checkpoint()
    first = dqn.update()
    after = dqn.state()
    assert before["target_steps"] == 0 and after["target_steps"] == 60
    dqn.restore(before)
    assert dqn.update() == first
    assert_same_state(dqn.state(), after)


def test_given_intervals_in_units_or_gradient_steps_are_kept_with_units_of_episodes() -> None:
    for name, value, every in (("target_update_units", 5, 15), ("target_net_update_frequency", 7, 7)):
        units: dict[str, Any] = {"traj_per_epoch": 3, "train_iters": 3, "target_network_frequency": 50, name: value}
        p = make(**units).parameters
        assert (p.target_every, p.target_steps) == (every, None)


@pytest.mark.parametrize(("size", "beta"), [(1, 0.5), (7, 1.0), (16, 0.0)])
def test_a_prioritised_step_matches_the_slow_twin(size: int, beta: float) -> None:
    algorithm: Any = make(prioritised=True, priority_beta=beta, priority_beta_final=beta, huber_delta=0.5, batch_size=size)
    algorithm.observe(make_segment(40))
    replay = algorithm._replay
    replay.update_priorities(np.arange(40), np.arange(40) / 10)
    rows = np.arange(size) * 2
    batch = algorithm._columns(replay.gather(rows))
    values = algorithm._online(batch["observations"])[0].detach()
    targets = algorithm._targets(batch)
    losses, errors = [], []
    weights = [(row / 10 + 1e-6) ** (-0.6 * beta) for row in rows.tolist()]
    for i in range(size):
        error = float(values[i, batch["actions"][i]] - targets[i])
        huber = 0.5 * error**2 if abs(error) <= 0.5 else 0.5 * (abs(error) - 0.25)
        losses.append(weights[i] / max(weights) * huber)
        errors.append(abs(error))
    assert float(algorithm._train_on(rows)["losses/td_loss"]) == pytest.approx(sum(losses) / size, rel=1e-4)
    state = replay.state()["priorities"]
    np.testing.assert_allclose(state["masses"][rows], (np.array(errors) + 1e-6) ** 0.6, rtol=1e-4)
    np.testing.assert_allclose(state["masses"][1::2], (np.arange(1, 40, 2) / 10 + 1e-6) ** 0.6)


def test_an_undone_prioritised_update_leaves_no_trace() -> None:
    one, other = (make(prioritised=True, gradient_steps=3) for _ in range(2))
    for algorithm in (one, other):
        algorithm.observe(make_segment(60))
        train(algorithm)
    kept = one.checkpoint()
    one.observe(make_segment(8, 1))
    train(one)
    one.restore(kept)
    other.observe(make_segment(8, 1))
    assert_same_state(one.state(), other.state())
    assert [dict(m) for m in train(one)] == [dict(m) for m in train(other)]
    assert_same_state(one.state(), other.state())


def test_the_weights_of_a_prioritised_replay_are_annealed() -> None:
    algorithm = make(prioritised=True, priority_beta=0.2, priority_beta_final=0.8, total_steps=120)
    algorithm.observe(make_segment(60))
    assert train(algorithm)[-1]["replay/priority_beta"] == pytest.approx(0.5)
    assert algorithm.parameters.priority_beta_at(10_000) == pytest.approx(0.8)
    with pytest.raises(ConfigError, match="no priorities"):
        algorithm.load(make().state())


def test_initial_weights_are_those_of_torch_unless_orthogonal_ones_are_chosen() -> None:
    uniform, orthogonal = make(hidden_sizes=[64]).snapshot(), make(hidden_sizes=[64], initialisation="orthogonal").snapshot()
    for layer, inputs in ((0, 3), (1, 64)):
        for part in ("weight", "bias"):
            array = uniform[f"layers.{layer}.{part}"]
            assert 0.7 * inputs**-0.5 < np.abs(array).max() <= inputs**-0.5 or array.size < 4
        assert not orthogonal[f"layers.{layer}.bias"].any()
    np.testing.assert_allclose(orthogonal["layers.1.weight"] @ orthogonal["layers.1.weight"].T, np.eye(3), atol=1e-5)


def test_metrics_and_schedules() -> None:
    algorithm = make(learning_rate=1e-3, learning_rate_final=1e-4, total_steps=100, epsilon_decay=0.01, epsilon_min=0.3)
    algorithm.observe(make_segment(60))
    metrics = train(algorithm)[-1]
    assert set(metrics) == {"losses/td_loss", "losses/q_values", "charts/epsilon", "charts/learning_rate", "replay/size"}
    assert metrics["charts/epsilon"] == pytest.approx(0.4)
    assert metrics["charts/learning_rate"] == pytest.approx(1e-3 - 0.6 * 9e-4)
    assert metrics["replay/size"] == 60.0
    parameters = algorithm.parameters
    assert [parameters.epsilon_at(s) for s in (0, 1000)] == [1.0, 0.3]
    assert [parameters.learning_rate_at(s) for s in (0, 100, 1000)] == pytest.approx([1e-3, 1e-4, 1e-4])


def test_parameters_that_are_read_elsewhere_pass_and_the_others_do_not() -> None:
    make(input_size=3, act_dim=3, seed=1, continuous=False, act_limit=1.0, max_policy_lag=4, on_lag="drop", pacing_lag=1)
    with pytest.raises(ConfigError, match="did you mean 'gamma'"):
        make(gama=0.9)


def test_tau_may_be_said_as_polyak_but_not_otherwise() -> None:
    assert make(polyak=0.995).parameters.target_share == pytest.approx(0.005)
    with pytest.raises(ConfigError, match="contradicts tau"):
        make(polyak=0.995, tau=0.5)
    with pytest.raises(ConfigError, match="epsilon_min"):
        make(epsilon=0.1, epsilon_min=0.2)
