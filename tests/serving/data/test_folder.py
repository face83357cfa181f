"""Stores in a folder: they are opened again, also after a killed process, and are refused if they have changed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rl4sys_zmq.replay.folder as folder_module
from rl4sys_zmq.errors import Closed, StoreFileError
from rl4sys_zmq.serving import ReplayBuffer, TrajectoryBuffer
from rl4sys_zmq.serving.data import DataShape, LatestSampler, SequenceSampler


def transition(number: int) -> dict[str, Any]:
    """Return a transition whose parts all contain its number."""
    frames = [np.full((2, 3), (number + i) % 256, np.uint8) for i in range(4)]
    return {
        "observations": {"camera": np.stack(frames[:3]), "state": float(number)},
        "next_observations": {"camera": np.stack(frames[1:]), "state": number + 1.0},
        "actions": number,
        "rewards": number,
        "terminated": number % 5 == 0,
    }


def make(path: Path, capacity: int = 12, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity, **{"image_keys": ["camera"], "num_stack": 3, "path": path, "seed": 1, **options})


def assert_whole(store: ReplayBuffer) -> None:
    """Assert that every transition has all the parts of its number."""
    for number, row in enumerate(store.get_latest_data(-1), store.oldest_data_id()):
        expected = transition(number)
        for name in ("observations", "next_observations"):
            np.testing.assert_array_equal(row[name]["camera"], expected[name]["camera"])
            assert row[name]["state"] == expected[name]["state"]
        assert (row["actions"], row["rewards"], row["terminated"]) == (number, number, number % 5 == 0)


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), capacity=st.integers(1, 12))
def test_a_replay_goes_on_where_it_was(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], capacity: int) -> None:
    path, number = tmp_path_factory.mktemp("store"), 0
    for size in sizes:
        with make(path, capacity) as store:
            assert store.latest_data_id() == number - 1
            store.batch_insert([transition(i) for i in range(number, number + size)])
            number += size
            assert len(store) == min(number, capacity)
            assert_whole(store)
    with make(path, capacity) as store:
        ids = np.arange(store.oldest_data_id(), number)
        np.testing.assert_array_equal(store.sample(1, indx=ids)["actions"], ids)
        assert {key: frames.used for key, frames in store._frames.items()} == {"camera": len(ids) + 3}


@settings(max_examples=30)  # each writes a folder several times
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=8), capacity=st.integers(2, 20))
def test_trajectories_go_on_and_the_last_one_is_over(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], capacity: int
) -> None:
    path, owners = tmp_path_factory.mktemp("store"), []
    for trajectory, length in enumerate(lengths):
        with TrajectoryBuffer(capacity, min_trajectory_length=1, path=path) as buffer:
            buffer.batch_insert([{"owner": trajectory} for _ in range(length)])
            owners += [trajectory] * length
    with TrajectoryBuffer(capacity, min_trajectory_length=1, path=path) as buffer:
        buffer.register_sample_config("all", {"window": SequenceSampler(begin=-9, end=9, source="owner")})
        held = range(max(0, len(owners) - capacity), len(owners))
        data, mask = buffer.sample("all", 1, force_indices=held)
        for index, number in enumerate(held):
            assert set(data["window"][index]) == {owners[number]}
            assert mask["window"][index].sum() == owners[held.start :].count(owners[number])


KILLED = """
import sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_folder import make, transition
store = make(Path(sys.argv[1]))
store.insert(transition(0))
print("go", flush=True)
for number in range(store.latest_data_id() + 1, 1 << 30):
    store.insert(transition(number))
"""


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.03])
def test_a_process_that_is_killed_leaves_whole_transitions(tmp_path: Path, delay: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "go\n"
    with pytest.raises(StoreFileError, match="has it open"):
        make(tmp_path)
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with make(tmp_path) as store:
        first = store.latest_data_id() + 1
        assert first > 0
        assert len(store) >= min(11, first)  # one transition may have been about to be overwritten
        assert_whole(store)
        store.batch_insert([transition(i) for i in range(first, first + 20)])
        assert_whole(store)


def test_a_store_that_was_open_when_the_machine_went_down_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path)
    store.insert(transition(0))
    store.flush()
    store._folder.release()  # type: ignore[union-attr]  # as the end of the process does
    with make(tmp_path) as store:  # the machine has not restarted, so its pages are intact
        assert len(store) == 1
        store._folder.release()  # type: ignore[union-attr]
    boot = tmp_path.parent / "boot_id"
    boot.write_text("another start")
    monkeypatch.setattr(folder_module, "_BOOT", boot)
    with pytest.raises(StoreFileError, match="machine went down"):
        make(tmp_path)
    (tmp_path / "lock").write_text("")
    make(tmp_path).close()
    monkeypatch.setattr(folder_module, "_BOOT", tmp_path / "none")
    make(tmp_path).close()


def test_a_foreign_folder_is_refused_and_nothing_in_it_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("words")
    with pytest.raises(StoreFileError, match=r"thesis\.tex"):
        make(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(StoreFileError):
        make(tmp_path / "thesis.tex")
    with pytest.raises(StoreFileError):
        make(tmp_path / "thesis.tex" / "below")


@pytest.mark.parametrize(
    ("open_it", "words"),
    [
        (lambda p: make(p, 13), "capacity 12, not 13"),
        (lambda p: make(p, num_stack=2), "num_stack 3, not 2"),
        (lambda p: make(p, image_keys=()), "image_keys"),
        (lambda p: make(p, action_space=SimpleNamespace(shape=(2,), dtype="float32")), "actions has .* the spaces require"),
        (lambda p: TrajectoryBuffer(12, path=p), "kind 'ReplayBuffer', not 'TrajectoryBuffer'"),
    ],
)
def test_a_store_of_another_kind_or_with_other_options_is_refused(tmp_path: Path, open_it: Any, words: str) -> None:
    with make(tmp_path) as store:
        store.insert(transition(0))
    with pytest.raises(StoreFileError, match=words):
        open_it(tmp_path)
    make(tmp_path).close()  # no lock is held


def test_columns_that_are_declared_otherwise_are_refused(tmp_path: Path) -> None:
    with TrajectoryBuffer(5, [DataShape("a", (2,))], path=tmp_path) as buffer:
        buffer.insert({"a": [1, 2]})
    with pytest.raises(StoreFileError, match="other columns"):
        TrajectoryBuffer(5, [DataShape("a", (3,))], path=tmp_path)
    with TrajectoryBuffer(5, [DataShape("a", (2,))], path=tmp_path) as buffer:
        buffer.register_sample_config("a", {"a": LatestSampler()})
        assert len(buffer) == 1


def manifest_of(path: Path) -> dict[str, Any]:
    return dict(json.loads((path / "manifest.json").read_text()))


def _rewrite(**changes: Any) -> Any:
    return lambda path: (path / "manifest.json").write_text(json.dumps(manifest_of(path) | changes))


def _cut(name: str, size: int) -> Any:
    return lambda path: os.truncate(next(path.glob(name)), size)


def _column(name: str, rows: Any, values: Any) -> Any:
    def damage(path: Path) -> None:
        np.lib.format.open_memmap(path / manifest_of(path)["files"][name], mode="r+")[rows] = values

    return damage


DAMAGE = {
    "no manifest text": lambda path: (path / "manifest.json").write_text(""),
    "half a manifest": _cut("manifest.json", 60),
    "a manifest of binary": lambda path: (path / "manifest.json").write_bytes(b"\xff\xfe" * 30),
    "a list": lambda path: (path / "manifest.json").write_text("[]"),
    "another format": _rewrite(format=2),
    "a layout of objects": _rewrite(layout={"actions": [[], "|O"]}),
    "no layout": _rewrite(layout=None),
    "a layout of something else": _rewrite(layout={"rewards": [[], "<f4"], "terminated": [[], "|b1"], "truncated": [[], "|b1"]}),
    "a file elsewhere": _rewrite(files={"actions": "../column-1.npy"}),
    "other files": _rewrite(files={}),
    "a short column": _cut("column-002.npy", 130),
    "a column without a header": _cut("column-001.npy", 10),
    "a missing column": lambda path: (path / "column-000.npy").unlink(),
    "missing frames": lambda path: next(path.glob("frames-*")).unlink(),
    "short frames": _cut("frames-*-0000.npy", 129),
    "its counters are impossible": _column("/span", slice(None), (0, 100)),
    "negative counters": _column("/span", slice(None), (-3, 1)),
    "impossible frames": _column("/slots/camera", 0, 1 << 40),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_an_error_of_ours_and_leaves_the_folder_free(tmp_path: Path, name: str) -> None:
    with make(tmp_path) as store:
        store.batch_insert([transition(i) for i in range(3)])
    DAMAGE[name](tmp_path)
    for _ in range(2):
        with pytest.raises(StoreFileError) as caught:
            make(tmp_path)
        assert "has it open" not in str(caught.value)


def test_a_maker_that_died_before_it_was_done_left_nothing_to_take_up(tmp_path: Path) -> None:
    with make(tmp_path) as store:
        store.insert(transition(0))
    (tmp_path / "manifest.json").unlink()
    with make(tmp_path) as store:
        assert len(store) == 0
        store.insert(transition(0))
        assert_whole(store)


@contextmanager
def full_disk(call: str) -> Iterator[None]:
    """Expect the error of a full disk, as a call of the system finds it."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoreFileError, match="No space left"):
        patch.setattr(os, call, full)
        yield


def opened(folder: Path) -> int:
    """Return the number of descriptors and mappings that this process has of files in a folder."""
    files = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return sum(str(folder) in line for line in (*files, *Path("/proc/self/maps").read_text().splitlines()))


@pytest.mark.parametrize("call", ["ftruncate", "pwrite", "fsync"])
def test_a_full_disk_at_opening_and_closing_is_an_error_and_the_folder_is_free(tmp_path: Path, call: str) -> None:
    with full_disk(call):
        make(tmp_path)
    store = make(tmp_path)
    with full_disk("fsync"):
        store.close()
    make(tmp_path).close()
    assert opened(tmp_path) == 0


@pytest.mark.parametrize("failing", range(1, 8))
def test_columns_that_cannot_all_be_made_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    store, calls, reserve = make(tmp_path), iter(range(1, 1 << 30)), os.posix_fallocate

    def nearly_full(*args: int) -> None:
        if next(calls) >= failing:
            raise OSError(28, "No space left on device")
        reserve(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", nearly_full)
        with pytest.raises(StoreFileError, match="No space left"):
            store.insert(transition(0))
    assert len(store) == 0
    if failing < 7:  # the seventh file has frames
        assert opened(tmp_path) == 1  # the lock
        assert [p.name for p in tmp_path.iterdir()] == ["lock"]
    store.insert(transition(0))
    assert_whole(store)
    store.close()


def test_a_full_disk_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.batch_insert([transition(0), transition(1)])
    with full_disk("posix_fallocate"):
        store.batch_insert([transition(i) for i in range(2, 30)])
    assert_whole(store)
    held = len(store)
    store.batch_insert([transition(i) for i in range(held, held + 30)])
    assert_whole(store)
    store.close()
    with pytest.raises(Closed):
        store.flush()
