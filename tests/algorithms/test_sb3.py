"""Tests of the adapters of Stable-Baselines3: they train on segments and resume exactly, and actors act as in the library."""

import inspect
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit import random_segment
from torch import nn

from rl4sys_zmq.algorithms import ALGORITHMS, Algorithm, AlgorithmEntry, make_algorithm
from rl4sys_zmq.errors import ConfigError, RL4SysError
from rl4sys_zmq.policies import build_policy
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.testing import check_algorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, Segment, Space

sb3 = pytest.importorskip("stable_baselines3", reason="the extra sb3 is not installed")
contrib = pytest.importorskip("sb3_contrib", reason="the extra sb3 is not installed")

from rl4sys_zmq.algorithms.libraries.adapter import PrivateRandomState, network_layers  # noqa: E402

OBS = BoxSpace((3,))
DISCRETE, BOX = DiscreteSpace(3, 1), BoxSpace((2,), low=-1.0, high=3.0)
SMALL: dict[str, Any] = {"hidden_sizes": [8, 8], "rollout_length": 16}
ON: dict[str, Any] = {**SMALL, "n_steps": 64}
OFF: dict[str, Any] = {**SMALL, "learning_starts": 32, "train_freq": 16, "batch_size": 32, "buffer_size": 200}
CASES: dict[str, tuple[str, Space, dict[str, Any]]] = {
    "a2c": ("A2C", BOX, {**ON, "n_steps": 16}),
    "ppo": ("PPO", DISCRETE, {**ON, "learning_rate_final": 0.0, "total_steps": 500}),
    "trpo_discrete": ("TRPO", DISCRETE, ON),
    "trpo_box": ("TRPO", BoxSpace((2,)), {**ON, "activation": "relu"}),
    "maskable": ("MaskablePPO", DISCRETE, ON),
    "dqn": ("DQN", DISCRETE, {**OFF, "n_steps": 3}),
    "qrdqn": ("QRDQN", DISCRETE, {**OFF, "n_quantiles": 5, "target_update_interval": 7}),
    "sac": ("SAC", BOX, OFF),
    "tqc": ("TQC", BOX, OFF),
    "td3": ("TD3", BOX, OFF),
    "ddpg": ("DDPG", BOX, OFF),
}
ENTRIES = [name for name in ALGORITHMS.names() if name.startswith("sb3:")]


def make(name: str, actions: Space = DISCRETE, seed: int = 3, **parameters: Any) -> Any:
    return make_algorithm(f"sb3:{name}", OBS, actions, parameters, seed)


def segment(steps: int, actions: Space = DISCRETE, seed: int = 0, **options: Any) -> Segment:
    return random_segment(steps, seed, spaces=(OBS, actions), **{"episode_id": 1, **options})


def log_probs(algorithm: Algorithm, given: Segment) -> np.ndarray[Any, Any]:
    """Return the log-probabilities of a segment's actions, as the library computes them."""
    observations = torch.from_numpy(np.array(given.observations[: given.steps]))
    start = 1 if given.actions.dtype.kind == "i" else 0
    with torch.no_grad():
        model: Any = algorithm._model  # type: ignore[attr-defined]
        found = model.policy.evaluate_actions(observations, torch.from_numpy(given.actions - start))[1]
    return np.asarray(found.numpy())


@pytest.mark.parametrize("case", CASES)
def test_it_keeps_the_contract_of_an_algorithm(case: str) -> None:
    """The contract includes equal runs, bit-equal resuming from a checkpoint, and untouched global generators."""
    name, actions, parameters = CASES[case]
    entry = ALGORITHMS.get(f"sb3:{name}")
    same = log_probs if entry.kind == "onpolicy" else None
    check_algorithm(entry, observation_space=OBS, action_space=actions, parameters=parameters, log_probs=same)


@pytest.mark.parametrize("case", CASES)
def test_actors_act_greedily_as_the_library_does(case: str) -> None:
    name, actions, parameters = CASES[case]
    algorithm = make(name, actions, **parameters)
    index = 0
    while algorithm.update() is None:
        algorithm.observe(segment(16, actions, index, segment_index=index))
        index += 1
    spec = algorithm.spec()
    policy = build_policy(spec, PolicySnapshot(1, 1, 0, *spec.flatten(algorithm.snapshot())))
    for row in np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32):
        ours = policy.act(row, None, RandomSource(1), False)[1]
        theirs = algorithm._model.predict(row, deterministic=True)[0]
        if isinstance(actions, DiscreteSpace):
            assert ours == theirs + 1
        elif name in ("A2C", "TRPO"):  # a Gaussian is clipped to the bounds; the model sees the bounds -1 and 1
            assert np.clip(ours, -1, 1) == pytest.approx(theirs, abs=1e-5)
        else:
            assert (ours - 1.0) / 2.0 == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_defaults_are_those_of_the_library(name: str) -> None:
    entry = ALGORITHMS.get(name)
    own = entry.name.removeprefix("sb3:")
    signature = inspect.signature(getattr(sb3, own, None) or getattr(contrib, own)).parameters
    parameters: Any = entry.read({})
    for key, value in {**parameters.arguments(), "learning_rate": parameters.learning_rate}.items():
        assert signature[key].default == value, key


def test_our_advantages_are_those_of_the_library() -> None:
    """One episode in two segments is compared with the rollout that the library would have collected."""
    algorithm = make("PPO", **ON)
    first, second = segment(40, end="cut"), segment(24, seed=1, segment_index=1)
    for part in (first, second):
        algorithm.observe(part)
    policy = algorithm._model.policy
    seen = torch.from_numpy(np.concatenate([first.observations[:40], second.observations]))
    with torch.no_grad():
        values = policy.predict_values(seen).numpy()
        middle = policy.predict_values(torch.from_numpy(first.observations[40:])).numpy()
    theirs = sb3.common.buffers.RolloutBuffer(
        64, algorithm._model.observation_space, algorithm._model.action_space, "cpu", 0.95, 0.99
    )
    theirs.rewards[:, 0] = np.concatenate([first.rewards, second.rewards])
    theirs.values[:] = values
    theirs.compute_returns_and_advantage(torch.zeros(1), np.array([True]))
    # At the cut, our estimate uses the last observation of the first segment. In this test, the second segment begins with
    # another one.
    delta = 0.99 * (middle[0, 0] - values[40, 0])
    decay = (0.99 * 0.95) ** np.arange(39, -1, -1)
    expected = theirs.advantages[:, 0].copy()
    expected[:40] += delta * decay
    algorithm.update()
    ours = algorithm._model.rollout_buffer
    np.testing.assert_allclose(ours.advantages.reshape(-1), expected, rtol=1e-4, atol=1e-5)
    assert list(np.flatnonzero(ours.episode_starts)) == [0]


@pytest.mark.parametrize(("name", "weighted"), [("A2C", True), ("PPO", False)])
def test_old_data_weigh_less_in_an_algorithm_without_a_ratio(name: str, weighted: bool) -> None:
    found = []
    for difference in (0.0, 2.0, -2.0):
        algorithm = make(name, **{**ON, "n_steps": 3})
        steps = [replace(segment(1, seed=seed), episode_id=seed) for seed in range(3)]
        likely = [log_probs(algorithm, step).astype(np.float32) for step in steps]
        likely[0] += np.float32(difference)
        for step, own in zip(steps, likely, strict=True):
            algorithm.observe(replace(step, log_probs=own), correct=True)
        algorithm.update()
        found.append(algorithm._model.rollout_buffer.advantages.reshape(-1))
    current, rarer, likelier = found
    np.testing.assert_allclose(rarer, current * [np.exp(-2.0) if weighted else 1.0, 1.0, 1.0], rtol=1e-4)
    np.testing.assert_allclose(likelier, current, rtol=1e-4)


def test_masks_reach_the_algorithm_that_uses_them_and_no_other() -> None:
    masks = np.tile([True, False, True], (32, 1))
    allowed = replace(segment(32, masks=masks), actions=np.ones(32, np.int64))
    masked = make("MaskablePPO", **{**ON, "n_steps": 32})
    masked.observe(allowed)
    metrics = masked.update()
    assert metrics is not None and np.isfinite(metrics["losses/loss"])
    assert masked._model.rollout_buffer.action_masks.reshape(32, 3).tolist() == masks.tolist()
    for other, parameters in (("TRPO", ON), ("DQN", OFF)):
        with pytest.raises(ConfigError, match=r"ignores action masks; give none, or .* DQN, .*sb3:MaskablePPO$"):
            make(other, **parameters).observe(allowed)


@pytest.mark.parametrize(("name", "actions"), [("DQN", DISCRETE), ("SAC", BOX)])
def test_the_data_that_break_an_update_are_found_and_removed(name: str, actions: Space) -> None:
    algorithm = make(name, actions, **{**OFF, "batch_size": 64})
    for index in range(4):
        bad = {"rewards": np.full(16, 3e38, np.float32)} if index == 2 else {}
        algorithm.observe(segment(16, actions, index, episode_id=index, **bad))
    before = algorithm.checkpoint()
    losses = algorithm.update()
    assert not all(np.isfinite(numbers).all() for numbers in (*losses.values(), *algorithm.numbers_to_check()))
    algorithm.restore(before)
    assert algorithm.discard() == [2]
    while (metrics := algorithm.update()) is not None:
        assert all(np.isfinite(value) for value in metrics.values())
    assert all(np.isfinite(array).all() for array in algorithm.numbers_to_check())


def test_changed_parameters_reach_the_model() -> None:
    algorithm = make("TRPO", **ON)
    algorithm.change({**ON, "target_kl": 0.5, "learning_rate": 0.25})
    algorithm.observe(segment(64))
    assert algorithm.update()["charts/learning_rate"] == 0.25
    assert algorithm._model.target_kl == 0.5


class Loud(sb3.PPO):  # type: ignore[misc, name-defined]
    """A user's own algorithm."""

    def __init__(self, *args: Any, loudness: float = 0.0, **kwargs: Any) -> None:
        self.loudness = loudness
        super().__init__(*args, **kwargs)

    def train(self) -> None:
        super().train()
        self.logger.record("train/loudness", self.loudness)


class Replaying(sb3.DQN):  # type: ignore[misc, name-defined]
    """An off-policy algorithm."""


class Blocked(sb3.PPO):  # type: ignore[misc, name-defined]
    """An algorithm whose policy has a layer that actors cannot compute."""

    def _setup_model(self) -> None:
        super()._setup_model()
        self.policy.mlp_extractor.policy_net.insert(1, nn.LayerNorm(8))


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name under which this module can be imported."""
    import sys

    name = f"own_algorithms_{Path(__file__).stem}"
    monkeypatch.setitem(sys.modules, name, sys.modules[__name__])
    return name


def test_a_class_of_the_users_own_trains(importable: str) -> None:
    entry = ALGORITHMS.get(f"SB3:{importable}:Loud")
    assert entry.name == f"sb3:{importable}:Loud" and entry.isolated
    arguments = {"n_steps": 64, "batch_size": 32, "loudness": 11.0}
    algorithm = entry.load()(OBS, DISCRETE, {**SMALL, "arguments": arguments}, 3)
    algorithm.observe(segment(64))
    metrics = algorithm.update()
    assert metrics is not None and metrics["losses/loudness"] == 11.0
    check_algorithm(
        entry, observation_space=OBS, action_space=DISCRETE, parameters={**SMALL, "arguments": arguments}, log_probs=log_probs
    )


def test_a_class_of_the_users_own_learns_from_returns_of_several_steps(importable: str) -> None:
    entry = ALGORITHMS.get(f"sb3:{importable}:Replaying")
    algorithm: Any = entry.load()(OBS, DISCRETE, {**SMALL, "arguments": {"n_steps": 3, "gamma": 0.5, "learning_starts": 8}}, 3)
    algorithm.observe(segment(64))
    batch = algorithm._model.replay_buffer.memory.gather(np.arange(8))
    assert batch.discounts.max() == pytest.approx(0.5**3)


def test_a_class_that_cannot_be_used_is_refused_with_the_reason(importable: str) -> None:
    def build(name: str, **arguments: Any) -> object:
        return ALGORITHMS.get(f"sb3:{name}").load()(OBS, DISCRETE, {**SMALL, "arguments": arguments}, 3)

    with pytest.raises(ConfigError, match=r"No module named 'absent'.*PYTHONPATH"):
        build("absent.module:Class")
    with pytest.raises(ConfigError, match="expected a class that is derived from"):
        build("pathlib:Path")
    with pytest.raises(ConfigError, match=r"LayerNorm.* cannot be sent to actors; expected Linear layers"):
        build(f"{importable}:Blocked")
    with pytest.raises(ConfigError, match=r"cannot be created: .*noise"):
        build(f"{importable}:Loud", noise=1)
    with pytest.raises(ConfigError, match="train_freq counts episodes"):
        build("stable_baselines3:DQN", train_freq=(1, "episode"))


def test_spaces_that_it_cannot_take_are_refused_with_those_that_it_can() -> None:
    with pytest.raises(ConfigError, match="sb3:DQN needs a Discrete action space, not Box"):
        make("DQN", BOX)
    with pytest.raises(ConfigError, match="sb3:SAC needs a Box action space, not Discrete"):
        make("SAC", DISCRETE)
    with pytest.raises(ConfigError, match=r"unknown algorithm 'sb3:ARS'; valid: .*sb3:TRPO"):
        ALGORITHMS.get("sb3:ARS")


def test_quantiles_that_leave_none_are_refused() -> None:
    with pytest.raises(ConfigError, match="5 of 5 quantiles leave none; drop fewer"):
        make("TQC", BOX, n_quantiles=5, top_quantiles_to_drop_per_net=5)


def test_the_environment_of_the_model_cannot_be_stepped() -> None:
    with pytest.raises(RL4SysError, match="the steps come from actors"):
        make("PPO", **ON)._model.learn(10)


def test_names_ignore_case_and_rl4sys_own_name_is_known() -> None:
    assert {ALGORITHMS.get(name).name for name in ("sb3:TRPO", "SB3:trpo", "trpo", "TRPO")} == {"sb3:TRPO"}
    spinning_up = {"delta": 0.02, "damping_coeff": 0.2, "backtrack_coeff": 0.7, "lam": 0.9, "train_v_iters": 3}
    entry: AlgorithmEntry = ALGORITHMS.get("TRPO")
    read: Any = entry.read(spinning_up)
    assert (read.target_kl, read.cg_damping, read.gae_lambda, read.n_critic_updates) == (0.02, 0.2, 0.9, 3)


def test_the_global_generators_keep_their_state() -> None:
    def draw() -> list[float]:
        return [random.random(), np.random.rand(), float(torch.rand(1))]

    own = PrivateRandomState(7)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    expected = draw()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    kept = own.state()
    with own.active():
        first = draw()
    assert draw() == expected
    own.load(kept)
    with own.active():
        assert draw() == first


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ([nn.Linear(2, 2), nn.ReLU()], "none at the end"),
        ([nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)], "the same one"),
        ([nn.Linear(2, 2), nn.LeakyReLU(0.2), nn.Linear(2, 2)], "LeakyReLU"),
        ([nn.Linear(2, 2, bias=False)], "with a bias"),
        ([nn.Linear(2, 2), nn.Linear(2, 2)], "cannot be sent"),
    ],
)
def test_a_network_that_is_no_perceptron_of_ours_is_refused(layers: list[nn.Module], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        network_layers(nn.Sequential(*layers))


def test_nested_modules_of_a_perceptron_are_read() -> None:
    layers, activation = network_layers(nn.Sequential(nn.Linear(2, 4), nn.ReLU(inplace=True)), nn.Sequential(nn.Linear(4, 1)))
    assert [tuple(weight.shape) for weight, _ in layers] == [(4, 2), (1, 4)] and activation == "relu"


@pytest.mark.parametrize("name", ["SAC", "TD3"])
def test_a_dimension_without_a_range_trains(name: str) -> None:
    fixed = BoxSpace((2,), low=(-1.0, 0.5), high=(1.0, 0.5))
    algorithm = make(name, fixed, **OFF)
    acts = np.stack([np.linspace(-1.0, 1.0, 48), np.full(48, 0.5)], axis=1).astype(np.float32)
    algorithm.observe(replace(segment(48, BOX), actions=acts))
    metrics = algorithm.update()
    assert metrics is not None and all(np.isfinite(value) for value in metrics.values())
    assert all(np.isfinite(numbers).all() for numbers in algorithm.numbers_to_check())


@pytest.mark.parametrize(("name", "actions"), [("DQN", DISCRETE), ("TD3", BOX)])
@pytest.mark.parametrize("new", [{"train_freq": 4}, {"train_freq": 64}, {"learning_starts": 0}], ids=str)
def test_a_restart_with_another_pace_owes_nothing_and_trains_on(name: str, actions: Space, new: dict[str, int]) -> None:
    before = make(name, actions, **OFF)
    for index in range(20):
        before.observe(segment(16, actions, index, episode_id=index))
        before.update()
    after = make(name, actions, **{**OFF, **new})
    after.load(before.state())
    every = new.get("train_freq", 16)
    done = 0
    assert after.update() is None and 0 < after._pace.missing(1) <= every
    for index in range(20, 28):
        after.observe(segment(16, actions, index, episode_id=index))
        done += len(list(iter(after.update, None)))
    assert done == pytest.approx(8 * 16 / every, abs=1)


def test_a_replay_with_returns_of_other_parameters_is_refused() -> None:
    before = make("DQN", **{**OFF, "n_steps": 3})
    empty, filled = before.state(), before
    filled.observe(segment(16))
    for other in ({"gamma": 0.5}, {"n_steps": 1}):
        after = make("DQN", **{**OFF, "n_steps": 3, **other})
        after.load(empty)
        (key,) = other
        with pytest.raises(
            ConfigError, match=f"algorithm_parameters.{key}: .*, but the returns in the stored replay were computed"
        ):
            after.load(filled.state())


def test_the_networks_beside_the_policy_are_counted_exactly() -> None:
    def count(name: str, actions: Space, **parameters: Any) -> int:
        counted = ALGORITHMS.get(f"sb3:{name}").count
        assert counted is not None
        return counted(OBS, actions, parameters)

    def size(network: nn.Module) -> int:
        return sum(parameter.numel() for parameter in network.parameters())

    given = {**SMALL, "n_quantiles": 7}
    assert count("QRDQN", DISCRETE, **given) == size(make("QRDQN", **given)._model.policy.quantile_net)
    assert count("TQC", BOX, **given, n_critics=3) == size(make("TQC", BOX, **given, n_critics=3)._model.policy.critic)
    assert count("stable_baselines3:DQN", DISCRETE, **SMALL) == size(make("DQN", **SMALL)._model.policy.q_net)


def test_a_class_of_the_users_own_gets_no_other_network(importable: str) -> None:
    with pytest.raises(ConfigError, match=r"expected no policy_kwargs, but the parameters hidden_sizes and activation"):
        make(f"{importable}:Loud", **SMALL, arguments={"policy_kwargs": {"net_arch": [60_000]}})
