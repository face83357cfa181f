"""The queue of a server's calls: waiting calls, running calls, and kept replies. It uses no socket, thread or clock.

A *job* is one run of a callback, for one call or for a batch of calls of the same method. Methods whose callbacks must not run
at the same time share a *concurrency group*, which runs one job after another.

A caller sends a call again if it gets no reply, so the server can receive copies of a call. While the call waits or runs, a
copy only changes the address to which the reply is sent. After that, a copy of a call that must run at most once (`Call.once`)
gets the kept reply again, or no reply if that reply was discarded (`rl4sys_zmq.dedup`).

A session is the server's record of the calls of one connection. It begins with the call ``$hello``, which a caller sends first.
A call with `once` but without a session is refused (``no_session``).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.dedup import CallDeduplicator
from rl4sys_zmq.errors import CallRefusalReason, config_error
from rl4sys_zmq.values.trees import Tree
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.rpc import MAX_NAME, Call, is_name

BATCH_WAIT_SHARE = 0.25
"""The time that a batch waits for further calls by default, as a share of the duration of the last batch."""
BATCH_WAIT_MIN_S, BATCH_WAIT_MAX_S = 100e-6, 0.02
"""The limits of that time. Below the first, the batch does not wait: no caller can call again so fast."""
LONG_S = 0.003
"""The duration above which a job counts as long, so that the next one of its group is expected to be long too.

Another thread uses the sockets while such a job runs. The change of threads costs about a tenth of this time.
"""

Handler = Callable[[Sequence[Tree]], Sequence[Tree]]
"""A callback from a list of payloads to one result for each. An exception as a result counts as an error."""


class CallRefusedByCallback(Exception):
    """The exception that a server's callback raises to refuse a call with a code of its choice.

    The caller then gets `CallRefused` with this code. For any other exception of the callback, the caller gets `CallFailed`.

    Raises:
        ValueError: If the code is not a `CallRefusalReason`.
    """

    def __init__(self, code: CallRefusalReason | str, detail: object) -> None:
        self.code, self.detail = CallRefusalReason(code), str(detail)
        super().__init__(self.detail)


@dataclass(frozen=True)
class ServerMethod:
    """A method of a server: its name, its callback, the role that a caller needs, and its limits on calls and batches."""

    name: str
    run: Handler
    concurrency_group: str = "main"
    role: str = "call"  # role that the caller's key must have
    max_batch: int = 1  # largest number of calls in one job
    max_wait_s: float | None = 0.0  # of the first call of a job for further calls; None: computed from the last batches
    max_queue: int = 1024  # largest number of calls that wait in the concurrency group. Further calls are refused (`busy`)
    client_id: str = ""  # client for which the caller's key must be valid. Empty: any client


@dataclass(slots=True, eq=False)
class QueuedCall:
    """A call that has arrived at the server and waits or runs, with the address for its reply."""

    peer: bytes  # routing id to which the reply is sent: the one from which the last copy of the call came
    call: Call
    method: ServerMethod
    arrived_s: float


@dataclass(slots=True)
class CallbackRun:
    """One run of a method's callback, for one call or for a batch of calls."""

    method: ServerMethod
    requests: list[QueuedCall]
    began_s: float
    long: bool = False  # the previous job of the group took longer than `LONG_S`, so this one probably does too


@dataclass(slots=True)
class _ConcurrencyGroupQueue:
    """The waiting calls of one concurrency group, and the size of the next batch.

    Callers often call again as soon as they get a reply. A batch that began at once would miss these calls, and the callers
    would split into two sets that are served in turn, in smaller batches. Therefore, if `ServerMethod.max_wait_s` is None, the
    next batch waits until there are `expected` calls, but at most until the time `until_s`. `expected` is the number of calls
    that the callers of the last two batches made at once.
    """

    queue: deque[QueuedCall] = field(default_factory=deque)
    busy: bool = False
    last_job_s: float = 0.0
    last: Counter[int] = field(default_factory=Counter)
    expected: int = 1
    until_s: float = 0.0

    def on_batch_finished(self, requests: Sequence[QueuedCall], began_s: float, now: float) -> None:
        before, self.last = self.last, Counter([r.call.session for r in requests])
        self.expected = (before | self.last).total()
        patience_s = min(BATCH_WAIT_SHARE * (now - began_s), BATCH_WAIT_MAX_S)
        self.until_s = now + patience_s if patience_s >= BATCH_WAIT_MIN_S else now


class CallQueue:
    """The queue of calls of one server. It accepts calls, combines them into jobs, and keeps replies for copies of calls.

    The server passes the time in seconds, always from the same clock. Only the server's leader thread uses the queue, except
    `register`, `unregister`, `waiting`, `methods` and `heard` of `windows`, which any thread can use.
    """

    def __init__(self, counters: Counters) -> None:
        self.counters = counters  # `calls` (accepted), `jobs`, `again` (copies of a call), `refused.CODE`, `failed`
        self.methods: dict[str, ServerMethod] = {}
        self.run_now = False  # the last call is not combined with others: reading more messages first would only delay it
        self._concurrency_groups: dict[str, _ConcurrencyGroupQueue] = {}
        self.windows: CallDeduplicator[QueuedCall, list[Frame]] = CallDeduplicator()

    def register(self, method: ServerMethod) -> None:
        """Add a method."""
        for name in (method.name, method.concurrency_group):
            if not is_name(name):
                raise config_error("name", f"{name!r:.60} is not a valid name for a method or group: 1 to {MAX_NAME} characters")
        if method.name in self.methods:
            raise config_error(method.name, "a method of this name is registered already; choose another name")
        if method.max_batch < 1 or method.max_queue < 1 or not 0 <= (method.max_wait_s or 0.0) < 60:
            sizes = f"max_batch {method.max_batch} and max_queue {method.max_queue} must be at least 1"
            raise config_error(method.name, f"{sizes}, max_wait_s {method.max_wait_s} between 0 and 60")
        # Both dicts are replaced, not changed: another thread can be iterating over them.
        if method.concurrency_group not in self._concurrency_groups:
            self._concurrency_groups = {**self._concurrency_groups, method.concurrency_group: _ConcurrencyGroupQueue()}
        self.methods = {**self.methods, method.name: method}

    def unregister(self, name: str) -> None:
        """Remove a method, so that new calls of it are refused. Its waiting calls still run."""
        self.methods = {key: method for key, method in self.methods.items() if key != name}

    def on_call(self, peer: bytes, call: Call, now: float) -> list[Frame] | None:
        """Queue a call from the address `peer`, and return None. If the call is a copy, return the kept reply, if there is one.

        Raises:
            CallRefusedByCallback: If the method is unknown, too many calls wait, or a call with `once` has no session.
        """
        method = self.methods.get(call.method)
        if method is None:
            known = ", ".join(sorted(n for n in self.methods if not n.startswith("$"))) or "none"
            raise CallRefusedByCallback(
                CallRefusalReason.UNKNOWN, f"this server has no method {call.method!r}; its methods: {known}"
            )
        window = self.windows.find(call.session, call.acked, now)
        if window is None:
            if call.once:
                raise CallRefusedByCallback(
                    CallRefusalReason.NO_SESSION, "this server has no session for the caller; send $hello first"
                )
        else:
            waiting = window.waiting.get(call.number)
            if waiting is not None:
                waiting.peer = peer
                self.counters.add("again")
                return None
            answer = window.replies.get(call.number)
            if answer is not None:
                self.counters.add("again")
                return answer
            if call.once and call.number < window.acked:
                return None  # a copy that was under way while the caller received the reply
        group = self._concurrency_groups[method.concurrency_group]
        if len(group.queue) >= method.max_queue:
            raise CallRefusedByCallback(
                CallRefusalReason.BUSY, f"{len(group.queue)} calls already wait in the group of {method.name!r}"
            )
        request = QueuedCall(peer, call, method, now)
        group.queue.append(request)
        if window is not None:
            window.waiting[call.number] = request
        self.counters.add("calls")
        self.run_now = method.max_batch == 1 and not group.busy
        return None

    def next_job(self, now: float) -> CallbackRun | None:
        """Return the run of a callback to start now, or None.

        Its concurrency group, the one with the oldest call that can run, starts no other run before `finish`.
        """
        self.run_now = False
        ready = [
            (group.queue[0].arrived_s, name)
            for name, group in self._concurrency_groups.items()
            if group.queue and not group.busy and self._due(group) <= now
        ]
        if not ready:
            return None
        _, chosen = min(ready)
        group = self._concurrency_groups[chosen]
        method = group.queue[0].method
        requests = [group.queue.popleft()]
        while len(requests) < method.max_batch and group.queue and group.queue[0].method is method:
            requests.append(group.queue.popleft())
        group.busy = True
        self.counters.add("jobs")
        return CallbackRun(method, requests, now, group.last_job_s > LONG_S)

    def wait_s(self, now: float) -> float | None:
        """Return the time until the next callback can run if no call arrives, in seconds; None if no call can run."""
        dues = [self._due(group) for group in self._concurrency_groups.values() if group.queue and not group.busy]
        return max(0.0, min(dues) - now) if dues else None

    def finish(self, job: CallbackRun, answers: Sequence[list[Frame]], now: float) -> None:
        """Record the end of a run, so that its group can start the next one. Keep the replies to calls with `once`."""
        group = self._concurrency_groups[job.method.concurrency_group]
        group.busy, group.last_job_s = False, now - job.began_s
        if job.method.max_batch > 1:
            group.on_batch_finished(job.requests, job.began_s, now)
        for request, answer in zip(job.requests, answers, strict=True):
            self.windows.finish(request.call.session, request.call.number, answer if request.call.once else None)

    def drop_all(self) -> list[QueuedCall]:
        """Remove all waiting calls and return them, so that a server that stops can refuse them."""
        dropped = [request for group in self._concurrency_groups.values() for request in group.queue]
        for group in self._concurrency_groups.values():
            group.queue.clear()
        return dropped

    def waiting(self) -> dict[str, int]:
        """Return the number of waiting calls by concurrency group."""
        return {name: len(group.queue) for name, group in self._concurrency_groups.items()}

    @property
    def busy(self) -> bool:
        """True while a job runs."""
        return any(group.busy for group in self._concurrency_groups.values())

    def _due(self, group: _ConcurrencyGroupQueue) -> float:
        """Return the time at which the next run of a group's callback can start, on the server's clock."""
        first = group.queue[0]
        method = first.method
        if method.max_batch == 1 or method.max_wait_s == 0.0 or len(group.queue) >= method.max_batch:
            return first.arrived_s
        if method.max_wait_s is None:
            return group.until_s if len(group.queue) < group.expected else first.arrived_s
        return first.arrived_s + method.max_wait_s
