"""How it travels: frames over tcp, ipc or inproc. The URI scheme chooses the backend, everything else is equal.

- `Address`: where, as a value, parsed and checked once.
- `Socket`: made by role (`Socket.router`, `dealer`; `xpub`, `sub`; `push`, `pull`) with every option set before it binds or
  dials. `send` (`Sent.OK`, `FULL` or `GONE`) and `recv` (a list of frames or None) never block; it knows its thread, and
  never looks inside a frame.
- `KeyPair`, `ServerKeys`, `ClientKeys` and their files: who is who. `curve_server`, `curve_client`: a socket that speaks CURVE.
- `register_domain`: who may connect, asked of a check for every peer; `Socket.user` then says who sent a message.
- `Socket.events`, `explain`: what happened to connections, in words.
- `Poller`: waits on sockets and descriptors; `Wakeup`: how another thread ends that wait.
- `context`, `open_sockets`: the one ZeroMQ context of the process, and how many sockets are open in it.

A socket that must survive its peer's restart belongs on tcp or ipc: a dialling inproc socket never finds a name that was
bound again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq.late import load_late
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.context import context, open_sockets
from rl4sys_zmq.transports.frames import LARGE_FRAME_BYTES, MAX_FRAMES, Frame, Frames, Sent, TooManyFrames, read_subscription
from rl4sys_zmq.transports.monitor import MAX_EVENTS, MonitorEvent, explain
from rl4sys_zmq.transports.options import MAX_FRAME_BYTES, ROUTER_MAX_FRAME_BYTES, Secure
from rl4sys_zmq.transports.poller import HasFileno, Poller, Source
from rl4sys_zmq.transports.rights import MAX_UNGRANTED
from rl4sys_zmq.transports.sockets import Socket
from rl4sys_zmq.transports.wakeup import Wakeup

if TYPE_CHECKING:
    from rl4sys_zmq.transports.keys import (
        ClientKeys,
        KeyPair,
        ServerKeys,
        curve_client,
        curve_server,
        new_key_pair,
        read_client_keys,
        read_learner_public,
        read_server_keys,
        write_client_keys,
        write_learner_public,
        write_secret_file,
        write_server_keys,
    )
    from rl4sys_zmq.transports.zap import Check, Credentials, Denied, ZapDomain, register_domain

__all__ = [
    "Address",
    "Check",
    "ClientKeys",
    "Credentials",
    "Denied",
    "Frame",
    "Frames",
    "HasFileno",
    "KeyPair",
    "LARGE_FRAME_BYTES",
    "MAX_EVENTS",
    "MAX_FRAMES",
    "MAX_FRAME_BYTES",
    "MAX_UNGRANTED",
    "MonitorEvent",
    "Poller",
    "ROUTER_MAX_FRAME_BYTES",
    "Secure",
    "Sent",
    "ServerKeys",
    "Socket",
    "Source",
    "TooManyFrames",
    "Wakeup",
    "ZapDomain",
    "context",
    "curve_client",
    "curve_server",
    "explain",
    "new_key_pair",
    "open_sockets",
    "read_client_keys",
    "read_learner_public",
    "read_server_keys",
    "read_subscription",
    "register_domain",
    "write_client_keys",
    "write_learner_public",
    "write_secret_file",
    "write_server_keys",
]

__getattr__ = load_late(
    __name__,
    {
        "keys": (
            "ClientKeys",
            "KeyPair",
            "ServerKeys",
            "curve_client",
            "curve_server",
            "new_key_pair",
            "read_client_keys",
            "read_learner_public",
            "read_server_keys",
            "write_client_keys",
            "write_learner_public",
            "write_secret_file",
            "write_server_keys",
        ),
        "zap": (
            "Check",
            "Credentials",
            "Denied",
            "ZapDomain",
            "register_domain",
        ),
    },
)
