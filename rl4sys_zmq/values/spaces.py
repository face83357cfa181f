"""The observation and action spaces: immutable equivalents of Gymnasium's spaces, which do not need Gymnasium.

`AnySpace` is the union of all ten kinds, which environments and other services support. The observations and actions of a
policy are elements of a `Space`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.values.arrays import cast_exactly

DTYPES = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
"""The supported dtypes, in NumPy's notation: little-endian numbers and booleans."""
MAX_DIMENSIONS = 8
"""The largest number of dimensions of an array."""
MAX_ELEMENTS = 1 << 26
"""The largest number of array elements in a space with all its parts. It limits what a received description allocates."""
MAX_SPACES = 4096
"""The largest number of spaces in one space, including itself."""
MAX_DEPTH = 16
"""The largest number of levels of nested spaces."""

Bound = float | tuple[float, ...]
_INTEGERS = tuple(d for d in DTYPES if d[1] in "iu")
_NUMPY = {d: np.dtype(d) for d in DTYPES}
_NO_ARRAY = (ValueError, TypeError, RuntimeError, OverflowError)
"""Raised by `numpy.asarray` for a ragged list, or for a tensor that is on a device or needs a gradient."""


class _BaseSpace:
    """The base class of all spaces. Subclasses have `shape` and `dtype`: None if the elements are not arrays or numbers.

    Attributes:
        KIND: Gymnasium's name for this kind of space.
    """

    __slots__ = ()
    KIND: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.KIND}({', '.join([str(part) for part in self.parts])})"

    @property
    def parts(self) -> Iterable[AnySpace]:
        """The spaces that this space directly contains."""
        return ()

    def to_tree(self, value: Any, *, cast: bool = False) -> Any:
        """Convert an element of this space to a tree, with arrays where the space has arrays.

        Parts that do not fit the space stay unchanged, so that `mismatch` can report them.
        """
        return value

    def mismatch(self, value: Any, path: str = "", batch: int = 0) -> str:
        """Return the first reason why a value does not fit this space; empty if it fits.

        The structure and the shapes are checked. Bounds are not checked, because many environments clip actions.
        """
        raise NotImplementedError


class _ArraySpace(_BaseSpace):
    __slots__ = ()
    shape: Any
    dtype: Any

    def __str__(self) -> str:
        return f"{self.KIND}({self.shape}, {_NUMPY[self.dtype]})"

    def to_tree(self, value: Any, *, cast: bool = False) -> Any:
        try:
            array = np.asarray(value)
            return cast_exactly(array, _NUMPY[self.dtype]) if cast else array
        except _NO_ARRAY:
            if cast:
                raise
            return value

    def mismatch(self, value: Any, path: str = "", batch: int = 0) -> str:
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
            return f"{path or 'the value'} is a {type(value).__name__}; expected an element of {self!s:.80}"
        if value.shape[batch:] != self.shape or value.ndim != batch + len(self.shape):
            return f"{path or 'the value'} has the shape {value.shape}; expected an element of {self!s:.80}"
        return ""


@immutable
class BoxSpace(_ArraySpace):
    """The space of arrays of one shape and dtype, with a lower and an upper bound for each array element.

    `low` and `high` are a single number for all array elements, or a tuple with one number for each, in row-major order. A list
    or an array becomes such a tuple. Bounds can be infinite. Those of a box of float32 or float16 are rounded to this dtype, as
    Gymnasium does.
    """

    KIND: ClassVar[str] = "Box"
    shape: tuple[int, ...]
    dtype: str = "<f4"
    low: Bound = -np.inf
    high: Bound = np.inf

    def __post_init__(self) -> None:
        _check_dtype(self, DTYPES)
        _check_shape(self, self.shape)
        for key in ("low", "high"):
            bound = getattr(self, key)
            if isinstance(bound, list | np.ndarray):
                bound = tuple(np.ravel(bound).tolist())
                object.__setattr__(self, key, bound)
            if isinstance(bound, tuple) and len(bound) != self.size:
                raise ConfigError(f"{key} has {len(bound)} numbers; the box has {self.size} elements", key=key)
            if self.dtype in ("<f2", "<f4") and (rounded := _rounded(bound, self.dtype)) != bound:
                object.__setattr__(self, key, rounded)
        if not bool(np.all(self._exact(self.low) <= self._exact(self.high))):
            raise ConfigError(f"a box needs low <= high, not {self.low!s:.80} and {self.high!s:.80}", key="low")

    @property
    def size(self) -> int:
        """The number of elements of an array of this space."""
        return prod(self.shape)

    @property
    def bounded(self) -> bool:
        """True if both bounds of every array element are finite."""
        return all(bool(np.all(np.isfinite(np.asarray(bound, np.float64)))) for bound in (self.low, self.high))

    def low_array(self) -> NDArray[np.float64]:
        """Return the lower bound of each array element, float64, in the shape of the space."""
        return np.resize(np.asarray(self.low, np.float64), self.shape)

    def high_array(self) -> NDArray[np.float64]:
        """Return the upper bound of each array element, float64, in the shape of the space."""
        return np.resize(np.asarray(self.high, np.float64), self.shape)

    def _exact(self, bound: Bound) -> NDArray[Any]:
        """Return a bound for comparisons without rounding errors. A float64 cannot hold all 64-bit integers."""
        return np.asarray(bound, object if self.dtype in ("<i8", "<u8") else np.float64)


@immutable
class DiscreteSpace(_BaseSpace):
    """The space of the `n` integers from `start` to ``start + n - 1``."""

    KIND: ClassVar[str] = "Discrete"
    shape: ClassVar[tuple[int, ...]] = ()
    n: int
    start: int = 0
    dtype: str = "<i8"

    def __post_init__(self) -> None:
        _check_dtype(self, _INTEGERS)
        if type(self.n) is not int or self.n < 1:
            raise ConfigError(f"a discrete space needs n >= 1, not {self.n!r:.40}", key="n")
        if type(self.start) is not int:
            raise ConfigError(f"start of a discrete space must be an integer, not {self.start!r:.40}", key="start")
        _check_range(self, (self.n,), (self.start,))

    def __str__(self) -> str:
        return f"Discrete({self.n}, start={self.start})" if self.start else f"Discrete({self.n})"

    def mismatch(self, value: Any, path: str = "", batch: int = 0) -> str:
        if type(value) is np.ndarray and value.dtype.kind in "iu":
            fits = value.ndim == batch if batch else value.size == 1
        else:
            fits = isinstance(value, int | np.integer) and not batch
        return "" if fits else f"{path or 'the value'} is {value!r:.60}; expected an element of {self!s:.80}"


@immutable
class MultiDiscreteSpace(_ArraySpace):
    """The space of arrays of integers. Array element ``i`` is one of the ``nvec[i]`` integers from ``start[i]`` on.

    `nvec` and `start` are in row-major order. By default, `start` is 0 for every array element, and the arrays have one
    dimension.
    """

    KIND: ClassVar[str] = "MultiDiscrete"
    nvec: tuple[int, ...]
    start: tuple[int, ...] = ()
    shape: tuple[int, ...] = (-1,)
    dtype: str = "<i8"

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", self.start or (0,) * len(self.nvec))
        object.__setattr__(self, "shape", (len(self.nvec),) if self.shape == (-1,) else self.shape)
        _check_dtype(self, _INTEGERS)
        _check_shape(self, self.shape)
        for key in ("nvec", "start"):
            numbers = getattr(self, key)
            if len(numbers) != prod(self.shape) or not all(type(n) is int for n in numbers):
                text = f"{key} of a MultiDiscrete space needs {prod(self.shape)} integers because of the shape {self.shape}"
                raise ConfigError(f"{text}, not {numbers!s:.60}", key=key)
        if min(self.nvec, default=1) < 1:
            raise ConfigError(f"a MultiDiscrete space needs nvec >= 1, not {min(self.nvec)}", key="nvec")
        _check_range(self, self.nvec, self.start)


@immutable
class MultiBinarySpace(_ArraySpace):
    """The space of arrays of zeros and ones. `n` is the number of array elements (one dimension), or the shape."""

    KIND: ClassVar[str] = "MultiBinary"
    dtype: ClassVar[str] = "|i1"  # type: ignore[misc]
    n: int | tuple[int, ...]

    def __post_init__(self) -> None:
        _check_shape(self, self.shape, "n")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the arrays."""
        return self.n if isinstance(self.n, tuple) else (self.n,)


@immutable
class TextSpace(_BaseSpace):
    """The space of strings that have `min_length` to `max_length` characters, each from `characters`."""

    KIND: ClassVar[str] = "Text"
    shape: ClassVar[None] = None
    dtype: ClassVar[None] = None
    max_length: int
    min_length: int
    characters: str

    def __post_init__(self) -> None:
        numbers = (self.min_length, self.max_length)
        if any(type(n) is not int for n in numbers) or not 0 <= self.min_length <= self.max_length <= MAX_ELEMENTS:
            text = f"a text space needs 0 <= min_length <= max_length <= {MAX_ELEMENTS}, not {numbers!s:.60}"
            raise ConfigError(text, key="max_length")
        if type(self.characters) is not str:
            raise ConfigError(f"characters of a text space must be a string, not {self.characters!r:.40}", key="characters")

    def __str__(self) -> str:
        return f"Text({self.min_length}, {self.max_length}, characters={self.characters!r:.40})"

    def mismatch(self, value: Any, path: str = "", batch: int = 0) -> str:
        fits = isinstance(value, str) and self.min_length <= len(value) <= self.max_length
        if batch or (fits and set(value) <= set(self.characters)):
            return ""
        return f"{path or 'the value'} is {value!r:.60}; expected an element of {self!s:.80}"


class _NestedSpace(_BaseSpace):
    __slots__ = ()
    shape: ClassVar[None] = None
    dtype: ClassVar[None] = None

    @property
    def parts(self) -> Iterable[AnySpace]:
        """The spaces that the fields contain, directly or in tuples and dicts."""
        for field in fields(self):  # type: ignore[arg-type]
            held = getattr(self, field.name)
            if isinstance(held, Mapping | tuple):
                yield from held.values() if isinstance(held, Mapping) else held
            elif held is not None and not isinstance(held, bool):
                yield held

    def __post_init__(self) -> None:
        """Check that the parts are spaces, and not too many or nested too deeply. A list of parts becomes a tuple."""
        key = fields(self)[0].name  # type: ignore[arg-type]
        held = getattr(self, key)
        if key == "spaces" and self.KIND != "Dict":
            held = tuple(held)
            object.__setattr__(self, key, held)
        for part in self.parts if isinstance(held, dict | tuple) else (held, *self.parts):
            if not isinstance(part, _BaseSpace):
                raise ConfigError(f"a {self.KIND} space must consist of spaces, not of {part!r:.60}", key=key)
        count, depth, elements = _measure(self)
        for number, limit, what in (
            (count, MAX_SPACES, "spaces"),
            (depth, MAX_DEPTH, "levels"),
            (elements, MAX_ELEMENTS, "elements"),
        ):
            if number > limit:
                raise ConfigError(f"a {self.KIND} space has {number} {what}; the limit is {limit}", key=key)


@immutable
class DictSpace(_NestedSpace):
    """The space of dicts with fixed keys. Each key has a space, which contains the values of that key.

    Keys keep the order in which they were given.
    """

    KIND: ClassVar[str] = "Dict"
    spaces: Mapping[str, AnySpace]

    def __post_init__(self) -> None:
        if not isinstance(self.spaces, Mapping):
            raise ConfigError(f"a Dict space needs a dict of spaces, not {self.spaces!r:.60}", key="spaces")
        object.__setattr__(self, "spaces", dict(self.spaces))
        for key in self.spaces:
            if type(key) is not str:
                raise ConfigError(f"a Dict space has the key {key!r:.60}; expected a string", key="spaces")
        _NestedSpace.__post_init__(self)

    def __hash__(self) -> int:
        return hash(frozenset(self.spaces.items()))

    def to_tree(self, value: Any, *, cast: bool = False) -> Any:
        if not isinstance(value, Mapping):
            return value
        spaces = self.spaces
        return {k: spaces[k].to_tree(v, cast=cast) if k in spaces else v for k, v in value.items()}

    def mismatch(self, value: Any, path: str = "", batch: int = 0) -> str:
        if not isinstance(value, dict) or value.keys() != self.spaces.keys():
            return f"{path or 'the value'} is not a dict with the keys {', '.join(self.spaces)}"
        return _first(s.mismatch(value[k], f"{path}[{k!r}]", batch) for k, s in self.spaces.items())


@immutable
class TupleSpace(_NestedSpace):
    """The space of tuples of a fixed length. Item ``i`` is an element of ``spaces[i]``."""

    KIND: ClassVar[str] = "Tuple"
    spaces: tuple[AnySpace, ...]

    def to_tree(self, value: Any, *, cast: bool = False) -> Any:
        if not isinstance(value, (tuple, list)) or len(value) != len(self.spaces):
            return value
        return tuple([s.to_tree(v, cast=cast) for s, v in zip(self.spaces, value, strict=True)])

    def mismatch(self, value: Any, path: str = "", batch: int = 0) -> str:
        if not isinstance(value, tuple) or len(value) != len(self.spaces):
            return f"{path or 'the value'} is not a tuple of {len(self.spaces)} items"
        pairs = enumerate(zip(self.spaces, value, strict=True))
        return _first(s.mismatch(v, f"{path}[{i}]", batch) for i, (s, v) in pairs)


@immutable
class OneOfSpace(_NestedSpace):
    """The space of pairs: an index ``i``, and an element of ``spaces[i]``."""

    KIND: ClassVar[str] = "OneOf"
    spaces: tuple[AnySpace, ...]

    def mismatch(self, value: Any, path: str = "", batch: int = 0) -> str:
        if batch:
            return ""
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], (int, np.integer)):
            number, held = value
            if 0 <= number < len(self.spaces):
                space = self.spaces[int(number)]
                return space.mismatch(space.to_tree(held), f"{path}[1]")
        return f"{path or 'the value'} is {value!r:.60}; expected a pair of a number below {len(self.spaces)} and an element"


@immutable
class SequenceSpace(_NestedSpace):
    """The space of sequences of any length whose items are elements of one space.

    A sequence is a tuple. If `stack` is True, it is one element whose arrays have an additional first axis, for the items.
    """

    KIND: ClassVar[str] = "Sequence"
    space: AnySpace
    stack: bool = False

    def to_tree(self, value: Any, *, cast: bool = False) -> Any:
        if self.stack or not isinstance(value, (tuple, list)):
            return value
        return tuple([self.space.to_tree(v, cast=cast) for v in value])

    def mismatch(self, value: Any, path: str = "", batch: int = 0) -> str:
        if batch:
            return ""
        if self.stack:
            return self.space.mismatch(value, path, 1)
        if not isinstance(value, tuple):
            return f"{path or 'the value'} is {value!r:.60}; expected a tuple of elements"
        return _first(self.space.mismatch(v, f"{path}[{i}]") for i, v in enumerate(value))


@immutable
class GraphSpace(_NestedSpace):
    """The space of graphs. A graph is a tuple of nodes, edges and edge links. Edges and edge links can be None.

    Nodes are an array of elements of the space `nodes`, with an additional first axis. Edges are the same for the space
    `edges`. Edge links are integers ``[edges, 2]``: for each edge the indices of its two nodes.
    """

    KIND: ClassVar[str] = "Graph"
    nodes: AnySpace
    edges: AnySpace | None = None

    def mismatch(self, value: Any, path: str = "", batch: int = 0) -> str:
        if batch:
            return ""
        if not isinstance(value, tuple) or len(value) != 3:
            return f"{path or 'the value'} is {value!r:.60}; expected a tuple of nodes, edges and edge links"
        nodes, edges, links = value
        wrong = self.nodes.mismatch(nodes, f"{path}.nodes", 1)
        if wrong or (edges is None and links is None):
            return wrong
        if self.edges is None or edges is None:
            return f"{path}.edges is given without edge links, or edge links without edges, or the space has no edges"
        if not isinstance(links, np.ndarray) or links.dtype.kind not in "iu" or links.ndim != 2 or links.shape[1] != 2:
            return f"{path}.edge_links is {links!r:.60}; expected integers [edges, 2]"
        return self.edges.mismatch(edges, f"{path}.edges", 1)


FlatSpace = BoxSpace | DiscreteSpace
"""A space that every algorithm supports as a space of observations."""
LeafSpace = BoxSpace | DiscreteSpace | MultiDiscreteSpace | MultiBinarySpace
"""A space whose elements are single arrays or integers, not nested."""
Space = LeafSpace | DictSpace | TupleSpace
"""A space of a policy's observations or actions. A Dict or Tuple must contain only spaces of these kinds, at all levels."""
ObservationSpace = Space
"""A space of a policy's observations. `rl4sys_zmq.values.features` describes their features."""
ActionSpace = Space
"""A space of a policy's actions. `rl4sys_zmq.values.action_layout` describes their parts."""
AnySpace = (
    BoxSpace
    | DiscreteSpace
    | MultiDiscreteSpace
    | MultiBinarySpace
    | TextSpace
    | DictSpace
    | TupleSpace
    | OneOfSpace
    | SequenceSpace
    | GraphSpace
)


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")


def _measure(space: Any) -> tuple[int, int, int]:
    """Return the number of spaces in a space, itself included, of nested levels, and of array elements."""
    count, depth, elements = 1, 0, 0 if space.shape is None else prod(space.shape)
    for part in space.parts:
        inner = _measure(part)
        count, depth, elements = count + inner[0], max(depth, inner[1]), elements + inner[2]
    return count, depth + 1, elements


def _rounded(bound: Bound, dtype: str) -> Bound:
    """Return a bound rounded to a dtype of floats: infinite beyond its range, and 0 if too small for it."""
    with np.errstate(over="ignore", under="ignore"):
        numbers: Any = np.asarray(bound, np.float64).astype(dtype).tolist()
    return tuple(numbers) if isinstance(bound, tuple) else numbers


def _check_dtype(space: Any, allowed: tuple[str, ...]) -> None:
    if space.dtype not in allowed:
        text = f"a {space.KIND} space cannot have the dtype {space.dtype!r:.60}; use one of {', '.join(allowed)}"
        raise ConfigError(text, key="dtype")


def _check_shape(space: Any, shape: Any, key: str = "shape") -> None:
    if type(shape) is not tuple or len(shape) > MAX_DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        text = f"a {space.KIND} space can have at most {MAX_DIMENSIONS} dimensions, of 0 or more elements; not {shape!s:.80}"
        raise ConfigError(text, key=key)
    if prod(max(n, 1) for n in shape) > MAX_ELEMENTS:  # NumPy multiplies the other dimensions even if one is 0
        raise ConfigError(f"a {space.KIND} space has the shape {shape!s:.80}; the limit is {MAX_ELEMENTS} elements", key=key)


def _check_range(space: Any, counts: tuple[int, ...], starts: tuple[int, ...]) -> None:
    """Raise `ConfigError` if the dtype of a space cannot hold all its numbers."""
    held = np.iinfo(_NUMPY[space.dtype])
    for n, start in zip(counts, starts, strict=True):
        if n > held.max or start < held.min or start + n - 1 > held.max:
            text = f"a {space.KIND} space of {n!r:.40} numbers from {start!r:.40} on does not fit {held.dtype}"
            raise ConfigError(text, key="n")
