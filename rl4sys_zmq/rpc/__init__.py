"""How one asks another: calls with deadlines, batched and at most once, and notices to whoever subscribed.

- `Caller`: `call`, `submit`, `acall`, `subscribe`. `Server`: `register`, `publish`; `Batching`: how calls are put together.
- `Refuse`: raised by a callback, to refuse rather than to fail.
- `session` and `call_queue`: the protocol of the two sides, without sockets. `security` says who may connect, and what for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import load_late

if TYPE_CHECKING:
    from rl4sys_zmq.rpc.call_queue import Refuse
    from rl4sys_zmq.rpc.caller import Caller
    from rl4sys_zmq.rpc.caller_thread import Subscription
    from rl4sys_zmq.rpc.server import Batching, Server

__all__ = ["Batching", "Caller", "Refuse", "Server", "Subscription"]

__getattr__ = load_late(
    __name__,
    {
        "caller": ("Caller",),
        "call_queue": ("Refuse",),
        "caller_thread": ("Subscription",),
        "server": ("Batching", "Server"),
    },
)
