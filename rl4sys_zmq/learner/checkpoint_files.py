"""The two files of a checkpoint, ``state.safetensors`` and ``manifest.json``, with checksums over every bit.

The manifest begins with its seal, the digest of everything after it. It contains the size and the digest of the other file.
This much is fixed for all future formats, so that another format is never mistaken for damage. The digests (xxh3-128) detect
accidents, not attacks.
"""

from __future__ import annotations

import errno
import json
import operator
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import xxhash

from rl4sys_zmq.errors import CheckpointError
from rl4sys_zmq.learner.state_tree import pack_state, unpack_state

__all__ = ["MANIFEST", "STATE", "Manifest", "Mark", "encode_checkpoint", "read_checkpoint", "read_manifest"]

MANIFEST, STATE = "manifest.json", "state.safetensors"
FORMAT = 1

_HEAD = b'{"seal": "'
_DIGEST_BYTES = 32
_LOST = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO}
"""The errors of the disk that mean a lost file.

Any other error (no permission, too many open files) can be temporary.
"""

_TYPES = {"str": str, "int": int, "float": float, "dict[str, int]": dict}


@dataclass(frozen=True, slots=True)
class Mark:
    """The position of a checkpoint in one stream.

    Attributes:
        actor_id: The actor of the stream.
        origin: The incarnation that began to number its segments.
        next_seq: The first sequence number that this state has not disposed of.
        verdicts: Counts of the stream's segments below `next_seq`: trained, stale, quarantined, refused.
    """

    actor_id: str
    origin: int
    next_seq: int
    verdicts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The description of a checkpoint.

    Attributes:
        client_id: The client.
        journal_id: The lineage of the journal that the marks belong to.
        number: Number of the checkpoint among this client's; set by `CheckpointStore.write`.
        generation: Generation of the policy.
        version: Version of the policy in its generation.
        digest: Xxh3-64 of the policy's flat weights.
        algorithm_name: The algorithm that can read the state.
        updates: Number of updates done.
        steps: Number of steps observed.
        verdicts: Counts of all segments of the client.
        marks: One per stream.
        grid: Exponents of the grid steps of the published weights; empty if they are not on a grid.
        saved_unix_s: Time of writing; set by `CheckpointStore.write`.
    """

    client_id: str
    journal_id: int
    number: int = 0
    generation: int
    version: int
    digest: int
    algorithm_name: str
    updates: int
    steps: int
    verdicts: dict[str, int]
    marks: tuple[Mark, ...]
    grid: tuple[int, ...] = ()
    saved_unix_s: float = 0.0


def encode_checkpoint(manifest: Manifest, state: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the contents of the two files by name.

    Raises:
        CheckpointError: If something in the state cannot be stored, or safetensors is not installed.
    """
    tree, arrays = pack_state(state)
    data = _safetensors().numpy.save(arrays)
    document = {
        "format": FORMAT,
        "library": getattr(sys.modules["rl4sys_zmq"], "__version__", ""),
        "files": {STATE: {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}},
        **asdict(manifest),
        "state": tree,
    }
    lines = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items())
    rest = ('",\n' + ",\n".join(lines) + "\n}\n").encode("ascii")
    return {STATE: data, MANIFEST: _HEAD + xxhash.xxh3_128_hexdigest(rest).encode() + rest}


def read_manifest(path: Path) -> Manifest:
    """Return the verified manifest of the checkpoint in the folder `path`, without reading the state.

    Raises:
        CheckpointError: If it is missing, damaged, unreadable or of another format.
    """
    return _manifest(path, _document(path))


def read_checkpoint(path: Path) -> tuple[Manifest, dict[str, Any]]:
    """Return the manifest and the state of the checkpoint in the folder `path`, verified to the last bit.

    Raises:
        CheckpointError: If it cannot be read or verified. The error names the file and the problem.
    """
    document = _document(path)
    manifest = _manifest(path, document)
    file = path / STATE
    try:
        size, digest = document["files"][STATE]["bytes"], document["files"][STATE]["xxh3_128"]
        tree = document["state"]
    except (KeyError, TypeError) as exc:
        raise CheckpointError(path / MANIFEST, f"the field {exc} is missing", damaged=True) from exc
    data = _read(file)
    if len(data) != size:
        raise CheckpointError(file, f"it has {len(data)} bytes; expected {size}", damaged=True)
    if xxhash.xxh3_128_hexdigest(data) != digest:
        raise CheckpointError(file, "its contents have changed since it was written (digest)", damaged=True)
    try:
        arrays = _safetensors().numpy.load(data)
        state = unpack_state(tree, arrays)
    except (_safetensors().SafetensorError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as exc:
        raise CheckpointError(file, f"it does not match its manifest: {exc}", damaged=True) from exc
    return manifest, state


def _document(path: Path) -> dict[str, Any]:
    """Return the manifest's JSON, after checking its digest and format."""
    file = path / MANIFEST
    data = _read(file)
    at = len(_HEAD) + _DIGEST_BYTES
    if data[: len(_HEAD)] != _HEAD or xxhash.xxh3_128_hexdigest(data[at:]).encode() != data[len(_HEAD) : at]:
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


def _manifest(path: Path, document: Mapping[str, Any]) -> Manifest:
    try:
        values = {field.name: document[field.name] for field in fields(Manifest) if field.name != "grid"}
        values["grid"] = tuple(operator.index(step) for step in document.get("grid", ()))  # older manifests lack it
        values["marks"] = tuple(Mark(**mark) for mark in values["marks"])
        for thing in (Manifest(**values), *values["marks"]):
            for field in fields(thing):
                expected = _TYPES.get(str(field.type))
                if expected is not None and type(getattr(thing, field.name)) is not expected:
                    raise TypeError(f"{field.name} is not {field.type}")
    except (KeyError, TypeError) as exc:
        raise CheckpointError(path / MANIFEST, f"a field is missing or invalid: {exc}", damaged=True) from exc
    return Manifest(**values)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as exc:
        raise CheckpointError(file, exc.strerror or os.strerror(exc.errno or 0), damaged=exc.errno in _LOST) from exc


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ModuleNotFoundError as exc:
        raise CheckpointError(STATE, f"checkpoints need the learner extra: pip install 'rl4sys-zmq[learner]' ({exc})") from exc
    return safetensors
