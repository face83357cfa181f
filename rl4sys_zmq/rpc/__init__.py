"""Remote calls, and publications to subscribers, between processes.

- `Caller`: the side that calls, with `call`, `submit`, `acall` and `subscribe`.
- `Server`: the side that runs callbacks and publishes, with `register` and `publish`.
- `BatchLimits`: the limits for combining several calls into one run of a callback.
- `CallRefusedByCallback`: the exception with which a callback refuses a call.

The modules `session` (caller) and `call_queue` (server) implement the protocol without sockets. The package `security` decides
who can connect, and which methods each user can call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import lazy_getattr

if TYPE_CHECKING:
    from rl4sys_zmq.rpc.call_queue import CallRefusedByCallback
    from rl4sys_zmq.rpc.caller import Caller
    from rl4sys_zmq.rpc.caller_thread import Subscription
    from rl4sys_zmq.rpc.server import BatchLimits, Server

__all__ = ["BatchLimits", "Caller", "CallRefusedByCallback", "Server", "Subscription"]

__getattr__ = lazy_getattr(
    __name__,
    {
        "caller": ("Caller",),
        "call_queue": ("CallRefusedByCallback",),
        "caller_thread": ("Subscription",),
        "server": ("BatchLimits", "Server"),
    },
)
