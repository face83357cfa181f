"""The columns of a segment: its layout, and the schema of a client, which has the layouts that its segments can have.

A layout is one short text with the letter, dtype and row shape of each column, such as ``"o<f4:8 a<i8 r<f4 l<f4 v<u8"``. The
dimensions of a row follow a colon, joined by ``x``. The columns are, in this order:

- ``o``: observations, one column for each array of a nested observation. ``a``: actions, in the same way.
- ``r``: rewards. ``l``: log-probabilities. ``v``: policy versions.
- ``m``: masks of allowed actions, if the segment has them.
- ``x``: extra columns of the policy with a row per step. ``i``: extra columns with one row per segment.

The text ends with ``@`` and a source, such as ``@human``, if the host overrode the policy's actions (`Segment.source`). The
policy spec has the keys of nested observations and actions, and the names of extra columns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.values import DTYPES, BoxSpace, ColumnSpec, DiscreteSpace, ObservationSpace, PolicySpec, Space
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.segment import MAX_COLUMNS, SOURCE_RULE, is_source
from rl4sys_zmq.values.space_conversion import MAX_LEAVES
from rl4sys_zmq.values.spaces import LeafSpace

LETTERS = "oarlvm"
MAX_ROW_BYTES = 1 << 30
MAX_DIMENSIONS = 7
"""The largest number of dimensions of a row. The array of a column has one more."""

_ORDER = re.compile("o+a+rlvm?x*i*", re.ASCII)
_COLUMN = re.compile(r"([a-z])([^\s:]+)(?::([^\s:]*))?", re.ASCII)
_DIMENSION = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)


@immutable
class ColumnLayout:
    """The form of one column of a segment.

    Attributes:
        letter: The contents: ``o`` observations, ``a`` actions, ``r`` rewards, ``l`` log-probabilities, ``v`` policy versions,
            ``m`` masks, ``x`` or ``i`` an extra column.
        row: Shape of a row; ``()`` for a number.
        row_bytes: Size of a row in bytes, at least 1.
    """

    letter: str
    dtype: np.dtype[Any]
    row: tuple[int, ...]
    row_bytes: int


@immutable
class SegmentLayout:
    """The form of a segment: which columns it has, each with its dtype and the shape of a row. Many segments share one layout.

    Attributes:
        text: The layout as text, such as ``o<f4:8 a<i8 r<f4 l<f4 v<u8``.
        columns: The columns. Their letters are in the order ``o a r l v m x i``.
        leaves: Number of columns of observations.
        actions: Number of columns of actions.
        standard: Number of columns before the extra columns, which a policy can add.
        source: The source of the actions, such as ``human``, if the host overrode the policy's; else empty.
    """

    text: str
    columns: tuple[ColumnLayout, ...]
    leaves: int
    actions: int
    has_masks: bool
    standard: int
    source: str = ""

    def names(self, schema: SegmentSchema | None = None) -> list[str]:
        """Return the name of each column: that of `schema`, or if the schema does not fit, one such as ``observations[0]``."""
        known = ((), (), ()) if schema is None else (schema.leaves.names, schema.actions.leaves.names, schema.extra_names)
        leaves, actions, extras = known
        observed = leaves if len(leaves) == self.leaves else _indexed("observations", self.leaves)
        acted = actions if len(actions) == self.actions else _indexed("actions", self.actions)
        standard = ("rewards", "log_probs", "versions", "masks")[: self.standard - len(observed) - len(acted)]
        count = len(self.columns) - self.standard
        unnamed = [f"extra_{n}" for n in range(len(extras), count)]
        return [*observed, *acted, *standard, *extras[:count], *unnamed]


def _indexed(name: str, count: int) -> list[str]:
    return [f"{name}[{n}]" for n in range(count)] if count > 1 else [name]


@functools.lru_cache(maxsize=256)
def parse_layout(text: str) -> SegmentLayout:
    """Return the layout that a text from an untrusted peer describes. Raise ProtocolError if the text is invalid."""
    columns, mark, source = text.partition(" @")
    if mark and not is_source(source):
        raise ProtocolError(RefusalReason.MALFORMED, f"the source of overridden actions is {source!r:.60}; {SOURCE_RULE}")
    matches = [_COLUMN.fullmatch(part) for part in columns.split(" ")]
    letters = "".join(match[1] if match else "?" for match in matches)
    leaves, standard = letters.find("a"), letters.find("v") + 1 + ("m" in letters)
    actions = letters.find("r") - leaves
    if _ORDER.fullmatch(letters) is None or max(leaves, actions) > MAX_LEAVES or len(letters) > standard + MAX_COLUMNS:
        expected = (
            f"{' '.join(LETTERS)} with at most {MAX_LEAVES} columns o and as many a, and at most {MAX_COLUMNS} extra columns"
        )
        raise ProtocolError(RefusalReason.MALFORMED, f"a segment has the columns {text!r:.80}; expected {expected}")
    described = tuple(_column(match) for match in matches if match)
    return SegmentLayout(text, described, leaves, actions, "m" in letters, standard, source)


def _column(match: re.Match[str]) -> ColumnLayout:
    letter, dtype, dimensions = match.groups()
    if dtype not in DTYPES:
        raise ProtocolError(RefusalReason.DTYPE, f"column {letter} has the unsupported dtype {dtype!r:.40}")
    parts = [] if dimensions is None else dimensions.split("x")
    if len(parts) > MAX_DIMENSIONS or not all(map(_DIMENSION.fullmatch, parts)):
        raise ProtocolError(RefusalReason.SHAPE, f"column {letter} has rows of the invalid shape {dimensions!r:.60}")
    row = tuple(map(int, parts))
    row_bytes = prod(row) * np.dtype(dtype).itemsize
    if row_bytes > MAX_ROW_BYTES:
        raise ProtocolError(
            RefusalReason.SHAPE, f"column {letter} has rows of {dimensions:.60}; the limit is {MAX_ROW_BYTES} bytes"
        )
    return ColumnLayout(letter, np.dtype(dtype), row, row_bytes)


@functools.lru_cache(maxsize=256)
def describe(letters: str, columns: tuple[tuple[np.dtype[Any], tuple[int, ...]], ...], source: str) -> str:
    """Return a layout as text, from the letter, dtype and row shape of each column. `source` is `SegmentLayout.source`."""
    parts = []
    for letter, (dtype, row) in zip(letters, columns, strict=True):
        if dtype.str not in DTYPES or dtype.fields is not None:
            raise ProtocolError(RefusalReason.DTYPE, f"column {letter} of dtype {dtype} cannot travel")
        parts.append(_text_of(letter, dtype.str, row))
    text = " ".join(parts) + (f" @{source}" if source else "")
    parse_layout(text)
    return text


def action_dtype(space: LeafSpace) -> str:
    """Return the dtype of a column of actions: int64 for Discrete, float32 for Box, else the dtype of the space."""
    return "<i8" if isinstance(space, DiscreteSpace) else "<f4" if isinstance(space, BoxSpace) else space.dtype


class SegmentSchema:
    """The columns that a client's segments must have, and their largest number of steps.

    Attributes:
        extras: The extra columns: first those with a row per step, then those with one row per segment.
        discrete: The spaces of discrete actions and observations, by the name of their column.
        layouts: The allowed layouts as texts: one without masks and, if actions have a discrete part, another with masks.
    """

    def __init__(
        self, observation_space: ObservationSpace, action_space: Space, max_steps: int, extras: Sequence[ColumnSpec] = ()
    ) -> None:
        self.observation_space, self.action_space, self.max_steps = observation_space, action_space, max_steps
        self.extras = tuple(sorted(extras, key=lambda column: column.per == "segment"))
        self.extra_names = tuple(column.name for column in self.extras)
        self.leaves, self.actions = leaves_of(observation_space), action_layout(action_space)
        named = [pair for one in (self.actions.leaves, self.leaves) for pair in zip(one.names, one.spaces, strict=True)]
        self.discrete = {name: space for name, space in named if isinstance(space, DiscreteSpace)}
        standard = [
            *(_text_of("o", leaf.dtype, leaf.shape) for leaf in self.leaves.spaces),
            *(_text_of("a", action_dtype(part.space), part.space.shape) for part in self.actions.parts),
            "r<f4 l<f4 v<u8",
        ]
        more = [_text_of("x" if column.per == "step" else "i", column.dtype, column.shape) for column in self.extras]
        layouts = [" ".join([*standard, *more])]
        if 0 < self.actions.logits <= MAX_ROW_BYTES:
            layouts.append(" ".join([*standard, f"m|b1:{self.actions.logits}", *more]))
        self.layouts = tuple(parse_layout(text).text for text in layouts)

    @classmethod
    def of(cls, spec: PolicySpec, max_steps: int) -> SegmentSchema:
        """Return the schema of the segments that actors with a policy send."""
        return cls(spec.observation_space, spec.action_space, max_steps, spec.columns)

    def check(self, layout: SegmentLayout) -> ProtocolError | None:
        """Return an error if segments with this layout do not fit the schema, else None."""
        if layout.text.partition(" @")[0] in self.layouts:
            return None
        if layout.has_masks and not self.actions.logits:
            return ProtocolError(RefusalReason.SPEC, "masks for a continuous action space")
        wanted = parse_layout(self.layouts[-1 if layout.has_masks else 0])
        for name, column, own in zip(layout.names(self), layout.columns, wanted.columns, strict=False):
            if column != own and column.letter == own.letter:
                said, ours = (f"{c.dtype.str} with rows of {c.row}" for c in (column, own))
                return ProtocolError(RefusalReason.SPEC, f"{name} are {said}; expected {ours}")
        return ProtocolError(RefusalReason.SPEC, f"the columns are {layout.text:.80}; expected {wanted.text:.80}")


def _text_of(letter: str, dtype: str, row: tuple[int, ...]) -> str:
    return f"{letter}{dtype}" + (":" + "x".join(map(str, row)) if row else "")
