"""The caller's side of one connection to a server: its calls, resends and results, without sockets, threads or clocks."""

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
    CallRefusalReason,
    CallRefused,
    CallTimeout,
    PayloadError,
    ProtocolError,
    RL4SysError,
)
from rl4sys_zmq.liveness import CALL_RESEND, SILENCE_S, SLOWEST_BYTES_S, is_silent
from rl4sys_zmq.transports.frames import frame_bytes
from rl4sys_zmq.values.trees import Tree
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.rpc import ANSWERED, FAILED, Call, Reply, check_size, decode_call, encode_call

HELLO = "$hello"
WINDOW = 256
"""The largest number of unfinished calls that one connection sends. A server keeps as many replies for a connection."""
FULL_S = 0.005
"""The time after which a call is sent again if the socket's queue was full."""

_rng = random.SystemRandom()


@dataclass(slots=True)
class CallHandle:
    """A call of a `CallerSession`: it waits for its reply, or it is done and has an answer or an error."""

    method: str
    number: int
    once: bool  # true if the call must run at most once
    timeout_s: float
    deadline_s: float  # time at which the call fails without a reply
    frames: list[Frame]  # encoded message; empty when the call is over
    tell: Callable[[CallHandle], None] | None = None
    sent: int = 0  # number of times that the message was sent
    due_s: float = 0.0  # time at which to send the message next
    done: bool = False
    answer: Tree = None  # payload of the reply; None if the call is not over or has failed
    error: RL4SysError | None = None


@dataclass(slots=True)
class CallerSession:
    """The caller's side of one connection to a server: the unfinished calls, their resends, and their results.

    A session does no I/O. The code that uses it passes the time in seconds, always from the same clock.

    The session first sends the call ``$hello``, which opens the session at the server, and sends it again after the server was
    restarted. The other calls wait for the reply to ``$hello``, so that no queue of messages builds up while there is no
    server. If the server has other `terms`, all calls fail.

    The server keeps a record of the calls of a session, so that a resent call does not run twice. It can lose this record, for
    example by a restart. Therefore its reply to ``$hello`` has the number of the call with which the record began. If that
    number has changed, unfinished calls are sent again. But a call that must run at most once and was sent before fails with
    `CallLost`, because it is unknown whether it ran.
    """

    address: str
    counters: Counters  # `again` (resent), `late` (over), `refused` (malformed), `redials`, `full` (socket queue)
    terms: Mapping[str, Tree] | None = None  # settings that must be equal at the server. None: they are not compared
    id: int = field(default_factory=lambda: _rng.getrandbits(63))  # random number that identifies this session at the server
    server: int = 0  # random number of the start of the server that replied last. 0 before the first reply
    welcome: Tree = None  # payload of the reply to `$hello`. None before that reply, and while a new `$hello` is needed
    under_way: dict[int, CallHandle] = field(default_factory=dict)  # unfinished calls, by number
    over: deque[CallHandle] = field(default_factory=deque)  # done, but `tell` not called: hold no lock, it runs user code
    _received_s: float = 0.0
    _expiry_s: float = math.inf
    """A time before which no call reaches its deadline."""
    _next: int = 0
    _hello: CallHandle | None = None
    _known: tuple[int, int] | None = None
    """The server's number, and the call with which its record of this session began: other ones mean a lost record."""

    def start_call(
        self,
        method: str,
        payload: Tree,
        now: float,
        timeout_s: float,
        *,
        once: bool = False,
        tell: Callable[[CallHandle], None] | None = None,  # to call when the call is over; see `CallerSession.over`
    ) -> CallHandle:
        """Start a call. From then on, `due` returns the call whenever its message must be sent.

        If `tell` is given, the ended call is put into `over`, and the owner of the session passes it to `tell`.
        """
        if not self.under_way:
            self._received_s = now
        pending = self._make(method, payload, now, timeout_s, once, tell)
        self.under_way[pending.number] = pending
        self._expiry_s = min(self._expiry_s, pending.deadline_s)
        if self.welcome is not None:
            self._check_size(pending)
        return pending

    def due(self, now: float) -> list[CallHandle]:
        """Return the calls whose messages must be sent now."""
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

    def not_sent(self, pending: CallHandle, now: float) -> None:
        """Record that the socket's queue had no room for a call, so that `due` returns the call again soon."""
        self.counters.add("full")
        pending.sent -= 1
        pending.due_s = now + FULL_S

    def should_reconnect(self, now: float) -> bool:
        """Return True if the socket must be replaced: a call is to be resent, and nothing has arrived for too long."""
        # A connection can break without either side noticing, and TCP takes many minutes to detect that. Calls keep their
        # numbers, so the reply of one that runs arrives on the new connection after the next resend.
        if not is_silent(now, self._received_s, SILENCE_S) or not any(p.sent > 1 and p.due_s <= now for p in self._sendable()):
            return False
        size = sum([frame_bytes(frame) for p in self._sendable() for frame in p.frames])
        if not is_silent(now, self._received_s, SILENCE_S + size / SLOWEST_BYTES_S):
            return False
        self._received_s = now
        self.counters.add("redials")
        return True

    def on_reconnected(self, now: float) -> None:
        """Make all unfinished calls due again, because the messages in the old socket's queue are lost."""
        for pending in self._sendable():
            pending.due_s = now

    def on_message(self, frames: list[Frame], now: float) -> None:
        """Process a received message, normally the reply to a call."""
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
        elif reply.code == CallRefusalReason.NO_SESSION and pending.once and pending.sent == 1:
            pending.sent, pending.due_s = 0, now  # it has not run: it was sent once, and refused
            self.require_hello()
        else:
            self.end(pending, _error(pending, self.address, reply), reply.payload)

    def require_hello(self) -> None:
        """Send a new ``$hello``, which opens the session at the server, before any other call."""
        self.welcome = None

    def expire(self, now: float) -> bool:
        """End each call whose timeout has passed, with the error `CallTimeout`. Return True if there was such a call."""
        if now < self._expiry_s:
            return False
        over = [p for p in self.under_way.values() if p.deadline_s <= now]
        for pending in over:
            stage = "the answer" if self.server else "a server: none has answered yet"
            self.end(pending, CallTimeout(pending.method, self.address, stage, pending.timeout_s))
        self._expiry_s = min([p.deadline_s for p in self.under_way.values()], default=math.inf)
        return bool(over)

    def wait_s(self, now: float) -> float:
        """Return the time until a call must be sent or times out. One day if there is no unfinished call."""
        if not self.under_way:
            return 86_400.0
        if self.welcome is None and self._hello is None:
            return 0.0
        return max(0.0, min([self._expiry_s, *(p.due_s for p in self._sendable())]) - now)

    def end(self, pending: CallHandle, error: RL4SysError | None, answer: Tree = None) -> None:
        """End an unfinished call, with an answer or with an error, for example because its `Caller` was closed."""
        self.under_way.pop(pending.number, None)
        if not self.under_way:
            self._hello = None  # no call waits for it any more
        pending.answer, pending.error, pending.done = answer, error, True
        pending.frames = []
        if pending.tell is not None:
            self.over.append(pending)

    def _make(
        self, method: str, payload: Tree, now: float, timeout_s: float, once: bool, tell: Callable[[CallHandle], None] | None
    ) -> CallHandle:
        number = self._next
        acked = next(iter(self.under_way)) if self.under_way else number
        frames = encode_call(Call(number, self.id, acked, round(timeout_s * 1000), once, method, payload))
        self._next += 1
        return CallHandle(method, number, once, timeout_s, now + timeout_s, frames, tell, due_s=now)

    def _sendable(self) -> Iterable[CallHandle]:
        """Return the calls that may be sent at present: ``$hello``, and after its reply the oldest 256 calls."""
        if self._hello is not None:
            return (self._hello,)
        if self.welcome is None:
            return ()
        return self.under_way.values() if len(self.under_way) <= WINDOW else list(islice(self.under_way.values(), WINDOW))

    def _on_hello_reply(self, hello: CallHandle, reply: Reply) -> None:
        error = _error(hello, self.address, reply)
        if error is None and not _is_welcome(reply.payload):
            self.counters.add("refused")
            return
        self._hello, self.server = None, reply.server
        if error is not None:
            for pending in list(self.under_way.values()):
                self.end(pending, error)
            return
        self.welcome = reply.payload
        known = reply.server, self.welcome["since"]
        news, self._known = known != self._known, known
        for pending in list(self.under_way.values()):
            if news and pending.once and pending.sent:
                self.end(pending, CallLost(pending.method, self.address))
            else:
                self._check_size(pending)

    def _check_size(self, pending: CallHandle) -> None:
        """End a call with an error if a frame is larger than the server accepts. Such a frame would close the connection."""
        try:
            check_size(pending.frames, self.welcome["max_frame_bytes"])
        except PayloadError as exc:
            self.end(pending, CallRefused(pending.method, self.address, CallRefusalReason.TOO_LARGE, exc.problem))


def _is_welcome(payload: Tree) -> bool:
    """Return True if a payload is a valid reply to ``$hello``: a dict with the fields that a `CallerSession` reads."""
    kinds = {"max_frame_bytes": int, "since": int, "pub": str, "channel": bytes}
    return isinstance(payload, dict) and all(type(payload.get(name)) is kind for name, kind in kinds.items())


def _error(pending: CallHandle, address: str, reply: Reply) -> CallError | None:
    if reply.code == ANSWERED:
        return None
    if reply.code == FAILED:
        kind, _, text = reply.detail.partition("\n")
        return CallFailed(pending.method, address, kind, text)
    if reply.code == CallRefusalReason.NO_SESSION:
        return CallLost(pending.method, address)
    return CallRefused(pending.method, address, CallRefusalReason(reply.code), reply.detail)
