"""The checkpoints of one client on disk. Each is written as a whole or not at all, and verified when it is read.

::

    RUN/checkpoints/CLIENT/
      00000007/  00000008/  00000009/     the newest few, each with state.safetensors and manifest.json
      00000006.damaged/                   failed verification at a start; kept for inspection
      00000005.abandoned/                 newer than the checkpoint that --resume returned to
      .tmp-00000010/                      being written or removed; the next start removes it

A checkpoint is written beside the others, flushed to disk, and renamed once. After a crash at any moment, either the old set or
the new one is there.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rl4sys_zmq.errors import CheckpointError
from rl4sys_zmq.learner.checkpoint_files import Manifest, Mark, encode_checkpoint, read_checkpoint, read_manifest
from rl4sys_zmq.private import sync_folder

__all__ = ["CheckpointStore", "Manifest", "Mark", "read_checkpoint", "read_manifest"]

log = logging.getLogger(__name__)

TEMPORARY = ".tmp-"
_NAME = re.compile(r"([0-9]{8,})(\.(?:damaged|abandoned)(?:\.[0-9]+)?)?")


class CheckpointStore:
    """The checkpoint folder of one client. Only its learner thread writes there; any thread can call `newest`.

    Attributes:
        folder: The folder, created by the first `write`.
        damaged: The errors of all checkpoints that `load` has moved aside so far, including those with no older replacement.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        """Create the store. Does not touch the disk.

        Args:
            folder: The client's folder; its last part is usually a `rl4sys_zmq.names.folder_name`.
            keep: Number of checkpoints to keep, at least 1.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}; expected at least 1")
        self.folder = folder
        self.damaged: list[str] = []
        self._keep = keep

    def write(self, manifest: Manifest, state: Mapping[str, Any], *, wanted: Callable[[], bool] = lambda: True) -> Manifest:
        """Write one checkpoint. It is on disk when this returns.

        Args:
            manifest: The manifest. `number` and `saved_unix_s` are set here. Numbers are never reused, not even abandoned ones.
            state: The result of `Algorithm.state`; see `pack_state` for the supported types.
            wanted: Called right before the rename; returns False if another learner thread has replaced this one.

        Returns:
            The manifest as written.

        Raises:
            CheckpointError: If the checkpoint cannot be written or is no longer wanted. The earlier ones are unchanged. If the
                very last flush failed, the new one is there as well, complete, but might not survive a loss of power.
        """
        with _disk(self.folder):
            _make_folder(self.folder)
            self._sweep()
            number = 1 + max((number for number, _, _ in self._entries()), default=0)
            written = replace(manifest, number=number, saved_unix_s=time.time())
            contents = encode_checkpoint(written, state)
            temporary = self.folder / f"{TEMPORARY}{number:08d}-{threading.get_ident()}"
            try:
                _fill(temporary, contents)
                if not wanted():
                    raise CheckpointError(temporary, "another learner thread has replaced this one and writes here now")
                os.rename(temporary, self.folder / f"{number:08d}")
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_folder(self.folder)
        self._prune()
        return written

    def newest(self) -> list[Path]:
        """Return the checkpoints, newest first, without those moved aside or left unfinished by a crash.

        Raises:
            CheckpointError: If the folder cannot be read.
        """
        with _disk(self.folder):
            return [path for _, aside, path in self._entries() if not aside]

    def load(self) -> tuple[Manifest, dict[str, Any], list[str]] | None:
        """Return the newest checkpoint that verifies.

        Newer ones that are damaged are renamed to ``NNNNNNNN.damaged``.

        Returns:
            Its manifest, its state, and the errors of the damaged ones; None if there is no intact checkpoint (then `damaged`
            has the errors).

        Raises:
            CheckpointError: If a checkpoint that may be intact cannot be read: another format, no permission, too many open
                files. Falling back to an older one would undo what it holds, so a person must decide.
        """
        with _disk(self.folder):
            self._sweep()
        damaged: list[str] = []
        for path in self.newest():
            try:
                return *read_checkpoint(path), damaged
            except CheckpointError as exc:
                if not exc.damaged:
                    raise
                log.warning("checkpoint is damaged and is moved aside: %s", exc)
                damaged.append(str(exc))
                self.damaged.append(str(exc))
                self._set_aside(path, "damaged")
        return None

    def abandon_after(self, number: int) -> list[int]:
        """Rename all checkpoints newer than `number` to ``NNNNNNNN.abandoned``, newest first.

        Returns:
            Their numbers, newest first.

        Raises:
            CheckpointError: If one cannot be renamed; a second call continues from there.
        """
        newer = [(int(path.name), path) for path in self.newest() if int(path.name) > number]
        for _, path in newer:
            self._set_aside(path, "abandoned")
        return [number for number, _ in newer]

    def _entries(self) -> list[tuple[int, bool, Path]]:
        """Return ``(number, moved aside, path)`` of each checkpoint, newest first."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        found = [(int(match[1]), bool(match[2]), self.folder / name) for name in names if (match := _NAME.fullmatch(name))]
        return sorted(found, reverse=True)

    def _sweep(self) -> None:
        """Remove what a crash left unfinished."""
        for path in self.folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _prune(self) -> None:
        """Remove the oldest checkpoints.

        The new one is on disk already, so a failure only costs space; the next write tries again.
        """
        try:
            for path in reversed(self.newest()[self._keep :]):
                doomed = self.folder / f"{TEMPORARY}{path.name}"
                os.rename(path, doomed)  # so that a partly removed one never looks like a checkpoint
                shutil.rmtree(doomed)
        except (OSError, CheckpointError) as exc:
            log.warning("an old checkpoint cannot be removed: %s", exc)

    def _set_aside(self, path: Path, why: str) -> None:
        with _disk(path):
            target, copies = path.with_name(f"{path.name}.{why}"), 1
            while target.exists():
                copies += 1
                target = path.with_name(f"{path.name}.{why}.{copies}")
            os.rename(path, target)
            sync_folder(self.folder)


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Convert `OSError` to `CheckpointError`."""
    try:
        yield
    except OSError as exc:
        raise CheckpointError(exc.filename or path, exc.strerror or str(exc)) from exc


def _make_folder(folder: Path) -> None:
    """Create the folder and its parents, private to the owner, and flush their names to disk."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        sync_folder(path.parent)


def _fill(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Create a folder with these files.

    The files are on disk when this returns; the folder's own name may not be.
    """
    folder.mkdir(mode=0o700)
    for name, content in contents.items():
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        finally:
            os.close(file)
    sync_folder(folder)
