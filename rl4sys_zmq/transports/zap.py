"""Who may connect: our own ZAP 1.0 handler (ZeroMQ RFC 27), in a thread of its own.

libzmq asks ``inproc://zeromq.zap.01`` about every peer of a socket that has a ZAP domain. There is one such name per
context, so there is one handler per process; it starts with the first domain and ends with the last.

It fails closed. With ZAP_ENFORCE_DOMAIN and a named domain (`curve_server` sets both) nobody gets in while no handler answers,
and a domain that is not registered, or no longer, is answered with a denial. Register a domain before its sockets bind.

pyzmq's authenticator is not used: its thread dies of an exception in a callback.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.transports.binding import bind_socket
from rl4sys_zmq.transports.address import Address
from rl4sys_zmq.transports.context import Tracked, context, track, untrack

__all__ = ["MAX_USER_ID_BYTES", "Check", "Credentials", "Denied", "ZapDomain", "register_domain"]

log = logging.getLogger(__name__)

ZAP_ADDRESS = "inproc://zeromq.zap.01"
MAX_USER_ID_BYTES = 255

_START_WAIT_S = 5.0
_CLOSE_WAIT_S = 2.0
_MAX_FRAMES = 12
