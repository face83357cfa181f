"""Tests of `WeightHistory`, the versions that a gateway keeps of a policy: its replies, its limits and its beacons."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.delivery import weight_history
from rl4sys_zmq.delivery.weight_history import DIGESTS_KEPT, RING_ITEMS, WeightHistory
from rl4sys_zmq.values import PolicySnapshot, TensorSpec
from rl4sys_zmq.weights import (
    EncodingOptions,
    PayloadEncoding,
    WeightsHeader,
    WireDtype,
    apply_update,
    digest,
    encode_update,
    round_to,
)
from rl4sys_zmq.wire.messages import Beacon
from rl4sys_zmq.wire.thread_messages import PolicyPublished

POLICY = b"policy-1"
GENERATION = 17
SIZES = (300, 20)
TENSORS = (TensorSpec("w", SIZES[:1]), TensorSpec("b", SIZES[1:]))

Way = Callable[[int], np.ndarray[Any, Any]]


def wandering(version: int) -> np.ndarray[Any, Any]:
    """Return the weights of a version, each a small random step from a common start. Prediction does not help."""
    rng = np.random.default_rng(version)
    start = np.random.default_rng(0).normal(0.0, 0.1, sum(SIZES))
    return start + rng.normal(0.0, 1e-4, start.size)


def drifting(version: int) -> np.ndarray[Any, Any]:
    """Return the weights of a version, which moves on in one direction. Prediction makes each diff shorter."""
    start, move = np.random.default_rng(0).normal(0.0, (0.1, 1e-3), (sum(SIZES), 2)).T
    out: np.ndarray[Any, Any] = start + version * move
    return out


class Learner:
    """A publisher of versions, as a learner thread is, with a `WeightHistory` to test."""

    def __init__(self, way: Way = wandering, writing: EncodingOptions | None = None) -> None:
        self.weight_history = WeightHistory(GENERATION)
        self.states: list[PolicySnapshot] = []
        self._way, self._writing = way, writing or EncodingOptions()
        self.weight_history.describe(POLICY, self._writing)

    def publish(self, count: int = 1) -> tuple[Any, ...]:
        """Publish `count` versions, and return the frames that the PUB socket sends for the last of them."""
        out: tuple[Any, ...] = ()
        for _ in range(count):
            version = len(self.states)
            flat = round_to(self._writing.dtype, self._way(version).astype(np.float32))
            new = PolicySnapshot(GENERATION, version, digest(flat), flat)
            base = self.states[-1] if self.states and self._writing.level else None
            before = self.states[-2] if version > 1 else None
            header, payload = encode_update(POLICY, base, new, self._writing, before=before)
            whole = base is None and len(payload) == flat.nbytes
            body = (flat.tobytes(), header) if whole else (flat.tobytes(), header, payload)
            self.states.append(new)
            out = self.weight_history.publish(PolicyPublished(version, new.digest, body))
        return out

    def answer(self, version: int, generation: int = GENERATION) -> list[WeightsHeader]:
        """Apply the reply to an actor at `version`, compare the result with the last version, and return the headers."""
        answer = self.weight_history.catch_up(generation, version)
        held = self.states[version] if generation == GENERATION and 0 <= version < len(self.states) else None
        before: PolicySnapshot | None = None
        headers = []
        for header, payload in zip(answer.body[::2], answer.body[1::2], strict=True):
            headers.append(WeightsHeader.unpack(header))
            held, before = apply_update(headers[-1], payload, held, TENSORS, before=before), held
        assert held is not None and held.digest == self.states[-1].digest
        assert held.flat.tobytes() == self.states[-1].flat.tobytes()
        return headers


def test_the_first_version_goes_out_whole_and_the_others_as_diffs() -> None:
    learner = Learner()
    assert not WeightsHeader.unpack(learner.publish()[0]).codec.is_diff
    header = WeightsHeader.unpack(learner.publish()[0])
    assert header.codec.is_diff and (header.base_version, header.new_version) == (0, 1)


@pytest.mark.parametrize("dtype", [WireDtype.FP32, WireDtype.BF16])
@pytest.mark.parametrize("behind", [1, 2, 10, RING_ITEMS - 1])
def test_within_the_window_a_jump_is_one_diff(dtype: WireDtype, behind: int) -> None:
    learner = Learner(writing=EncodingOptions(dtype))
    learner.publish(RING_ITEMS + 30)
    last = RING_ITEMS + 29
    (header,) = learner.answer(last - behind)
    assert header.codec.is_diff and (header.base_version, header.new_version) == (last - behind, last)


@pytest.mark.parametrize(
    ("version", "generation"),
    [
        (0, 0),
        (0, GENERATION),
        (19, GENERATION),
        (50, GENERATION - 1),
        (83, GENERATION),
        (84, GENERATION),
        (2**40, GENERATION),
        (-1, GENERATION),
    ],
)
def test_who_is_outside_the_window_gets_the_whole(version: int, generation: int) -> None:
    learner = Learner()
    learner.publish(RING_ITEMS + 20)
    (header,) = learner.answer(version, generation)
    assert not header.codec.is_diff and header.new_version == RING_ITEMS + 19


def test_the_window_is_bounded_in_bytes_too_but_the_last_two_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_history, "RING_BYTES", 5 * 4 * sum(SIZES))
    learner = Learner()
    learner.publish(20)
    assert [learner.answer(version)[0].codec.is_diff for version in (13, 14, 15, 18)] == [False, False, True, True]
    monkeypatch.setattr(weight_history, "RING_BYTES", 1)
    learner.publish(2)
    assert [learner.answer(version)[0].codec.is_diff for version in (19, 20)] == [False, True]


@pytest.mark.parametrize("behind", [1, 2, 30])
def test_where_diffs_need_the_version_before_the_last_step_comes_by_itself(behind: int) -> None:
    learner = Learner(drifting)
    assert WeightsHeader.unpack(learner.publish(40)[0]).predicted
    headers = learner.answer(39 - behind)
    steps = [(39 - behind, 38), (38, 39)] if behind > 1 else [(38, 39)]
    assert [(header.base_version, header.new_version) for header in headers] == steps
    assert not any(header.predicted for header in headers)
    whole, last = learner.answer(0, 0)
    assert not whole.codec.is_diff and (last.base_version, last.new_version) == (38, 39)


def test_at_level_0_everybody_gets_the_whole_uncoded() -> None:
    learner = Learner(writing=EncodingOptions(level=0))
    for count in (1, 3):
        frames = learner.publish(count)
        assert WeightsHeader.unpack(frames[0]).codec is PayloadEncoding.SNAPSHOT
        assert bytes(frames[1]) == learner.states[-1].flat.tobytes()
    for version in (0, 2, 3):
        (header,) = learner.answer(version)
        assert header.codec is PayloadEncoding.SNAPSHOT


def test_many_who_ask_at_once_are_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner()
    learner.publish(10)
    coded: list[int] = []

    def counted(
        policy_id: bytes, base: PolicySnapshot | None, new: PolicySnapshot, writing: EncodingOptions
    ) -> tuple[bytes, bytes | memoryview]:
        coded.append(-1 if base is None else base.version)
        return encode_update(policy_id, base, new, writing)

    monkeypatch.setattr(weight_history, "encode_update", counted)
    answers = [learner.weight_history.catch_up(GENERATION, 3) for _ in range(50)]
    assert all(answer == answers[0] for answer in answers) and coded == [3]
    for generation in range(50):
        learner.weight_history.catch_up(generation, 9 if generation == GENERATION else 0)
    assert coded == [3, -1]  # an actor with the last version but one gets the diff that was published
    learner.publish()
    learner.answer(3)
    assert coded == [3, -1, 3]


def test_after_a_gap_in_the_versions_the_window_begins_anew() -> None:
    learner = Learner()
    learner.publish(5)
    last = learner.states[-1]
    body = encode_update(POLICY, None, PolicySnapshot(GENERATION, 9, last.digest, last.flat))
    frames = learner.weight_history.publish(PolicyPublished(9, last.digest, (last.flat.tobytes(), *body)))
    header = WeightsHeader.unpack(frames[0])
    assert not header.codec.is_diff and header.new_version == 9
    assert learner.weight_history.catch_up(GENERATION, 3).body == frames


def test_tensors_that_are_not_float32_are_kept_and_diffed(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = (*TENSORS, TensorSpec("count", (), "int64"), TensorSpec("half", (9,), "float16"))
    writing = EncodingOptions(WireDtype.BF16, tensors=tensors)
    learner = WeightHistory(GENERATION)
    learner.describe(POLICY, writing)
    states: list[PolicySnapshot] = []
    for version in range(5):
        flat = round_to(WireDtype.BF16, wandering(version).astype(np.float32))
        others = np.int64(version).tobytes() + np.full(9, version, np.float16).tobytes() + bytes(2)
        states.append(PolicySnapshot(GENERATION, version, digest(flat, others), flat, others))
        base = states[-2] if version else None
        body = (flat.tobytes() + others, *encode_update(POLICY, base, states[-1], writing))
        learner.publish(PolicyPublished(version, states[-1].digest, body))
    assert (learner.newest.flat.tobytes(), learner.newest.others) == (states[-1].flat.tobytes(), states[-1].others)
    for held in (None, *states[:-1]):
        header, payload = learner.catch_up(GENERATION, held.version if held is not None else -1).body
        got = apply_update(WeightsHeader.unpack(header), payload, held, tensors)
        assert (got.digest, got.others) == (states[-1].digest, states[-1].others)
    monkeypatch.setattr(weight_history, "RING_BYTES", 1)
    for version in (5, 6):
        again = PolicySnapshot(GENERATION, version, states[-1].digest, states[-1].flat, states[-1].others)
        body = (again.flat.tobytes() + again.others, *encode_update(POLICY, None, again, writing))
        learner.publish(PolicyPublished(version, again.digest, body))
    assert learner.nbytes == 2 * (again.flat.nbytes + len(again.others))


def test_a_beacon_says_the_version_and_its_digest() -> None:
    learner = Learner()
    assert learner.weight_history.beacon({}) == Beacon(GENERATION, 0, 0)
    learner.publish(3)
    assert learner.weight_history.beacon({}) == Beacon(GENERATION, 2, learner.states[2].digest)


def test_digests_outlive_the_window_but_not_for_ever() -> None:
    weight_history = WeightHistory(GENERATION)
    weight_history.describe(POLICY, EncodingOptions(level=0))
    new = PolicySnapshot(GENERATION, 0, 0, np.zeros(sum(SIZES), dtype=np.float32))
    body = (new.flat.tobytes(), *encode_update(POLICY, None, new))
    for version in range(DIGESTS_KEPT + 2):
        weight_history.publish(PolicyPublished(version, version + 1000, body))
    assert [weight_history.digest_of(v) for v in (0, 1, 2, DIGESTS_KEPT + 1, DIGESTS_KEPT + 2)] == [
        None, None, 1002, DIGESTS_KEPT + 1001, None,
    ]  # fmt: skip
