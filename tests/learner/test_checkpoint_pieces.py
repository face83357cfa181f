"""Tests of checkpoints that share the files of pieces: complete folders, lost and damaged files, and incremental states."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import manifest, random_segment

from rl4sys_zmq.algorithms import IncrementalAlgorithm, make_algorithm
from rl4sys_zmq.errors import CheckpointError
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.replay import StatePiece
from rl4sys_zmq.replay.pieces import make_piece
from rl4sys_zmq.sealed import seal_document
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment


def piece(number: int) -> StatePiece:
    rng = np.random.default_rng(number)
    return make_piece({"pixels": rng.integers(0, 256, (50, 40), np.uint8), "flags": rng.random(50) < 0.5})


def write(store: CheckpointStore, numbers: range) -> dict[str, Any]:
    """Write a state of these pieces, without the arrays of the stored pieces. Return the state with all arrays."""
    stored = store.stored_pieces()
    pieces = [piece(number) for number in numbers]
    named = [StatePiece(one.name, None) if one.name in stored else one for one in pieces]
    store.write(manifest(), {"weights": np.arange(3.0), "replay": {"pieces": named}})
    return {"weights": np.arange(3.0), "replay": {"pieces": pieces}}


def assert_loaded(store: CheckpointStore, expected: dict[str, Any]) -> None:
    damaged = len(store.damaged)
    _, state = store.load() or pytest.fail("nothing there")
    assert len(store.damaged) == damaged and state["weights"].tolist() == expected["weights"].tolist()
    for mine, theirs in zip(state["replay"]["pieces"], expected["replay"]["pieces"], strict=True):
        assert mine.name == theirs.name and mine.arrays.keys() == theirs.arrays.keys()
        for name, array in mine.arrays.items():
            np.testing.assert_array_equal(array, theirs.arrays[name])
            assert array.dtype == theirs.arrays[name].dtype


def files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir() if path.name.startswith("piece-")}


def test_a_piece_is_shared_with_every_second_checkpoint_and_lives_as_long_as_one_has_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    for first in range(6):
        expected = write(store, range(first, first + 4))
        assert_loaded(CheckpointStore(tmp_path / "c"), expected)
    newest, last, before = (files(path) for path in store.newest())
    assert len(newest) == 4 and newest.keys() & last.keys() and not set(newest.values()) & set(last.values())
    assert len(newest.items() & before.items()) == 2
    assert all(path.stat().st_nlink <= 2 for path in store.newest()[0].iterdir()), "older checkpoints are gone"
    shutil.copytree(store.newest()[0], tmp_path / "d" / "00000001")
    assert_loaded(CheckpointStore(tmp_path / "d"), expected)


def test_a_store_of_one_checkpoint_writes_all_of_it(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c", keep=1)
    for first in range(3):
        assert_loaded(store, write(store, range(first, first + 2)))


def test_pieces_are_copied_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    store = CheckpointStore(tmp_path / "c")
    write(store, range(3))
    write(store, range(3))
    assert store.stored_pieces()
    assert_loaded(store, write(store, range(1, 4)))
    assert {path.stat().st_nlink for path in store.newest()[0].iterdir()} == {1}


def test_damage_to_a_file_leaves_the_checkpoint_before_intact(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    for _ in range(4):
        write(store, range(2))
    newest = store.newest()[0]
    name = sorted(files(newest))[0]
    content = (newest / name).read_bytes()
    for damaged in (content[:-1], content[:200] + bytes([content[200] ^ 1]) + content[201:]):
        (newest / name).write_bytes(damaged)
        later = CheckpointStore(tmp_path / "c")
        found = later.load()
        assert found is not None and found[0].number == 3 and name in later.damaged[0]
        os.rename(store.folder / "00000004.damaged", newest)


def test_a_lost_file_is_written_again(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    for _ in range(3):
        write(store, range(2))
    shared = store.newest()[1]
    next(path for path in shared.iterdir() if path.name.startswith("piece-")).unlink()
    assert not store.stored_pieces()
    assert_loaded(CheckpointStore(tmp_path / "c"), write(store, range(2)))


def test_equal_pieces_share_a_file_even_if_one_of_them_is_new(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    for _ in range(2):
        write(store, range(1))
    old, new = StatePiece(piece(0).name, None), piece(0)
    store.write(manifest(), {"weights": np.arange(3.0), "replay": {"pieces": [old, new]}})
    assert_loaded(store, {"weights": np.arange(3.0), "replay": {"pieces": [new, new]}})


def test_a_manifest_that_names_another_file_is_damaged(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    expected = write(store, range(1))
    write(store, range(1))
    manifest = store.newest()[0] / "manifest.json"
    document = json.loads(manifest.read_bytes())
    document["files"]["piece-/../../secret"] = {"bytes": 1, "xxh3_128": ""}
    document.pop(next(iter(document)))  # the seal
    manifest.write_bytes(seal_document(document))
    found = store.load()
    assert found is not None and found[0].number == 1 and "is not one of a checkpoint" in store.damaged[0]
    assert_loaded(store, expected)


def test_a_state_that_names_a_piece_of_no_checkpoint_is_refused(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    write(store, range(2))
    with pytest.raises(CheckpointError, match="which has gone"):
        store.write(manifest(), {"replay": [StatePiece("0" * 32, None)]})
    assert len(store.newest()) == 1


@pytest.mark.parametrize(("name", "further"), [("DQN", {"prioritised": True}), ("SAC", {"train_frequency": 4})])
def test_an_algorithm_writes_what_is_new_and_comes_back_to_the_last_bit(
    name: str, further: dict[str, object], tmp_path: Path
) -> None:
    parameters = {"buffer_size": 1280, "learning_starts": 64, "hidden_sizes": [8], "batch_size": 16, **further}
    one, two = (make_algorithm(name, BoxSpace((3,)), DiscreteSpace(2), parameters, seed) for seed in (1, 2))
    assert isinstance(one, IncrementalAlgorithm) and isinstance(two, IncrementalAlgorithm)
    store, rng = CheckpointStore(tmp_path / "c"), np.random.default_rng(0)

    def segment() -> Segment:
        return random_segment(32, int(rng.integers(1000)), "cut", (BoxSpace((3,)), DiscreteSpace(2)), episode_id=1)

    for _ in range(12):
        for _ in range(4):
            one.observe(segment())
            while one.update() is not None:
                pass
        before = {path.stat().st_ino for folder in store.newest() for path in folder.iterdir()}
        store.write(manifest(), one.state_beyond(store.stored_pieces()))
        new = set(files(store.newest()[0]).values()) - before
        assert len(new) <= 24, "14 segments, those of two intervals, are 23 pieces of 20 transitions"
        _, state = store.load() or pytest.fail("nothing there")
        two.load(state)
        more = [segment() for _ in range(3)]
        for algorithm in (one, two):
            for each in more:
                algorithm.observe(each)
                while algorithm.update() is not None:
                    pass
        weights = [algorithm.spec().flatten(algorithm.snapshot())[0].tobytes() for algorithm in (one, two)]
        assert weights[0] == weights[1]
