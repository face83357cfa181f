"""The data with which a worker on another machine starts: addresses, keys and versions, as plain text and numbers.

An engine sends them to the other machine as JSON, over a channel of its own. They contain secrets.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.liveness import GATEWAY_SILENCE_S
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire.frames import MAJOR, MINOR

__all__ = ["WIRE_VERSION", "RemoteWorkerStart"]

WIRE_VERSION = f"{MAJOR}.{MINOR}"
"""The version of the wire format of this library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWorkerStart:
    """The start data of one worker on another machine.

    The client's configuration is not part of them. It is the first message that the worker receives.

    Attributes:
        engine: Name of the engine.
        generation: The generation of the client, from this worker's start on.
        key: The fencing token, in hexadecimal: the first frame of each message of the worker. It is a secret.
        down: The address from which the worker receives messages.
        up: The address to which the worker sends messages.
        public: The worker's public CURVE key, 40 characters of Z85. It is made for this worker only.
        secret: The secret key for `public`.
        gateway_public: The public CURVE key of the learner.
        plugins: The modules to import first.
        log_level: The lowest level of log records that the learner shows.
        gateway_silence_s: The worker ends after this time without a message from the learner, in seconds.
        library: The version of the learner's library.
        wire: The version of the learner's wire format.
    """

    engine: str
    client_id: str
    generation: int
    key: str = field(repr=False)
    down: str
    up: str
    public: str
    secret: str = field(repr=False)
    gateway_public: str
    plugins: tuple[str, ...]
    log_level: int
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
        """The text of an error if the library or the wire format here is another than the learner's; empty if they agree."""
        same = (self.library, self.wire) == (package_version(), WIRE_VERSION)
        return "" if same else _difference(self.library, self.wire)


def _difference(library: str, wire: str) -> str:
    return (
        f"the learner has version {library} of rl4sys_zmq with wire format {wire}; this worker has version {package_version()} "
        f"with {WIRE_VERSION}; install the learner's version on the worker's machine"
    )
