"""The packets between a learner and its worker processes.

A packet is a JSON object in one message of a socketpair: its kind, and the fields of this kind.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

START: Final = "start"
"""To the process, at first: the fields of `ProcessStart`."""

END: Final = "end"
"""To the process: it is about to receive `StopThread`."""

STOP: Final = "stop"
"""To the process: end as soon as no message waits."""

REPLACE: Final = "replace"
"""To the process: end without a checkpoint."""

LOG: Final = "log"
"""From the process: a log record, with its ``name``, ``level`` and ``text``."""

TURN: Final = "turn"
"""From the process, about once a second: a sign of life, with the seconds since it last looked for messages (``busy_s``)."""

FAILED: Final = "failed"
"""From the process, at the end: the ``error`` that ended it, and its ``trace``."""

MAX_PACKET_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    """The data with which a worker process starts."""

    client_id: str
    key: str  # the first frame of each message of the process, in hexadecimal; a secret
    down: str  # the address from which the process receives messages
    up: str  # the address to which it sends messages
    plugins: list[str]  # the modules to import first
    path: list[str]  # `sys.path` of the learner
    log_level: int  # the lowest level of log records that the learner shows


def encode_packet(packet: ProcessStart | str, **fields: object) -> bytes:
    if isinstance(packet, ProcessStart):
        return encode_packet(START, **asdict(packet))
    return json.dumps({"kind": packet, **fields}).encode()


def decode_packet(data: bytes) -> tuple[str, dict[str, Any]]:
    """Return the kind and the fields of a packet."""
    fields: dict[str, Any] = json.loads(data)
    return fields.pop("kind"), fields
