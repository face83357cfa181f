"""Tests of the validation of segments: the check of a whole message finds what the check of each segment finds."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from kit import segment_with
from numpy.typing import NDArray

from rl4sys_zmq.learner.training.validation import (
    CHUNK,
    SegmentContentRules,
    SegmentValueLimits,
    content_error,
    content_errors,
    is_finite,
)
from rl4sys_zmq.policies import RandomSource, build_policy
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, ColumnSpec, DiscreteSpace, PolicySnapshot, Segment
from rl4sys_zmq.wire import SegmentBatchReader, SegmentSchema, decode, encode, join_submit, pack_segment
from rl4sys_zmq.wire.messages import Submit

GENERATION, VERSION = 1000, 5
SCHEMA = SegmentSchema(BoxSpace((2,)), DiscreteSpace(3, 1), 1 << 20)
NAN, INF = float("nan"), float("inf")
FLT_MAX = float(np.finfo(np.float32).max)


def standard(schema: SegmentSchema, magnitude: float = 1e15, reward: float = 1e12) -> SegmentContentRules:
    return SegmentContentRules(schema, SegmentValueLimits(schema, magnitude, reward), GENERATION, VERSION)


STANDARD = standard(SCHEMA)


def segment(steps: int = 3, **changes: Any) -> Segment:
    given = {
        "observations": np.zeros((steps, 2), np.float32),
        "actions": np.full(steps, 2),
        "versions": np.full(steps, VERSION, np.uint64),
        "generation": GENERATION,
        "episode_return": 1.0,
        "episode_length": steps,
    }
    return segment_with(steps, **{**given, **changes})


def replaces(value: Any, *place: int, of: NDArray[Any]) -> NDArray[Any]:
    out = of.copy()
    out[place] = value
    return out


BAD: dict[str, dict[str, Any]] = {
    "a reward": {"rewards": replaces(NAN, 1, of=np.zeros(3, np.float32))},
    "a log-probability": {"log_probs": replaces(-INF, 2, of=np.zeros(3, np.float32))},
    "an observation": {"observations": replaces(INF, 0, 1, of=np.zeros((3, 2), np.float32))},
    "the return": {"episode_return": NAN},
    "a huge return": {"episode_return": 1e30},
    "a reward of FLT_MAX": {"rewards": replaces(FLT_MAX, 1, of=np.zeros(3, np.float32))},
    "a reward of -1e13": {"rewards": replaces(-1e13, 1, of=np.zeros(3, np.float32))},
    "an observation of 1e19": {"observations": replaces(1e19, 2, 1, of=np.zeros((3, 2), np.float32))},
    "an observation of -FLT_MAX": {"observations": replaces(-FLT_MAX, 0, 0, of=np.zeros((3, 2), np.float32))},
    "a log-probability of -1e38": {"log_probs": replaces(-1e38, 0, of=np.zeros(3, np.float32))},
    "a log-probability above 0": {"log_probs": replaces(0.7, 0, of=np.zeros(3, np.float32))},
    "overridden, with a log-probability above 0": {"source": "human", "log_probs": replaces(0.7, 0, of=np.zeros(3, np.float32))},
    "overridden, with an infinite one": {"source": "human", "log_probs": replaces(INF, 0, of=np.zeros(3, np.float32))},
    "overridden, with a reward that is not a number": {"source": "human", "rewards": np.full(3, NAN, np.float32)},
    "an action too low": {"actions": np.array([2, 0, 2])},
    "an action too high": {"actions": np.array([2, 2, 4])},
    "all forbidden": {"masks": replaces(False, 1, of=np.ones((3, 3), np.bool_))},
    "a later version": {"versions": np.full(3, VERSION + 1, np.uint64)},
    "one later version": {"versions": np.array([5, 5, 6], np.uint64)},
    "a later generation": {"generation": GENERATION + 1},
}
GOOD: dict[str, dict[str, Any]] = {
    "some forbidden": {"masks": np.eye(3, dtype=np.bool_)},
    "nothing to choose at the end": {
        "masks": replaces(False, 3, of=np.ones((4, 3), np.bool_)),
        "observations": np.zeros((4, 2), np.float32),
        "terminated": False,
        "episode_return": None,
        "episode_length": None,
    },
    "large numbers": {"rewards": np.full(3, 9.9e11, np.float32), "observations": np.full((3, 2), -9.9e14, np.float32)},
    "subnormal numbers": {"rewards": np.full(3, 1e-42, np.float32), "observations": np.full((3, 2), -1e-42, np.float32)},
    "flipped signs": {"rewards": np.full(3, -1.0, np.float32), "observations": np.full((3, 2), -0.0, np.float32)},
    "an earlier generation's version": {"generation": GENERATION - 1, "versions": np.full(3, 2**64 - 1, np.uint64)},
    "mixed versions": {"versions": np.array([5, 3, 4], np.uint64)},
    "overridden, and unknown to the policy": {"source": "human", "log_probs": np.array([NAN, -INF, -1e38], np.float32)},
    "mixed versions of an earlier generation": {"generation": 1, "versions": np.array([5, 9, 9], np.uint64)},
}


def judged(*segments: Segment, skip: Collection[int] = ()) -> dict[int, str]:
    message = decode(encode(join_submit(0, 0, [pack_segment(s) for s in segments])))
    assert isinstance(message, Submit)
    batch = SegmentBatchReader(message)
    with np.errstate(all="raise"):
        return content_errors(batch, batch.segments(), skip, STANDARD)


@pytest.mark.parametrize("name", BAD)
def test_one_bad_segment_among_good_ones(name: Any) -> None:
    bad = segment(**BAD[name])
    assert content_error(bad, STANDARD)
    assert list(judged(segment(), bad, segment(4))) == [1]
    assert judged(segment(), bad, skip={1}) == {}


@pytest.mark.parametrize("name", GOOD)
def test_nothing_is_wrong_with_it(name: Any) -> None:
    good = segment(**GOOD[name])
    assert content_error(good, STANDARD) == ""
    assert judged(segment(), good, segment(2)) == {}


def test_all_good_and_all_bad() -> None:
    assert judged(*[segment(n) for n in range(1, 20)]) == {}
    assert list(judged(*[segment(**changes) for changes in BAD.values()])) == list(range(len(BAD)))


def test_discrete_observations_and_continuous_actions() -> None:
    schema = SegmentSchema(DiscreteSpace(4), BoxSpace((2,)), 9)
    moves = np.zeros((3, 2), np.float32)
    cases = [
        segment(observations=np.array([0, 3, 1]), actions=moves),
        segment(observations=np.array([0, 4, 1]), actions=moves),
        segment(observations=np.array([0, 3, 1]), actions=replaces(NAN, 2, 0, of=moves)),
    ]
    batch = SegmentBatchReader(join_submit(0, 0, [pack_segment(s) for s in cases]))
    assert list(content_errors(batch, batch.segments(), (), standard(schema))) == [1, 2]


@pytest.mark.parametrize("size", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_finiteness_of_long_columns(size: int, bad: float) -> None:
    column = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    column[-1] = np.finfo(np.float32).max
    with np.errstate(all="raise"):
        assert is_finite(column)
        for place in {0, size // 2, size - 1}:
            assert not is_finite(replaces(bad, place, of=column))


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8"])
def test_finite_numbers_may_add_up_to_more_than_their_type_holds(dtype: Any) -> None:
    column = np.full((2 * CHUNK, 2), np.finfo(dtype).max, dtype)
    with np.errstate(all="raise"):
        assert is_finite(column)
        column[::2] *= -1
        assert is_finite(column)
        column[-1] = INF, -INF
        assert not is_finite(column)


def test_the_message_names_the_bounds_of_the_space_and_the_tolerance() -> None:
    rules = standard(SegmentSchema(BoxSpace((2,), low=0.0, high=1.0), DiscreteSpace(3, 1), 9))
    wrong = replaces(101.5, 0, 1, of=np.zeros((3, 2), np.float32))
    reason = "observations contain 101.5 (element 1); expected 0 to 1, or at most 100 beyond"
    assert content_error(segment(observations=wrong), rules) == reason


CART = BoxSpace((4,), low=(-4.8, -FLT_MAX, -0.418, -INF), high=(4.8, FLT_MAX, 0.418, INF))


@pytest.mark.parametrize("steps", [1, 127, 128, 129, 1000])
def test_observations_may_be_a_hundred_times_the_width_of_their_box_beyond_it(steps: int) -> None:
    given = standard(SegmentSchema(CART, DiscreteSpace(2), 1 << 20))

    def with_row(*row: float) -> str:
        rows = replaces(row, steps // 2, of=np.zeros((steps, 4), np.float32))
        one = segment(steps, observations=rows, actions=np.zeros(steps, np.int64))
        batch = SegmentBatchReader(join_submit(0, 0, [pack_segment(one)]))
        found = content_errors(batch, batch.segments(), (), given)
        assert bool(found) == bool(content_error(one, given))
        return found.get(0, "")

    assert with_row(4.8, 1e14, -0.418, -1e14) == "", "the bounds"
    assert with_row(4.8 + 959.9, 1e14, -0.418 - 83.5, -1e14) == "", "the tolerance"
    assert "element 0" in with_row(4.8 + 960.1, 0.0, 0.0, 0.0)
    assert "element 2" in with_row(0.0, 0.0, -0.418 - 83.7, 0.0)
    assert with_row(0.0, FLT_MAX, 0.0, 0.0) and with_row(0.0, 0.0, 0.0, 1e19) and with_row(0.0, NAN, 0.0, 0.0)


def test_the_tolerance_of_boxes_with_one_bound_with_equal_bounds_and_with_large_ones() -> None:
    space = BoxSpace((3,), low=(0.0, 3.3, -6e14), high=(INF, 3.3, 6e14))
    given = standard(SegmentSchema(space, DiscreteSpace(3, 1), 9))

    def error(*row: float) -> str:
        return content_error(segment(observations=np.full((3, 3), row, np.float32)), given)

    above = np.nextafter(np.float32(3.3), np.float32(4.0))
    assert error(-7.0, 3.3, 9.9e14) == error(1e14, float(above), -9.9e14) == ""
    assert "element 0" in error(-1e16, 3.3, 0.0)
    assert "element 1" in error(0.0, 3.31, 0.0)
    assert "element 2" in error(0.0, 3.3, 1.1e15)


def test_raw_actions_may_leave_their_box_and_bytes_are_not_looked_at() -> None:
    schema = SegmentSchema(BoxSpace((2, 2), "|u1", 0.0, 255.0), BoxSpace((2,), low=-1.0, high=1.0), 9)
    given = standard(schema)
    found = given.bounds.of("observations")
    assert found is not None and found.vacuous
    pixels = np.full((3, 2, 2), 255, np.uint8)
    drawn = segment(observations=pixels, actions=np.full((3, 2), 3.0, np.float32), log_probs=np.full(3, 40.0, np.float32))
    assert content_error(drawn, given) == ""
    assert content_error(segment(observations=pixels, actions=np.full((3, 2), 1e19, np.float32)), given)


def test_every_log_density_of_a_squashed_gaussian_is_accepted() -> None:
    """The density of an action near a bound grows without limit with the output of the network."""
    space = BoxSpace((2,), low=-1.0, high=1.0)
    spec = mlp_spec(BoxSpace((2,)), space, "squashed_gaussian", (4,), "relu")
    flat, others = spec.flatten({tensor.name: np.ones(tensor.shape, np.float32) for tensor in spec.tensors})
    policy = build_policy(spec, PolicySnapshot(GENERATION, VERSION, 0, flat, others))
    given = standard(SegmentSchema(BoxSpace((2,)), space, 9))
    for scale in (1.0, 1e3, 1e6, 1e15):
        seen = np.full((3, 2), scale, np.float32)
        raws, _, log_probs = policy.act_batch(seen, None, RandomSource(1), True)
        assert content_error(segment(observations=seen, actions=raws, log_probs=log_probs), given) == ""
    for log_prob in (-201.0, 1e19, FLT_MAX, INF):
        assert "log_probs" in content_error(segment(actions=raws, log_probs=np.full(3, log_prob, np.float32)), given)


@pytest.mark.parametrize("dtype", ["<f2", "<f8", "<i8"])
def test_other_dtypes_have_bounds_too(dtype: Any) -> None:
    given = standard(SegmentSchema(BoxSpace((2,), dtype, -2.0, 2.0), DiscreteSpace(3, 1), 9))
    assert content_error(segment(observations=np.full((3, 2), 2, dtype)), given) == ""
    assert content_error(segment(observations=np.full((3, 2), 403, dtype)), given)
    free = standard(SegmentSchema(BoxSpace((2,), dtype), DiscreteSpace(3, 1), 9))
    greatest = np.finfo(dtype).max if dtype != "<i8" else np.iinfo(np.int64).max
    assert bool(content_error(segment(observations=np.full((3, 2), greatest, dtype)), free)) == (dtype == "<f8")


@pytest.mark.parametrize(("dtype", "low"), [("<i8", 0), ("<i8", -(2**63)), ("<u8", 0), ("<u8", 2**63)])
def test_integers_have_the_bounds_of_their_box_however_large(dtype: Any, low: int) -> None:
    held = np.iinfo(dtype)
    for high in (held.max, low + 2**62):
        given = standard(SegmentSchema(BoxSpace((2,), dtype, low, high), DiscreteSpace(3, 1), 9))
        for value in (low, low + 1_795_785_391 * 10**9, high):
            assert content_error(segment(observations=np.full((3, 2), value, dtype)), given) == ""
    assert "observations contain" in content_error(segment(observations=np.full((3, 2), low + 2**62 + 2**40, dtype)), given)


def test_actions_that_lie_in_their_box_may_be_as_large_as_its_bounds() -> None:
    schema = SegmentSchema(BoxSpace((2,)), BoxSpace((2,), low=-3e38, high=3e38), 9)
    inside = SegmentContentRules(schema, SegmentValueLimits(schema, 1e15, 1e12, in_box=True), GENERATION, VERSION)
    drawn = segment(actions=np.full((3, 2), 2.9e38, np.float32))
    assert content_error(drawn, inside) == ""
    assert "actions contain 2.9e+38" in content_error(drawn, standard(schema))
    assert "actions contain" in content_error(segment(actions=np.full((3, 2), 3.3e38, np.float32)), inside)


EXTRAS = (ColumnSpec("state", (2,), per="segment"), ColumnSpec("half", dtype="<f2"), ColumnSpec("index", dtype="<i8"))
WITH_EXTRAS = SegmentSchema(BoxSpace((2,)), DiscreteSpace(3, 1), 1 << 20, EXTRAS)
SOUND: dict[str, Any] = {
    "extras": {"half": np.zeros(3, "<f2"), "index": np.full(3, np.iinfo(np.int64).max)},
    "initial": {"state": np.zeros(2, "<f4")},
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"initial": {"state": np.array([0.0, NAN], "<f4")}}, "state are not finite"),
        ({"initial": {"state": np.array([-1e16, 0.0], "<f4")}}, "state contain -1e+16; expected -1e+15 to 1e+15"),
        ({"extras": {**SOUND["extras"], "half": np.array([0, INF, 0], "<f2")}}, "half are not finite"),
        (
            {"extras": {**SOUND["extras"], "half": np.zeros(3, "<f4")}},
            "half are <f4 with rows of (); expected <f2 with rows of ()",
        ),
        ({"extras": {}, "initial": {}}, "the columns are o<f4:2"),
    ],
    ids=["not finite", "huge", "half", "of another schema", "of a schema without extra columns"],
)
def test_extra_columns_are_looked_at(changes: dict[str, Any], reason: str) -> None:
    given = standard(WITH_EXTRAS)
    good, bad = segment(**SOUND), segment(**{**SOUND, **changes})
    batch = SegmentBatchReader(join_submit(0, 0, [pack_segment(s) for s in (good, bad, good)]), WITH_EXTRAS)
    with np.errstate(all="raise"):
        found = content_errors(batch, batch.segments(), (), given)
        assert list(found) == [1] and reason in found[1]
        assert content_errors(batch, batch.segments(), {1}, given) == {}
    only = SegmentBatchReader(join_submit(0, 0, [pack_segment(good)]), WITH_EXTRAS)
    assert content_errors(only, only.segments(), (), given) == {}
    assert content_error(good, given) == ""
