"""The calls of one server, without sockets, threads or clocks: sessions, waiting calls, jobs, and kept replies.

Methods whose callbacks must not run at the same time share a *concurrency group*, which runs one job after another. A *job* is
one call, or several calls of one method that uses batching.

While a call waits or runs, a copy of it only changes the address of the reply. Afterwards a copy of a call that must run at
most once (`Call.once`) gets the same reply again, or none if it is too old (`rl4sys_zmq.dedup`). A session begins with its first
``$hello``. A call with `once` that has no session is refused (``no_session``).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.dedup import CallWindows
from rl4sys_zmq.errors import CallRefusal, ConfigError
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.rpc import MAX_NAME, Call, is_name
from rl4sys_zmq.wire.trees import Tree

__all__ = ["CallQueue", "Job", "Method", "RefuseCall", "Request"]

BATCH_WAIT_SHARE = 0.25
"""The share of its last batch's duration that a concurrency group waits for those callers, by default."""
BATCH_WAIT_MIN_S, BATCH_WAIT_MAX_S = 100e-6, 0.02
"""The shortest and the longest such wait, in seconds. A shorter one is skipped: no caller is that fast."""
LONG_S = 0.003
"""The duration of a job after which the next job of its group counts as long, in seconds.

A long job is handed to another thread, which costs about a tenth of this time.
"""

Handler = Callable[[Sequence[Tree]], Sequence[Tree]]
"""A callback for several payloads, which returns as many results. An `Exception` as a result is sent as an error."""


class RefuseCall(Exception):
    """The exception with which a callback refuses a call with a code of its choice, instead of failing.

    Raises:
        ValueError: If the code is not a `CallRefusal`.
    """

    def __init__(self, code: CallRefusal | str, detail: object) -> None:
        self.code, self.detail = CallRefusal(code), str(detail)
        super().__init__(self.detail)


@dataclass(frozen=True)
class Method:
    """A method that callers can call.

    Attributes:
        name: The name that callers use.
        run: The callback.
        concurrency_group: The group. Methods of one group never run at the same time.
        role: The role that the caller's key must have.
        max_batch: Largest number of calls in one job.
        max_wait_s: Longest time that the first call of a job waits for others, in seconds. 0: it does not wait. None: see
            `_ConcurrencyGroup`.
        max_queue: Largest number of calls that wait in the concurrency group. Further calls are refused (``busy``).
        client_id: The client that the caller's key must be for. Empty: any client.
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
    """A call that waits or runs. Requests compare by identity.

    Attributes:
        peer: The destination of the reply: the routing id from which the call came last.
        call: The message.
        method: The method that it calls.
        arrived_s: The time of its arrival, on the clock of the code that uses the queue.
        again: Number of copies that arrived later.
    """

    peer: bytes
    call: Call
    method: Method
    arrived_s: float
    again: int = 0


@dataclass(slots=True)
class Job:
    """The requests that one run of a callback serves.

    Attributes:
        concurrency_group: The group in which it runs.
        method: The method whose callback runs.
        requests: The requests, in order of arrival.
        began_s: The time at which it began, on the clock of the code that uses the queue.
        long: True if the previous job of the concurrency group took longer than `LONG_S`.
    """

    concurrency_group: str
    method: Method
    requests: list[Request]
    began_s: float
    long: bool = False


@dataclass(slots=True)
class _ConcurrencyGroup:
    """The waiting calls of one concurrency group, and the callers that the next batch waits for.

    Callers that call again as soon as they get a reply would split into two sets, each waiting while the batch of the other set
    runs. After a batch, the group therefore waits for as many calls as the callers of its last two batches make at once, but no
    longer than until `until_s`.
    """

    queue: deque[Request] = field(default_factory=deque)
    busy: bool = False
    last_job_s: float = 0.0
    last: Counter[int] = field(default_factory=Counter)
    expected: int = 1
    until_s: float = 0.0

    def on_batch_finished(self, requests: Sequence[Request], began_s: float, now: float) -> None:
        before, self.last = self.last, Counter([r.call.session for r in requests])
        self.expected = (before | self.last).total()
        patience_s = min(BATCH_WAIT_SHARE * (now - began_s), BATCH_WAIT_MAX_S)
        self.until_s = now + patience_s if patience_s >= BATCH_WAIT_MIN_S else now


class CallQueue:
    """The queue of calls of one server: it accepts calls, hands out jobs, and keeps replies.

    It has no clock. All times are in seconds, on any one clock. The leader thread of the server uses it; `register`, `unregister`
    and the figures for `Server.status` can be used from any thread.

    Attributes:
        counters: ``calls``, ``jobs``, ``again`` (copies of a call), ``refused.CODE``, ``failed``.
        methods: The methods by name.
        windows: The calls that are recognised if they arrive again, by session.
        run_now: True if the last accepted call can run at once and takes no others into its job, so that reading more messages
            first would only delay it.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.methods: dict[str, Method] = {}
        self.run_now = False
        self._concurrency_groups: dict[str, _ConcurrencyGroup] = {}
        self.windows: CallWindows[Request, list[Frame]] = CallWindows()

    def register(self, method: Method) -> None:
        """Add a method.

        Raises:
            ConfigError: If a name is invalid or already registered, or a number is out of range.
        """
        for name in (method.name, method.concurrency_group):
            if not is_name(name):
                raise ConfigError(
                    f"{name!r:.60} is not a valid name for a method or group: 1 to {MAX_NAME} characters", key="name"
                )
        if method.name in self.methods:
            raise ConfigError(f"method {method.name!r} is registered already; choose another name", key=method.name)
        if method.max_batch < 1 or method.max_queue < 1 or not 0 <= (method.max_wait_s or 0.0) < 60:
            raise ConfigError(
                f"{method.name!r}: max_batch {method.max_batch} and max_queue {method.max_queue} must be at least 1, max_wait_s "
                f"{method.max_wait_s} between 0 and 60",
                key=method.name,
            )
        # Both dicts are replaced, not changed: another thread can be iterating over them.
        if method.concurrency_group not in self._concurrency_groups:
            self._concurrency_groups = {**self._concurrency_groups, method.concurrency_group: _ConcurrencyGroup()}
        self.methods = {**self.methods, method.name: method}

    def unregister(self, name: str) -> None:
        """Remove a method. Its waiting calls still run. The concurrency group stays for other methods."""
        self.methods = {key: method for key, method in self.methods.items() if key != name}

    def take(self, peer: bytes, call: Call, now: float) -> list[Frame] | None:
        """Accept a call into the queue, or recognize it as a copy of an earlier one.

        Returns:
            The kept reply of an earlier copy, or None.

        Raises:
            Refuse: If the call is refused.
        """
        method = self.methods.get(call.method)
        if method is None:
            known = ", ".join(sorted(n for n in self.methods if not n.startswith("$"))) or "none"
            raise RefuseCall(CallRefusal.UNKNOWN, f"this server has no method {call.method!r}; its methods: {known}")
        window = self.windows.find(call.session, call.acked, now)
        if window is None:
            if call.once:
                raise RefuseCall(CallRefusal.NO_SESSION, "this server has no session for the caller; send $hello first")
        else:
            waiting = window.waiting.get(call.number)
            if waiting is not None:
                waiting.peer, waiting.again = peer, waiting.again + 1
                self.counters.add("again")
                return None
            answer = window.replies.get(call.number)
            if answer is not None:
                self.counters.add("again")
                return answer
            if call.once and call.number < window.acked:
                return None  # a copy that was under way while the caller received the reply
        concurrency_group = self._concurrency_groups[method.concurrency_group]
        if len(concurrency_group.queue) >= method.max_queue:
            raise RefuseCall(
                CallRefusal.BUSY, f"{len(concurrency_group.queue)} calls already wait in the group of {method.name!r}"
            )
        request = Request(peer, call, method, now)
        concurrency_group.queue.append(request)
        if window is not None:
            window.waiting[call.number] = request
        self.counters.add("calls")
        self.run_now = method.max_batch == 1 and not concurrency_group.busy
        return None

    def next_job(self, now: float) -> Job | None:
        """Return the job of the ready group whose first call is the oldest, or None. The group is busy until `finish`."""
        self.run_now = False
        ready = [
            (concurrency_group.queue[0].arrived_s, name)
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
        return Job(chosen, method, requests, now, concurrency_group.last_job_s > LONG_S)

    def wait_s(self, now: float) -> float | None:
        """Return the time until the next job is due if no call arrives, in seconds. None: no job waits."""
        dues = [
            self._due(concurrency_group)
            for concurrency_group in self._concurrency_groups.values()
            if concurrency_group.queue and not concurrency_group.busy
        ]
        return max(0.0, min(dues) - now) if dues else None

    def finish(self, job: Job, answers: Sequence[list[Frame]], now: float) -> None:
        """Complete a job: keep the replies that can be asked for again, and free the concurrency group."""
        concurrency_group = self._concurrency_groups[job.concurrency_group]
        concurrency_group.busy, concurrency_group.last_job_s = False, now - job.began_s
        if job.method.max_batch > 1:
            concurrency_group.on_batch_finished(job.requests, job.began_s, now)
        for request, answer in zip(job.requests, answers, strict=True):
            self.windows.finish(request.call.session, request.call.number, answer if request.call.once else None)

    def drop_all(self) -> list[Request]:
        """Remove and return all waiting requests, when the server stops."""
        dropped = [request for concurrency_group in self._concurrency_groups.values() for request in concurrency_group.queue]
        for concurrency_group in self._concurrency_groups.values():
            concurrency_group.queue.clear()
        return dropped

    def waiting(self) -> dict[str, int]:
        """Return the number of waiting calls by concurrency group."""
        return {name: len(concurrency_group.queue) for name, concurrency_group in self._concurrency_groups.items()}

    @property
    def busy(self) -> bool:
        """True while a job runs."""
        return any(concurrency_group.busy for concurrency_group in self._concurrency_groups.values())

    def _due(self, concurrency_group: _ConcurrencyGroup) -> float:
        """Return the time at which the next job of a concurrency group can start."""
        first = concurrency_group.queue[0]
        method = first.method
        if method.max_batch == 1 or method.max_wait_s == 0.0 or len(concurrency_group.queue) >= method.max_batch:
            return first.arrived_s
        if method.max_wait_s is None:
            return concurrency_group.until_s if len(concurrency_group.queue) < concurrency_group.expected else first.arrived_s
        return first.arrived_s + method.max_wait_s
