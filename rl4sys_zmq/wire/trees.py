"""The payloads of calls, replies and publications (`values.trees`) in msgpack and frames.

A dtype is one of `DTYPES`, or bfloat16. Arrays of PyTorch and JAX become numpy arrays. A tree is encoded as one msgpack value,
the *skeleton*, and frames with the large parts. A map in the skeleton whose only key is bytes stands for something else::

    {a: [dtype, shape, bytes]}                 a small array
    {f: [dtype, shape, frame, offset]}         an array in a frame
    {n: [dtype, bytes]}                        a numpy scalar
    {t: [...]}                                 a tuple
    {k: [keys, values]}                        a dict with integer keys
    {b: [frame, offset, length]}               long bytes
    {s: [frame, offset, length]}               a long string, UTF-8

Parts of medium size lie side by side in the first frame, each at a multiple of 8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from rl4sys_zmq.errors import PayloadError, ProtocolError, RefusalReason
from rl4sys_zmq.values import DTYPES
from rl4sys_zmq.values.arrays import BFLOAT16_BITS, array_from, read_bfloat16
from rl4sys_zmq.values.trees import MAX_DEPTH, MAX_ITEMS, MAX_KEY, Tree
from rl4sys_zmq.wire.frames import elements
from rl4sys_zmq.wire.messages import Frame

INLINE_BYTES = 2048
"""Size up to which an array, string or bytes is part of the skeleton, if all of them together fit `INLINE_TOTAL_BYTES`."""
INLINE_TOTAL_BYTES = 128 * 1024
OWN_FRAME_BYTES = 64 * 1024
"""Size from which a part has a frame of its own. The receiver does not copy an array in such a frame."""
MAX_TREE_FRAMES = 128
"""When all frames are in use, a further large part joins the smallest frame but the first."""

_BY_NAME = {**{d: np.dtype(d) for d in DTYPES}, "bfloat16": BFLOAT16_BITS}
_DTYPES = {dtype: name for name, dtype in _BY_NAME.items()}
_PLAIN = frozenset({type(None), bool, float})
_AS_IT_IS = _PLAIN | {int, str, bytes}
_MANY = frozenset({dict, list, tuple})
_LOWEST, _HIGHEST = -(1 << 63), (1 << 64) - 1
_ALIGN = 8


class _IntegerKeyError(Exception):
    """Raised inside `_TreePacker` for a dict with an integer key, which must be encoded as two lists."""


class _TreePacker:
    """The skeleton and the frames of one tree, while they are made.

    Attributes:
        copy: True to copy the parts with a frame of their own, which otherwise stay the caller's memory.
        shared: The parts in the first frame, with padding.
        own: The further frames. Each is a list of parts, with padding.
        inlined: Number of bytes of the arrays, strings and bytes in the skeleton.
    """

    def __init__(self, copy: bool) -> None:
        self.copy = copy
        self.shared: list[Frame] = []
        self.shared_bytes = 0
        self.own: list[list[Frame]] = []
        self.own_bytes: list[int] = []
        self.inlined = 0

    def pack(self, value: Tree, depth: int) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is np.ndarray:
            return self.array(value)
        if kind is str:
            return self.text(value)
        if kind is int:
            if not _LOWEST <= value <= _HIGHEST:
                raise PayloadError("", f"a number of {value.bit_length()} bits is beyond 64")
            return value
        if depth >= MAX_DEPTH:
            raise PayloadError("", f"nested deeper than {MAX_DEPTH}")
        if kind in _MANY and len(value) > MAX_ITEMS:
            raise PayloadError("", f"{len(value)} entries in one {kind.__name__}; the limit is {MAX_ITEMS}: use an array")
        if kind is dict:
            try:
                return {
                    k if type(k) is str and len(k) <= MAX_KEY else self.key(k): v
                    if type(v) in _PLAIN
                    else self.entry(k, v, depth)
                    for k, v in value.items()
                }
            except _IntegerKeyError:
                return self.numbered(value, depth)
        if kind is list:
            return [self.entry(i, v, depth) for i, v in enumerate(value)]
        if kind is tuple:
            return {b"t": [self.entry(i, v, depth) for i, v in enumerate(value)]}
        if kind is bytes:
            return value if self.fits(len(value)) else {b"b": self.place(value, len(value))}
        return self.rare(value, depth)

    def entry(self, key: object, value: Tree, depth: int) -> Any:
        try:
            return self.pack(value, depth + 1)
        except PayloadError as exc:  # the path is built only when an error is reported
            raise PayloadError(f"[{key!r}]{exc.path}", exc.problem) from None

    def rare(self, value: Tree, depth: int) -> Any:
        """Pack a numpy scalar, an array of another library, or an instance of a subclass of a supported type as that type."""
        if isinstance(value, np.generic) and not isinstance(value, (str, bytes)):
            dtype = _DTYPES.get(value.dtype)
            if dtype is not None:
                return {b"n": [dtype, value.tobytes()]}
        if isinstance(value, str):
            return self.text(str.__str__(value))  # `str(value)` of an enumeration would be its name
        bases: tuple[Callable[[Any], Any], ...] = (int, float, bytes, dict, list, tuple)
        for base in bases:
            if isinstance(value, cast(type, base)):
                return self.pack(base(value), depth)
        kind = type(value)
        name = f"a value of type {kind.__module__}.{kind.__qualname__}"
        try:
            array = None if isinstance(value, np.ma.MaskedArray) else array_from(value)
        except (TypeError, ValueError, RuntimeError) as exc:
            raise PayloadError("", f"{name} cannot be converted to a numpy array: {exc}") from exc
        if array is None:
            raise PayloadError("", f"{name} cannot travel")
        return self.array(array)

    def numbered(self, value: dict[Any, Tree], depth: int) -> Any:
        for key in value:
            if type(key) is not int or not _LOWEST <= key <= _HIGHEST:
                raise PayloadError("", f"the key {key!r:.60}; keys must be strings, or all of them integers of at most 64 bits")
        return {b"k": [list(value), [self.entry(k, v, depth) for k, v in value.items()]]}

    def key(self, key: object) -> str:
        if type(key) is int:
            raise _IntegerKeyError
        if not isinstance(key, str):
            raise PayloadError("", f"the key {key!r:.60} is not a string or an integer")
        if len(key) > MAX_KEY:
            raise PayloadError("", f"the key {key!r:.60} has {len(key)} characters; the limit is {MAX_KEY}")
        return key if type(key) is str else str.__str__(key)

    def array(self, value: np.ndarray[Any, Any]) -> Any:
        dtype = _DTYPES.get(value.dtype)
        if dtype is None:
            little = value.dtype.newbyteorder("<")
            if value.dtype.name == "bfloat16":
                value = value.view(BFLOAT16_BITS)
            elif little in _DTYPES:
                value = value.astype(little)
            else:
                raise PayloadError("", f"an array of dtype {value.dtype} cannot travel; use one of {', '.join(_BY_NAME)}")
            dtype = _DTYPES[value.dtype]
        if value.ndim > 8:
            raise PayloadError("", f"an array of {value.ndim} dimensions; the limit is 8")
        shape, size = list(value.shape), value.nbytes
        if not size:  # an empty array can have dimensions that no reader accepts
            try:
                elements(shape)
            except ProtocolError as exc:
                raise PayloadError("", exc.detail) from None
        if self.fits(size):
            return {b"a": [dtype, shape, value.tobytes()]}
        if not value.flags.c_contiguous:
            value = np.ascontiguousarray(value)
        return {b"f": [dtype, shape, *self.place(value.reshape(-1).view(np.uint8).data, size)[:2]]}

    def text(self, value: str) -> Any:
        if len(value) <= INLINE_BYTES // 4:
            return value
        try:
            data = value.encode()
        except UnicodeEncodeError as exc:
            raise PayloadError("", f"a string that is not UTF-8: {exc.reason}") from exc
        return value if self.fits(len(data)) else {b"s": self.place(data, len(data))}

    def fits(self, size: int) -> bool:
        if size > INLINE_BYTES or self.inlined + size > INLINE_TOTAL_BYTES:
            return False
        self.inlined += size
        return True

    def place(self, data: Frame, size: int) -> list[int]:
        """Add bytes to the first frame, or if they are long as a new frame. Return the frame's index, the offset and the
        length.
        """
        if size < OWN_FRAME_BYTES:
            at = self.shared_bytes
            self.shared.append(data)
            if size % _ALIGN:
                self.shared.append(bytes(_ALIGN - size % _ALIGN))
            self.shared_bytes += -(-size // _ALIGN) * _ALIGN
            return [0, at, size]
        if len(self.own) < MAX_TREE_FRAMES - 1:
            self.own.append([bytes(data) if self.copy else data])
            self.own_bytes.append(size)
            return [len(self.own), 0, size]
        least = self.own_bytes.index(min(self.own_bytes))
        padding = -self.own_bytes[least] % _ALIGN
        at = self.own_bytes[least] + padding
        self.own[least] += [bytes(padding), data]
        self.own_bytes[least] = at + size
        return [least + 1, at, size]


def pack_tree(value: Tree, *, copy: bool = False) -> tuple[Any, list[Frame]]:
    """Return the skeleton of a tree (all but the large parts), and the frames with its large parts.

    With `copy`, the frames are copies. Without it, they can be the caller's memory, which must then not change.
    """
    packer = _TreePacker(copy)
    try:
        skeleton = packer.pack(value, 0)
    except PayloadError as exc:
        raise PayloadError("payload" + exc.path, exc.problem) from None
    if not packer.shared and not packer.own:
        return skeleton, []
    return skeleton, [b"".join(packer.shared), *[parts[0] if len(parts) == 1 else b"".join(parts) for parts in packer.own]]


def drop_unsupported(value: Any, path: str, depth: int = 0, seen: set[int] | None = None) -> tuple[Tree, list[str]]:
    """Return a value, such as the ``info`` of an environment, without the parts that no message can contain, and their paths.

    `path` is the path of `value` itself, with which the returned paths begin. `seen` has the ids of the values around it.
    """
    if type(value) is dict and not value and depth < MAX_DEPTH:
        return value, []
    nested = value
    for _ in range(depth):
        nested = [nested]
    try:
        pack_tree(nested)
        return value, []
    except PayloadError:
        pass
    seen = set() if seen is None else seen
    if not isinstance(value, Mapping) or depth >= MAX_DEPTH or id(value) in seen:
        return None, [path]
    seen.add(id(value))  # a value can contain itself
    kept, dropped = {}, []
    numbered = all(type(key) is int for key in value)
    for key, held in value.items():
        where = f"{path}[{key!r:.40}]"
        if not (numbered or isinstance(key, str)):
            dropped.append(where)
            continue
        part, missing = drop_unsupported(held, where, depth + 1, seen)
        if missing != [where]:
            kept[key] = part
        dropped += missing
    return kept, dropped


def unpack_tree(skeleton: Any, frames: Sequence[Frame]) -> Tree:
    """Return the tree that `pack_tree` encoded. Its skeleton and frames can come from an untrusted peer."""
    return _TreeReader(frames).read(skeleton, 0)


class _TreeReader:
    def __init__(self, frames: Sequence[Frame]) -> None:
        self.frames = [memoryview(frame) for frame in frames] if frames else []
        # The number of bytes that further parts can refer to. So many parts of the same bytes cannot make a huge tree.
        self.left = sum([len(frame) for frame in frames]) if frames else 0

    def read(self, value: Any, depth: int) -> Tree:
        kind = type(value)
        if kind in _AS_IT_IS:
            return value
        if depth > MAX_DEPTH:
            raise ProtocolError(RefusalReason.MALFORMED, f"a tree is nested deeper than {MAX_DEPTH}")
        if kind is dict:
            if len(value) == 1:
                ((key, held),) = value.items()
                if type(key) is bytes:
                    return self.form(key, held, depth)
            out = {}
            for key, held in value.items():
                if type(key) is not str:
                    raise ProtocolError(RefusalReason.MALFORMED, "a key of a tree is not a string")
                out[key] = held if type(held) in _AS_IT_IS else self.read(held, depth + 1)
            return out
        if kind is list:
            return [self.read(v, depth + 1) for v in value]
        raise ProtocolError(RefusalReason.MALFORMED, f"a tree has a value of the unsupported type {kind.__name__}")

    def form(self, key: bytes, held: Any, depth: int) -> Tree:
        if type(held) is not list:
            raise ProtocolError(RefusalReason.MALFORMED, f"the form {key!r:.20} of a tree has no list")
        if key == b"a" and len(held) == 3:
            name, shape, data = held
            dtype = _dtype(name)
            if type(data) is not bytes or elements(shape) * dtype.itemsize != len(data):
                raise ProtocolError(RefusalReason.SHAPE, f"the bytes of an array do not fit its shape {shape!r:.60}")
            array = _read(data, dtype)
            return array if len(shape) == 1 else array.reshape(shape)
        if key == b"f" and len(held) == 4:
            name, shape, frame, at = held
            dtype = _dtype(name)
            size = dtype.itemsize * elements(shape)
            return _read(self.part(frame, at, size), dtype).reshape(shape)
        if key == b"t":
            return tuple([self.read(v, depth + 1) for v in held])
        if key == b"n" and len(held) == 2:
            name, data = held
            dtype = _dtype(name)
            if dtype.itemsize != (len(data) if type(data) is bytes else -1):
                raise ProtocolError(RefusalReason.SHAPE, "the bytes of a scalar do not fit its dtype")
            return _read(data, dtype)[0]
        if key == b"k" and len(held) == 2:
            keys, values = held
            return self.numbered(keys, values, depth)
        if key == b"b" and len(held) == 3:
            return bytes(self.part(*held))
        if key == b"s" and len(held) == 3:
            try:
                return str(self.part(*held), "utf-8")
            except UnicodeDecodeError as exc:
                raise ProtocolError(RefusalReason.MALFORMED, "a string is not UTF-8") from exc
        raise ProtocolError(RefusalReason.MALFORMED, f"an unknown form {key!r:.20} in a tree")

    def numbered(self, keys: Any, values: Any, depth: int) -> Tree:
        if not (type(keys) is type(values) is list) or len(keys) != len(values) or any(type(k) is not int for k in keys):
            raise ProtocolError(RefusalReason.MALFORMED, "a dict of a tree does not have an integer key for each value")
        return {key: self.read(value, depth + 1) for key, value in zip(keys, values, strict=True)}

    def part(self, frame: Any, at: Any, size: Any) -> memoryview:
        frames = self.frames
        if not (type(frame) is type(at) is type(size) is int and 0 <= frame < len(frames) and at >= 0 and size >= 0):
            raise ProtocolError(RefusalReason.MALFORMED, "a part of a tree has an invalid frame, offset or length")
        if at + size > len(frames[frame]):
            raise ProtocolError(
                RefusalReason.SHAPE, f"a part of a tree ends at byte {at + size} of a frame of {len(frames[frame])}"
            )
        self.left -= size
        if self.left < 0:
            raise ProtocolError(RefusalReason.TOO_LARGE, "the parts of a tree have more bytes than its frames")
        return frames[frame][at : at + size]


def _read(data: Frame, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    array = np.frombuffer(data, dtype)
    return array if dtype is not BFLOAT16_BITS else read_bfloat16(array)


def _dtype(name: object) -> np.dtype[Any]:
    dtype = _BY_NAME.get(name) if type(name) is str else None
    if dtype is None:
        raise ProtocolError(RefusalReason.DTYPE, f"an array has the unsupported dtype {name!r:.60}")
    return dtype
