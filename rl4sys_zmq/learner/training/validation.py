"""The decoding of messages with segments, and the check of their numbers before training. First a whole message is checked; if
the check fails, each of its segments.

The bounds of a space give the allowed range. Values without bounds are limited by ``max_magnitude`` and ``max_reward``. Real
systems and environments exceed the bounds of their Box: in Gymnasium's LunarLander-v3, the height can be 200, and its bound is
2.5. So the range of floats is wider than the Box (`BEYOND`).

A check for finite numbers is not enough. Some devices report "no reading" as the largest float, and the square of one such
number makes a gradient infinite. The options leave room for any sensor: with the default limit of 1e15, the sum of the squares
of a hundred million numbers is finite in float32.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.delivery.stream import Key
from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment
from rl4sys_zmq.values.observations import integer_bounds
from rl4sys_zmq.values.spaces import LeafSpace
from rl4sys_zmq.wire import SegmentBatchReader, SegmentSchema, encode, read_segments
from rl4sys_zmq.wire.thread_messages import DeliverSegments, QuarantinedSegment

MAX_LOG_PROB = 100.0
"""Largest absolute value of a negative log-probability, for each dimension of the action.

No sampler draws less probable actions, and float32 cannot represent their probability ratios.
"""

MAX_LOG_DENSITY = 1e18
"""Largest log-probability of an action with numbers, which is a density.

A Gaussian squashed by tanh has a log-density of about ``2 |u|``, where ``u`` is an output of the network. Such a density makes
the probability ratio 0. The square of the limit is finite in float32.
"""

CERTAIN = 1e-3
"""Largest log-probability of a discrete action: 0 (a probability of 1), plus a tolerance for rounding errors."""

BEYOND = 100.0
"""Distance by which floats of an observation can be outside the bounds of a Box, as a multiple of the distance of the bounds."""

ROUNDING = 4
"""Further tolerance for floats outside the bounds of a Box space, in units in the last place (float rounding errors)."""

TILE = 512
"""Number of elements to compare in one row of an array. Shorter rows are joined, because numpy is slow with short rows."""


class ColumnValueLimits:
    """The allowed range of the values in one column of a segment. Elements of a row can have different ranges."""

    def __init__(
        self,
        low: NDArray[np.float64],
        high: NDArray[np.float64],
        dtype: np.dtype[Any],
        slack: NDArray[np.float64] | float = 0.0,
    ) -> None:
        self._shown = low.reshape(-1), high.reshape(-1), np.broadcast_to(slack, low.shape).reshape(-1)
        low, high = low - slack, high + slack
        info: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype) if dtype.kind in "iu" else None
        # True if no value of the dtype is outside the range, so that no check is needed.
        self.vacuous = info is None or bool((low <= float(info.min)).all() and (high >= float(info.max)).all())
        self._low, self._high = low.reshape(-1), high.reshape(-1)
        self._same = bool((self._low == self._low[0]).all() and (self._high == self._high[0]).all())
        self._least, self._most = float(self._low[0]), float(self._high[0])
        self._rows = max(1, TILE // len(self._low))
        self._tiles = np.tile(self._low, self._rows), np.tile(self._high, self._rows)

    def holds(self, column: NDArray[Any]) -> bool:
        """Return True if all values of a column ``[T, ...]`` are inside the range. NaN is outside."""
        if not column.size:
            return True
        if self._same:
            flat = column.reshape(-1)
            return bool(np.minimum.reduce(flat) >= self._least and np.maximum.reduce(flat) <= self._most)
        table = column.reshape(-1, len(self._low))
        whole = len(table) // self._rows * self._rows
        head = not whole or _fits(table[:whole].reshape(-1, len(self._tiles[0])), *self._tiles)
        return head and (whole == len(table) or _fits(table[whole:], self._low, self._high))

    def error(self, name: str, column: NDArray[Any]) -> str:
        """Return an error message for the first value outside the range; empty if there is none."""
        table = column.reshape(-1, len(self._low))
        outside = ~((table >= self._low) & (table <= self._high))
        if not outside.any():
            return ""
        row, place = np.unravel_index(int(outside.argmax()), outside.shape)
        low, high, slack = (shown[place] for shown in self._shown)
        where = f" (element {place})" if len(self._low) > 1 else ""
        beyond = f", or at most {slack:g} beyond" if slack else ""
        return f"{name} contain {float(table[row, place]):g}{where}; expected {low:g} to {high:g}{beyond}"


def _fits(table: NDArray[Any], low: NDArray[np.float64], high: NDArray[np.float64]) -> bool:
    return bool((np.minimum.reduce(table) >= low).all() and (np.maximum.reduce(table) <= high).all())


class SegmentValueLimits:
    """The allowed ranges of all columns in the segments that one policy is trained on."""

    def __init__(self, schema: SegmentSchema, max_magnitude: float, max_reward: float, *, in_box: bool = False) -> None:
        self.max_reward = max_reward
        actions = schema.actions
        least = -MAX_LOG_PROB * max(1, actions.choices + actions.numbers)
        self._ranges = {
            "rewards": _flat_range(-max_reward, max_reward),
            "log_probs": _flat_range(least, MAX_LOG_DENSITY if actions.numbers else CERTAIN * actions.choices),
        }
        for name, leaf in zip(schema.leaves.names, schema.leaves.spaces, strict=True):
            if not isinstance(leaf, DiscreteSpace):
                self._ranges[name] = _of_leaf(leaf, max_magnitude)
        for part in actions.parts:
            if isinstance(part.space, BoxSpace):
                bounds = np.abs([part.space.low_array(), part.space.high_array()]) if in_box else np.zeros(1)
                largest = max(max_magnitude, float(bounds.max()))
                self._ranges[part.name] = _flat_range(-largest, largest)
            elif not isinstance(part.space, DiscreteSpace):
                self._ranges[part.name] = _of_leaf(part.space, max_magnitude)
        for extra in schema.extras:
            if np.dtype(extra.dtype).kind == "f":
                self._ranges[extra.name] = _flat_range(-max_magnitude, max_magnitude, extra.dtype)

    def of(self, name: str) -> ColumnValueLimits | None:
        return self._ranges.get(name)

    def max_return(self, steps: int) -> float:
        """Return the largest absolute value of the return of an episode with this many steps."""
        return self.max_reward * max(steps, 1)


def _flat_range(low: float, high: float, dtype: str = "<f4") -> ColumnValueLimits:
    return ColumnValueLimits(np.array([low]), np.array([high]), np.dtype(dtype))


def _of_leaf(space: LeafSpace, max_magnitude: float) -> ColumnValueLimits:
    dtype = np.dtype(space.dtype)
    bounds = integer_bounds(space)
    if bounds is not None:
        return ColumnValueLimits(bounds[0].astype(np.float64), bounds[1].astype(np.float64), dtype)
    assert isinstance(space, BoxSpace)
    low, high = space.low_array(), space.high_array()
    largest = np.maximum(np.abs(low), np.abs(high))
    if dtype.kind != "f":
        return ColumnValueLimits(low, high, dtype)
    bounded = largest <= max_magnitude
    rounding = ROUNDING * float(np.finfo(dtype if dtype.itemsize == 2 else np.float32).eps)
    low, high = np.where(bounded, low, -max_magnitude), np.where(bounded, high, max_magnitude)
    slack = np.where(bounded, np.minimum(BEYOND * (high - low) + rounding * largest, max_magnitude - largest), 0.0)
    return ColumnValueLimits(low, high, dtype, slack)


CHUNK = 1 << 16
"""Number of elements checked at a time, so that intermediate arrays stay small."""


@dataclass(frozen=True, slots=True)
class SegmentContentRules:
    schema: SegmentSchema
    bounds: SegmentValueLimits
    generation: int  # of the learner thread that trains the policy now
    version: int  # the newest that it has published. Segments of later versions are errors.


@dataclass(slots=True, eq=False)
class DecodedSegmentMessage:
    """A decoded message with segments of one actor. It is kept as long as a segment of it may have to be quarantined."""

    key: Key
    batch: SegmentBatchReader
    segments: list[Segment]  # empty after `release`
    refused: dict[int, ProtocolError]  # the error of each segment that the gateway has refused, by the segment's index
    bad: dict[int, str]  # the problem of each segment with invalid content, by the segment's index
    oldest: list[int]  # the lowest policy version among the steps of each segment
    nbytes: int

    def release(self) -> None:
        """Free the memory of the decoded segments and images. `dead_letter` needs only the message."""
        self.segments.clear()
        self.batch.release_images()

    def dead_letter(self, index: int, reason: str) -> QuarantinedSegment:
        return QuarantinedSegment(*self.key, self.batch.first_seq + index, reason, tuple(encode(self.batch.alone(index))))


def decode_message(message: DeliverSegments, rules: SegmentContentRules, first_version: int) -> DecodedSegmentMessage:
    """Decode and check a message. A version of an earlier learner thread above `first_version` counts as `first_version`."""
    batch = message.batch if message.batch is not None else read_segments(message.body)
    batch.schema = rules.schema  # the gateway has given the batch away
    segments = batch.segments()
    refused = batch.errors(rules.schema) if message.refused else {}  # the same check as in the gateway
    bad = content_errors(batch, segments, refused, rules)
    oldest = batch.oldest(rules.generation, first_version)
    nbytes = sum(len(frame) for frame in message.body)
    return DecodedSegmentMessage((message.actor_id, message.origin), batch, segments, refused, bad, oldest, nbytes)


def content_errors(
    batch: SegmentBatchReader, segments: Sequence[Segment], skip: Container[int], rules: SegmentContentRules
) -> dict[int, str]:
    """Check the contents of a message's segments, except those in `skip`.

    Return a dict from the index of each segment that cannot be trained on to the reason.
    """
    undecodable = {index: f"observations: {reason}" for index, reason in batch.decode_images().items()}
    # A journal can hold segments that an earlier configuration of the client accepted.
    unfit = {index: error.detail for index, error in batch.layout_errors(rules.schema).items() if index not in skip}
    if not unfit and _is_sound(batch, rules):
        return undecodable
    whole = (index for index in range(len(segments)) if index not in skip and index not in unfit)
    reasons = ((index, content_error(segments[index], rules)) for index in whole)
    return {**{index: reason for index, reason in reasons if reason}, **undecodable, **unfit}


def _is_sound(batch: SegmentBatchReader, rules: SegmentContentRules) -> bool:
    """Check a whole message at once, which is fast. True means that no segment has an error; False means that one can have."""
    heads, generation, version = batch.heads, rules.generation, rules.version
    made, by = heads["generation"], heads["version"]
    if (
        np.maximum.reduce(made) > generation
        or (np.maximum.reduce(by) > version and ((by > version) & (made == generation)).any())
        or not np.maximum.reduce(np.abs(heads["episode_return"])) <= rules.bounds.max_reward
    ):
        return False
    return all(_is_sound_column(name, column, rules) for name, column in batch.columns())


def _is_sound_column(name: str, column: NDArray[Any], rules: SegmentContentRules) -> bool:
    if name == "versions":
        return not column.size or int(np.maximum.reduce(column)) <= rules.version
    if name == "masks":
        return bool(column.all()) or rules.schema.actions.forbidden_choice(column) is None
    return not _column_error(name, column, rules)


def _column_error(name: str, column: NDArray[Any], rules: SegmentContentRules) -> str:
    space = rules.schema.discrete.get(name)
    if space is not None and column.size:
        low, high = space.start, space.start + space.n - 1
        flat = column.reshape(-1)
        if not low <= np.minimum.reduce(flat) <= np.maximum.reduce(flat) <= high:
            return f"{name} are outside {low} to {high}"
    bounds = rules.bounds.of(name)
    if bounds is not None and not bounds.vacuous and bounds.holds(column):
        return ""
    if column.dtype.kind == "f" and not is_finite(column):
        return f"{name} are not finite"
    return bounds.error(name, column) if bounds is not None and not bounds.vacuous else ""


def is_finite(column: NDArray[Any]) -> bool:
    """Return True if all elements of a float array are finite."""
    # A finite sum has finite elements. Finite elements can have an infinite sum, so then each one is checked. `einsum` is the
    # fastest way to compute the sum, and releases the interpreter lock.
    flat = column.reshape(-1)
    if flat.dtype.itemsize > 2 and np.isfinite(np.einsum("i->", flat)):  # float16 sums are slow
        return True
    return all(np.isfinite(flat[start : start + CHUNK]).all() for start in range(0, flat.size, CHUNK))


def content_error(segment: Segment, rules: SegmentContentRules) -> str:
    """Return the reason why a segment must not be trained on; empty if there is none.

    Reasons are a number that is not finite or out of range, a mask that forbids every action, and a version that was never
    published.
    """
    schema, generation, version = rules.schema, rules.generation, rules.version
    columns = dict(zip(schema.leaves.names, schema.leaves.flatten(segment.observations), strict=True))
    acted = schema.actions.leaves
    columns.update(zip(acted.names, acted.flatten(segment.actions), strict=True))
    columns.update(rewards=segment.rewards, log_probs=segment.log_probs)
    if segment.source:  # NaN: unknown; minus infinity: the policy never takes the action
        columns["log_probs"] = np.where(segment.log_probs > 0.0, segment.log_probs, np.float32(0.0))
    for name, column in (*columns.items(), *segment.extras.items(), *segment.initial.items()):
        if error := _column_error(name, column, rules):
            return error
    if segment.episode_return is not None:
        limit = rules.bounds.max_return(segment.episode_length or 0)
        if not np.isfinite(segment.episode_return):
            return "the episode's return is not finite"
        if abs(segment.episode_return) > limit:
            return f"the episode's return is {segment.episode_return:g}; expected at most {limit:g} in absolute value"
    if segment.generation > generation or (segment.generation == generation and int(segment.versions.max()) > version):
        return (
            f"it was made by version {int(segment.versions.max())} of generation {segment.generation}, which was never published"
        )
    if segment.masks is not None and (forbidden := schema.actions.forbidden_choice(segment.masks[: segment.steps])) is not None:
        return "the mask of step {} forbids every value of {}".format(*forbidden)
    return ""
