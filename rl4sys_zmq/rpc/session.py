"""The calls of one connection on the caller's side, without sockets, threads or clocks."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import (
    CallError,
    CallFailed,
    CallLost,
    CallRefusal,
    CallRefused,
    CallTimeout,
    PayloadError,
    ProtocolError,
    RL4SysError,
)
from rl4sys_zmq.liveness import CALL_RESEND, SILENCE_S, SLOWEST_BYTES_S, is_silent
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.rpc import ANSWERED, FAILED, Call, Reply, check_size, decode_call, encode_call
from rl4sys_zmq.wire.trees import Tree

__all__ = ["HELLO", "PendingCall", "Session"]

HELLO = "$hello"
WINDOW = 256
"""The largest number of calls that one connection sends at once. A server keeps as many replies for a session."""
FULL_S = 0.005
"""The time after which a call is resent that did not fit the connection's queue, in seconds."""

_rng = random.SystemRandom()


@dataclass(slots=True)
class PendingCall:
    """A call that is not over yet, or its result.

    Attributes:
        method: The name of the method.
        number: Its number in the session.
        once: True if it must run at most once. After a loss of the server's memory, it is not sent again.
        timeout_s: The caller's timeout, in seconds.
        deadline_s: The time at which the timeout passes.
        frames: The message.
        tell: Called with this object when the call is over, or None. See `Session.over`.
        sent: The number of times it was sent.
        due_s: The time at which to send it next.
        done: True when it is over.
        answer: The payload of the reply.
        error: The error, if it failed.
    """

    method: str
    number: int
    once: bool
    timeout_s: float
    deadline_s: float
    frames: list[Frame]
    tell: Callable[[PendingCall], None] | None = None
    sent: int = 0
    due_s: float = 0.0
    done: bool = False
    answer: Tree = None
    error: RL4SysError | None = None


@dataclass(slots=True)
class Session:
    """The caller's side of one connection to a server: the calls that run, their resends, and their results.

    It does no I/O and reads no clock: the caller passes the time in seconds, always of the same clock.

    The session sends ``$hello`` before any call, and again after the server was restarted. Calls wait until the server replies
    to it, so that no queue of calls builds up without a server. If the server does not agree with the `terms`, all calls fail.

    The server remembers the calls of a session, so that a resent call does not run twice. The reply to ``$hello`` shows if the
    server has lost this memory: it contains the number of the ``$hello`` with which the server created its side of the session.
    If that number has changed, calls are sent again, except those that must run at most once (`once`). Such a call, if it was
    sent before, fails with `CallLost`, because it is unknown whether it ran.

    Attributes:
        address: The URI of the server, for messages.
        counters: ``again`` (resent calls), ``late`` (replies to calls that are over), ``refused`` (malformed messages),
            ``redials`` (reconnects), ``full`` (calls that did not fit the connection's queue).
        terms: The settings that the server must have too, such as a version or names of keys. None: they are not compared.
        id: A random number that identifies this session at the server.
        server: The random number of the server that replied last. It differs for each start of a server. 0 before a reply.
        welcome: The payload of the reply to ``$hello``. None before it, and while a new ``$hello`` is needed.
        under_way: The calls that are not over, by number.
        over: Calls that are over and whose `tell` is still to be called. Call `tell` without a lock, because it is user code.
    """

    address: str
    counters: Counters
    terms: Mapping[str, Tree] | None = None
    id: int = field(default_factory=lambda: _rng.getrandbits(63))
    server: int = 0
    welcome: Tree = None
    under_way: dict[int, PendingCall] = field(default_factory=dict)
    over: deque[PendingCall] = field(default_factory=deque)
    _received_s: float = 0.0
    _expiry_s: float = math.inf
    """No timeout passes before this time."""
    _next: int = 0
    _hello: PendingCall | None = None
    _known: tuple[int, int] | None = None
    """The number of the server, and that of the ``$hello`` with which it created this session."""

    def begin(
        self,
        method: str,
        payload: Tree,
        now: float,
        timeout_s: float,
        *,
        once: bool = False,
        tell: Callable[[PendingCall], None] | None = None,
    ) -> PendingCall:
        """Start a call. `due` returns it when it is to be sent.

        A call that is larger than the server accepts fails at once (``too_large``).

        Raises:
            PayloadError: If the payload cannot be encoded.
        """
        if not self.under_way:
            self._received_s = now
        pending = self._make(method, payload, now, timeout_s, once, tell)
        self.under_way[pending.number] = pending
        self._expiry_s = min(self._expiry_s, pending.deadline_s)
        if self.welcome is not None:
            self._check_size(pending)
        return pending

    def due(self, now: float) -> list[PendingCall]:
        """Return the calls to send now. Each of them is due again later until it is over."""
        if not self.under_way:
            return []
        if self.welcome is None and self._hello is None:
            terms = None if self.terms is None else dict(self.terms)
            self._hello = self._make(HELLO, {"terms": terms}, now, 86_400.0, False, None)
        out = []
        for pending in self._sendable():
            if pending.due_s <= now:
                if pending.sent:
                    self.counters.add("again")
                pending.due_s = now + CALL_RESEND.pause_s(pending.sent)
                pending.sent += 1
                out.append(pending)
        return out

    def not_sent(self, pending: PendingCall, now: float) -> None:
        """Report that the connection's queue had no room for a call from `due`. The call is due again after `FULL_S`."""
        self.counters.add("full")
        pending.sent -= 1
        pending.due_s = now + FULL_S

    def should_reconnect(self, now: float) -> bool:
        """Return True if the caller should reconnect before it sends.

        That is so if a call is to be resent and nothing was received for too long. A connection can be dead without either side
        noticing, and TCP takes many minutes to detect that. The calls keep their numbers: a call that runs goes on, and its reply
        takes the new connection after the next resend.
        """
        if not is_silent(now, self._received_s, SILENCE_S) or not any(p.sent > 1 and p.due_s <= now for p in self._sendable()):
            return False
        size = sum([_size(frame) for p in self._sendable() for frame in p.frames])
        if not is_silent(now, self._received_s, SILENCE_S + size / SLOWEST_BYTES_S):
            return False
        self._received_s = now
        self.counters.add("redials")
        return True

    def on_reconnected(self, now: float) -> None:
        """Report that the connection was replaced. All calls are due again at once, since the old queue is lost."""
        for pending in self._sendable():
            pending.due_s = now

    def take(self, frames: list[Frame], now: float) -> None:
        """Process a received message."""
        self._received_s = now
        try:
            reply = decode_call(frames)
        except ProtocolError:
            self.counters.add("refused")
            return
        if not isinstance(reply, Reply) or reply.session != self.id:
            self.counters.add("refused")
            return
        if self._hello is not None and reply.number == self._hello.number:
            self._on_hello_reply(self._hello, reply)
            return
        if reply.server != self.server:
            self.require_hello()  # the server was restarted
        pending = self.under_way.get(reply.number)
        if pending is None:
            self.counters.add("late")
        elif reply.code == CallRefusal.NO_SESSION and pending.once and pending.sent == 1:
            pending.sent, pending.due_s = 0, now  # it has not run: it was sent once, and refused
            self.require_hello()
        else:
            self._end(pending, reply.payload, _error(pending, self.address, reply))

    def require_hello(self) -> None:
        """Send ``$hello`` again before any other call."""
        self.welcome = None

    def expire(self, now: float) -> bool:
        """End the calls whose timeout has passed. Return True if there were any."""
        if now < self._expiry_s:
            return False
        over = [p for p in self.under_way.values() if p.deadline_s <= now]
        for pending in over:
            stage = "the answer" if self.server else "a server: none has answered yet"
            self._end(pending, None, CallTimeout(pending.method, self.address, stage, pending.timeout_s))
        self._expiry_s = min([p.deadline_s for p in self.under_way.values()], default=math.inf)
        return bool(over)

    def wait_s(self, now: float) -> float:
        """Return the time until something is due if no message arrives, in seconds. A day if no call is under way."""
        if not self.under_way:
            return 86_400.0
        if self.welcome is None and self._hello is None:
            return 0.0
        return max(0.0, min([self._expiry_s, *(p.due_s for p in self._sendable())]) - now)

    def end(self, pending: PendingCall, error: RL4SysError) -> None:
        """End a call with an error."""
        self._end(pending, None, error)

    def _make(
        self, method: str, payload: Tree, now: float, timeout_s: float, once: bool, tell: Callable[[PendingCall], None] | None
    ) -> PendingCall:
        number = self._next
        acked = next(iter(self.under_way)) if self.under_way else number
        frames = encode_call(Call(number, self.id, acked, round(timeout_s * 1000), once, method, payload))
        self._next += 1
        return PendingCall(method, number, once, timeout_s, now + timeout_s, frames, tell, due_s=now)

    def _sendable(self) -> Iterable[PendingCall]:
        """Return the calls to send and resend in the present state: the ``$hello`` alone, or the oldest calls."""
        if self._hello is not None:
            return (self._hello,)
        if self.welcome is None:
            return ()
        return self.under_way.values() if len(self.under_way) <= WINDOW else list(islice(self.under_way.values(), WINDOW))

    def _on_hello_reply(self, hello: PendingCall, reply: Reply) -> None:
        error = _error(hello, self.address, reply)
        if error is None and not _is_welcome(reply.payload):
            self.counters.add("refused")
            return
        self._hello, self.server = None, reply.server
        if error is not None:
            for pending in list(self.under_way.values()):
                self._end(pending, None, error)
            return
        self.welcome = reply.payload
        known = reply.server, self.welcome["since"]
        news, self._known = known != self._known, known
        for pending in list(self.under_way.values()):
            if news and pending.once and pending.sent:
                self._end(pending, None, CallLost(pending.method, self.address))
            else:
                self._check_size(pending)

    def _check_size(self, pending: PendingCall) -> None:
        """End a call with a frame that is too large for the server, which would close the connection."""
        try:
            check_size(pending.frames, self.welcome["max_frame_bytes"])
        except PayloadError as exc:
            self._end(pending, None, CallRefused(pending.method, self.address, CallRefusal.TOO_LARGE, exc.problem))

    def _end(self, pending: PendingCall, answer: Tree, error: RL4SysError | None) -> None:
        self.under_way.pop(pending.number, None)
        if not self.under_way:
            self._hello = None  # no call waits for it any more
        pending.answer, pending.error, pending.done = answer, error, True
        pending.frames = []
        if pending.tell is not None:
            self.over.append(pending)


def _is_welcome(payload: Tree) -> bool:
    """Return True if the payload has the fields that a `Session` reads, with the right types."""
    kinds = {"max_frame_bytes": int, "since": int, "pub": str, "channel": bytes}
    return isinstance(payload, dict) and all(type(payload.get(name)) is kind for name, kind in kinds.items())


def _size(frame: Frame) -> int:
    return frame.nbytes if isinstance(frame, memoryview) else len(frame)


def _error(pending: PendingCall, address: str, reply: Reply) -> CallError | None:
    if reply.code == ANSWERED:
        return None
    if reply.code == FAILED:
        kind, _, text = reply.detail.partition("\n")
        return CallFailed(pending.method, address, kind, text)
    if reply.code == CallRefusal.NO_SESSION:
        return CallLost(pending.method, address)
    return CallRefused(pending.method, address, CallRefusal(reply.code), reply.detail)
