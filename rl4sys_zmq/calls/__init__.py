"""How one asks another: calls with deadlines, batched and at most once, and notices to whoever subscribed.

- `Client`: `call`, `submit`, `acall`, `subscribe`. `Server`: `register`, `publish`; `Batching`: how calls are put together.
- `Refuse`: raised by a callback, to refuse rather than to fail.
- `session` and `desk`: the protocol of the two sides, without sockets. `security` says who may connect, and what for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq.late import load_late

if TYPE_CHECKING:
    from rl4sys_zmq.calls.client import Client
    from rl4sys_zmq.calls.desk import Refuse
    from rl4sys_zmq.calls.pump import Subscription
    from rl4sys_zmq.calls.server import Batching, Server

__all__ = ["Batching", "Client", "Refuse", "Server", "Subscription"]

__getattr__ = load_late(
    __name__,
    {
        "client": ("Client",),
        "desk": ("Refuse",),
        "pump": ("Subscription",),
        "server": ("Batching", "Server"),
    },
)
