"""A policy in a folder: its weights as named tensors, and the description from which any process can build it.

::

    policy/ spec.json             the description (`PolicySpec`), the origin of the weights, and the digests of the other files
    policy.safetensors    the weights: the tensors that `PolicySpec.tensors` names policy.blob           `PolicySpec.blob`; only
    if it is not empty policy.onnx           from ``rl4sys-learner export``, for other programs; this library does not read the
    file

Each checkpoint of a learner contains the same files, except the last one. ``spec.json`` begins with a checksum of its contents
(`rl4sys_zmq.sealed`) and has the checksums of the other files. Nothing is unpickled. The checksums detect accidents, not attacks.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from rl4sys_zmq.errors import ConfigError, PolicyFolderError, ProtocolError, WeightsError
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.private import exchange_paths, sync_folder, write_folder
from rl4sys_zmq.sealed import seal_document, seal_holds
from rl4sys_zmq.values import MAX_BLOB_BYTES, PolicySnapshot, PolicySpec
from rl4sys_zmq.version import package_version
from rl4sys_zmq.weights import digest, verify_others
from rl4sys_zmq.wire import spec_from_document, spec_to_document

SPEC, WEIGHTS, BLOB, ONNX = "spec.json", "policy.safetensors", "policy.blob", "policy.onnx"
POLICY_FILES = (SPEC, WEIGHTS, BLOB, ONNX)
"""The names of all files that a policy folder can contain."""
FORMAT = 1

MAX_SPEC_BYTES = 4 << 20
"""The largest size of ``spec.json``, in bytes."""
MAX_HEADER_BYTES = 4 << 20
"""The largest size of the header of ``policy.safetensors``, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOrigin:
    """The training that a stored policy comes from.

    Attributes:
        client_id: Name of the client.
        algorithm_name: Registered name of the algorithm that trained the policy.
        updates: Number of updates that the algorithm had done.
        steps: Number of environment steps that the algorithm had observed.
        saved_unix_s: Unix time at which the learner saved the policy, in seconds.
        episodes: Number of training episodes up to then; None if unknown.
        mean_return: Mean return of the last 100 of these episodes, or of all if there are fewer; None if unknown.
    """

    client_id: str
    algorithm_name: str
    updates: int
    steps: int
    saved_unix_s: float
    episodes: int | None = None
    mean_return: float | None = None


_ORIGIN_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "int | None": (int, type(None)),
    "float | None": (float, int, type(None)),
}


@immutable
class StoredPolicy:
    """The contents of a policy folder.

    Attributes:
        spec: The description of the policy.
        snapshot: The weights. `read_policy` has verified them by their digest.
        origin: The training that the policy comes from.
    """

    spec: PolicySpec
    snapshot: PolicySnapshot
    origin: PolicyOrigin


def encode_policy(policy: StoredPolicy) -> dict[str, bytes]:
    """Return the contents of the files of a policy folder, by file name. ``policy.onnx`` is not among them.

    Raises:
        ConfigError: If safetensors is not installed.
        PolicyFolderError: If the tensors have names that the files cannot contain.
    """
    spec, snapshot = policy.spec, policy.snapshot
    library = safetensors_library()
    try:
        files = {WEIGHTS: library.numpy.save(spec.views(snapshot.flat, snapshot.others))}
    except (library.SafetensorError, ValueError) as exc:
        raise PolicyFolderError(WEIGHTS, f"the tensors of the policy cannot be stored: {exc}") from exc
    if spec.blob:
        files[BLOB] = spec.blob
    document = {
        "format": FORMAT,
        "library": package_version(),
        "generation": snapshot.generation,
        "version": snapshot.version,
        "digest": f"{snapshot.digest:016x}",
        "origin": asdict(policy.origin),
        "files": {name: {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)} for name, data in files.items()},
        "spec": spec_to_document(spec),
    }
    return {**files, SPEC: seal_document(document)}


def read_policy(folder: str | os.PathLike[str]) -> StoredPolicy:
    """Return the policy in a folder, after a check of all checksums. The folder of a learner's checkpoint can be given too.

    Raises:
        ConfigError: If safetensors is not installed.
        PolicyFolderError: If a file is missing, damaged, too large or of another format. The message names the file.
    """
    path = Path(folder)
    document = _read_spec(path)
    library = safetensors_library()
    try:
        names = document["files"]
        blob = _read_listed(path / BLOB, names[BLOB], MAX_BLOB_BYTES) if BLOB in names else b""
        spec = spec_from_document(document["spec"], [blob] if blob else [])
        data = _read_listed(path / WEIGHTS, names[WEIGHTS], spec.nbytes + MAX_HEADER_BYTES)
        flat, others = spec.flatten(library.numpy.load(data))
        verify_others(spec.others, others)
        found = digest(flat, others)
        if f"{found:016x}" != document["digest"] or not np.isfinite(flat).all():
            raise WeightsError("the digest of the weights differs, or a weight is not finite", reason="digest")
        snapshot = PolicySnapshot(_integer(document["generation"]), _integer(document["version"]), found, flat, others)
        return StoredPolicy(spec, snapshot, _origin(document["origin"]))
    except (ConfigError, ProtocolError, WeightsError, library.SafetensorError, KeyError, TypeError, ValueError) as exc:
        problem = f"the field {exc} is missing" if isinstance(exc, KeyError) else str(exc)
        raise PolicyFolderError(path, f"its files do not describe one policy: {problem}; export the policy again") from exc


def write_policy(folder: Path, files: Mapping[str, bytes], *, force: bool = False) -> None:
    """Write a policy folder, which appears as a whole, by a rename. Return when the folder is safely on the disk.

    The folder has mode 0700 and its files 0600.

    Args:
        folder: The folder to create.
        files: The contents by file name: the result of `encode_policy`, and possibly ``policy.onnx``.
        force: True to replace an existing policy folder.

    Raises:
        PolicyFolderError: If the folder exists without `force`, contains other files than a policy, or cannot be written.
    """
    import shutil  # not needed by most actors, and slow to import

    folder = folder.absolute()
    new = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    try:
        _check_target(folder, force)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(new, ignore_errors=True)  # from a process that was killed and had the same id
        write_folder(new, files)
        if folder.exists():
            exchange_paths(new, folder)
        else:
            os.rename(new, folder)
        sync_folder(folder.parent)
    except OSError as exc:
        raise PolicyFolderError(exc.filename or folder, f"{exc.strerror or exc}; choose another folder") from exc
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _check_target(folder: Path, force: bool) -> None:
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise PolicyFolderError(folder, "it exists and is not a folder; choose another one")
    strange = sorted(set(os.listdir(folder)) - set(POLICY_FILES))
    if strange:
        raise PolicyFolderError(folder, f"it contains {strange[0]!r}, which is not a file of a policy; choose another folder")
    if not force and os.listdir(folder):
        raise PolicyFolderError(folder, "it exists already; choose another folder, or replace this one with --force")


def _read_spec(folder: Path) -> dict[str, Any]:
    """Return the JSON of ``spec.json``, after checks of its checksum (the first key) and its format."""
    file = folder / SPEC
    if not folder.is_dir():
        raise PolicyFolderError(folder, "there is no such folder; give the folder that `rl4sys-learner export` has written")
    data = read_file(file, MAX_SPEC_BYTES)
    if not seal_holds(data):
        raise PolicyFolderError(file, "its contents have changed since it was written (seal); export the policy again")
    try:
        document = json.loads(data)
        written, library = document["format"], document.get("library", "unknown")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise PolicyFolderError(file, f"it is not the description of a policy: {exc!r}") from exc
    if written != FORMAT:
        raise PolicyFolderError(
            file, f"version {library} of this library wrote it in format {written}; this version reads format {FORMAT}"
        )
    return dict(document)


def _read_listed(file: Path, listed: Mapping[str, Any], limit: int) -> bytes:
    """Return the contents of a file, after checks of the size and the checksum that ``spec.json`` lists for the file."""
    size = _integer(listed["bytes"])
    if size > limit:
        raise PolicyFolderError(file, f"it should have {size} bytes; the policy in {SPEC} has at most {limit}")
    data = read_file(file, size)
    if len(data) != size or xxhash.xxh3_128_hexdigest(data) != listed["xxh3_128"]:
        raise PolicyFolderError(file, f"it has {len(data)} bytes, and differs from the {size} bytes that were written")
    return data


def read_file(file: Path, limit: int) -> bytes:
    """Return the contents of a regular file of at most `limit` bytes.

    Raises:
        PolicyFolderError: If the file is missing, larger or not a regular file.
    """
    try:
        # A FIFO must not block the reader.
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise PolicyFolderError(file, "it is not a regular file")
            if status.st_size > limit:
                raise PolicyFolderError(file, f"it has {status.st_size} bytes; expected at most {limit}")
            return opened.read(limit)
    except OSError as exc:
        raise PolicyFolderError(file, f"{exc.strerror or exc}; a policy folder has the files {SPEC} and {WEIGHTS}") from exc


def _origin(form: Mapping[str, Any]) -> PolicyOrigin:
    for field in fields(PolicyOrigin):
        if type(form[field.name]) not in _ORIGIN_TYPES[str(field.type)]:
            raise TypeError(f"origin.{field.name} is {form[field.name]!r:.60}")
    return PolicyOrigin(**{field.name: form[field.name] for field in fields(PolicyOrigin)})


def _integer(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.60} is not an integer")
    return value


def safetensors_library() -> Any:
    """Import the package ``safetensors`` with its functions for NumPy, and return it.

    Raises:
        ConfigError: If it is not installed.
    """
    try:
        import safetensors.numpy
    except ModuleNotFoundError as exc:
        raise ConfigError(f"policy folders need safetensors ({exc}): pip install 'rl4sys-zmq[deploy]'") from exc
    return safetensors
