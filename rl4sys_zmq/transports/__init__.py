"""How it travels: frames over tcp, ipc or inproc. The URI scheme chooses the backend, everything else is equal.

- `Address`: where, as a value, parsed and checked once.
- `Socket`: made by role (`Socket.router`, `dealer`; `xpub`, `sub`; `push`, `pull`) with every option set before it binds or
  dials. `send` (`SendResult.OK`, `FULL` or `GONE`) and `recv` (a list of frames or None) never block; it knows its thread, and
  never looks inside a frame.
- `Socket.user`: the user that sent a message, on a socket that authenticates its peers; keys are in `security`.
- `Socket.events`, `explain`: what happened to connections, in words.
- `Poller`: waits on sockets and descriptors; `Wakeup`: how another thread ends that wait.
- `context`, `open_sockets`: the one ZeroMQ context of the process, and how many sockets are open in it.

A socket that must survive its peer's restart belongs on tcp or ipc: a dialling inproc socket never finds a name that was
bound again.
"""

from __future__ import annotations

from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.context import context, open_sockets
from rl4sys_zmq.transports.frames import (
    LARGE_FRAME_BYTES,
    MAX_FRAMES,
    Frame,
    Frames,
    SendResult,
    TooManyFrames,
    read_subscription,
)
from rl4sys_zmq.transports.monitor import MAX_EVENTS, MonitorEvent, explain
from rl4sys_zmq.transports.options import MAX_FRAME_BYTES, ROUTER_MAX_FRAME_BYTES, Secure
from rl4sys_zmq.transports.peers import MAX_UNGRANTED
from rl4sys_zmq.transports.poller import HasFileno, Poller, Source
from rl4sys_zmq.transports.sockets import Socket
from rl4sys_zmq.transports.wakeup import Wakeup

__all__ = [
    "Address",
    "Frame",
    "Frames",
    "HasFileno",
    "LARGE_FRAME_BYTES",
    "MAX_EVENTS",
    "MAX_FRAMES",
    "MAX_FRAME_BYTES",
    "MAX_UNGRANTED",
    "MonitorEvent",
    "Poller",
    "ROUTER_MAX_FRAME_BYTES",
    "Secure",
    "SendResult",
    "Socket",
    "Source",
    "TooManyFrames",
    "Wakeup",
    "context",
    "explain",
    "open_sockets",
    "read_subscription",
]
