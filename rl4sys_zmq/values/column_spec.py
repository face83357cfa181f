"""The declaration of the extra columns that a policy adds to segments, such as a recurrent state or the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import check_name
from rl4sys_zmq.values.spaces import DTYPES

MAX_COLUMNS = 32
"""The largest number of extra columns of one policy."""
MAX_ROW_ELEMENTS = 1 << 20
"""The largest number of elements of one row, so that a received description cannot cause a large allocation."""
MAX_DIMENSIONS = 7
"""The largest number of dimensions of a row. The array of a column has one more, for the steps."""
RESERVED = frozenset({"observations", "actions", "rewards", "log_probs", "versions", "masks"})
"""The names of the standard columns of segments."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """The name, shape and dtype of one extra column that a policy records in segments (parts of episodes).

    Attributes:
        name: The key of the column in `Segment.extras` or `Segment.initial`.
        shape: The shape of one row; ``()`` for a number.
        dtype: One of `DTYPES`, such as ``<f4``. The values of a float column must be finite, with absolute values up to the
            learner's option ``max_magnitude``.
        per: ``"step"`` for one row per step (`Segment.extras`). ``"segment"`` for one row per segment, the value at its first
            step (`Segment.initial`).

    Raises:
        ConfigError: If the name is invalid or the name of a standard column, or another value is invalid.
    """

    name: str
    shape: tuple[int, ...] = ()
    dtype: str = "<f4"
    per: Literal["step", "segment"] = "step"

    def __post_init__(self) -> None:
        check_name(self.name, "columns")
        if self.name in RESERVED:
            raise ConfigError(
                f"an extra column cannot have the name {self.name!r}: every segment has such a column", key="columns"
            )
        if self.dtype not in DTYPES:
            text = f"column {self.name!r} has the unsupported dtype {self.dtype!r:.60}; use one of {', '.join(DTYPES)}"
            raise ConfigError(text, key="columns")
        if self.per not in ("step", "segment"):
            raise ConfigError(f"column {self.name!r} has per={self.per!r:.60}; expected 'step' or 'segment'", key="columns")
        shape = self.shape
        if type(shape) is not tuple or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n > 0 for n in shape):
            text = f"column {self.name!r} has rows of {shape!s:.80}; expected at most {MAX_DIMENSIONS} positive dimensions"
            raise ConfigError(text, key="columns")
        if prod(shape) > MAX_ROW_ELEMENTS:
            text = f"column {self.name!r} has rows of {prod(shape)} elements; the limit is {MAX_ROW_ELEMENTS}"
            raise ConfigError(text, key="columns")


def check_columns(columns: Sequence[ColumnSpec]) -> None:
    """Check the number and the names of the extra columns of one policy."""
    names = [column.name for column in columns]
    if len(names) > MAX_COLUMNS:
        raise ConfigError(f"a policy has {len(names)} extra columns; the limit is {MAX_COLUMNS}", key="columns")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"two extra columns of a policy have the name {min(twice)!r}; give each its own name", key="columns")
