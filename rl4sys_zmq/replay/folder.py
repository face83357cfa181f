"""The arrays of a data store in memory-mapped files: in a folder that survives the process, or in files without names.

- ``.npy`` files in numpy's format, one for each column. The space of a file is reserved when it is created, so that a full disk
  raises an exception at once, and does not kill the process with a signal later.
- ``manifest.json``, which describes the columns. It is written once, after all columns exist.
- ``lock``, which one process locks. A forked child releases its copy of the lock, and must not use the store.

Data survive the end of the process, even by SIGKILL, because they are in the kernel's page cache. After a crash of the machine,
the files can be inconsistent. To detect this, ``lock`` contains the machine's boot id while the store is open. A store that was
open during a crash is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, StoreFileError
from rl4sys_zmq.private import make_private, open_private
from rl4sys_zmq.replay.layout import ArraySpec
from rl4sys_zmq.resource import call_in_child
from rl4sys_zmq.values import DTYPES

FORMAT = 1
_MANIFEST, _LOCK = "manifest.json", "lock"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAME = "column-"


def new_lineage() -> int:
    """Return a random number in 1 .. 2^63 - 1 that identifies a new lineage."""
    return 1 + secrets.randbelow((1 << 63) - 1)


class StoreFolder:
    """The folder of a data store on disk. Only one process can open it at a time.

    Args:
        path: Path of the folder, which is created if it does not exist.
        kind: Name of the store's class.
        options: JSON values that must be the same when the folder is opened again.

    Attributes:
        layout: Shape and dtype of each value of an item, as stored in the folder. None for a new store.

    Raises:
        ConfigError: If the path is invalid.
        StoreFileError: If the folder cannot be used, another process has it open, or it contains other files or a store with
            other options.
    """

    def __init__(self, path: str | os.PathLike[str], kind: str, options: Mapping[str, Any]) -> None:
        try:
            self.path = Path(path)
        except TypeError as exc:
            raise ConfigError(f"path must be the path of a folder, not {path!r:.60}", key="path") from exc
        self.layout: dict[str, ArraySpec] | None = None
        self.lineage = new_lineage()
        self._head = {"format": FORMAT, "kind": kind, **options}
        self._files: dict[str, str] = {}
        self._maps: list[np.memmap[Any, Any]] = []
        with _as_store_error(self.path):
            make_private(self.path)
            names = [p.name for p in self.path.iterdir() if not p.name.startswith((_NAME, "frames-"))]
            foreign = set(names) - {_MANIFEST, _LOCK}
            if foreign:
                raise StoreFileError(
                    self.path, f"is not the folder of a store: it contains {min(foreign)!r}; choose another folder"
                )
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._acquire()
            self._read_manifest()
            with _as_store_error(self.path / _LOCK):
                boot = _boot_id()
                os.ftruncate(self._lock, os.pwrite(self._lock, boot, 0))
                os.fsync(self._lock)
        except BaseException:
            self.release()
            raise
        call_in_child(self, StoreFolder.abandon)

    def create(self, layout: Mapping[str, ArraySpec], columns: Mapping[str, ArraySpec]) -> dict[str, NDArray[Any]]:
        """Create the files of a new store, and return the columns as memory-mapped arrays, by name."""
        self._files = {name: f"{_NAME}{index:03d}.npy" for index, name in enumerate(columns)}
        described = {name: [list(leaf.shape), leaf.dtype.str] for name, leaf in layout.items()}
        document = {**self._head, "lineage": self.lineage, "layout": described, "files": self._files}
        fresh = self.path / f"{_NAME}manifest.tmp"
        try:
            made = {name: self.make(self._files[name], leaf) for name, leaf in columns.items()}
            with _as_store_error(self.path):
                with os.fdopen(open_private(fresh), "w") as file:
                    json.dump(document, file, indent=1)
                    file.flush()
                    os.fsync(file.fileno())
                fresh.replace(self.path / _MANIFEST)
        except BaseException:
            self._maps.clear()
            for name in (fresh.name, *self._files.values()):
                self._remove(name)
            raise
        self.layout = dict(layout)
        return made

    def columns(self, columns: Mapping[str, ArraySpec]) -> dict[str, NDArray[Any]]:
        """Open the files that `create` made, and return the columns as memory-mapped arrays, by name."""
        if self._files.keys() != columns.keys():
            raise StoreFileError(
                self.path / _MANIFEST, "lists other files than such a store has; delete the folder to start again"
            )
        return {name: self.open(self._files[name], leaf) for name, leaf in columns.items()}

    def make(self, name: str, leaf: ArraySpec) -> NDArray[Any]:
        """Create a file of zeros, or replace an existing file by one, and return a memory-mapped array of its contents."""
        path = self.path / name
        try:
            with _as_store_error(path), os.fdopen(open_private(path), "wb") as file:
                header = {"descr": leaf.dtype.str, "fortran_order": False, "shape": leaf.shape}
                np.lib.format.write_array_header_1_0(file, header)
                file.flush()
                os.posix_fallocate(file.fileno(), file.tell(), max(leaf.nbytes, 1))
            return self.open(name, leaf)
        except BaseException:
            self._remove(name)
            raise

    def open(self, name: str, leaf: ArraySpec) -> NDArray[Any]:
        """Open a file that `make` created, and return a memory-mapped array of its contents."""
        path = self.path / name
        with _as_store_error(path):
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                start = file.tell()
            stored = ArraySpec(shape, dtype)
            if stored != leaf or path.stat().st_size < start + leaf.nbytes:  # numpy would extend a short file
                raise StoreFileError(path, f"holds {stored} or less, not {leaf}; it is damaged; delete the folder to start again")
            array: np.memmap[Any, Any] = np.memmap(path, leaf.dtype, "r+", start, leaf.shape)
        self._maps.append(array)
        return array.view(np.ndarray)

    def flush(self) -> None:
        """Write all changes to the disk."""
        with _as_store_error(self.path):
            for array in self._maps:
                array.flush()

    def close(self) -> None:
        """Write all changes to the disk, mark the folder as intact, and unlock it. A second call does nothing."""
        if self._lock < 0:
            return
        try:
            self.flush()
            with _as_store_error(self.path / _LOCK):
                os.ftruncate(self._lock, 0)
                os.fsync(self._lock)
        finally:
            self.release()

    def release(self) -> None:
        """Unlock the folder without writing to the disk. A second call does nothing."""
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # closing is not enough: a forked child can still have the descriptor
            os.close(self._lock)
            self._lock = -1
            self._maps.clear()

    def abandon(self) -> None:
        """Close the descriptor of the lock in a forked child. The parent keeps the lock."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.path / name).unlink()

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise StoreFileError(self.path, "another process, or another store of this process, has it open") from exc
        boot = os.pread(self._lock, 128, 0)
        if boot and boot != _boot_id():
            raise StoreFileError(
                self.path,
                "the machine went down while it was open, so its contents can be incomplete; delete the folder",
            )

    def _read_manifest(self) -> None:
        path = self.path / _MANIFEST
        with _as_store_error(path):
            if not path.exists():  # a new folder, or its creation was interrupted
                return
            document = json.loads(path.read_text())
            if not isinstance(document, dict):
                raise ValueError("the manifest is not a JSON object")
            for key, mine in self._head.items():
                theirs = document.get(key)
                if theirs != mine:
                    raise StoreFileError(
                        self.path, f"was created with {key} {theirs!r}, not {mine!r}; use that value, or another folder"
                    )
            self.lineage = int(document["lineage"])
            self.layout = {name: _from_json(*form) for name, form in document["layout"].items()}
            self._files = {str(name): str(file) for name, file in document["files"].items()}
            if any(not file.startswith(_NAME) or "/" in file for file in self._files.values()):
                raise ValueError("the manifest names a file that does not belong to a store")


@contextlib.contextmanager
def _as_store_error(path: Path) -> Any:
    try:
        yield
    except OSError as exc:
        raise StoreFileError(path, f"{exc.strerror or exc}") from exc
    except (ValueError, TypeError, KeyError, AttributeError, EOFError, OverflowError, RecursionError, SyntaxError) as exc:
        raise StoreFileError(path, f"is damaged ({exc!s:.200}); delete the folder to start again") from exc


def _boot_id() -> bytes:
    """Return the id of the machine's current boot, or ``unknown`` if it cannot be read."""
    try:
        return _BOOT.read_bytes().strip()
    except OSError:
        return b"unknown"


def _from_json(shape: list[int], dtype: str) -> ArraySpec:
    if dtype not in DTYPES or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"a column of shape {shape} and dtype {dtype!r:.60}")
    return ArraySpec(tuple(shape), np.dtype(dtype))


class ScratchArrayFactory:
    """A function that creates arrays of zeros in memory-mapped files of a folder.

    The files have no names: the kernel frees their space when the arrays are gone, also after SIGKILL. Their space is reserved
    at once, so a full disk is an exception and not a signal.

    Args:
        folder: The folder. It is created with mode 0700 if it does not exist.
        needed: Number of bytes of all arrays together.

    Raises:
        ConfigError: If the disk has less space, or the folder cannot be created.
    """

    def __init__(self, folder: Path, needed: int) -> None:
        self._folder = folder
        try:
            make_private(folder)
            free = shutil.disk_usage(folder).free
        except OSError as exc:
            raise ConfigError(f"the replay cannot use {folder}: {exc.strerror}", key="buffer_size") from exc
        if needed > free:
            problem = f"the replay needs {needed:,} bytes on disk, and {folder} has {free:,} bytes free"
            raise ConfigError(f"{problem}; use a smaller buffer_size, or a run directory on a larger disk", key="buffer_size")

    def __call__(self, leaf: ArraySpec) -> NDArray[Any]:
        size = max(1, leaf.nbytes)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                mapped = mmap.mmap(file.fileno(), size)
        except OSError as exc:
            problem = f"{size:,} bytes of the replay cannot be written to {self._folder}: {exc.strerror}"
            raise ConfigError(f"{problem}; use a smaller buffer_size, or another run directory", key="buffer_size") from exc
        return np.frombuffer(mapped, leaf.dtype, prod(leaf.shape)).reshape(leaf.shape)
