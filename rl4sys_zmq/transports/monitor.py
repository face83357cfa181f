"""What happens to a socket's connections: libzmq's monitor, drained in bounded steps and put into words.

What each side sees (libzmq 4.3.5, measured over tcp with real sockets; ``..`` repeats with each redial):

=======================================  ==============================================  =========================================
what is wrong                            the learner's side (bound)                      the actor's side (dialling)
=======================================  ==============================================  =========================================
nothing                                  accepted, handshake_succeeded                   connected, handshake_succeeded
the actor has another learner's key      accepted, handshake_failed.protocol             connected, handshake_failed.no_detail
                                         0x11000001, disconnected ..                     32 (EPIPE), disconnected ..
the key is denied (ZAP 400)              handshake_failed.auth 400, disconnected         handshake_failed.auth 400, disconnected
the check raised (ZAP 500)               handshake_failed.auth 500, disconnected         handshake_failed.auth 500, disconnected
NULL actor, CURVE learner                handshake_failed.protocol 0x11000002,           the same, disconnected
                                         disconnected
CURVE actor, NULL learner                the same                                        the same, disconnected
no ZAP handler                           handshake_failed.no_detail 14 (EFAULT),          handshake_failed.no_detail 32,
                                         disconnected ..                                 disconnected ..
a check that takes more than 3 s         handshake_failed.no_detail 11 (EAGAIN),         handshake_failed.no_detail 11,
                                         disconnected ..                                 disconnected ..
=======================================  ==============================================  =========================================

After ``auth`` and after ``protocol`` 0x11000002 libzmq never redials: the dealer's `send` is FULL for ever. The owner makes a new
socket (`MonitorEvent.is_final`). inproc has no events.

The queue to the reader has no limit, since libzmq's I/O thread blocks in a full one, and every socket of the process with it
(measured: with the default limit of 1000, 3 000 unread connections stop a good client). Its bound is here: a socket that leaves
more than one call may take is not listened to for a second, and what was queued is thrown away (``lost``).
"""

from __future__ import annotations

import errno
import struct
import time
import uuid
from dataclasses import dataclass

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.context import context

__all__ = ["MAX_EVENTS", "Monitor", "MonitorEvent", "explain"]

MAX_EVENTS = 256
"""The most events that one call of `Socket.events` returns."""

PAUSE_S = 1.0
CRYPTO = 0x11000001
MECHANISM = 0x11000002

_NAMES: dict[int, str] = {
    zmq.EVENT_ACCEPTED: "accepted",
    zmq.EVENT_CONNECTED: "connected",
    zmq.EVENT_DISCONNECTED: "disconnected",
    zmq.EVENT_HANDSHAKE_SUCCEEDED: "handshake_succeeded",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "handshake_failed.protocol",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "handshake_failed.auth",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "handshake_failed.no_detail",
    zmq.EVENT_ACCEPT_FAILED: "accept_failed",
}
_MASK = sum(int(event) for event in _NAMES)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_FORMAT = struct.Struct("=HI")


@dataclass(frozen=True, slots=True)
class MonitorEvent:
    """One thing that happened to a connection.

    Attributes:
        name: ``accepted``, ``connected``, ``disconnected``, ``handshake_succeeded``, ``handshake_failed.protocol``,
            ``handshake_failed.auth``, ``handshake_failed.no_detail``, ``accept_failed``, or ``lost`` (more happened than was
            read, and is forgotten).
        detail: the protocol error's code, the ZAP status, an errno, or the descriptor; by the name.
        endpoint: the address of the socket, as libzmq writes it; not that of its peer.
    """

    name: str
    detail: int = 0
    endpoint: str = ""

    @property
    def is_failure(self) -> bool:
        """True when a peer did not get in."""
        return self.name.startswith("handshake_failed") or self.name == "accept_failed"

    @property
    def is_final(self) -> bool:
        """True when a dialling socket never redials after this: close it and make another."""
        return self.name == "handshake_failed.auth" or (self.name, self.detail) == ("handshake_failed.protocol", MECHANISM)


class Monitor(Resource):
    """The events of one socket, from before it is bound or dials. Used in the socket's thread, closed before the socket."""

    def __init__(self, raw: zmq.Socket[bytes]) -> None:
        self._raw = raw
        self._pair: zmq.Socket[bytes] | None = None
        self._resumes_s = 0.0
        self._listen()

    def events(self, limit: int = MAX_EVENTS) -> list[MonitorEvent]:
        """At most `limit` events since the last call, and perhaps a ``lost``; never blocks."""
        if self._pair is None and (time.monotonic() < self._resumes_s or not self._resumed()):
            return []
        found: list[MonitorEvent] = []
        exhausted = False
        for _ in range(limit):
            event = self._next()
            if event is None:
                return found
            if event.name == "accept_failed" and event.detail in _NO_DESCRIPTORS:
                # libzmq tries again at once, tens of thousands of times a second: one such event says it all.
                exhausted = True
                found.append(event)
                break
            found.append(event)
        if exhausted or (self._pair is not None and self._pair.poll(0)):
            self._stop()
            self._resumes_s = time.monotonic() + PAUSE_S
            found.append(MonitorEvent("lost"))
        return found

    def close(self) -> None:
        """Stops listening. The socket itself must be open still."""
        self._resumes_s = float("inf")
        self._stop()

    def _resumed(self) -> bool:
        try:
            self._listen()
        except TransportError:  # descriptors have run out, which may be why it paused
            self._resumes_s = time.monotonic() + PAUSE_S
            return False
        return True

    def _listen(self) -> None:
        address = f"inproc://rl4sys-monitor-{uuid.uuid4().hex}"
        pair = None
        try:
            pair = context().socket(zmq.PAIR)
            pair.setsockopt(zmq.LINGER, 0)
            pair.setsockopt(zmq.RCVHWM, 0)
            self._raw.monitor(address, _MASK)
            pair.connect(address)
        except zmq.ZMQError as exc:
            if pair is not None:
                self._raw.monitor(None, 0)
                pair.close(linger=0)
            raise TransportError(f"cannot watch a socket: {exc.strerror}; raise the limit of open files with ulimit -n") from exc
        self._pair = pair

    def _stop(self) -> None:
        """In this order: libzmq blocks in an event for a reader that is closed already."""
        if self._pair is None:
            return
        pair, self._pair = self._pair, None
        self._raw.monitor(None, 0)
        pair.close(linger=0)

    def _next(self) -> MonitorEvent | None:
        if self._pair is None:
            return None
        try:
            head, endpoint = self._pair.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return None
        kind, detail = _FORMAT.unpack(head)
        return MonitorEvent(_NAMES.get(kind, str(kind)), detail, endpoint.decode("utf-8", "replace"))


_ACTOR = {
    "accepted": "a peer connected",
    "connected": "the learner's port answers",
    "disconnected": "the connection ended; it is dialled again by itself, unless the handshake was refused",
    "handshake_succeeded": "connected; the keys are those that both sides expect",
    "lost": "more happened to the connection than was read",
}
_LEARNER = {
    "accepted": "somebody connected and has yet to say who",
    "connected": "the other side's port answers",
    "disconnected": "a connection ended",
    "handshake_succeeded": "a peer is in",
    "lost": "more connections came and went than were read, or descriptors ran out; somebody may be flooding the port",
}


def _without_detail(code: int, actor: bool) -> str:
    """All that libzmq says is an errno: EFAULT without a ZAP handler, EAGAIN past HANDSHAKE_IVL, EPIPE when the other hung up."""
    if code == errno.EAGAIN:
        who = "the learner" if actor else "a peer"
        return f"{who} did not finish the handshake in time; it is overloaded, or something else that does not speak our protocol"
    if actor:
        return "the learner hung up in the handshake; most likely its key is not the one we have: copy learner.public again"
    if code == errno.EFAULT:
        return "no check of keys is running here, so nobody gets in; restart the learner, and see its log"
    return "a peer went away in the handshake; a port scan looks like this too"


def explain(event: MonitorEvent, side: str) -> str:
    """What an event means and what to do about it, in one sentence.

    Args:
        event: one of `Socket.events`.
        side: ``actor`` for the socket that dials, ``learner`` for the one that is bound.
    """
    actor = side == "actor"
    detail = event.detail
    match event.name:
        case "handshake_failed.auth" if detail == 400:
            if actor:
                return "the learner does not accept our key; have it listed (or renewed) there, or use the key that is"
            return "a key was denied; list it if it is an actor's, and see the counters denied.* for the reason"
        case "handshake_failed.auth":
            return f"the learner could not check {'our' if actor else 'a'} key (ZAP status {detail}); see the learner's log"
        case "handshake_failed.protocol" if detail == MECHANISM:
            if actor:
                return "one side uses keys and the other does not; give this actor the learner's keys, or take them away"
            return "a peer without keys came to a learner with keys, or the reverse; give both sides keys, or neither"
        case "handshake_failed.protocol" if detail == CRYPTO:
            if actor:
                return "the learner's answer cannot be read with the key we have; copy learner.public again from the learner"
            return "a peer has another learner's public key; give it this learner's learner.public"
        case "handshake_failed.protocol":
            return f"what answers at this address does not speak our protocol (code {detail:#x}); check host and port"
        case "handshake_failed.no_detail":
            return _without_detail(detail, actor)
        case "accept_failed" if detail in _NO_DESCRIPTORS:
            return "no descriptor is left for another connection; raise the limit with ulimit -n"
        case "accept_failed":
            return f"a connection could not be accepted: {errno.errorcode.get(detail, detail)}"
    return (_ACTOR if actor else _LEARNER).get(event.name, event.name)
