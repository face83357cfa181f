"""Tests of the segments in training when a process crashes: they are suspected, and later quarantined or cleared."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rl4sys_zmq.learner.run.worker_storage import SuspectFiles
from rl4sys_zmq.learner.training.suspects import ENDS_ALONE, ENDS_TOGETHER, CrashSuspectRecord, SegmentInTraining

KEY = ("actor \u00e9", 7)


def held(*numbers: int) -> list[SegmentInTraining]:
    return [SegmentInTraining(None, 0, KEY, seq, False) for seq in numbers]


class Dead(Exception):
    """The exception that stands for the end of the process."""


def life(
    folder: Path, batch: list[SegmentInTraining], kills: Callable[[list[int]], bool]
) -> tuple[CrashSuspectRecord, list[int]]:
    """Simulate a start, and the training of a batch as in `UpdateRunner`. Raise `Dead` where the process would end."""
    suspects = CrashSuspectRecord(SuspectFiles(folder))
    left = [one for one in batch if not suspects.reasons(one.key, one.seq, one.seq + 1)]
    for part in (*suspects.parts(left), left):
        suspects.record(part)
        if kills([one.seq for one in part]):
            suspects.expect_end = None  # type: ignore[assignment, method-assign]
            raise Dead
        suspects.clear()
    suspects.clear_suspects(left)
    return suspects, [one.seq for one in left]


def ends(
    folder: Path, batch: list[SegmentInTraining], kills: Callable[[list[int]], bool], most: int = 30
) -> tuple[int, list[int]]:
    """Return the number of crashes before the batch is trained on, and the segments that are left of it then."""
    for count in range(most):
        try:
            suspects, left = life(folder, batch, kills)
        except Dead:
            continue
        suspects.close()
        return count, left
    raise AssertionError("it never ends well")


@pytest.mark.parametrize(("size", "allowed"), [(1, 3), (2, 4), (3, 5), (64, 9), (1000, 13)])
def test_a_killer_is_found_by_halving(size: int, allowed: int, tmp_path: Path, seed: int) -> None:
    culprit = random.Random(seed).randrange(size)
    count, left = ends(tmp_path, held(*range(size)), lambda part: culprit in part)
    assert count <= allowed and left == [n for n in range(size) if n != culprit]
    suspects = CrashSuspectRecord(SuspectFiles(tmp_path))
    assert suspects.reasons(KEY, 0, 1000).keys() == {culprit} and not suspects.finding, "it is remembered"
    suspects.close()


def test_two_killers_are_found_one_after_the_other(tmp_path: Path) -> None:
    count, left = ends(tmp_path, held(*range(64)), lambda part: 5 in part or 50 in part)
    assert count <= 2 * 9 and left == [n for n in range(64) if n not in (5, 50)]


def test_segments_that_kill_only_together_are_quarantined_together(tmp_path: Path) -> None:
    count, left = ends(tmp_path, held(*range(8)), lambda part: 0 in part and 7 in part)
    assert count == ENDS_TOGETHER and left == []


def test_an_end_by_chance_condemns_nothing_and_training_well_acquits(tmp_path: Path) -> None:
    for _ in range(10 * ENDS_ALONE):
        with pytest.raises(Dead):
            life(tmp_path, held(1, 2), lambda part: True)
        suspects, left = life(tmp_path, held(1, 2), lambda part: False)
        assert left == [1, 2] and suspects.finding and not suspects.contains_suspects(KEY, 0, 100)
        suspects.close()


def test_random_kills_of_long_runs_condemn_nothing(tmp_path: Path, seed: int) -> None:
    rng, first = random.Random(seed), 0
    for _ in range(300):
        try:
            suspects, left = life(tmp_path, held(*range(first, first + 16)), lambda part: rng.random() < 0.1)
        except Dead:
            continue
        assert len(left) == 16
        suspects.close()
        first += 16
    assert first > 0


def test_an_orderly_end_excuses_and_a_replaced_thread_is_mute(tmp_path: Path) -> None:
    suspects = CrashSuspectRecord(SuspectFiles(tmp_path))
    suspects.note(KEY, 3, 9)
    suspects.expect_end(disable=True)
    again = CrashSuspectRecord(SuspectFiles(tmp_path))
    assert not again.finding
    suspects.note(KEY, 3, 9)
    suspects.clear()
    suspects.expect_end()
    again.note(KEY, 20, 21)
    third = CrashSuspectRecord(SuspectFiles(tmp_path))
    assert "1 segments" in third.finding and third.suspects(KEY, 20) and not third.suspects(KEY, 3)
    for one in (suspects, again, third):
        one.close()


@pytest.mark.parametrize("damage", [b"", b"R4TM", b"R4TM" + b"\xff" * 60, bytes(5000)])
def test_a_damaged_mark_or_memory_is_no_obstacle(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "training.mark").write_bytes(damage)
    (tmp_path / "suspects.json").write_bytes(damage)
    suspects = CrashSuspectRecord(SuspectFiles(tmp_path))
    suspects.record(held(1, 2, 3))
    again = CrashSuspectRecord(SuspectFiles(tmp_path))
    assert again.suspects(KEY, 2) and again.contains_suspects(KEY, 3, 4) and not again.contains_suspects(KEY, 4, 9)
    suspects.close()
    again.close()


def test_a_folder_that_cannot_be_written_costs_the_notes_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    suspects = CrashSuspectRecord(SuspectFiles(tmp_path / "file" / "below"))
    suspects.note(KEY, 1, 2)
    suspects.record(held(1))
    suspects.clear_pending()
    assert not suspects.finding and not suspects.reasons(KEY, 0, 10)
    suspects.close()
