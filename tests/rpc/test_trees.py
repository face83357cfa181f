"""Trees: a decoded tree equals the encoded tree to the bit, and values that cannot be sent are refused by their path."""

import collections
import contextlib
import enum
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.errors import PayloadError, ProtocolError, RefusalReason
from rl4sys_zmq.wire.frames import unpack_plain
from rl4sys_zmq.wire.rpc import Reply, decode_call, encode_reply
from rl4sys_zmq.wire.trees import MAX_TREE_FRAMES, OWN_FRAME_BYTES, pack_tree, unpack_tree

from .strategies import TREES, arrays, assert_same


def there_and_back(tree: Any) -> Any:
    skeleton, frames = pack_tree(tree)
    return unpack_tree(unpack_plain(msgpack.packb(skeleton)), [bytes(f) for f in frames])


@given(TREES)
def test_any_tree_comes_back(tree: Any) -> None:
    assert_same(tree, there_and_back(tree))


@given(arrays(), st.integers(1, 3))
def test_arrays_come_back_inline_side_by_side_and_in_frames(array: Any, size: int) -> None:
    repeats = {1: 1, 2: 700, 3: 70_000}[size]
    tree = [np.repeat(array.reshape(-1)[:1], repeats), array] if array.size else [array, array]
    assert_same(tree, there_and_back(tree))


def test_more_large_arrays_than_frames() -> None:
    tree = [np.full(OWN_FRAME_BYTES, i % 251, np.uint8) for i in range(MAX_TREE_FRAMES + 40)]
    _, frames = pack_tree(tree)
    assert len(frames) == MAX_TREE_FRAMES
    assert_same(tree, there_and_back(tree))


def test_many_large_arrays_share_frames_of_about_the_same_size() -> None:
    tree = [np.full(OWN_FRAME_BYTES + i % 7, i % 251, np.uint8) for i in range(5 * MAX_TREE_FRAMES)]
    _, frames = pack_tree(tree, copy=True)
    assert max(map(len, frames)) <= 6 * (OWN_FRAME_BYTES + 14)
    assert_same(tree, there_and_back(tree))


@pytest.mark.parametrize("copy", [False, True])
def test_a_large_array_is_copied_only_on_demand(copy: bool) -> None:
    array = np.zeros(OWN_FRAME_BYTES, np.uint8)
    (skeleton, frames) = pack_tree({"image": array}, copy=copy)
    array[3] = 7
    assert unpack_tree(skeleton, frames)["image"][3] == (0 if copy else 7)


@pytest.mark.parametrize("large", [np.zeros(OWN_FRAME_BYTES, np.uint8), np.zeros((512, 512), np.float32).T])
def test_an_answer_does_not_change_with_the_callbacks_buffer(large: Any) -> None:
    frames = encode_reply(Reply(1, 2, 3, "", "", {"image": large}))
    large += 1
    answer = decode_call(frames).payload
    assert not answer["image"].any()


def test_many_small_arrays_leave_the_header_when_it_is_full() -> None:
    tree = {str(i): np.full(200, i, np.float64) for i in range(300)}
    skeleton, frames = pack_tree(tree)
    assert len(frames) == 1
    assert len(msgpack.packb(skeleton)) < 1 << 20
    assert_same(tree, there_and_back(tree))


class Number(enum.IntEnum):
    A = 1
    B = 2


class Colour(str, enum.Enum):  # noqa: UP042 (what users write)
    RED = "red"


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("given_", "comes"),
    [
        (Colour.RED, "red"),
        ({Colour.RED: 1}, {"red": 1}),
        (Number.B, 2),
        (Point(1, 2), (1, 2)),
        (collections.OrderedDict(a=1), {"a": 1}),
        (bytearray(b"xy"), PayloadError),
        (np.str_("x"), "x"),
    ],
)
def test_what_is_a_kind_of_something_that_travels(given_: Any, comes: Any) -> None:
    if comes is PayloadError:
        with pytest.raises(PayloadError):
            pack_tree(given_)
    else:
        assert_same(comes, there_and_back(given_))


def nested(levels: int) -> Any:
    tree: Any = 1
    for _ in range(levels):
        tree = [tree]
    return tree


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"a": [1, object()]}, "payload['a'][1]"),
        ({"a": ({"b": {1, 2}},)}, "payload['a'][0]['b']"),
        ([np.array([object()])], "payload[0]"),
        ([np.array(["text"])], "payload[0]"),
        ([np.array([1 + 2j])], "payload[0]"),
        (np.zeros(2, [("a", "f4")]), "payload"),
        (np.datetime64("2020-01-01"), "payload"),
        (np.longdouble(1), "payload"),
        (np.ma.masked_array([1, 2], [True, False]), "payload"),
        ({"a": {"x": 1, 1: 2}}, "payload['a']"),
        ({"a": {1: 2, "x": 1}}, "payload['a']"),
        ({"a": {1 << 64: 1}}, "payload['a']"),
        ({"a": {1.5: 1}}, "payload['a']"),
        ({"a": {7: object()}}, "payload['a'][7]"),
        ({"n": [1 << 64]}, "payload['n'][0]"),
        ({"n": -(1 << 63) - 1}, "payload['n']"),
        (10**400, "payload"),
        (1j, "payload"),
        (lambda: 1, "payload"),
        (np.zeros((1,) * 9), "payload"),
        ({"k" * 5000: 1}, "payload"),
        ({"s": "x" * 600 + "\udc00"}, "payload['s']"),
        ({"many": list(range(70_000))}, "payload['many']"),
        ({"many": tuple(range(70_000))}, "payload['many']"),
        ({str(i): i for i in range(70_000)}, "payload"),
        (nested(17), "payload" + "[0]" * 16),
        (ENDLESS, "payload" + "[0]" * 16),
    ],
)
def test_what_cannot_travel_is_refused_by_its_path(tree: Any, path: str) -> None:
    with pytest.raises(PayloadError) as caught:
        pack_tree(tree)
    assert caught.value.path == path
    assert str(caught.value) == f"{path}: {caught.value.problem}"


ODD = st.recursive(
    st.one_of(
        st.none(), st.integers(-3, 70_000), st.integers(1 << 40, 1 << 63), st.binary(max_size=9), st.text(max_size=3), st.floats()
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.sampled_from([b"a", b"f", b"n", b"t", b"k", b"b", b"s", b"x", "a", "k"]), inner, max_size=2),
        st.tuples(
            st.sampled_from(["<f4", "|O", "|u1", "<M8", "bfloat16"]), st.lists(st.integers(0, 9), max_size=3), inner, inner
        ).map(list),
    ),
    max_leaves=20,
)


@given(ODD, st.lists(st.binary(max_size=70), max_size=3))
def test_odd_skeletons_are_read_or_refused(skeleton: Any, frames: Any) -> None:
    with contextlib.suppress(ProtocolError):
        unpack_tree(skeleton, frames)


@pytest.mark.parametrize(
    "skeleton",
    [
        {b"a": ["|O", [1], bytes(8)]},
        {b"a": ["<f4", [2], bytes(4)]},
        {b"a": ["<f4", [1 << 62, 1 << 62], b""]},
        {b"a": ["<f4", [-1], b""]},
        {b"f": ["<f4", [100], 0, 0]},
        {b"f": ["<f4", [1], 7, 0]},
        {b"f": ["<f4", [1], 0, -4]},
        {b"f": ["<f4", [1], 0.0, 0]},
        {b"n": ["<f4", b"123"]},
        {b"n": [["<f4"], b"1234"]},
        {b"s": [0, 0, 4]},
        {b"b": [0, 0, 1 << 70]},
        {b"b": [True, 0, 1]},
        {b"t": 3},
        {b"k": [[1], []]},
        {b"k": [[1.5], [1]]},
        {b"k": [1, [1]]},
        {b"k": [[True], [1]]},
        {b"a": ["bfloat16", [2], bytes(3)]},
        {b"z": []},
        {b"t": [], "x": 1},
        {1: 2},
    ],
)
def test_what_pack_never_writes_is_refused(skeleton: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        unpack_tree(skeleton, [b"\xff" * 8])


@pytest.mark.parametrize("form", [b"b", b"s"])
def test_a_short_message_cannot_become_a_large_tree(form: bytes) -> None:
    """Each byte of a frame may be referenced once. A thousand references to the same mebibyte would be a gibibyte."""
    skeleton = [{form: [0, 0, 1 << 20]} for _ in range(1000)]
    tracemalloc.start()
    with pytest.raises(ProtocolError) as caught:
        unpack_tree(skeleton, [bytes(1 << 20)])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.code is RefusalReason.TOO_LARGE
    assert peak < 8 << 20


@pytest.mark.parametrize("shape", [(0, 2**41), (2**30, 2**20, 0)])
def test_an_array_that_nobody_would_read_is_not_packed(shape: tuple[Any, ...]) -> None:
    with pytest.raises(PayloadError, match=r"payload\['a'\].*elements"):
        pack_tree({"a": np.empty(shape)})


def test_what_is_packed_again_and_again_leaves_nothing() -> None:
    tree = {"image": np.zeros((64, 64, 3), np.uint8), "many": [np.zeros(40)] * 50, "text": "x" * 5000, "t": (1, 2.0, b"3")}
    there_and_back(tree)
    tracemalloc.start()
    for _ in range(200):
        there_and_back(tree)
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 100_000
