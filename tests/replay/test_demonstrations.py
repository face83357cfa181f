"""Tests of files of demonstrations: written episodes are read again, and the error for an invalid file names the reason."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay.demonstrations import Demonstration, read_demonstrations, write_demonstrations
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, Space

OBS, ACT = BoxSpace((2,)), DiscreteSpace(3, 1)


def episodes(*lengths: int, rewarded: bool = True) -> list[Demonstration]:
    rng = np.random.default_rng(sum(lengths))
    return [
        Demonstration(
            [rng.normal(size=(length + 1, 2)).astype(np.float32)],
            rng.integers(1, 4, length),
            np.arange(length, dtype=np.float32) if rewarded else None,
            terminated=number % 2 == 0,
        )
        for number, length in enumerate(lengths)
    ]


def test_the_spaces_can_be_those_of_gymnasium(tmp_path: Path) -> None:
    spaces = pytest.importorskip("gymnasium.spaces")
    write_demonstrations(tmp_path / "d.npz", spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3, start=1), episodes(3))
    found = read_demonstrations(tmp_path / "d.npz")
    assert (found.observation_space, found.action_space) == (OBS, ACT)


def test_the_episodes_come_back_as_segments(tmp_path: Path) -> None:
    given = episodes(3, 5)
    write_demonstrations(tmp_path / "d.npz", OBS, ACT, given)
    found = read_demonstrations(tmp_path / "d.npz")
    assert (found.observation_space, found.action_space, found.rewarded, found.steps) == (OBS, ACT, True, 8)
    for segment, episode, rows in zip(found.segments, given, (3, 6), strict=True):
        np.testing.assert_array_equal(segment.observations, episode.observations[0][:rows])
        np.testing.assert_array_equal(segment.actions, episode.actions)
        np.testing.assert_array_equal(segment.rewards, episode.rewards)
        assert (segment.terminated, segment.truncated) == (episode.terminated, not episode.terminated)
    assert (found.segments[1].episode_return, found.segments[1].episode_length) == (10.0, 5)
    write_demonstrations(tmp_path / "e.npz", OBS, ACT, given)
    write_demonstrations(tmp_path / "f.npz", OBS, ACT, given[:1])
    assert [read_demonstrations(tmp_path / name).digest == found.digest for name in ("e.npz", "f.npz")] == [True, False]


def test_observations_can_be_trees_and_rewards_unknown(tmp_path: Path) -> None:
    space = DictSpace({"mode": DiscreteSpace(2), "camera": BoxSpace((2, 2), dtype="|u1")})
    episode = Demonstration([np.ones((3, 2, 2), np.uint8), np.array([0, 1, 0])], np.array([1, 2]), None, terminated=True)
    write_demonstrations(tmp_path / "d.npz", space, ACT, [episode])
    found = read_demonstrations(tmp_path / "d.npz")
    assert not found.rewarded and isinstance(found.segments[0].observations, dict)
    assert found.segments[0].observations["mode"].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("space", "action_space", "words"),
    [
        (BoxSpace((3,)), ACT, r"their observation_space is .*2.*; the client's is .*3"),
        (OBS, DiscreteSpace(4, 1), "their action_space is"),
        (OBS, DiscreteSpace(3), "their action_space is"),
        (OBS, BoxSpace((1,)), "their action_space is"),
        (DictSpace({"a": OBS}), ACT, "their observation_space is"),
    ],
)
def test_other_spaces_are_refused(tmp_path: Path, space: Any, action_space: Space, words: str) -> None:
    write_demonstrations(tmp_path / "d.npz", OBS, ACT, episodes(3))
    found = read_demonstrations(tmp_path / "d.npz")
    found.check_spaces(BoxSpace((2,), low=-9.0, high=9.0), ACT)
    with pytest.raises(ConfigError, match=words):
        found.check_spaces(space, action_space)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rewards": np.zeros(7, np.float32)}, "rewards has 7 rows; 2 episodes of 8 steps need 8"),
        ({"observations": np.zeros((8, 2), np.float32)}, "observations has 8 rows; 2 episodes of 8 steps need 10"),
        ({"observations": np.zeros((10, 3), np.float32)}, r"observations has rows float32\[3\]"),
        ({"actions": np.zeros(8, np.float32)}, r"actions has rows float32\[\]"),
        ({"lengths": np.array([8, 0])}, "at least one step in each"),
        ({"lengths": np.zeros(0, np.int64)}, "it has 0 episodes"),
        ({"format": np.asarray(2)}, "format 2"),
        ({"action_space": np.asarray("{")}, "not a file of demonstrations"),
        ({"lengths": None}, "'lengths' is missing"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write_demonstrations(tmp_path / "d.npz", OBS, ACT, episodes(3, 5))
    with np.load(tmp_path / "d.npz") as file:
        arrays = {**file, **changes}
    np.savez(tmp_path / "e.npz", **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(ConfigError, match=words):
        read_demonstrations(tmp_path / "e.npz")


@pytest.mark.parametrize(
    ("dtype", "changes", "words"),
    [
        ("|u1", {"observations": np.array([0, 300, 9])}, r"observations has numbers from 0 to 300; .* needs 0 to 255"),
        ("|u1", {"observations": np.array([-1, 0, 9], np.int8)}, "observations has numbers from -1 to 9"),
        ("<i4", {"observations": np.array([0, 1 << 63, 9], np.uint64)}, "observations has numbers from 0 to 9223372036854775808"),
        ("|u1", {"rewards": np.zeros((2, 1), np.float32)}, r"rewards has rows float32\[1\]; expected one number in each"),
        ("|u1", {"rewards": np.array(["1", "2"])}, "rewards has rows <U1"),
    ],
)
def test_numbers_that_the_space_cannot_hold_are_refused(tmp_path: Path, dtype: str, changes: dict[str, Any], words: str) -> None:
    space, parts = BoxSpace((), dtype), {"observations": np.array([0, 255, 9]), "rewards": np.zeros(2), **changes}
    episode = Demonstration([parts["observations"]], np.array([1, 2]), parts["rewards"], terminated=False)
    with pytest.raises(ConfigError, match=words):
        write_demonstrations(tmp_path / "d.npz", space, ACT, [episode])
    assert not (tmp_path / "d.npz").exists()
    good = Demonstration([np.array([0, 100, 9], np.uint8)], np.array([1, 2]), np.zeros(2, np.float32), terminated=False)
    write_demonstrations(tmp_path / "d.npz", space, ACT, [good])
    with np.load(tmp_path / "d.npz") as file:
        np.savez(tmp_path / "e.npz", **{**file, **changes})
    with pytest.raises(ConfigError, match=words):
        read_demonstrations(tmp_path / "e.npz")


def test_a_damaged_or_missing_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    write_demonstrations(path, OBS, ACT, episodes(30))
    whole = path.read_bytes()
    entry = whole.index(b"PK\x01\x02")  # the first entry of the directory of the zip file
    odd = [whole[: entry + at] + b"\x63" + whole[entry + at + 1 :] for at in (6, 8, 10)]  # version, flags, compression
    for content in (b"", whole[: len(whole) // 2], whole[:400] + b"\xff" * 8 + whole[408:], b"\x80\x04N.", *odd):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"d\.npz"):
            read_demonstrations(path)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_demonstrations(tmp_path / "none.npz")
    with pytest.raises(ConfigError, match="cannot be written: File exists"):
        write_demonstrations(path, OBS, ACT, episodes(3))
    with pytest.raises(ConfigError, match="no episode"):
        write_demonstrations(tmp_path / "new.npz", OBS, ACT, [])


def masked(actions: list[int], masks: Any, *, terminated: bool) -> Demonstration:
    observations = np.zeros((len(actions) + 1, 2), np.float32)
    return Demonstration([observations], np.array(actions), np.zeros(len(actions), np.float32), terminated, masks)


def test_masks_come_back_with_the_observations(tmp_path: Path) -> None:
    mine = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 0]], np.bool_)
    given = [masked([1, 2], mine, terminated=False), masked([3], None, terminated=True), masked([1, 2], mine, terminated=True)]
    write_demonstrations(tmp_path / "d.npz", OBS, ACT, given)
    found = [segment.masks for segment in read_demonstrations(tmp_path / "d.npz").segments]
    for masks, wanted in zip(found, (mine, np.ones((1, 3), np.bool_), mine[:2]), strict=True):
        np.testing.assert_array_equal(masks, wanted)  # as many rows as observations
    write_demonstrations(tmp_path / "e.npz", OBS, ACT, [masked([1, 2], None, terminated=False)])
    assert read_demonstrations(tmp_path / "e.npz").segments[0].masks is None


@pytest.mark.parametrize(
    ("masks", "action_space", "words"),
    [
        (np.ones((2, 3), np.bool_), ACT, "masks has 2 rows; 1 episodes of 2 steps need 3"),
        (np.ones((3, 2), np.bool_), ACT, r"masks has rows bool\[2\]; .* needs bool\[3\]"),
        (np.ones((3, 3), np.float32), ACT, r"masks has rows float32\[3\]"),
        (np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], np.bool_), ACT, "the mask of step 1 of episode 0 forbids its action 2"),
        (np.ones((3, 1), np.bool_), BoxSpace((), dtype="<i8"), "has no masks"),
    ],
)
def test_masks_that_do_not_fit_are_refused(masks: Any, action_space: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        write_demonstrations(tmp_path / "d.npz", OBS, action_space, [masked([1, 2], masks, terminated=False)])
