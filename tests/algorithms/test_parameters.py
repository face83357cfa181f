"""Tests of parameters: each name of four projects has one meaning, and an error names the wrong parameter."""

from typing import Any

import pytest

from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import BatchCompletionRule, entropy_weight
from rl4sys_zmq.algorithms.onpolicy.ppo_parameters import PPOParameters
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import parameter_table, read_parameters
from rl4sys_zmq.learner.registry.algorithms import ALGORITHMS, make_algorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

RL4SYS = {
    "input_size": 8, "act_dim": 4, "seed": 0, "buf_size": 1000000, "batch_size": 64, "traj_per_epoch": 128, "clip_ratio": 0.2,
    "gamma": 0.99, "lam": 0.95, "pi_lr": 3e-4, "vf_lr": 1e-3, "train_pi_iters": 10, "train_v_iters": 10, "target_kl": 0.015,
    "max_grad_norm": 0.5, "norm_adv": True, "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5,
}  # fmt: skip
CLEANRL = {
    "total_timesteps": 500000, "learning_rate": 2.5e-4, "num_steps": 128, "anneal_lr": True, "gamma": 0.99, "gae_lambda": 0.95,
    "num_minibatches": 4, "update_epochs": 4, "norm_adv": True, "clip_coef": 0.2, "clip_vloss": True, "ent_coef": 0.01,
    "vf_coef": 0.5, "max_grad_norm": 0.5, "target_kl": None,
}  # fmt: skip
SB3 = {
    "learning_rate": 3e-4, "n_steps": 2048, "batch_size": 64, "n_epochs": 10, "gamma": 0.99, "gae_lambda": 0.95,
    "clip_range": 0.2, "clip_range_vf": None, "normalize_advantage": True, "ent_coef": 0.0, "vf_coef": 0.5,
    "max_grad_norm": 0.5, "target_kl": None,
}  # fmt: skip


def read_ppo_parameters(given: dict[str, Any]) -> PPOParameters:
    return read_parameters(PPOParameters, given, algorithm="PPO")


def test_rl4sys_names() -> None:
    p = read_ppo_parameters(RL4SYS)
    assert (p.learning_rate, p.value_learning_rate, p.clip_coef, p.gae_lambda) == (3e-4, 1e-3, 0.2, 0.95)
    assert (p.batch_size, p.traj_per_epoch, p.target_kl) == (64, 128, 0.015)
    assert p.in_turn and p.iterations() == (10, 10) and p.minibatches(512) == 1 and not p.clip_values()
    assert p.batch() == BatchCompletionRule(steps=129, ends_trajectory=True)
    assert p.rl4sys_notes() == [
        "traj_per_epoch 128: an update at the end of the trajectory that holds step 129",
        "train_pi_iters 10, train_v_iters 10: passes over the whole batch, the policy's first, each network with its own Adam",
        "batch_size 64: ignored, as by RL4Sys's PPO; minibatch_size is ours",
        "ent_coef and clip_vloss: ignored, as by RL4Sys's PPO",
    ]
    ours = read_ppo_parameters({**RL4SYS, "minibatch_size": 32, "episodes_per_update": 4})
    assert ours.batch() == BatchCompletionRule(trajectories=4) and ours.minibatches(512) == 16


def test_cleanrl_names() -> None:
    p = read_ppo_parameters(CLEANRL)
    assert (p.total_steps, p.rollout_length, p.num_minibatches, p.anneal_lr) == (500000, 128, 4, True)


def test_stable_baselines_names() -> None:
    p = read_ppo_parameters(SB3)
    assert (p.rollout_length, p.minibatches(2048), p.update_epochs, p.clip_coef) == (2048, 32, 10, 0.2)
    assert not p.clip_values() and read_ppo_parameters({"clip_range_vf": 0.3}).clip_values()


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ({"learning_rat": 1e-3}, "learning_rat", "did you mean 'learning_rate'"),
        ({"gamma": 1.5}, "gamma", "from 0 to 1"),
        ({"gamma": None}, "gamma", "expected"),
        ({"update_epochs": 2.5}, "update_epochs", "integer"),
        ({"clip_vloss": 1}, "clip_vloss", "true or false"),
        ({"activation": "sine"}, "activation", "tanh"),
        ({"hidden_sizes": [64, 0]}, "hidden_sizes", "integers from 1 to 1048576"),
        ({"hidden_sizes": [8] * 65}, "hidden_sizes", "at most 64 integers"),
        ({"steps_per_update": 2**62}, "steps_per_update", "an integer from 1 to 16777216, or null, not 4611686018427387904"),
        ({"learning_rate": float("nan")}, "learning_rate", "a number from 0 to 10, not nan"),
        ({"reward_scale": float("-inf")}, "reward_scale", "a number from -1000000000 to 1000000000"),
        ({"pi_lr": 1e-3, "learning_rate": 2e-3}, "learning_rate", "contradicts"),
        ({"steps_per_epoch": 100, "episodes_per_update": 3}, "episodes_per_update", "not both"),
        ({"anneal_lr": True}, "anneal_lr", "total_steps"),
        ({"anneal_clip": True}, "anneal_clip", "total_steps"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], key: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read_ppo_parameters(given)
    assert caught.value.key == f"algorithm_parameters.{key}"


def test_what_is_read_elsewhere_is_left_alone() -> None:
    read_ppo_parameters({"input_size": 8, "act_dim": 4, "seed": 1, "continuous": False, "act_limit": 1.0, "max_policy_lag": 2})
    read_ppo_parameters(
        {"on_lag": "drop", "pacing_lag": 1, "publish_every_updates": 1, "observation_space": {}, "action_space": {}}
    )


def test_defaults_that_follow_from_others() -> None:
    p = read_ppo_parameters({})
    assert p.batch().steps == 2048 and p.segment_length() == 64
    assert read_ppo_parameters({"steps_per_epoch": 100}).segment_length() == 16
    assert read_ppo_parameters({"episodes_per_update": 3}).segment_length() == 128
    assert read_ppo_parameters({"traj_per_epoch": 512}).segment_length() == 128
    assert entropy_weight(p.ent_coef, DiscreteSpace(3)) == 0.01 and entropy_weight(p.ent_coef, BoxSpace((2,))) == 0.0
    assert p.squash_for(BoxSpace((2,), low=-1.0, high=1.0)) == "tanh" and p.squash_for(BoxSpace((2,))) == "clip"


@pytest.mark.parametrize("name", [name for name in ALGORITHMS.names() if ALGORITHMS.get(name).parameters])
def test_every_parameter_says_what_it_is_and_no_name_is_taken_twice(name: str) -> None:
    entry = ALGORITHMS.get(name)
    assert entry.parameters is not None
    rows = parameter_table(entry.parameters)
    assert all(doc for *_, doc in rows)
    names = [name for key, _, synonyms, _ in rows for name in (key, *synonyms)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", [name for name in ALGORITHMS.names() if ALGORITHMS.get(name).presets])
def test_presets_are_valid(name: str) -> None:
    for env, preset in ALGORITHMS.get(name).presets.items():
        actions = BoxSpace((1,), low=-2.0, high=2.0) if env == "Pendulum-v1" else DiscreteSpace(4)
        made = make_algorithm(name, BoxSpace((8,)), actions, preset.parameters, 0)
        assert name not in ("DQN", "C51") or preset.parameters["train_frequency"] == 256 / made.publish_every_updates


@pytest.mark.parametrize(
    ("name", "key"),
    [("PPO", "adam_eps"), ("A2C", "rms_prop_eps"), ("IMPALA", "adam_eps"), ("DQN", "adam_epsilon"), ("SAC", "adam_epsilon")],
)
def test_an_optimizer_without_an_epsilon_is_refused(name: str, key: str) -> None:
    """A weight whose gradients were all 0 would become 0 / 0."""
    with pytest.raises(ConfigError, match=f"{key}: expected a number from 1e-20 to 1, not 0.0"):
        ALGORITHMS.get(name).read({key: 0.0})


def test_the_range_of_sacs_standard_deviation_is_checked_without_spaces() -> None:
    with pytest.raises(ConfigError, match=r"log_std_min: 1 is above log_std_max -1") as caught:
        ALGORITHMS.get("SAC").read({"log_std_min": 1.0, "log_std_max": -1.0})
    assert caught.value.key == "algorithm_parameters.log_std_min"
