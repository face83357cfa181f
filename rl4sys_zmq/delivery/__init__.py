"""The delivery protocol: sequence numbers, acknowledgements, credit, and the journal.

- `ActorSession`: the actor's side: handshake, window, resends, credit.
- `SegmentStream`: the learner's record of one stream. `StreamTable`: the streams of one client.
- `take_submit` separates the new, duplicate and malformed segments of a message. `replay_entry` prepares entries of the
  journal for training after a rollback.
- `CreditAllocator`: divides the steps that a learner thread can use among its actors.
- `weight_history.WeightHistory`: the recent versions of a policy's weights.
- `Journal`: the seam of the record of accepted segments. `DiskJournal` writes a file, in a thread of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import lazy_getattr
from rl4sys_zmq.interfaces import Journal

if TYPE_CHECKING:
    from rl4sys_zmq.delivery.credit import STALL_S, CreditAllocator, DataAmount, LearnerThreadBacklog, StallTimer, stall_reason
    from rl4sys_zmq.delivery.intake import SubmitResult, replay_entry, take_submit
    from rl4sys_zmq.delivery.journal import (
        ClientRow,
        JournalContent,
        JournalEntry,
        JournalHealth,
        JournalPage,
        MemoryJournal,
        StreamRow,
    )
    from rl4sys_zmq.delivery.session import (
        FIELD_RATE,
        Action,
        ActorSession,
        Reconnect,
        ReplaceSockets,
        SendMessage,
        SessionJoined,
        SessionRefused,
        SessionState,
        SessionTemporarilyRefused,
        StreamRestarted,
    )
    from rl4sys_zmq.delivery.stream import Key, SegmentStream
    from rl4sys_zmq.delivery.table import StreamTable

__all__ = [
    "FIELD_RATE",
    "STALL_S",
    "Action",
    "ActorSession",
    "ClientRow",
    "CreditAllocator",
    "JournalEntry",
    "SubmitResult",
    "SessionJoined",
    "Key",
    "Journal",
    "JournalHealth",
    "DataAmount",
    "MemoryJournal",
    "JournalPage",
    "ReplaceSockets",
    "Reconnect",
    "SessionRefused",
    "StreamRestarted",
    "JournalContent",
    "SendMessage",
    "SessionState",
    "StallTimer",
    "SegmentStream",
    "StreamRow",
    "StreamTable",
    "LearnerThreadBacklog",
    "SessionTemporarilyRefused",
    "replay_entry",
    "stall_reason",
    "take_submit",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "credit": ("STALL_S", "CreditAllocator", "DataAmount", "LearnerThreadBacklog", "StallTimer", "stall_reason"),
        "intake": (
            "SubmitResult",
            "replay_entry",
            "take_submit",
        ),
        "journal": (
            "ClientRow",
            "JournalEntry",
            "JournalHealth",
            "MemoryJournal",
            "JournalPage",
            "JournalContent",
            "StreamRow",
        ),
        "session": (
            "FIELD_RATE",
            "Action",
            "ActorSession",
            "SessionJoined",
            "ReplaceSockets",
            "Reconnect",
            "SessionRefused",
            "StreamRestarted",
            "SendMessage",
            "SessionState",
            "SessionTemporarilyRefused",
        ),
        "stream": (
            "Key",
            "SegmentStream",
        ),
        "table": ("StreamTable",),
    },
)
