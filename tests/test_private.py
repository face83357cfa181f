"""Private folders: their mode, and what a loss of power leaves of them."""

import os
import stat
from pathlib import Path

import pytest

from rl4sys_zmq import private
from rl4sys_zmq.private import fixed_path, make_private


def test_the_entries_of_new_folders_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(Path(os.readlink(f"/proc/self/fd/{fd}"))))
    make_private(tmp_path / "a" / "b")
    assert flushed == [tmp_path, tmp_path / "a"]
    make_private(tmp_path / "a" / "b")
    assert len(flushed) == 2
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in (tmp_path / "a", tmp_path / "a" / "b"))


def test_a_parent_that_must_not_be_listed_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:  # root may list every folder, so no mode of the parent would do it here
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(private, "sync_folder", refuse)
    make_private(tmp_path / "run")
    assert (tmp_path / "run").is_dir()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")


def test_a_fixed_path_does_not_follow_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fixed_path(Path("run")) == tmp_path / "run"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert fixed_path(Path("run")) == Path("run")
