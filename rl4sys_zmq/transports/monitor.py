"""The events of a socket's connections, from libzmq's monitor, and their meaning in one sentence.

The table lists the events of each side, with libzmq 4.3.5 over tcp. ``..`` means that the events repeat with each reconnect.

=======================================  ==============================================  =========================================
cause                                    the learner's side (bound)                      the actor's side (connecting)
=======================================  ==============================================  =========================================
no failure                               accepted, handshake_succeeded                   connected, handshake_succeeded
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

After ``handshake_failed.auth`` and after ``handshake_failed.protocol`` 0x11000002, libzmq never reconnects, and `send` of the
dealer returns FULL for ever. The actor must create a new socket (`MonitorEvent.is_final`). inproc has no events.
"""

from __future__ import annotations

import errno
import struct
import time
import uuid

import zmq

from rl4sys_zmq.errors import TransportError
from rl4sys_zmq.immutable import immutable
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports.context import context

MAX_EVENTS = 256

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


@immutable
class MonitorEvent:
    """One event of a socket's connection, such as a failed handshake.

    Attributes:
        name: A name of the table in this module, ``accept_failed``, or ``lost`` (further events were discarded).
        detail: For ``handshake_failed.protocol`` the code of the error, for ``handshake_failed.auth`` the ZAP status, for other
            failures an errno, and for all other events a file descriptor or 0.
        endpoint: The address of the monitored socket, as libzmq writes it. It is not the address of the peer.
    """

    name: str
    detail: int = 0
    endpoint: str = ""

    @property
    def is_failure(self) -> bool:
        """True if the event means that a connection could not be established."""
        return self.name.startswith("handshake_failed") or self.name == "accept_failed"

    @property
    def is_final(self) -> bool:
        """True if a connecting socket never reconnects after this event. Close the socket and create another."""
        return self.name == "handshake_failed.auth" or (self.name, self.detail) == ("handshake_failed.protocol", MECHANISM)


class ConnectionEventReader(Resource):
    """The reader of the connection events of one socket.

    Create it before the socket binds or connects, and close it before the socket is closed.
    """

    def __init__(self, raw: zmq.Socket[bytes]) -> None:
        self._raw = raw
        self._resumes_s = 0.0
        self._pair: zmq.Socket[bytes] | None = self._listen()

    def events(self, limit: int = MAX_EVENTS) -> list[MonitorEvent]:
        """Return at most `limit` events since the last call. If more were waiting, they are discarded, and a ``lost`` event
        follows.
        """
        if self._pair is None:
            if time.monotonic() < self._resumes_s:
                return []
            try:
                self._pair = self._listen()
            except TransportError:  # no descriptor is left, which can be the reason for the pause
                self._resumes_s = time.monotonic() + PAUSE_S
                return []
        events: list[MonitorEvent] = []
        while len(events) < limit:
            try:
                head, endpoint = self._pair.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return events
            kind, detail = _FORMAT.unpack(head)
            events.append(MonitorEvent(_NAMES.get(kind, str(kind)), detail, endpoint.decode("utf-8", "replace")))
            if kind == zmq.EVENT_ACCEPT_FAILED and detail in _NO_DESCRIPTORS:
                break  # libzmq retries at once, tens of thousands of times a second. One such event is enough.
        else:
            if not self._pair.poll(0):
                return events
        # The queue has no limit in libzmq (RCVHWM is 0). A full queue would block libzmq's I/O thread, and so every socket of the
        # process (measured: with the default limit of 1000, 3000 unread connections block a well-behaved peer). Instead, if too
        # many events are waiting, stop monitoring for a second and discard them.
        self._stop()
        self._resumes_s = time.monotonic() + PAUSE_S
        return [*events, MonitorEvent("lost")]

    def close(self) -> None:
        """Stop monitoring. Call this before the monitored socket is closed."""
        self._resumes_s = float("inf")
        self._stop()

    def _listen(self) -> zmq.Socket[bytes]:
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
        return pair

    def _stop(self) -> None:
        # Stop monitoring first. In the other order libzmq can block, because it sends an event to a closed socket.
        if self._pair is None:
            return
        pair, self._pair = self._pair, None
        self._raw.monitor(None, 0)
        pair.close(linger=0)


_ACTOR = {
    "accepted": "a peer connected",
    "connected": "connected to the learner's port; the handshake has begun",
    "disconnected": "the connection ended; the actor reconnects unless the handshake was refused",
    "handshake_succeeded": "connected; both sides accept the keys",
    "lost": "further events of the connection were discarded",
}
_LEARNER = {
    "accepted": "a peer connected; the handshake has begun",
    "connected": "connected to the other side's port; the handshake has begun",
    "disconnected": "a connection ended",
    "handshake_succeeded": "a peer completed the handshake",
    "lost": "too many connections were opened and closed, or no descriptor is left; a peer may be flooding the port",
}


def _without_detail(code: int, actor: bool) -> str:
    # EFAULT: no ZAP handler runs. EAGAIN: `HANDSHAKE_IVL` passed. EPIPE: the other side closed the connection.
    if code == errno.EAGAIN:
        who = "the learner" if actor else "a peer"
        return f"{who} did not finish the handshake in time; it is overloaded, or does not speak our protocol"
    if actor:
        return "the learner closed the connection, for a wrong or missing key; set keys, or copy learner.public again"
    if code == errno.EFAULT:
        return "no key check is running here, so no peer can connect; restart the learner, and see its log"
    return "a peer closed the connection in the handshake; a port scan looks the same"


def explain(event: MonitorEvent, side: str) -> str:
    """Return the meaning of an event and the remedy, in one sentence.

    `side` is ``actor`` if the socket with the event connects, ``learner`` if it is bound.
    """
    actor = side == "actor"
    detail = event.detail
    match event.name:
        case "handshake_failed.auth" if detail == 400:
            if actor:
                return "the learner does not accept our key; have it listed (or renewed) on the learner, or use a listed key"
            return "a key was denied; list it if it is an actor's, and see the counters denied.* for the reason"
        case "handshake_failed.auth":
            return f"the learner could not check {'our' if actor else 'a'} key (ZAP status {detail}); see the learner's log"
        case "handshake_failed.protocol" if detail == MECHANISM:
            if actor:
                return "one side uses keys and the other does not; give this actor keys if the learner has them, else remove them"
            return "a peer without keys connected to a learner with keys, or the reverse; give both sides keys, or neither"
        case "handshake_failed.protocol" if detail == CRYPTO:
            if actor:
                return "our copy of the learner's key does not match its reply; copy learner.public again from the learner"
            return "a peer has another learner's public key; give it this learner's learner.public"
        case "handshake_failed.protocol":
            return f"the peer at this address does not speak our protocol (code {detail:#x}); check host and port"
        case "handshake_failed.no_detail":
            return _without_detail(detail, actor)
        case "accept_failed" if detail in _NO_DESCRIPTORS:
            return "no descriptor is left for another connection; raise the limit with ulimit -n"
        case "accept_failed":
            return f"a connection could not be accepted: {errno.errorcode.get(detail, detail)}"
    return (_ACTOR if actor else _LEARNER).get(event.name, event.name)
