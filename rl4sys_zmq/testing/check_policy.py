"""A test function for authors of policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, MaskError
from rl4sys_zmq.policies import AssessingPolicy, ExtraColumnPolicy, Policy, RandomSource, bind, build_policy
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, PolicySnapshot, PolicySpec, other_bytes
from rl4sys_zmq.values.observations import integer_bounds, leaves_of
from rl4sys_zmq.values.policy import TENSOR_DTYPES
from rl4sys_zmq.values.spaces import LeafSpace
from rl4sys_zmq.values.trees import Tree, copy_tree, flatten
from rl4sys_zmq.wire import spec_body, spec_from_document, spec_to_document

LogProbs = Callable[[Mapping[str, NDArray[Any]], Any, NDArray[Any]], NDArray[Any]]
"""Type of a function ``log_probs(tensors, observations [N, *obs], raw_actions [N, *act]) -> [N]``.

It returns the log-probabilities of raw actions, as the algorithm computes them in training.
"""

_ROWS = 16
_DRAWS = 4000
_CLOSE = 1e-4
_SIGMAS = 5.0


def check_policy(
    spec: PolicySpec,
    tensors: Mapping[str, NDArray[Any]] | None = None,
    *,
    seed: int = 0,
    log_probs: LogProbs | None = None,
    masks: bool = True,
) -> None:
    """Check that the policy that a spec describes behaves as `rl4sys_zmq.policies.Policy` requires.

    The kind of the policy must be registered. The spec is encoded and decoded as for the network. Then the policy is built and
    acts on random observations. The check requires:

    - Actions depend only on the weights, the observations and the `RandomSource` of random numbers.
    - Log-probabilities agree with the frequencies of the drawn actions, with `act_batch` and with `log_probs`.
    - Extra columns have the shapes and dtypes of the spec, and depend only on the arguments of `step`.

    Args:
        spec: Spec of the policy to build.
        tensors: Weights by name. None: random floats with a standard deviation of 0.3; integers and booleans are 0.
        seed: Seed of all random choices.
        log_probs: Function that returns the log-probabilities of raw actions, as the algorithm computes them in training, without
            masks of forbidden actions. None: they are not compared.
        masks: True if the policy obeys masks of forbidden actions. False if its documentation says that it ignores them.

    Raises:
        AssertionError: If a requirement is violated. The message has the requirement and the numbers.
        ConfigError: If the kind is not registered, or the policy cannot be built.
    """
    again = spec_from_document(spec_to_document(spec), spec_body(spec))
    assert again == spec, "the spec changes when it is encoded and decoded"
    rng = np.random.default_rng(seed)
    flat, others = spec.flatten(tensors if tensors is not None else _random_tensors(spec, rng))
    snapshot = PolicySnapshot(3, 7, 0, flat, others)
    before = flat.tobytes()
    policy = build_policy(again, snapshot)
    assert (policy.generation, policy.version) == (3, 7), f"the version is {policy.generation}.{policy.version}, not 3.7"
    assert policy.snapshot is snapshot, "policy.snapshot is not the snapshot that the policy was built from"
    batch = random_observations(spec.observation_space, _ROWS, rng)
    leaves = leaves_of(spec.observation_space)
    observations = leaves.rows(batch)
    _check_single(policy, spec, observations, seed)
    _check_batch(policy, spec, observations, seed)
    if isinstance(policy, ExtraColumnPolicy):
        _check_columns(policy, spec, observations, seed)
    if isinstance(spec.action_space, DiscreteSpace):
        _check_frequencies(policy, spec, observations[0], seed)
        if masks and spec.action_space.n > 1:
            _check_masks(policy, spec, observations, seed)
    if log_probs is not None:
        raw, _, ours = policy.act_batch(batch, None, RandomSource(seed), True)
        theirs = np.asarray(log_probs(spec.views(flat, others), batch, raw), dtype=np.float64)
        assert np.allclose(ours, theirs, rtol=_CLOSE, atol=_CLOSE), f"log-probabilities {ours}; the training side has {theirs}"
    assert flat.tobytes() == before, "the policy has changed its snapshot"
    _check_refusal(again, flat, others)


def _random_tensors(spec: PolicySpec, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    tensors = spec.views(rng.normal(0.0, 0.3, spec.size).astype(np.float32), bytes(other_bytes(spec.others)))
    for tensor in spec.others:
        if TENSOR_DTYPES[tensor.dtype].kind == "f":
            tensors[tensor.name] = rng.normal(0.0, 0.3, tensor.shape).astype(tensor.dtype)
    if "obs_scale" in tensors:
        tensors["obs_scale"] = np.abs(tensors["obs_scale"])
    return tensors


def random_observations(space: ObservationSpace, count: int, rng: np.random.Generator) -> Tree:
    """Return `count` random observations of a space, within its bounds."""
    leaves = leaves_of(space)
    return leaves.unflatten(_random_array(leaf, count, rng) for leaf in leaves.spaces)


def _random_array(space: LeafSpace, count: int, rng: np.random.Generator) -> NDArray[Any]:
    bounds = integer_bounds(space)
    if bounds is not None:
        return rng.integers(bounds[0], bounds[1], (count, *space.shape), endpoint=True).astype(space.dtype)
    assert isinstance(space, BoxSpace)
    dtype = np.dtype(space.dtype)
    least, most = (-100.0, 100.0) if dtype.kind == "i" else (0.0, 255.0) if dtype.kind == "u" else (-3.0, 3.0)
    low, high = space.low_array(), space.high_array()
    low = np.where(np.isfinite(low), low, np.minimum(least, high))
    high = np.where(np.isfinite(high), high, np.maximum(most, low))
    drawn: NDArray[Any] = rng.uniform(low, high, (count, *space.shape))
    return drawn.round().astype(dtype) if dtype.kind in "iub" else drawn.astype(dtype)


def _check_single(policy: Policy, spec: PolicySpec, observations: Sequence[Any], seed: int) -> None:
    draws: list[list[Any]] = [
        [policy.act(o, None, rng, True) for o in observations] for rng in (RandomSource(seed), RandomSource(seed))
    ]
    assert _same(draws[0], draws[1]), "equal random numbers give different actions: the policy uses another random source"
    bound = bind(policy, RandomSource(seed), True)
    own = [tuple(map(copy_tree, bound(o, None))) for o in observations]  # the next call can change its arrays
    assert _same(draws[0], own, _CLOSE), "`bind` and `act` give different actions"
    for raw, action, log_prob in draws[0]:
        _check_action(spec, raw, action)
        assert math.isfinite(log_prob), f"a log-probability is {log_prob}"
    if isinstance(policy, AssessingPolicy):
        for observation, (_, action, _) in zip(observations, draws[0], strict=True):
            raw, log_prob = policy.assess(action, observation, None, RandomSource(seed), None)
            _check_action(spec, raw, action)
            assert not math.isnan(log_prob), f"`assess` returns the log-probability {log_prob}"
    for observation in observations:
        modes = [policy.act(observation, None, RandomSource(seed + i), False) for i in range(2)]
        assert _same(modes[:1], modes[1:]), "with explore=False the action depends on the random numbers"


def _check_batch(policy: Policy, spec: PolicySpec, observations: Sequence[Any], seed: int) -> None:
    for explore in (True, False):
        raw, actions, log_probs = policy.act_batch(_stack(spec, observations), None, RandomSource(seed), explore)
        count = len(observations)
        assert log_probs.shape == (count,), f"act_batch has log-probabilities of shape {log_probs.shape}, not {(count,)}"
        leaves = leaves_of(spec.action_space, "actions")
        for name, column in zip(2 * leaves.names, [*leaves.flatten(raw), *leaves.flatten(actions)], strict=True):
            assert len(column) == count, f"act_batch returns {len(column)} {name} for {count} observations"
        assert np.isfinite(log_probs).all(), f"act_batch returns log-probabilities that are not finite: {log_probs}"
        for one_raw, one_action in zip(leaves.rows(raw), leaves.rows(actions), strict=True):
            _check_action(spec, one_raw, one_action)
    rows = zip(leaves.rows(raw), leaves.rows(actions), log_probs, strict=True)
    for index, (observation, row) in enumerate(zip(observations, rows, strict=True)):
        one = policy.act(observation, None, RandomSource(seed), False)
        said = f"row {index}: act gives {one[0]} with log-probability {one[2]}, act_batch {row[0]} with {row[2]}"
        assert _same([one], [row], _CLOSE), said


def _check_columns(policy: ExtraColumnPolicy, spec: PolicySpec, observations: Sequence[Any], seed: int) -> None:
    """Play one episode with a policy that has extra columns. Repeat all steps, alone and as a batch, and compare."""
    dtypes = {column.name: np.dtype(column.dtype) for column in spec.columns}
    shapes = {column.name: column.shape for column in spec.columns}
    states: list[Any] = [None]
    steps = []
    for n, observation in enumerate(observations):
        step = policy.step(observation, None, RandomSource(seed + n), False, states[-1])
        columns = {name: np.array(value) for name, value in step[3].items()}
        actual = {name: column.shape for name, column in columns.items()}
        assert actual == shapes, f"step returns columns with the shapes {actual}; the spec has {shapes}"
        for name, column in columns.items():
            complaint = f"column {name!r} is {column.dtype}, which does not fit {dtypes[name]}"
            assert np.can_cast(column.dtype, dtypes[name], "same_kind"), complaint
            assert column.dtype.kind != "f" or np.isfinite(column).all(), f"column {name!r} is not finite: {column}"
        steps.append((copy_tree(step[0]), step[2], columns))
        states.append(step[4])
    for n, observation in enumerate(observations):
        raw, _, log_prob, again, _ = policy.step(observation, None, RandomSource(seed + n), False, states[n])
        complaint = (
            f"a second step from the state after {n} steps differs: the policy changes a state, or depends on more than that"
        )
        assert _same([(raw, log_prob)], [steps[n][:2]]), complaint
        assert all(np.array_equal(value, steps[n][2][name]) for name, value in again.items()), complaint
    raws, _, log_probs, batch, after = policy.step_batch(_stack(spec, observations), None, RandomSource(seed), False, states[:-1])
    assert len(after) == len(observations), f"step_batch returns {len(after)} states for {len(observations)} observations"
    rows = zip(leaves_of(spec.action_space, "actions").rows(raws), log_probs, strict=True)
    for n, ((raw, log_prob, columns), row) in enumerate(zip(steps, rows, strict=True)):
        complaint = f"row {n}: step gives {raw} with {log_prob} and the columns {columns}, step_batch differs"
        assert _same([(raw, log_prob)], [row], _CLOSE), complaint
        assert batch.keys() == columns.keys(), f"step_batch returns the columns {sorted(batch)}; the spec has {sorted(shapes)}"
        for name, column in columns.items():
            assert np.shape(batch[name]) == (len(observations), *shapes[name]), f"{complaint}: {name} is {np.shape(batch[name])}"
            assert np.allclose(column, batch[name][n], rtol=_CLOSE, atol=_CLOSE), complaint


def _check_action(spec: PolicySpec, raw: Tree, action: Tree) -> None:
    leaves = leaves_of(spec.action_space, "actions")
    for space, one, other in zip(leaves.spaces, leaves.flatten(raw), leaves.flatten(action), strict=True):
        _check_part(space, np.asarray(one), np.asarray(other))


def _check_part(space: LeafSpace, raw: NDArray[Any], action: NDArray[Any]) -> None:
    assert raw.shape == action.shape == space.shape, f"the action has shapes {raw.shape} and {action.shape}, not {space.shape}"
    if isinstance(space, DiscreteSpace):
        assert raw.dtype == np.int64 and raw == action, f"actions {raw!r} and {action!r}; expected the same int64"
        assert space.start <= raw < space.start + space.n, f"action {raw} is outside {space.start}..{space.start + space.n - 1}"
        return
    if not isinstance(space, BoxSpace):
        assert raw.dtype == action.dtype == np.dtype(space.dtype), f"actions of {raw.dtype} and {action.dtype}, not {space.dtype}"
        bounds = integer_bounds(space)
        assert bounds is not None and ((raw >= bounds[0]) & (raw <= bounds[1])).all(), f"action {raw} is outside {space!s:.80}"
        assert (raw == action).all(), f"actions {raw} and {action}; expected the same"
        return
    assert raw.dtype == np.float32, f"the raw action is {raw.dtype}; expected float32"
    assert action.dtype == np.dtype(space.dtype), f"the action is {action.dtype}; expected {space.dtype}"
    assert (action >= space.low_array()).all() and (action <= space.high_array()).all(), f"action {action} is out of bounds"


def _check_frequencies(policy: Policy, spec: PolicySpec, observation: Any, seed: int) -> None:
    """Check that the frequency of each drawn action agrees with its log-probability."""
    many = _stack(spec, [observation] * _DRAWS)
    raw, _, log_probs = policy.act_batch(many, None, RandomSource(seed), True)
    for action in np.unique(raw):
        chosen = raw == action
        chance = float(np.exp(log_probs[chosen][0]))
        spread = max(math.sqrt(chance * (1.0 - chance) / _DRAWS), 1.0 / _DRAWS) if chance <= 1.0 else 0.0
        said = f"action {action} was drawn in {chosen.mean():.4f} of {_DRAWS} cases; its log-probability implies {chance:.4f}"
        assert abs(float(chosen.mean()) - chance) <= _SIGMAS * spread, said


def _check_masks(policy: Policy, spec: PolicySpec, observations: Sequence[Any], seed: int) -> None:
    space = spec.action_space
    assert isinstance(space, DiscreteSpace)
    masks = np.zeros((len(observations), space.n), dtype=np.bool_)
    masks[np.arange(len(masks)), np.arange(len(masks)) % space.n] = True
    for explore in (True, False):
        raw, _, log_probs = policy.act_batch(_stack(spec, observations), masks, RandomSource(seed), explore)
        expected = space.start + np.arange(len(masks)) % space.n
        assert np.array_equal(raw, expected), f"with one action allowed in each row, act_batch chose {raw}; expected {expected}"
        assert np.allclose(log_probs, 0.0, atol=_CLOSE), f"the only allowed action has the log-probability {log_probs}, not 0"
        for index, observation in enumerate(observations):
            one, _, _ = policy.act(observation, masks[index], RandomSource(seed), explore)
            assert one == expected[index], f"with only action {expected[index]} allowed, act chose {one}"
    nothing = np.zeros((1, space.n), dtype=np.bool_)
    for act in (
        lambda: policy.act(observations[0], nothing[0], RandomSource(seed), True),
        lambda: policy.act_batch(_stack(spec, observations[:1]), nothing, RandomSource(seed), True),
    ):
        require_refusal(MaskError, act, "a mask that forbids every action does not raise MaskError")


def _check_refusal(spec: PolicySpec, flat: NDArray[np.float32], others: bytes) -> None:
    cases = [(PolicySnapshot(3, 8, 0, np.append(flat, np.float32(0.0)), others), f"{flat.size + 1} numbers")]
    if others:
        cases.append((PolicySnapshot(3, 8, 0, flat, others + bytes(4)), f"{len(others) + 4} bytes of other tensors"))
    for snapshot, content in cases:
        complaint = f"a snapshot of {content}, more than the policy has, does not raise ConfigError"
        require_refusal(ConfigError, partial(build_policy, spec, snapshot), complaint)


def require_refusal(kind: type[Exception], call: Callable[[], object], complaint: str) -> None:
    """Raise `AssertionError` with the text `complaint` if `call` does not raise an exception of class `kind`."""
    try:
        call()
    except kind:
        return
    raise AssertionError(complaint)


def _stack(spec: PolicySpec, observations: Sequence[Any]) -> Tree:
    return leaves_of(spec.observation_space).stack(observations)


def _same(one: list[Any], other: list[Any], tolerance: float = 0.0) -> bool:
    """Return True if two lists of tuples of actions and log-probabilities agree within the tolerance."""
    pairs = [pair for a, b in zip(one, other, strict=True) for pair in zip(a, b, strict=True)]
    leaves = (zip(flatten(x, by_key=True)[0], flatten(y, by_key=True)[0], strict=True) for x, y in pairs)
    return all(np.allclose(x, y, rtol=tolerance, atol=tolerance) for each in leaves for x, y in each)
