"""Delivery as a protocol, without I/O: what is promised, kept and counted, whatever carries the bytes.

- `ActorSession`: the actor's side: handshake, window, resends, credit.
- `Stream`: the learner's side of one actor's stream: marks, duplicates, verdicts. `StreamTable`: those of one client.
- `take_submit`: what of a message is new, in order and well formed; `replay_entry`: the same after going back to a checkpoint.
- `CreditPool`: a learner thread's demand shared between streams. `Transit`: what it was given and has not taken.
- `StallWatch`: whether a client stands still although it could go on.
- `Journal`: what is accepted and still needed: `MemoryJournal`, and on disk `DiskJournal`, the only thread in this room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import load_late

if TYPE_CHECKING:
    from rl4sys_zmq.delivery.credit import CreditPool
    from rl4sys_zmq.delivery.intake import Intake, Replay, replay_entry, take_submit
    from rl4sys_zmq.delivery.journal import (
        ClientRow,
        Journal,
        JournalEntry,
        JournalPage,
        JournalState,
        MemoryJournal,
        Restored,
        StreamRow,
    )
    from rl4sys_zmq.delivery.session import (
        RATE,
        Action,
        ActorSession,
        IncarnationRaised,
        Joined,
        Reconnect,
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
    "JournalEntry",
    "Intake",
    "Joined",
    "Key",
    "Journal",
    "JournalState",
    "Load",
    "MemoryJournal",
    "Opened",
    "JournalPage",
    "IncarnationRaised",
    "Reconnect",
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
        "journal": (
            "ClientRow",
            "JournalEntry",
            "Journal",
            "JournalState",
            "MemoryJournal",
            "JournalPage",
            "Restored",
            "StreamRow",
        ),
        "session": (
            "RATE",
            "Action",
            "ActorSession",
            "Joined",
            "IncarnationRaised",
            "Reconnect",
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
