"""One checkpoint as two files, ``state.safetensors`` and ``manifest.json``, in which no bit can change unnoticed.

The manifest begins with its seal, the digest of everything in it that follows; it names the size and the digest of the other
file. That much is fixed for all formats to come, so that a checkpoint of another format is told from a damaged one. The
digests (xxh3-128) tell accidents, not attackers.
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
"""What the disk says of a file that is not there any more. Anything else (no permission, too many open files) may pass."""

_TYPES = {"str": str, "int": int, "float": float, "dict[str, int]": dict}


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a stream is contained in a checkpoint.

    Attributes:
        actor_id: of the stream.
        origin: the incarnation that began to number its segments.
        next_seq: the first sequence number that is not disposed of in this state.
        verdicts: of this stream's segments that are: how many were trained, stale, quarantined, refused.
    """

    actor_id: str
    origin: int
    next_seq: int
    verdicts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint is of, and how far it goes.

    Attributes:
        client_id: whose policy it is.
        journal_id: the lineage that the marks belong to.
        number: of the checkpoint among this client's; given by `CheckpointStore.write`.
        generation: of the policy.
        version: of the policy, within the generation.
        digest: of the policy, xxh3-64 of its flat weights.
        algorithm_name: what reads the state.
        updates: how many were done.
        steps: how many were observed.
        verdicts: of all segments of the client.
        marks: one per stream.
        grid: the exponents of the steps of what was published, if the weights travel on a grid.
        saved_unix_s: when it was written; given by `CheckpointStore.write`.
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
    """The contents of the two files by name.

    Raises:
        CheckpointError: when something in the state cannot be stored, or safetensors is not installed.
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
    """The manifest of the checkpoint in the folder `path`, verified; the state is not looked at.

    Raises:
        CheckpointError: when it is missing, damaged, not readable or of another format.
    """
    return _manifest(path, _document(path))


def read_checkpoint(path: Path) -> tuple[Manifest, dict[str, Any]]:
    """The checkpoint in the folder `path`, verified to the last bit.

    Raises:
        CheckpointError: naming the file and what is wrong with it.
    """
    document = _document(path)
    manifest = _manifest(path, document)
    file = path / STATE
    try:
        size, digest = document["files"][STATE]["bytes"], document["files"][STATE]["xxh3_128"]
        tree = document["state"]
    except (KeyError, TypeError) as exc:
        raise CheckpointError(path / MANIFEST, f"it has no {exc}", damaged=True) from exc
    data = _read(file)
    if len(data) != size:
        raise CheckpointError(file, f"it has {len(data)} bytes, not {size}", damaged=True)
    if xxhash.xxh3_128_hexdigest(data) != digest:
        raise CheckpointError(file, "its bytes are not those that were written (digest)", damaged=True)
    try:
        arrays = _safetensors().numpy.load(data)
        state = unpack_state(tree, arrays)
    except (_safetensors().SafetensorError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as exc:
        raise CheckpointError(file, f"it does not fit its manifest: {exc}", damaged=True) from exc
    return manifest, state


def _document(path: Path) -> dict[str, Any]:
    """The manifest's JSON, once its digest and its format are right."""
    file = path / MANIFEST
    data = _read(file)
    at = len(_HEAD) + _DIGEST_BYTES
    if data[: len(_HEAD)] != _HEAD or xxhash.xxh3_128_hexdigest(data[at:]).encode() != data[len(_HEAD) : at]:
        raise CheckpointError(file, "its bytes are not those that were written (seal)", damaged=True)
    try:
        document = json.loads(data)
        written, library = document["format"], document.get("library", "unknown")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise CheckpointError(file, f"it is no manifest: {exc!r}", damaged=True) from exc
    if written != FORMAT:
        raise CheckpointError(
            file, f"version {library} of this library wrote it in format {written}; this one reads format {FORMAT}"
        )
    return dict(document)


def _manifest(path: Path, document: Mapping[str, Any]) -> Manifest:
    try:
        values = {field.name: document[field.name] for field in fields(Manifest) if field.name != "grid"}
        values["grid"] = tuple(operator.index(step) for step in document.get("grid", ()))  # older ones have none
        values["marks"] = tuple(Mark(**mark) for mark in values["marks"])
        for thing in (Manifest(**values), *values["marks"]):
            for field in fields(thing):
                expected = _TYPES.get(str(field.type))
                if expected is not None and type(getattr(thing, field.name)) is not expected:
                    raise TypeError(f"{field.name} is not {field.type}")
    except (KeyError, TypeError) as exc:
        raise CheckpointError(path / MANIFEST, f"it does not say what it should: {exc}", damaged=True) from exc
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
