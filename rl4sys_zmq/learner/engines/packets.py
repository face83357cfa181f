"""The packets between a learner and its worker processes, each of which trains one client.

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
    """The data with which a worker process starts.

    Attributes:
        client_id: The client.
        key: The first frame of each message of the process, in hexadecimal. It is a secret.
        down: The address from which the process receives messages.
        up: The address to which the process sends messages.
        plugins: The modules to import first.
        path: The folders in which the learner finds modules (`sys.path`).
        log_level: The lowest level of log records that the learner shows.
    """

    client_id: str
    key: str
    down: str
    up: str
    plugins: list[str]
    path: list[str]
    log_level: int


def encode_packet(packet: ProcessStart | str, **fields: object) -> bytes:
    """Return the bytes of a packet."""
    if isinstance(packet, ProcessStart):
        return encode_packet(START, **asdict(packet))
    return json.dumps({"kind": packet, **fields}).encode()


def decode_packet(data: bytes) -> tuple[str, dict[str, Any]]:
    """Return the kind and the fields of a packet."""
    fields: dict[str, Any] = json.loads(data)
    return fields.pop("kind"), fields
