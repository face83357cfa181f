"""The recurrent policy in numpy: PyTorch's formulas, states, and refused specs and data."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, MaskError, ObservationError
from rl4sys_zmq.layers.gru import GRU
from rl4sys_zmq.layers.normalise import OBS_CLIP, Normalise
from rl4sys_zmq.policies import ExtraColumnPolicy, RandomSource, build_policy, local_only_reason
from rl4sys_zmq.policies.head_parameters import HeadParameters, stochastic_head
from rl4sys_zmq.policies.layer_policy import STATE, layers_spec
from rl4sys_zmq.policies.mlp import hidden_layers
from rl4sys_zmq.testing import check_policy
from rl4sys_zmq.testing.check_policy import random_observations
from rl4sys_zmq.values import (
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    PolicySnapshot,
    PolicySpec,
    TupleSpace,
)
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.features import feature_layout
from rl4sys_zmq.values.observations import leaves_of

torch = pytest.importorskip("torch")

BOX, DISCRETE = BoxSpace((2, 3)), DiscreteSpace(4, start=2)
BOUNDED = BoxSpace((2,), low=-1.0, high=1.0)
TREE = DictSpace({"near": BOX, "kind": MultiDiscreteSpace((2, 3)), "doors": MultiBinarySpace(2)})
FORMS: list[tuple[Any, Any, dict[str, Any]]] = [
    (BOX, DISCRETE, {"units": 5}),
    (BOX, BOUNDED, {"units": 4, "hidden_sizes": (7, 3), "activation": "relu", "normalise_observations": True, "squash": "tanh"}),
    (DISCRETE, BoxSpace((3,)), {"units": 1, "normalise_observations": True}),
    (TREE, DISCRETE, {"units": 3, "normalise_observations": True}),
    (TREE, TupleSpace((DiscreteSpace(3), BOUNDED)), {"units": 3, "hidden_sizes": (4,)}),
    (DISCRETE, DiscreteSpace(50), {"units": 6, "hidden_sizes": (3,), "activation": "silu"}),
]


def spec_of(form: tuple[Any, Any, dict[str, Any]]) -> PolicySpec:
    head = {"head": stochastic_head(form[1]), **form[2]}
    units, sizes, activation = head.pop("units"), head.pop("hidden_sizes", ()), head.pop("activation", "tanh")
    first = [Normalise()] if head.pop("normalise_observations", False) else []
    hidden = [*first, *hidden_layers(sizes, activation), GRU(units=units)]
    return layers_spec(form[0], form[1], HeadParameters(**head), hidden)


def weights_of(spec: PolicySpec, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0.0, 0.6, spec.size).astype(np.float32)


def policy_of(spec: PolicySpec, flat: NDArray[np.float32] | None = None) -> ExtraColumnPolicy:
    policy = build_policy(spec, PolicySnapshot(1, 1, 0, weights_of(spec) if flat is None else flat))
    assert isinstance(policy, ExtraColumnPolicy)
    return policy


def observations_of(spec: PolicySpec, count: int, seed: int = 1) -> Any:
    rng, space = np.random.default_rng(seed), spec.observation_space
    if isinstance(space, DiscreteSpace):
        return rng.integers(space.start, space.start + space.n, count)
    if not isinstance(space, BoxSpace):
        return random_observations(space, count, rng)
    return rng.normal(0.0, 2.0, (count, *space.shape)).astype(np.float32)


def torch_outputs(spec: PolicySpec, flat: NDArray[np.float32], observations: Any) -> tuple[Any, Any]:
    """Return the outputs and the states of one episode, computed by `torch.nn.GRU` as the slow twin."""
    tensors = {name: torch.from_numpy(tensor.copy()) for name, tensor in spec.views(flat).items()}
    space = spec.observation_space
    if isinstance(space, DiscreteSpace):
        x = torch.nn.functional.one_hot(torch.from_numpy(observations - space.start), space.n).float()
    elif isinstance(space, BoxSpace):
        x = torch.from_numpy(observations).reshape(len(observations), -1)
    else:
        x = torch.from_numpy(feature_layout(space).batch(observations))
    activations = {"tanh": torch.tanh, "relu": torch.relu, "silu": torch.nn.functional.silu}
    dense = 0
    for layer in spec.document["layers"]:
        match layer["kind"]:
            case "normalise":
                x = ((x - tensors["obs_mean"]) * tensors["obs_scale"]).clamp(-OBS_CLIP, OBS_CLIP)
            case "dense":
                x = x @ tensors[f"layers.{dense}.weight"].T + tensors[f"layers.{dense}.bias"]
                dense += 1
            case "activation":
                x = activations[layer["function"]](x)
            case "gru":
                gru = torch.nn.GRU(x.shape[1], layer["units"])
                parts = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                gru.load_state_dict({f"{part}_l0": tensors[f"gru.0.{part}"] for part in parts})
                with torch.no_grad():
                    x = states = gru(x[:, None])[0][:, 0]
    return x, states


@pytest.mark.parametrize("form", FORMS)
def test_an_episode_has_the_states_and_the_log_probabilities_of_torch(form: tuple[Any, Any, dict[str, Any]]) -> None:
    spec = spec_of(form)
    flat = weights_of(spec)
    policy, observations = policy_of(spec, flat), observations_of(spec, 12)
    outputs, states = torch_outputs(spec, flat, observations)
    layout, start = action_layout(spec.action_space), getattr(spec.action_space, "start", 0)
    step = policy.bind_step(RandomSource(3), True)
    state: Any = None
    rows = leaves_of(spec.observation_space).rows(observations)
    for observation, logits, after in zip(rows, outputs, states, strict=True):
        before = state
        raw, _, log_prob, columns, state = step(observation, None, state)
        np.testing.assert_array_equal(columns[STATE], np.zeros(len(after)) if before is None else before)
        np.testing.assert_allclose(state, after.numpy(), atol=2e-6)
        if layout.numbers and layout.choices:
            chosen, numbers = (torch.from_numpy(np.array(part)) for part in raw)
            spread = torch.distributions.Normal(logits[3:], torch.from_numpy(spec.views(flat)["log_std"].copy()).exp())
            expected = torch.log_softmax(logits[:3], 0)[chosen] + spread.log_prob(numbers).sum()
        elif layout.numbers:
            log_std = torch.from_numpy(spec.views(flat)["log_std"].copy())
            expected = torch.distributions.Normal(logits, log_std.exp()).log_prob(torch.from_numpy(np.array(raw))).sum()
        else:
            expected = torch.log_softmax(logits, 0)[int(raw) - start]
        assert log_prob == pytest.approx(float(expected), abs=2e-5)


@pytest.mark.parametrize("form", FORMS)
def test_the_policy_keeps_the_contract(form: tuple[Any, Any, dict[str, Any]]) -> None:
    check_policy(spec_of(form), masks=isinstance(form[1], DiscreteSpace))


VALUE_FORMS: list[tuple[Any, Any, dict[str, Any]]] = [
    (BOX, DISCRETE, {"head": "q_values", "units": 5}),
    (TREE, DISCRETE, {"head": "q_values", "units": 3, "hidden_sizes": (4,), "epsilon_ladder": 7.0}),
    (DISCRETE, DISCRETE, {"head": "q_distribution", "units": 4, "atoms": 3, "v_min": -1.0, "v_max": 3.0}),
]


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("form", VALUE_FORMS)
def test_an_episode_of_action_values_is_epsilon_greedy_on_the_values_of_torch(
    form: tuple[Any, Any, dict[str, Any]], explore: bool
) -> None:
    spec = spec_of(form)
    flat = weights_of(spec)
    spec.views(flat)["epsilon"][...] = 0.3
    check_policy(spec, masks=True)
    policy, observations = policy_of(spec, flat), observations_of(spec, 40)
    outputs, states = torch_outputs(spec, flat, observations)
    if form[2]["head"] == "q_distribution":
        outputs = outputs.view(-1, 4, 3).softmax(2) @ torch.linspace(-1.0, 3.0, 3)
    masks = np.random.default_rng(3).random((40, 4)) < 0.5
    masks[:, 1] = True
    place = 0.5
    epsilon = 0.3 ** (1.0 + form[2].get("epsilon_ladder", 0.0) * place)
    step, state, others = policy.bind_step(RandomSource(3, place), explore), None, 0
    for t, observation in enumerate(leaves_of(spec.observation_space).rows(observations)):
        raw, act, log_prob, _, state = step(observation, masks[t], state)
        allowed = np.flatnonzero(masks[t]).tolist()
        greedy = max(allowed, key=lambda action: float(outputs[t, action]))
        assert raw == act and int(act) - DISCRETE.start in allowed
        is_greedy = int(act) - DISCRETE.start == greedy
        others += not is_greedy
        assert log_prob == pytest.approx(np.log(epsilon / len(allowed) + (1.0 - epsilon) * is_greedy))
        np.testing.assert_allclose(state, states[t].numpy(), atol=2e-6)
    assert bool(others) == (explore and "epsilon_ladder" not in form[2])


def test_the_buffers_of_a_bound_step_are_never_handed_out() -> None:
    spec = spec_of(FORMS[1])
    step = policy_of(spec).bind_step(RandomSource(0), False)
    first, second = (step(observation, None, None) for observation in observations_of(spec, 2))
    kept = [np.array(value) for value in (first[0], first[1], first[4])]
    step(observations_of(spec, 3)[2], None, second[4])
    assert all(np.array_equal(a, b) for a, b in zip(kept, (first[0], first[1], first[4]), strict=True))


def test_a_state_that_is_not_finite_is_not_an_action() -> None:
    spec = spec_of(FORMS[0])
    policy, [observation] = policy_of(spec), observations_of(spec, 1)
    broken = np.full(5, np.nan, np.float32)
    assert np.isnan(policy.step(observation, None, RandomSource(0), True, broken)[2])
    log_probs = policy.step_batch(observation[None], None, RandomSource(0), True, [broken])[2]
    assert np.isnan(log_probs).all()


def test_invalid_input() -> None:
    spec = spec_of(FORMS[0])
    [observation] = observations_of(spec, 1)
    with pytest.raises(MaskError):
        policy_of(spec).step(observation, np.zeros(4, np.bool_), RandomSource(0), True, None)
    with pytest.raises(ObservationError, match="outside"):
        policy_of(spec_of(FORMS[2])).step(np.int64(7), None, RandomSource(0), True, None)


def test_the_service_of_actions_is_refused_by_name() -> None:
    assert "a policy of kind 'layers' has extra columns" in local_only_reason(spec_of(FORMS[0]))


def document(**head: Any) -> dict[str, Any]:
    """Return the document of the first form with other parameters of the head."""
    plain = spec_of(FORMS[0]).document
    return {**{"head": "categorical"}, **head, **{name: plain[name] for name in ("layers_version", "layers")}}


def with_unit(**options: Any) -> dict[str, Any]:
    layers = [{"kind": "gru", "units": 5, **options}, {"kind": "dense", "units": 4}]
    return {"document": {**document(), "layers": layers}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_unit(units=6), "tensors of a policy of kind 'layers' do not match"),
        (with_unit(units=0), "units: expected an integer from 1 to 4096"),
        (with_unit(depth=2), "depth: a layer of kind 'gru' has no such option"),
        ({"columns": ()}, "extra columns .* recurrent state of 5 elements"),
        ({"blob": b"x"}, "blob of 1 bytes"),
        ({"document": {**document(), "layers_version": 2}}, "layers of version 2; this release reads version 1"),
        ({"document": {**document(), "layers": [{"kind": "lstm"}]}}, "unknown kind of layer 'lstm'"),
        ({"document": {**document(), "layers": [{"kind": "gru", "units": 4}] * 2}}, "several recurrent layers"),
        ({"document": {**document(), "layers": "gru"}}, "layers is not a list"),
        ({"document": {**document(), "layers": [5]}}, "expected a mapping with a kind"),
        (
            {"document": {**document(), "layers": [{"kind": "dense", "units": 5}]}},
            r"outputs of shape \(5,\)",
        ),
        ({"document": {**document(), "head": "none"}}, "head"),
        ({"document": {**document(), "more": 1}}, "more"),
        ({"document": document(head="gaussian", squash="tanh"), "action_space": BoxSpace((4,))}, "needs a bounded Box"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    spec = replace(spec_of(FORMS[0]), **change)
    with pytest.raises(ConfigError, match=words):
        build_policy(spec, PolicySnapshot(1, 1, 0, np.zeros(spec.size, np.float32)))
