"""The delivery protocol, without network I/O: sequence numbers, acknowledgements, credit, and the journal.

- `ActorSession`: the actor's side: handshake, sent segments that are not acknowledged, resends, credit.
- `SegmentStream`: the learner's record of the segments of one actor. `StreamTable`: the streams of one client.
- `take_submit`: separates the new, duplicate and malformed segments of a message. `replay_entry`: prepares segments of the
  journal for the learner thread after a rollback to a checkpoint.
- `CreditAllocator`: divides the steps that a learner thread can use among its actors. `LearnerThreadBacklog`: counts the data
  between the gateway and that thread.
- `StallTimer`: detects a client that makes no progress although it could.
- `weight_history.WeightHistory`: the recent versions of a policy's weights, for peers that request them.
- `Journal`: the interface of the record of accepted segments. `DiskJournal` writes a file, in a thread. `MemoryJournal` stores
  nothing and reports every segment as committed at once.

Terms:

- A *segment* is consecutive steps of one episode. Actors send segments, and the learner trains on them.
- A *client* is a policy with its learner thread.
- A *stream* is the numbered segments of one actor for one client.
- *Credit* is the number of steps that an actor may send.
- An *incarnation* is the number of one start of an actor. The *origin* of a stream is the incarnation that began its numbering.
- A *mark* is a sequence number: all segments below it are received, durable (in the journal), trained, or in a checkpoint.
- A *verdict* is the result for a segment, such as trained or refused.
- A *generation* is the number of one lifetime of a learner thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import lazy_getattr

if TYPE_CHECKING:
    from rl4sys_zmq.delivery.credit import CreditAllocator
    from rl4sys_zmq.delivery.intake import ReplayPart, SubmitResult, replay_entry, take_submit
    from rl4sys_zmq.delivery.journal import (
        ClientRow,
        Journal,
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
    from rl4sys_zmq.delivery.stall import STALL_S, StallTimer, stall_reason
    from rl4sys_zmq.delivery.stream import Key, SegmentStream
    from rl4sys_zmq.delivery.table import OpenedSession, StreamTable
    from rl4sys_zmq.delivery.transit import DataAmount, LearnerThreadBacklog

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
    "OpenedSession",
    "JournalPage",
    "ReplaceSockets",
    "Reconnect",
    "SessionRefused",
    "StreamRestarted",
    "ReplayPart",
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
        "credit": ("CreditAllocator",),
        "intake": (
            "SubmitResult",
            "ReplayPart",
            "replay_entry",
            "take_submit",
        ),
        "journal": (
            "ClientRow",
            "JournalEntry",
            "Journal",
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
        "stall": (
            "STALL_S",
            "StallTimer",
            "stall_reason",
        ),
        "stream": (
            "Key",
            "SegmentStream",
        ),
        "table": (
            "OpenedSession",
            "StreamTable",
        ),
        "transit": (
            "DataAmount",
            "LearnerThreadBacklog",
        ),
    },
)
