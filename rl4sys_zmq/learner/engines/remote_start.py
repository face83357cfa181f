"""The data with which a worker outside the learner's process starts: addresses, keys and versions, as plain text and numbers.

An engine sends them as JSON, over a channel of its own. They contain secrets.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.liveness import GATEWAY_SILENCE_S
from rl4sys_zmq.plugins import imported_plugins
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire.frames import MAJOR, MINOR

if TYPE_CHECKING:
    from rl4sys_zmq.learner.engines.base import WorkerAssignment

__all__ = ["WIRE_VERSION", "RemoteWorkerStart"]

WIRE_VERSION = f"{MAJOR}.{MINOR}"
"""The version of the wire format of this library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """The start data that every worker outside the learner's process needs.

    Attributes:
        key: The fencing token, in hexadecimal: the first frame of each message of the worker. It is a secret.
        down: The address from which the worker receives messages.
        up: The address to which the worker sends messages.
        plugins: The modules to import first.
        log_level: The lowest level of log records that the learner shows.
    """

    client_id: str
    key: str = field(repr=False)
    down: str
    up: str
    plugins: tuple[str, ...]
    log_level: int

    @classmethod
    def of(cls, assignment: WorkerAssignment, **others: Any) -> Self:
        """Return the start data of a new worker. `others` are the values of `down`, `up` and the fields of the subclass."""
        level, plugins = logging.getLogger("rl4sys_zmq").getEffectiveLevel(), tuple(imported_plugins())
        return cls(client_id=assignment.client_id, key=assignment.key.hex(), plugins=plugins, log_level=level, **others)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart(WorkerStart):
    """The start data of a worker process on the learner's machine. `path` is the learner's `sys.path`."""

    path: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorkerStart(WorkerStart):
    """The start data of one worker on another machine.

    The client's configuration is no part of these data: it arrives as the worker's first message.

    Attributes:
        engine: Name of the engine.
        generation: The generation of the client, from this worker's start on.
        public: The worker's public CURVE key, 40 characters of Z85. It is made for this worker only.
        secret: The secret key for `public`.
        gateway_public: The public CURVE key of the learner.
        gateway_silence_s: The worker ends after this time without a message from the learner, in seconds.
        library: The version of the learner's library.
        wire: The version of the learner's wire format.
    """

    engine: str
    generation: int
    public: str
    secret: str = field(repr=False)
    gateway_public: str
    gateway_silence_s: float = GATEWAY_SILENCE_S
    library: str = field(default_factory=package_version)
    wire: str = WIRE_VERSION

    def to_json(self) -> str:
        """Return the data as JSON, for `from_json`. The text contains the secrets."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the data from the result of `to_json`.

        Unknown fields, of a learner with another version, are left out, so that the worker can report `version_error`.

        Raises:
            ConfigError: If the text is invalid, or lacks a field. The error names both versions.
        """
        try:
            document: Any = json.loads(text)
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"the start data of a worker are not JSON: {exc}; pass the result of to_json unchanged") from exc
        if not isinstance(document, dict):
            raise ConfigError(f"the start data of a worker are a {type(document).__name__}; expected the result of to_json")
        try:
            known = {one.name: document[one.name] for one in fields(cls) if one.name in document}
            return cls(**{**known, "plugins": tuple(document["plugins"])})
        except (TypeError, KeyError) as exc:
            versions = _difference(str(document.get("library")), str(document.get("wire")))
            raise ConfigError(f"the start data of a worker lack a field ({exc}); {versions}", key="engine") from exc

    @property
    def version_error(self) -> str:
        """An error message if this machine's version of the library or the wire format differs; empty if both agree."""
        same = (self.library, self.wire) == (package_version(), WIRE_VERSION)
        return "" if same else _difference(self.library, self.wire)


def _difference(library: str, wire: str) -> str:
    return (
        f"the learner has version {library} of rl4sys_zmq with wire format {wire}; this worker has version {package_version()} "
        f"with {WIRE_VERSION}; install the learner's version on the worker's machine"
    )
