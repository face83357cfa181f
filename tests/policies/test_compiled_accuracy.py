"""Log-probabilities of compiled policies: near those in numpy, and about as near to the exact ones."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rl4sys_zmq import native
from rl4sys_zmq.actor.io.compiled_thread import CompiledIOThread, CompiledOutbox
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.layers.normalise import Normalise
from rl4sys_zmq.policies import Policy, bind, build_policy
from rl4sys_zmq.policies.compiled import CompiledPolicy, CompiledRandomSource
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.policies.layer_policy import layers_spec
from rl4sys_zmq.policies.mlp import hidden_layers
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec
from rl4sys_zmq.wire.messages import Hello

from .exact import exact_outputs, gaussian_density, log_softmax, squashed_density

pytestmark = pytest.mark.skipif(native.load() is None, reason=native.reason())

ROWS, PLACE = 64, 0.37
HEADS = ("categorical", "q_values", "gaussian", "squashed_gaussian")
FUNCTIONS = ("tanh", "relu", "elu", "silu", "gelu", "leaky_relu", "identity")
HALF = 1.75
"""Half of the range of an action of a Box."""


def box(size: int) -> BoxSpace:
    return BoxSpace((size,), low=-1.5, high=2.0)


@st.composite
def specs(draw: st.DrawFn) -> PolicySpec:
    head, count = draw(st.sampled_from(HEADS)), draw(st.integers(1, 19))
    options: dict[str, Any] = {"epsilon_ladder": 7.0} if head == "q_values" and draw(st.booleans()) else {}
    seen: Any = draw(st.sampled_from([DiscreteSpace(count, start=-3), BoxSpace((count,)), BoxSpace((3, 7))]))
    acts: Any = DiscreteSpace(count, start=2) if head in HEADS[:2] else box(count)
    first = [Normalise()] if draw(st.booleans()) else []
    sizes = draw(st.lists(st.sampled_from([1, 7, 16, 17, 64, 100, 256, 300]), max_size=3))
    return layers_spec(
        seen, acts, HeadParameters(head=head, **options), [*first, *hidden_layers(sizes, draw(st.sampled_from(FUNCTIONS)))]
    )


@pytest.fixture(scope="module")
def builder() -> CompiledIOThread:
    """A compiled I/O thread that never starts. It builds policies."""
    config = AgentConfig(client_id="lab", algorithm_name="PPO", observation_space=BoxSpace((1,)), action_space=DiscreteSpace(2))
    return CompiledIOThread(native.require(), config, Hello("lab", "a", 1, 0, 0, 0), CompiledOutbox())


class Trial:
    """One network with random weights, and the actions that both forms choose for the same observations."""

    def __init__(self, builder: CompiledIOThread, spec: PolicySpec, scale: float, per_input: bool, seed: int) -> None:
        """Make weights with the standard deviation `scale`, which is divided by the root of a layer's inputs if `per_input`."""
        rng = np.random.default_rng(seed)
        self.spec, self.flat = spec, (scale * rng.standard_normal(spec.size)).astype(np.float32)
        self.tensors = spec.views(self.flat)
        for name, tensor in self.tensors.items():
            if name.endswith(".weight") and per_input:
                tensor *= np.float32(tensor.shape[1] ** -0.5)
        for name, low, high in (("log_std", -2.0, 0.5), ("obs_scale", 0.1, 2.0), ("epsilon", 0.01, 1.0)):
            if name in self.tensors:
                self.tensors[name][...] = rng.uniform(low, high, self.tensors[name].shape)
        seen, acts = spec.observation_space, spec.action_space
        if isinstance(seen, DiscreteSpace):
            self.rows: Any = rng.integers(seen.start, seen.start + seen.n, ROWS)
        else:
            assert isinstance(seen, BoxSpace)
            self.rows = rng.normal(0.0, 2.0, (ROWS, *seen.shape)).astype(np.float32)
        self.outputs = exact_outputs(spec, self.flat, self.rows)
        self.masks: Any = [None] * ROWS
        self.noises: Any = [None] * ROWS
        if isinstance(acts, DiscreteSpace):
            self.masks = rng.random((ROWS, acts.n)) < 0.7
            self.masks[np.arange(ROWS), rng.integers(0, acts.n, ROWS)] = True
        elif isinstance(acts, BoxSpace):
            self.noises = self._source().normals(ROWS * acts.size).reshape(ROWS, -1).astype(np.float64)
        snapshot = PolicySnapshot(1, 1, 0, self.flat)
        builder.weight_subscriber.take_up(spec, snapshot)
        compiled = builder.weight_subscriber.policy
        assert isinstance(compiled, CompiledPolicy)
        self.compiled, self.in_numpy = self._chosen(compiled), self._chosen(build_policy(spec, snapshot))

    def _source(self) -> CompiledRandomSource:
        return CompiledRandomSource(native.require(), 5, PLACE)

    def _chosen(self, policy: Policy) -> tuple[NDArray[Any], NDArray[np.float64]]:
        step = bind(policy, self._source(), True)
        chosen = [step(row, mask) for row, mask in zip(self.rows, self.masks, strict=True)]
        return np.array([one[0] for one in chosen]), np.array([one[2] for one in chosen])

    def difference(self) -> float:
        """Return the largest difference of the log-probabilities of the two forms, for equal actions."""
        (raws, ours), (others, theirs) = self.compiled, self.in_numpy
        same = np.isclose(raws, others, rtol=1e-3, atol=1e-3).reshape(ROWS, -1).all(axis=1)
        assert same.sum() > 0.9 * ROWS  # a draw near a boundary can fall on its other side
        return float(np.abs(ours - theirs)[same].max())

    def error(self, chosen: tuple[NDArray[Any], NDArray[np.float64]]) -> float:
        """Return the root mean square of the errors of log-probabilities."""
        exact = [self._exact(*one) for one in zip(self.outputs, self.masks, self.noises, chosen[0], strict=True)]
        errors = np.array(exact) - chosen[1]
        known = errors[~np.isnan(errors)]
        return float(np.sqrt(np.square(known).mean())) if len(known) else 0.0

    def _exact(self, outputs: NDArray[np.float64], mask: Any, noise: Any, raw: Any) -> float:
        """Return the exact log-probability of an action; NaN for a greedy choice between nearly equal values."""
        match self.spec.document["head"]:
            case "categorical":
                return float(log_softmax(np.where(mask, outputs, -np.inf))[raw - 2])
            case "q_values":
                values = np.sort(outputs[mask])
                if len(values) > 1 and values[-1] - values[-2] < 1e-4 * (1.0 + abs(values[-1])):
                    return np.nan
                epsilon = float(self.tensors["epsilon"][0]) ** (1.0 + self.spec.document.get("epsilon_ladder", 0.0) * PLACE)
                return float(np.log(epsilon / len(values) + (1.0 - epsilon) * bool(outputs[raw - 2] == values[-1])))
            case "gaussian":
                return gaussian_density(raw.astype(np.float64), outputs, self.tensors["log_std"].astype(np.float64))
            case _:
                means, log_stds = np.split(outputs, 2)
                log_stds = np.minimum(log_stds, self.spec.document["log_std_max"])
                return squashed_density(noise, means, log_stds, np.full(len(means), HALF))


@given(spec=specs(), scale=st.floats(0.1, 1.0), per_input=st.booleans(), seed=st.integers(0, 2**32 - 1))
def test_errors_are_like_those_of_numpy(
    builder: CompiledIOThread, spec: PolicySpec, scale: float, per_input: bool, seed: int
) -> None:
    """Sums in another order have other errors, so a ratio of four is allowed."""
    trial = Trial(builder, spec, scale, per_input, seed)
    # By luck, numpy's rounding can be exact in all rows. No order of sums promises less than one rounding of the largest output.
    floor = 0.5 * float(np.finfo(np.float32).eps) * float(np.abs(trial.outputs).max())
    ours, theirs = trial.error(trial.compiled), trial.error(trial.in_numpy)
    assert ours <= 4.0 * theirs + floor, (ours, theirs, floor)


TRAINED: dict[str, tuple[int, Any, tuple[int, ...], str, dict[str, Any]]] = {
    "CartPole": (4, DiscreteSpace(2, 2), (64, 64), "tanh", {"head": "categorical"}),
    "LunarLander": (8, DiscreteSpace(4, 2), (64, 64), "tanh", {"head": "categorical"}),
    "values": (8, DiscreteSpace(4, 2), (128, 128), "relu", {"head": "q_values"}),
    "Box": (11, box(3), (64, 64), "tanh", {"head": "gaussian"}),
    # A standard deviation of 7 would multiply the error of an output.
    "bounded Box": (3, box(1), (256, 256), "relu", {"head": "squashed_gaussian", "log_std_max": 0.0}),
}


@pytest.mark.parametrize("name", TRAINED)
def test_networks_of_trainings_give_the_log_probabilities_of_numpy(builder: CompiledIOThread, name: str) -> None:
    inputs, acts, sizes, function, head = TRAINED[name]
    spec = layers_spec(BoxSpace((inputs,)), acts, HeadParameters(**head), hidden_layers(sizes, function))
    for number in range(20):
        trial = Trial(builder, spec, 0.05 * (number + 1), True, number)
        assert trial.difference() < 1e-5
