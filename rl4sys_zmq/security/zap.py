"""A ZAP handler: a thread that answers libzmq's requests to authenticate connecting peers (ZAP 1.0, ZeroMQ RFC 27).

A bound socket can have a *ZAP domain*, a name. For each peer that connects to such a socket, libzmq sends a request to
``inproc://zeromq.zap.01``. This address exists once per context, so there is one handler per process. It starts with the first
domain and ends with the last.

If the handler does not run, no peer can connect, because `curve_server` sets ZAP_ENFORCE_DOMAIN. A peer of a domain that is not
registered is denied. Register a domain before its sockets are bound.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass

from zmq.utils import z85

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Resource, Worker, call_in_child
from rl4sys_zmq.transports.frames import TooManyFrames
from rl4sys_zmq.transports.poller import Poller, Wakeup
from rl4sys_zmq.transports.sockets import Socket

log = get_logger(__name__)

ZAP_ADDRESS = "inproc://zeromq.zap.01"
MAX_USER_ID_BYTES = 255

_CLOSE_WAIT_S = 2.0
_MAX_FRAMES = 12
_REASON = re.compile(r"[a-z_]{1,32}")
_OK, _DENIED, _FAULT = b"200", b"400", b"500"


@dataclass(frozen=True, slots=True)
class Denial:
    """The result of a function that denies a connecting peer. The reason is counted, and not sent to the peer."""

    reason: str  # 1 to 32 lower-case letters and underscores, such as ``unlisted``. The denial is counted as ``denied.REASON``.


Check = Callable[[str], "str | Denial"]
"""A function that accepts or denies a connecting peer, by its public key, for which it has proved that it has the secret key.

It returns a `Denial`, or the user id of the peer (1 to 255 bytes in UTF-8). libzmq then adds this id to each message of the
peer. The function runs in the handler's thread, for one peer at a time, so it must not block.
"""


class ZapDomain(Resource):
    """A name of sockets whose peers one function checks. After `close`, no peer can connect. Close the sockets first."""

    def __init__(self, name: str, check: Check, handler: _ZapThread) -> None:
        self.name = name
        self.check = check
        # numbers of peers: ``accepted``, ``denied.mechanism`` (not CURVE), ``denied.error`` (the check function has raised
        # an error), and ``denied.REASON`` for each reason that the check function gives
        self.counters = Counters()
        self._handler = handler
        self._pid = os.getpid()

    @property
    def alive(self) -> bool:
        """True while this domain is registered and the handler runs."""
        return self._handler.alive and self._handler.domains.get(self.name) is self

    def raise_if_dead(self) -> None:
        """Raise WorkerDied if the handler has ended with an error. No peer can connect in that case."""
        self._handler.raise_if_dead()

    def close(self) -> None:
        """Unregister the domain, so that no peer can connect to its sockets.

        The last domain to close ends the handler, and waits for at most 2 s.
        """
        if self._pid != os.getpid():
            return  # inherited by a fork: it belongs to the parent
        with _process.lock:
            if self._handler.domains.get(self.name) is not self:
                return
            del self._handler.domains[self.name]
            last = not self._handler.domains
        if last:
            self._handler.stop()
            if not self._handler.join(_CLOSE_WAIT_S):
                log.warning("a check of ZAP domain %r has not returned; the handler's thread ends when it returns", self.name)


def register_domain(name: str, check: Check) -> ZapDomain:
    """Register a function that checks the keys of all peers that connect to the sockets of a ZAP domain.

    Raises:
        ConfigError: If the name is empty or has more than 255 bytes.
        TransportError: If the domain is already registered, or another ZAP handler is bound in this context.
    """
    if not 0 < len(name.encode("utf-8")) <= MAX_USER_ID_BYTES:
        raise ConfigError(f"{name!r} is not a ZAP domain; use 1 to {MAX_USER_ID_BYTES} bytes", key="zap_domain")
    with _process.lock:
        handler = _process.handler
        if handler is None or not handler.alive:
            handler = _process.handler = _ZapThread()
            handler.start()
        if name in handler.domains:
            raise TransportError(f"the ZAP domain {name!r} is already registered; close it first, or choose another name")
        domain = handler.domains[name] = ZapDomain(name, check, handler)
    return domain


class _ZapThread(Worker):  # pyzmq's authenticator is not used, because an exception in a callback ends its thread
    """The thread that answers libzmq's requests for all ZAP domains of the process. A malformed request does not end it."""

    def __init__(self) -> None:
        super().__init__("rl4sys-zap")
        self.domains: dict[str, ZapDomain] = {}
        self.counters = Counters()
        self._wakeup = Wakeup()
        try:
            self._router = Socket.router(ZAP_ADDRESS)  # the thread adopts it
        except TransportError as exc:
            self._wakeup.close()
            raise TransportError(f"cannot start the ZAP handler: {exc}") from exc

    def start(self) -> None:
        try:
            super().start()
        except BaseException:
            self._router.close()
            self._wakeup.close()
            raise

    def run(self) -> None:
        self._router.adopt()
        with self._wakeup, self._router as router, Poller() as poller:
            poller.register(router)
            poller.register(self._wakeup)
            while not self._ended():
                poller.poll(None)
                self._wakeup.clear()
                self._serve(router)

    def stop(self) -> None:
        super().stop()
        self._wakeup.set()

    def _ended(self) -> bool:
        # The lock is held from the check to the end, so that no domain can be registered with a thread that ends.
        with _process.lock:
            if self.domains or not self._stop_asked.is_set():
                return False
            if _process.handler is self:
                _process.handler = None
            self._router.close()
            return True

    def _serve(self, router: Socket) -> None:
        """Reply to one request, if one has arrived. The caller checks for `stop` between two requests."""
        try:
            frames = router.recv(_MAX_FRAMES)
        except TooManyFrames:
            self.counters.add("malformed")
            return
        if frames is None:
            return
        # From libzmq: the routing id of the reply, an empty frame, version, request id, domain, address, identity, mechanism,
        # credentials.
        peer, request = frames[0], [bytes(frame) for frame in frames[1:]]
        if len(request) < 7 or request[0] or request[1] != b"1.0":
            self.counters.add("malformed")
            if len(request) > 2:
                router.send([peer, b"", b"1.0", request[2], _FAULT, b"malformed request", b"", b""])
            return
        status, user = self._answer(request[3], request[6], request[7:])
        router.send([peer, b"", b"1.0", request[2], status, b"", user, b""])

    def _answer(self, name: bytes, mechanism: bytes, shown: list[bytes]) -> tuple[bytes, bytes]:
        domain = self.domains.get(name.decode("utf-8", "replace"))
        if domain is None:
            self.counters.add("denied.domain")
            return _DENIED, b""
        if mechanism != b"CURVE" or len(shown) != 1 or len(shown[0]) != 32:
            domain.counters.add("denied.mechanism")
            return _DENIED, b""
        try:
            user = _user_id(domain.check(z85.encode(shown[0]).decode("ascii")))
        except Exception:
            log.exception("the check of ZAP domain %r failed; the peer is denied", domain.name)
            domain.counters.add("denied.error")
            return _FAULT, b""
        if isinstance(user, Denial):
            domain.counters.add(f"denied.{user.reason}")
            return _DENIED, b""
        if self.domains.get(domain.name) is not domain:  # closed while the check ran
            return _DENIED, b""
        domain.counters.add("accepted")
        return _OK, user


def _user_id(verdict: object) -> bytes | Denial:
    # An empty id is invalid, because libzmq does not distinguish it from a missing id.
    if isinstance(verdict, Denial):
        if not _REASON.fullmatch(verdict.reason):
            raise ValueError(f"{verdict.reason!r} is not a valid reason; use at most 32 lower-case letters and underscores")
        return verdict
    if not isinstance(verdict, str):
        raise TypeError(f"a check must return a user id or Denial, not {type(verdict).__name__}")
    user = verdict.encode("utf-8")
    if not 0 < len(user) <= MAX_USER_ID_BYTES or b"\0" in user:
        raise ValueError(f"the user id has {len(user)} bytes; expected 1 to {MAX_USER_ID_BYTES} bytes, none of them zero")
    return user


class _ProcessState:
    """The ZAP handler of this process. A forked child starts another one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.handler: _ZapThread | None = None
        self._inherited: list[_ZapThread | None] = []  # referenced, so that a child never closes the parent's sockets

    def reset(self) -> None:
        self._inherited.append(self.handler)
        self.lock, self.handler = threading.Lock(), None


_process = _ProcessState()
call_in_child(_process, _ProcessState.reset)
