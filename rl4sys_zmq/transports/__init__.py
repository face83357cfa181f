"""ZeroMQ sockets that carry messages over tcp, ipc or inproc. The scheme of an `Address` (``tcp://``) selects the transport.

- `Socket`: a ZeroMQ socket with all options, for one thread. `send` and `recv` never block.
- `Poller` waits until sockets or file descriptors are ready. `Wakeup` ends this wait from another thread, and `ThreadCallQueue`
  lets the thread that waits call functions of other threads.
- `context`: the one ZeroMQ context of the process. `ConnectionLimitThread` closes silent connections when descriptors are
  scarce.

Use tcp or ipc if a socket must reconnect to a restarted peer. An inproc socket does not reconnect when the name is bound again.
"""

from __future__ import annotations

from rl4sys_zmq.transports.address import Address, make_socket_folder
from rl4sys_zmq.transports.context import context, open_sockets, raise_descriptor_limit
from rl4sys_zmq.transports.descriptors import RESERVE, ConnectionLimitThread
from rl4sys_zmq.transports.frames import (
    LARGE_FRAME_BYTES,
    MAX_FRAME_BYTES,
    MAX_FRAMES,
    Frame,
    Frames,
    SendResult,
    TooManyFrames,
)
from rl4sys_zmq.transports.monitor import MonitorEvent, explain
from rl4sys_zmq.transports.peers import read_subscription, subscribed_topics
from rl4sys_zmq.transports.poller import Poller, Source, ThreadCallQueue, Wakeup
from rl4sys_zmq.transports.sockets import Secure, Socket

__all__ = [
    "Address",
    "ConnectionLimitThread",
    "Frame",
    "Frames",
    "LARGE_FRAME_BYTES",
    "MAX_FRAMES",
    "MAX_FRAME_BYTES",
    "MonitorEvent",
    "Poller",
    "RESERVE",
    "Secure",
    "SendResult",
    "Socket",
    "Source",
    "TooManyFrames",
    "ThreadCallQueue",
    "Wakeup",
    "context",
    "explain",
    "make_socket_folder",
    "open_sockets",
    "raise_descriptor_limit",
    "read_subscription",
    "subscribed_topics",
]
