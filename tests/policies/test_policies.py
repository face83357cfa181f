"""Numpy policies act as their torch twins do and with their stated probabilities, and never take a masked action."""

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl4sys_zmq.errors import ConfigError, MaskError, ObservationError
from rl4sys_zmq.layers.activation import erf
from rl4sys_zmq.layers.normalise import OBS_CLIP
from rl4sys_zmq.policies import RandomSource, build_policy, register_policy
from rl4sys_zmq.policies.draws import LOOP_MAX_LOGITS, PYTHON_MAX_ACTIONS, draw
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import ACTIVATIONS, BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec, TensorSpec

FORBIDDEN = -np.inf
DEVIATIONS = 5.0
"""The limit of chi-square statistics: their mean plus this many standard deviations. The seeds are fixed."""


def policy_of(spec: Any, tensors: Any = None, seed: int = 0, scale: float = 0.3) -> Any:
    rng = np.random.default_rng(seed)
    flat = (scale * rng.standard_normal(spec.size)).astype(np.float32)
    for name, view in spec.views(flat).items():
        if tensors and name in tensors:
            view[...] = tensors[name]
        elif name == "epsilon":
            view[...] = rng.random()
        elif name == "obs_scale":
            view[...] = rng.random(view.shape) + 0.1
    return build_policy(spec, PolicySnapshot(3, 4, 5, flat))


def logits_policy(logits: Any, start: int = 0) -> Any:
    """Return a categorical policy whose logits are the given numbers for any observation."""
    logits = np.asarray(logits, dtype=np.float32)
    spec = mlp_spec(BoxSpace((2,)), DiscreteSpace(len(logits), start), "categorical", hidden_sizes=())
    return policy_of(spec, {"layers.0.weight": 0.0, "layers.0.bias": logits})


def values_policy(values: Any, epsilon: Any, start: int = 0) -> Any:
    spec = mlp_spec(BoxSpace((2,)), DiscreteSpace(len(values), start), "q_values", hidden_sizes=())
    return policy_of(spec, {"layers.0.weight": 0.0, "layers.0.bias": np.asarray(values), "epsilon": epsilon})


def gaussian_policy(mean: Any, log_std: Any, space: Any, squash: str = "clip") -> Any:
    spec = mlp_spec(BoxSpace((2,)), space, "gaussian", hidden_sizes=(), squash=squash)
    return policy_of(spec, {"layers.0.weight": 0.0, "layers.0.bias": np.ravel(mean), "log_std": np.ravel(log_std)})


OBS = np.zeros(2, dtype=np.float32)


def masked_softmax(logits: Any, mask: Any = None) -> Any:
    """Return the softmax under a mask, with a slow and simple computation in float64."""
    z = [float(x) if mask is None or mask[i] else FORBIDDEN for i, x in enumerate(logits)]
    weights = [math.exp(v - max(z)) for v in z]
    return np.array(weights) / sum(weights)


def assert_close(ours: Any, theirs: Any) -> None:
    ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    assert np.all(np.abs(ours - theirs) <= 1e-5 * (1 + np.abs(theirs))), (ours, theirs)


def assert_frequencies(counts: Any, probabilities: Any) -> None:
    total = counts.sum()
    possible = probabilities > 0
    assert not counts[~possible].any()
    expected = total * probabilities[possible]
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = possible.sum() - 1
    assert statistic <= freedom + DEVIATIONS * math.sqrt(2 * freedom) + 1


@st.composite
def specs(draw_: Any, heads: tuple[Any, ...] = ("categorical", "gaussian", "q_values")) -> Any:
    head = draw_(st.sampled_from(heads))
    shapes = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)
    observation_space = draw_(
        st.one_of(
            st.builds(BoxSpace, shapes, st.sampled_from(["<f4", "<f8", "|u1", "<i8"])),
            st.builds(DiscreteSpace, st.integers(1, 9), st.integers(-3, 3)),
        )
    )
    wide = st.sampled_from([1, 2, 4, PYTHON_MAX_ACTIONS, PYTHON_MAX_ACTIONS + 1, 70])
    if head == "gaussian":
        action_space = BoxSpace(draw_(shapes), draw_(st.sampled_from(["<f4", "<f8"])), -1.0, 2.0)
    else:
        action_space = DiscreteSpace(draw_(wide), draw_(st.integers(-5, 5)))  # type: ignore[assignment]
    return mlp_spec(
        observation_space,
        action_space,
        head,
        hidden_sizes=tuple(draw_(st.lists(st.integers(1, 40), max_size=3))),
        activation=draw_(st.sampled_from(ACTIVATIONS)),
        normalise_observations=draw_(st.booleans()),
        squash=draw_(st.sampled_from(["clip", "tanh"])) if head == "gaussian" else "clip",
    )


def observations_of(space: Any, count: Any, rng: Any) -> Any:
    if isinstance(space, DiscreteSpace):
        return rng.integers(space.start, space.start + space.n, count)
    if space.dtype in ("|u1", "<i8"):
        return rng.integers(0, 4, (count, *space.shape)).astype(space.dtype)
    return (2 * rng.standard_normal((count, *space.shape))).astype(space.dtype)


def masks_of(spec: Any, count: Any, rng: Any) -> Any:
    n = spec.action_space.n
    masks = rng.random((count, n)) < 0.6
    masks[np.arange(count), rng.integers(0, n, count)] = True
    return masks


def torch_outputs(torch: Any, spec: Any, flat: Any, observations: Any) -> tuple[Any, ...]:
    """Return the outputs of the torch twin, computed as the docstring of `PolicySpec` says, and the tensors."""
    f = torch.nn.functional
    tensors = {name: torch.tensor(view) for name, view in spec.views(flat).items()}
    if isinstance(spec.observation_space, DiscreteSpace):
        index = torch.as_tensor(np.asarray(observations)) - spec.observation_space.start
        h = f.one_hot(index, spec.observation_space.n).to(torch.float32)
    else:
        h = torch.as_tensor(np.asarray(observations)).to(torch.float32).reshape(len(observations), -1)
    if "obs_mean" in tensors:
        h = ((h - tensors["obs_mean"]) * tensors["obs_scale"]).clamp(-OBS_CLIP, OBS_CLIP)
    activations = {"tanh": torch.tanh, "relu": f.relu, "elu": f.elu, "silu": f.silu, "gelu": f.gelu, "leaky_relu": f.leaky_relu}
    layers = spec.document["layers"]
    last = sum(layer["kind"] == "dense" for layer in layers) - 1
    function = next((layer["function"] for layer in layers if layer["kind"] == "activation"), "identity")
    for i in range(last + 1):
        h = f.linear(h, tensors[f"layers.{i}.weight"], tensors[f"layers.{i}.bias"])
        if i < last:
            h = activations.get(function, lambda x: x)(h)
    return h, tensors


def torch_log_probs(torch: Any, spec: Any, outputs: Any, tensors: Any, raw: Any, masks: Any) -> Any:
    if spec.document["head"] == "gaussian":
        normal = torch.distributions.Normal(outputs, tensors["log_std"].exp())
        return normal.log_prob(torch.tensor(raw.reshape(outputs.shape))).sum(1)
    index = torch.as_tensor(raw - spec.action_space.start)[:, None]
    allowed = torch.ones(outputs.shape, dtype=torch.bool) if masks is None else torch.as_tensor(masks)
    outputs = outputs.masked_fill(~allowed, -torch.inf)
    if spec.document["head"] == "categorical":
        return outputs.log_softmax(1).gather(1, index)[:, 0]
    greedy = f_one_hot(torch, outputs.argmax(1), outputs.shape[1])
    uniform = allowed.double() / allowed.sum(1, keepdim=True)
    epsilon = tensors["epsilon"].double()
    return (epsilon * uniform + (1 - epsilon) * greedy).log().gather(1, index)[:, 0]


def f_one_hot(torch: Any, index: Any, n: Any) -> Any:
    return torch.nn.functional.one_hot(index, n).double()


@given(specs(), st.integers(0, 2**32), st.integers(1, 20), st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_agrees_with_a_torch_twin(spec: Any, seed: int, count: int, masked: bool, explore: bool) -> None:
    torch = pytest.importorskip("torch")
    policy = policy_of(spec, seed=seed)
    rng = np.random.default_rng(seed)
    observations = observations_of(spec.observation_space, count, rng)
    masks = masks_of(spec, count, rng) if masked and spec.document["head"] != "gaussian" else None
    outputs, tensors = torch_outputs(torch, spec, policy.snapshot.flat.copy(), observations)
    sampler = RandomSource(seed)

    raw, env, log_probs = policy.act_batch(observations, masks, sampler, explore)
    assert raw.shape == env.shape == (count, *spec.action_space.shape)
    assert log_probs.shape == (count,) and log_probs.dtype == np.float32
    assert env.dtype == np.dtype(spec.action_space.dtype)
    assert_close(policy._network.batch(observations), outputs)
    assert_close(log_probs, torch_log_probs(torch, spec, outputs, tensors, raw, masks))

    singles = [policy.act(o, None if masks is None else masks[i], sampler, explore) for i, o in enumerate(observations)]
    raw_1 = np.stack([s[0] for s in singles])
    assert raw_1.shape == raw.shape and raw_1.dtype == raw.dtype
    assert np.stack([s[1] for s in singles]).dtype == env.dtype
    assert_close(np.stack([policy._network.single(o) for o in observations]), outputs)
    assert_close([s[2] for s in singles], torch_log_probs(torch, spec, outputs, tensors, raw_1, masks))


@pytest.mark.parametrize("n", [2, 5, PYTHON_MAX_ACTIONS + 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 400])
def test_sampled_frequencies_are_the_softmax(n: Any, masked: bool, rows: int) -> None:
    rng = np.random.default_rng(n)
    logits = (2 * rng.standard_normal(n)).astype(np.float32)
    mask = np.arange(n) % 3 != 1 if masked else None
    probabilities = masked_softmax(logits, mask)
    policy, sampler, counts = logits_policy(logits, start=7), RandomSource(11), np.zeros(n, dtype=int)
    total = 6000
    if rows:
        masks = None if mask is None else np.tile(mask, (rows, 1))
        for _ in range(total // rows):
            raw, _, log_probs = policy.act_batch(np.zeros((rows, 2), np.float32), masks, sampler, True)
            np.add.at(counts, raw - 7, 1)
            assert_close(log_probs, np.log(probabilities[raw - 7]))
    else:
        for _ in range(total):
            raw, env, log_prob = policy.act(OBS, mask, sampler, True)
            assert raw == env
            counts[raw - 7] += 1
            assert_close(log_prob, np.log(probabilities[raw - 7]))
    assert_frequencies(counts, probabilities)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("batch", [False, True])
def test_sampled_frequencies_are_epsilon_greedy(masked: bool, batch: bool) -> None:
    mask = np.array([1, 0, 1, 1, 1], dtype=np.int8) if masked else None
    policy, sampler, counts = values_policy([1.0, 9.0, 3.0, -2.0, 3.0], 0.4, start=-2), RandomSource(3), np.zeros(5, dtype=int)
    probabilities = 0.4 * (np.ones(5) / 5 if mask is None else mask / 4)
    probabilities[2 if masked else 1] += 0.6
    for _ in range(10 if batch else 6000):
        if batch:
            masks = None if mask is None else np.tile(mask, (600, 1))
            raw, _, log_probs = policy.act_batch(np.zeros((600, 2), np.float32), masks, sampler, True)
        else:
            raw, _, log_probs = policy.act(OBS, mask, sampler, True)
        np.add.at(counts, raw + 2, 1)
        assert_close(log_probs, np.log(probabilities[raw + 2]))
    assert_frequencies(counts, probabilities)


@pytest.mark.parametrize("epsilon", [-1.0, 0.0, 1.0, 3.0])
def test_epsilon_is_a_probability(epsilon: float) -> None:
    policy, sampler = values_policy([0.0, 1.0], epsilon), RandomSource(0)
    draws = [policy.act(OBS, None, sampler, True) for _ in range(200)]
    if epsilon <= 0:
        assert {(int(d[0]), d[2]) for d in draws} == {(1, 0.0)}
    else:
        assert {int(d[0]) for d in draws} == {0, 1}
        assert all(d[2] == pytest.approx(math.log(0.5)) for d in draws)
    raw, _, log_probs = policy.act_batch(np.zeros((100, 2), np.float32), None, sampler, True)
    assert np.isfinite(log_probs).all() and (epsilon > 0 or (raw == 1).all())


EXTREME = [-3e38, -1e30, -100.0, 0.0, 1e-40, 50.0, 1e30, 3e38, np.inf, -np.inf, np.nan]


@given(
    st.lists(st.sampled_from(EXTREME) | st.floats(-200, 200, width=32), min_size=1, max_size=60),
    st.integers(0, 2**32),
    st.booleans(),
    st.integers(1, 12),
)
@settings(deadline=None, max_examples=200)
def test_forbidden_actions_are_never_sampled(logits: Any, seed: int, categorical: bool, rows: int) -> None:
    rng = np.random.default_rng(seed)
    n = len(logits)
    policy = logits_policy(logits) if categorical else values_policy(logits, 0.5)
    mask = rng.random(n) < 0.4
    mask[rng.integers(n)] = True
    usable = bool(np.isfinite(np.array(logits)[mask].max()))
    for given_mask in (mask, mask.astype(np.uint8), mask.astype(np.float32)):
        for explore in (True, False):
            sampler = RandomSource(seed)
            raw, _, log_probs = policy.act_batch(
                np.zeros((rows, 2), np.float32), np.tile(given_mask, (rows, 1)), sampler, explore
            )
            assert mask[raw].all() and ((log_probs <= 0).all() if usable else np.isnan(log_probs).all())
            for _ in range(5):
                raw, _, log_prob = policy.act(OBS, given_mask, sampler, explore)
                assert mask[raw] and (log_prob <= 0 if usable else math.isnan(log_prob))


@pytest.mark.parametrize("make", [lambda n: logits_policy(np.zeros(n)), lambda n: values_policy(np.zeros(n), 0.5)])
@pytest.mark.parametrize("n", [3, PYTHON_MAX_ACTIONS + 1])
def test_a_mask_that_forbids_everything_is_an_error(make: Callable[..., Any], n: Any) -> None:
    policy = make(n)
    with pytest.raises(MaskError):
        policy.act(OBS, np.zeros(n, bool), RandomSource(0), True)
    for rows in (2, LOOP_MAX_LOGITS):
        masks = np.ones((rows, n), bool)
        masks[1] = False
        with pytest.raises(MaskError):
            policy.act_batch(np.zeros((rows, 2), np.float32), masks, RandomSource(0), True)


@pytest.mark.parametrize("uniform", [0.0, 0.5, np.nextafter(1.0, 0.0)])
@pytest.mark.parametrize("logits", [[0.0], [-1e4, 0.0, -1e4], [0.0, -1e4], [-1e4, 0.0], [5.0] * 7, [0.1, 0.2, 0.3]])
def test_the_ends_of_the_unit_interval_draw_possible_actions(uniform: Any, logits: Any) -> None:
    index, log_prob = draw(logits, uniform)
    assert masked_softmax(logits)[index] > 0
    assert log_prob == pytest.approx(math.log(masked_softmax(logits)[index]))


def test_gaussian_samples_have_the_mean_and_the_deviation() -> None:
    mean, std = np.array([[0.5, -2.0]]), np.array([[0.2, 3.0]])
    policy = gaussian_policy(mean, np.log(std), BoxSpace((1, 2), "<f8"))
    sampler = RandomSource(5)
    singles = np.stack([policy.act(OBS, None, sampler, True)[0] for _ in range(5000)])
    batch = policy.act_batch(np.zeros((5000, 2), np.float32), None, sampler, True)[0]
    for raw in (singles, batch):
        assert raw.dtype == np.float32
        assert np.all(np.abs(raw.mean(0) - mean) < 5 * std / math.sqrt(5000))
        assert np.all(np.abs(raw.std(0) / std - 1) < 0.05)


def test_gaussian_log_prob_is_that_of_the_stored_float32() -> None:
    # The mean is a million times the deviation. The learner sees the rounding of the sample.
    policy = gaussian_policy([1000.0, -3.0], [-6.0, 0.5], BoxSpace((2,)))
    for seed in range(50):
        raw, _, log_prob = policy.act(OBS, None, RandomSource(seed), True)
        z = (raw.astype(np.float64) - [1000.0, -3.0]) / np.exp([-6.0, 0.5])
        assert_close(log_prob, -0.5 * (z**2).sum() - (-6.0 + 0.5) - math.log(2 * math.pi))


@pytest.mark.parametrize("squash", ["clip", "tanh"])
@pytest.mark.parametrize("dtype", ["<f4", "<f8", "<f2", "|i1", "|u1", "<i4", "<i8", "<u8", "|b1"])
def test_environment_actions_are_within_bounds(squash: str, dtype: str) -> None:
    low, high = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)) if dtype == "|b1" else ((0.0, 0.0, 0.0), (1.0, 7.0, 100.0))
    space = BoxSpace((3,), dtype, low, high)
    policy = gaussian_policy([-50.0, 0.3, 50.0], [2.0] * 3, space, squash)
    sampler = RandomSource(0)
    for explore in (True, False):
        raw, env, _ = policy.act(OBS, None, sampler, explore)
        raws, envs, _ = policy.act_batch(np.zeros((20, 2), np.float32), None, sampler, explore)
        for r, e in ((raw, env), (raws, envs)):
            assert e.dtype == np.dtype(dtype) and r.dtype == np.float32 and not np.shares_memory(r, e)
            assert (e.astype(np.float64) >= low).all() and (e.astype(np.float64) <= high).all()
            unit = (np.tanh(r.astype(np.float64)) + 1) / 2 * (np.array(high) - low) + low if squash == "tanh" else r
            expected = np.clip(unit, low, high)
            assert np.allclose(e.astype(np.float64), expected, atol=0.5001 if np.dtype(dtype).kind in "iub" else 0.05, rtol=1e-3)


@pytest.mark.parametrize("dtype", ["<i8", "<u8", "|i1", "<f2"])
def test_unbounded_narrow_actions_stay_within_their_type(dtype: str) -> None:
    policy = gaussian_policy([-1e30, 1e30], [0.0, 0.0], BoxSpace((2,), dtype))
    with np.errstate(all="raise"):
        _, env, _ = policy.act(OBS, None, RandomSource(0), False)
    info = np.finfo(dtype) if dtype == "<f2" else np.iinfo(dtype)
    assert env[0] == info.min
    assert env[1] >= info.max * 0.99


def test_unbounded_actions_are_the_sample_itself() -> None:
    policy = gaussian_policy([4.0], [0.0], BoxSpace((1,), "<f4", -np.inf, np.inf))
    raw, env, _ = policy.act(OBS, None, RandomSource(0), True)
    assert env == raw
    env += 1  # a host that scales its action in place must not change the stored action
    assert env != raw


def test_the_sampler_hands_out_each_number_once() -> None:
    sampler = RandomSource(0)
    first = [sampler.uniform() for _ in range(1024)]
    assert len(set(first)) == len(first)
    assert not np.intersect1d(first, sampler.uniforms(1024)).size
    a = sampler.normals(1000)
    kept = a.copy()
    b, c = sampler.normals(1000), sampler.normals(5000)
    assert np.array_equal(a, kept) and len(c) == 5000
    assert not np.intersect1d(a, b).size and not np.shares_memory(a, b)


def test_threads_may_share_a_policy() -> None:
    policy = policy_of(mlp_spec(BoxSpace((8,)), DiscreteSpace(4), "categorical"))
    observations = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    want = [policy.act(o, None, RandomSource(0), False)[2] for o in observations]
    wrong = []  # type: ignore[var-annotated]

    def work() -> None:
        wrong.extend(i for i, o in enumerate(observations) if policy.act(o, None, RandomSource(0), False)[2] != want[i])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_activation_warns_however_large_its_input() -> None:
    big = np.array([[-3e38, -1e4, -90.0, 0.0, 90.0, 1e4, 3e38]], dtype=np.float32)
    for activation in ACTIVATIONS:
        spec = mlp_spec(BoxSpace((7,)), DiscreteSpace(7), "categorical", hidden_sizes=(7,), activation=activation)
        eye = np.eye(7, dtype=np.float32)
        policy = policy_of(spec, {"layers.0.weight": eye, "layers.1.weight": eye, "layers.0.bias": 0.0, "layers.1.bias": 0.0})
        with np.errstate(over="raise", invalid="raise", divide="raise"):
            out = policy._network.batch(big)
        assert np.isfinite(out).all()


def test_erf_is_accurate() -> None:
    x = np.linspace(-6, 6, 20001).astype(np.float32)
    assert np.abs(erf(x).astype(np.float64) - [math.erf(v) for v in x]).max() < 5e-7


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("observation", [1, 7, -100])
def test_discrete_observations_outside_their_space_are_refused(normalise: bool, observation: int) -> None:
    spec = mlp_spec(DiscreteSpace(5, 2), DiscreteSpace(2), "categorical", normalise_observations=normalise)
    policy = policy_of(spec)
    policy.act(np.int64(6), None, RandomSource(0), True)
    with pytest.raises(ObservationError):
        policy.act(np.int64(observation), None, RandomSource(0), True)


def test_other_kinds_are_registered_by_name() -> None:
    spec = PolicySpec(BoxSpace((8,)), DiscreteSpace(4), "test-kind", tensors=(TensorSpec("w", (3,)),))
    snapshot = PolicySnapshot(0, 0, 0, np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="test-kind"):
        build_policy(spec, snapshot)
    built = []

    def factory(spec: Any, snapshot: Any) -> Any:
        built.append((spec, snapshot))
        return logits_policy([0.0, 1.0])

    register_policy("test-kind", factory)
    register_policy("test-kind", factory)
    build_policy(spec, snapshot)
    assert built == [(spec, snapshot)]
    with pytest.raises(ConfigError, match="already"):
        register_policy("test-kind", lambda spec, snapshot: logits_policy([0.0]))
    with pytest.raises(ConfigError, match="already"):
        register_policy("layers", factory)


@pytest.mark.parametrize("shape", [1, 7, (2, 33), (100, 100)])
def test_uniform_numbers_fill_the_unit_interval(shape: int | tuple[Any, ...]) -> None:
    drawn = RandomSource(4).uniforms(shape)
    assert drawn.shape == np.empty(shape).shape and drawn.dtype == np.float64
    assert np.all((drawn >= 0.0) & (drawn < 1.0))
    if drawn.size >= 10_000:
        counts = np.histogram(drawn, bins=20, range=(0.0, 1.0))[0]
        expected = drawn.size / 20
        assert ((counts - expected) ** 2 / expected).sum() < 19 + 4 * math.sqrt(2 * 19)


def test_normal_numbers_follow_the_normal_distribution() -> None:
    drawn = np.sort(RandomSource(4).normals(20_000).astype(np.float64))
    cumulative = np.array([0.5 * (1.0 + math.erf(x / math.sqrt(2.0))) for x in drawn])
    distance = np.abs(cumulative - np.arange(1, drawn.size + 1) / drawn.size).max()  # the statistic of Kolmogorov and Smirnov
    assert distance * math.sqrt(drawn.size) < 1.63  # exceeded in one of a hundred cases
    assert np.isfinite(drawn).all()
