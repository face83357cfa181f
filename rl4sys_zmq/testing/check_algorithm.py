"""A test function for authors of learning algorithms."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.algorithms import (
    Algorithm,
    AlgorithmEntry,
    AlgorithmFactory,
    TunableAlgorithm,
    UndoableAlgorithm,
    WarmStartAlgorithm,
)
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.run.state_tree import pack_state, unpack_state
from rl4sys_zmq.policies import ExtraColumnPolicy, RandomSource, build_policy
from rl4sys_zmq.testing.check_policy import random_observations, require_refusal
from rl4sys_zmq.values import (
    NO_EXTRAS,
    BoxSpace,
    DiscreteSpace,
    FlatWeights,
    ObservationSpace,
    PolicySnapshot,
    Segment,
    Space,
)
from rl4sys_zmq.values.observations import leaves_of

_CLOSE = 1e-4
_UNKNOWN = "no_parameter_has_this_name"

SegmentLogProbs = Callable[[Any, Segment], NDArray[Any]]
"""Type of a function ``log_probs(algorithm, segment) -> [T]``.

It returns the log-probability of each of the segment's ``T`` actions, as the algorithm computes it in training.
"""


def check_algorithm(
    factory: AlgorithmFactory | AlgorithmEntry,
    *,
    observation_space: ObservationSpace | None = None,
    action_space: Space | None = None,
    parameters: Mapping[str, object] | None = None,
    seed: int = 0,
    max_steps: int = 20_000,
    log_probs: SegmentLogProbs | None = None,
) -> None:
    """Check that an algorithm behaves as `rl4sys_zmq.learner.Algorithm` requires.

    The algorithm trains on the actions of its own policy in a random environment. Its weights must depend only on its seed and on
    the segments that it observed: a second run and a run from a checkpoint must give the same weights. The kind of its policy
    must be registered.

    Args:
        factory: Function that creates the algorithm, or its `AlgorithmEntry`, whose `plan` is checked too.
        observation_space: Observation space. None: a Box of 4 numbers.
        action_space: Action space. None: 2 discrete actions.
        parameters: Parameters of the algorithm. Choose small updates, so that the check is fast.
        seed: Seed of all random choices.
        max_steps: Largest number of steps before each update; the check makes three updates.
        log_probs: Function that returns log-probabilities as the algorithm computes them in training. They must equal those of
            the acting policy. None: they are not compared.

    Raises:
        AssertionError: If a requirement is violated. The message has the requirement and the numbers.
    """
    observations = observation_space if observation_space is not None else BoxSpace((4,))
    actions = action_space if action_space is not None else DiscreteSpace(2)
    values = dict(parameters or {})
    create = factory.load() if isinstance(factory, AlgorithmEntry) else factory

    def make() -> Algorithm:
        return create(observations, actions, dict(values), seed)

    algorithm = make()
    _check_attributes(algorithm, observations, actions)
    if isinstance(factory, AlgorithmEntry):
        _check_entry(factory, algorithm, observations, actions, values)
    _check_unknown_parameter(lambda: create(observations, actions, {**values, _UNKNOWN: 1}, seed))
    _check_snapshot(algorithm)
    _check_nothing_to_do(algorithm)
    _check_training(make, seed, max_steps, log_probs)
    _check_partial(make(), seed)


class _RandomEnvironment:
    """A random environment in which an algorithm's newest policy acts. The object returns the steps as segments."""

    def __init__(self, algorithm: Algorithm, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._sampler = RandomSource(seed)
        self._episode, self._index, self._version = 1, 0, 0
        self._state: Any = None
        self.algorithm = algorithm
        self.publish()

    def publish(self) -> None:
        """Use the algorithm's current weights for all further actions."""
        spec = self.algorithm.spec()
        weights = spec.flatten(self.algorithm.snapshot())
        self._policy = build_policy(spec, PolicySnapshot(1, self._version, 0, *weights))
        self._version += 1

    def segment(self, steps: int | None = None) -> Segment:
        """Return the next segment of random play, with read-only arrays."""
        spec, length = self.algorithm.spec(), self.algorithm.rollout_length
        count = steps if steps is not None else int(self._rng.integers(1, length + 1))
        terminated, truncated = (self._rng.random(2) < 0.4).tolist()
        observations = random_observations(spec.observation_space, count + (not terminated), self._rng)
        leaves = leaves_of(spec.observation_space)
        acts = [self._choose(row) for row in leaves.rows(observations)[:count]]
        extras = {c.name: _column(acts, c.name, c.dtype) for c in spec.columns if c.per == "step"}
        initial = {c.name: _column(acts[:1], c.name, c.dtype)[0, ...] for c in spec.columns if c.per == "segment"}
        action_leaves = leaves_of(spec.action_space, "actions")
        actions = action_leaves.stack([raw for raw, _, _ in acts])
        columns: dict[str, NDArray[Any]] = {
            "rewards": self._rng.normal(size=count).astype(np.float32),
            "log_probs": np.array([log_prob for _, log_prob, _ in acts], dtype=np.float32),
            "versions": np.full(count, self._policy.version, dtype=np.uint64),
        }
        arrays = (*leaves.flatten(observations), *action_leaves.flatten(actions), *columns.values())
        for column in (*arrays, *extras.values(), *initial.values()):
            column.flags.writeable = False
        made = Segment(
            observations=observations,
            actions=actions,
            **columns,  # type: ignore[arg-type]
            masks=None,
            generation=1,
            episode_id=self._episode,
            segment_index=self._index,
            terminated=terminated,
            truncated=truncated and not terminated,
            episode_return=0.0 if terminated or truncated else None,
            episode_length=count if terminated or truncated else None,
            extras=extras or NO_EXTRAS,
            initial=initial or NO_EXTRAS,
        )
        self._episode, self._index = (self._episode + 1, 0) if made.ended else (self._episode, self._index + 1)
        self._state = None if made.ended else self._state
        return made

    def _choose(self, observation: Any) -> tuple[Any, float, Mapping[str, Any]]:
        """Choose an action. Return the raw action, its log-probability, and the policy's extra columns."""
        if isinstance(self._policy, ExtraColumnPolicy):
            choice = self._policy.step(observation, None, self._sampler, True, self._state)
            raw, _, log_prob, columns, self._state = choice
            return raw, log_prob, columns
        raw, _, log_prob = self._policy.act(observation, None, self._sampler, True)
        return raw, log_prob, NO_EXTRAS


def _column(acts: list[tuple[Any, float, Mapping[str, Any]]], name: str, dtype: str) -> NDArray[Any]:
    return np.array([columns[name] for _, _, columns in acts], dtype=dtype)


def _check_attributes(algorithm: Algorithm, observations: ObservationSpace, actions: Space) -> None:
    assert isinstance(algorithm, Algorithm), f"{type(algorithm).__name__} lacks a method or an attribute of Algorithm"
    assert algorithm.kind in ("onpolicy", "offpolicy"), f"kind is {algorithm.kind!r}; expected 'onpolicy' or 'offpolicy'"
    assert type(algorithm.rollout_length) is int and algorithm.rollout_length >= 1, f"rollout_length={algorithm.rollout_length!r}"
    every = algorithm.publish_every_updates
    assert type(every) is int and every >= 1, f"publish_every_updates is {every!r}; expected an integer of at least 1"
    lag = algorithm.max_policy_lag
    assert lag is None or (type(lag) is int and lag >= 0), f"max_policy_lag is {lag!r}; expected None or an integer of at least 0"
    spec = algorithm.spec()
    assert (spec.observation_space, spec.action_space) == (observations, actions), "spec() has different spaces"


def _check_entry(
    entry: AlgorithmEntry, algorithm: Algorithm, observations: ObservationSpace, actions: Space, values: Mapping[str, object]
) -> None:
    assert entry.kind in ("", algorithm.kind), f"the entry has the kind {entry.kind}, the algorithm {algorithm.kind}"
    entry.read(values)
    if entry.staleness is not None:
        said, limit = entry.staleness.max_policy_lag, algorithm.max_policy_lag
        assert said == limit, f"the entry has max_policy_lag {said}, the algorithm {limit}"
    if entry.changeable:
        assert isinstance(algorithm, TunableAlgorithm), f"the entry says that {sorted(entry.changeable)} can change: no `change`"
        names = {entry.name_of(name) for name in entry.changeable}
        known = {field.name for field in fields(entry.parameters)} if entry.parameters is not None else set()
        assert names <= known, f"the entry declares no parameters {sorted(names - known)}, but says that they can change"
    if entry.plan is not None:
        assert entry.plan(observations, actions, values) == algorithm.spec(), "the entry plans a different policy"
        _check_unknown_parameter(lambda: entry.plan and entry.plan(observations, actions, {**values, _UNKNOWN: 1}))


def _check_unknown_parameter(make: Callable[[], object]) -> None:
    require_refusal(ConfigError, make, f"the unknown parameter {_UNKNOWN!r} does not raise ConfigError")


def _check_snapshot(algorithm: Algorithm) -> None:
    spec, tensors = algorithm.spec(), algorithm.snapshot()
    assert spec == algorithm.spec(), "spec() returns different values"
    shapes = {tensor.name: tensor.shape for tensor in spec.tensors}
    actual = {name: tensor.shape for name, tensor in tensors.items()}
    assert actual == shapes, f"snapshot() has the tensors {actual}; spec() has {shapes}"
    for expected in spec.tensors:
        dtype = tensors[expected.name].dtype
        assert dtype == expected.dtype, f"tensor {expected.name!r} of the snapshot is {dtype}; expected {expected.dtype}"
    weights = spec.flatten(tensors)
    assert _is_finite(algorithm), "the first snapshot is not finite"
    for tensor in tensors.values():
        tensor.fill(7.0)
    assert _equal(weights, spec.flatten(algorithm.snapshot())), "snapshot() returns views of the weights, not copies"


def _check_nothing_to_do(algorithm: Algorithm) -> None:
    demand = algorithm.demand()
    assert type(demand) is int and demand >= 0, f"demand() is {demand!r}; expected an integer of at least 0"
    for partial in ({}, {"partial": True}):
        metrics = algorithm.update(**partial)
        assert metrics is None, f"update({partial}) returns {metrics} before any segment is observed; expected None"


def _check_training(make: Callable[[], Algorithm], seed: int, max_steps: int, log_probs: SegmentLogProbs | None) -> None:
    """Train for three updates, and compare the weights with a second run and with a run that resumes from a checkpoint."""
    states = _global_states()
    world = _RandomEnvironment(make(), seed)
    segments: list[list[Segment]] = []
    first = world.algorithm.spec().flatten(world.algorithm.snapshot())
    while len(segments) < 3:
        before = sum(len(batch) for batch in segments)
        segments.append(_one_update(world, max_steps, log_probs))
        assert len(segments) == 1 or before, "update() trains without data"
        if len(segments) == 2:
            saved = world.algorithm.state()
            tree, arrays = pack_state(saved)
    algorithm, spec = world.algorithm, world.algorithm.spec()
    assert not _equal(first, spec.flatten(algorithm.snapshot())), "three updates change no weight"
    assert states == _global_states(), "the algorithm changes a global random state of numpy, random or torch"
    final = spec.flatten(algorithm.snapshot())
    twin = make()
    for batch in segments:
        _train_on(twin, batch)
    assert _equal(final, spec.flatten(twin.snapshot())), "two runs with equal seeds and segments give different weights"
    for name, state in (("the same process", saved), ("a checkpoint", unpack_state(tree, arrays))):
        loaded = make()
        loaded.load(state)
        _train_on(loaded, segments[2])
        complaint = f"training from the state after {name} gives different weights; a part of the state is missing or not a copy"
        assert _equal(final, spec.flatten(loaded.snapshot())), complaint
    fresh = make()
    require_refusal(Exception, lambda: fresh.load({}), "load() accepts an empty state")
    _check_warm_start(make(), algorithm)
    if isinstance(algorithm, UndoableAlgorithm):
        for segment in segments[2]:
            algorithm.observe(segment)
        held = spec.flatten(algorithm.snapshot())
        kept = algorithm.checkpoint()
        while algorithm.update() is not None:
            continue
        algorithm.restore(kept)
        assert _equal(held, spec.flatten(algorithm.snapshot())), "restore() does not restore the weights of checkpoint()"


def _check_warm_start(fresh: Algorithm, trained: Algorithm) -> None:
    """Check the method `load_policy`, if the algorithm has it, with the weights of another, trained object."""
    if not isinstance(fresh, WarmStartAlgorithm):
        return
    given = {name: np.array(tensor) for name, tensor in trained.snapshot().items()}
    fresh.load_policy(given)
    taken = [name for name, tensor in fresh.snapshot().items() if np.array_equal(tensor, given[name])]
    assert taken, "snapshot() has none of the tensors that load_policy() was given"
    wanted = {name: given[name].copy() for name in taken}
    for tensor in given.values():
        tensor.fill(0)
    kept = fresh.snapshot()
    views = [name for name in taken if not np.array_equal(kept[name], wanted[name])]
    assert not views, f"load_policy() keeps views of the given tensors instead of copies: {', '.join(views)}"


def _one_update(world: _RandomEnvironment, max_steps: int, log_probs: SegmentLogProbs | None) -> list[Segment]:
    """Pass segments to the algorithm until an update happens. Return these segments."""
    algorithm, observed, steps = world.algorithm, list[Segment](), 0
    while True:
        segment = world.segment()
        if log_probs is not None:
            theirs = np.asarray(log_probs(algorithm, segment))
            complaint = f"the acting policy has the log-probabilities {segment.log_probs}, the training side {theirs}"
            assert np.allclose(segment.log_probs, theirs, rtol=_CLOSE, atol=_CLOSE), complaint
        algorithm.observe(segment)
        observed.append(segment)
        steps += segment.steps
        enough = algorithm.demand() == 0 and algorithm.kind == "onpolicy"
        metrics = algorithm.update()
        if metrics is not None:
            break
        assert not enough, "demand() is 0 but update() returns None: actors would stop collecting, and no update would happen"
        assert steps < max_steps, f"no update after {steps} steps; give parameters with smaller updates, or a larger max_steps"
    while algorithm.update() is not None:
        continue
    bad = {name: value for name, value in metrics.items() if not math.isfinite(value)}
    assert not bad, f"some metrics are not finite: {bad}"
    assert _is_finite(algorithm), "weights are not finite after an update on ordinary data"
    world.publish()
    return observed


def _train_on(algorithm: Algorithm, segments: list[Segment]) -> None:
    for segment in segments:
        algorithm.observe(segment)
        while algorithm.update() is not None:
            continue


def _check_partial(algorithm: Algorithm, seed: int) -> None:
    if algorithm.kind == "onpolicy":
        algorithm.observe(_RandomEnvironment(algorithm, seed).segment(steps=1))
        assert algorithm.update(partial=True) is not None, "update(partial=True) does not use the one step that was observed"
        assert algorithm.update(partial=True) is None, "update(partial=True) trains twice on the same data"


def _is_finite(algorithm: Algorithm) -> bool:
    return all(bool(np.isfinite(tensor).all()) for tensor in algorithm.snapshot().values())


def _equal(one: tuple[FlatWeights, bytes], other: tuple[FlatWeights, bytes]) -> bool:
    return np.array_equal(one[0], other[0]) and one[1] == other[1]


def _global_states() -> list[Any]:
    """Return the states of the global random generators of Python, numpy and, if it is imported, torch."""
    numpy_state: Any = np.random.get_state()
    states = [random.getstate(), numpy_state[0], bytes(numpy_state[1]), numpy_state[2:]]
    if "torch" in sys.modules:
        states.append(sys.modules["torch"].get_rng_state().numpy().tobytes())
    return states
