"""A server of calls: one bound ROUTER, one bound XPUB if it publishes, and a crew of threads.

The thread that leads (`rl4sys_zmq.rpc.leader_followers`) alone touches the sockets and the desk: it reads what has come, runs
the next callback, and answers. A callback that blocks loses it the lead; its answers go out by way of whoever leads then. So a
callback holds up its own concurrency group and nothing else.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallRefusal, Closed, ConfigError, ProtocolError, Refusal
from rl4sys_zmq.loopback import is_local
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc.call_queue import CallQueue, Handler, Job, Method, Refuse
from rl4sys_zmq.rpc.executor import CallExecutor, each
from rl4sys_zmq.rpc.leader_followers import LeaderFollowerPool
from rl4sys_zmq.rpc.topics import TopicPublisher
from rl4sys_zmq.security import AccessList, Authenticator, Authorizer, User
from rl4sys_zmq.transports import Address, Frame, Poller, Secure, SendResult, Socket, TooManyFrames, Wakeup
from rl4sys_zmq.wire.rpc import Call, decode_call
from rl4sys_zmq.wire.trees import MAX_TREE_FRAMES, Tree

__all__ = ["MAX_FRAME_BYTES", "Batching", "Server"]

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""The largest array that a call, an answer or a notice may carry, and the largest of its parts."""
BEACON_S = 1.0
LOOK_S = 0.1
LEAST_POLL_S, NAP_S = 0.001, 0.000_1
"""What a poll can wait at least, and how long a wait that is shorter sleeps before it looks again, in seconds."""
CALL_ROLE = "call"
MOST_AT_ONCE = 256
HELLO, LATEST, STATUS = "$hello", "$latest", "$status"
NOTICE_HWM = 8

_rng = random.SystemRandom()


@dataclass(frozen=True)
class Batching:
    """How calls of one method are put together.

    Attributes:
        max_size: the most calls of one batch.
        max_wait_s: how long the first waits for others, in seconds. With 0 a batch is what came while the last one ran. With None
            those who were just answered may ask again, for a quarter of the time that the last batch took (at most 20 ms): a lone
            caller never waits.
    """

    max_size: int = 32
    max_wait_s: float | None = None


class Server(Resource):
    """Answers calls. Register methods, then `start` or `run`; `stop` joins.

    Attributes:
        counters: see `CallQueue`; and ``refused.CODE`` for messages that are none, ``gone`` for answers nobody was there to take,
            ``takeovers``, ``publisher``.
    """

    def __init__(
        self,
        bind: Address | str,
        *,
        name: str,
        pub: Address | str | None = None,
        terms: Mapping[str, Tree] | None = None,
        keys: str | Path | None = None,
        users: str | Path | None = None,
        insecure: bool = False,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        """Binds nothing yet.

        Args:
            bind: where calls come.
            name: of the service, for threads and logs.
            pub: where notices leave; None: it publishes none.
            terms: what a caller must agree with, field by field, when it says what it expects.
            keys: the folder of the server's keys (`rl4sys-learner keys DIR`); None: whoever reaches the address may come in.
            users: the access list; None: ``users.toml`` in `keys`.
            insecure: let other machines come in without keys.
            max_frame_bytes: a peer that sends a longer frame loses its connection.

        Raises:
            ConfigError: for an address that other machines reach, without keys and without `insecure`.
            TransportError: for an address that is none.
        """
        for where in (bind, pub):
            if where is not None and keys is None and not insecure and not is_local(uri := Address.parse(where).uri):
                raise ConfigError(
                    f"{uri} lets other machines in without keys; make keys with `rl4sys-learner keys DIR`, "
                    "bind 127.0.0.1, or if that is meant, say so: insecure=True, or --insecure",
                    key="bind",
                )
        self.name = name
        self.counters = Counters()
        self._bind, self._pub = bind, pub
        self._terms = dict(terms or {})
        self._keys = Path(keys) if keys is not None else None
        self._users = Path(users) if users is not None else None
        self._authenticator: Authenticator | None = None
        self._authorizer = Authorizer(None)
        self._max_frame_bytes = max_frame_bytes
        self._id = _rng.getrandbits(63)
        self._call_queue = CallQueue(self.counters)
        self._executor = CallExecutor(name, self._id, self.counters, MAX_FRAME_BYTES)
        self._publisher = TopicPublisher(self._id, self.counters, MAX_FRAME_BYTES)
        self._lock = threading.Lock()
        self._pool = LeaderFollowerPool(name, self._lead, self._adopt, self._close_sockets, self.counters)
        self._wakeup = Wakeup()
        self._poller = Poller()
        self._finished: deque[tuple[Job, list[list[Frame]]]] = deque()
        self._router: Socket | None = None
        self._xpub: Socket | None = None
        self._address: Address | None = None
        self._pub_address: Address | None = None
        for system, run in ((LATEST, self._publisher.latest), (STATUS, self._status)):
            self._call_queue.register(Method(system, each(run), "$", CALL_ROLE))

    def register(
        self,
        name: str,
        run: Callable[[Tree], Tree] | Handler,
        *,
        concurrency_group: str | None = None,
        role: str = CALL_ROLE,
        batching: Batching | None = None,
        max_queue: int = 1024,
        client_id: str = "",
    ) -> None:
        """Adds a method; also while the server runs.

        Args:
            name: what callers say.
            run: the callback: a payload in, an answer out; with `batching` a list of payloads in, as many answers out. What it
                raises goes to the caller. Arrays that come in are read-only.
            concurrency_group: methods of one concurrency group never run at the same time; None: its own.
            role: what the caller's key must have.
            batching: None: one call at a time.
            max_queue: how many may wait.
            client_id: the client that the caller's key must be for; empty: any.

        Raises:
            ConfigError: when the name is none or taken, or a number is no sensible one.
        """
        if not isinstance(batching, Batching | None):
            raise ConfigError(f"{name!r:.60}: batching is {batching!r:.60}; it is a Batching or None", key="batching")
        handler: Handler = run if batching is not None else each(run)
        size, wait_s = (batching.max_size, batching.max_wait_s) if batching is not None else (1, 0.0)
        with self._lock:
            self._call_queue.register(
                Method(
                    name,
                    handler,
                    name if concurrency_group is None else concurrency_group,
                    role,
                    size,
                    wait_s,
                    max_queue,
                    client_id,
                )
            )

    def unregister(self, name: str) -> None:
        """Remove a method if it exists. Waiting calls of it still run. Its concurrency group stays for other methods."""
        with self._lock:
            self._call_queue.unregister(name)

    def start(self) -> Self:
        """Binds and serves in threads of its own; returns when it is bound. One that could not be bound may be started again.

        Raises:
            AddressInUse: when somebody else binds the address.
            ConfigError: for keys that are missing, wrong, or readable by others.
            TransportError: when it cannot be bound.
            Closed: after `stop`.
        """
        with self._lock:
            if self._pool.stopping.is_set():
                raise Closed(f"{self.name} was stopped; make a new one")
            if self._pool.started:
                return self
            try:
                self._open()
            except BaseException:
                self._release()
                raise
            self._pool.start()
        return self

    def run(self) -> None:
        """Serves until `stop` is called by another thread, or an exception (Ctrl-C) ends the wait; then stops.

        Raises:
            AddressInUse, ConfigError, TransportError: as `start` does.
        """
        self.start()
        try:
            while not self._pool.stopping.wait(1.0):
                self.raise_if_dead()
        finally:
            self.stop()

    @property
    def address(self) -> str:
        """Where it is bound, as a URI.

        Raises:
            Closed: before `start`.
        """
        if self._address is None:
            raise Closed(f"{self.name} is not started")
        return self._address.uri

    @property
    def pub_address(self) -> str:
        """Where its notices leave, as a URI; empty when it publishes none."""
        return "" if self._pub_address is None else self._pub_address.uri

    def publish(self, topic: str, payload: Tree) -> int:
        """Tells every subscriber of a topic; returns the notice's number. Slow subscribers get the newest, not all.

        The payload is copied: its arrays may change afterwards.

        Raises:
            PayloadError: when the payload can't travel, or a part of it is larger than `MAX_FRAME_BYTES`; for a topic that is no
                name, or one more than 1024.
            Closed: after `stop`, and where nothing is published.
            WorkerDied: when one of its threads has died.
        """
        stopped = self._pool.stopping.is_set()
        if stopped or self._pub is None:
            raise Closed(f"{self.name} {'was stopped' if stopped else 'publishes nothing: it has no pub address'}")
        self.raise_if_dead()
        number = self._publisher.post(topic, payload)
        self._wakeup.set()
        return number

    def status(self) -> dict[str, Any]:
        """What it has done: addresses, methods, callers, what waits by concurrency group, counters."""
        return {
            "name": self.name,
            "address": self._address.uri if self._address else "",
            "pub": self.pub_address,
            "methods": sorted(n for n in self._call_queue.methods if not n.startswith("$")),
            "callers": self._call_queue.sessions,
            "waiting": self._call_queue.waiting(),
            "running_s": self._pool.running_s,
            "topics": self._publisher.numbers(),
            "counters": self.counters.snapshot(),
        }

    def raise_if_dead(self) -> None:
        """Raises WorkerDied when one of its threads has died."""
        self._pool.raise_if_dead()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Refuses what waits (``closing``), answers what runs, joins the threads, closes the sockets. A second call does nothing.

        Called by a callback it only tells the threads to end.

        Raises:
            CallbackStuck: when a callback still runs after `timeout_s` seconds; its thread ends when it returns, and closes the
                sockets, which hold the address until then.
        """
        self._pool.stop()
        self._wakeup.set()
        if self._pool.is_inside:
            return
        self._pool.join(timeout_s)
        self._close_sockets()

    def close(self) -> None:
        """`stop` with its default time."""
        self.stop()

    # ---- sockets

    def _open(self) -> None:
        secure = self._authenticate()
        self._router = Socket.router(
            self._bind, send_hwm=1024, recv_hwm=1024, max_frame_bytes=self._max_frame_bytes, secure=secure, watch=False
        )
        if self._pub is not None:
            self._xpub = Socket.xpub(self._pub, hwm=NOTICE_HWM, secure=secure, grants=True)
            self._pub_address = self._xpub.bound
            self._poller.register(self._xpub)
        self._address = self._router.bound
        self._poller.register(self._router)
        self._poller.register(self._wakeup)

    def _adopt(self) -> None:
        for socket in (self._router, self._xpub):
            if socket is not None and not socket.closed and not socket.inherited:
                socket.adopt()

    def _close_sockets(self) -> None:
        """By the last of the threads, or whoever stops a server that has none."""
        self._poller.close()
        self._release()
        self._wakeup.close()

    def _release(self) -> None:
        self._adopt()
        for socket in (self._router, self._xpub):
            if socket is not None:
                socket.close()
        if self._authenticator is not None:
            self._authenticator.close()

    def _authenticate(self) -> Secure | None:
        if self._keys is None:
            return None
        self._authenticator = Authenticator(self._keys, self._users)
        self._authorizer = Authorizer(self._authenticator.watcher.access)
        self._authenticator.open(self._take_list)
        return self._authenticator.secure

    def _take_list(self, access: AccessList) -> None:
        """A new list of keys, in the thread that watches the file: each message is checked against the one in force."""
        if self._authorizer.replace(access):
            self._publisher.rotate()

    # ---- the leader's loop

    def _lead(self) -> None:
        """The loop of whoever has the sockets; returns when it has them no more."""
        assert self._router is not None
        beacon_s = look_s = time.monotonic()
        call_queue, poller, router = self._call_queue, self._poller, self._router
        wait_s: float | None = 0.0
        while not self._pool.stopping.is_set():
            if wait_s and wait_s < LEAST_POLL_S:  # for a batch to become fuller; a poll would take too long
                time.sleep(min(wait_s, NAP_S))
                wait_s = 0.0
            ready = poller.poll(wait_s)
            if self._wakeup in ready:
                self._wakeup.clear()
            if router in ready:
                for _ in range(MOST_AT_ONCE):
                    if not self._take_one(router) or call_queue.pressing:
                        break
            if self._finished or self._publisher.waiting:
                self._send_out(router)
            now = time.monotonic()
            if self._xpub is not None:
                if now - look_s >= LOOK_S or self._xpub in ready:
                    look_s = now
                    self._publisher.look(self._xpub, self._authorizer)
                if now - beacon_s >= BEACON_S:
                    beacon_s = now
                    if self._authorizer.lapsed(time.time()):
                        self._publisher.rotate()
                    self._publisher.send_beacons(self._xpub)
            job = call_queue.next_job(now)
            if job is not None and not self._run_job(job, router):
                return
            wait_s = call_queue.wait_s(time.monotonic())
            if self._xpub is not None:
                wait_s = min(max(0.0, beacon_s + BEACON_S - now), wait_s if wait_s is not None else BEACON_S)
        self._wind_up(router)

    # ---- what comes in

    def _take_one(self, router: Socket) -> bool:
        """Takes one message; False when there is none."""
        try:
            frames = router.recv(MAX_TREE_FRAMES + 2)
        except TooManyFrames:
            self.counters.add(f"refused.{Refusal.FRAMES}")
            return True
        if frames is None:
            return False
        now = time.monotonic()
        try:
            user = self._authorizer.admit(router.user, sum(len(f) for f in frames), now) if router.authenticated else None
            call = decode_call(frames[1:])
            if not isinstance(call, Call):
                raise ProtocolError(Refusal.DIRECTION, "only a server says that")
        except ProtocolError as exc:
            self.counters.add(f"refused.{exc.code}")
            log.debug("%s: a message that is no call: %s", self.name, exc)
            return True
        answer: list[Frame] | None
        try:
            if user is not None:
                self._check_rights(user, self._call_queue.methods.get(call.method))
            if call.method == HELLO:
                answer = self._executor.alone(call, partial(self._hello, call, now))
            else:
                answer = self._call_queue.take(bytes(frames[0]), call, now)
        except Refuse as refusal:
            self.counters.add(f"refused.{refusal.code}")
            answer = self._executor.refusal(call, refusal.code, refusal.detail)
        if answer is not None:
            self._send(router, bytes(frames[0]), answer)
        return True

    def _check_rights(self, user: User, method: Method | None) -> None:
        try:
            self._authorizer.check_role(user, method.role if method is not None else CALL_ROLE)
            if method is not None and method.client_id:
                self._authorizer.check_client(user, method.client_id)
        except ProtocolError as exc:
            raise Refuse(CallRefusal.FORBIDDEN, exc.detail) from exc

    # ---- jobs

    def _run_job(self, job: Job, router: Socket) -> bool:
        """Runs a job and answers; False when another thread has taken the lead meanwhile."""
        what = (
            job.concurrency_group if job.method.name == job.concurrency_group else f"{job.concurrency_group} ({job.method.name})"
        )
        answers, leads = self._pool.run(what, self._executor.run, job, long=job.long)
        if not leads:
            self._finished.append((job, answers))
            self._wakeup.set()
            return False
        self._finish(router, job, answers)
        return True

    def _finish(self, router: Socket, job: Job, answers: list[list[Frame]]) -> None:
        self._call_queue.finish(job, answers, time.monotonic())
        for request, answer in zip(job.requests, answers, strict=True):
            self._send(router, request.peer, answer)

    def _send(self, router: Socket, peer: bytes, frames: list[Frame]) -> None:
        if router.send([peer, *frames]) is not SendResult.OK:
            self.counters.add("gone")

    def _send_out(self, router: Socket) -> None:
        """What other threads have left: answers of long callbacks, and notices."""
        while self._finished:
            self._finish(router, *self._finished.popleft())
        if self._xpub is not None:
            self._publisher.send(self._xpub)

    def _wind_up(self, router: Socket) -> None:
        """What waits is refused; what runs in other threads is answered yet."""
        for request in self._call_queue.drop_all():
            self._send(
                router, request.peer, self._executor.refusal(request.call, CallRefusal.CLOSING, f"{self.name} is stopping")
            )
        self._poller.unregister(router)
        if self._xpub is not None:
            self._poller.unregister(self._xpub)
        while self._call_queue.busy and not self._pool.is_hurt:
            if self._wakeup in self._poller.poll(LOOK_S):
                self._wakeup.clear()
            self._send_out(router)

    # ---- what every server answers

    def _hello(self, call: Call, now: float) -> Tree:
        """Who this is, and since when it knows the caller; refuses one that expects other terms, by the fields that differ."""
        expected = call.payload.get("terms") if isinstance(call.payload, dict) else None
        if isinstance(expected, dict):
            pairs = [(field, expected.get(field), self._terms.get(field)) for field in sorted({*expected, *self._terms})]
            other = [
                f"{field} is {theirs!r} at the caller and {ours!r} at the server"
                for field, theirs, ours in pairs
                if not _agree(theirs, ours)
            ]
            if other:
                raise Refuse(CallRefusal.MISMATCH, "; ".join(other))
        return {
            "server": self._id,
            "name": self.name,
            "methods": [n for n in self._call_queue.methods if not n.startswith("$")],
            "max_frame_bytes": self._max_frame_bytes,
            "pub": self._pub_address.uri if self._pub_address is not None else "",
            "channel": self._publisher.channel,
            "terms": self._terms,
            "since": self._call_queue.open_session(call.session, call.number, now),
        }

    def _status(self, payload: Tree) -> Tree:
        return self.status()


def _agree(theirs: Tree, ours: Tree) -> bool:
    """Whether two terms are equal: as Python has it, but for arrays (by dtype, shape and content) and NaN (which is itself)."""
    if isinstance(theirs, np.ndarray) or isinstance(ours, np.ndarray):
        if type(theirs) is not type(ours):
            return False
        return (theirs.dtype, theirs.shape, theirs.tobytes()) == (ours.dtype, ours.shape, ours.tobytes())
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return theirs.keys() == ours.keys() and all(_agree(theirs[key], ours[key]) for key in theirs)
    for kind in (list, tuple):
        if isinstance(theirs, kind) and isinstance(ours, kind):
            return len(theirs) == len(ours) and all(map(_agree, theirs, ours))
    return bool(theirs == ours or (theirs != theirs and ours != ours))  # noqa: PLR0124 (only NaN differs from itself)
