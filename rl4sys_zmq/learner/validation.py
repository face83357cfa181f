"""The check of a segment's content before training: a whole message at once, then segment by segment if that fails."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.learner.bounds import Bounds
from rl4sys_zmq.values import DiscreteSpace, Segment
from rl4sys_zmq.wire import Batch, SegmentSchema

__all__ = ["ContentRules", "content_error", "content_errors", "is_finite"]

_NUMBERS = {"o": "observations", "a": "actions", "r": "rewards", "l": "log_probs"}

CHUNK = 1 << 16
"""Elements checked at a time, so that the intermediate results stay small."""


@dataclass(frozen=True, slots=True)
class ContentRules:
    """The limits for the content of a client's segments.

    Attributes:
        schema: The columns that fit the client's spaces.
        bounds: The allowed ranges of the numbers.
        generation: The newest generation.
        version: The newest version of it.
    """

    schema: SegmentSchema
    bounds: Bounds
    generation: int
    version: int


def content_errors(batch: Batch, segments: Sequence[Segment], but: Container[int], rules: ContentRules) -> dict[int, str]:
    """Return the segments of a message that must not be trained on: the reason by place.

    Args:
        batch: The message.
        segments: Its segments.
        but: Places to skip.
        rules: The limits.
    """
    undecodable = {place: f"observations: {reason}" for place, reason in batch.decode_images().items()}
    if _is_sound(batch, rules):
        return undecodable
    found = ((place, content_error(segment, rules)) for place, segment in enumerate(segments) if place not in but)
    return {**{place: reason for place, reason in found if reason}, **undecodable}


def _is_sound(batch: Batch, rules: ContentRules) -> bool:
    """Return True only if no segment has an error."""
    heads, generation, version = batch.heads, rules.generation, rules.version
    made, by = heads["generation"], heads["version"]
    if (
        (made > generation).any()
        or ((by > version) & (made == generation)).any()
        or not np.maximum.reduce(np.abs(heads["episode_return"])) <= rules.bounds.max_reward
    ):
        return False
    return all(_is_sound_column(letter, column, rules) for letter, column in batch.columns())


def _is_sound_column(letter: str, column: NDArray[Any], rules: ContentRules) -> bool:
    if letter == "v":
        return int(column.max(initial=0)) <= rules.version
    if letter == "m":
        return bool(column.all() or column.any(axis=1).all())
    schema = rules.schema
    space = schema.action_space if letter == "a" else schema.observation_space if letter == "o" else None
    if isinstance(space, DiscreteSpace):
        low, high = space.start, space.start + space.n - 1
        if column.size and not low <= column.min() <= column.max() <= high:
            return False
    bounds = rules.bounds.of(letter)
    if bounds is not None and not bounds.vacuous:
        return bounds.holds(column)
    return column.dtype.kind != "f" or is_finite(column)


def is_finite(column: NDArray[Any]) -> bool:
    """Return True if all elements of a float array are finite.

    A finite sum proves that all terms are finite, in one pass. A non-finite sum proves nothing, because finite terms can add up
    beyond the range of their type. ``einsum`` is the fastest sum and releases the interpreter lock.
    """
    flat = column.reshape(-1)
    if flat.dtype.itemsize > 2 and np.isfinite(np.einsum("i->", flat)):  # float16 sums are slow
        return True
    return all(np.isfinite(flat[start : start + CHUNK]).all() for start in range(0, flat.size, CHUNK))


def content_error(segment: Segment, rules: ContentRules) -> str:
    """Return why a segment must not be trained on, or an empty string.

    It may be non-finite, out of range, fully masked, or made by a version that was never published.
    """
    schema, generation, version = rules.schema, rules.generation, rules.version
    for letter, name in _NUMBERS.items():
        column = getattr(segment, name)
        if column.dtype.kind == "f" and not is_finite(column):
            return f"{name} are not finite"
        bounds = rules.bounds.of(letter)
        if bounds is not None and not bounds.vacuous and (error := bounds.error(name, column)):
            return error
    if segment.episode_return is not None:
        limit = rules.bounds.max_return(segment.episode_length or 0)
        if not np.isfinite(segment.episode_return):
            return "the episode's return is not finite"
        if abs(segment.episode_return) > limit:
            return f"the episode's return is {segment.episode_return:g}; expected at most {limit:g} in absolute value"
    for name, column, space in (
        ("actions", segment.actions, schema.action_space),
        ("observations", segment.observations, schema.observation_space),
    ):
        if isinstance(space, DiscreteSpace) and not ((column >= space.start) & (column < space.start + space.n)).all():
            return f"{name} are outside {space.start} to {space.start + space.n - 1}"
    if segment.generation > generation or (segment.generation == generation and int(segment.versions.max()) > version):
        return (
            f"it was made by version {int(segment.versions.max())} of generation {segment.generation}, which was never published"
        )
    if segment.masks is not None and not segment.masks[: segment.steps].any(axis=1).all():
        return "a mask forbids every action"
    return ""
