"""The connections of a `Caller` to its server, and the thread for futures and subscriptions."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from rl4sys_zmq.errors import CallTimeout, Closed, ProtocolError, TransportError, WorkerDied
from rl4sys_zmq.liveness import LATEST_RETRY_S, PUBLISHER_SILENCE_S, SilenceTimer
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.rpc.session import WINDOW, CallerSession, CallHandle
from rl4sys_zmq.rpc.topics import topic_frame
from rl4sys_zmq.transports import Address, Frame, Poller, Secure, SendResult, Socket, TooManyFrames, Wakeup
from rl4sys_zmq.values.trees import Tree
from rl4sys_zmq.wire.rpc import Publication, decode_call
from rl4sys_zmq.wire.trees import MAX_TREE_FRAMES

log = get_logger(__name__)

PUBLICATION_HWM = 8
JOIN_S = 2.0
CLOSE_CHECK_S = 1.0
CALL_CHECK_S = 0.5
"""The interval at which a waiting call checks whether its `Caller` was closed."""


class ServerConnection(Resource):
    """A caller's connection to a server. One thread at a time uses it. Its socket is created at the first use."""

    def __init__(self, address: Address, session: CallerSession, secure: Secure | None) -> None:
        self.address, self.session, self.secure = address, session, secure
        self._socket: Socket | None = None

    def socket(self) -> Socket:
        """Return the socket, which the calling thread then owns. Create the socket if there is none."""
        if self._socket is None:
            self._socket = Socket.dealer(self.address, secure=self.secure, send_hwm=WINDOW, recv_hwm=WINDOW)
        else:
            self._socket.adopt()
        return self._socket

    def send_due(self, now: float) -> None:
        """Send the calls that must be sent now."""
        socket = self.socket()
        for pending in self.session.due(now):
            if socket.send(pending.frames) is SendResult.FULL:
                self.session.not_sent(pending, now)

    def call(self, method: str, payload: Tree, timeout_s: float, once: bool, closed: threading.Event) -> Tree:
        """Call a method and return the reply's payload. Raise the errors of `Caller.call`, also when `closed` is set."""
        session = self.session
        now = time.monotonic()
        pending = session.start_call(method, payload, now, timeout_s, once=bool(once))
        try:
            while not pending.done:
                if closed.is_set():
                    raise Closed(f"the caller of {self.address.uri} was closed during {method}")
                if session.should_reconnect(now):
                    self.disconnect()
                self.send_due(now)
                frames = receive(self.socket(), min(session.wait_s(now), CALL_CHECK_S))
                now = time.monotonic()
                if frames is not None:
                    session.on_message(frames, now)
                else:
                    session.expire(now)
        finally:
            if not pending.done:  # Ctrl-C, or the caller was closed: the connection's next call must not resend this one
                session.end(pending, Closed(f"the wait for {method} was ended"))
                self.disconnect()
        if pending.error is None:
            return pending.answer
        if isinstance(pending.error, CallTimeout):
            self.disconnect()
        raise pending.error

    def disconnect(self) -> None:
        """Close the socket, so that the messages in its queue reach no server that starts later."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def close(self) -> None:
        """Close the socket, in any thread, when no call runs."""
        if self._socket is not None:
            self._socket.adopt()
        self.disconnect()


def receive(socket: Socket, timeout_s: float = 0.0) -> list[Frame] | None:
    """Receive a message. Return its frames, ``[]`` if they are more than a reply can have, or None if none arrives in time."""
    try:
        return socket.recv_wait(timeout_s, MAX_TREE_FRAMES + 2) if timeout_s else socket.recv(MAX_TREE_FRAMES + 2)
    except TooManyFrames:
        return []


class Subscription(Worker):
    """A subscription to one topic: a thread that passes the newest publication of the topic to a callback.

    Attributes:
        topic: The name of the topic.
        number: The number of the last publication that the callback has handled. 0 before the first one.
        ended: True after `stop`.
        asking: True while a request for the newest publication waits for its reply.
        asked_s: The time of the last request for the newest publication, in seconds.
    """

    def __init__(self, topic: str, callback: Callable[[Tree, int], None], session: CallerSession) -> None:
        super().__init__(f"rl4sys-notices-{topic}")
        self.topic = topic
        self.number = 0
        self._callback = callback
        self._counters = session.counters
        self._ready = threading.Condition()
        self._newest: tuple[Tree, int] | None = None
        self.ended = False
        self._server, self._seen = 0, 0
        self.asking, self.asked_s = False, float("-inf")

    def offer(self, server: int, number: int, payload: Tree) -> None:
        """Pass a received publication to the subscription. It is dropped if it is not newer than the last one.

        Args:
            server: The random number that identifies this start of the server.
            number: The number of the publication within the topic.
            payload: The content of the publication.
        """
        if server == self._server and number <= self._seen:
            return
        self._server, self._seen = server, number
        with self._ready:
            if self._newest is not None:
                self._counters.add("skipped")
            self._newest = payload, number
            self._ready.notify()

    def is_behind(self, server: int, latest: int) -> bool:
        """Return True if this subscription has missed the newest publication of its topic.

        Args:
            server: The random number that identifies this start of the server.
            latest: The number of the newest publication of the topic; 0 if there is none.
        """
        return latest > 0 and (server != self._server or latest > self._seen)

    def run(self) -> None:
        """Wait for publications and call the callback with each, until `stop`."""
        while True:
            with self._ready:
                while self._newest is None and not self.ended:
                    self._ready.wait()
                if self.ended:
                    return
                assert self._newest is not None
                (payload, number), self._newest = self._newest, None
            self._counters.add("notices")
            try:
                self._callback(payload, number)
            except (Exception, SystemExit):  # sys.exit() would end only this thread, silently
                self._counters.add("callback_failed")
                log.exception("the callback for publications of %s failed", self.topic)
            self.number = number

    def stop(self) -> None:
        """End the subscription. A running callback is not interrupted."""
        with self._ready:
            self.ended = True
            self._ready.notify()


class AsyncCallThread(Worker, Resource):
    """The thread of a `Caller` for futures and subscriptions, with a DEALER for calls and a SUB for publications."""

    def __init__(self, line: ServerConnection) -> None:
        super().__init__("rl4sys-calls")
        self._line, self._address, self._session = line, line.address, line.session
        self._lock = threading.Lock()  # guards the session: any thread begins calls, this one does the rest
        self._wakeup = Wakeup()
        self._subscriptions: list[Subscription] = []
        self._wanted: deque[Subscription] = deque()
        self._pub = ("", b"")  # the publisher's address, and the channel
        self._sub: Socket | None = None
        self._silence = SilenceTimer(PUBLISHER_SILENCE_S)

    def submit(self, method: str, payload: Tree, timeout_s: float, once: bool) -> Future[Tree]:
        """Start a call without waiting, and return a future for its result. Any thread can call this."""
        future: Future[Tree] = Future()

        def tell(pending: CallHandle) -> None:
            if future.set_running_or_notify_cancel():
                if pending.error is not None:
                    future.set_exception(pending.error)
                else:
                    future.set_result(pending.answer)

        with self._lock:
            self._check_open()
            self._session.start_call(method, payload, time.monotonic(), timeout_s, once=bool(once), tell=tell)
        self._wakeup.set()
        return future

    def subscribe(self, topic: str, callback: Callable[[Tree, int], None]) -> Subscription:
        """Run `callback` for publications of a topic, in a new thread, until the result's `stop`. Any thread can call this."""
        subscription = Subscription(topic, callback, self._session)
        with self._lock:
            self._check_open()
            subscription.start()
            self._wanted.append(subscription)
        self._wakeup.set()
        return subscription

    def run(self) -> None:
        """Send calls, receive replies and publications until `stop`, then end all calls and subscriptions."""
        error: BaseException | None = None
        try:
            self._serve()
        except BaseException as exc:
            error = exc
            raise
        finally:
            self._end(error)

    def stop(self) -> None:
        """Ask the thread to end, and return at once."""
        self._stop_asked.set()
        self._wakeup.set()

    def close(self) -> None:
        """End the thread and its subscriptions. Any thread can call this, also a callback that runs in this very thread."""
        self.stop()
        me = threading.get_ident()
        if self.ident != me:
            self.join()
        for subscription in self._all():
            if me not in (subscription.ident, self.ident) and not subscription.join(JOIN_S):
                log.warning("the callback for publications of %s still runs; its thread ends when it returns", subscription.topic)

    def _check_open(self) -> None:
        self.raise_if_dead()
        if self._stop_asked.is_set():
            raise Closed(f"the caller of {self._address.uri} is closed")

    def _serve(self) -> None:
        poller = Poller()
        poller.register(self._line.socket())
        poller.register(self._wakeup)
        try:
            while not self._stop_asked.is_set():
                self._update_subscriptions(poller)
                now = time.monotonic()
                with self._lock:
                    if self._session.should_reconnect(now):
                        self._reconnect(poller, now)
                    self._line.send_due(now)
                    wait_s = self._session.wait_s(now)
                ready = poller.poll(min(wait_s, CLOSE_CHECK_S) if self._subscriptions else wait_s)
                self._wakeup.clear()
                now = time.monotonic()
                with self._lock:
                    if (dealer := self._line.socket()) in ready:
                        while (frames := receive(dealer)) is not None:
                            self._session.on_message(frames, now)
                    if self._session.expire(now):
                        self._reconnect(poller, now)
                self._run_callbacks()
                if self._sub is not None and self._sub in ready:
                    self._read_publications(self._sub)
        finally:
            poller.close()
            self._line.disconnect()
            if self._sub is not None:
                self._sub.close()

    def _end(self, error: BaseException | None) -> None:
        """End all calls and subscriptions when this thread ends, so that no other thread waits for a result forever."""
        self._stop_asked.set()
        with self._lock:
            for pending in list(self._session.under_way.values()):
                closed = Closed(f"the caller of {self._address.uri} was closed during {pending.method}")
                self._session.end(pending, closed if error is None else WorkerDied(f"thread {self.name} failed: {error!r}"))
        self._run_callbacks()
        for subscription in self._all():
            subscription.stop()
        self._wakeup.close()

    def _run_callbacks(self) -> None:
        """Pass each ended call to its function `tell`. No lock is held, because `tell` can call methods of this object."""
        while self._session.over:
            pending = self._session.over.popleft()
            if pending.tell is not None:
                pending.tell(pending)

    def _reconnect(self, poller: Poller, now: float) -> None:
        poller.unregister(self._line.socket())
        self._line.disconnect()
        poller.register(self._line.socket())
        self._session.on_reconnected(now)

    def _all(self) -> list[Subscription]:
        return [*self._subscriptions, *self._wanted]

    def _subscribed_to(self, topic: str) -> list[Subscription]:
        return [subscription for subscription in self._subscriptions if subscription.topic == topic]

    def _update_subscriptions(self, poller: Poller) -> None:
        """Start and end subscriptions, connect to the publisher, and request publications that were missed."""
        for subscription in [s for s in self._subscriptions if s.ended]:
            self._subscriptions.remove(subscription)
            if self._sub is not None and not self._subscribed_to(subscription.topic):
                self._sub.unsubscribe(topic_frame(subscription.topic, self._pub[1]))
        while self._wanted:
            subscription = self._wanted.popleft()
            first = not self._subscribed_to(subscription.topic)
            self._subscriptions.append(subscription)  # before a call that can raise: `_end` stops each in the list
            if first and self._sub is not None:
                self._sub.subscribe(topic_frame(subscription.topic, self._pub[1]))
            self._ask_latest(subscription)
        if not self._subscriptions:
            return
        now = time.monotonic()
        if self._sub is not None and self._silence.expired(now):  # a restarted server can have another publisher address
            self._session.counters.add("redials")
            self._silence.restart(now)
            with self._lock:
                self._session.require_hello()
                self._pub = ("", b"")
        if self._sub is None or not self._pub[0]:
            for subscription in self._all():
                if now - subscription.asked_s >= LATEST_RETRY_S:
                    self._ask_latest(subscription)
        self._dial_publisher(poller)

    def _dial_publisher(self, poller: Poller) -> None:
        """Connect to the address for publications if a reply to ``$hello`` has changed it, or has ended the subscriptions."""
        welcome = self._session.welcome
        if welcome is None:
            return
        pub, channel = welcome["pub"], welcome["channel"]
        if not pub or (pub, channel) == self._pub:
            return
        self._pub = pub, channel
        self._silence.restart(time.monotonic())
        try:
            sub = Socket.sub(self._reachable(pub), hwm=PUBLICATION_HWM, secure=self._line.secure)
        except TransportError as exc:
            self._session.counters.add("refused")
            log.warning("%s announces publisher address %.200r, which cannot be used: %s", self._address.uri, pub, exc)
            return
        if self._sub is not None:
            poller.unregister(self._sub)
            self._sub.close()
        self._sub = sub
        poller.register(self._sub)
        for topic in {subscription.topic for subscription in self._subscriptions}:
            self._sub.subscribe(topic_frame(topic, channel))

    def _reachable(self, pub: str) -> Address:
        """Return the address for publications. For tcp, its host is that of `address`: the server can announce ``*``."""
        address = Address.parse(pub)
        if address.scheme == "tcp" and self._address.scheme == "tcp":
            return self._address.with_port(address.port)
        return address

    def _read_publications(self, sub: Socket) -> None:
        while (frames := receive(sub)) is not None:
            try:
                publication = decode_call(frames[1:])
            except ProtocolError:
                self._session.counters.add("refused")
                continue
            self._silence.restart(time.monotonic())
            subscriptions = self._subscribed_to(publication.topic) if isinstance(publication, Publication) else []
            if not subscriptions or not isinstance(publication, Publication):
                self._session.counters.add("refused")
                continue
            for subscription in subscriptions:
                if publication.number > 0:
                    subscription.offer(publication.server, publication.number, publication.payload)
                elif subscription.is_behind(publication.server, publication.latest):
                    self._ask_latest(subscription)

    def _ask_latest(self, subscription: Subscription) -> None:
        if subscription.asking:
            return
        now = time.monotonic()
        subscription.asking, subscription.asked_s = True, now

        def tell(pending: CallHandle) -> None:
            subscription.asking = False
            if pending.error is not None:
                log.info("cannot get the newest publication of %s: %s", subscription.topic, pending.error)
                return
            try:
                server, number, payload = (pending.answer[name] for name in ("server", "number", "payload"))
                if number > 0:
                    subscription.offer(server, number, payload)
            except (LookupError, TypeError, ValueError):  # not a reply to $latest
                self._session.counters.add("refused")

        with self._lock:
            self._session.start_call("$latest", subscription.topic, now, LATEST_RETRY_S, tell=tell)
