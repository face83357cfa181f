"""ZeroMQ sockets that carry messages over tcp, ipc or inproc. The scheme of an address (``tcp://``) selects the transport.

- `Address`: A parsed and checked address.
- `Socket`: A ZeroMQ socket with all options, for one thread. `Socket.router`, `dealer`, `xpub`, `sub`, `push` and `pull` create
  it. `send` and `recv` never block. `send` returns `SendResult.OK`, `FULL` or `GONE`; `recv` returns a list of frames, or None.
- `Socket.user`: The user that sent the last message, on a socket that authenticates its peers (see the package `security`).
- `Socket.events`, `explain`: The events of connections, and their meaning in one sentence.
- `Poller`: Waits until sockets or file descriptors are ready. `Wakeup`: Ends this wait from another thread. `CallQueue`: Lets
  the thread that waits call functions of other threads.
- `make_socket_folder`: Creates a folder for ipc sockets.
- `context`, `open_sockets`: The ZeroMQ context of the process, and the number of open sockets. `raise_descriptor_limit`: Permits
  more of them. `ConnectionLimitThread`: Closes silent connections, so that descriptors are left for files.

Use tcp or ipc if a socket must reconnect to a restarted peer. An inproc socket does not reconnect when the name is bound again.
"""

from __future__ import annotations

from rl4sys_zmq.transports.address import Address, make_socket_folder
from rl4sys_zmq.transports.call_queue import CallQueue
from rl4sys_zmq.transports.context import context, open_sockets, raise_descriptor_limit
from rl4sys_zmq.transports.descriptors import RESERVE, ConnectionLimitThread
from rl4sys_zmq.transports.frames import (
    LARGE_FRAME_BYTES,
    MAX_FRAMES,
    Frame,
    Frames,
    SendResult,
    TooManyFrames,
)
from rl4sys_zmq.transports.monitor import MAX_EVENTS, MonitorEvent, explain
from rl4sys_zmq.transports.options import MAX_FRAME_BYTES, ROUTER_MAX_FRAME_BYTES, Secure
from rl4sys_zmq.transports.peers import MAX_UNGRANTED
from rl4sys_zmq.transports.poller import HasFileno, Poller, Source
from rl4sys_zmq.transports.sockets import Socket
from rl4sys_zmq.transports.subscriptions import read_subscription, subscribed_topics
from rl4sys_zmq.transports.wakeup import Wakeup

__all__ = [
    "Address",
    "ConnectionLimitThread",
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
    "RESERVE",
    "ROUTER_MAX_FRAME_BYTES",
    "Secure",
    "SendResult",
    "Socket",
    "Source",
    "TooManyFrames",
    "CallQueue",
    "Wakeup",
    "context",
    "explain",
    "make_socket_folder",
    "open_sockets",
    "raise_descriptor_limit",
    "read_subscription",
    "subscribed_topics",
]
