"""Tests of the conformance checks: the algorithms and policies of this package pass them, and each planted fault is found."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import ExtraColumnPolicy, Policy, RandomSource, build_policy
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.policies.registry import POLICIES, PolicyEntry
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters, check_algorithm, check_policy
from rl4sys_zmq.testing.fakes import fake_weights
from rl4sys_zmq.values import (
    BoxSpace,
    ColumnSpec,
    DiscreteSpace,
    ObservationSpace,
    PolicySnapshot,
    PolicySpec,
    Segment,
    Space,
    TensorSpec,
)

ARM = BoxSpace((3,), low=-1.0, high=2.0)
SMALL: dict[str, dict[str, object]] = {
    "PPO": {"steps_per_epoch": 48, "rollout_length": 16, "minibatch_size": 16, "update_epochs": 2, "hidden_sizes": [8]},
    "A2C": {"steps_per_update": 32, "hidden_sizes": [8]},
    "A3C": {"steps_per_update": 32, "hidden_sizes": [8]},
    "IMPALA": {"steps_per_update": 48, "rollout_length": 16, "hidden_sizes": [8]},
    "REINFORCE": {"episodes_per_update": 2, "rollout_length": 16, "hidden_sizes": [8]},
    "RPO": {"steps_per_update": 48, "rollout_length": 16, "num_minibatches": 3, "update_epochs": 2, "hidden_sizes": [8]},
    "DQN": {"learning_starts": 8, "batch_size": 8, "train_frequency": 8, "rollout_length": 8, "hidden_sizes": [8]},
}
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread of torch, as `serve` does. With such small products, two threads only wait for each other."""
    if importlib.util.find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def ppo_log_probs(algorithm: Any, segment: Segment) -> Any:
    """Return the log-probabilities that PPO's own network gives."""
    import torch

    from rl4sys_zmq.algorithms.networks.inputs import encode_observations, standardise

    space = algorithm.spec().observation_space
    features = encode_observations(space, segment.observations[: segment.steps])
    if algorithm.spec().tensors[0].name == "obs_mean":
        features = standardise(features, algorithm._mean, algorithm._scale)
    with torch.no_grad():
        outputs, _ = algorithm._network(features)
        return algorithm._distribution(outputs, None).log_probs(torch.as_tensor(np.array(segment.actions))).numpy()


@needs_torch
@pytest.mark.parametrize("actions", [DiscreteSpace(3), ARM], ids=["discrete", "box"])
@pytest.mark.parametrize("observations", [BoxSpace((4,)), DiscreteSpace(5, -1), BoxSpace((2, 3), "|u1", 0, 255)])
def test_ppo_keeps_the_contract(observations: Space, actions: Space) -> None:
    check_algorithm(
        ALGORITHMS.get("PPO"),
        observation_space=observations,
        action_space=actions,
        parameters=SMALL["PPO"],
        log_probs=ppo_log_probs,
    )


@needs_torch
@pytest.mark.parametrize("actions", [DiscreteSpace(3), ARM], ids=["discrete", "box"])
@pytest.mark.parametrize("name", ["A2C", "A3C", "IMPALA", "REINFORCE", "RPO"])
def test_the_other_on_policy_algorithms_keep_the_contract(name: str, actions: Space) -> None:
    if name == "RPO" and isinstance(actions, DiscreteSpace):
        return  # RPO refuses them
    entry, parameters = ALGORITHMS.get(name), SMALL[name]
    check_algorithm(entry, action_space=actions, parameters=parameters, log_probs=ppo_log_probs)


@needs_torch
@pytest.mark.parametrize("observations", [BoxSpace((4,)), DiscreteSpace(5, -1)])
def test_dqn_keeps_the_contract(observations: Space) -> None:
    check_algorithm(ALGORITHMS.get("DQN"), observation_space=observations, parameters=SMALL["DQN"])


@pytest.mark.parametrize("kind", ["onpolicy", "offpolicy"])
def test_the_fake_keeps_the_contract(kind: str) -> None:
    check_algorithm(FakeAlgorithm.factory(kind, steps_per_update=16, rollout_length=8))


class Global(FakeAlgorithm):
    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        np.random.random()
        super().observe(segment, correct=correct)


class Views(FakeAlgorithm):
    weights: dict[str, Any] = {}

    def snapshot(self) -> Any:
        if not self.weights:
            self.weights = super().snapshot()
        return self.weights


class TakesNothing(FakeAlgorithm):
    def load_policy(self, tensors: Mapping[str, Any]) -> None:
        pass


class TakesViews(FakeAlgorithm):
    taken: Mapping[str, Any] = {}

    def load_policy(self, tensors: Mapping[str, Any]) -> None:
        self.taken = tensors

    def snapshot(self) -> Any:
        return {name: np.array(tensor) for name, tensor in (self.taken or super().snapshot()).items()}


class Forgets(FakeAlgorithm):
    def state(self) -> Any:
        return {**super().state(), "updates": 0}


class Careless(FakeAlgorithm):
    def load(self, state: Mapping[str, Any]) -> None:
        if state:
            super().load(state)


class Stalls(FakeAlgorithm):
    def demand(self) -> int:
        return 0


class Wasteful(FakeAlgorithm):
    def update(self, *, partial: bool = False) -> Any:
        return super().update()


class Frozen(FakeAlgorithm):
    def snapshot(self) -> Any:
        return self._spec.views(fake_weights(self._spec, 0))


class Lucky(FakeAlgorithm):
    made = 0

    def __init__(self, spec: PolicySpec, parameters: FakeParameters, seed: int) -> None:
        Lucky.made += 1
        super().__init__(spec, parameters, Lucky.made)


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Global, "global random state"),
        (Views, "not copies"),
        (Forgets, "a part of the state is missing"),
        (TakesNothing, "none of the tensors"),
        (TakesViews, "keeps views"),
        (Careless, "accepts an empty state"),
        (Stalls, "no update would happen"),
        (Wasteful, "does not use the one step"),
        (Lucky, "equal seeds and segments"),
        (Frozen, "change no weight"),
    ],
)
def test_a_faulty_algorithm_is_found_out(cls: Any, words: str) -> None:
    def factory(observations: ObservationSpace, actions: Space, parameters: Mapping[str, object], seed: int) -> Any:
        if parameters:
            raise ConfigError("no parameters")
        return cls(mlp_spec(observations, actions, "categorical", (8,)), FakeParameters(), seed)

    with pytest.raises(AssertionError, match=words):
        check_algorithm(factory)


def test_an_algorithm_that_swallows_unknown_parameters_is_found_out() -> None:
    def factory(observations: ObservationSpace, actions: Space, parameters: Mapping[str, object], seed: int) -> Any:
        return FakeAlgorithm(mlp_spec(observations, actions, "categorical", (8,)), FakeParameters(), seed)

    with pytest.raises(AssertionError, match="unknown parameter"):
        check_algorithm(factory)


SPECS = [
    mlp_spec(BoxSpace((4,)), DiscreteSpace(3, 1), "categorical", (8,)),
    mlp_spec(BoxSpace((4,)), DiscreteSpace(3), "categorical", (8,), "relu", True),
    mlp_spec(DiscreteSpace(5, 2), DiscreteSpace(2), "categorical", ()),
    mlp_spec(BoxSpace((2, 2), "|u1", 0, 255), BoxSpace((3,)), "gaussian", (8,)),
    mlp_spec(BoxSpace((4,)), ARM, "gaussian", (8,), squash="tanh"),
    mlp_spec(BoxSpace((4,)), BoxSpace((2,), "<i4", -3, 3), "gaussian", (8,)),
]


def mlp_log_probs(spec: PolicySpec) -> Callable[..., Any]:
    """Return the twin in float64, for a spec without normalisation that has tanh layers or no hidden layers."""

    def of(tensors: Mapping[str, Any], observations: Any, raw: Any) -> Any:
        h = observations.reshape(len(observations), -1).astype(np.float64)
        count = sum(layer["kind"] == "dense" for layer in spec.document["layers"])
        for i in range(count):
            h = h @ tensors[f"layers.{i}.weight"].T + tensors[f"layers.{i}.bias"]
            h = np.tanh(h) if i < count - 1 else h
        if spec.document["head"] == "gaussian":
            z = (raw.reshape(len(raw), -1) - h) / np.exp(tensors["log_std"])
            return (-0.5 * z**2 - tensors["log_std"] - 0.5 * np.log(2 * np.pi)).sum(axis=1)
        chosen = h[np.arange(len(h)), raw - spec.action_space.start]  # type: ignore[union-attr]
        return chosen - np.log(np.exp(h - h.max(axis=1, keepdims=True)).sum(axis=1)) - h.max(axis=1)

    return of


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.document["head"])
def test_the_policies_that_ship_keep_the_contract(spec: PolicySpec) -> None:
    plain = isinstance(spec.observation_space, BoxSpace) and spec.observation_space.dtype == "<f4"
    twin = mlp_log_probs(spec) if plain and spec.tensors[0].name != "obs_mean" else None
    check_policy(spec, log_probs=twin)


def test_q_values_keep_the_contract() -> None:
    spec = mlp_spec(BoxSpace((4,)), DiscreteSpace(3), "q_values", (8,))
    flat = np.random.default_rng(0).normal(size=spec.size).astype(np.float32)
    tensors = spec.views(flat)
    tensors["epsilon"][:] = 0.25
    check_policy(spec, tensors)


KIND = "test-check-policy"


class Coin:
    """A policy that keeps the contract: it draws one of two actions from a bias."""

    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        self.snapshot, self.generation, self.version = snapshot, snapshot.generation, snapshot.version
        self.chance = 1.0 / (1.0 + np.exp(-float(spec.views(snapshot.flat)["bias"][0])))

    def _choose(self, mask: Any, uniform: float, explore: bool) -> tuple[np.int64, float]:
        if mask is not None and not mask.all():
            from rl4sys_zmq.errors import MaskError

            if not mask.any():
                raise MaskError("a mask forbids every action")
            return np.int64(mask.argmax()), 0.0
        head = uniform < self.chance if explore else self.chance > 0.5
        return np.int64(head), float(np.log(self.chance if head else 1.0 - self.chance))

    def act(self, observation: Any, mask: Any, rng: RandomSource, explore: bool) -> Any:
        action, log_prob = self._choose(mask, rng.uniform(), explore)
        return action, action, log_prob

    def act_batch(self, observations: Any, masks: Any, rng: RandomSource, explore: bool) -> Any:
        rows = [self.act(o, None if masks is None else masks[i], rng, explore) for i, o in enumerate(observations)]
        actions = np.array([raw for raw, _, _ in rows])
        return actions, actions, np.array([log_prob for *_, log_prob in rows], dtype=np.float32)


class Liar(Coin):
    def _choose(self, mask: Any, uniform: float, explore: bool) -> tuple[np.int64, float]:
        return super()._choose(mask, uniform, explore)[0], float(np.log(0.9))


class Blind(Coin):
    def _choose(self, mask: Any, uniform: float, explore: bool) -> tuple[np.int64, float]:
        return super()._choose(None, uniform, explore)


class Moody(Coin):
    def act(self, observation: Any, mask: Any, rng: RandomSource, explore: bool) -> Any:
        return super().act(observation, mask, RandomSource(), explore)


class Floats(Coin):
    def _choose(self, mask: Any, uniform: float, explore: bool) -> tuple[np.int64, float]:
        action, log_prob = super()._choose(mask, uniform, explore)
        return np.float64(action), log_prob  # type: ignore[return-value]


class Trusting(Coin):
    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        super().__init__(spec, PolicySnapshot(snapshot.generation, snapshot.version, 0, snapshot.flat[:1].copy()))
        self.snapshot = snapshot


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Coin, ""),
        (Liar, "its log-probability implies"),
        (Blind, "with one action allowed"),
        (Moody, "another random source"),
        (Floats, "expected the same int64"),
        (Trusting, "does not raise ConfigError"),
    ],
)
def test_a_faulty_policy_is_found_out(monkeypatch: pytest.MonkeyPatch, cls: Callable[..., Policy], words: str) -> None:
    monkeypatch.setitem(POLICIES._entries, KIND, PolicyEntry(name=KIND, factory=cls))
    spec = PolicySpec(BoxSpace((2,)), DiscreteSpace(2), KIND, tensors=(TensorSpec("bias", (1,)),))
    if not words:
        check_policy(spec)
        return
    with pytest.raises(AssertionError, match=words):
        check_policy(spec)


class Recording(ExtraColumnPolicy):
    """A policy that keeps the contract: its state counts the steps of the episode."""

    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        spec.views(snapshot.flat)
        super().__init__(snapshot)

    def step(self, observation: Any, mask: Any, rng: RandomSource, explore: bool, state: Any) -> Any:
        count = np.zeros(1, np.float32) if state is None else state
        return np.int64(0), np.int64(0), 0.0, {"count": count, "total": observation.sum()}, count + 1


class Mutating(Recording):
    def step(self, observation: Any, mask: Any, rng: RandomSource, explore: bool, state: Any) -> Any:
        *parts, after = super().step(observation, mask, rng, explore, state)
        if state is None:
            return *parts, after
        state += 1
        return *parts, state


class Wide(Recording):
    def step(self, observation: Any, mask: Any, rng: RandomSource, explore: bool, state: Any) -> Any:
        *parts, columns, after = super().step(observation, mask, rng, explore, state)
        return *parts, {**columns, "total": np.zeros(2)}, after


class Short(Recording):
    def step(self, observation: Any, mask: Any, rng: RandomSource, explore: bool, state: Any) -> Any:
        *parts, columns, after = super().step(observation, mask, rng, explore, state)
        return *parts, {"count": columns["count"]}, after


class Infinite(Recording):
    def step(self, observation: Any, mask: Any, rng: RandomSource, explore: bool, state: Any) -> Any:
        *parts, columns, after = super().step(observation, mask, rng, explore, state)
        return *parts, {**columns, "total": np.inf}, after


class Stateless(Recording):
    def step_batch(self, observations: Any, masks: Any, rng: RandomSource, explore: bool, states: Any) -> Any:
        return super().step_batch(observations, masks, rng, explore, [None] * len(states))


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Recording, ""),
        (Mutating, "the policy changes a state"),
        (Wide, "step returns columns with the shapes"),
        (Short, "step returns columns with the shapes"),
        (Infinite, "column 'total' is not finite"),
        (Stateless, "step_batch differs"),
    ],
)
def test_a_policy_with_faulty_columns_is_found_out(
    monkeypatch: pytest.MonkeyPatch, cls: Callable[..., Policy], words: str
) -> None:
    monkeypatch.setitem(POLICIES._entries, KIND, PolicyEntry(name=KIND, factory=cls))
    columns = (ColumnSpec("count", (1,), per="segment"), ColumnSpec("total"))
    spec = PolicySpec(BoxSpace((2,)), DiscreteSpace(2), KIND, tensors=(TensorSpec("bias", (1,)),), columns=columns)
    if not words:
        check_policy(spec, masks=False)
        return
    with pytest.raises(AssertionError, match=words):
        check_policy(spec, masks=False)


@pytest.mark.parametrize("columns", [(), (ColumnSpec("count"),)])
def test_a_policy_and_its_spec_agree_whether_there_are_columns(
    monkeypatch: pytest.MonkeyPatch, columns: tuple[ColumnSpec, ...]
) -> None:
    monkeypatch.setitem(POLICIES._entries, KIND, PolicyEntry(name=KIND, factory=Coin if columns else Recording))
    spec = PolicySpec(BoxSpace((2,)), DiscreteSpace(2), KIND, tensors=(TensorSpec("bias", (1,)),), columns=columns)
    with pytest.raises(ConfigError, match=r"an ExtraColumnPolicy exactly if PolicySpec\.columns is not empty"):
        build_policy(spec, PolicySnapshot(1, 0, 0, np.zeros(1, np.float32)))
