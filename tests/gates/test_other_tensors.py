"""A learner that sends false tensors of other dtypes, or a false blob. The actor refuses them and keeps its policy."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import xxhash
from kit import play, until

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.errors import HandshakeRefused
from rl4sys_zmq.policies import POLICIES, PolicyEntry
from rl4sys_zmq.values import MAX_BLOB_BYTES, PolicySnapshot, PolicySpec, TensorSpec
from rl4sys_zmq.weights import EncodingOptions, PayloadEncoding, WeightsHeader, digest, encode_update
from rl4sys_zmq.wire import spec_body, spec_to_document
from rl4sys_zmq.wire.messages import Hello, Refused

from . import evil
from .conftest import join

TENSORS = (TensorSpec("bias", (2,)), TensorSpec("ids", (3,), "int64"), TensorSpec("half", (5,), "float16"))
SPEC = PolicySpec(evil.SPEC.observation_space, evil.SPEC.action_space, "test-lies", {}, TENSORS, b"graph" * 100)
WRITING = EncodingOptions(tensors=TENSORS)


class First:
    """A policy that chooses the first action, and keeps its tensors."""

    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        self.snapshot, self.generation, self.version = snapshot, snapshot.generation, snapshot.version
        self.tensors, self.blob = spec.views(snapshot.flat, snapshot.others), spec.blob

    def act(self, observation: Any, mask: Any, rng: Any, explore: bool) -> Any:
        return np.int64(0), np.int64(0), 0.0

    def act_batch(self, observations: Any, masks: Any, rng: Any, explore: bool) -> Any:
        zeros = np.zeros(len(observations), np.int64)
        return zeros, zeros, zeros.astype(np.float32)


def _counted(agent: RL4SysAgent, key: str, before: int) -> bool:
    return bool(agent.stats()["counters"].get(key, 0) > before)


def state(version: int) -> PolicySnapshot:
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "bias": np.zeros(2),
        "ids": np.arange(3) + (version << 40),
        "half": np.full(5, version, np.float16),
    }
    flat, others = SPEC.flatten(tensors)
    return PolicySnapshot(evil.GENERATION, version, digest(flat, others), flat, others)


def sound(version: int, base: int | None = None) -> tuple[bytes, bytes]:
    header, payload = encode_update(evil.POLICY, None if base is None else state(base), state(version), WRITING)
    return header, bytes(payload)


def lie(update: tuple[bytes, bytes], payload: bytes | None = None, **changes: Any) -> tuple[bytes, bytes]:
    """Return an update with another payload or header, sealed as if it were correct."""
    payload = update[1] if payload is None else payload
    fields = {"payload_bytes": len(payload), "payload_hash": xxhash.xxh3_64_intdigest(payload), **changes}
    return replace(WeightsHeader.unpack(update[0]), **fields).pack(), payload


@pytest.fixture
def liar(monkeypatch: pytest.MonkeyPatch) -> Iterator[evil.Evil]:
    """A learner that sends correct messages until the test changes them."""
    monkeypatch.setitem(POLICIES._entries, SPEC.kind, PolicyEntry(name=SPEC.kind, factory=First))
    learner = evil.Evil()
    try:
        learner.welcome = {"spec": spec_to_document(SPEC), "body": spec_body(SPEC), "digest": state(0).digest}
        learner.weights = sound(0)
        yield learner
    finally:
        learner.close()


DOCUMENT = spec_to_document(SPEC)
BAD_WELCOMES: dict[str, dict[str, Any]] = {
    "dtype": {"spec": {**DOCUMENT, "tensors": [["ids", [3], "object"]]}},
    "too large": {"spec": {**DOCUMENT, "tensors": [["ids", [1 << 62] * 8, "int64"]]}},
    "no blob": {"body": ()},
    "other blob": {"body": (SPEC.blob[::-1],)},
    "oversize": {"spec": {**DOCUMENT, "blob": [1 << 40, "0" * 32]}},
    "oversize and sent": {
        "spec": {**DOCUMENT, "blob": [MAX_BLOB_BYTES + 1, xxhash.xxh3_128_hexdigest(bytes(MAX_BLOB_BYTES + 1))]},
        "body": (bytes(MAX_BLOB_BYTES + 1),),
    },
}


@pytest.mark.parametrize("case", BAD_WELCOMES)
def test_a_welcome_that_lies_is_refused(liar: evil.Evil, case: str) -> None:
    liar.welcome = {**liar.welcome, **BAD_WELCOMES[case]}
    with pytest.raises(HandshakeRefused, match=r"not a policy spec|bytes of weights; this actor accepts at most"):
        join(liar.address, algorithm_name=None)


def test_an_actor_that_joins_again_needs_no_second_blob(liar: evil.Evil) -> None:
    with join(liar.address, algorithm_name=None) as agent:
        until(lambda: agent.version == 0 and agent.digest == state(0).digest, "the first version")
        liar.welcome = {**liar.welcome, "body": ()}
        joined = agent.stats()["counters"]["joined"]
        liar.say(Refused("no_session", "", ""))
        until(lambda: agent.stats()["counters"]["joined"] > joined, "the second session")
        assert agent.spec == SPEC and [m for m in liar.heard if isinstance(m, Hello)][-1].held_generation == evil.GENERATION
        liar.publish([b"W" + evil.TOPIC, *sound(1)])
        until(lambda: agent.version == 1, "a version of the second session")


def test_updates_that_lie_change_nothing(liar: evil.Evil) -> None:
    whole, diff = sound(1), sound(1, 0)
    trailer = struct.Struct("<IB")

    def raw(flat: Any, others: bytes, **changes: Any) -> tuple[bytes, bytes]:
        payload = flat.tobytes() + others + trailer.pack(len(others), PayloadEncoding.SNAPSHOT)
        return lie(whole, payload, codec=PayloadEncoding.SNAPSHOT, **changes)

    others = len(state(0).others)
    unsound = SPEC.flatten({"bias": np.zeros(2), "ids": np.zeros(3, np.int64), "half": np.full(5, np.inf, np.float16)})
    without = encode_update(evil.POLICY, None, PolicySnapshot(evil.GENERATION, 1, 1, state(1).flat), EncodingOptions())
    bad = [
        ("size", (without[0], bytes(without[1]))),
        ("payload", lie(whole, whole[1][:-5] + trailer.pack(1 << 31, PayloadEncoding.SNAPSHOT))),
        ("payload", lie(whole, whole[1][:-5] + trailer.pack(others, 9))),
        ("payload", lie(whole, whole[1][:-5] + trailer.pack(others, PayloadEncoding.UNCHANGED))),
        ("payload", lie(whole, whole[1][:-5] + trailer.pack(others - 4, PayloadEncoding.SNAPSHOT))),
        ("payload", lie(whole, bytes(10_000) + whole[1])),
        ("payload", lie(whole, b"")),
        ("payload", (diff[0], diff[1][:-1])),
        ("digest", lie(diff, state_hash=1)),
        ("digest", raw(state(1).flat, bytes(others), state_hash=state(1).digest)),
        ("finite", raw(*unsound, state_hash=digest(*unsound))),
    ]
    with join(liar.address, algorithm_name=None) as agent:
        until(lambda: agent.version == 0 and agent.digest == state(0).digest, "the first version")
        for count, (reason, update) in enumerate(bad, 1):
            before = agent.stats()["counters"].get(f"weights_refused.{reason}", 0)
            liar.publish([b"W" + evil.TOPIC, *update])
            key = f"weights_refused.{reason}"
            until(partial(_counted, agent, key, before), f"lie {count}: {reason}")
            play(agent, 2)
            assert (agent.version, agent.digest) == (0, state(0).digest)
        liar.weights = sound(1)
        liar.publish([b"W" + evil.TOPIC, *diff])
        until(lambda: agent.version == 1, "a sound diff")
        policy: Any = agent._io.weight_subscriber.policy
        assert policy.blob == SPEC.blob and agent.digest == state(1).digest
        assert policy.tensors["ids"].tolist() == [1 << 40, (1 << 40) + 1, (1 << 40) + 2]
        assert policy.snapshot.others == state(1).others
