"""Whether what is in a segment may be trained on: for a whole message at once, and if that does not look right, one by one."""

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
"""Elements looked at in one go, so that the answers for each of them take little room."""


@dataclass(frozen=True, slots=True)
class ContentRules:
    """What the content of a client's segments is compared with.

    Attributes:
        schema: what fits the client's spaces.
        bounds: how large its numbers may be.
        generation: the newest there is; and
        version: the newest of it.
    """

    schema: SegmentSchema
    bounds: Bounds
    generation: int
    version: int


def content_errors(batch: Batch, segments: Sequence[Segment], but: Container[int], standard: ContentRules) -> dict[int, str]:
    """Which segments of a message must not be trained on, by their places, and why.

    Args:
        batch: the message.
        segments: of it.
        but: places that are not looked at.
        standard: what it is compared with.
    """
    undecodable = {place: f"observations: {reason}" for place, reason in batch.decode_images().items()}
    if _is_sound(batch, standard):
        return undecodable
    found = ((place, content_error(segment, standard)) for place, segment in enumerate(segments) if place not in but)
    return {**{place: reason for place, reason in found if reason}, **undecodable}


def _is_sound(batch: Batch, standard: ContentRules) -> bool:
    """True only if no segment has anything wrong with it."""
    heads, generation, version = batch.heads, standard.generation, standard.version
    made, by = heads["generation"], heads["version"]
    if (
        (made > generation).any()
        or ((by > version) & (made == generation)).any()
        or not np.maximum.reduce(np.abs(heads["episode_return"])) <= standard.bounds.max_reward
    ):
        return False
    return all(_is_sound_column(letter, column, standard) for letter, column in batch.columns())


def _is_sound_column(letter: str, column: NDArray[Any], standard: ContentRules) -> bool:
    if letter == "v":
        return int(column.max(initial=0)) <= standard.version
    if letter == "m":
        return bool(column.all() or column.any(axis=1).all())
    schema = standard.schema
    space = schema.action_space if letter == "a" else schema.observation_space if letter == "o" else None
    if isinstance(space, DiscreteSpace):
        low, high = space.start, space.start + space.n - 1
        if column.size and not low <= column.min() <= column.max() <= high:
            return False
    bounds = standard.bounds.of(letter)
    if bounds is not None and not bounds.vacuous:
        return bounds.holds(column)
    return column.dtype.kind != "f" or is_finite(column)


def is_finite(column: NDArray[Any]) -> bool:
    """Whether no element of floats is infinite or not a number.

    A sum is finite only if all its terms are, and takes one look at each; finite terms can add up to more than their type
    holds, so that a sum that is not finite says nothing yet. ``einsum`` adds fastest, and without the interpreter.
    """
    flat = column.reshape(-1)
    if flat.dtype.itemsize > 2 and np.isfinite(np.einsum("i->", flat)):  # a half is added in software: slower than to look
        return True
    return all(np.isfinite(flat[start : start + CHUNK]).all() for start in range(0, flat.size, CHUNK))


def content_error(segment: Segment, standard: ContentRules) -> str:
    """Why a segment must not be trained on, or an empty string: not finite, out of range, all masked, or from the future."""
    schema, generation, version = standard.schema, standard.generation, standard.version
    for letter, name in _NUMBERS.items():
        column = getattr(segment, name)
        if column.dtype.kind == "f" and not is_finite(column):
            return f"{name} are not finite"
        bounds = standard.bounds.of(letter)
        if bounds is not None and not bounds.vacuous and (error := bounds.error(name, column)):
            return error
    if segment.episode_return is not None:
        limit = standard.bounds.max_return(segment.episode_length or 0)
        if not np.isfinite(segment.episode_return):
            return "the episode's return is not finite"
        if abs(segment.episode_return) > limit:
            return f"the episode's return is {segment.episode_return:g}; at most {limit:g} either way is allowed"
    for name, column, space in (
        ("actions", segment.actions, schema.action_space),
        ("observations", segment.observations, schema.observation_space),
    ):
        if isinstance(space, DiscreteSpace) and not ((column >= space.start) & (column < space.start + space.n)).all():
            return f"{name} lie outside {space.start} to {space.start + space.n - 1}"
    if segment.generation > generation or (segment.generation == generation and int(segment.versions.max()) > version):
        return (
            f"it was made by version {int(segment.versions.max())} of generation {segment.generation}, which was never published"
        )
    if segment.masks is not None and not segment.masks[: segment.steps].any(axis=1).all():
        return "a mask forbids every action"
    return ""
