"""`Server`: a bound ROUTER for calls, a bound XPUB for publications, and a pool of threads.

Only the leader of the pool (`rl4sys_zmq.rpc.leader_followers`) uses the sockets and the `CallQueue`: it reads messages, runs
the next callback, and sends the replies. If a callback takes long, another thread becomes the leader, and later sends the
replies of that callback. A slow callback therefore delays only the methods of its own concurrency group.
"""

from __future__ import annotations

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

from rl4sys_zmq import transports
from rl4sys_zmq.config.options import TIMEOUT_S, check_value, flag, mapping, optional, path
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallRefusalReason, Closed, ConfigError, ProtocolError, RefusalReason
from rl4sys_zmq.liveness import BEACON_S, SilenceTimer
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.loopback import is_local
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc.call_queue import CallbackRun, CallQueue, CallRefusedByCallback, Handler, ServerMethod
from rl4sys_zmq.rpc.executor import CallExecutor, per_call
from rl4sys_zmq.rpc.leader_followers import LeaderFollowerPool
from rl4sys_zmq.rpc.topics import TopicPublisher
from rl4sys_zmq.security.access import AccessList, User
from rl4sys_zmq.security.authenticator import Authenticator
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.transports import Address, Frame, Poller, SendResult, Socket, TooManyFrames, Wakeup
from rl4sys_zmq.values.trees import Tree
from rl4sys_zmq.wire.rpc import Call, decode_call
from rl4sys_zmq.wire.trees import MAX_TREE_FRAMES

log = get_logger(__name__)

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""The largest frame of a call, and so of one array in a call."""
MAX_ANSWER_FRAME_BYTES = transports.MAX_FRAME_BYTES
"""The largest frame of a reply or a publication. A caller receives no larger one."""
CLOSE_CHECK_S = 0.1
LEAST_POLL_S, NAP_S = 0.001, 0.000_1
"""The shortest poll of the server's sockets, and the longest sleep in place of a shorter poll."""
CALL_ROLE = "call"
MAX_READS_PER_TURN = 256
HELLO, LATEST, STATUS = "$hello", "$latest", "$status"
PUBLICATION_HWM = 8

_rng = random.SystemRandom()


@dataclass(frozen=True)
class BatchLimits:
    """The limits for combining several calls of one method into a batch, which one run of the callback serves.

    Attributes:
        max_size: The largest number of calls in one batch.
        max_wait_s: The longest time in seconds that the first call of a batch waits for further calls. With 0, a batch has the
            calls that arrived while the previous batch ran. With None, a batch waits until the callers of the last batches have
            called again, but at most for a quarter of the duration of the last batch, and at most 20 ms. If there is only one
            caller, its calls never wait.
    """

    max_size: int = 32
    max_wait_s: float | None = None


class Server(Resource):
    """A server that runs registered callbacks for remote callers, and publishes messages to the subscribers of topics.

    Register methods, then call `start` or `run`. `stop` ends the threads and joins them.

    Attributes:
        counters: Numbers of events: ``calls``, ``jobs`` (runs of callbacks), ``again`` (copies of calls), ``failed`` (callbacks
            that raised), ``refused.CODE`` for refused calls and messages, ``gone`` for replies that could not be sent because
            the connection had ended, ``takeovers`` (another thread took over the sockets because a callback took long),
            ``notices`` (publications).
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
        """Create a server without binding it.

        Args:
            bind: The address for calls.
            name: The name of the service, for threads and logs.
            pub: The address for publications. None: the server publishes nothing.
            terms: Settings that must be equal at server and caller, such as a version. The server refuses the calls of a caller
                whose own `terms` differ. A caller without `terms` is not checked.
            keys: The folder of the server's keys (`rl4sys-learner keys DIR`). None: any peer that reaches the address can call.
            users: The file with the access list, which gives each user its roles. None: ``users.toml`` in the folder `keys`.
            insecure: True to let other machines connect without keys.
            max_frame_bytes: Largest frame to accept, in bytes. A peer that sends a longer one loses its connection.

        Raises:
            ConfigError: If other machines can reach an address and neither `keys` nor `insecure` is given, `users` is given
                without `keys`, or an argument has the wrong type.
            TransportError: If an address is invalid.
        """
        key_folder, access_list = check_value("keys", keys, optional(path)), check_value("users", users, optional(path))
        insecure = check_value("insecure", insecure, flag)
        if users is not None and keys is None:
            raise ConfigError(f"users: the access list {users} has no effect without keys; give keys=DIR", key="users")
        for where in (bind, pub):
            if where is not None and keys is None and not insecure and not is_local(uri := Address.parse(where).uri):
                raise ConfigError(
                    f"{uri} lets other machines in without keys; create keys with "
                    "`rl4sys-learner keys DIR`, bind 127.0.0.1, or allow it with insecure=True (--insecure)",
                    key="bind",
                )
        self.name = name
        self.counters = Counters()
        self._bind, self._pub = bind, pub
        self._terms = check_value("terms", {} if terms is None else terms, mapping)
        self._keys, self._users = key_folder, access_list
        self._authenticator: Authenticator | None = None
        self._authorizer = Authorizer(None)
        self._max_frame_bytes = max_frame_bytes
        self._id = _rng.getrandbits(63)
        self._call_queue = CallQueue(self.counters)
        self._executor = CallExecutor(name, self._id, self.counters, MAX_ANSWER_FRAME_BYTES)
        self._publisher = TopicPublisher(self._id, self.counters, MAX_ANSWER_FRAME_BYTES)
        self._lock = threading.Lock()
        self._pool = LeaderFollowerPool(name, self._lead, self._adopt, self._close_sockets, self.counters)
        self._wakeup = Wakeup()
        self._poller = Poller()
        self._beacon, self._look = SilenceTimer(BEACON_S), SilenceTimer(CLOSE_CHECK_S)  # a new leader goes on with them
        self._finished: deque[tuple[CallbackRun, list[list[Frame]]]] = deque()
        self._router: Socket | None = None
        self._xpub: Socket | None = None
        self._address: Address | None = None
        self._pub_address: Address | None = None
        for system, run in ((LATEST, self._publisher.latest), (STATUS, lambda payload: self.status())):
            self._call_queue.register(ServerMethod(system, per_call(run), "$", CALL_ROLE))

    def register(
        self,
        name: str,
        run: Callable[[Tree], Tree] | Handler,
        *,
        concurrency_group: str | None = None,
        role: str = CALL_ROLE,
        batching: BatchLimits | None = None,
        max_queue: int = 1024,
        client_id: str = "",
    ) -> None:
        """Add a method. The server can be running.

        Args:
            name: The name that callers use.
            run: The callback. It takes the payload of a call and returns the payload of the reply. With `batching`, it takes a
                list of payloads and returns a list with one result for each. If it raises, the caller gets the exception as
                `CallFailed`. Arrays in payloads are read-only.
            concurrency_group: The name of the concurrency group. Methods of one group never run at the same time. None: a group
                with only this method.
            role: The role that the caller's key must have.
            batching: The limits for combining calls into batches. None: the callback gets one call at a time.
            max_queue: The largest number of calls that wait in the concurrency group. Further calls are refused (``busy``).
            client_id: The client for which the caller's key must be valid. Empty: any client.

        Raises:
            ConfigError: If a name is invalid or already registered, or a number is out of range.
        """
        if not isinstance(batching, BatchLimits | None):
            raise ConfigError(f"{name!r:.60}: batching is {batching!r:.60}; expected BatchLimits or None", key="batching")
        handler: Handler = run if batching is not None else per_call(run)
        size, wait_s = (batching.max_size, batching.max_wait_s) if batching is not None else (1, 0.0)
        group = name if concurrency_group is None else concurrency_group
        with self._lock:
            self._call_queue.register(ServerMethod(name, handler, group, role, size, wait_s, max_queue, client_id))

    def unregister(self, name: str) -> None:
        """Remove a method, if there is one with this name. Its waiting calls still run."""
        with self._lock:
            self._call_queue.unregister(name)

    def start(self) -> Self:
        """Bind the addresses, start the threads of the server, and return the server.

        After an error you can call it again, unless the system could not start a thread.

        Raises:
            AddressInUse: If another socket is bound to the address.
            ConfigError: If keys are missing, invalid, or readable by other users of the machine.
            TransportError: If an address cannot be bound.
            Closed: If `stop` was called before.
            RuntimeError: If the system cannot start a thread. The server is then stopped.
        """
        with self._lock:
            if self._pool.stopping.is_set():
                raise Closed(f"{self.name} was stopped; create a new server")
            if self._pool.started:
                return self
            try:
                self._open()
            except BaseException:
                self._release()
                raise
            try:
                self._pool.start()
            except BaseException:
                self.stop()  # one of the threads can be running, with the sockets
                raise
        return self

    def run(self) -> None:
        """Start the server, and wait until another thread calls `stop` or an exception (Ctrl-C) arrives. Then stop the server.

        Raises:
            AddressInUse, ConfigError, TransportError: For the reasons that `start` lists.
            WorkerDied: If a thread of the server ends with an error.
        """
        self.start()
        try:
            while not self._pool.stopping.wait(1.0):
                self.raise_if_dead()
        finally:
            self.stop()

    @property
    def address(self) -> str:
        """The bound address for calls, as a URI.

        Raises:
            Closed: If the server is not started.
        """
        if self._address is None:
            raise Closed(f"{self.name} is not started")
        return self._address.uri

    @property
    def pub_address(self) -> str:
        """The bound address for publications, as a URI. Empty if the server publishes nothing or is not started."""
        return "" if self._pub_address is None else self._pub_address.uri

    def publish(self, topic: str, payload: Tree) -> int:
        """Publish a payload to all subscribers of a topic, and return the number of the publication.

        The publications of a topic have the numbers 1, 2, and so on. A slow subscriber gets the newest publication and can miss
        earlier ones. The payload is copied, so its arrays can change after this call.

        Raises:
            PayloadError: If the payload cannot be encoded, a frame of it is larger than `MAX_ANSWER_FRAME_BYTES`, the topic is
                not a valid name, or 1024 other topics are published already.
            Closed: If the server was stopped, or has no address for publications.
            WorkerDied: If a thread of the server has ended with an error.
        """
        stopped = self._pool.stopping.is_set()
        if stopped or self._pub is None:
            raise Closed(f"{self.name} {'was stopped' if stopped else 'cannot publish: it has no pub address'}")
        self.raise_if_dead()
        number = self._publisher.post(topic, payload)
        self._wakeup.set()
        return number

    def status(self) -> dict[str, Any]:
        """Return a dict with the addresses, the methods, the number of callers, the waiting calls, the topics and the counters.

        The callers are the connections on which a call has arrived within the last ten minutes. The waiting calls are given by
        concurrency group, and the topics with the number of their newest publication.
        """
        return {
            "name": self.name,
            "address": self._address.uri if self._address else "",
            "pub": self.pub_address,
            "methods": sorted(n for n in self._call_queue.methods if not n.startswith("$")),
            "callers": self._call_queue.windows.heard(time.monotonic()),
            "waiting": self._call_queue.waiting(),
            "running_s": self._pool.running_s,
            "topics": self._publisher.numbers(),
            "counters": self.counters.snapshot(),
        }

    def raise_if_dead(self) -> None:
        """Raise WorkerDied if a thread of the server has ended with an error."""
        self._pool.raise_if_dead()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop the server, join its threads and close its sockets. A second call does nothing.

        Waiting calls are refused (``closing``). Running calls get their replies. In a callback of this server, `stop` only asks
        the threads to end and returns at once.

        Args:
            timeout_s: Longest time to wait for the threads, in seconds.

        Raises:
            CallbackStuck: If a callback still runs after `timeout_s`. Its thread ends when the callback returns, and then
                closes the sockets. Until then the address stays bound.
            ConfigError: If `timeout_s` is out of range. The server then still runs.
        """
        check_value("timeout_s", timeout_s, TIMEOUT_S)
        self._pool.stop()
        self._wakeup.set()
        if self._pool.in_pool_thread:
            return
        self._pool.join(timeout_s)
        self._close_sockets()

    def close(self) -> None:
        """Call `stop` with its default timeout."""
        self.stop()

    def _open(self) -> None:
        secure = None
        if self._keys is not None:
            self._authenticator = Authenticator(self._keys, self._users)
            self._authorizer = Authorizer(self._authenticator.watcher.access)
            self._authenticator.open(self._replace_access_list)
            secure = self._authenticator.secure
        self._router = Socket.router(
            self._bind, send_hwm=1024, recv_hwm=1024, max_frame_bytes=self._max_frame_bytes, secure=secure
        )
        if self._pub is not None:
            self._xpub = Socket.xpub(self._pub, hwm=PUBLICATION_HWM, secure=secure, grants=True)
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
        """Close the sockets, in the last thread of the pool or in `stop` after all threads have ended."""
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

    def _replace_access_list(self, access: AccessList) -> None:
        """Use a new access list. The thread that watches the list's file calls this."""
        if self._authorizer.replace(access):
            self._publisher.change_channel()

    def _lead(self) -> None:
        """Receive calls, run callbacks and send replies, until the server stops or another thread leads."""
        assert self._router is not None
        call_queue, poller, router, beacon, look = self._call_queue, self._poller, self._router, self._beacon, self._look
        wait_s: float | None = 0.0
        while not self._pool.stopping.is_set():
            if wait_s and wait_s < LEAST_POLL_S:  # wait for more calls of a batch; a poll would take too long
                time.sleep(min(wait_s, NAP_S))
                wait_s = 0.0
            ready = poller.poll(wait_s)
            if self._wakeup in ready:
                self._wakeup.clear()
            if router in ready:
                for _ in range(MAX_READS_PER_TURN):
                    if not self._take_one(router) or call_queue.run_now:
                        break
            if self._finished or self._publisher.waiting:
                self._send_out(router)
            now = time.monotonic()
            if self._xpub is not None:
                if look.expired(now) or self._xpub in ready:
                    look.restart(now)
                    self._publisher.look(self._xpub, self._authorizer)
                if beacon.expired(now):
                    beacon.restart(now)
                    if self._authorizer.lapsed(time.time()):
                        self._publisher.change_channel()
                    self._publisher.send_beacons(self._xpub)
            job = call_queue.next_job(now)
            if job is not None and not self._run_job(job, router):
                return
            wait_s = call_queue.wait_s(time.monotonic())
            if self._xpub is not None:
                wait_s = min(max(0.0, beacon.deadline - now), wait_s if wait_s is not None else BEACON_S)
        self._drain(router)

    def _take_one(self, router: Socket) -> bool:
        """Receive and handle one message. Return False if no message was waiting."""
        try:
            frames = router.recv(MAX_TREE_FRAMES + 2)
        except TooManyFrames:
            self.counters.add(f"refused.{RefusalReason.FRAMES}")
            return True
        if frames is None:
            return False
        now = time.monotonic()
        try:
            user = self._authorizer.admit(router.user, sum(len(f) for f in frames), now) if router.authenticated else None
            call = decode_call(frames[1:])
            if not isinstance(call, Call):
                raise ProtocolError(RefusalReason.DIRECTION, "only a server sends this message")
        except ProtocolError as exc:
            self.counters.add(f"refused.{exc.code}")
            log.debug("%s: refused a message: %s", self.name, exc)
            return True
        answer: list[Frame] | None
        try:
            if user is not None:
                self._check_rights(user, self._call_queue.methods.get(call.method))
            if call.method == HELLO:
                answer = self._executor.alone(call, partial(self._hello, call, now))
            else:
                answer = self._call_queue.on_call(bytes(frames[0]), call, now)
        except CallRefusedByCallback as refusal:
            self.counters.add(f"refused.{refusal.code}")
            answer = self._executor.refusal(call, refusal.code, refusal.detail)
        if answer is not None:
            self._send(router, bytes(frames[0]), answer)
        return True

    def _check_rights(self, user: User, method: ServerMethod | None) -> None:
        try:
            self._authorizer.check_role(user, method.role if method is not None else CALL_ROLE)
            if method is not None and method.client_id:
                self._authorizer.check_client(user, method.client_id)
            if method is not None and method.name == LATEST:  # the same right as for a subscription
                self._authorizer.check_reader(user)
        except ProtocolError as exc:
            raise CallRefusedByCallback(CallRefusalReason.FORBIDDEN, exc.detail) from exc

    def _run_job(self, job: CallbackRun, router: Socket) -> bool:
        """Run a callback and send the replies. Return False if another thread leads now; that thread sends the replies."""
        group, name = job.method.concurrency_group, job.method.name
        what = group if name == group else f"{group} ({name})"
        answers, leads = self._pool.run(what, self._executor.run, job, long=job.long)
        if not leads:
            self._finished.append((job, answers))
            self._wakeup.set()
            return False
        self._finish(router, job, answers)
        return True

    def _finish(self, router: Socket, job: CallbackRun, answers: list[list[Frame]]) -> None:
        self._call_queue.finish(job, answers, time.monotonic())
        for request, answer in zip(job.requests, answers, strict=True):
            self._send(router, request.peer, answer)

    def _send(self, router: Socket, peer: bytes, frames: list[Frame]) -> None:
        if router.send([peer, *frames]) is not SendResult.OK:
            self.counters.add("gone")

    def _send_out(self, router: Socket) -> None:
        while self._finished:
            self._finish(router, *self._finished.popleft())
        if self._xpub is not None:
            self._publisher.send(self._xpub)

    def _drain(self, router: Socket) -> None:
        """Refuse all waiting calls, then wait for callbacks in other threads and send their replies."""
        for request in self._call_queue.drop_all():
            self._send(
                router, request.peer, self._executor.refusal(request.call, CallRefusalReason.CLOSING, f"{self.name} is stopping")
            )
        self._poller.unregister(router)
        if self._xpub is not None:
            self._poller.unregister(self._xpub)
        while self._call_queue.busy and not self._pool.has_failed:
            if self._wakeup in self._poller.poll(CLOSE_CHECK_S):
                self._wakeup.clear()
            self._send_out(router)

    def _hello(self, call: Call, now: float) -> Tree:
        """Answer ``$hello``: open a session for the caller, and describe the server."""
        expected = call.payload.get("terms") if isinstance(call.payload, dict) else None
        if isinstance(expected, dict):
            pairs = [(field, expected.get(field), self._terms.get(field)) for field in sorted({*expected, *self._terms})]
            other = [
                f"{field} is {theirs!r} at the caller and {ours!r} at the server"
                for field, theirs, ours in pairs
                if not _agree(theirs, ours)
            ]
            if other:
                raise CallRefusedByCallback(CallRefusalReason.MISMATCH, "; ".join(other))
        return {
            "server": self._id,
            "name": self.name,
            "methods": [n for n in self._call_queue.methods if not n.startswith("$")],
            "max_frame_bytes": self._max_frame_bytes,
            "pub": self._pub_address.uri if self._pub_address is not None else "",
            "channel": self._publisher.channel,
            "terms": self._terms,
            "since": self._call_queue.windows.open(call.session, call.number, now),
        }


def _agree(theirs: Tree, ours: Tree) -> bool:
    """Return True if two settings are equal. Arrays must agree in dtype, shape and contents; NaN equals NaN."""
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
