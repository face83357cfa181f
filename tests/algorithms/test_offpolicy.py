"""Tests of the common parts of DQN, SAC, TD3 and DDPG: schedule, state, changes, devices, ranks, and removal of bad data."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.rl4sys_blocks import learner_block

torch = pytest.importorskip("torch")

from rl4sys_zmq.algorithms import (  # noqa: E402
    ALGORITHMS,
    make_algorithm,
)
from rl4sys_zmq.errors import ConfigError  # noqa: E402
from rl4sys_zmq.learner.run.state_tree import pack_state, unpack_state  # noqa: E402
from rl4sys_zmq.replay.pace import UnitSchedule  # noqa: E402
from rl4sys_zmq.testing import check_algorithm  # noqa: E402
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, Segment  # noqa: E402
from rl4sys_zmq.values.spaces import FlatSpace, MultiDiscreteSpace  # noqa: E402

from .test_resume import check_resume, segments, updates  # noqa: E402

OBS = BoxSpace((3,))
BOX, FOUR = BoxSpace((2,), low=-1.0, high=1.0), DiscreteSpace(4, 1)
SMALL: dict[str, Any] = {
    "hidden_sizes": [8], "batch_size": 16, "learning_starts": 20, "train_frequency": 8, "buffer_size": 150, "learning_rate": 1e-2,
}  # fmt: skip
CASES: dict[str, tuple[str, FlatSpace]] = {
    "SAC": ("SAC", BOX),
    "discrete SAC": ("SAC", FOUR),
    "TD3": ("TD3", BOX),
    "DDPG": ("DDPG", BOX),
    "DQN": ("DQN", FOUR),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "n_step": {"n_step": 3, "max_grad_norm": 0.5, "buffer_size": 5000},
    "samples_per_insert": {"samples_per_insert": 3.0, "critic_learning_rate": 3e-3},
    "episodes": {"traj_per_epoch": 2, "gradient_steps": 4, "polyak": 0.9},
}


def make(case: str, seed: int = 0, **parameters: Any) -> Any:
    name, actions = CASES[case]
    return make_algorithm(name, OBS, actions, {**SMALL, **parameters}, seed)


def source_for(case: str, seed: int = 11) -> Iterator[Segment]:
    return segments(CASES[case][1], seed)


def weights(algorithm: Any) -> Any:
    return np.concatenate([array.reshape(-1) for array in algorithm.numbers_to_check()])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("observations", [BoxSpace((4,)), DiscreteSpace(5, -1), BoxSpace((2, 3), "|u1", 0, 255)])
def test_they_keep_the_contract(case: str, observations: ObservationSpace) -> None:
    name, actions = CASES[case]
    parameters = {**SMALL, "learning_starts": 8, "batch_size": 8, "rollout_length": 8}
    check_algorithm(ALGORITHMS.get(name), observation_space=observations, action_space=actions, parameters=parameters)


@pytest.mark.parametrize("name", ["SAC", "TD3", "DDPG"])
@pytest.mark.parametrize("space", [BoxSpace((2,)), BoxSpace((2,), low=(-1.0, -np.inf), high=1.0)], ids=["open", "half open"])
def test_unbounded_actions_are_refused(name: str, space: FlatSpace) -> None:
    with pytest.raises(ConfigError, match="finite bounds") as caught:
        make_algorithm(name, OBS, space, {}, 0)
    assert caught.value.key == "action_space"


@pytest.mark.parametrize("name", ["SAC", "TD3"])
def test_an_action_can_be_a_single_number(name: str) -> None:
    space = BoxSpace((), low=0.0, high=4.0)
    parameters = {**SMALL, "learning_starts": 8, "batch_size": 8, "rollout_length": 8}
    check_algorithm(ALGORITHMS.get(name), action_space=space, parameters=parameters)


@pytest.mark.parametrize("name", ["TD3", "DDPG"])
def test_actions_that_are_no_box_are_refused_by_the_deterministic_ones(name: str) -> None:
    for space, others in ((FOUR, "SAC or PPO"), (MultiDiscreteSpace((2, 3)), "PPO")):
        with pytest.raises(ConfigError, match=f"{name} needs a Box action space .*; use {others}$"):
            make_algorithm(name, OBS, space, {}, 0)


def test_units_can_be_due_by_ended_episodes() -> None:
    algorithm = make("TD3", traj_per_epoch=2, learning_starts=0)
    found = []
    for segment, end in zip(source_for("TD3"), [False, True, False, True, True], strict=False):
        rows = len(segment.rewards) + 1
        segment = replace(segment, observations=np.zeros((rows, 3), np.float32), terminated=False, truncated=end)
        assert algorithm.demand() > 0
        algorithm.observe(segment)
        found.append(len(list(iter(algorithm.update, None))))
    assert found == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CASES)
def test_they_go_on_to_the_last_bit(case: str, variant: str, masked: bool, tmp_path: Path) -> None:
    name, actions = CASES[case]
    parameters = {**SMALL, **VARIANTS[variant]}
    if name == "TD3":
        parameters["policy_delay"] = 1  # the weights of the policy are compared after each update
    if name == "DQN":
        parameters.pop("critic_learning_rate", None)
    check_resume(name, actions, parameters, 11, tmp_path, masked)


def test_a_delayed_policy_goes_on_with_its_turn() -> None:
    one, two = make("TD3", policy_delay=3), make("TD3", policy_delay=3, seed=9)
    source = source_for("TD3")
    updates(one, source, 5)
    two.load(unpack_state(*pack_state(one.state())))
    further = [next(source) for _ in range(6)]
    assert updates(one, iter(further), 7) == updates(two, iter(further), 7)
    assert weights(one).tobytes() == weights(two).tobytes()


@pytest.mark.parametrize("case", CASES)
def test_a_state_of_other_networks_is_refused(case: str) -> None:
    with pytest.raises(ConfigError, match=r"the state of \w+ has \d+ parameters; the network has \d+"):
        make(case).load(make(case, hidden_sizes=[9]).state())


@pytest.mark.parametrize("old", [{}, {"samples_per_insert": 3.0}, {"traj_per_epoch": 2}], ids=str)
@pytest.mark.parametrize(
    "new",
    [
        {"train_frequency": 1}, {"train_frequency": 64}, {"learning_starts": 0}, {"learning_starts": 200}, {"traj_per_epoch": 1},
        {"traj_per_epoch": 9}, {"samples_per_insert": 16.0}, {"samples_per_insert": 0.5},
    ],
    ids=str,
)  # fmt: skip
def test_a_restart_with_another_pace_owes_nothing_and_trains_on_at_once(old: dict[str, Any], new: dict[str, Any]) -> None:
    if "learning_starts" in new:
        new = {**old, **new}
    before, source = make("DQN", **old), source_for("DQN")
    updates(before, source, 30)
    after = make("DQN", **new)
    after.load(unpack_state(*pack_state(before.state())))
    assert after.update() is None
    p, first = after.parameters, after._pace.steps
    fresh = UnitSchedule(p.pace_rule, steps=first, episodes=after._pace.episodes)
    fresh.settle()
    for _ in range(12):
        segment = next(source)
        after.observe(segment)
        fresh.observe(segment)
        while fresh.due:
            fresh.count_unit()
            assert after.update() is not None
        assert after.update() is None
    if p.samples_per_insert is not None:
        due = p.samples_per_insert * 192 / 16
    else:
        due = (after._pace.episodes - before._pace.episodes) / p.traj_per_epoch if p.traj_per_epoch else 192 / p.train_frequency
    done = after.checkpoint()["gradient_steps"] - before.checkpoint()["gradient_steps"]
    assert done == pytest.approx(due, abs=1) or first < p.learning_starts


def test_a_restart_with_the_same_pace_owes_what_it_owed() -> None:
    before, after = make("DQN"), make("DQN", learning_rate=0.5, batch_size=8)
    for segment, _ in zip(source_for("DQN"), range(9), strict=False):
        before.observe(segment)
    after.load(before.state())
    assert len(list(iter(after.update, None))) == len(list(iter(before.update, None))) == 9 * 16 // 8 - 20 // 8


@pytest.mark.parametrize("change", [{"gamma": 0.5}, {"n_step": 3}], ids=str)
def test_a_replay_with_returns_of_other_parameters_is_refused(change: dict[str, Any]) -> None:
    before = make("SAC")
    make("SAC", **change).load(before.state())  # the replay is empty
    before.observe(next(source_for("SAC")))
    ((name, value),) = change.items()
    was = getattr(before.parameters, name)
    refusal = rf"{name}: {value:g}, but .* computed with {was:g}; set {name} to {was:g} again, or `forget` the client"
    with pytest.raises(ConfigError, match=refusal):
        make("SAC", **change).load(before.state())


def test_a_change_of_a_unit_of_training_changes_the_units_of_a_version_as_a_restart_does() -> None:
    given = {**SMALL, "samples_per_insert": 4.0}
    changed, restarted = make("SAC", **given), make("SAC", **{**given, "gradient_steps": 4})
    assert changed.publish_every_updates == 16
    changed.change({**given, "gradient_steps": 4})
    assert changed.publish_every_updates == restarted.publish_every_updates == 4
    assert changed.demand() == restarted.demand()


@pytest.mark.parametrize("case", CASES)
def test_every_weight_that_is_trained_moves(case: str) -> None:
    often = {"TD3": {"policy_delay": 1}, "DQN": {"target_net_update_frequency": 1}}
    algorithm = make(case, **often.get(case, {}))
    before = {name: network.flat.clone() for name, network in algorithm._networks.items()}
    updates(algorithm, source_for(case), 3)
    for name, network in algorithm._networks.items():
        moved = (network.flat != before[name]).float().mean()
        assert moved > 0.8, f"{name}: {moved:.2f} of the weights moved"


@pytest.mark.parametrize("case", CASES)
def test_segments_that_make_an_update_fail_are_found_and_removed(case: str) -> None:
    loss = "losses/td_loss" if case == "DQN" else "losses/qf_loss"
    algorithm, source = make(case, batch_size=64, buffer_size=400, n_step=1), source_for(case)
    for number in range(12):
        segment = next(source)
        if number in (4, 7):
            segment = replace(segment, rewards=np.full(segment.steps, 3e38, np.float32))
        algorithm.observe(segment)
    kept = algorithm.checkpoint()
    metrics = algorithm.update()
    assert not all(np.isfinite(array).all() for array in algorithm.numbers_to_check()) or not np.isfinite(metrics[loss])
    algorithm.restore(kept)
    gone: set[int] = set()
    for _ in range(4):
        gone |= set(algorithm.discard())
        if gone == {4, 7}:
            break
        algorithm.restore({**kept, "generator": torch.Generator().manual_seed(len(gone) + 5).get_state()})
    assert gone == {4, 7}
    while (metrics := algorithm.update()) is not None:
        assert np.isfinite(metrics[loss])
    assert np.isfinite(weights(algorithm)).all()


def test_an_empty_replay_asks_for_new_data() -> None:
    algorithm = make("SAC")
    segment = next(source_for("SAC"))
    for _ in range(3):
        algorithm.observe(replace(segment, rewards=np.full(segment.steps, 3e38, np.float32)))
    assert algorithm.discard() == [0, 1, 2]
    assert algorithm.update() is None and algorithm.demand() == algorithm.rollout_length


@pytest.mark.parametrize(("name", "actions"), [("SAC", DiscreteSpace(4)), ("TD3", BOX), ("DDPG", BOX)])
def test_rl4sys_blocks_are_read(name: str, actions: FlatSpace) -> None:
    p: Any = make_algorithm(name, OBS, actions, learner_block(name), 0).parameters  # type: ignore[attr-defined]
    if name == "SAC":
        assert (p.learn_temperature, p.initial_temperature(), p.target_share) == (False, 0.2, pytest.approx(0.005))
        assert (p.traj_per_epoch, p.gradient_steps, p.max_grad_norm, p.learning_rate) == (128, 50, 1.0, 3e-4)
        assert p.rl4sys_notes() == ["traj_per_epoch 128: a unit of training after so many ended episodes"]
    elif name == "TD3":
        assert (p.target_noise, p.target_noise_clip, p.exploration_noise, p.policy_delay) == (0.2, 0.5, 0.1, 2)
        assert p.twin_critics and p.learning_starts == 25000
    else:
        assert (p.exploration_noise, p.gradient_steps, p.target_share) == (1e-3, 10, 0.01)
        assert (p.twin_critics, p.policy_delay, p.target_noise) == (False, 1, 0.0)
