"""Observation and action spaces as plain values: what a Gymnasium space says, without Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError

__all__ = ["DTYPES", "BoxSpace", "DiscreteSpace", "Space", "space_from", "space_to_json"]

DTYPES = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
"""The dtypes that may travel, as numpy writes them: little-endian numbers and booleans, nothing else."""

MAX_DIMENSIONS = 7
"""Of a box: a column has one more."""
MAX_ELEMENTS = 1 << 26
"""Of a box: a description that somebody sent must not make anybody allocate more."""

_BY_NAME = {np.dtype(d).name: d for d in DTYPES} | {d: d for d in DTYPES}
Bound = float | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BoxSpace:
    """An array of fixed shape and dtype, each element between two bounds.

    Bounds are a number when all elements share it, else a row-major tuple with one number per element; infinities are
    allowed.
    """

    shape: tuple[int, ...]
    dtype: str = "<f4"
    low: Bound = -np.inf
    high: Bound = np.inf

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"a box of dtype {self.dtype!r} cannot travel; use one of {', '.join(DTYPES)}", key="dtype")
        if len(self.shape) > MAX_DIMENSIONS or not all(type(n) is int and n > 0 for n in self.shape):
            raise ConfigError(f"a box needs at most {MAX_DIMENSIONS} positive dimensions, not {self.shape!s:.80}", key="shape")
        if self.size > MAX_ELEMENTS:
            raise ConfigError(f"a box of {self.size} elements; the limit is {MAX_ELEMENTS}", key="shape")
        for key in ("low", "high"):
            bound = getattr(self, key)
            if isinstance(bound, tuple) and len(bound) != self.size:
                raise ConfigError(f"{key} has {len(bound)} numbers for a box of {self.size} elements", key=key)
        if not bool(np.all(np.asarray(self.low) <= np.asarray(self.high))):
            raise ConfigError(f"a box needs low <= high, not {self.low} and {self.high}", key="low")

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def bounded(self) -> bool:
        """True when every element has two finite bounds."""
        return bool(np.all(np.isfinite(self.low)) and np.all(np.isfinite(self.high)))

    def low_array(self) -> NDArray[np.float64]:
        """The lower bounds, float64 of `shape`."""
        return _spread(self.low, self.shape)

    def high_array(self) -> NDArray[np.float64]:
        """The upper bounds, float64 of `shape`."""
        return _spread(self.high, self.shape)


@dataclass(frozen=True, slots=True)
class DiscreteSpace:
    """One of `n` integers from `start` on."""

    n: int
    start: int = 0

    def __post_init__(self) -> None:
        if type(self.n) is not int or self.n < 1:
            raise ConfigError(f"a discrete space needs n >= 1, not {self.n!r}", key="n")
        if type(self.start) is not int:
            raise ConfigError(f"a discrete space starts at an integer, not {self.start!r}", key="start")

    @property
    def shape(self) -> tuple[int, ...]:
        """Always ``()``: a scalar."""
        return ()

    @property
    def dtype(self) -> str:
        """Always 64-bit integers."""
        return "<i8"


Space = BoxSpace | DiscreteSpace


def space_from(value: object) -> Space:
    """Reads a space from one of ours, from a Gymnasium space (by its attributes), or from its JSON form.

    The JSON forms are ``{"type": "Box", "shape": [8], "dtype": "float32", "low": -1, "high": 1}`` and
    ``{"type": "Discrete", "n": 4, "start": 0}``.

    Raises:
        ConfigError: for any other value; it names the kinds that are supported.
    """
    if isinstance(value, (BoxSpace, DiscreteSpace)):
        return value
    if isinstance(value, Mapping) and not hasattr(value, "sample"):  # Gymnasium's Dict is a mapping too
        return _from_json(value)
    kind = type(value).__name__
    if kind == "Discrete":
        return DiscreteSpace(int(getattr(value, "n")), int(getattr(value, "start", 0)))
    if kind == "Box":
        low, high = np.asarray(getattr(value, "low")), np.asarray(getattr(value, "high"))
        dtype = np.dtype(getattr(value, "dtype", low.dtype)).newbyteorder("<").str
        return BoxSpace(tuple(int(n) for n in low.shape), dtype, _fold(low), _fold(high))
    raise ConfigError(
        f"a space of type {kind} is not supported: use Box or Discrete (gymnasium.wrappers.FlattenObservation makes a Box)"
    )


def space_to_json(space: Space) -> dict[str, Any]:
    """The JSON form that `space_from` reads; infinite bounds are left out, so that the form is strict JSON."""
    if isinstance(space, DiscreteSpace):
        return {"type": "Discrete", "n": space.n, "start": space.start}
    out: dict[str, Any] = {"type": "Box", "shape": list(space.shape), "dtype": np.dtype(space.dtype).name}
    for key, bound, absent in (("low", space.low, -np.inf), ("high", space.high, np.inf)):
        if bound != absent:
            out[key] = [_finite_or_name(b) for b in bound] if isinstance(bound, tuple) else _finite_or_name(bound)
    return out


def _finite_or_name(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)


def _from_json(form: Mapping[Any, Any]) -> Space:
    kind = form.get("type")
    allowed = {"Box": {"type", "shape", "dtype", "low", "high"}, "Discrete": {"type", "n", "start"}}
    if type(kind) is not str or kind not in allowed:
        raise ConfigError(f'a space needs "type": "Box" or "Discrete", not {kind!r}', key="type")
    unknown = sorted(set(form) - allowed[kind], key=str)
    if unknown:
        raise ConfigError(
            f"unknown key {unknown[0]!r} in a {kind} space; valid: {', '.join(sorted(allowed[kind]))}", key=unknown[0]
        )
    try:
        if kind == "Discrete":
            return DiscreteSpace(_integer(form["n"]), _integer(form.get("start", 0)))
        shape = tuple(_integer(n) for n in form["shape"])
        dtype = _dtype(form.get("dtype", "float32"))
        return BoxSpace(shape, dtype, _bound(form.get("low", -np.inf), shape), _bound(form.get("high", np.inf), shape))
    except (KeyError, TypeError, ValueError) as exc:
        raise ConfigError(f"not a {kind} space: {dict(form)!r:.200} ({exc})") from exc


def _dtype(name: object) -> str:
    """Looked up, never built out of somebody's words: numpy reads a small language there."""
    if type(name) is not str or name not in _BY_NAME:
        raise ConfigError(f"a box of dtype {name!r:.60} cannot travel; use one of {', '.join(sorted(_BY_NAME))}", key="dtype")
    return _BY_NAME[name]


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not an integer")
    return value


def _bound(value: float | str | Sequence[float | str], shape: tuple[int, ...]) -> Bound:
    if isinstance(value, (int, float, str)):
        return float(value)
    array = np.asarray([float(v) for v in np.asarray(value, dtype=object).ravel()])
    if array.size != prod(shape):
        raise ValueError(f"a bound of {array.size} numbers for shape {shape}")
    return _fold(array)


def _fold(array: NDArray[Any]) -> Bound:
    flat = array.astype(np.float64).ravel()
    if flat.size and np.all(flat == flat[0]):
        return float(flat[0])
    return tuple(float(x) for x in flat)


def _spread(bound: Bound, shape: tuple[int, ...]) -> NDArray[np.float64]:
    if isinstance(bound, tuple):
        return np.asarray(bound, dtype=np.float64).reshape(shape)
    return np.full(shape, bound, dtype=np.float64)
