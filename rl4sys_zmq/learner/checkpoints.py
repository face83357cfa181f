"""The checkpoints of one client on disk: written whole or not at all, read only when every bit is right.

::

    RUN/checkpoints/CLIENT/
      00000007/  00000008/  00000009/     the newest few, each with state.safetensors and manifest.json
      00000006.damaged/                   did not verify at a start; kept for people to look at
      00000005.abandoned/                 newer than the one that --resume went back to
      .tmp-00000010/                      being written or removed; the next start removes it

A checkpoint is written beside the others, flushed to the disk, and renamed once. A crash at any moment leaves the old set
or the new one.
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
    """The folder of one client. Its learner thread alone writes there; `newest` may be called by anybody.

    Attributes:
        folder: made by the first `write`.
        damaged: what `load` has moved aside so far, in words: also those for which it found nothing older.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        """Touches nothing yet.

        Args:
            folder: of the client; the last part is usually a `rl4sys_zmq.names.folder_name`.
            keep: how many checkpoints stay, at least 1.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.folder = folder
        self.damaged: list[str] = []
        self._keep = keep

    def write(self, manifest: Manifest, state: Mapping[str, Any], *, wanted: Callable[[], bool] = lambda: True) -> Manifest:
        """Writes one checkpoint; when this returns it is on the disk.

        Args:
            manifest: `number` and `saved_unix_s` are set here: numbers are never used twice, not even abandoned ones.
            state: what `Algorithm.state` returned; see `pack_state` for what may be in it.

            wanted: asked at the last moment; False when another learner thread has taken this one's place.

        Returns:
            The manifest as it was written.

        Raises:
            CheckpointError: when it cannot be written, or is not wanted any more. What was there is still there; at worst (an
                error of the very last flush) the new one is there too, whole, and may outlast a loss of power or not.
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
                    raise CheckpointError(temporary, "another learner thread writes here now")
                os.rename(temporary, self.folder / f"{number:08d}")
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_folder(self.folder)
        self._prune()
        return written

    def newest(self) -> list[Path]:
        """The checkpoints, newest first: neither those moved aside nor what a crash left unfinished.

        Raises:
            CheckpointError: when the folder cannot be read.
        """
        with _disk(self.folder):
            return [path for _, aside, path in self._entries() if not aside]

    def load(self) -> tuple[Manifest, dict[str, Any], list[str]] | None:
        """The newest checkpoint that verifies.

        Returns:
            Its manifest, its state, and in words which newer ones were damaged; these are renamed to ``NNNNNNNN.damaged``.
            None when there is none, or none that is whole (`damaged` tells).

        Raises:
            CheckpointError: when one may be whole and still cannot be read: another format, no permission, too many files.
                Going back behind it would undo what it holds, so a person decides.
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
                log.warning("damaged checkpoint: %s", exc)
                damaged.append(str(exc))
                self.damaged.append(str(exc))
                self._set_aside(path, "damaged")
        return None

    def abandon_after(self, number: int) -> list[int]:
        """Renames all checkpoints newer than `number` to ``NNNNNNNN.abandoned``, newest first.

        Returns:
            Their numbers, newest first.

        Raises:
            CheckpointError: when one cannot be renamed; a second call goes on from there.
        """
        newer = [(int(path.name), path) for path in self.newest() if int(path.name) > number]
        for _, path in newer:
            self._set_aside(path, "abandoned")
        return [number for number, _ in newer]

    def _entries(self) -> list[tuple[int, bool, Path]]:
        """``(number, moved aside, path)`` of each checkpoint, newest first."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        found = [(int(match[1]), bool(match[2]), self.folder / name) for name in names if (match := _NAME.fullmatch(name))]
        return sorted(found, reverse=True)

    def _sweep(self) -> None:
        """Removes what a crash left unfinished."""
        for path in self.folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _prune(self) -> None:
        """Removes the oldest. The new one is safe by now: a disk that refuses costs space, and the next write tries again."""
        try:
            for path in reversed(self.newest()[self._keep :]):
                doomed = self.folder / f"{TEMPORARY}{path.name}"
                os.rename(path, doomed)  # so that a half-removed one is never taken for a checkpoint
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
    """What the disk refuses becomes an error of ours."""
    try:
        yield
    except OSError as exc:
        raise CheckpointError(exc.filename or path, exc.strerror or str(exc)) from exc


def _make_folder(folder: Path) -> None:
    """Makes the folder and those above it, for the owner alone, and what names them durable."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
        sync_folder(path.parent)


def _fill(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Makes a folder with these files; when this returns they are on the disk, but the folder's own name may not be."""
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
