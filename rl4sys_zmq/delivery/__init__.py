"""Delivery as a protocol, without I/O: what is promised, kept and counted, whatever carries the bytes.

- `ActorSession`: the actor's side: handshake, window, resends, credit.
- `Stream`: the learner's side of one actor's stream: marks, duplicates, verdicts. `StreamTable`: those of one client.
- `take_submit`: what of a message is new, in order and well formed.
- `CreditPool`: a learner thread's demand shared between streams.
- `Ledger`, `MemoryLedger`, `Entry`: what is accepted and not yet disposed of.
"""

from rl4sys_zmq.delivery.credit import CreditPool
from rl4sys_zmq.delivery.intake import Intake, take_submit
from rl4sys_zmq.delivery.ledger import Entry, Ledger, MemoryLedger
from rl4sys_zmq.delivery.session import Action, ActorSession, Joined, Redial, Rejected, Send, SessionState, Waiting
from rl4sys_zmq.delivery.stream import Stream
from rl4sys_zmq.delivery.table import StreamTable

__all__ = [
    "Action",
    "ActorSession",
    "CreditPool",
    "Entry",
    "Intake",
    "Joined",
    "Ledger",
    "MemoryLedger",
    "Redial",
    "Rejected",
    "Send",
    "SessionState",
    "Stream",
    "StreamTable",
    "Waiting",
    "take_submit",
]
