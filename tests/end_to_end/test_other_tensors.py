"""A policy kind of a plug-in, with an int64 tensor, a float16 tensor and a blob. Actors get exactly the learner's bytes."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError, MaskError
from rl4sys_zmq.learner import Learner, register_algorithm
from rl4sys_zmq.policies import POLICIES, PolicyEntry
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters, check_algorithm, check_policy
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec, TensorSpec

from .conftest import Lab

FOUR, TWO = BoxSpace((4,)), DiscreteSpace(2)
TENSORS = (
    TensorSpec("order", (2,), "int64"),
    TensorSpec("half", (2, 4), "float16"),
    TensorSpec("bias", (2,)),
    TensorSpec("seen", (), "float64"),
)
BLOB = struct.pack("<d", 0.5) + bytes(200_000)
"""The blob. Its first eight bytes are the scale of the logits. It is large enough to be sent without a copy."""


class Graph:
    """A linear softmax policy in float16. The int64 tensor maps actions to rows, and the blob scales the logits."""

    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        self.snapshot, self.generation, self.version = snapshot, snapshot.generation, snapshot.version
        self.tensors = spec.views(snapshot.flat, snapshot.others)
        self.scale = struct.unpack_from("<d", spec.blob)[0]
        self._weights = self.tensors["half"][self.tensors["order"]].astype(np.float64)

    def act(self, observation: Any, mask: Any, rng: Any, explore: bool) -> Any:
        logits = self.scale * (self._weights @ np.asarray(observation, np.float64) + self.tensors["bias"])
        if mask is not None:
            if not np.any(mask):
                raise MaskError("a mask forbids every action")
            logits = np.where(mask, logits, -np.inf)
        chances = np.exp(logits - logits.max())
        chances /= chances.sum()
        index = int(np.searchsorted(np.cumsum(chances), rng.uniform())) if explore else int(chances.argmax())
        return np.int64(index), np.int64(index), float(np.log(chances[index]))

    def act_batch(self, observations: Any, masks: Any, rng: Any, explore: bool) -> Any:
        rows = [self.act(o, None if masks is None else masks[i], rng, explore) for i, o in enumerate(observations)]
        actions = np.array([raw for raw, _, _ in rows])
        return actions, actions, np.array([log_prob for *_, log_prob in rows], dtype=np.float32)


def check_graph(spec: PolicySpec) -> None:
    if len(spec.blob) != len(BLOB) or {t.name: t.dtype for t in spec.tensors} != {t.name: t.dtype for t in TENSORS}:
        raise ConfigError("not a graph", key="blob")


ENTRY = PolicyEntry(name="test-graph", factory=Graph, check=check_graph)
SPEC = PolicySpec(FOUR, TWO, "test-graph", {}, TENSORS, BLOB)


def weights(update: int) -> dict[str, Any]:
    rng = np.random.default_rng(update)
    return {
        "order": np.array([1, 0] if update % 2 else [0, 1], np.int64),
        "half": rng.normal(0, 0.1, (2, 4)).astype(np.float16),
        "bias": rng.normal(0, 0.1, 2).astype(np.float32),
        "seen": np.array(update * (1 << 40) + 0.5),
    }


class GraphAlgorithm(FakeAlgorithm):
    """A fake algorithm that has these tensors."""

    def snapshot(self) -> Any:
        return weights(self.updates)


BLOBS = {"blob": BLOB}


def make(observations: Any, actions: Any, parameters: Any, seed: int) -> FakeAlgorithm:
    if parameters:
        raise ConfigError(f"unknown parameters {parameters}")
    spec = replace(SPEC, observation_space=observations, action_space=actions, blob=BLOBS["blob"])
    return GraphAlgorithm(spec, FakeParameters(steps_per_update=2, rollout_length=2), seed)


register_algorithm("GRAPH", make)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES._entries, ENTRY.name, ENTRY)


def holds(agent: Any, update: int, *, rounded: bool = False) -> None:
    """Assert that the agent holds the learner's tensors of `update`, bit for bit."""
    policy = agent._io.weight_subscriber.policy
    assert isinstance(policy, Graph) and policy.scale == 0.5 and agent.spec.blob == BLOB
    for name, tensor in weights(update).items():
        held = policy.tensors[name]
        assert (held.dtype, held.shape) == (tensor.dtype, tensor.shape)
        same = held.tobytes() == tensor.tobytes()
        assert same or (rounded and name == "bias" and np.allclose(held, tensor, atol=0.3)), name


@pytest.mark.parametrize("options", [{}, {"wire_dtype": "bf16"}, {"wire_dtype": "grid"}, {"level": 0}], ids=str)
def test_actors_get_exactly_those_bytes(lab: Lab, options: dict[str, Any]) -> None:
    learner = lab.learner(weights=options)
    agent = lab.agent(learner, algorithm_name="GRAPH")
    rounded = "wire_dtype" in options
    for version in range(1, 8):
        lab.train(agent, 2, version)
        assert agent.digest == learner.digest("lab", version)
        holds(agent, version, rounded=rounded)
    late = lab.agent(learner, algorithm_name="GRAPH", actor_id="late")
    late.wait_version(7, 20.0)
    holds(late, 7, rounded=rounded)
    assert late.digest == agent.digest
    for one in (agent, late):
        counters = one.stats()["counters"]
        assert not [key for key in counters if key.startswith(("weights_refused", "resyncs", "refused."))], counters


def test_a_learner_acts_by_it_too(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner(inference="auto")
    agent = inproc_lab.agent(learner, algorithm_name="GRAPH", inference="remote")
    inproc_lab.train(agent, 2, 1)
    inproc_lab.episode(agent, 2)
    assert learner.wait(client_id="lab", version=2, timeout_s=20.0) == 2


def test_a_restarted_actor_acts_by_its_cache(inproc_lab: Lab, tmp_path: Path) -> None:
    learner = inproc_lab.learner()
    address = learner.address
    options = {"algorithm_name": "GRAPH", "policy_cache": str(tmp_path / "cache"), "actor_id": "a"}
    agent = inproc_lab.agent(learner, **options)
    inproc_lab.train(agent, 2, 1)
    agent.close()
    learner.close()
    again = inproc_lab.agent(address, **options)
    assert again.version == 1
    holds(again, 1)


def test_a_learner_goes_on_with_the_same_blob_only(inproc_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> Learner:
        return inproc_lab.learner(run_dir=tmp_path / "run")

    first = start()
    agent = inproc_lab.agent(first, algorithm_name="GRAPH")
    inproc_lab.train(agent, 2, 1, 2, 3)
    first.drain(timeout_s=20.0)
    first.save(timeout_s=20.0)
    published = first.digest("lab", 3)
    agent.close()
    first.close()
    second = start()
    assert second.wait(client_id="lab", version=3, timeout_s=20.0) == 3
    assert second.digest("lab", 3) == published
    holds(inproc_lab.agent(second, algorithm_name="GRAPH", actor_id="again"), 3)
    second.close()
    monkeypatch.setitem(BLOBS, "blob", BLOB[:-1] + b"!")
    third = start()
    with pytest.raises(Exception, match="the blob of its policy differs; resume with the version of the algorithm that wrote it"):
        third.wait(client_id="lab", version=3, timeout_s=20.0)


def test_the_kind_of_the_actor_checks_the_blob(inproc_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLOBS, "blob", b"short")
    learner = inproc_lab.learner()
    with pytest.raises(Exception, match=r"its Welcome message is invalid: .*not a graph"):
        inproc_lab.agent(learner, algorithm_name="GRAPH")


def test_max_parameters_counts_all_tensors(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner(max_parameters=12)
    with pytest.raises(Exception, match="the policy has 13 parameters; max_parameters allows 12"):
        inproc_lab.agent(learner, algorithm_name="GRAPH")


def test_it_keeps_both_contracts() -> None:
    def log_probs(tensors: Any, observations: Any, actions: Any) -> Any:
        logits = 0.5 * (observations @ tensors["half"].astype(np.float64)[tensors["order"]].T + tensors["bias"])
        return logits[np.arange(len(logits)), actions] - np.log(np.exp(logits).sum(axis=1))

    check_policy(SPEC, log_probs=log_probs)
    check_policy(SPEC, weights(1), log_probs=log_probs)
    check_algorithm(make, max_steps=1000)


class Careless(Graph):
    """A policy that reads its tensors from a shortened snapshot, and so does not notice surplus bytes."""

    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        whole = replace(snapshot, others=snapshot.others[: spec.nbytes - 4 * spec.size])
        super().__init__(spec, whole)
        self.snapshot = snapshot


def test_a_policy_that_does_not_check_its_bytes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES._entries, ENTRY.name, replace(ENTRY, factory=Careless))
    with pytest.raises(AssertionError, match="bytes of other tensors, more than the policy has, does not raise ConfigError"):
        check_policy(SPEC)


class Viewing(GraphAlgorithm):
    """An algorithm whose snapshot is its own arrays, not copies."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.own = weights(0)

    def snapshot(self) -> Any:
        return self.own


class Narrow(GraphAlgorithm):
    """An algorithm whose snapshot has another dtype than its spec."""

    def snapshot(self) -> Any:
        return {**super().snapshot(), "order": np.zeros(2, np.int32)}


@pytest.mark.parametrize(
    ("cls", "words"),
    [(Viewing, "returns views of the weights"), (Narrow, "tensor 'order' of the snapshot is int32; expected int64")],
)
def test_a_faulty_algorithm_is_found_out(cls: Any, words: str) -> None:
    def create(observations: Any, actions: Any, parameters: Any, seed: int) -> Any:
        return cls(make(observations, actions, parameters, seed).spec(), FakeParameters(steps_per_update=2), seed)

    with pytest.raises(AssertionError, match=words):
        check_algorithm(create)
