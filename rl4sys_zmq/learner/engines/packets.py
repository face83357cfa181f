"""The packets between a learner and its worker processes.

A packet is a JSON object in one message of a socketpair: its kind, and the fields of this kind. The first message to the
process is a `ProcessStart`, as JSON.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any, Final

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


def encode_packet(kind: str, **fields: object) -> bytes:
    return json.dumps({"kind": kind, **fields}).encode()


def decode_packet(data: bytes) -> tuple[str, dict[str, Any]]:
    """Return the kind and the fields of a packet."""
    fields: dict[str, Any] = json.loads(data)
    return fields.pop("kind"), fields


def read_packets(end: socket.socket) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the packets that have arrived. Raise EOFError if the other process has closed its end of the socketpair."""
    while True:
        try:
            data = end.recv(MAX_PACKET_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:  # the other process has ended with packets that it had not read
            data = b""
        if not data:
            raise EOFError
        yield decode_packet(data)
