"""Delivery as a protocol, without I/O: what is promised, kept and counted, whatever carries the bytes.

- `ActorSession`: the actor's side: handshake, window, resends, credit.
- `Stream`: the learner's side of one actor's stream: marks, duplicates, verdicts. `StreamTable`: those of one client.
- `take_submit`: what of a message is new, in order and well formed; `replay_entry`: the same after going back to a checkpoint.
- `CreditPool`: a learner thread's demand shared between streams. `Transit`: what it was given and has not taken.
- `StallWatch`: whether a client stands still although it could go on.
- `Ledger`: what is accepted and still needed: `MemoryLedger`, and on disk `Journal`, the only thread in this room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq.late import load_late

if TYPE_CHECKING:
    from rl4sys_zmq.delivery.credit import CreditPool
    from rl4sys_zmq.delivery.intake import Intake, Replay, replay_entry, take_submit
    from rl4sys_zmq.delivery.ledger import ClientRow, Entry, Ledger, LedgerState, MemoryLedger, Page, Restored, StreamRow
    from rl4sys_zmq.delivery.session import (
        RATE,
        Action,
        ActorSession,
        Joined,
        Raised,
        Redial,
        Rejected,
        Renewed,
        Send,
        SessionState,
        Waiting,
    )
    from rl4sys_zmq.delivery.stall import STALL_S, StallWatch, stall_reason
    from rl4sys_zmq.delivery.stream import Key, Stream
    from rl4sys_zmq.delivery.table import Opened, StreamTable
    from rl4sys_zmq.delivery.transit import Load, Transit

__all__ = [
    "RATE",
    "STALL_S",
    "Action",
    "ActorSession",
    "ClientRow",
    "CreditPool",
    "Entry",
    "Intake",
    "Joined",
    "Key",
    "Ledger",
    "LedgerState",
    "Load",
    "MemoryLedger",
    "Opened",
    "Page",
    "Raised",
    "Redial",
    "Rejected",
    "Renewed",
    "Replay",
    "Restored",
    "Send",
    "SessionState",
    "StallWatch",
    "Stream",
    "StreamRow",
    "StreamTable",
    "Transit",
    "Waiting",
    "replay_entry",
    "stall_reason",
    "take_submit",
]

__getattr__ = load_late(
    __name__,
    {
        "credit": ("CreditPool",),
        "intake": (
            "Intake",
            "Replay",
            "replay_entry",
            "take_submit",
        ),
        "ledger": (
            "ClientRow",
            "Entry",
            "Ledger",
            "LedgerState",
            "MemoryLedger",
            "Page",
            "Restored",
            "StreamRow",
        ),
        "session": (
            "RATE",
            "Action",
            "ActorSession",
            "Joined",
            "Raised",
            "Redial",
            "Rejected",
            "Renewed",
            "Send",
            "SessionState",
            "Waiting",
        ),
        "stall": (
            "STALL_S",
            "StallWatch",
            "stall_reason",
        ),
        "stream": (
            "Key",
            "Stream",
        ),
        "table": (
            "Opened",
            "StreamTable",
        ),
        "transit": (
            "Load",
            "Transit",
        ),
    },
)
