"""All spaces and their elements are equal after a round trip through JSON or the wire.

Documents that are not spaces are refused.
"""

import json
import time
from math import prod
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values.space_conversion import (
    MAX_TEXT,
    any_space_from,
    observation_space_from,
    space_from,
    space_from_text,
    space_to_json,
    space_to_text,
)
from rl4sys_zmq.values.spaces import (
    DTYPES,
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_SPACES,
    AnySpace,
    BoxSpace,
    DictSpace,
    DiscreteSpace,
    GraphSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    OneOfSpace,
    SequenceSpace,
    TextSpace,
    TupleSpace,
)
from rl4sys_zmq.wire.frames import unpack_plain
from rl4sys_zmq.wire.trees import pack_tree, unpack_tree

SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)
INTEGERS = [d for d in DTYPES if d[1] in "iu"]


@st.composite
def boxes(draw: st.DrawFn) -> BoxSpace:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(SHAPES)
    held = np.iinfo(dtype) if dtype in INTEGERS else None
    one = (st.integers(int(held.min), int(held.max)) if held else st.floats(-100.0, 100.0, width=16)).map(exact)
    if dtype == "|b1":  # Gymnasium rounds the bounds of a boolean box to booleans
        one = st.sampled_from((0.0, 1.0))
    size = prod(shape)
    bounds = one if size else st.just(())  # Gymnasium has no bounds for zero elements
    low, high = (draw(bounds | st.lists(one, min_size=size, max_size=size).map(tuple)) for _ in range(2))
    if not np.all(np.asarray(low, object) <= np.asarray(high, object)):
        ends = (0.0, 1.0) if dtype == "|b1" else (-np.inf, np.inf)
        low, high = ends if held is None else (exact(int(held.min)), exact(int(held.max)))
    return BoxSpace(shape, dtype, folded(low), folded(high))


def exact(number: Any) -> Any:
    """Return a float, or the integer if no float equals it, as for the bounds of a space."""
    return float(number) if float(number) == number else number


def folded(bound: Any) -> Any:
    return bound[0] if isinstance(bound, tuple) and bound and len(set(bound)) == 1 else bound


@st.composite
def multi_discretes(draw: st.DrawFn) -> MultiDiscreteSpace:
    shape = draw(SHAPES)
    numbers = st.lists(st.integers(1, 50), min_size=prod(shape), max_size=prod(shape)).map(tuple)
    return MultiDiscreteSpace(draw(numbers), draw(numbers), shape, draw(st.sampled_from(INTEGERS)))


LEAVES: st.SearchStrategy[AnySpace] = st.one_of(
    boxes(),
    st.builds(DiscreteSpace, st.integers(1, 60), st.integers(0, 60), st.sampled_from(INTEGERS)),
    multi_discretes(),
    st.builds(MultiBinarySpace, st.integers(0, 5) | SHAPES),
    st.builds(
        lambda least, more, text: TextSpace(least + more, least, text),
        st.integers(0, 3),
        st.integers(0, 3),
        st.sampled_from(["", "a", "abγ"]),
    ),
)
SPACES: st.SearchStrategy[AnySpace] = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(DictSpace),
        st.lists(inner, max_size=3).map(lambda parts: TupleSpace(tuple(parts))),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: OneOfSpace(tuple(parts))),
        st.builds(SequenceSpace, inner, st.booleans()),
        st.builds(GraphSpace, inner, st.none() | inner),
    ),
    max_leaves=6,
)


@given(SPACES)
def test_any_space_comes_back_from_strict_json(space: AnySpace) -> None:
    form = json.loads(json.dumps(space_to_json(space), allow_nan=False))
    again = any_space_from(form)
    assert again == space
    assert list(space_to_json(again)) == list(form)
    assert space_from_text(space_to_text(space)) == space
    assert any_space_from(unpack_plain(msgpack.packb(space_to_json(space)))) == space
    assert hash(again) == hash(space)
    if isinstance(space, DictSpace):
        assert isinstance(again, DictSpace)
        assert list(again.spaces) == list(space.spaces)


def sample(space: AnySpace, draw: Any, batch: tuple[int, ...] = ()) -> Any:
    """Return an element. With `batch`, its arrays have these leading axes."""
    match space:
        case BoxSpace() | MultiDiscreteSpace() | MultiBinarySpace():
            return np.ones((*batch, *space.shape), space.dtype)
        case DiscreteSpace():
            return np.zeros(batch, space.dtype) if batch else np.dtype(space.dtype).type(1)
        case TextSpace():
            return (space.characters * 9)[: space.min_length] if space.characters or not space.min_length else None
        case DictSpace():
            return {key: sample(part, draw, batch) for key, part in space.spaces.items()}
        case TupleSpace():
            return tuple(sample(part, draw, batch) for part in space.spaces)
        case OneOfSpace():
            number = draw(st.integers(0, len(space.spaces) - 1))
            return number, sample(space.spaces[number], draw)
        case SequenceSpace(stack=True):
            return sample(space.space, draw, (2,))
        case SequenceSpace():
            return tuple(sample(space.space, draw) for _ in range(draw(st.integers(0, 2))))
        case GraphSpace():
            edges = None if space.edges is None else sample(space.edges, draw, (3,))
            return sample(space.nodes, draw, (2,)), edges, None if edges is None else np.zeros((3, 2), np.int32)


def has_impossible_text(space: AnySpace) -> bool:
    if isinstance(space, TextSpace):
        return space.min_length > 0 and not space.characters
    return any(has_impossible_text(part) for part in space.parts)


@given(SPACES, st.data())
def test_an_element_of_any_space_comes_back_from_the_wire(space: AnySpace, data: st.DataObject) -> None:
    if has_impossible_text(space):
        return
    element = sample(space, data.draw)
    tree = space.to_tree(element, cast=True)
    assert space.mismatch(tree) == ""
    skeleton, frames = pack_tree(tree)
    received = unpack_tree(unpack_plain(msgpack.packb(skeleton)), [bytes(frame) for frame in frames])
    assert space.mismatch(received) == ""
    np.testing.assert_equal(received, tree)


KINDS = ["Box", "Discrete", "MultiDiscrete", "MultiBinary", "Text", "Dict", "Tuple", "OneOf", "Sequence", "Graph", "x"]
FIELDS = ["n", "start", "shape", "dtype", "low", "high", "nvec", "spaces", "space", "stack", "nodes", "edges"]
ODD = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 9),
        st.integers(),
        st.floats(),
        st.text(max_size=4),
        st.sampled_from(["inf", "Box"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.fixed_dictionaries({"type": st.sampled_from(KINDS)}, optional=dict.fromkeys(FIELDS, inner)),
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=4), ODD, max_size=3) | ODD)
@settings(max_examples=300)
def test_a_document_is_a_space_or_refused_with_one_line(form: Any) -> None:
    for read in (any_space_from, space_from):
        try:
            space = read(form)
        except ConfigError as exc:
            assert "\n" not in str(exc)
            assert len(str(exc)) < 600
        else:
            assert any_space_from(space_to_json(space)) == space


@given(SPACES, st.data())
def test_a_space_with_one_field_changed_is_a_space_or_refused(space: AnySpace, data: st.DataObject) -> None:
    form = space_to_json(space)
    inner = form
    while data.draw(st.booleans()) and (parts := [v for v in inner.values() if isinstance(v, dict)]):
        inner = data.draw(st.sampled_from(parts))
    inner[data.draw(st.sampled_from([*inner, "n", "low"]))] = data.draw(ODD)
    try:
        any_space_from(form)
    except ConfigError as exc:
        assert "\n" not in str(exc)


def nested(levels: int) -> Any:
    form: Any = {"type": "Discrete", "n": 2}
    for _ in range(levels - 1):
        form = {"type": "Tuple", "spaces": [form]}
    return form


BOX = {"type": "Box", "shape": [2]}


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (nested(MAX_DEPTH + 1), f"{MAX_DEPTH} levels"),
        (nested(900), f"{MAX_DEPTH} levels"),
        ({"type": "Tuple", "spaces": [{"type": "Discrete", "n": 2}] * MAX_SPACES}, f"{MAX_SPACES + 1} spaces"),
        ({"type": "Tuple", "spaces": [{"type": "Box", "shape": [MAX_ELEMENTS]}] * 2}, f"{2 * MAX_ELEMENTS} elements"),
        ({"type": "Box", "shape": [1 << 40]}, "elements"),
        ({"type": "Box", "shape": [0, 1 << 40]}, "elements"),
        ({"type": "Box", "shape": [1] * 9}, "dimensions"),
        ({"type": "Box", "shape": [2], "dtype": "object"}, "dtype 'object' is not supported"),
        ({**BOX, "low": [1, 2, 3]}, "3 numbers"),
        ({**BOX, "low": 10**400}, "too large"),
        ({"type": "Discrete", "n": -1}, "n >= 1"),
        ({"type": "Discrete", "n": 10**4000}, "does not fit int64"),
        ({"type": "Discrete", "n": 300, "dtype": "uint8"}, "does not fit uint8"),
        ({"type": "Discrete", "n": 2, "dtype": "float32"}, "cannot have the dtype"),
        ({"type": "MultiBinary", "n": [-3]}, "dimensions"),
        ({"type": "MultiBinary", "n": 1 << 40}, "elements"),
        ({"type": "MultiDiscrete", "nvec": [2, 0]}, "nvec >= 1"),
        ({"type": "MultiDiscrete", "nvec": [2], "shape": [2]}, "needs 2 integers"),
        ({"type": "MultiDiscrete", "nvec": [2], "start": ["0"]}, "list of integers"),
        ({"type": "Text", "max_length": "9", "min_length": 0, "characters": ""}, "0 <= min_length"),
        ({"type": "Text", "max_length": 1 << 60, "min_length": 0, "characters": ""}, "max_length"),
        ({"type": "Dict", "spaces": 3}, "must be a JSON object"),
        ({"type": "Dict", "spaces": {"a": 3}}, r"space.spaces\['a'\] must be a JSON object, not int"),
        ({"type": "Tuple", "spaces": [{"type": "Tuple"}]}, "needs 'spaces'"),
        ({"type": "OneOf", "spaces": {}}, "must be a list"),
        ({"type": "Sequence", "space": BOX, "stack": 1}, "must be a boolean"),
        ({"type": "Graph", "nodes": None}, "must be a JSON object"),
        ({"type": "os.system"}, "Box, Discrete"),
        ({"type": "Discrete", "n": 2, "colour": 1}, "unknown key 'colour'"),
    ],
)
def test_a_document_that_is_not_a_space_is_refused(form: Any, words: str) -> None:
    began = time.perf_counter()
    with pytest.raises(ConfigError, match=words) as caught:
        any_space_from(form)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - began < 5.0


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{", "[" * 100_000, '{"type": "Box", "shape": [2], "low": NaN}', " " * (MAX_TEXT + 1), "\ud800"]
)
def test_a_text_that_is_not_a_space_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        space_from_text(text)


def test_a_space_with_more_text_than_travels_is_refused_by_its_owner() -> None:
    numbers = tuple(float(n) for n in range(1 << 20))
    with pytest.raises(ConfigError, match="JSON form of the space has"):
        space_to_text(BoxSpace((1 << 20,), "<f8", numbers, tuple(n + 0.1 for n in numbers)))


def test_bounds_of_integers_are_exact() -> None:
    space = BoxSpace((2,), "<u8", (2**63 + 1, 0), 2**64 - 1)
    assert any_space_from(json.loads(json.dumps(space_to_json(space)))) == space
    with pytest.raises(ConfigError, match="low <= high"):
        BoxSpace((1,), "<i8", 2**62 + 1, 2**62)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DictSpace({1: DiscreteSpace(2)}),  # type: ignore[dict-item]
        lambda: DictSpace({"a": "b"}),  # type: ignore[dict-item]
        lambda: DictSpace([DiscreteSpace(2)]),  # type: ignore[arg-type]
        lambda: TupleSpace((3,)),  # type: ignore[arg-type]
        lambda: SequenceSpace(None),  # type: ignore[arg-type]
        lambda: TextSpace(3, 1, 7),  # type: ignore[arg-type]
    ],
)
def test_a_space_is_made_of_spaces(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize("read", [space_from, observation_space_from])
def test_what_a_learner_client_cannot_have_is_refused_by_its_kind(read: Any) -> None:
    text = TextSpace(1, 0, "a")
    for space in (text, SequenceSpace(DiscreteSpace(2)), DictSpace({"words": text})):
        with pytest.raises(ConfigError, match=r"is of type (Text|Sequence), which learner clients do not support: use Box"):
            read(space_to_json(space))
    with pytest.raises(ConfigError, match="space is an empty Tuple; expected at least one space in it"):
        read(TupleSpace(()))
    with pytest.raises(ConfigError, match="space has 33 arrays; the limit is 32"):
        read(TupleSpace((DiscreteSpace(2),) * 33))
    for large in (DiscreteSpace(3, 2**63, "<u8"), MultiDiscreteSpace((3,), (2**63,), (1,), "<u8")):
        with pytest.raises(ConfigError, match="from 9223372036854775808 on does not fit int64"):
            read(large)
    for nested in (DictSpace({"a": DiscreteSpace(2)}), MultiDiscreteSpace((2, 3))):
        assert read(space_to_json(nested)) == nested
    assert read(DiscreteSpace(3, dtype="|u1")) == DiscreteSpace(3)


@given(SPACES)
@settings(max_examples=50)
def test_gymnasiums_space_is_read_as_ours(space: AnySpace) -> None:
    pytest.importorskip("gymnasium")
    module = pytest.importorskip("rl4sys_zmq.serving.gymnasium_spaces")
    try:
        built = module.to_gymnasium(space)
    except ConfigError as exc:  # Gymnasium supports no Dict with the key "", no graph of texts, no batch of an empty space
        assert "Gymnasium rejects" in str(exc)
        return
    assert any_space_from(built) == space
