"""The checkpoints of one client on disk. Each is written as a whole or not at all.

::

    RUN/checkpoints/CLIENT/
      00000007/  00000008/  00000009/     the newest few, each with state.safetensors, manifest.json, pieces,
                                          and the policy alone (`rl4sys_zmq.policies.folder`)
      00000006.damaged/                   failed verification at a start; kept for inspection
      00000005.abandoned/                 newer than the checkpoint that --resume returned to
      .tmp-00000010/                      being written or removed; the next start removes it
      .writer                             the generation of the only learner thread that can write here

A new checkpoint is written under a temporary name, flushed to disk, and then renamed. So after a crash at any moment, the
folder either has the complete new checkpoint or is as before. A checkpoint is verified when it is read.

A *piece* of the state never changes, such as old rows of a replay (`rl4sys_zmq.replay.StatePiece`). It has a file of its own,
``piece-DIGEST.safetensors``, which a checkpoint shares with the one before the last by a hard link. So each folder is complete,
and a checkpoint writes only what is new. Two successive checkpoints share no file, so damage to one file leaves one of them
intact; a piece is therefore written twice.

Checksums cover every bit of the files. ``manifest.json`` begins with its *seal*, a digest of everything after it, and contains
the size and the digest of ``state.safetensors`` and of each piece. The files of the policy have checksums of their own; only an
export reads them. The digests (xxh3-128) detect accidents, not attacks.
"""

from __future__ import annotations

import errno
import fcntl
import json
import operator
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import xxhash

from rl4sys_zmq.errors import CheckpointError, PolicyFolderError
from rl4sys_zmq.learner.run.state_tree import pack_state, piece_of, pieces_without_arrays, unpack_state
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies.folder import StoredPolicy, encode_policy
from rl4sys_zmq.private import make_private, open_private, sync_folder, write_folder
from rl4sys_zmq.resource import with_descriptor
from rl4sys_zmq.sealed import seal_document, seal_holds
from rl4sys_zmq.version import package_version

MANIFEST, STATE, PIECE = "manifest.json", "state.safetensors", "piece-"
FORMAT = 1
_PIECE_FILE = re.compile(PIECE + r"[0-9a-f]{32}\.safetensors")

_LOST = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO}
"""The errors after which a file counts as lost. Other errors (no permission, too many open files) can be temporary."""

_TYPES = {"str": str, "int": int, "float": float, "dict[str, int]": dict}


@dataclass(slots=True)
class CheckpointedStreamProgress:
    """The part of one stream that a checkpoint includes.

    Attributes:
        next_seq: The first sequence number that the saved state does not include. Training continues from there.
        verdicts: Number of segments below `next_seq` by verdict.
    """

    actor_id: str
    origin: int
    next_seq: int
    verdicts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointManifest:
    """The description of a checkpoint: the content of ``manifest.json`` without the state and the digests of the files.

    Attributes:
        journal_id: Id of the journal for which the positions in `marks` are valid.
        number: Number of the checkpoint, from 1 for each client; set by `CheckpointStore.write`.
        generation: The client's generation when the checkpoint was written.
        digest: Xxh3-64 of the policy's weights, as in `PolicySnapshot`.
        trained_digest: Like `digest`, but without the tensors that follow from parameters, which can be changed at a resume.
        steps: Number of environment steps that the algorithm has observed.
        verdicts: Number of all segments of the client by verdict.
        grid: The step size of each rounded tensor as an exponent of 2; empty unless the wire dtype is ``grid``.
        blob: Digest of the extra bytes (`blob`) in the description of the policy; empty without extra bytes.
        saved_unix_s: Unix time of writing, in seconds; set by `CheckpointStore.write`.
        episodes: Number of episodes that ended in `steps`.
        recent: Return and length in steps of the latest of these episodes, oldest first.
        overridden_steps: Number of steps whose actions the host overrode.
    """

    client_id: str
    journal_id: int
    number: int = 0
    generation: int
    version: int
    digest: int
    trained_digest: int
    algorithm_name: str
    updates: int
    steps: int
    verdicts: dict[str, int]
    marks: tuple[CheckpointedStreamProgress, ...]
    grid: tuple[int, ...] = ()
    blob: str = ""
    saved_unix_s: float = 0.0
    episodes: int = 0
    recent: tuple[tuple[float, int], ...] = ()
    overridden_steps: int = 0


def encode_checkpoint(
    manifest: CheckpointManifest,
    state: Mapping[str, Any],
    policy: StoredPolicy | None = None,
    stored: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> dict[str, bytes]:
    """Return the contents of the new files of a checkpoint, by file name. `stored` describes files that exist already."""
    tree, arrays = pack_state(state)
    files = {name: _safetensors().numpy.save(part) for name, part in _by_file(arrays).items()}
    entries = {name: {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)} for name, data in files.items()}
    document = {
        "format": FORMAT,
        "library": package_version(),
        "files": {**stored, **entries},
        **asdict(manifest),
        "state": tree,
    }
    try:
        exported = encode_policy(policy) if policy is not None else {}
    except PolicyFolderError as exc:
        raise CheckpointError(exc.path, str(exc)) from exc
    return {**files, MANIFEST: seal_document(document), **exported}


def _by_file(arrays: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    files: dict[str, dict[str, Any]] = {STATE: {}}
    for name, array in arrays.items():
        piece = piece_of(name)
        files.setdefault(_piece_file(piece) if piece else STATE, {})[name] = array
    return files


def _piece_file(piece: str) -> str:
    return f"{PIECE}{piece}.safetensors"


def read_manifest(path: Path) -> CheckpointManifest:
    """Return the verified manifest of the checkpoint in the folder `path`, without reading the state."""
    return _manifest(path, _document(path, _read))


def read_checkpoint(path: Path, read: Callable[[Path], bytes] | None = None) -> tuple[CheckpointManifest, dict[str, Any]]:
    """Return the manifest and the state of the checkpoint in the folder `path`, verified to the last bit."""
    read = read or _read
    document = _document(path, read)
    manifest = _manifest(path, document)
    files = _listed(path, document)
    if "state" not in document:
        raise CheckpointError(path / MANIFEST, "the field 'state' is missing", damaged=True)
    arrays: dict[str, Any] = {}
    for name, (size, digest) in files.items():
        arrays |= _arrays(path / name, read(path / name), size, digest)
    try:
        state = unpack_state(document["state"], arrays)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as exc:
        raise CheckpointError(path / STATE, f"it does not match its manifest: {exc}", damaged=True) from exc
    return manifest, state


def _arrays(file: Path, data: bytes, size: int, digest: str) -> dict[str, Any]:
    if len(data) != size:
        raise CheckpointError(file, f"it has {len(data)} bytes; expected {size}", damaged=True)
    if xxhash.xxh3_128_hexdigest(data) != digest:
        raise CheckpointError(file, "its contents have changed since it was written (digest)", damaged=True)
    try:
        arrays: dict[str, Any] = _safetensors().numpy.load(data)
    except (_safetensors().SafetensorError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as exc:
        raise CheckpointError(file, f"it does not match its manifest: {exc}", damaged=True) from exc
    return arrays


def state_files(path: Path) -> dict[str, tuple[int, str]]:
    """Return the size in bytes and the digest (xxh3-128) that the manifest in a folder gives for each file of the state."""
    return _listed(path, _document(path, _read))


def is_state_file(name: str) -> bool:
    return name == STATE or _PIECE_FILE.fullmatch(name) is not None


def _listed(path: Path, document: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    try:
        files = {str(name): (entry["bytes"], entry["xxh3_128"]) for name, entry in document["files"].items()}
        listed = {STATE: files.pop(STATE), **dict(sorted(files.items()))}
    except (KeyError, TypeError, AttributeError) as exc:
        raise CheckpointError(path / MANIFEST, f"the field {exc} is missing", damaged=True) from exc
    for name in listed:
        if not is_state_file(name):
            raise CheckpointError(path / MANIFEST, f"the file {name!r:.80} is not one of a checkpoint", damaged=True)
    return listed


def _document(path: Path, read: Callable[[Path], bytes]) -> dict[str, Any]:
    """Return the verified manifest in the folder `path`, as JSON."""
    file = path / MANIFEST
    data = read(file)
    if not seal_holds(data):
        raise CheckpointError(file, "its contents have changed since it was written (seal)", damaged=True)
    try:
        document = json.loads(data)
        written, library = document["format"], document.get("library", "unknown")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise CheckpointError(file, f"it is not a manifest: {exc!r}", damaged=True) from exc
    if written != FORMAT:
        raise CheckpointError(
            file, f"version {library} of this library wrote it in format {written}; this version reads format {FORMAT}"
        )
    return dict(document)


def _manifest(path: Path, document: Mapping[str, Any]) -> CheckpointManifest:
    try:
        values = {field.name: document[field.name] for field in fields(CheckpointManifest)}
        values["grid"] = tuple(operator.index(step) for step in values["grid"])
        values["recent"] = tuple((float(total), operator.index(length)) for total, length in values["recent"])
        values["marks"] = tuple(CheckpointedStreamProgress(**mark) for mark in values["marks"])
        manifest = CheckpointManifest(**values)
        records: tuple[CheckpointManifest | CheckpointedStreamProgress, ...] = (manifest, *manifest.marks)
        for record in records:
            for field in fields(record):
                expected = _TYPES.get(str(field.type))
                if expected is not None and type(getattr(record, field.name)) is not expected:
                    raise TypeError(f"{field.name} is not {field.type}")
    except (KeyError, TypeError, ValueError) as exc:
        raise CheckpointError(path / MANIFEST, f"a field is missing or invalid: {exc}", damaged=True) from exc
    return manifest


def _read(file: Path) -> bytes:
    try:
        return with_descriptor(file.read_bytes)
    except OSError as exc:
        raise CheckpointError(file, exc.strerror or os.strerror(exc.errno or 0), damaged=exc.errno in _LOST) from exc


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ModuleNotFoundError as exc:
        raise CheckpointError(STATE, f"checkpoints need the learner extra: pip install 'rl4sys-zmq[learner]' ({exc})") from exc
    return safetensors


log = get_logger(__name__)

TEMPORARY, WRITER = ".tmp-", ".writer"
LOCK_TIMEOUT_S, LOCK_RETRY_S = 30.0, 0.01
_NAME = re.compile(r"([0-9]{8,})(\.(?:damaged|abandoned)(?:\.[0-9]+)?)?")


class CheckpointStore:
    """The checkpoint folder of one client. Only its learner thread writes there; any thread can call `newest`.

    Two learner threads of one client can exist for a while, in two processes: a stopped process continues whenever it is woken,
    also after its replacement. So a learner thread claims the folder with its generation, and `write` fails after a thread with
    a higher generation has claimed it.

    Attributes:
        damaged: One error message for each damaged checkpoint that `load` has renamed so far.
    """

    def __init__(self, folder: Path, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; expected at least 1")
        self.folder = folder
        self.damaged: list[str] = []
        self._keep = keep
        self._generation = 0

    def claim(self, generation: int) -> None:
        """Make the calling learner thread the only one that can write here. Call this before `load`.

        If the folder cannot be written, this logs a warning only, and `write` tries again.
        """
        self._generation = generation
        try:
            make_private(self.folder)
            with self._claimed():
                pass
        except OSError as exc:
            log.warning("%s cannot be claimed, so the next checkpoint will fail: %s", self.folder, exc.strerror or exc)

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Hold the folder's lock in a ``with`` block. Raise CheckpointError if a later learner thread has claimed the folder.

        Without an earlier call of `claim`, do nothing.
        """
        if not self._generation:
            yield
            return
        file = open_private(self.folder / WRITER, os.O_RDWR | os.O_CREAT)
        try:
            _lock(file, self.folder)
            text = os.pread(file, 64, 0).strip()
            newest = int(text) if text.isdigit() else 0
            if newest > self._generation:
                problem = f"learner thread {newest} has replaced this one ({self._generation}), which can write no checkpoint"
                raise CheckpointError(self.folder, problem)
            if newest < self._generation:
                os.pwrite(file, f"{self._generation:020d}\n".encode(), 0)
            yield
        finally:
            os.close(file)

    def release(self) -> None:
        """Remove the claim, so that a lower generation can claim the folder. Call this while no learner thread runs."""
        with _disk(self.folder):
            (self.folder / WRITER).unlink(missing_ok=True)

    def write(
        self,
        manifest: CheckpointManifest,
        state: Mapping[str, Any],
        *,
        policy: StoredPolicy | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> CheckpointManifest:
        """Write one checkpoint, with `policy` beside the state. On return, the checkpoint is on the disk.

        If `wanted` returns False at the end, the checkpoint is discarded, and CheckpointError is raised.
        """
        with _disk(self.folder):
            number = self.prepare()
            written = replace(manifest, number=number, saved_unix_s=time.time())
            source, entries = self._shared_pieces()
            missing = [_piece_file(name) for name in pieces_without_arrays(state)]
            for name in missing:
                if name not in entries:
                    raise CheckpointError(source / name, "the new checkpoint needs this file of an earlier one, which has gone")
            stored = {name: entries[name] for name in missing}
            contents = encode_checkpoint(written, state, policy, stored)
            temporary = self.temporary(number)
            try:
                write_folder(temporary, contents, links=[source / name for name in stored if name not in contents])
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            self.install(temporary, number, wanted)
        return written

    def prepare(self) -> int:
        """Create the folder, remove unfinished checkpoints, and return the number of the next checkpoint."""
        with _disk(self.folder):
            make_private(self.folder)
            with self._claimed():
                self._sweep()
            return self.next_number()

    def next_number(self) -> int:
        """Return the number of the next checkpoint, above all others in the folder, also damaged and abandoned ones."""
        return 1 + max((number for number, _, _ in self._entries()), default=0)

    def temporary(self, number: int) -> Path:
        return self.folder / f"{TEMPORARY}{number:08d}-{os.getpid()}-{threading.get_ident()}"

    def install(self, temporary: Path, number: int, wanted: Callable[[], bool] = lambda: True) -> None:
        """Rename a complete checkpoint into place, and remove old ones. After an error, or if `wanted` returns False, remove
        the folder `temporary`.
        """
        with _disk(self.folder):
            try:
                if not wanted():
                    raise CheckpointError(temporary, "another learner thread has replaced this one, or the client was removed")
                with self._claimed():
                    os.rename(temporary, self.folder / f"{number:08d}")
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_folder(self.folder)
        self._prune()

    def stored_pieces(self) -> frozenset[str]:
        """Return the names of the pieces of the second newest checkpoint, which the next one can share; none after an error."""
        return frozenset(name.removeprefix(PIECE).partition(".")[0] for name in self._shared_pieces()[1])

    def _shared_pieces(self) -> tuple[Path, dict[str, dict[str, Any]]]:
        """Return the folder of the second newest checkpoint, and its manifest's entries for pieces if their files exist."""
        for path in self.newest()[1:2]:
            try:
                entries = _document(path, _read)["files"]
                pieces = {str(name): entry for name, entry in entries.items() if _PIECE_FILE.fullmatch(name)}
                if all((path / name).stat().st_size == entry["bytes"] for name, entry in pieces.items()):
                    return path, pieces
            except (CheckpointError, OSError, KeyError, TypeError, AttributeError) as exc:
                log.warning("the pieces of %s cannot be used again, so the next checkpoint is written as a whole: %s", path, exc)
        return self.folder, {}

    def newest(self) -> list[Path]:
        """Return the folders of the checkpoints, newest first, without damaged, abandoned and unfinished ones."""
        with _disk(self.folder):
            return [path for _, aside, path in self._entries() if not aside]

    def load(self) -> tuple[CheckpointManifest, dict[str, Any]] | None:
        """Return the newest intact checkpoint. Newer ones are renamed to ``NNNNNNNN.damaged``."""
        with _disk(self.folder):
            self._sweep()
        for path in self.newest():
            try:
                return read_checkpoint(path)
            except CheckpointError as exc:
                if not exc.damaged:
                    raise
                log.warning("checkpoint is damaged and is moved aside: %s", exc)
                self.damaged.append(str(exc))
                self._set_aside(path, "damaged")
        return None

    def abandon_after(self, number: int) -> list[int]:
        """Rename all checkpoints newer than `number` to ``NNNNNNNN.abandoned``, so that no later start loads them."""
        newer = [(int(path.name), path) for path in self.newest() if int(path.name) > number]
        for _, path in newer:
            self._set_aside(path, "abandoned")
        return [number for number, _ in newer]

    def abandon_all(self) -> list[int]:
        """Abandon all checkpoints, and release the folder. Call this after the end of the client's learner threads."""
        numbers = self.abandon_after(0)
        self.release()
        return numbers

    def _entries(self) -> list[tuple[int, bool, Path]]:
        """Return ``(number, is damaged or abandoned, path)`` of each checkpoint, newest first."""
        try:
            names = with_descriptor(lambda: os.listdir(self.folder))
        except FileNotFoundError:
            return []
        entries = [(int(match[1]), bool(match[2]), self.folder / name) for name in names if (match := _NAME.fullmatch(name))]
        return sorted(entries, reverse=True)

    def _sweep(self) -> None:
        for path in self.folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _prune(self) -> None:
        """Remove old checkpoints. A failure costs only space on the disk, and the next `write` tries again."""
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
    """Convert an `OSError` in the body of the ``with`` statement to `CheckpointError`."""
    try:
        yield
    except OSError as exc:
        raise CheckpointError(exc.filename or path, exc.strerror or str(exc)) from exc


def _lock(file: int, folder: Path) -> None:
    """Wait for the exclusive lock on an open file. The lock ends when the file is closed or the process ends."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                problem = f"another learner thread has held its lock for {LOCK_TIMEOUT_S:g} s; is its process stopped?"
                raise CheckpointError(folder, problem) from None
        time.sleep(LOCK_RETRY_S)
