"""Files and folders for their owner alone: 0600 and 0700, whatever the umask is."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

__all__ = ["create_private", "make_private", "open_private", "others_can_write", "sync_folder", "write_private"]


def make_private(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, with mode 0700. What is there already stays as its owner wants it.

    Raises:
        OSError: when it cannot be made, or a file stands there.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    if not missing and not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))


def open_private(path: Path, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> int:
    """Opens a file and returns its descriptor; a new one has mode 0600.

    Raises:
        OSError: when it cannot be opened.
    """
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def create_private(path: Path) -> None:
    """Makes an empty file with mode 0600, if none is there: what a library opens later by its name has that mode then.

    Raises:
        OSError: when it cannot be made.
    """
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))


def write_private(path: Path, content: bytes) -> None:
    """Writes a whole file; a new one has mode 0600.

    Raises:
        OSError: when it cannot be written.
    """
    with os.fdopen(open_private(path), "wb") as file:
        file.write(content)


def others_can_write(*paths: Path) -> list[str]:
    """For each file or folder that its group or everybody may write: a sentence with the remedy."""
    found = []
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not (path.is_dir() and mode & stat.S_ISVTX):
            found.append(f"others may change {path} (mode {mode:04o}); chmod go-w {path}")
    return found


def sync_folder(folder: Path) -> None:
    """Has the names in a folder written to the disk; returns when they are.

    Raises:
        OSError: when that fails.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
