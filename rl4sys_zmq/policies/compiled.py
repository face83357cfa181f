"""A policy that chooses single actions with compiled code, and everything else with the policy in numpy of the same weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.policies.action_heads import action_scalars
from rl4sys_zmq.policies.base import Act, Action, Choice, Choices, Mask
from rl4sys_zmq.policies.network_policy import NetworkPolicy, build_layers
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec
from rl4sys_zmq.values.trees import Tree

if TYPE_CHECKING:
    from rl4sys_zmq import _native


class CompiledRandomSource(RandomSource):
    """A `RandomSource` whose generator is compiled code: one sequence for compiled policies and for policies in numpy."""

    __slots__ = ("sampler",)

    def __init__(self, native: ModuleType, seed: int | None = None, place: float = 0.0) -> None:
        self.place = place
        seed = random.SystemRandom().getrandbits(128) if seed is None else seed
        self.sampler: _native.Sampler = native.Sampler(seed.to_bytes((seed.bit_length() + 7) // 8, "little"), place)
        self.uniform = self.sampler.uniform

    def uniforms(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        """Return uniform numbers, as `RandomSource.uniforms` does."""
        bits = np.frombuffer(self.sampler.random_bytes(shape if isinstance(shape, int) else prod(shape)), dtype="<u8")
        drawn: NDArray[np.float64] = np.multiply(bits >> np.uint64(11), 2.0**-53, dtype=np.float64)
        return drawn.reshape(shape)

    def normals(self, count: int) -> NDArray[np.float32]:
        """Return the next standard normal numbers, as `RandomSource.normals` does."""
        return np.frombuffer(self.sampler.normals(count), dtype=np.float32)


class CompiledPolicy:
    """A policy of the kind ``layers`` without a state, in compiled code. It implements `Policy` and `AssessingPolicy`."""

    def __init__(self, spec: PolicySpec, native: _native.Policy, snapshot: PolicySnapshot) -> None:
        self.native, self._spec, self.snapshot = native, spec, snapshot
        self.generation, self.version = snapshot.generation, snapshot.version

    @cached_property
    def _in_numpy(self) -> NetworkPolicy:
        policy = build_layers(self._spec, self.snapshot)
        assert isinstance(policy, NetworkPolicy)
        return policy

    def act(self, observation: Tree, mask: Mask, rng: RandomSource, explore: bool) -> Choice:
        """Choose one action, as `Policy.act` describes."""
        return self.bind(rng, explore)(observation, mask)

    def bind(self, rng: RandomSource, explore: bool) -> Act:
        """Return a faster form of `act` for one thread, with the given `rng` and `explore`."""
        if not isinstance(rng, CompiledRandomSource):
            return self._in_numpy.bind(rng, explore)
        chooser = self.native.bind(rng.sampler, explore)
        choose = chooser.choose
        spaces = self._spec.observation_space, self._spec.action_space
        inputs, outputs = _inputs(spaces[0]), _outputs(spaces[1])
        forbids_all = self._in_numpy_act

        def act(observation: Any, mask: Mask) -> Choice:
            allowed = None if mask is None else np.ascontiguousarray(mask, dtype=np.bool_)
            if allowed is not None and not (discrete and allowed.any()):
                return forbids_all(observation, mask if discrete else None, rng, explore)
            return outputs(*choose(inputs(observation), allowed))

        discrete = isinstance(spaces[1], DiscreteSpace)
        act.chooser = chooser  # type: ignore[attr-defined]
        return act

    def act_batch(self, observations: Tree, masks: Mask, rng: RandomSource, explore: bool) -> Choices:
        """Choose many actions, as `Policy.act_batch` describes."""
        return self._in_numpy.act_batch(observations, masks, rng, explore)

    def assess(self, act: Action, observation: Tree, mask: Mask, rng: RandomSource, state: Any) -> tuple[Action, float]:
        """Assess an action, as `AssessingPolicy.assess` describes."""
        return self._in_numpy.assess(act, observation, mask, rng, state)

    def _in_numpy_act(self, observation: Tree, mask: Mask, rng: RandomSource, explore: bool) -> Choice:
        return self._in_numpy.act(observation, mask, rng, explore)


def _inputs(space: Any) -> Callable[[Any], Any]:
    """Return the function from an observation to what compiled code reads: an index, or contiguous float32 numbers."""
    if isinstance(space, DiscreteSpace):
        start = space.start
        return lambda observation: int(observation) - start
    return lambda observation: np.ascontiguousarray(observation, dtype=np.float32)


def _outputs(space: Any) -> Callable[[Any, Any, float], Choice]:
    """Return the function from a compiled choice to a `Choice`."""
    if isinstance(space, DiscreteSpace):
        actions, start = action_scalars(space), space.start

        def scalar(raw: int, act: int, log_prob: float) -> Choice:
            action = actions[raw - start]
            return action, action, log_prob

        return scalar
    assert isinstance(space, BoxSpace)
    raws, acts = _box_arrays(space)
    return lambda raw, act, log_prob: (raws(raw), acts(act), log_prob)


ArrayMaker = Callable[[bytes], NDArray[Any]]
"""A function from bytes to a new array."""


def _box_arrays(space: BoxSpace) -> tuple[ArrayMaker, ArrayMaker]:
    """Return the functions that make arrays of the raw action (float32) and of the action for the environment (float64)."""
    shape, dtype = space.shape, np.dtype(space.dtype)
    return (
        lambda raw: np.frombuffer(bytearray(raw), dtype=np.float32).reshape(shape),
        lambda act: np.frombuffer(act, dtype=np.float64).reshape(shape).astype(dtype),
    )


def step_arrays(spec: PolicySpec) -> tuple[int, int, tuple[ArrayMaker, ...], list[Any]]:
    """Return what a compiled step needs to make objects: the first action, the numbers of a Box, array makers, and scalars."""
    observations, actions = spec.observation_space, spec.action_space
    dtype = np.dtype(cast(BoxSpace, observations).dtype)

    def observation(data: bytes) -> NDArray[Any]:
        return np.frombuffer(bytearray(data), dtype=dtype)

    if isinstance(actions, DiscreteSpace):
        return actions.start, 0, (observation,), list(action_scalars(actions))
    assert isinstance(actions, BoxSpace)
    raws, acts = _box_arrays(actions)

    def locked(act: bytes) -> NDArray[Any]:
        array = acts(act)
        array.flags.writeable = False
        return array

    return 0, actions.size, (observation, raws, locked), []
