"""Checks and copies of what the host passes to an agent: observations, masks, and actions that override the policy's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ActionError, MaskError, ObservationError
from rl4sys_zmq.policies import AssessingPolicy
from rl4sys_zmq.policies.action_bounds import action_bounds, unbounder
from rl4sys_zmq.policies.base import Mask
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, PolicySpec, Space
from rl4sys_zmq.values.action_layout import action_layout, flat_mask
from rl4sys_zmq.values.arrays import FLOAT_ERRORS, LARGEST_FLOAT32, cast_exactly, fits_float32, without_float_errors
from rl4sys_zmq.values.observations import integer_bounds, leaves_of
from rl4sys_zmq.values.segment import SOURCE_RULE, is_source
from rl4sys_zmq.values.spaces import LeafSpace
from rl4sys_zmq.values.trees import Tree

if TYPE_CHECKING:
    from rl4sys_zmq.actor.action import RL4SysAction

T = TypeVar("T")

MaskRefusal = Callable[[], str]

SMALL = 64
"""The largest number of elements for which `math.hypot` finds infinity, NaN and large numbers faster than numpy."""


class BatchInputs(NamedTuple):
    """The checked observations ``[N, *obs]`` and masks ``[N, n]`` of a batched request, as arrays and as lists of rows."""

    observations: Tree
    masks: Mask
    each: Sequence[Tree]
    rows: Sequence[Mask]


class InputValidator:
    """A validator of a host's observations and masks for one pair of spaces. Its methods return checked copies.

    Attributes:
        plain_dtype, plain_shape: The dtype and shape of observations for the fast path of `ActionSelector.request`. None if the
            space does not permit it.
    """

    def __init__(self, observation_space: ObservationSpace, action_space: Space, mask_refusal: MaskRefusal = lambda: "") -> None:
        self._mask_refusal = mask_refusal
        self._leaves = leaves_of(observation_space)
        self._readers = [_ArrayReader(space) for space in self._leaves.spaces]
        self._only = self._readers[0] if self._leaves.structure is None else None
        if self._only is not None:
            self.observation = self._only.one  # type: ignore[method-assign]
        plain = self._only is not None and self._only.is_plain
        self.plain_dtype: np.dtype[Any] | None = self._readers[0].dtype if plain else None
        self.plain_shape: tuple[int, ...] | None = self._readers[0].shape if plain else None
        self._layout = action_layout(action_space)
        self._actions = self._layout.logits
        self._parts = not isinstance(action_space, DiscreteSpace)

    def count(self, given: object) -> int:
        """Return the number of observations in an unchecked batch."""
        first: Any = self._leaves.flatten(given)[0]
        try:
            return len(first)
        except Exception as exc:
            raise ObservationError(f"expected a batch of observations [N, *obs], not {type(first).__name__}") from exc

    def zero(self) -> Tree:
        """Return an observation of zeros. It stands in for an invalid first observation of an episode."""
        return self._leaves.unflatten(np.zeros(reader.shape, reader.dtype) for reader in self._readers)

    def observation(self, given: object) -> tuple[Tree, bool]:
        """Check and copy one observation. Return it, and True if it had a leading axis of 1."""
        read = self._read(given, _ArrayReader.one)
        return self._leaves.unflatten(leaf for leaf, _ in read), all(leading for _, leading in read)

    def batch(self, given: object, masks: object, count: int) -> BatchInputs:
        """Check and copy `count` observations, and their masks or None."""
        if self._only is not None:
            observations = self._only.rows(given, count)
        else:
            observations = self._leaves.unflatten(self._read(given, lambda reader, leaf: reader.rows(leaf, count)))
        allowed = self.mask(masks, count)
        rows: Sequence[Any] = [None] * count if allowed is None else list(allowed)
        return BatchInputs(observations, allowed, self._leaves.rows(observations), rows)

    def _read(self, given: object, read: Callable[[_ArrayReader, object], T]) -> list[T]:
        """Call `read` for each array of an observation, with the reader of that array. Return the results in order."""
        out = []
        for name, reader, leaf in zip(self._leaves.names, self._readers, self._leaves.flatten(given), strict=True):
            try:
                out.append(read(reader, leaf))
            except ObservationError as exc:
                raise ObservationError(f"{name}: {exc}") from exc
        return out

    def mask(self, given: object, count: int | None = None) -> Mask:
        """Return a checked boolean copy of a mask: ``[n]``, or ``[count, n]`` for a batch."""
        if given is None:
            return None
        if not self._actions:
            raise MaskError("the action space is continuous; a mask needs a discrete one")
        if reason := self._mask_refusal():
            raise MaskError(reason)
        mask = self._read_mask(given, count)
        wanted = (self._actions,) if count is None else (count, self._actions)
        if mask.shape != wanted:
            if count is not None or mask.shape != (1, self._actions):
                raise MaskError(f"the mask has shape {mask.shape}; expected {wanted}")
            mask = mask[0]
        if self._parts:
            forbidden = self._layout.forbidden_choice(mask if count is not None else mask[None])
            if forbidden is not None:
                which = "the mask" if count is None else f"mask {forbidden[0]}"
                raise MaskError(f"{which} forbids every value of {forbidden[1]}")
        elif not mask.any(axis=-1).all():
            raise MaskError(f"the mask forbids all {self._actions} actions")
        return mask

    def _read_mask(self, given: object, count: int | None) -> NDArray[np.bool_]:
        try:
            given = _host(given)
            array = self._mask_array(given, count) if self._parts else np.asarray(given)
            mask = array.astype(np.bool_)
            exact = array.dtype == np.bool_ or np.array_equal(mask, array)
        except MaskError:
            raise
        except Exception as exc:  # also whatever a method of the host's object raises
            raise MaskError(f"the mask can't be read as an array of {self._actions} bools: {exc}") from exc
        if not exact:
            raise MaskError(f"a mask must hold 0 and 1 (or booleans), not {array.tolist()!r:.80}")
        return mask

    def _mask_array(self, given: object, count: int | None) -> NDArray[Any]:
        """Return a host's mask of an action with several parts as one array.

        The mask is an array, or has an array for each part, as in Gymnasium. With `count`, `given` has a mask for each of
        `count` actions, and the result is ``[count, n]``.
        """
        n = self._actions
        flat = flat_mask(given, (n,), (1, n)) if count is None else flat_mask(given, (count, n))
        if flat is not None:
            return flat
        if count is None:
            return self._layout.join_mask(given)
        if not isinstance(given, list | np.ndarray) or len(given) != count:
            raise MaskError(
                f"the masks are {given!r:.60}; expected an array [{count}, {self._actions}] or a list of {count} masks"
            )
        return np.stack([self._layout.join_mask(mask) for mask in given])


class _ArrayReader:
    """A checker and copier of observations that are single arrays, or of one array in each observation."""

    def __init__(self, space: LeafSpace) -> None:
        self.shape, self.dtype = space.shape, np.dtype(space.dtype)
        self.is_plain = self.dtype in (np.float32, np.float64) and len(self.shape) == 1 and self.shape[0] <= SMALL
        self._one = (1, *self.shape)
        self._bounds = integer_bounds(space)

    def one(self, given: object) -> tuple[NDArray[Any], bool]:
        """Check and copy one observation. Return it, and True if it had a leading axis of 1."""
        array = self._array(given)
        leading = False
        if array.shape != self.shape:
            if array.shape != self._one:
                raise ObservationError(f"the observation has shape {array.shape}; expected {self.shape} or {self._one}")
            array, leading = array[0], True
        self._check(array)
        return array, leading

    def rows(self, given: object, count: int) -> NDArray[Any]:
        """Check and copy `count` observations."""
        array = self._array(given)
        if array.shape != (count, *self.shape):
            raise ObservationError(f"the batch has shape {array.shape}; {count} observations have {(count, *self.shape)}")
        self._check(array)
        return array

    def _array(self, given: object) -> NDArray[Any]:
        try:
            try:
                return self._converted(given)
            except FLOAT_ERRORS:
                with np.errstate(all="ignore"):
                    return self._converted(given)
        except Exception as exc:  # also whatever a method of the host's object raises
            raise ObservationError(
                f"expected an observation of dtype {self.dtype} and shape {self.shape}, not {type(given).__name__}: {exc}"
            ) from exc

    def _converted(self, given: object) -> NDArray[Any]:
        given = _host(given)
        if type(given) is np.ndarray and given.dtype == self.dtype:
            return given.copy()
        array = np.asarray(given)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"dtype {array.dtype}")
        if isinstance(given, np.ndarray | np.generic) and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise TypeError(f"dtype {array.dtype} does not fit {self.dtype}")
        return cast_exactly(array, self.dtype)

    def _check(self, array: NDArray[Any]) -> None:
        if self.dtype.kind != "f":
            if self._bounds is not None and not ((array >= self._bounds[0]) & (array <= self._bounds[1])).all():
                low, high = (bound.tolist() for bound in self._bounds)
                raise ObservationError(f"observation {array.tolist()!s:.200} lies outside {low!s:.80} to {high!s:.80}")
            return
        flat = array.ravel()
        if flat.size <= SMALL and math.hypot(*flat.tolist()) <= LARGEST_FLOAT32:
            return  # no number is larger than the length of the vector, which is NaN or infinity if one of them is
        fits = fits_float32(flat)
        if not fits.all():
            index = int(np.argmin(fits))
            limit = "be finite" if not math.isfinite(flat[index]) else f"fit float32, whose limit is {LARGEST_FLOAT32:g}"
            raise ObservationError(f"observation element {index} is {flat[index]}; every element must {limit}")


def _host(given: object) -> object:
    """Return a tensor as a numpy array, any other object unchanged."""
    # Each object with `detach` counts as a tensor, so that the check does not import torch.
    detach = getattr(given, "detach", None)
    if detach is not None:
        return np.asarray(detach().cpu().numpy())
    return given


MAX_SOURCES = 64
"""The largest number of sources of one agent. A message lists at most 255 layouts, two for each source."""


class ActionOverrider:
    """An object that checks and records the actions by which a host overrides a policy's. Several threads can use one."""

    def __init__(self, spec: PolicySpec) -> None:
        space = spec.action_space
        self._layout = action_layout(space)
        self._reader = InputValidator(space, space)  # it converts an action as it does an observation of the same space
        self._squash = str(spec.document.get("squash", "clip")) if "head" in spec.document else "clip"
        self._sources: set[str] = set()

    @without_float_errors
    def override(self, step: RL4SysAction, act: object, source: str, state: Any) -> Tree:
        """Record `act` as the action of a step, with its log-probability. Return a checked copy of `act`."""
        if step.writer is not None:
            raise ActionError("this action is stored already; call override before add_to_trajectory")
        self._check_source(source)
        done = self._checked(act, step.mask)
        if step.raw is not None:
            stamp = step.stamp
            policy: Any = stamp.policy()
            sampler = stamp.sampler
            if isinstance(policy, AssessingPolicy) and sampler is not None:
                raw, log_prob = policy.assess(done, step.obs, step.mask, sampler, state)
            else:
                raw, log_prob = self._raw(done), nan
            step.raw, step.log_prob, step.stamp = raw, float(log_prob), replace(stamp, source=source)
        return done

    def _check_source(self, source: object) -> None:
        if not isinstance(source, str) or not is_source(source):
            raise ActionError(f"the source of an overridden action is {source!r:.60}; {SOURCE_RULE}")
        if source not in self._sources and len(self._sources) >= MAX_SOURCES:
            raise ActionError(f"{source!r} is one source too many; an agent has at most {MAX_SOURCES}")
        self._sources.add(source)

    def _checked(self, action: object, mask: Mask) -> Tree:
        """Return a checked copy of an action, in the dtypes of the space. Raise ActionError if space or mask forbid it."""
        try:
            act = self._reader.observation(action)[0]
        except ObservationError as exc:
            raise ActionError(str(exc).replace("observation", "action")) from exc
        layout = self._layout
        for part, leaf in zip(layout.parts, layout.leaves.flatten(act), strict=True):
            if isinstance(part.space, BoxSpace):
                bounds, flat = action_bounds(part.space), np.asarray(leaf, part.space.dtype).reshape(-1)
                outside = ~((flat >= bounds.low) & (flat <= bounds.high))
                if outside.any():
                    at = int(outside.argmax())
                    limits = f"{bounds.low[at]:g} to {bounds.high[at]:g}"
                    raise ActionError(f"{part.name} element {at} is {flat[at]:g}; the space allows {limits}: clip the action")
        if mask is not None:
            first = np.cumsum((0, *layout.counts[:-1]))
            forbidden = ~mask[first + layout.indices(act)]
            if forbidden.any():
                raise ActionError(f"the mask forbids the action: {layout.name_of(int(forbidden.argmax()))} has a forbidden value")
        space = layout.parts[0].space
        return np.int64(act) if layout.leaves.structure is None and isinstance(space, DiscreteSpace) else act

    def _raw(self, act: Tree) -> Tree:
        """Convert an action for the environment to a raw action, for a policy without `AssessingPolicy.assess`."""
        layout = self._layout
        raw = [
            unbounder(part.space, self._squash)(leaf).reshape(part.space.shape) if isinstance(part.space, BoxSpace) else leaf
            for part, leaf in zip(layout.parts, layout.leaves.flatten(act), strict=True)
        ]
        return layout.leaves.unflatten(raw)
