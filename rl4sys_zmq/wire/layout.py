"""What a segment's columns look like: their letters, dtypes and rows. One short text that segments share.

``"o<f4:8 a<i8 r<f4 l<f4 v<u8"``: for each column its letter, its dtype and, behind a colon, the dimensions of a row joined by
``x``; a row without dimensions is a single number. The letters come in the order ``o a r l v`` and perhaps ``m``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.values import DTYPES, DiscreteSpace, Space

__all__ = ["LETTERS", "NAMES", "Column", "Layout", "action_dtype", "describe", "parse_layout", "wanted_layouts"]

LETTERS = "oarlvm"
NAMES = dict(zip(LETTERS, ("observations", "actions", "rewards", "log_probs", "versions", "masks"), strict=True))
MAX_ROW_BYTES = 1 << 30
MAX_DIMENSIONS = 7
"""Of a row: a column has one more."""

_COLUMN = re.compile(r"([a-z])([^\s:]+)(?::([^\s:]*))?", re.ASCII)
_DIMENSION = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Column:
    """One column, without how many rows it has.

    Attributes:
        letter: which one.
        dtype: of its elements.
        row: the dimensions of a row.
        row_bytes: the bytes of a row, at least 1.
    """

    letter: str
    dtype: np.dtype[Any]
    row: tuple[int, ...]
    row_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of segments that are laid out alike.

    Attributes:
        text: as it travels.
        columns: in the order of their letters.
    """

    text: str
    columns: tuple[Column, ...]


@functools.lru_cache(maxsize=256)
def parse_layout(text: str) -> Layout:
    """Reads what `describe` wrote, from bytes that nobody vouches for.

    Raises:
        ProtocolError: ``malformed`` for another form, ``dtype`` for a dtype that cannot travel, ``shape`` for dimensions that
            cannot be; none of them may be 0, so that nobody claims rows for which there are no bytes.
    """
    found = [_COLUMN.fullmatch(part) for part in text.split(" ")]
    letters = "".join(match[1] if match else "?" for match in found)
    if letters not in (LETTERS, LETTERS[:-1]):
        raise ProtocolError(Refusal.MALFORMED, f"a segment with the columns {text!r:.80}, not {' '.join(LETTERS)}")
    return Layout(text, tuple(_column(match) for match in found if match))


def _column(match: re.Match[str]) -> Column:
    letter, dtype, dimensions = match.groups()
    if dtype not in DTYPES:
        raise ProtocolError(Refusal.DTYPE, f"column {letter} of dtype {dtype!r:.40}")
    parts = [] if dimensions is None else dimensions.split("x")
    if len(parts) > MAX_DIMENSIONS or not all(map(_DIMENSION.fullmatch, parts)):
        raise ProtocolError(Refusal.SHAPE, f"column {letter} with rows of {dimensions!r:.60}")
    row = tuple(map(int, parts))
    row_bytes = prod(row) * np.dtype(dtype).itemsize
    if row_bytes > MAX_ROW_BYTES:
        raise ProtocolError(Refusal.SHAPE, f"column {letter} with rows of {dimensions:.60}: more than {MAX_ROW_BYTES} bytes")
    return Column(letter, np.dtype(dtype), row, row_bytes)


def describe(columns: Sequence[NDArray[Any]]) -> str:
    """The text for these columns, in the order of their letters.

    Raises:
        ProtocolError: when a column's dtype or shape cannot travel.
    """
    return _describe(tuple((column.dtype, column.shape[1:]) for column in columns))


@functools.lru_cache(maxsize=256)
def _describe(columns: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]) -> str:
    parts = []
    for letter, (dtype, row) in zip(LETTERS, columns, strict=False):
        if dtype.str not in DTYPES or dtype.fields is not None:
            raise ProtocolError(Refusal.DTYPE, f"column {letter} of dtype {dtype} cannot travel")
        parts.append(f"{letter}{dtype.str}" + (":" + "x".join(map(str, row)) if row else ""))
    text = " ".join(parts)
    parse_layout(text)
    return text


def action_dtype(space: Space) -> str:
    """The dtype of the actions column: int64 for discrete actions, float32 for the raw sample of a continuous one."""
    return "<i8" if isinstance(space, DiscreteSpace) else "<f4"


def wanted_layouts(observation_space: Space, action_space: Space) -> tuple[str, ...]:
    """The layouts that fit a client's spaces: without masks, and for discrete actions with them."""
    types: list[tuple[np.dtype[Any], tuple[int, ...]]] = [
        (np.dtype(observation_space.dtype), observation_space.shape),
        (np.dtype(action_dtype(action_space)), action_space.shape),
        (np.dtype("<f4"), ()),
        (np.dtype("<f4"), ()),
        (np.dtype("<u8"), ()),
    ]
    plain = _describe(tuple(types))
    if not isinstance(action_space, DiscreteSpace) or action_space.n > MAX_ROW_BYTES:
        return (plain,)
    return plain, _describe((*types, (np.dtype("|b1"), (action_space.n,))))
