"""Remote calls, and publications to subscribers, between processes.

A `Caller` calls and subscribes; a `Server` runs callbacks and publishes. `session` (caller) and `call_queue` (server) implement
the protocol, without sockets.
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
