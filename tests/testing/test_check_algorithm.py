"""Tests of the conformance checks: the algorithms and policies of this package pass them, and each planted fault is found."""

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.algorithms import ALGORITHMS
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies import ExtraColumnPolicy, RandomSource, build_policy
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


def use_the_global_random_state(self: Any, segment: Segment, *, correct: bool = False) -> None:
    np.random.random()
    FakeAlgorithm.observe(self, segment, correct=correct)


def return_the_first_snapshot(self: Any) -> Any:
    return self.__dict__.setdefault("first", FakeAlgorithm.snapshot(self))


def seed_by_the_clock(self: Any, spec: PolicySpec, parameters: FakeParameters, seed: int) -> None:
    FakeAlgorithm.__init__(self, spec, parameters, time.monotonic_ns() % 2**32)


def load_all_but_nothing(self: Any, state: Mapping[str, Any]) -> None:
    if state:
        FakeAlgorithm.load(self, state)


KEEP_VIEWS: dict[str, Callable[..., Any]] = {
    "load_policy": lambda self, tensors: self.__dict__.update(taken=tensors),
    "snapshot": lambda self: {name: np.array(one) for name, one in vars(self).get("taken", FakeAlgorithm.snapshot(self)).items()},
}


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({"observe": use_the_global_random_state}, "global random state"),
        ({"snapshot": return_the_first_snapshot}, "not copies"),
        ({"state": lambda self: {**FakeAlgorithm.state(self), "updates": 0}}, "a part of the state is missing"),
        ({"load_policy": lambda self, tensors: None}, "none of the tensors"),
        (KEEP_VIEWS, "keeps views"),
        ({"load": load_all_but_nothing}, "accepts an empty state"),
        ({"demand": lambda self: 0}, "no update would happen"),
        ({"update": lambda self, *, partial=False: FakeAlgorithm.update(self)}, "does not use the one step"),
        ({"__init__": seed_by_the_clock}, "equal seeds and segments"),
        ({"snapshot": lambda self: self._spec.views(fake_weights(self._spec, 0))}, "change no weight"),
        ({}, "unknown parameter"),
    ],
)
def test_a_faulty_algorithm_is_found_out(methods: dict[str, Any], words: str) -> None:
    faulty: Any = type("Faulty", (FakeAlgorithm,), methods)

    def factory(observations: ObservationSpace, actions: Space, parameters: Mapping[str, object], seed: int) -> Any:
        if parameters and methods:
            raise ConfigError("no parameters")
        return faulty(mlp_spec(observations, actions, "categorical", (8,)), FakeParameters(), seed)

    with pytest.raises(AssertionError, match=words):
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


def check_planted(monkeypatch: pytest.MonkeyPatch, kind: type, methods: dict[str, Any], words: str, **options: Any) -> None:
    """Check a policy of this kind with other methods. With `words` the check must fail, and say them."""
    policy: Any = type("Planted", (kind,), methods)
    monkeypatch.setitem(POLICIES._entries, KIND, PolicyEntry(name=KIND, factory=policy))
    columns = options.pop("columns", ())
    spec = PolicySpec(BoxSpace((2,)), DiscreteSpace(2), KIND, tensors=(TensorSpec("bias", (1,)),), columns=columns)
    with pytest.raises(AssertionError, match=words) if words else nullcontext():
        check_policy(spec, **options)


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


def act_by_another_source(self: Any, observation: Any, mask: Any, rng: RandomSource, explore: bool) -> Any:
    return Coin.act(self, observation, mask, RandomSource(), explore)


def choose_floats(self: Any, mask: Any, uniform: float, explore: bool) -> Any:
    action, log_prob = Coin._choose(self, mask, uniform, explore)
    return np.float64(action), log_prob


def take_the_first_weight(self: Any, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
    Coin.__init__(self, spec, replace(snapshot, flat=snapshot.flat[:1].copy()))
    self.snapshot = snapshot


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({}, ""),
        ({"_choose": lambda self, *given: (Coin._choose(self, *given)[0], float(np.log(0.9)))}, "its log-probability implies"),
        ({"_choose": lambda self, mask, *given: Coin._choose(self, None, *given)}, "with one action allowed"),
        ({"act": act_by_another_source}, "another random source"),
        ({"_choose": choose_floats}, "expected the same int64"),
        ({"__init__": take_the_first_weight}, "does not raise ConfigError"),
    ],
)
def test_a_faulty_policy_is_found_out(monkeypatch: pytest.MonkeyPatch, methods: dict[str, Any], words: str) -> None:
    check_planted(monkeypatch, Coin, methods, words)


class Recording(ExtraColumnPolicy):
    """A policy that keeps the contract: its state counts the steps of the episode."""

    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        spec.views(snapshot.flat)
        super().__init__(snapshot)

    def step(self, observation: Any, mask: Any, rng: RandomSource, explore: bool, state: Any) -> Any:
        count = np.zeros(1, np.float32) if state is None else state
        return np.int64(0), np.int64(0), 0.0, {"count": count, "total": observation.sum()}, count + 1


def with_columns(change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return a `step` whose columns are changed."""

    def step(self: Any, *given: Any) -> Any:
        *parts, columns, after = Recording.step(self, *given)
        return *parts, change(columns), after

    return {"step": step}


def count_in_place(self: Any, observation: Any, mask: Any, rng: RandomSource, explore: bool, state: Any) -> Any:
    *parts, after = Recording.step(self, observation, mask, rng, explore, state)
    if state is None:
        return *parts, after
    state += 1
    return *parts, state


def step_batch_without_states(self: Any, observations: Any, masks: Any, rng: RandomSource, explore: bool, states: Any) -> Any:
    return Recording.step_batch(self, observations, masks, rng, explore, [None] * len(states))


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ({}, ""),
        ({"step": count_in_place}, "the policy changes a state"),
        (with_columns(lambda columns: {**columns, "total": np.zeros(2)}), "step returns columns with the shapes"),
        (with_columns(lambda columns: {"count": columns["count"]}), "step returns columns with the shapes"),
        (with_columns(lambda columns: {**columns, "total": np.inf}), "column 'total' is not finite"),
        ({"step_batch": step_batch_without_states}, "step_batch differs"),
    ],
)
def test_a_policy_with_faulty_columns_is_found_out(monkeypatch: pytest.MonkeyPatch, methods: dict[str, Any], words: str) -> None:
    columns = (ColumnSpec("count", (1,), per="segment"), ColumnSpec("total"))
    check_planted(monkeypatch, Recording, methods, words, columns=columns, masks=False)


@pytest.mark.parametrize("columns", [(), (ColumnSpec("count"),)])
def test_a_policy_and_its_spec_agree_whether_there_are_columns(
    monkeypatch: pytest.MonkeyPatch, columns: tuple[ColumnSpec, ...]
) -> None:
    monkeypatch.setitem(POLICIES._entries, KIND, PolicyEntry(name=KIND, factory=Coin if columns else Recording))
    spec = PolicySpec(BoxSpace((2,)), DiscreteSpace(2), KIND, tensors=(TensorSpec("bias", (1,)),), columns=columns)
    with pytest.raises(ConfigError, match=r"an ExtraColumnPolicy exactly if PolicySpec\.columns is not empty"):
        build_policy(spec, PolicySnapshot(1, 0, 0, np.zeros(1, np.float32)))
