"""The server's side of calls without sockets, threads or clocks: who called, what waits, what runs next, what was answered.

A *method* is what can be called. Methods share a *concurrency group* when their callbacks must not run at the same time: a
concurrency group runs one job after another. A *job* is one call, or several of one method that is batched.

A call that must run once is known by its session and number. While it waits or runs, the same call sent again changes only where
the answer goes; afterwards it gets the same answer, which is kept until the caller says that it has it, or too much is kept: then
it is not answered again, and not run again either. A session is known from its first ``$hello`` until it has been silent for
`SESSION_S`; with a session forgotten, nothing of it is run (``no_session``).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallRefusal, ConfigError
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.rpc import MAX_NAME, Call, is_name
from rl4sys_zmq.wire.trees import Tree

__all__ = ["CallQueue", "Job", "Method", "Refuse", "Request"]

MAX_SESSIONS = 4096
SESSION_S = 600.0
"""How long a silent session is remembered, in seconds. A caller repeats a call at least each few seconds while it waits."""

PATIENCE = 0.25
"""How long a concurrency group waits for its last callers to call again, as a share of the time of its last batch."""
LEAST_PATIENCE_S, MOST_PATIENCE_S = 100e-6, 0.02
"""Nobody asks again sooner; nobody waits longer. In seconds."""
LONG_S = 0.003
"""A job longer than this, in seconds, predicts a long next job. Handing that to another thread costs a tenth of it."""
MAX_ANSWERS = 256
"""How many answers are kept for one session."""
MAX_KEPT_BYTES = 256 * 1024 * 1024
"""How many bytes of answers are kept for all sessions together; what is beyond goes, as if its callers had it."""

Handler = Callable[[Sequence[Tree]], Sequence[Tree]]
"""Payloads in, as many answers out; an answer that is an `Exception` goes to its caller as an error."""


class Refuse(Exception):
    """Raised by a method to refuse a call with a code of its own rather than as a failure.

    Raises:
        ValueError: for a code that is none.
    """

    def __init__(self, code: CallRefusal | str, detail: object) -> None:
        self.code, self.detail = CallRefusal(code), str(detail)
        super().__init__(self.detail)


@dataclass(frozen=True)
class Method:
    """Something that can be called.

    Attributes:
        name: what the caller says.
        run: the callback.
        concurrency_group: methods with one concurrency group never run at the same time.
        role: what the caller's key must have.
        client_id: the client that the caller's key must be for; empty: any.
        max_batch: the most calls of one job.
        max_wait_s: how long the first of them waits for more, in seconds; 0: what has come by then; None: see
        `_ConcurrencyGroup`. max_queue: how many may wait; more are refused (``busy``).
    """

    name: str
    run: Handler
    concurrency_group: str = "main"
    role: str = "call"
    max_batch: int = 1
    max_wait_s: float | None = 0.0
    max_queue: int = 1024
    client_id: str = ""


@dataclass(slots=True, eq=False)
class Request:
    """A call that waits or runs; it is itself alone, whatever another says.

    Attributes:
        peer: where its answer goes: the routing id on which it came last.
        call: what was said.
        method: what it calls.
        came_s: when it came, on the caller's clock.
        again: how many times it came again.
    """

    peer: bytes
    call: Call
    method: Method
    came_s: float
    again: int = 0


@dataclass(slots=True)
class Job:
    """Requests that one run of a callback serves.

    Attributes:
        concurrency_group: in which it runs.
        method: whose callback.
        requests: in the order in which they came.
        began_s: when it began, on the caller's clock.
        long: the last one of its concurrency group took longer than `LONG_S`.
    """

    concurrency_group: str
    method: Method
    requests: list[Request]
    began_s: float
    long: bool = False


@dataclass(slots=True)
class _ConcurrencyGroup:
    """What waits for its turn, and whom to wait for before a batch begins.

    Callers that ask again once they are answered would fall into two groups, each waiting while the other's batch runs.
    So a concurrency group that has finished a batch waits until as many calls have come as the callers of its last two batches
    make at once, but no later than `until_s`.
    """

    queue: deque[Request] = field(default_factory=deque)
    busy: bool = False
    took_s: float = 0.0
    last: Counter[int] = field(default_factory=Counter)
    expected: int = 1
    until_s: float = 0.0

    def batch_over(self, requests: Sequence[Request], began_s: float, now: float) -> None:
        before, self.last = self.last, Counter([r.call.session for r in requests])
        self.expected = (before | self.last).total()
        patience_s = min(PATIENCE * (now - began_s), MOST_PATIENCE_S)
        self.until_s = now + patience_s if patience_s >= LEAST_PATIENCE_S else now


@dataclass(slots=True)
class _Session:
    since: int
    heard_s: float
    waiting: dict[int, Request] = field(default_factory=dict)
    answers: dict[int, list[Frame]] = field(default_factory=dict)
    acked: int = 0


class CallQueue:
    """Takes calls, gives out jobs, keeps answers. Times are seconds on any one clock.

    Attributes:
        counters: ``calls``, ``jobs``, ``again`` (the same call once more), ``refused.CODE``, ``failed``.
        methods: what can be called.
        pressing: the last call that was taken can run at once, and needs no company: to look for more would only delay it.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.methods: dict[str, Method] = {}
        self.pressing = False
        self._concurrency_groups: dict[str, _ConcurrencyGroup] = {}
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._kept_bytes = 0

    def register(self, method: Method) -> None:
        """Adds a method.

        Raises:
            ConfigError: when the name is none or taken, or a number is no sensible one.
        """
        for name in (method.name, method.concurrency_group):
            if not is_name(name):
                raise ConfigError(
                    f"{name!r:.60} is no name for a method or a concurrency group: 1 to {MAX_NAME} characters", key="name"
                )
        if method.name in self.methods:
            raise ConfigError(f"{method.name!r} is registered already", key=method.name)
        if method.max_batch < 1 or method.max_queue < 1 or not 0 <= (method.max_wait_s or 0.0) < 60:
            raise ConfigError(
                f"{method.name!r}: max_batch {method.max_batch} and max_queue {method.max_queue} must be at least 1, max_wait_s "
                f"{method.max_wait_s} between 0 and 60",
                key=method.name,
            )
        # Both are replaced whole: another thread may be going through them.
        if method.concurrency_group not in self._concurrency_groups:
            self._concurrency_groups = {**self._concurrency_groups, method.concurrency_group: _ConcurrencyGroup()}
        self.methods = {**self.methods, method.name: method}

    def unregister(self, name: str) -> None:
        """Takes a method away; calls of it that wait are run. Its concurrency group stays, for the next method."""
        self.methods = {key: method for key, method in self.methods.items() if key != name}

    def open_session(self, session: int, number: int, now: float) -> int:
        """A greeting, the call of that number: knows the caller from now on; one that is known stays as it is.

        Returns:
            The number of the greeting since which it is known.
        """
        known = self._sessions.get(session)
        if known is not None:
            return known.since
        while len(self._sessions) >= MAX_SESSIONS or (
            self._sessions and now - next(iter(self._sessions.values())).heard_s > SESSION_S
        ):
            _, oldest = self._sessions.popitem(last=False)
            self._forget_answers(oldest, 1 << 64)
        self._sessions[session] = _Session(number, now)
        return number

    def take(self, peer: bytes, call: Call, now: float) -> list[Frame] | None:
        """A call has come: it waits from now on, or it did already.

        Returns:
            The answer, if it was given before.

        Raises:
            Refuse: when it is not taken.
        """
        method = self.methods.get(call.method)
        if method is None:
            known = ", ".join(sorted(n for n in self.methods if not n.startswith("$"))) or "nothing"
            raise Refuse(CallRefusal.UNKNOWN, f"there is no {call.method!r} here; there is {known}")
        session = self._sessions.get(call.session)
        if session is None:
            if call.once:
                raise Refuse(CallRefusal.NO_SESSION, "this server does not know the caller; say $hello")
        else:
            session.heard_s = now
            self._sessions.move_to_end(call.session)
            if call.acked > session.acked:
                self._forget_answers(session, call.acked)
            waiting = session.waiting.get(call.number)
            if waiting is not None:
                waiting.peer, waiting.again = peer, waiting.again + 1
                self.counters.add("again")
                return None
            answer = session.answers.get(call.number)
            if answer is not None:
                self.counters.add("again")
                return answer
            if call.once and call.number < session.acked:
                return None  # a copy that was on its way while the caller got its answer
        concurrency_group = self._concurrency_groups[method.concurrency_group]
        if len(concurrency_group.queue) >= method.max_queue:
            raise Refuse(CallRefusal.BUSY, f"{len(concurrency_group.queue)} calls wait for {method.name!r} already")
        request = Request(peer, call, method, now)
        concurrency_group.queue.append(request)
        if session is not None:
            session.waiting[call.number] = request
        self.counters.add("calls")
        self.pressing = method.max_batch == 1 and not concurrency_group.busy
        return None

    def next_job(self, now: float) -> Job | None:
        """What to run now, or None: of all lanes that may go on, the one whose first call came first; busy until `finish`."""
        self.pressing = False
        ready = [
            (concurrency_group.queue[0].came_s, name)
            for name, concurrency_group in self._concurrency_groups.items()
            if concurrency_group.queue and not concurrency_group.busy and self._due(concurrency_group) <= now
        ]
        if not ready:
            return None
        _, chosen = min(ready)
        concurrency_group = self._concurrency_groups[chosen]
        method = concurrency_group.queue[0].method
        requests = [concurrency_group.queue.popleft()]
        while len(requests) < method.max_batch and concurrency_group.queue and concurrency_group.queue[0].method is method:
            requests.append(concurrency_group.queue.popleft())
        concurrency_group.busy = True
        self.counters.add("jobs")
        return Job(chosen, method, requests, now, concurrency_group.took_s > LONG_S)

    def wait_s(self, now: float) -> float | None:
        """For how long nothing will be due unless something comes; None: for ever."""
        dues = [
            self._due(concurrency_group)
            for concurrency_group in self._concurrency_groups.values()
            if concurrency_group.queue and not concurrency_group.busy
        ]
        return max(0.0, min(dues) - now) if dues else None

    def finish(self, job: Job, answers: Sequence[list[Frame]], now: float) -> None:
        """A job is done: keeps what may be asked for again, and frees the concurrency group."""
        concurrency_group = self._concurrency_groups[job.concurrency_group]
        concurrency_group.busy, concurrency_group.took_s = False, now - job.began_s
        if job.method.max_batch > 1:
            concurrency_group.batch_over(job.requests, job.began_s, now)
        for request, answer in zip(job.requests, answers, strict=True):
            session = self._sessions.get(request.call.session)
            if session is None:
                continue
            session.waiting.pop(request.call.number, None)
            if request.call.once and request.call.number >= session.acked:
                if session.answers.setdefault(request.call.number, answer) is answer:
                    for frame in answer:
                        self._kept_bytes += len(frame)
                if len(session.answers) > MAX_ANSWERS:  # of a caller that never says what it has
                    self._forget_answers(session, min(session.answers) + 1)
                if self._kept_bytes > MAX_KEPT_BYTES:
                    self._make_room()

    def drop_all(self) -> list[Request]:
        """Takes back whatever waits, as the server stops."""
        dropped = [request for concurrency_group in self._concurrency_groups.values() for request in concurrency_group.queue]
        for concurrency_group in self._concurrency_groups.values():
            concurrency_group.queue.clear()
        return dropped

    def waiting(self) -> dict[str, int]:
        """How many calls wait, by concurrency group."""
        return {name: len(concurrency_group.queue) for name, concurrency_group in self._concurrency_groups.items()}

    @property
    def busy(self) -> bool:
        """Whether a job runs."""
        return any(concurrency_group.busy for concurrency_group in self._concurrency_groups.values())

    @property
    def sessions(self) -> int:
        """How many callers are known."""
        return len(self._sessions)

    def _make_room(self) -> None:
        """Keeps `MAX_KEPT_BYTES` of answers: those of who has been silent longest go first, of each the oldest."""
        for session in self._sessions.values():
            while session.answers and self._kept_bytes > MAX_KEPT_BYTES:
                self._forget_answers(session, min(session.answers) + 1)

    def _forget_answers(self, session: _Session, below: int) -> None:
        """A caller has the answers to all numbers below one, or must do without."""
        session.acked = below
        for number in [n for n in session.answers if n < below]:
            for frame in session.answers.pop(number):
                self._kept_bytes -= len(frame)

    def _due(self, concurrency_group: _ConcurrencyGroup) -> float:
        """When the first job of a concurrency group may start."""
        first = concurrency_group.queue[0]
        method = first.method
        if method.max_batch == 1 or method.max_wait_s == 0.0 or len(concurrency_group.queue) >= method.max_batch:
            return first.came_s
        if method.max_wait_s is None:
            return concurrency_group.until_s if len(concurrency_group.queue) < concurrency_group.expected else first.came_s
        return first.came_s + method.max_wait_s
