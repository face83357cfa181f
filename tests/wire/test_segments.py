"""Segments to columns and back, and heads that do not fit their columns."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.images import ImageFormat
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import (
    DTYPES,
    NO_EXTRAS,
    BoxSpace,
    ColumnSpec,
    DictSpace,
    DiscreteSpace,
    MultiBinarySpace,
    MultiDiscreteSpace,
    PolicySpec,
    Segment,
    TensorSpec,
    TupleSpace,
    space_to_json,
)
from rl4sys_zmq.values.space_conversion import MAX_LEAVES
from rl4sys_zmq.values.trees import flatten
from rl4sys_zmq.wire import (
    PackedSegment,
    SegmentBatchReader,
    SegmentSchema,
    decode,
    encode,
    join_submit,
    pack_segment,
    read_heads,
    read_submit,
    spec_from_document,
    spec_to_document,
    with_images,
)
from rl4sys_zmq.wire.messages import AnyBytes
from rl4sys_zmq.wire.segments import HEAD, LARGE_BYTES, MAX_LAYOUTS

from .conftest import refusal

FIELDS = [f.name for f in dataclasses.fields(Segment)]
COLUMNS = FIELDS[:6]


def same(a: Segment, b: Segment) -> bool:
    for name in FIELDS:
        x, y = getattr(a, name), getattr(b, name)
        if isinstance(x, np.ndarray):
            if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
                return False
        elif isinstance(x, Mapping | tuple):
            (ours, shape), (theirs, other) = (flatten(dict(side) if isinstance(side, Mapping) else side) for side in (x, y))
            if shape != other or any(a.dtype != b.dtype or a.shape != b.shape for a, b in zip(ours, theirs, strict=True)):
                return False
            if any(a.tobytes() != b.tobytes() for a, b in zip(ours, theirs, strict=True)):
                return False
        elif x != y:
            return False
    return True


def travel(*segments: Segment) -> list[Segment | ProtocolError]:
    message = join_submit(3, 9, [pack_segment(s) for s in segments])
    assert read_heads(message)["steps"].tolist() == [s.steps for s in segments]
    return read_submit(decode(encode(message)))  # type: ignore[arg-type]


@st.composite
def segments(draw: Any) -> Any:
    steps = draw(st.integers(1, 6))
    end = draw(st.sampled_from(["terminated", "truncated", "capped", "cut"]))
    rows = steps + (end != "terminated")
    fill = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(fill)

    def column(dtype: Any, *shape: Any) -> Any:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        raw = rng.integers(0, 2 if dtype == "|b1" else 256, count, dtype=np.uint8).tobytes()
        return np.frombuffer(raw, dtype=dtype).reshape(shape)

    obs = draw(st.lists(st.integers(1, 4), max_size=3))
    act = draw(st.lists(st.integers(1, 3), max_size=2))
    ended = end in ("terminated", "truncated")
    rows_of = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(1, 3), max_size=2))
    extras = {f"extra_{n}": column(dtype, steps, *row) for n, (dtype, row) in enumerate(draw(st.lists(rows_of, max_size=3)))}
    initial = {
        f"extra_{n}": column(dtype, *row) for n, (dtype, row) in enumerate(draw(st.lists(rows_of, max_size=2)), len(extras))
    }
    leaves = draw(st.integers(1, 3))
    observed = tuple(column(draw(st.sampled_from(DTYPES)), rows, *obs[n:]) for n in range(leaves))
    return Segment(
        observed if leaves > 1 else observed[0],
        column(draw(st.sampled_from(DTYPES)), steps, *act),
        column("<f4", steps),
        column("<f4", steps),
        np.full(steps, draw(st.integers(0, 2**64 - 1)), np.uint64) if draw(st.booleans()) else column("<u8", steps),
        column("|b1", rows, 3) if draw(st.booleans()) else None,
        draw(st.integers(0, 2**63)),
        draw(st.integers(0, 2**64 - 1)),
        draw(st.integers(0, 1000)),
        end == "terminated",
        end == "truncated",
        end == "capped",
        draw(st.none() | st.floats(allow_nan=False)) if ended else None,
        steps + draw(st.integers(0, 5)) if ended else None,
        extras,
        initial,
        source=draw(st.sampled_from(["", "human", "Safety_2.x-" + "y" * 21])),
    )


@settings(max_examples=150)
@given(st.lists(segments(), min_size=1, max_size=4))
def test_segments_come_back_as_they_went(batch: Any) -> None:
    back = travel(*batch)
    assert len(back) == len(batch)
    assert all(same(a, b) for a, b in zip(batch, back, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [LARGE_BYTES - 16, LARGE_BYTES, LARGE_BYTES + 16])
def test_large_columns_travel_in_frames_of_their_own(make_segment: Any, dtype: Any, size: Any) -> None:
    small = make_segment()
    width = size // np.dtype(dtype).itemsize // 2
    big = dataclasses.replace(small, observations=(np.arange(2 * width) % 2).astype(dtype).reshape(2, width))
    packed = pack_segment(big)
    assert len(packed.large) == (size >= LARGE_BYTES)
    message = join_submit(0, 0, [pack_segment(small), packed, packed, pack_segment(small)])
    assert len(message.body) == 1 + 2 * len(packed.large)
    back = read_submit(decode(encode(message)))  # type: ignore[arg-type]
    assert same(back[0], small)  # type: ignore[arg-type]
    assert same(back[1], big)  # type: ignore[arg-type]
    assert same(back[2], big)  # type: ignore[arg-type]
    assert same(back[3], small)  # type: ignore[arg-type]


def test_large_columns_are_not_copied_and_nothing_may_be_written(make_segment: Any) -> None:
    big = dataclasses.replace(make_segment(), observations=np.ones((2, LARGE_BYTES), np.float32))
    packed = pack_segment(big)
    assert np.shares_memory(np.frombuffer(packed.large[0], np.float32), big.observations)
    (back,) = read_submit(decode([bytes(f) for f in encode(join_submit(0, 0, [packed]))]))  # type: ignore[arg-type]
    for name in COLUMNS[:5]:
        assert not getattr(back, name).flags.writeable


def test_views_are_packed_as_what_they_show(make_segment: Any) -> None:
    small = make_segment()
    wide = np.arange(16, dtype=np.float32).reshape(4, 4)
    strange = dataclasses.replace(small, observations=wide[::2, ::2], actions=np.arange(4)[::-2])
    (back,) = travel(strange)
    assert back.observations.tolist() == [[0, 2], [8, 10]]  # type: ignore[union-attr]
    assert back.actions.tolist() == [3, 1]  # type: ignore[union-attr]


def test_one_version_for_all_steps_is_sent_once(make_segment: Any) -> None:
    segment = make_segment(5)
    packed = pack_segment(segment)
    assert packed.small[4] == b""
    assert (packed.oldest_version, packed.steps, packed.nbytes) == (3, 5, sum(map(len, packed.small)))
    mixed = dataclasses.replace(segment, versions=np.array([4, 3, 4, 5, 5], np.uint64))
    assert pack_segment(mixed).small[4] == mixed.versions.tobytes()
    assert pack_segment(mixed).oldest_version == 3
    assert travel(segment)[0].versions.tolist() == [3] * 5  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [object, "S4", "U4", "M8[s]", ">f4", "c8", [("a", "<f4")]])
def test_other_dtypes_are_refused_before_they_are_packed(make_segment: Any, dtype: Any) -> None:
    bad = dataclasses.replace(make_segment(), observations=np.zeros((2, 2), dtype))
    with refusal(RefusalReason.DTYPE):
        pack_segment(bad)


def checksums(*packed: Any, first_seq: int = 0, want_steps: int = 0) -> list[int]:
    """Return the checksums of the segments as the learner computes them from received frames."""
    frames = [bytes(f) for f in encode(join_submit(first_seq, want_steps, packed))]
    return SegmentBatchReader(decode(frames)).checks  # type: ignore[arg-type]


@settings(max_examples=60)
@given(st.lists(segments(), min_size=1, max_size=5), st.data())
def test_a_segment_has_one_checksum_whatever_batch_it_travels_in(batch: Any, data: Any) -> None:
    packed = [pack_segment(s) for s in batch]
    whole = checksums(*packed)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(batch) - 1)), max_size=4)))
    parts = [packed[a:b] for a, b in itertools.pairwise([0, *cuts, len(batch)]) if packed[a:b]]
    shared_out = [checksums(*part, first_seq=7, want_steps=9) for part in parts]
    assert list(itertools.chain.from_iterable(shared_out)) == whole
    assert len(whole) == len(batch)
    assert SegmentBatchReader(join_submit(0, 0, packed)).checks == whole  # the same before and after the encoding


@pytest.mark.parametrize("size", [64, LARGE_BYTES - 16, LARGE_BYTES, LARGE_BYTES + 16])
def test_checksums_of_small_and_large_columns_do_not_depend_on_their_neighbours(make_segment: Any, size: Any) -> None:
    def of(first: float) -> PackedSegment:
        observations = np.zeros((2, size // 8), np.float32)
        observations[1, -1] = first
        return pack_segment(dataclasses.replace(make_segment(), observations=observations))

    big, other, small = of(1.0), of(2.0), pack_segment(make_segment(3))
    (alone,), (of_other,), (of_small,) = checksums(big), checksums(other), checksums(small)
    assert len({alone, of_other, of_small}) == 3
    assert checksums(small, big, small, other, big) == [of_small, alone, of_small, of_other, alone]


def test_every_part_of_a_segment_is_in_its_checksum(make_segment: Any) -> None:
    base, cut = make_segment(2, masks=True), make_segment(2, masks=True, terminated=False)
    changed = [
        dataclasses.replace(base, generation=base.generation + 1),
        dataclasses.replace(base, episode_id=1),
        dataclasses.replace(base, segment_index=1),
        cut,
        dataclasses.replace(cut, capped=True),
        dataclasses.replace(cut, truncated=True, episode_length=2),
        dataclasses.replace(base, episode_return=None),
        dataclasses.replace(base, episode_return=-1.0),
        dataclasses.replace(base, episode_length=9),
        *(dataclasses.replace(base, **{name: 1 - getattr(base, name)}) for name in COLUMNS[:4]),
        dataclasses.replace(base, versions=base.versions + np.uint64(1)),
        dataclasses.replace(base, masks=~base.masks),
        dataclasses.replace(base, masks=None),
        dataclasses.replace(base, extras={"a": base.rewards}),
        dataclasses.replace(base, extras={"a": base.rewards + 1}),
        dataclasses.replace(base, initial={"a": base.rewards}),
        dataclasses.replace(base, initial={"a": base.rewards + 1}),
        dataclasses.replace(base, source="human"),
        dataclasses.replace(base, source="human2"),
    ]
    assert len({checksums(pack_segment(s))[0] for s in (base, *changed)}) == 1 + len(changed)


def lying(base: list[Segment], **changes: Any) -> Any:
    """Return a submit of the segments, with a changed head of the second one."""
    message = join_submit(0, 0, [pack_segment(s) for s in base])
    heads = np.frombuffer(message.heads, HEAD).copy()
    for name, value in changes.items():
        heads[name][1] = value
    return dataclasses.replace(message, heads=heads.tobytes())  # type: ignore[arg-type]


ITEM_LIES = {
    "two ends": {"flags": 11},
    "capped and ended": {"flags": 13},
    "an unknown flag": {"flags": 9 | 64},
    "an evaluation without a return": {"flags": 1 | 32},
    "all flags but one": {"flags": 0xEF},
    "something reserved": {"reserved": 1},
    "ended without a length": {"episode_length": 0},
    "shorter than its segment": {"episode_length": 1},
}
LIES_BEFORE_THE_END = {"a return": {"flags": 8}, "a length": {"episode_length": 2}, "a return and a cap": {"flags": 12}}
MESSAGE_LIES = {
    "more steps than rows": ({"steps": 9}, RefusalReason.SHAPE),
    "fewer steps than rows": ({"steps": 1}, RefusalReason.SHAPE),
    "no steps": ({"steps": 0}, RefusalReason.SHAPE),
    "steps beyond counting": ({"steps": 2**32 - 1}, RefusalReason.SHAPE),
    "another row to bootstrap from": ({"flags": 2}, RefusalReason.SHAPE),
    "versions that are not there": ({"flags": 9 | 16}, RefusalReason.SHAPE),
    "a layout that is not there": ({"layout": 1}, RefusalReason.MALFORMED),
}
LAYOUT_LIES = {
    "no columns": ("", RefusalReason.MALFORMED),
    "one column missing": ("a<i8 r<f4 l<f4 v<u8", RefusalReason.MALFORMED),
    "columns in another order": ("v<u8 l<f4 r<f4 a<i8 o<f4:2", RefusalReason.MALFORMED),
    "an unknown column": ("x<f4:2 a<i8 r<f4 l<f4 v<u8", RefusalReason.MALFORMED),
    "a column twice": ("o<f4:2 a<i8 r<f4 r<f4 l<f4 v<u8", RefusalReason.MALFORMED),
    "an action that is not there": ("o<f4:2 a<i8 a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "an observation that is not there": ("o<f4:2 o<f4:2 a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "a column too many": ("o<f4:2 a<i8 r<f4 l<f4 v<u8 m|b1:2 n|b1:2", RefusalReason.MALFORMED),
    "two spaces": ("o<f4:2  a<i8 r<f4 l<f4 v<u8", RefusalReason.MALFORMED),
    "another space": ("o<f4:2\ta<i8 r<f4 l<f4 v<u8", RefusalReason.MALFORMED),
    "two colons": ("o<f4:2:2 a<i8 r<f4 l<f4 v<u8", RefusalReason.MALFORMED),
    "no dtype": ("o:2 a<i8 r<f4 l<f4 v<u8", RefusalReason.MALFORMED),
    "object dtype": ("o|O:2 a<i8 r<f4 l<f4 v<u8", RefusalReason.DTYPE),
    "python dtype": ("ofloat32:2 a<i8 r<f4 l<f4 v<u8", RefusalReason.DTYPE),
    "big-endian": ("o>f4:2 a<i8 r<f4 l<f4 v<u8", RefusalReason.DTYPE),
    "fields": ("o[('a','|O')]:2 a<i8 r<f4 l<f4 v<u8", RefusalReason.DTYPE),
    "negative dimension": ("o<f4:-2 a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "float dimension": ("o<f4:2.0 a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "no dimension": ("o<f4: a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "half a dimension": ("o<f4:2x a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "a dimension in Arabic": ("o<f4:٢ a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "a zero in front": ("o<f4:02 a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "eight dimensions": ("o<f4:1x1x1x1x1x1x1x2 a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "rows of nothing": ("o<f4:2 a<i8:0 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "an overflow": ("o<f4:9999999999999999999x9999999999999999999 a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "a long number": (f"o<f4:{'9' * 10_000} a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "more than the body": ("o<f4:1000 a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "a frame that is not there": (f"o<f4:{1 << 20} a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "less than the body": ("o<f2:1 a<i8 r<f4 l<f4 v<u8", RefusalReason.SHAPE),
    "an empty source": ("o<f4:2 a<i8 r<f4 l<f4 v<u8 @", RefusalReason.MALFORMED),
    "a long source": (f"o<f4:2 a<i8 r<f4 l<f4 v<u8 @{'x' * 33}", RefusalReason.MALFORMED),
    "two sources": ("o<f4:2 a<i8 r<f4 l<f4 v<u8 @a @b", RefusalReason.MALFORMED),
    "a source with an end of line": ("o<f4:2 a<i8 r<f4 l<f4 v<u8 @a\n", RefusalReason.MALFORMED),
    "a source in Greek": ("o<f4:2 a<i8 r<f4 l<f4 v<u8 @άλφα", RefusalReason.MALFORMED),
    "a source before the columns": ("@human o<f4:2 a<i8 r<f4 l<f4 v<u8", RefusalReason.MALFORMED),
    "bytes": (b"o<f4:2 a<i8 r<f4 l<f4 v<u8", RefusalReason.MALFORMED),
    "a list": (["o", "<f4", [2]], RefusalReason.MALFORMED),
    "an array": (np.zeros(2), RefusalReason.MALFORMED),
}


@pytest.mark.parametrize("lie", ITEM_LIES)
def test_a_lie_about_one_segment_costs_that_segment(make_segment: Any, lie: Any) -> None:
    base = [make_segment(n, masks=True) for n in (1, 2, 3)]
    first, second, *rest = read_submit(decode(encode(lying(base, **ITEM_LIES[lie]))))  # type: ignore[arg-type]
    assert isinstance(second, ProtocolError)
    assert second.code is RefusalReason.RANGE
    assert same(first, base[0])  # type: ignore[arg-type]
    assert all(same(a, b) for a, b in zip(rest, base[2:], strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("lie", LIES_BEFORE_THE_END)
def test_what_only_an_end_has(make_segment: Any, lie: Any) -> None:
    base = [make_segment(n, terminated=False) for n in (1, 2, 3)]
    found = read_submit(decode(encode(lying(base, **LIES_BEFORE_THE_END[lie]))))  # type: ignore[arg-type]
    assert [isinstance(s, ProtocolError) for s in found] == [False, True, False]


@pytest.mark.parametrize("lie", MESSAGE_LIES)
def test_a_lie_about_the_bytes_costs_the_message(make_segment: Any, lie: Any) -> None:
    changes, code = MESSAGE_LIES[lie]
    with refusal(code):
        read_submit(lying([make_segment(n, masks=True) for n in (1, 4, 3)], **changes))


@pytest.mark.parametrize("lie", LAYOUT_LIES)
def test_a_lie_about_the_layout_costs_the_message(make_segment: Any, lie: Any) -> None:
    layout, code = LAYOUT_LIES[lie]
    message = join_submit(0, 0, [pack_segment(make_segment(3))])
    with refusal(code):
        read_submit(dataclasses.replace(message, layouts=[layout]))


def test_counts_and_frames_must_agree(make_segment: Any) -> None:
    good = join_submit(0, 0, [pack_segment(make_segment())])
    big = pack_segment(dataclasses.replace(make_segment(), observations=np.ones((2, LARGE_BYTES), np.float32)))
    large = join_submit(0, 0, [big])
    for bad, code in (
        (dataclasses.replace(good, count=2), RefusalReason.MALFORMED),
        (dataclasses.replace(good, count=0, heads=b""), RefusalReason.MALFORMED),  # type: ignore[arg-type]
        (dataclasses.replace(good, heads=good.heads[:-1]), RefusalReason.MALFORMED),  # type: ignore[arg-type]
        (dataclasses.replace(good, heads=good.heads * 2), RefusalReason.MALFORMED),  # type: ignore[arg-type]
        (dataclasses.replace(good, layouts=[]), RefusalReason.MALFORMED),
        (dataclasses.replace(good, layouts=good.layouts * 2), RefusalReason.MALFORMED),
        (dataclasses.replace(good, body=()), RefusalReason.FRAMES),
        (dataclasses.replace(good, body=(*good.body, b"more")), RefusalReason.SHAPE),
        (dataclasses.replace(good, body=(good.body[0] + bytes(16),)), RefusalReason.SHAPE),  # type: ignore[operator]
        (dataclasses.replace(large, body=large.body[:1]), RefusalReason.SHAPE),
        (dataclasses.replace(large, body=(large.body[0], large.body[1][:-8])), RefusalReason.SHAPE),
        (dataclasses.replace(large, body=(*large.body, large.body[1])), RefusalReason.SHAPE),
    ):
        with refusal(code):
            read_submit(bad)


def test_segments_that_are_laid_out_otherwise_share_a_message(make_segment: Any) -> None:
    wide = dataclasses.replace(make_segment(2), observations=np.ones((2, 5), np.float64))
    base = [make_segment(1), make_segment(2, masks=True), wide, make_segment(3), make_segment(4, masks=True, terminated=False)]
    message = join_submit(0, 0, [pack_segment(s) for s in base])
    assert len(message.layouts) == 3
    assert all(same(a, b) for a, b in zip(read_submit(decode(encode(message))), base, strict=True))  # type: ignore[arg-type]
    schema = SegmentSchema(BoxSpace((2,)), DiscreteSpace(2), 3)
    assert {place: e.code for place, e in SegmentBatchReader(message).errors(schema).items()} == {
        2: RefusalReason.SPEC,
        4: RefusalReason.RANGE,
    }


def test_layouts_are_limited(make_segment: Any) -> None:
    packed = pack_segment(make_segment(1))
    many = [dataclasses.replace(packed, layout=f"{packed.layout} m|b1:{n}") for n in range(1, MAX_LAYOUTS + 2)]
    with pytest.raises(ProtocolError):
        join_submit(0, 0, many)
    message = join_submit(0, 0, [packed] * (MAX_LAYOUTS + 1))
    with refusal(RefusalReason.MALFORMED):
        read_submit(dataclasses.replace(message, layouts=message.layouts * (MAX_LAYOUTS + 1)))


def test_the_oldest_version(make_segment: Any) -> None:
    mixed = dataclasses.replace(make_segment(3), versions=np.array([9, 7, 8], np.uint64))
    older = dataclasses.replace(make_segment(2), generation=1, versions=np.full(2, 6, np.uint64))
    batch = SegmentBatchReader(
        join_submit(0, 0, [pack_segment(s) for s in (make_segment(), mixed, older, make_segment(terminated=False))])
    )
    generation = make_segment().generation
    assert batch.oldest(generation, 2) == [3, 7, 2, 3]
    assert batch.oldest(generation, 8) == [3, 7, 6, 3]


SCHEMA = SegmentSchema(BoxSpace((2,)), DiscreteSpace(2), 4)


def error_of(segment: Segment, schema: SegmentSchema = SCHEMA) -> ProtocolError | None:
    try:
        return SegmentBatchReader(join_submit(0, 0, [pack_segment(segment)])).errors(schema).get(0)
    except ProtocolError as error:
        return error


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"observations": np.zeros((2, 3), np.float32)}, RefusalReason.SPEC),
        ({"observations": np.zeros((3, 2), np.float32)}, RefusalReason.SHAPE),
        ({"observations": np.zeros((2, 2), np.float64)}, RefusalReason.SPEC),
        ({"actions": np.zeros(2, np.int32)}, RefusalReason.SPEC),
        ({"actions": np.zeros((2, 1), np.int64)}, RefusalReason.SPEC),
        ({"actions": np.zeros(3, np.int64)}, RefusalReason.SHAPE),
        ({"rewards": np.zeros(2, np.float64)}, RefusalReason.SPEC),
        ({"rewards": np.zeros(3, np.float32)}, RefusalReason.SHAPE),
        ({"log_probs": np.zeros(1, np.float32)}, RefusalReason.SHAPE),
        ({"versions": np.zeros(2, np.int64)}, RefusalReason.SPEC),
        ({"masks": np.ones((2, 3), np.bool_)}, RefusalReason.SPEC),
        ({"masks": np.ones((2, 2), np.uint8)}, RefusalReason.SPEC),
        ({"terminated": False}, RefusalReason.SHAPE),
    ],
    ids=str,
)
def test_a_segment_must_fit_the_spaces(make_segment: Any, changes: dict[str, Any], code: Any) -> None:
    assert error_of(dataclasses.replace(make_segment(), **changes)).code is code  # type: ignore[union-attr]


def slow_code(segment: Segment, box: Any, act: Any, longest: int) -> RefusalReason | None:
    """Return the code of the refusal of a segment, from its arrays and the spaces."""
    rows, options = segment.steps + (not segment.terminated), (act.n,) if isinstance(act, DiscreteSpace) else ()
    if not 1 <= segment.steps <= longest:
        return RefusalReason.RANGE
    observed, acted, masks = segment.observations, segment.actions, segment.masks
    wanted = [(observed, ((rows, *box.shape), box.dtype)), (acted, ((segment.steps, *act.shape), "<i8" if options else "<f4"))]
    wanted += [] if masks is None else [(masks, ((rows, *options), "|b1"))]
    fits = all(isinstance(array, np.ndarray) and (array.shape, array.dtype.str) == form for array, form in wanted)
    return None if fits else RefusalReason.SPEC


@settings(max_examples=150)
@given(st.lists(segments(), min_size=1, max_size=16), st.sampled_from(["<f4", "|u1"]), st.integers(1, 6))
def test_a_whole_message_is_judged_as_its_segments_are(batch: Any, dtype: Any, longest: int) -> None:
    for act in (DiscreteSpace(3), BoxSpace((2,))):
        box = BoxSpace((2,), dtype, 0, 1)
        errors = SegmentBatchReader(join_submit(0, 0, [pack_segment(s) for s in batch])).errors(SegmentSchema(box, act, longest))
        slow = {place: code for place, s in enumerate(batch) if (code := slow_code(s, box, act, longest)) is not None}
        assert {place: error.code for place, error in errors.items()} == slow
        assert list(errors) == sorted(errors)


def test_continuous_actions_have_no_masks(make_segment: Any) -> None:
    schema = SegmentSchema(BoxSpace((2,)), BoxSpace((3,)), 4)
    segment = dataclasses.replace(make_segment(), actions=np.zeros((2, 3), np.float32))
    assert error_of(segment, schema) is None
    masked = dataclasses.replace(segment, masks=np.ones((2, 3), np.bool_))
    assert error_of(masked, schema).code is RefusalReason.SPEC  # type: ignore[union-attr]


def test_a_segment_without_steps_is_refused_alone(make_segment: Any) -> None:
    message = join_submit(0, 0, [pack_segment(make_segment(1))])
    heads = np.frombuffer(message.heads, HEAD).copy()
    heads["steps"] = 0
    empty = dataclasses.replace(message, heads=AnyBytes(heads.tobytes()), body=(b"",), digests=())
    assert SegmentBatchReader(empty).errors(SCHEMA)[0].code is RefusalReason.RANGE


def test_content_is_not_looked_at(make_segment: Any) -> None:
    assert error_of(dataclasses.replace(make_segment(), rewards=np.full(2, np.nan, np.float32))) is None


STATE = ColumnSpec("state", (2, 2), per="segment")
VALUE, SEEN = ColumnSpec("value", dtype="<f8"), ColumnSpec("seen", (3,), "|u1")
WITH_EXTRAS = SegmentSchema(BoxSpace((2,)), DiscreteSpace(2), 4, (STATE, VALUE, SEEN))


def with_extras(segment: Segment, **changes: Any) -> Segment:
    """Return the segment with the columns of `WITH_EXTRAS`."""
    steps = segment.steps
    columns = {
        "extras": {"value": np.arange(steps, dtype="<f8"), "seen": np.arange(3 * steps, dtype="|u1").reshape(steps, 3)},
        "initial": {"state": np.array([[1.0, 2.0], [3.0, 4.0]], "<f4")},
    }
    return dataclasses.replace(segment, **{**columns, **changes})


def test_extra_columns_follow_the_others_and_have_no_names(make_segment: Any) -> None:
    assert WITH_EXTRAS.extra_names == ("value", "seen", "state"), "those per step come first"
    plain, masked = (with_extras(make_segment(2, masks=masks)) for masks in (False, True))
    message = join_submit(0, 0, [pack_segment(plain), pack_segment(masked)])
    assert message.layouts == list(WITH_EXTRAS.layouts)
    assert message.layouts == [
        "o<f4:2 a<i8 r<f4 l<f4 v<u8 x<f8 x|u1:3 i<f4:2x2",
        "o<f4:2 a<i8 r<f4 l<f4 v<u8 m|b1:2 x<f8 x|u1:3 i<f4:2x2",
    ]
    (body,) = message.body
    columns = (
        "0000000000000000000000000000f03f"  # value
        "00010203040500000000000000000000"  # seen, padded
        "0000803f000000400000404000008040"  # state: one row
    )
    assert bytes(body).hex().endswith(columns)
    batch = SegmentBatchReader(decode(encode(message)), WITH_EXTRAS)  # type: ignore[arg-type]
    assert batch.errors(WITH_EXTRAS) == {}
    for sent, got in zip((plain, masked), batch.segments(), strict=True):
        assert same(sent, got)
        assert got.nbytes == make_segment(2, masks=got.masks is not None).nbytes + 16 + 6 + 16
        assert not any(c.flags.writeable for c in (*got.extras.values(), *got.initial.values()))
    assert batch.segments()[0].initial["state"].shape == (2, 2)


def test_segments_without_extra_columns_share_one_empty_mapping(make_segment: Any) -> None:
    (got,) = travel(make_segment())
    assert got.extras is got.initial is NO_EXTRAS  # type: ignore[union-attr]
    assert make_segment().extras is NO_EXTRAS


@pytest.mark.parametrize("size", [LARGE_BYTES - 16, LARGE_BYTES, LARGE_BYTES + 16])
def test_large_extra_columns_travel_in_frames_of_their_own(make_segment: Any, size: Any) -> None:
    small = make_segment(2)
    big = dataclasses.replace(
        small,
        extras={"extra_0": np.ones((2, size // 8), "<f4"), "extra_1": small.rewards},
        initial={"extra_2": np.full(size // 4, 2, "<f4")},
    )
    packed = pack_segment(big)
    assert len(packed.large) == 2 * (size >= LARGE_BYTES)
    for coded in (False, True):
        message = join_submit(0, 0, [pack_segment(small), packed, packed, pack_segment(small)], coded=coded)
        back = read_submit(decode(encode(message)))  # type: ignore[arg-type]
        assert all(same(a, b) for a, b in zip((small, big, big, small), back, strict=True))  # type: ignore[arg-type]
    (alone,) = read_submit(SegmentBatchReader(message).alone(2))
    assert same(alone, big)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"extras": {}}, "the columns are o<f4:2"),
        ({"initial": {}}, "the columns are o<f4:2"),
        ({"extras": {"value": np.zeros(2), "seen": np.zeros((2, 4), "|u1")}}, "seen are |u1 with rows of (4,)"),
        ({"extras": {"value": np.zeros(2, "<f4"), "seen": np.zeros((2, 3), "|u1")}}, "value are <f4 with rows of ()"),
        ({"initial": {"state": np.zeros((2, 3), "<f4")}}, "state are <f4 with rows of (2, 3)"),
    ],
    ids=["none per step", "none per segment", "another shape", "another dtype", "another state"],
)
def test_a_segment_with_other_extra_columns_is_refused_alone(make_segment: Any, changes: Any, words: str) -> None:
    other = with_extras(make_segment(), **changes)
    error = error_of(other, WITH_EXTRAS)
    assert error is not None and words in error.detail
    batch = SegmentBatchReader(join_submit(0, 0, [pack_segment(with_extras(make_segment())), pack_segment(other)]), WITH_EXTRAS)
    assert {place: e.code for place, e in batch.errors(WITH_EXTRAS).items()} == {1: RefusalReason.SPEC}
    assert batch.layout_errors(WITH_EXTRAS).keys() == {1}
    assert len(batch.segments()) == 2, "the others can be read"


def test_a_segment_with_or_without_extra_columns_is_refused_by_the_other_client(make_segment: Any) -> None:
    for segment, schema in ((make_segment(), WITH_EXTRAS), (with_extras(make_segment()), SCHEMA)):
        errors = SegmentBatchReader(join_submit(0, 0, [pack_segment(segment)])).errors(schema)
        assert "the columns are o<f4:2" in errors[0].detail


GOOD_LAYOUT = WITH_EXTRAS.layouts[0]


@pytest.mark.parametrize(
    ("layout", "code"),
    [
        (GOOD_LAYOUT.removesuffix(" i<f4:2x2"), RefusalReason.SHAPE),
        (GOOD_LAYOUT + " i<f4", RefusalReason.SHAPE),
        (GOOD_LAYOUT.replace("x<f8", "x<f4:3"), RefusalReason.SHAPE),
        (GOOD_LAYOUT.replace("x<f8", "x<f8:2"), RefusalReason.SHAPE),
        (GOOD_LAYOUT.replace("2x2", "1000000x200"), RefusalReason.SHAPE),
        (GOOD_LAYOUT.replace("2x2", "0x2"), RefusalReason.SHAPE),
        (GOOD_LAYOUT.replace("2x2", "1x1x1x1x1x1x2x2"), RefusalReason.SHAPE),
        (GOOD_LAYOUT.replace("x<f8", "xO"), RefusalReason.DTYPE),
        (GOOD_LAYOUT.replace("x<f8 x|u1:3 i<f4:2x2", "i<f4:2x2 x<f8 x|u1:3"), RefusalReason.MALFORMED),
        (GOOD_LAYOUT.replace("x<f8", "y<f8"), RefusalReason.MALFORMED),
        (GOOD_LAYOUT + " i<f4" * 40, RefusalReason.MALFORMED),
    ],
    ids=lambda value: f"{value!s:.60}"[-40:],
)
def test_layouts_that_lie_about_extra_columns_are_refused(make_segment: Any, layout: str, code: RefusalReason) -> None:
    message = join_submit(0, 0, [pack_segment(with_extras(make_segment()))])
    with refusal(code):
        read_submit(dataclasses.replace(message, layouts=[layout]))


@pytest.mark.parametrize("change", [-16, -1, 1, 16])
def test_bytes_that_belong_to_no_extra_column_are_refused(make_segment: Any, change: int) -> None:
    message = join_submit(0, 0, [pack_segment(with_extras(make_segment()))])
    (body,) = map(bytes, message.body)
    body = body[:change] if change < 0 else body + bytes(change)
    with refusal(RefusalReason.SHAPE):
        read_submit(dataclasses.replace(message, body=(body,), digests=()))


def test_a_column_of_another_length_is_not_packed(make_segment: Any) -> None:
    with pytest.raises(ProtocolError, match="rows for 2 steps"):
        pack_segment(with_extras(make_segment(), extras={"value": np.zeros(3), "seen": np.zeros((2, 3), "|u1")}))


TREE_SPACE = DictSpace(
    {
        "state": TupleSpace((BoxSpace((2,)), MultiDiscreteSpace((3, 4)))),
        "camera": BoxSpace((8, 8), "|u1", 0, 255),
        "flags": MultiBinarySpace(3),
        "mode": DiscreteSpace(5),
    }
)
TREES = SegmentSchema(TREE_SPACE, DiscreteSpace(2), 4)


def with_tree(segment: Segment, **changes: Any) -> Segment:
    """Return the segment with observations of `TREE_SPACE`."""
    rows = len(segment.observations)
    leaves = {
        "camera": np.arange(64 * rows, dtype="|u1").reshape(rows, 8, 8),
        "flags": np.ones((rows, 3), "|i1"),
        "mode": np.full(rows, 4),
        "state": (np.ones((rows, 2), "<f4"), np.full((rows, 2), 2)),
    }
    return dataclasses.replace(segment, observations={**leaves, **changes})


def test_a_tree_of_observations_has_a_column_for_each_array_in_sorted_order(make_segment: Any) -> None:
    assert TREES.leaves.names == (
        "observations['camera']",
        "observations['flags']",
        "observations['mode']",
        "observations['state'][0]",
        "observations['state'][1]",
    )
    for terminated in (True, False):
        sent = with_tree(make_segment(2, terminated=terminated, masks=True))
        message = join_submit(0, 0, [pack_segment(sent), pack_segment(with_tree(make_segment(3)))], coded=terminated)
        assert message.layouts[0] == "o|u1:8x8 o|i1:3 o<i8 o<f4:2 o<i8:2 a<i8 r<f4 l<f4 v<u8 m|b1:2" == TREES.layouts[1]
        batch = SegmentBatchReader(decode(encode(message)), TREES)  # type: ignore[arg-type]
        assert batch.errors(TREES) == {}
        got, _ = batch.segments()
        assert same(sent, got)
        assert list(got.observations) == ["camera", "flags", "mode", "state"]
        assert sent.nbytes == got.nbytes
        assert same(dataclasses.replace(sent, observations=tuple(sent.observation_leaves)), read_submit(message)[0])  # type: ignore[arg-type]
        assert same(SegmentBatchReader(batch.alone(0), TREES).segments()[0], sent)


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": np.zeros(2)},
        {"flags": np.ones((2, 4), "|i1")},
        {"state": (np.ones((2, 2), "<f4"),)},
        {"state": np.ones((2, 2), "<f4")},
        {"more": np.zeros(2)},
    ],
    ids=["another dtype", "another shape", "a leaf less", "a leaf instead of a tuple", "a leaf more"],
)
def test_another_tree_is_refused_alone(make_segment: Any, changes: Any) -> None:
    other = with_tree(make_segment(), **changes)
    assert error_of(other, TREES).code is RefusalReason.SPEC  # type: ignore[union-attr]
    batch = SegmentBatchReader(join_submit(0, 0, [pack_segment(with_tree(make_segment())), pack_segment(other)]), TREES)
    assert {place: e.code for place, e in batch.errors(TREES).items()} == {1: RefusalReason.SPEC}
    assert len(batch.segments()) == 2


def test_too_many_leaves_and_images_in_a_tree_are_refused(make_segment: Any) -> None:
    message = join_submit(0, 0, [pack_segment(make_segment())])
    many = " ".join(["o<f4"] * (MAX_LEAVES + 1)) + " a<i8 r<f4 l<f4 v<u8"
    with refusal(RefusalReason.MALFORMED):
        read_submit(dataclasses.replace(message, layouts=[many]))
    images = np.zeros((300, 16, 16), "|u1")
    tree = dataclasses.replace(make_segment(299, terminated=False), observations=(images, images))
    packed = pack_segment(tree)
    assert with_images(packed, ImageFormat("png", 80)) is packed
    frame, size = b"\0" * 64, images.nbytes
    message = join_submit(0, 0, [packed])
    codings = [[len(message.body[0])] * 2 + [0], [len(frame), size, 16], [size, size, 0]]
    forged = dataclasses.replace(message, codings=codings, body=(message.body[0], frame, message.body[2]), digests=())
    with pytest.raises(ProtocolError, match="images as column o"):
        read_submit(forged)


SPECS = [
    mlp_spec(BoxSpace((4,)), DiscreteSpace(2), "categorical"),
    mlp_spec(BoxSpace((2, 3), "|u1", 0, 255), DiscreteSpace(3, -1), "q_values", (8,), "relu", True),
    mlp_spec(DiscreteSpace(5), BoxSpace((2,), low=(-1.0, -2.0), high=1.0), "gaussian", (), "identity", False, "tanh"),
    PolicySpec(BoxSpace((4,)), DiscreteSpace(2), "mine", {"a": [1, None, {"b": 0.5}]}, (TensorSpec("w", (2, 2)),)),
    PolicySpec(TREE_SPACE, DiscreteSpace(2), "tree", {}, (TensorSpec("w", (2,)),)),
    PolicySpec(BoxSpace((4,)), DiscreteSpace(2), "columns", {}, (TensorSpec("w", (2,)),), columns=(STATE, VALUE, SEEN)),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.document.get("head", s.kind))
def test_specs_come_back(spec: Any) -> None:
    assert spec_from_document(spec_to_document(spec)) == spec


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": 3},
        {"kind": ""},
        {"kind": "a/b"},
        {"document": []},
        {"document": {"a": b"bytes"}},
        {"document": {"a": float("nan")}},
        {"document": {"a": 1 << 63}},
        {"document": {1: 2}},
        {"document": {"a": (1,)}},
        {"document": {"a": [[[[[[[[[[]]]]]]]]]]}},
        {"document": {"a": [0] * 5000}},
        {"tensors": []},
        {"tensors": [["w", [2]], ["w", [2]]]},
        {"tensors": [[str(i), [1]] for i in range(5000)]},
        {"tensors": [["w"]]},
        {"tensors": [[3, [2]]]},
        {"tensors": [["w", [2] * 9]]},
        {"tensors": [5]},
        {"action_space": {}},
        {"action_space": {"type": [1]}},
        {"action_space": {"type": np.zeros(2)}},
        {"observation_space": {"type": "Box", "shape": [2**40]}},
        {"observation_space": {"type": "Box", "shape": [1000, 1000, 1000]}},
        {"observation_space": {"type": "Box", "shape": [2], "dtype": "O"}},
        {"observation_space": {"type": "Box", "shape": [2], "dtype": "(1,"}},
        {"observation_space": {"type": "Box", "shape": [2], "low": [1, 2, 3]}},
        {"observation_space": {"type": "Box", "shape": [2], "low": "much"}},
        {"observation_space": {"type": "Box", "shape": [2], "low": "nan"}},
        {"observation_space": {"type": "Discrete", "n": -1}},
        {"observation_space": {"type": "Text", "max_length": 1, "min_length": 1, "characters": "a"}},
        {"observation_space": {"type": "Dict", "spaces": {}}},
        {"observation_space": {"type": "Tuple", "spaces": [{"type": "Discrete", "n": 2}] * 33}},
        {"action_space": {"type": "Text", "max_length": 2, "min_length": 1, "characters": "ab"}},
        {"columns": [["a", [2], "<f4"]]},
        {"columns": [["a", [2], "<f4", "episode"]]},
        {"columns": [["a", [0], "<f4", "step"]]},
        {"columns": [["a", [1 << 21], "<f4", "step"]]},
        {"columns": [["a", [1] * 8, "<f4", "step"]]},
        {"columns": [["a", [2], "O", "step"]]},
        {"columns": [["a", [2], 4, "step"]]},
        {"columns": [["rewards", [], "<f4", "step"]]},
        {"columns": [["a/b", [], "<f4", "step"]]},
        {"columns": [[3, [], "<f4", "step"]]},
        {"columns": [["a", [], "<f4", "step"], ["a", [], "<f8", "segment"]]},
        {"columns": [[f"a{n}", [], "<f4", "step"] for n in range(33)]},
        {"columns": {}},
        {"more": 1},
    ],
    ids=lambda changes: f"{changes!s:.60}",
)
def test_other_specs_are_refused(changes: dict[str, Any]) -> None:
    with refusal(RefusalReason.SPEC):
        spec_from_document({**spec_to_document(SPECS[0]), **changes})


def test_a_spec_with_something_missing_is_refused() -> None:
    whole = spec_to_document(SPECS[0])
    for key in whole:
        with pytest.raises(ProtocolError):
            spec_from_document({k: v for k, v in whole.items() if k != key})
    assert whole["observation_space"] == space_to_json(SPECS[0].observation_space)
