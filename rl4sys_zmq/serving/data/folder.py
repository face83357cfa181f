"""The columns of a store in memory-mapped files, and a manifest that says what they are.

A folder has ``manifest.json``, written once, by rename, when all columns exist; ``lock``; and numpy's own ``.npy`` files, each
mapped whole, with its blocks reserved, so that a full disk is an error when the store is made and not a signal later.

What a process wrote outlives it, however it ends: the kernel has the pages. It does not outlive the machine's: then pages
have reached the disk in any order. ``lock`` has the machine's boot id while the store is open, so a store that was open when
the machine went down is told from one that was closed, and is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, StoreError
from rl4sys_zmq.private import make_private, open_private
from rl4sys_zmq.serving.data.base import new_lineage
from rl4sys_zmq.serving.data.layout import Leaf
from rl4sys_zmq.values import DTYPES

__all__ = ["Folder"]

FORMAT = 1
_MANIFEST, _LOCK = "manifest.json", "lock"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAME = "column-"


class Folder:
    """A store's folder, held by one process.

    Args:
        path: of the folder; made if there is none.
        kind: the class of the store.
        options: what a store must have been made with to be opened with it: JSON values.

    Attributes:
        layout: the store's layout as its manifest says, or None while there are no columns.
        lineage: the store's; see `DataStoreBase`.

    Raises:
        ConfigError: when the path is none.
        StoreError: when the folder cannot be used, another process has it, or it belongs to something else or to a store
            with other options.
    """

    def __init__(self, path: str | os.PathLike[str], kind: str, options: Mapping[str, Any]) -> None:
        try:
            self.path = Path(path)
        except TypeError as exc:
            raise ConfigError(f"path is that of a folder, not {path!r:.60}", key="path") from exc
        self.layout: dict[str, Leaf] | None = None
        self.lineage = new_lineage()
        self._head = {"format": FORMAT, "kind": kind, **options}
        self._files: dict[str, str] = {}
        self._maps: list[np.memmap[Any, Any]] = []
        with _border(self.path):
            make_private(self.path)
            strangers = [p.name for p in self.path.iterdir() if p.name not in (_MANIFEST, _LOCK) and not _is_ours(p)]
            if strangers:
                raise StoreError(self.path, f"is not a store's folder: {min(strangers)!r} lies in it; name another folder")
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._take()
            self._read_manifest()
            with _border(self.path / _LOCK):
                boot = _boot_id()
                os.ftruncate(self._lock, os.pwrite(self._lock, boot, 0))
                os.fsync(self._lock)
        except BaseException:
            self.release()
            raise

    def create(self, layout: Mapping[str, Leaf], columns: Mapping[str, Leaf]) -> dict[str, NDArray[Any]]:
        """Makes the files of a store that has none, and then its manifest.

        Args:
            layout: what an item of the store is.
            columns: for each column, its whole shape and dtype.

        Returns:
            The columns, full of zeros.

        Raises:
            StoreError: when they cannot be written, for instance because the disk is full; then none of them is there.
        """
        self._files = {name: f"{_NAME}{index:03d}.npy" for index, name in enumerate(columns)}
        document = {**self._head, "lineage": self.lineage, "layout": _to_json(layout), "files": self._files}
        fresh = self.path / f"{_NAME}manifest.tmp"
        try:
            made = {name: self.make(self._files[name], leaf) for name, leaf in columns.items()}
            with _border(self.path):
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

    def columns(self, columns: Mapping[str, Leaf]) -> dict[str, NDArray[Any]]:
        """The columns that `create` made, with what is in them.

        Raises:
            StoreError: when one is missing or is not as it was made.
        """
        if self._files.keys() != columns.keys():
            raise StoreError(self.path / _MANIFEST, "names other files than such a store has; delete the folder to start anew")
        return {name: self.open(self._files[name], leaf) for name, leaf in columns.items()}

    def make(self, name: str, leaf: Leaf) -> NDArray[Any]:
        """A new file of zeros; one of that name that nothing refers to is overwritten.

        Raises:
            StoreError: when it cannot be written; then it is not there.
        """
        path = self.path / name
        try:
            with _border(path), os.fdopen(open_private(path), "wb") as file:
                header = {"descr": leaf.dtype.str, "fortran_order": False, "shape": leaf.shape}
                np.lib.format.write_array_header_1_0(file, header)
                file.flush()
                os.posix_fallocate(file.fileno(), file.tell(), max(leaf.dtype.itemsize * prod(leaf.shape), 1))
            return self.open(name, leaf)
        except BaseException:
            self._remove(name)
            raise

    def open(self, name: str, leaf: Leaf) -> NDArray[Any]:
        """The array in a file that `make` made.

        Raises:
            StoreError: when it is missing, or holds another array than that.
        """
        path = self.path / name
        with _border(path):
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
                start = file.tell()
            found, size = Leaf(shape, dtype), leaf.dtype.itemsize * prod(leaf.shape)
            if found != leaf or path.stat().st_size < start + size:  # numpy would make a short file longer
                raise StoreError(path, f"holds {found} or less, not {leaf}; it is damaged; delete the folder to start anew")
            array: np.memmap[Any, Any] = np.memmap(path, leaf.dtype, "r+", start, leaf.shape)
        self._maps.append(array)
        return array.view(np.ndarray)

    def flush(self) -> None:
        """Has everything written to the disk; returns when it is."""
        with _border(self.path):
            for array in self._maps:
                array.flush()

    def close(self) -> None:
        """Flushes, says that the folder is whole, and lets others have it. A second call does nothing.

        Raises:
            StoreError: when the disk refuses; others may have the folder all the same.
        """
        if self._lock < 0:
            return
        try:
            self.flush()
            with _border(self.path / _LOCK):
                os.ftruncate(self._lock, 0)
                os.fsync(self._lock)
        finally:
            self.release()

    def release(self) -> None:
        """Lets others have the folder as it is. A second call does nothing."""
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a forked child may still have the descriptor
            os.close(self._lock)
            self._lock = -1
            self._maps.clear()

    def _remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.path / name).unlink()

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise StoreError(self.path, "another process, or another store of this one, has it open") from exc
        boot = os.pread(self._lock, 128, 0)
        if boot and boot != _boot_id():
            raise StoreError(
                self.path,
                "the machine went down while it was open, and nobody knows which pages had reached the disk; delete the folder",
            )

    def _read_manifest(self) -> None:
        path = self.path / _MANIFEST
        with _border(path):
            if not path.exists():  # a new folder, or one whose maker died before it was done
                return
            document = json.loads(path.read_text())
            if not isinstance(document, dict):
                raise ValueError("no map")
            for key, mine in self._head.items():
                theirs = document.get(key)
                if theirs != mine:
                    raise StoreError(self.path, f"was made with {key} {theirs!r}, not {mine!r}; use that, or another folder")
            self.lineage = int(document["lineage"])
            self.layout = {name: _from_json(*form) for name, form in document["layout"].items()}
            self._files = {str(name): str(file) for name, file in document["files"].items()}
            if any(not file.startswith(_NAME) or "/" in file for file in self._files.values()):
                raise ValueError("a file that is not one of ours")


@contextlib.contextmanager
def _border(path: Path) -> Any:
    """Foreign exceptions stop here: what the disk or a file's bytes cannot do is a `StoreError`."""
    try:
        yield
    except OSError as exc:
        raise StoreError(path, f"{exc.strerror or exc}") from exc
    except (ValueError, TypeError, KeyError, AttributeError, EOFError, OverflowError, RecursionError, SyntaxError) as exc:
        raise StoreError(path, f"is damaged ({exc!s:.200}); delete the folder to start anew") from exc


def _is_ours(path: Path) -> bool:
    return path.name.startswith(_NAME) or path.name.startswith("frames-")


def _boot_id() -> bytes:
    """Of this start of the machine; where none can be read, every start looks the same."""
    try:
        return _BOOT.read_bytes().strip()
    except OSError:
        return b"unknown"


def _to_json(leaves: Mapping[str, Leaf]) -> dict[str, Any]:
    return {name: [list(leaf.shape), leaf.dtype.str] for name, leaf in leaves.items()}


def _from_json(shape: list[int], dtype: str) -> Leaf:
    if dtype not in DTYPES or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"a column of shape {shape} and dtype {dtype!r:.60}")
    return Leaf(tuple(shape), np.dtype(dtype))
