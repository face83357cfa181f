"""Tests of a replay in files: it equals one in memory, is private, is removed with its process, and must fit on the disk."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import random_segment

from rl4sys_zmq.algorithms import FolderAlgorithm, MemoryAlgorithm, make_algorithm
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay import ReplayMemory, ReplayOptions
from rl4sys_zmq.replay.folder import ScratchArrayFactory
from rl4sys_zmq.replay.layout import ArraySpec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Segment

IMAGE = BoxSpace((4, 32, 40), "|u1", 0, 255)


def make_replay(space: BoxSpace, capacity: int = 50) -> ReplayMemory:
    return ReplayMemory(space, DiscreteSpace(2), ReplayOptions(capacity=capacity, gamma=0.9))


def make_segment(space: BoxSpace, seed: int, steps: int = 20) -> Segment:
    return random_segment(steps, seed, "cut", (space, DiscreteSpace(2)), masks=np.ones((steps + 1, 2), np.bool_))


@pytest.mark.parametrize("space", [IMAGE, BoxSpace((3,))])
def test_a_replay_in_files_has_the_same_transitions_as_one_in_memory(space: BoxSpace, tmp_path: Path) -> None:
    one, other = make_replay(space), make_replay(space)
    one.use_folder(tmp_path / "new")
    for seed in range(6):
        for replay in (one, other):
            replay.add(make_segment(space, seed))
    rows = np.arange(50)
    mine, theirs = one.gather(rows), other.gather(rows)
    for name in ("observations", "actions", "returns", "discounts", "successors", "masks"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    assert [part["piece"].name for part in one.state()["pieces"]] == [part["piece"].name for part in other.state()["pieces"]]
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "new").iterdir()) == [], "the files have no names"


def test_the_space_is_reserved_and_given_back(tmp_path: Path) -> None:
    """The process has one mapped file, whose name is already deleted and whose blocks are on the disk."""
    program = """
import os, sys
from pathlib import Path
import numpy as np
from rl4sys_zmq.replay.layout import ArraySpec
from rl4sys_zmq.replay.folder import ScratchArrayFactory
array = ScratchArrayFactory(Path(sys.argv[1]), 0)(ArraySpec((1 << 20,), np.dtype("u1")))
assert array.flags.writeable and not array.any()
maps = [line.split() for line in open("/proc/self/maps") if sys.argv[1] in line]
links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
(file,) = [path.stat() for path in links if os.readlink(path).startswith(sys.argv[1])]
print(len(maps), maps[0][-1], file.st_nlink, file.st_blocks, flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        count, state, links, blocks = child.stdout.readline().split()
        assert (count, state, links) == (b"1", b"(deleted)", b"0")
        assert int(blocks) * 512 >= 1 << 20, "the blocks are on the disk before anything is written"
        child.kill()
    assert list(tmp_path.iterdir()) == []


def test_a_replay_that_is_larger_than_the_disk_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = make_replay(BoxSpace((100, 100)), 1 << 40)
    with pytest.raises(ConfigError, match=r"needs 4[4-9],\d{3},\d{3},\d{3},\d{3},\d{3} bytes on disk.*bytes free.*buffer_size"):
        replay.use_folder(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ConfigError, match=r"400 bytes of the replay cannot be written.*No space left"):
        ScratchArrayFactory(tmp_path, 400)(ArraySpec((100,), np.dtype("<f4")))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="the replay cannot use"):
        make_replay(IMAGE).use_folder(tmp_path / "file")


@pytest.mark.parametrize("name", ["DQN", "SAC"])
@pytest.mark.parametrize(("bound", "files"), [(0, True), (1 << 30, False)])
def test_an_algorithm_uses_files_above_its_bound(name: str, bound: int, files: bool, tmp_path: Path) -> None:
    algorithm = make_algorithm(name, BoxSpace((3,)), DiscreteSpace(2), {"buffer_memory_bytes": bound, "buffer_size": 70_000}, 1)
    assert isinstance(algorithm, FolderAlgorithm)
    algorithm.use_folder(tmp_path)
    algorithm.observe(make_segment(BoxSpace((3,)), 1))
    maps = Path("/proc/self/maps").read_text()
    assert (str(tmp_path) in maps) is files


@pytest.mark.parametrize("network", ["mlp", {"kind": "gru", "units": 4}])
def test_a_replay_that_is_larger_than_memory_is_refused_before_the_first_segment(network: Any, tmp_path: Path) -> None:
    given = {"buffer_size": 70_000, "network": network}
    space, actions = BoxSpace((3,)), DiscreteSpace(2)
    algorithm = make_algorithm("DQN", space, actions, given, 1)
    assert isinstance(algorithm, MemoryAlgorithm) and isinstance(algorithm, FolderAlgorithm)
    algorithm.check_memory(1 << 30)
    words = r"buffer_size: a full replay of 70,000 steps needs \d,\d{3},\d{3} bytes.*1,000,000 bytes of memory"
    with pytest.raises(ConfigError, match=words + r".*or a run directory and a smaller buffer_memory_bytes") as caught:
        algorithm.check_memory(1_000_000)
    assert caught.value.key == "algorithm_parameters.buffer_size"
    algorithm.use_folder(tmp_path)
    with pytest.raises(ConfigError, match=words):
        algorithm.check_memory(1_000_000)
    algorithm = make_algorithm("DQN", space, actions, {**given, "buffer_memory_bytes": 0}, 1)
    assert isinstance(algorithm, MemoryAlgorithm) and isinstance(algorithm, FolderAlgorithm)
    with pytest.raises(ConfigError, match=r"or a run directory, so that"):
        algorithm.check_memory(1_000_000)
    algorithm.use_folder(tmp_path)
    algorithm.check_memory(1_000_000)
