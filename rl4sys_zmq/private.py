"""The creation of files and folders that only their owner can access (modes 0600 and 0700), whatever the umask is."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from rl4sys_zmq.resource import with_descriptor

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700. Existing folders keep their mode.

    The entry of each new folder is flushed to disk, so that a loss of power cannot remove the folder with all that is flushed
    in it. In a parent whose files this user must not list, the entry is not flushed.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        with suppress(PermissionError):
            sync_folder(path.parent)
    if not missing and not folder.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))


def open_private(path: Path, flags: int = os.O_WRONLY | os.O_CREAT | os.O_TRUNC) -> int:
    """Open a file and return its descriptor. A new file has mode 0600. Wait a little while no descriptor is free."""
    return with_descriptor(lambda: os.open(path, flags | os.O_CLOEXEC, 0o600))


def create_private(path: Path) -> None:
    """Create an empty file with mode 0600 if it does not exist, so that a library can open it by name later."""
    os.close(open_private(path, os.O_WRONLY | os.O_CREAT))


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file. A new file has mode 0600."""
    with os.fdopen(open_private(path), "wb") as file:
        file.write(content)


def exchange_paths(one: Path, other: Path) -> None:
    """Exchange the names of two folders in one step of the file system, so that neither name is ever missing.

    On a system or file system without such an exchange, `other` is first renamed to a third name beside it, and is missing for a
    moment.
    """
    if sys.platform == "linux":
        import ctypes

        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is not None:
            arguments = _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE
            if rename(*arguments) == 0:
                return
            code = ctypes.get_errno()
            if code not in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
                raise OSError(code, os.strerror(code), str(other))
    third = other.with_name(f".{other.name}.old-{os.getpid()}")
    os.rename(other, third)
    try:
        os.rename(one, other)
    except OSError:
        os.rename(third, other)
        raise
    os.rename(third, one)


def others_can_write(*paths: Path) -> list[str]:
    """Return a warning for each path, such as a key file, that accounts other than the owner's can change.

    A warning names the path, its mode and the command that corrects the mode. Paths that do not exist are ignored, and so are
    folders with the sticky bit.
    """
    found = []
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not (path.is_dir() and mode & stat.S_ISVTX):
            found.append(f"others may change {path} (mode {mode:04o}); chmod go-w {path}")
    return found


def fixed_path(path: Path) -> Path:
    """Return the absolute form of a path, which does not change when the program changes its working directory.

    If the working directory was deleted, a relative path stays as it is.
    """
    try:
        return path.absolute()
    except FileNotFoundError:
        return path


def sync_folder(folder: Path) -> None:
    """Flush the list of a folder's files to the disk, and wait until the disk has it."""
    descriptor = open_private(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_folder(folder: Path, contents: Mapping[str, bytes], links: Iterable[Path] = ()) -> None:
    """Create a folder with the files `contents` and hard links to the files `links`, and flush all to disk.

    The entry of the folder in its parent is not flushed, so a loss of power can still remove the folder.
    """
    folder.mkdir(mode=0o700)
    copies = {}
    for path in links:
        try:
            os.link(path, folder / path.name)
        except OSError as exc:
            if exc.errno not in (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP):
                raise
            copies[path.name] = path.read_bytes()
    for name, content in {**contents, **copies}.items():
        file = open_private(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        finally:
            os.close(file)
    sync_folder(folder)
