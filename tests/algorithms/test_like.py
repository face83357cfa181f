"""Tests of the parameter ``like``: an update with a library's values is that library's update, name by name."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from kit import segment_with
from torch import Tensor

from rl4sys_zmq.algorithms import ALGORITHMS, make_algorithm
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.gateway.parameters import effective_parameters, merged, read_change
from rl4sys_zmq.learner.registry.like import ambiguous_names, our_name
from rl4sys_zmq.values import Segment, observation_space_from, space_from

sb3 = pytest.importorskip("stable_baselines3", reason="the extra sb3 is not installed")

LIMIT = 2e-5
"""The largest difference of a weight after one update."""
WITH_TABLES = [name for name in ALGORITHMS.names() if getattr(ALGORITHMS.get(name).parameters, "libraries", {})]
TABLES = [(name, like) for name in WITH_TABLES for like in ALGORITHMS.get(name).parameters.libraries]  # type: ignore[union-attr]


class Noise(gymnasium.Env[Any, Any]):
    """An environment of random observations and rewards, some of whose episodes end and some of which are cut."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))

    def __init__(self, kind: str, seed: int = 5) -> None:
        discrete = gymnasium.spaces.Discrete(3)
        self.action_space = discrete if kind == "discrete" else gymnasium.spaces.Box(-0.5, np.float32(1.0), (2,))
        self.rng = np.random.default_rng(seed)
        self.taken: list[tuple[Any, float, bool, bool, Any]] = []
        self.acted: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seen = self.rng.uniform(-1, 1, 3).astype(np.float32)
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before, self.seen = self.seen, self.rng.uniform(-1, 1, 3).astype(np.float32)
        reward, over = float(self.rng.normal()), self.rng.random(2) < 0.08
        terminated, truncated = bool(over[0]), bool(over[1] and not over[0])
        self.taken.append((before, reward, terminated, truncated, self.seen))
        self.acted.append(action)
        return self.seen, reward, terminated, truncated, {}


def flat(*parts: Any) -> Tensor:
    tensors = [x for part in parts for x in ([part] if isinstance(part, Tensor) else part.parameters())]
    return torch.cat([tensor.detach().ravel() for tensor in tensors]).clone()


def noting(function: Callable[..., Any], results: list[Any]) -> Callable[..., Any]:
    """Return a function that appends the results of another one to a list, and returns them."""

    def noted(*arguments: Any, **named: Any) -> Any:
        results.append(function(*arguments, **named))
        return results[-1]

    return noted


def spaces(env: Any) -> tuple[Any, Any]:
    return observation_space_from(env.observation_space), space_from(env.action_space)


class Updated(Exception):
    """Raised after the first update."""


def policy_weights(policy: Any) -> Tensor:
    """Return the weights of both networks in our order: our value network has the policy's outputs, and one is read."""
    log_std = [policy.log_std] if hasattr(policy, "log_std") else []
    last, rows = policy.value_net, policy.action_net.out_features - 1
    padded = [torch.nn.functional.pad(last.weight, (0, 0, 0, rows)), torch.nn.functional.pad(last.bias, (0, rows))]
    values = [policy.mlp_extractor.value_net, *padded, *(torch.zeros_like(one) for one in log_std)]
    return flat(policy.mlp_extractor.policy_net, policy.action_net, *log_std, *values)


def segments_of(env: Noise, actions: Any, log_probs: Any, place: int = 0) -> list[Segment]:
    found, first = [], 0
    for row, (_, _, terminated, truncated, after) in enumerate(env.taken):
        if not (terminated or truncated or row == len(env.taken) - 1):
            continue
        rows = env.taken[first : row + 1]
        observations = [step[0] for step in rows] + ([] if terminated else [after])
        found.append(
            segment_with(
                len(rows),
                observations=np.stack(observations),
                actions=actions[first : row + 1],
                rewards=np.array([step[1] for step in rows], np.float32),
                log_probs=log_probs[first : row + 1],
                episode_id=1000 * place + row,
                terminated=terminated,
                truncated=truncated,
            )
        )
        first = row + 1
    return found


def compare_on_policy(name: str, kind: str, monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], **own: Any) -> float:
    """Return the largest difference of a weight after one update of both libraries with the same values."""
    envs, orders, total = [Noise(kind, 5 + place) for place in range(values.get("n_envs", 1))], list[Any](), 400
    monkeypatch.setattr(np.random, "permutation", noting(np.random.permutation, orders))
    result: list[float] = []

    class Twin(getattr(sb3, name)):  # type: ignore[misc]
        """Their algorithm, which trains ours beside it once."""

        def train(self) -> None:
            buffer = self.rollout_buffer
            discrete = kind == "discrete"
            actions = buffer.actions[:, :, 0].astype(np.int64) if discrete else buffer.actions.astype(np.float32)
            if not discrete:  # recorded unclipped, and clipped for the environment
                acted = np.stack([env.acted for env in envs], 1)
                assert np.array_equal(np.clip(actions, -0.5, 1.0), acted) and not np.array_equal(actions, acted)
            before = policy_weights(self.policy)
            ours: Any = make_algorithm(name, *spaces(envs[0]), {"like": "sb3", "total_timesteps": total, **values, **own}, 0)
            ours._network.flat.copy_(before)
            for place, env in enumerate(envs):
                for segment in segments_of(env, actions[:, place], buffer.log_probs[:, place].copy(), place):
                    ours.observe(segment)
            super().train()
            drawn = iter(orders)
            monkeypatch.setattr(torch, "randperm", lambda *_, **__: torch.from_numpy(next(drawn, orders[0])))
            assert ours.update() is not None, "the batch has another size"
            after = policy_weights(self.policy)
            assert float((after - before).abs().max()) > 1e-4
            result.append(float((ours._network.flat - after).abs().max()))
            raise Updated

    theirs = {key: value for key, value in values.items() if key not in ("n_envs", "net_arch", "activation_fn", "log_std_init")}
    for key in ("learning_rate", "clip_range"):
        if isinstance(theirs.get(key), str):
            theirs[key] = (lambda start: lambda left: start * left)(float(theirs[key][4:]))
    network: dict[str, Any] = {key: values[key] for key in ("net_arch", "log_std_init") if key in values}
    if "activation_fn" in values:
        network["activation_fn"] = {"nn.ReLU": torch.nn.ReLU}[values["activation_fn"]]
    vector = sb3.common.vec_env.DummyVecEnv([lambda env=env: env for env in envs])
    model = Twin("MlpPolicy", vector, seed=3, device="cpu", policy_kwargs=network, **theirs)
    with pytest.raises(Updated):
        model.learn(total)
    return result[0]


SMALL_PPO: dict[str, Any] = {"n_steps": 64, "batch_size": 16, "n_epochs": 4, "learning_rate": 3e-3}
PPO_VALUES: list[dict[str, Any]] = [
    {}, {"learning_rate": 1e-3}, {"learning_rate": "lin_0.003"}, {"n_steps": 48}, {"n_steps": 32, "n_envs": 3},
    {"batch_size": 32}, {"n_epochs": 2}, {"gamma": 0.9}, {"gae_lambda": 0.8}, {"clip_range": 0.02}, {"clip_range": "lin_0.05"},
    {"normalize_advantage": False}, {"ent_coef": 0.05}, {"vf_coef": 0.25}, {"max_grad_norm": 0.1}, {"target_kl": 1e-3},
    {"target_kl": 1e-3, "clip_range_vf": 0.02, "vf_coef": 1.0}, {"net_arch": [8]}, {"net_arch": [8, 4]},
    {"activation_fn": "nn.ReLU"}, {"clip_range_vf": 0.01},
]  # fmt: skip


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize("values", PPO_VALUES, ids=str)
def test_an_update_of_ppo_is_that_of_stable_baselines3(
    kind: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare_on_policy("PPO", kind, monkeypatch, {**SMALL_PPO, **values}) <= LIMIT


def test_an_update_of_ppo_with_a_small_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare_on_policy("PPO", "box", monkeypatch, {**SMALL_PPO, "log_std_init": -0.5}) <= LIMIT


@pytest.mark.parametrize(
    ("values", "own"),
    [
        ({}, {"norm_adv_over": "batch"}),
        ({"clip_range_vf": 0.01}, {"value_clip_loss": "larger"}),
        ({"target_kl": 1e-3}, {"target_kl_over": "pass"}),
        ({"learning_rate": "lin_0.003"}, {"anneal_ahead": False}),
    ],
    ids=str,
)
def test_each_rule_of_the_library_matters(values: dict[str, Any], own: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert compare_on_policy("PPO", "box", monkeypatch, {**SMALL_PPO, **values}, **own) > 10 * LIMIT


A2C_VALUES: list[dict[str, Any]] = [
    {}, {"learning_rate": 2e-3}, {"learning_rate": "lin_0.003"}, {"n_steps": 24}, {"n_envs": 3}, {"gamma": 0.9},
    {"gae_lambda": 0.9}, {"ent_coef": 0.05}, {"vf_coef": 0.25}, {"max_grad_norm": 0.1}, {"rms_prop_eps": 1e-3},
    {"use_rms_prop": False}, {"use_rms_prop": False, "rms_prop_eps": 1e-3}, {"normalize_advantage": True}, {"net_arch": [8]},
    {"activation_fn": "nn.ReLU"},
]  # fmt: skip


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize("values", A2C_VALUES, ids=str)
def test_an_update_of_a2c_is_that_of_stable_baselines3(
    kind: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare_on_policy("A2C", kind, monkeypatch, {"n_steps": 40, **values}) <= LIMIT


def actor_weights(model: Any) -> Tensor:
    if hasattr(model, "q_net"):
        return flat(model.q_net)
    if not hasattr(model.actor, "log_std"):
        return flat(model.actor)
    mean, log_std = model.actor.mu, model.actor.log_std
    return flat(model.actor.latent_pi, torch.cat([mean.weight, log_std.weight]), torch.cat([mean.bias, log_std.bias]))


def compare_off_policy(name: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the largest difference of a weight after one unit of training of both libraries with the same values."""
    env = Noise("discrete" if name == "DQN" else "box")
    theirs = {key: value for key, value in values.items() if key not in ("net_arch", "activation_fn", "noise_std")}
    network = {"net_arch": values["net_arch"]} if "net_arch" in values else {}
    network |= {"activation_fn": torch.nn.Tanh} if "activation_fn" in values else {}
    model = getattr(sb3, name)("MlpPolicy", env, seed=3, device="cpu", policy_kwargs=network, **theirs)
    rng = np.random.default_rng(0)
    for _ in range(300):
        now, then = rng.uniform(-1, 1, (2, 1, 3)).astype(np.float32)
        action = rng.integers(0, 3, (1, 1)) if name == "DQN" else rng.uniform(-1, 1, (1, 2)).astype(np.float32)
        model.replay_buffer.add(now, then, action, rng.normal(size=1), rng.random(1) < 0.1, [{}])
    ours: Any = make_algorithm(name, *spaces(env), {"like": "sb3", **values}, 0)
    p = ours.parameters
    pairs = [("_online", model.q_net), ("_target", model.q_net_target)] if name == "DQN" else [("_critics", model.critic)]
    if name in ("TD3", "DDPG"):
        pairs += [("_target_critics", model.critic_target), ("_policy", model.actor), ("_target_policy", model.actor_target)]
    elif name == "SAC":
        pairs += [("_targets", model.critic_target)]
        ours._policy.flat[:-1].copy_(actor_weights(model))
    for attribute, module in pairs:
        getattr(ours, attribute).flat.copy_(flat(module))
    batches, noises, normal = list[Any](), list[Tensor](), torch.distributions.normal
    monkeypatch.setattr(model.replay_buffer, "sample", noting(model.replay_buffer.sample, batches))
    monkeypatch.setattr(normal, "_standard_normal", noting(getattr(normal, "_standard_normal"), noises))
    model._logger = sb3.common.logger.configure(None, [])
    before = actor_weights(model)
    torch.manual_seed(11)
    model.train(gradient_steps=model.gradient_steps, batch_size=model.batch_size)
    assert (p.gradient_steps, p.batch_size) == (len(batches), len(batches[0].rewards))
    torch.manual_seed(11)
    for step, batch in enumerate(batches):
        discounts = p.gamma**p.n_step if batch.discounts is None else batch.discounts.squeeze(1)
        columns = {
            "observations": batch.observations, "successors": batch.next_observations, "returns": batch.rewards.squeeze(1),
            "discounts": discounts * (1 - batch.dones).squeeze(1),
            "actions": batch.actions.squeeze(1).long() if name == "DQN" else batch.actions,
        }  # fmt: skip
        if name == "SAC":
            columns |= {"noise": noises[2 * step], "successor_noise": noises[2 * step + 1]}
        elif name != "DQN":
            drawn = torch.empty_like(batch.actions).normal_()
            columns |= {"noise": drawn} if p.target_noise else {}
        ours._step(columns, p.learning_rate)
    if name == "DQN":  # their target network follows between units
        ours._follow_target()
        monkeypatch.setattr(model, "_n_calls", model.target_update_interval - 1)
        model._on_step()
    assert float((actor_weights(model) - before).abs().max()) > 1e-5
    found = [(getattr(ours, attribute).flat, flat(module)) for attribute, module in pairs]
    if name == "SAC":
        fixed = model.ent_coef_optimizer is None
        temperature = model.ent_coef_tensor.log() if fixed else model.log_ent_coef
        found += [(ours._policy.flat, flat(actor_weights(model), temperature))]
    return max(float((mine - their).abs().max()) for mine, their in found)


SMALL_REPLAY: dict[str, Any] = {"net_arch": [16, 16], "batch_size": 32, "gradient_steps": 4, "buffer_size": 1000}
REPLAY_VALUES: list[dict[str, Any]] = [
    {}, {"learning_rate": 2e-3}, {"batch_size": 16}, {"tau": 0.3}, {"gamma": 0.9}, {"gradient_steps": 2}, {"n_steps": 3},
    {"net_arch": [8]}, {"activation_fn": "tanh"}, {"train_freq": 2}, {"learning_starts": 50}, {"buffer_size": 500},
]  # fmt: skip
OTHER_VALUES: dict[str, list[dict[str, Any]]] = {
    "DQN": [
        {"max_grad_norm": 0.01}, {"target_update_interval": 7}, {"exploration_fraction": 0.3}, {"exploration_initial_eps": 0.9},
        {"exploration_final_eps": 0.1},
    ],
    "SAC": [{"ent_coef": 0.2}, {"ent_coef": "auto_0.1"}, {"target_entropy": -1.0}],
    "TD3": [{"policy_delay": 1}, {"target_policy_noise": 0.4}, {"target_noise_clip": 0.1}, {"noise_std": 0.2}],
    "DDPG": [{"noise_std": 0.2}],
}  # fmt: skip
UNITS = [(name, values) for name, others in OTHER_VALUES.items() for values in [*REPLAY_VALUES, *others]]


@pytest.mark.parametrize(("name", "values"), UNITS, ids=str)
def test_a_unit_of_training_is_that_of_stable_baselines3(
    name: str, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compare_off_policy(name, {**SMALL_REPLAY, **values}, monkeypatch) <= LIMIT


def test_each_shared_name_of_stable_baselines3_is_compared() -> None:
    varied = {
        "PPO": {*SMALL_PPO, *(key for values in PPO_VALUES for key in values), "log_std_init"},
        "A2C": {"n_steps", "log_std_init", *(key for values in A2C_VALUES for key in values)},
        **{name: {key for other, values in UNITS if other == name for key in values} for name in OTHER_VALUES},
    }
    for name, keys in varied.items():
        library = ALGORITHMS.get(name).parameters.libraries["sb3"]  # type: ignore[union-attr]
        assert set(library.names) - keys <= {"total_timesteps"}, name


@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN", "SAC", "TD3", "DDPG"])
def test_the_defaults_are_those_of_stable_baselines3(name: str) -> None:
    import inspect

    library = ALGORITHMS.get(name).parameters.libraries["sb3"]  # type: ignore[union-attr]
    theirs = {key: found.default for key, found in inspect.signature(getattr(sb3, name).__init__).parameters.items()}
    shared = {key: library.row(key).default for key in library.names if key in theirs}
    assert shared == {key: theirs[key] for key in shared}
    rest = set(theirs) - set(shared) - {"self", "seed"}
    assert rest <= library.absent.keys(), "every argument is shared, or refused with a reason"


def test_the_exploration_of_dqn_falls_as_there() -> None:
    values = {"exploration_fraction": 0.3, "exploration_initial_eps": 0.9, "exploration_final_eps": 0.1}
    model = sb3.DQN("MlpPolicy", Noise("discrete"), device="cpu", **values)
    p: Any = ALGORITHMS.get("DQN").read({"like": "sb3", "total_timesteps": 1000, **values})
    for steps in (0, 100, 299, 500):
        assert p.epsilon_at(steps) == pytest.approx(model.exploration_schedule(1 - steps / 1000), abs=1e-9)


@pytest.mark.parametrize(("name", "like"), TABLES)
def test_the_defaults_of_a_table_can_be_given(name: str, like: str) -> None:
    entry = ALGORITHMS.get(name)
    library = entry.parameters.libraries[like]  # type: ignore[union-attr]
    given = {key: library.row(key).default for key in library.names if library.row(key).default is not ...}
    assert entry.read({"like": like, **given}) == entry.read({"like": like})
    known = {f.name for f in fields(entry.parameters)}  # type: ignore[arg-type]
    assert set(library.rules) <= known
    assert entry.parameters is not None
    ignored: frozenset[str] = getattr(entry.parameters, "ignored", frozenset())
    assert {part for key in library.names for part in our_name(entry.parameters, library, key).split(", ")} <= known | ignored


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("PPO", {"like": "sb"}, "did you mean 'sb3'"),
        ("PPO", {"like": 3}, "has no table of 3"),
        ("IMPALA", {"like": "sb3"}, "IMPALA has no table of 'sb3'; leave it out"),
        ("sb3:PPO", {"like": "sb3"}, "leave it out"),
        ("PPO", {"like": "sb3", "n_epoch": 3}, "did you mean 'n_epochs'"),
        ("PPO", {"like": "sb3", "use_sde": True}, "its exploration is not available"),
        ("PPO", {"like": "sb3", "vf_coef": "much"}, "vf_coef: expected a number"),
        ("PPO", {"like": "sb3", "n_steps": 64, "steps_per_update": 64}, "n_steps: it contradicts steps_per_update"),
        ("PPO", {"like": "sb3", "learning_rate": "lin_x"}, "learning_rate: expected a number"),
        ("PPO", {"like": "sb3", "learning_rate": "lin_0.1"}, "set total_steps"),
        ("PPO", {"like": "sb3", "net_arch": {"pi": [8], "vf": [4]}}, "hidden_sizes: expected"),
        ("PPO", {"like": "cleanrl", "minibatch_size": 64}, "give num_envs, num_steps and num_minibatches"),
        ("SAC", {"like": "sb3", "ent_coef": "auto_x"}, "ent_coef: expected"),
        ("SAC", {"like": "cleanrl", "policy_frequency": 2}, "one step of the policy follows"),
        ("TD3", {"like": "sb3", "train_freq": [1, "episode"]}, "train_frequency: expected"),
        ("DQN", {"like": "rl4sys", "epsilon_decay": 0.9}, "give start_e and end_e"),
    ],
)
def test_refusals_say_what_to_do(name: str, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        ALGORITHMS.get(name).read(given)


def test_an_ambiguous_name_is_reported_unless_like_is_given() -> None:
    def lines(name: str, numbers: bool | None = None, **given: Any) -> list[str]:
        return ambiguous_names(ALGORITHMS.get(name).parameters, given, numbers)

    (line,) = lines("PPO", vf_coef=0.5, gamma=0.9)
    assert line.startswith("vf_coef: like: sb3: weight of the whole squared error") and "like: rl4sys_zmq" in line
    assert len(lines("PPO", vf_coef=0.5, target_kl=0.1, n_steps=64)) == 3
    for like in ("sb3", "rl4sys_zmq"):
        assert not lines("PPO", like=like, vf_coef=0.5)
    assert not lines("PPO", train_pi_iters=80, target_kl=0.1), "a file of RL4Sys has RL4Sys's meaning"
    assert not lines("IMPALA", vf_coef=0.5)
    (line,) = lines("PPO", True, like="cleanrl")
    assert line.endswith("give like: cleanrl_continuous")
    assert not lines("PPO", False, like="cleanrl") and not lines("PPO", None, like="cleanrl")


def test_ours_is_as_without_like() -> None:
    given = {"vf_coef": 0.7, "n_steps": 64}
    assert ALGORITHMS.get("PPO").read({**given, "like": "rl4sys_zmq"}) == ALGORITHMS.get("PPO").read(given)


def test_changes_have_the_names_and_the_meaning_of_the_library() -> None:
    kind = ALGORITHMS.get("PPO")
    given = merged(kind, {"n_epochs": 5, "like": "sb3"}, {"vf_coef": 0.5, "n_epochs": 7})
    assert given == {"like": "sb3", "n_epochs": 7, "vf_coef": 0.5}
    assert effective_parameters(kind, given)["vf_coef"] == 1.0
    assert read_change(kind, {"vf_coef": 0.25, "clip_range": 0.1}, given) == {"vf_coef": 0.25, "clip_range": 0.1}
    for change in ({"n_steps": 64}, {"net_arch": [8]}, {"like": "cleanrl"}):
        with pytest.raises(ConfigError, match="cannot change"):
            read_change(kind, change, given)
    with pytest.raises(ConfigError, match="did you mean 'clip_range'"):
        read_change(kind, {"clip_rang": 0.1}, given)


RULES = {
    "squash": None, "norm_adv_over": "batch", "value_clip_loss": "larger", "target_kl_over": "pass", "anneal_ahead": False,
    "anneal_floor": 0.05, "vf_coef": 0.5, "target_kl": None, "value_clip": None,
}  # fmt: skip
"""The rules and weights of this library's tested settings, for the algorithms that have them."""


@pytest.mark.parametrize("name", [name for name in ALGORITHMS.names() if ALGORITHMS.get(name).presets])
def test_tested_settings_keep_the_rules_of_this_library(name: str) -> None:
    entry = ALGORITHMS.get(name)
    for preset in entry.presets.values():
        assert "like" not in preset.parameters and not ambiguous_names(entry.parameters, preset.parameters, None)
        read = effective_parameters(entry, preset.parameters)
        assert {key: read[key] for key in RULES if key in read} == {key: RULES[key] for key in RULES if key in read}
