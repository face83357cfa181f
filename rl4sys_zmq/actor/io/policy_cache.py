"""The policy cache: a file with the newest verified policy, so that an actor can start and act without a learner.

The file starts with 40 bytes, described in the table. Then follow a msgpack header, the float32 weights, the bytes of the
tensors of other dtypes, and the blob of the policy spec:

======  ====  ============  =========================================================================
offset  size  field         meaning
======  ====  ============  =========================================================================
0       4     magic         ``R4PC``
4       4     format        1
8       8     header bytes  length of the msgpack header
16      8     elements      number of float32 weights
24      4     others        bytes of the tensors of other dtypes
28      4     blob          bytes of `PolicySpec.blob`; 0 for most policies
32      8     checksum      xxh3-64 of bytes 0-31, and of everything after this field
======  ====  ============  =========================================================================

All numbers are unsigned and little-endian. The lengths must add up to the size of the file, so that a damaged length cannot
cause a huge allocation. Nothing is unpickled. An invalid file is counted and renamed. Only the last invalid file is kept.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from rl4sys_zmq.actor.io.shared_state import ActorSharedState, SessionParameters
from rl4sys_zmq.actor.io.weight_subscriber import WeightSubscriber
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ConfigError, LearnerUnavailable, ProtocolError, RL4SysError, WeightsError
from rl4sys_zmq.liveness import SILENCE_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.private import fixed_path, make_private, sync_folder
from rl4sys_zmq.values import PolicySnapshot, PolicySpec
from rl4sys_zmq.version import package_version
from rl4sys_zmq.weights import digest, verify_others
from rl4sys_zmq.wire import spec_from_document, spec_to_document
from rl4sys_zmq.wire.frames import MAX_HEADER_BYTES, pack_header, unpack_header

log = get_logger(__name__)

CLOCK_SLACK_S = 60.0
"""A cached policy that was saved at most this many seconds in the future has the age 0."""


PROBE_S = 0.2
"""Longest time for one check of the learner's address by the I/O thread. The thread does nothing else meanwhile."""


class ActorPolicyCache:
    """The policy cache of one actor, with the parameters of the last session. The I/O thread uses it."""

    def __init__(
        self, config: AgentConfig, path: Path, weight_subscriber: WeightSubscriber, host: ActorSharedState, counters: Counters
    ) -> None:
        self._config, self._weight_subscriber, self._host, self._counters = config, weight_subscriber, host, counters
        self._file = PolicyCacheFile(path)
        self._saved = (0, 0)
        self._report_absence_at = math.inf

    def take_up(self) -> None:
        """Start with the policy and the session parameters in the cache, if both can be used."""
        cached = self._file.load()
        if cached is None:
            return
        config = self._config
        try:
            if cached.extras["client_id"] != config.client_id:
                raise ConfigError(f"it belongs to client {cached.extras['client_id']!r}", key="policy_cache")
            session_parameters = SessionParameters(**cached.extras["session_parameters"])
            for name in ("observation_space", "action_space"):
                ours, theirs = getattr(config, name), getattr(cached.spec, name)
                if ours is not None and ours != theirs:
                    raise ConfigError(f"its space is {theirs}, this actor's is {ours}", key="policy_cache")
            self._weight_subscriber.take_up(cached.spec, cached.snapshot)
        except Exception as exc:  # noqa: BLE001 - the policy can be a plugin's, which can raise anything
            self._counters.add("policy_cache.refused")
            text = "%s: the policy in %s is not used: %s: %s"
            log.warning(text, config.client_id, config.cache_file, type(exc).__name__, exc)
            return
        age_s, now = time.time() - cached.saved_unix_s, time.monotonic()
        self._host.session_parameters = session_parameters
        self._host.current_at = now - max(0.0, age_s) if age_s > -CLOCK_SLACK_S else -math.inf
        self._report_absence_at = now + (config.connect_timeout_s or SILENCE_S)

    def report_absence(self, now: float, explain: Callable[[str, float, float], LearnerUnavailable]) -> None:
        """Log once that the learner does not answer, if the actor acts by its cached policy. `explain` gives the reason."""
        if now < self._report_absence_at:
            return
        host, timeout_s = self._host, self._config.connect_timeout_s or SILENCE_S
        starting_until = host.starting_at + max(SILENCE_S, timeout_s)
        if now < starting_until:  # the learner answers, but is not ready
            self._report_absence_at = starting_until
            return
        self._report_absence_at = math.inf
        policy = self._weight_subscriber.policy
        if host.joined or host.error is not None or policy is None:
            return
        error = explain(host.stage, timeout_s, PROBE_S)
        message = "%s: %s; the actor acts by its cached policy, version %d, and keeps asking"
        log.warning(message, self._config.client_id, error, policy.version)
        host.set_absence(error)

    def save(self, *, force: bool = False) -> None:
        """Save the current policy and the session parameters. `force` skips the limit on how often the file is written."""
        policy, spec = self._weight_subscriber.policy, self._weight_subscriber.spec
        session_parameters = self._host.session_parameters
        if policy is None or spec is None or session_parameters is None:
            return
        if force and (policy.generation, policy.version) == self._saved:
            return
        extras = {"client_id": self._config.client_id, "session_parameters": asdict(session_parameters)}
        if self._file.save(spec, policy.snapshot, extras, force=force):
            self._saved = policy.generation, policy.version


MAGIC, FORMAT = b"R4PC", 1
MAX_BYTES = 1 << 30
ABANDONED_S = 60.0
"""The age above which a temporary file is deleted. The process that wrote it must have ended by then."""
_FIELDS = struct.Struct("<4sIQQII")
_CHECKSUM = struct.Struct("<Q")
_FIXED = _FIELDS.size + _CHECKSUM.size
_KEYS = {
    "library": str,
    "saved_unix_s": float,
    "spec": dict,
    "generation": int,
    "version": int,
    "digest": int,
    "extras": dict,
}


class _InvalidCacheFile(Exception):
    """The error for a policy cache file that cannot be used. Its message is the reason."""


@dataclass(frozen=True, slots=True)
class CachedPolicy:
    """The contents of a policy cache."""

    spec: PolicySpec
    snapshot: PolicySnapshot  # weights, verified by their digest
    extras: dict[str, Any]  # further values that the caller gave to `PolicyCacheFile.save`
    saved_unix_s: float


class PolicyCacheFile:
    """A file with one policy and further values. Several processes can use the file: a reader always gets one whole version."""

    def __init__(
        self,
        path: Path,
        *,
        min_interval_s: float = 5.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters = Counters()  # `policy_cache.saves`, `.save_errors`, `.loads` and `.refused` (unusable files)
        self._path = fixed_path(path)
        self._min_interval_s = min_interval_s
        self._clock, self._monotonic = clock, monotonic
        self._next_save = float("-inf")
        self._warned = False

    def save(self, spec: PolicySpec, snapshot: PolicySnapshot, extras: dict[str, Any], *, force: bool = False) -> bool:
        """Replace the file's contents. Return False after an error, which is counted, or if the last attempt was too recent."""
        now = self._monotonic()
        if now < self._next_save and not force:
            return False
        self._next_save = now + self._min_interval_s
        try:
            spec.views(snapshot.flat, snapshot.others)
            self._replace(self._encode(spec, snapshot, extras))
        except (RL4SysError, OSError, TypeError, ValueError) as exc:  # the host continues, and the last file is still there
            self.counters.add("policy_cache.save_errors")
            if not self._warned:
                log.warning("the policy can't be saved in %s: %s", self._path, exc)
            self._warned = True
            return False
        self._warned = False
        self.counters.add("policy_cache.saves")
        return True

    def load(self) -> CachedPolicy | None:
        """Return the saved policy; None if there is no usable file. An invalid file is renamed to ``*.refused``."""
        try:
            cached = self._read()
        except _InvalidCacheFile as exc:
            self._refuse(str(exc), aside=True)
            return None
        except OSError as exc:
            self._refuse(str(exc), aside=False)
            return None
        if cached is not None:
            self.counters.add("policy_cache.loads")
        return cached

    def _read(self) -> CachedPolicy | None:
        try:
            file = open(self._path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK))  # noqa: SIM115
        except FileNotFoundError:
            return None
        with file:
            size = os.fstat(file.fileno()).st_size
            if not _FIXED <= size <= MAX_BYTES:
                raise _InvalidCacheFile(f"its size is {size} bytes, out of range")
            fixed = file.read(_FIXED)
            return _decode(fixed, [file.read(length) for length in _lengths(fixed, size)])

    def _encode(self, spec: PolicySpec, snapshot: PolicySnapshot, extras: dict[str, Any]) -> list[bytes | memoryview]:
        header = pack_header(
            {
                "library": package_version(),
                "saved_unix_s": float(self._clock()),
                "spec": spec_to_document(spec),
                "generation": snapshot.generation,
                "version": snapshot.version,
                "digest": snapshot.digest,
                "extras": extras,
            }
        )
        weights = np.ascontiguousarray(snapshot.flat, dtype="<f4").view(np.uint8).data
        parts: list[bytes | memoryview] = [header, weights, snapshot.others, spec.blob]
        size = _FIXED + sum(map(len, parts))
        if size > MAX_BYTES:
            raise ValueError(f"the file would have {size} bytes; the limit is {MAX_BYTES}")
        fields = _FIELDS.pack(MAGIC, FORMAT, len(header), spec.size, len(snapshot.others), len(spec.blob))
        return [fields, _CHECKSUM.pack(_checksum(fields, *parts)), *parts]

    def _replace(self, parts: list[bytes | memoryview]) -> None:
        make_private(self._path.parent)
        temporary = self._path.with_name(self._path.name + ".tmp")
        with contextlib.suppress(FileNotFoundError):
            if abs(time.time() - temporary.lstat().st_mtime) > ABANDONED_S:
                temporary.unlink()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(descriptor)
            temporary.rename(self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(self._path.parent)

    def _refuse(self, why: str, *, aside: bool) -> None:
        self.counters.add("policy_cache.refused")
        log.warning("the cached policy in %s can't be used: %s", self._path, why)
        if aside:
            with contextlib.suppress(OSError):
                self._path.rename(self._path.with_name(self._path.name + ".refused"))


def _checksum(*parts: bytes | memoryview) -> int:
    hasher = xxhash.xxh3_64()
    for part in parts:
        hasher.update(part)
    return hasher.intdigest()


def _lengths(fixed: bytes, size: int) -> tuple[int, int, int, int]:
    """Return the sizes in bytes of the parts of a file: header, weights, tensors that are not float32, and blob of the spec."""
    if len(fixed) != _FIXED:
        raise _InvalidCacheFile("it is cut off in its fixed fields")
    magic, form, header, elements, others, blob = _FIELDS.unpack_from(fixed)
    if magic != MAGIC:
        raise _InvalidCacheFile("it is not a policy file of this library")
    if form != FORMAT:
        raise _InvalidCacheFile(f"it has format {form}; this library reads {FORMAT}")
    if header > MAX_HEADER_BYTES or _FIXED + header + 4 * elements + others + blob != size:
        raise _InvalidCacheFile("the lengths in it do not match the size of the file")
    return header, 4 * elements, others, blob


def _decode(fixed: bytes, parts: Sequence[bytes]) -> CachedPolicy:
    header, weights, others, blob = parts
    if _CHECKSUM.unpack_from(fixed, _FIELDS.size)[0] != _checksum(fixed[: _FIELDS.size], *parts):
        raise _InvalidCacheFile("its checksum does not match")
    try:
        form = unpack_header(header)
        if type(form) is not dict or set(form) != set(_KEYS) or any(type(form[k]) is not kind for k, kind in _KEYS.items()):
            raise _InvalidCacheFile("its header has unexpected keys or types")
        if form["library"].partition(".")[0] != package_version().partition(".")[0]:
            raise _InvalidCacheFile(f"version {form['library']} of the library wrote it")
        spec = spec_from_document(form["spec"], [blob] if blob else [])
        verify_others(spec.others, others)
    except (ProtocolError, WeightsError) as exc:
        raise _InvalidCacheFile(str(exc)) from exc
    flat = np.frombuffer(weights, dtype="<f4").astype(np.float32)
    if spec.size != flat.size or digest(flat, others) != form["digest"] or not np.isfinite(flat).all():
        raise _InvalidCacheFile("its weights do not match its policy")
    snapshot = PolicySnapshot(form["generation"], form["version"], form["digest"], flat, others)
    return CachedPolicy(spec, snapshot, form["extras"], form["saved_unix_s"])
