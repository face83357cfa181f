"""The caller's side of calls without sockets, threads or clocks: what is under way, when it is said again, when it is over."""

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
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.rpc import ANSWERED, FAILED, Call, Reply, check_size, decode_call, encode_call
from rl4sys_zmq.wire.trees import Tree

__all__ = ["HELLO", "Pending", "Session"]

HELLO = "$hello"
AGAIN_S = 0.5
"""When a call is said again for the first time, in seconds; then after twice as long each time, at most `AGAIN_MOST_S`."""
AGAIN_MOST_S = 4.0
SILENCE_S = 3.0
"""A connection on which a call was repeated, and nothing came for so long (in seconds), is dialled anew: it may be half open."""
WINDOW = 256
"""How many calls of one connection are with the server at once; further ones wait here. A server keeps so many answers."""
FULL_S = 0.005
"""When a call for which the connection had no room is due again, in seconds."""
SLOWEST_BYTES_S = 1 << 20
"""What is under way may take that long in addition: its bytes over this."""

_rng = random.SystemRandom()


@dataclass(slots=True)
class Pending:
    """A call under way.

    Attributes:
        method: what is called.
        number: in its session.
        once: it must not run twice.
        timeout_s: what its caller allows, in seconds.
        deadline_s: when that is over.
        frames: what is sent.
        tell: to be called with it when it is over, if somebody wants that; see `Session.over`.
        sent: how many times it was sent.
        due_s: when to send it (again).
        done: it is over.
        answer: the payload of the answer.
        error: or what went wrong.
    """

    method: str
    number: int
    once: bool
    timeout_s: float
    deadline_s: float
    frames: list[Frame]
    tell: Callable[[Pending], None] | None = None
    sent: int = 0
    due_s: float = 0.0
    done: bool = False
    answer: Tree = None
    error: RL4SysError | None = None


@dataclass(slots=True)
class Session:
    """The calls of one connection. Times are seconds on any one clock.

    Before anything else a server is greeted (``$hello``), and again when another one answers: calls wait meanwhile, so that no
    queue of them builds up where no server is, and one that forbids the terms refuses them all. The server says with which
    greeting it began to know this session. If that is news, it knows nothing of what was said before: a call that must run once,
    and was said, is lost, since it may have run where it was said.

    Attributes:
        address: whom it calls, for messages.
        counters: ``again`` (calls said again), ``late`` (answers nobody waits for), ``refused`` (messages that are none).
        id: a random number.
        server: the number of the server's life that answered last; 0 before.
        welcome: what the server said to ``$hello``; None before, and until it is greeted again.
        under_way: the calls that are not over, by number.
        over: those that are, and whose `tell` is to be called, outside of any lock: it is somebody else's code.
    """

    address: str
    counters: Counters
    terms: Mapping[str, Tree] | None = None
    id: int = field(default_factory=lambda: _rng.getrandbits(63))
    server: int = 0
    welcome: Tree = None
    under_way: dict[int, Pending] = field(default_factory=dict)
    over: deque[Pending] = field(default_factory=deque)
    _heard_s: float = 0.0
    _expiry_s: float = math.inf
    """No call ends before, for want of time."""
    _next: int = 0
    _hello: Pending | None = None
    _known: tuple[int, int] | None = None
    """The server, and the greeting with which it began to know this session."""

    def begin(
        self,
        method: str,
        payload: Tree,
        now: float,
        timeout_s: float,
        *,
        once: bool = False,
        tell: Callable[[Pending], None] | None = None,
    ) -> Pending:
        """Starts a call; `due` gives it out. One that is larger than the server takes is over at once (``too_large``).

        Raises:
            PayloadError: when the payload can't travel.
        """
        if not self.under_way:
            self._heard_s = now
        pending = self._make(method, payload, now, timeout_s, once, tell)
        self.under_way[pending.number] = pending
        self._expiry_s = min(self._expiry_s, pending.deadline_s)
        if self.welcome is not None:
            self._check_size(pending)
        return pending

    def due(self, now: float) -> list[Pending]:
        """What to send now. Each will be due again, until it is over."""
        if not self.under_way:
            return []
        if self.welcome is None and self._hello is None:
            terms = None if self.terms is None else dict(self.terms)
            self._hello = self._make(HELLO, {"terms": terms}, now, 86_400.0, False, None)
        out = []
        for pending in self._said():
            if pending.due_s <= now:
                if pending.sent:
                    self.counters.add("again")
                pending.due_s = now + min(AGAIN_S * 2**pending.sent, AGAIN_MOST_S)
                pending.sent += 1
                out.append(pending)
        return out

    def not_sent(self, pending: Pending, now: float) -> None:
        """The connection had no room for what `due` gave out: it will be due again soon."""
        self.counters.add("full")
        pending.sent -= 1
        pending.due_s = now + FULL_S

    def silent(self, now: float) -> bool:
        """Whether to dial anew before what is due is sent: it was sent before, and nothing has come for too long.

        A connection may be dead without either side knowing, and TCP takes many minutes to find that out. The calls keep their
        numbers, so one that runs goes on, and its answer finds the new connection with the next repetition.
        """
        if now - self._heard_s <= SILENCE_S or not any(p.sent > 1 and p.due_s <= now for p in self._said()):
            return False
        size = sum([_size(frame) for p in self._said() for frame in p.frames])
        if now - self._heard_s <= SILENCE_S + size / SLOWEST_BYTES_S:
            return False
        self._heard_s = now
        self.counters.add("redials")
        return True

    def dialled(self, now: float) -> None:
        """There is another connection: whatever the old one had in its queue is said again at once."""
        for pending in self._said():
            pending.due_s = now

    def take(self, frames: list[Frame], now: float) -> None:
        """A message has come."""
        self._heard_s = now
        try:
            reply = decode_call(frames)
        except ProtocolError:
            self.counters.add("refused")
            return
        if not isinstance(reply, Reply) or reply.session != self.id:
            self.counters.add("refused")
            return
        if self._hello is not None and reply.number == self._hello.number:
            self._greeted(self._hello, reply)
            return
        if reply.server != self.server:
            self.greet()  # it was started again
        pending = self.under_way.get(reply.number)
        if pending is None:
            self.counters.add("late")
        elif reply.code == CallRefusal.NO_SESSION and pending.once and pending.sent == 1:
            pending.sent, pending.due_s = 0, now  # it has run nowhere: it was said once, and refused
            self.greet()
        else:
            self._end(pending, reply.payload, _error(pending, self.address, reply))

    def greet(self) -> None:
        """The server is greeted before anything else is said."""
        self.welcome = None

    def expire(self, now: float) -> bool:
        """Ends the calls whose time is over; returns whether there were any."""
        if now < self._expiry_s:
            return False
        over = [p for p in self.under_way.values() if p.deadline_s <= now]
        for pending in over:
            stage = "the answer" if self.server else "a server: none has answered there yet"
            self._end(pending, None, CallTimeout(pending.method, self.address, stage, pending.timeout_s))
        self._expiry_s = min([p.deadline_s for p in self.under_way.values()], default=math.inf)
        return bool(over)

    def wait_s(self, now: float) -> float:
        """For how long nothing is due unless something comes, in seconds; a day when nothing is under way."""
        if not self.under_way:
            return 86_400.0
        if self.welcome is None and self._hello is None:
            return 0.0
        return max(0.0, min([self._expiry_s, *(p.due_s for p in self._said())]) - now)

    def end(self, pending: Pending, error: RL4SysError) -> None:
        """Gives a call up."""
        self._end(pending, None, error)

    def _make(
        self, method: str, payload: Tree, now: float, timeout_s: float, once: bool, tell: Callable[[Pending], None] | None
    ) -> Pending:
        number = self._next
        acked = next(iter(self.under_way)) if self.under_way else number
        frames = encode_call(Call(number, self.id, acked, round(timeout_s * 1000), once, method, payload))
        self._next += 1
        return Pending(method, number, once, timeout_s, now + timeout_s, frames, tell, due_s=now)

    def _said(self) -> Iterable[Pending]:
        """What is said, and said again, as things are: the greeting alone, or the oldest calls."""
        if self._hello is not None:
            return (self._hello,)
        if self.welcome is None:
            return ()
        return self.under_way.values() if len(self.under_way) <= WINDOW else list(islice(self.under_way.values(), WINDOW))

    def _greeted(self, hello: Pending, reply: Reply) -> None:
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

    def _check_size(self, pending: Pending) -> None:
        """A server ends the connection of who sends it a longer frame than it takes: it is not sent."""
        try:
            check_size(pending.frames, self.welcome["max_frame_bytes"])
        except PayloadError as exc:
            self._end(pending, None, CallRefused(pending.method, self.address, CallRefusal.TOO_LARGE, exc.problem))

    def _end(self, pending: Pending, answer: Tree, error: RL4SysError | None) -> None:
        self.under_way.pop(pending.number, None)
        if not self.under_way:
            self._hello = None  # nobody waits for it any more
        pending.answer, pending.error, pending.done = answer, error, True
        pending.frames = []
        if pending.tell is not None:
            self.over.append(pending)


def _is_welcome(payload: Tree) -> bool:
    """Whether it has what is read of it."""
    kinds = {"max_frame_bytes": int, "since": int, "pub": str, "channel": bytes}
    return isinstance(payload, dict) and all(type(payload.get(name)) is kind for name, kind in kinds.items())


def _size(frame: Frame) -> int:
    return frame.nbytes if isinstance(frame, memoryview) else len(frame)


def _error(pending: Pending, address: str, reply: Reply) -> CallError | None:
    if reply.code == ANSWERED:
        return None
    if reply.code == FAILED:
        kind, _, text = reply.detail.partition("\n")
        return CallFailed(pending.method, address, kind, text)
    if reply.code == CallRefusal.NO_SESSION:
        return CallLost(pending.method, address)
    return CallRefused(pending.method, address, CallRefusal(reply.code), reply.detail)
