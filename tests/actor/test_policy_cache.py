"""A cached policy is loaded bit for bit, or not at all."""

import os
import random
import stat
import struct
import threading
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.actor.io import policy_cache
from rl4sys_zmq.actor.io.policy_cache import ActorPolicyCache, CachedPolicy, PolicyCacheFile
from rl4sys_zmq.actor.io.shared_state import ActorSharedState, SessionParameters
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec, TensorSpec
from rl4sys_zmq.weights import digest
from rl4sys_zmq.wire import spec_to_document
from rl4sys_zmq.wire.frames import pack_header

SPEC = mlp_spec(BoxSpace((3,), low=(-1.0, float("-inf"), 0.0)), DiscreteSpace(4, 2), "categorical", hidden_sizes=(5,))
EXTRAS = {"rollout_length": 128, "client_id": "luna", "max_policy_lag": -1, "limits": [1, 2.5, None, True]}


def snapshot_of(version: int = 7, seed: int = 0, spec: PolicySpec = SPEC) -> PolicySnapshot:
    flat = np.random.default_rng(seed).standard_normal(spec.size).astype(np.float32)
    flat[:4] = np.array([1e-45, -0.0, np.finfo(np.float32).max, -np.finfo(np.float32).tiny / 2], np.float32)
    return PolicySnapshot(1_700_000_000_000, version, digest(flat), flat)


def loaded(cache: PolicyCacheFile) -> CachedPolicy:
    found = cache.load()
    assert found is not None
    return found


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy" / "luna.policy"


def test_a_policy_comes_back_bit_for_bit(path: Path) -> None:
    snapshot = snapshot_of()
    assert PolicyCacheFile(path).load() is None
    assert PolicyCacheFile(path, clock=lambda: 123.5).save(SPEC, snapshot, EXTRAS)
    cached = loaded(PolicyCacheFile(path))
    assert (cached.spec, cached.extras, cached.saved_unix_s) == (SPEC, EXTRAS, 123.5)
    assert cached.snapshot.flat.tobytes() == snapshot.flat.tobytes()
    assert not cached.snapshot.flat.flags.writeable
    assert (cached.snapshot.generation, cached.snapshot.version, cached.snapshot.digest) == (
        snapshot.generation,
        7,
        snapshot.digest,
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["luna.policy"]


def test_a_cached_policy_that_cannot_be_built_is_refused(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The class of a plugin's policy can raise any exception. The actor then starts as without a cached policy."""
    parameters = SessionParameters(1, "PPO", "onpolicy", 128, -1, "train", 1 << 26, 1 << 20, "")
    PolicyCacheFile(path).save(SPEC, snapshot_of(), {"client_id": "luna", "session_parameters": asdict(parameters)})

    def build(spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        raise ValueError("no such layer")

    subscriber: Any = SimpleNamespace(take_up=build)
    host, counters = ActorSharedState(), Counters()
    config = AgentConfig(client_id="luna", policy_cache=path.parent)
    ActorPolicyCache(config, path, subscriber, host, counters).take_up()
    assert host.session_parameters is None
    assert counters.snapshot()["policy_cache.refused"] == 1
    assert "is not used: ValueError: no such layer" in caplog.text


TENSORS = (TensorSpec("w", (3,)), TensorSpec("ids", (2,), "int64"), TensorSpec("half", (3,), "float16"))
GRAPH = PolicySpec(BoxSpace((3,)), DiscreteSpace(2), "graph", {}, TENSORS, b"graph" * 50)


def test_tensors_of_all_dtypes_and_a_blob_come_back_or_nothing(path: Path) -> None:
    tensors = {"w": np.ones(3), "ids": np.array([-1, 1 << 62]), "half": np.array([0.5, -2, 3], np.float16)}
    flat, others = GRAPH.flatten(tensors)
    snapshot = PolicySnapshot(1, 2, digest(flat, others), flat, others)
    assert PolicyCacheFile(path).save(GRAPH, snapshot, EXTRAS)
    cached = PolicyCacheFile(path).load()
    assert cached is not None
    assert cached.spec == GRAPH and cached.snapshot.digest == snapshot.digest
    views = cached.spec.views(cached.snapshot.flat, cached.snapshot.others)
    assert all(np.array_equal(views[name], tensor) for name, tensor in tensors.items())
    data = path.read_bytes()
    for end in range(0, len(data), 7):
        refused(path, data[:end])
    for place in (24, 28, len(data) - 1, len(data) - len(GRAPH.blob) - 1):
        refused(path, data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


@pytest.mark.parametrize("change", ["blob", "others", "not finite"])
def test_other_bytes_with_a_right_checksum_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    flat, others = GRAPH.flatten({"w": np.ones(3), "ids": np.ones(2, np.int64), "half": np.ones(3, np.float16)})
    changed = (
        others[:16] + b"\x00\x7c" + others[18:] if change == "not finite" else others[::-1] if change == "others" else others
    )
    told = digest(flat, others if change == "others" else changed)
    if change == "blob":
        monkeypatch.setattr(policy_cache, "spec_to_document", lambda spec: spec_to_document(replace(spec, blob=spec.blob[::-1])))
    PolicyCacheFile(path).save(GRAPH, PolicySnapshot(1, 2, told, flat, changed), {})
    refused(path, path.read_bytes())


def test_a_host_that_changes_its_working_directory_does_not_move_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    cache = PolicyCacheFile(Path("luna.policy"))
    monkeypatch.chdir(tmp_path / "other")
    assert cache.save(SPEC, snapshot_of(), EXTRAS)
    assert loaded(PolicyCacheFile(tmp_path / "luna.policy")).snapshot.version == 7


def test_saves_keep_their_distance(path: Path) -> None:
    clock = Clock()
    cache = PolicyCacheFile(path, min_interval_s=5.0, monotonic=clock)
    assert cache.save(SPEC, snapshot_of(1), {})
    assert not cache.save(SPEC, snapshot_of(2), {})
    assert loaded(cache).snapshot.version == 1
    assert cache.save(SPEC, snapshot_of(3), {}, force=True)
    clock.now += 5.0
    assert cache.save(SPEC, snapshot_of(4), {})
    assert loaded(cache).snapshot.version == 4
    assert cache.counters.get("policy_cache.saves") == 3


def refused(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    cache = PolicyCacheFile(path)
    assert cache.load() is None
    assert cache.counters.get("policy_cache.refused") == 1
    assert not path.exists()
    assert path.with_name(path.name + ".refused").read_bytes() == data


def test_every_truncation_is_refused(path: Path) -> None:
    PolicyCacheFile(path).save(SPEC, snapshot_of(), EXTRAS)
    data = path.read_bytes()
    for end in range(len(data)):
        refused(path, data[:end])
    refused(path, data + b"\0")


def test_flipped_bits_are_refused(path: Path, seed: int) -> None:
    PolicyCacheFile(path).save(SPEC, snapshot_of(), EXTRAS)
    data = path.read_bytes()
    rng = random.Random(seed)
    places = [rng.randrange(8 * len(data)) for _ in range(200)] + list(range(8 * 40))
    for place in places:
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        refused(path, bytes(flipped))


@pytest.mark.parametrize(("offset", "claim"), [(8, 1 << 20), (8, 1 << 62), (16, 1 << 40), (16, (1 << 64) - 1)])
def test_a_huge_claim_allocates_nothing(path: Path, offset: int, claim: int) -> None:
    PolicyCacheFile(path).save(SPEC, snapshot_of(), EXTRAS)
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, offset, claim)
    refused(path, bytes(data))


def test_a_huge_file_is_not_read(path: Path) -> None:
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(1 << 40)
    cache = PolicyCacheFile(path)
    assert cache.load() is None
    assert cache.counters.get("policy_cache.refused") == 1


def test_another_major_version_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PolicyCacheFile(path).save(SPEC, snapshot_of(), EXTRAS)
    monkeypatch.setattr(policy_cache, "package_version", lambda: "7.0")
    refused(path, path.read_bytes())


@pytest.mark.parametrize("change", [{"digest": 1}, {"generation": "x"}, {"spec": {}}, {"extras": None}, {"more": 1}])
def test_a_wrong_header_with_a_right_checksum_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr(policy_cache, "pack_header", lambda form: pack_header({**form, **change}))
    PolicyCacheFile(path).save(SPEC, snapshot_of(), EXTRAS)
    refused(path, path.read_bytes())


def test_weights_that_are_not_finite_are_refused(path: Path) -> None:
    flat = np.full(SPEC.size, np.inf, dtype=np.float32)
    PolicyCacheFile(path).save(SPEC, PolicySnapshot(1, 2, digest(flat), flat), {})
    refused(path, path.read_bytes())


@pytest.mark.parametrize("extras", [{"x": object()}, {"x": "y" * (2 << 20)}])
def test_what_cannot_be_saved_is_counted(path: Path, extras: dict[str, Any]) -> None:
    cache = PolicyCacheFile(path)
    assert not cache.save(SPEC, snapshot_of(), extras)
    assert cache.counters.get("policy_cache.save_errors") == 1


def test_a_snapshot_of_another_policy_is_not_saved(path: Path) -> None:
    other = mlp_spec(BoxSpace((2,)), DiscreteSpace(2), "categorical", hidden_sizes=())
    cache = PolicyCacheFile(path)
    assert not cache.save(other, snapshot_of(), {})
    assert cache.counters.get("policy_cache.save_errors") == 1
    assert not path.exists()


def test_a_folder_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = PolicyCacheFile(tmp_path / "file" / "policy", min_interval_s=0.0)
    assert not cache.save(SPEC, snapshot_of(), {})
    assert not cache.save(SPEC, snapshot_of(), {})
    assert cache.load() is None
    assert cache.counters.get("policy_cache.save_errors") == 2


def test_a_folder_in_place_of_the_file_is_refused_and_leaves_no_descriptor_open(tmp_path: Path) -> None:
    cache = PolicyCacheFile(tmp_path)
    free = os.dup(2)  # the lowest free descriptor
    os.close(free)
    assert cache.load() is None
    again = os.dup(2)
    os.close(again)
    assert (again, cache.counters.get("policy_cache.refused")) == (free, 1)


def test_a_full_disk_leaves_the_old_policy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PolicyCacheFile(path, min_interval_s=0.0)
    cache.save(SPEC, snapshot_of(1), {})

    def full(descriptor: int) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert not cache.save(SPEC, snapshot_of(2), {})
    assert loaded(cache).snapshot.version == 1
    assert [p.name for p in path.parent.iterdir()] == ["luna.policy"]


def test_the_file_of_a_killed_writer_is_removed_when_old(path: Path) -> None:
    cache = PolicyCacheFile(path, min_interval_s=0.0)
    cache.save(SPEC, snapshot_of(1), {})
    left = path.with_name(path.name + ".tmp")
    left.write_bytes(b"half")
    assert not cache.save(SPEC, snapshot_of(2), {})  # another process may be writing the file
    os.utime(left, (1.0, 1.0))
    assert cache.save(SPEC, snapshot_of(3), {})
    assert loaded(cache).snapshot.version == 3


def test_a_reader_never_finds_a_mixture(path: Path) -> None:
    writer, reader = PolicyCacheFile(path, min_interval_s=0.0), PolicyCacheFile(path)
    snapshots = [snapshot_of(v, seed=v) for v in range(60)]
    writer.save(SPEC, snapshots[0], {"version": 0})
    done = threading.Event()

    def write() -> None:
        for s in snapshots[1:]:
            writer.save(SPEC, s, {"version": s.version})
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = [0]
    while not done.is_set():
        cached = loaded(reader)
        assert cached.extras == {"version": cached.snapshot.version}
        assert cached.snapshot.flat.tobytes() == snapshots[cached.snapshot.version].flat.tobytes()
        seen.append(cached.snapshot.version)
    thread.join()
    assert seen == sorted(seen)
    assert reader.counters.get("policy_cache.refused") == 0
    assert writer.counters.get("policy_cache.save_errors") == 0
