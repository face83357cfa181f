"""The thread of a `Caller` that runs the calls of `submit` and `acall`, and receives publications for subscriptions."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from rl4sys_zmq.errors import Closed, ProtocolError, TransportError, WorkerDied
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

    def __init__(self, address: Address, session: CallerSession, secure: Secure | None) -> None:
        super().__init__("rl4sys-calls")
        self._address, self._session, self._secure = address, session, secure
        self._lock = threading.Lock()  # guards the session: any thread begins calls, this one does the rest
        self._wakeup = Wakeup()
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._wanted: deque[Subscription] = deque()
        self._pub = ("", b"")  # the publisher's address, and the channel
        self._sub: Socket | None = None
        self._silence = SilenceTimer(PUBLISHER_SILENCE_S)

    def submit(self, method: str, payload: Tree, timeout_s: float, once: bool) -> Future[Tree]:
        """Start a call, as `Caller.submit` describes. Any thread can call this."""
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
        """Start a subscription, as `Caller.subscribe` describes. Any thread can call this."""
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
        dealer = self._dial()
        poller.register(dealer)
        poller.register(self._wakeup)
        try:
            while not self._stop_asked.is_set():
                self._update_subscriptions(poller)
                now = time.monotonic()
                with self._lock:
                    if self._session.should_reconnect(now):
                        dealer = self._reconnect(poller, dealer, now)
                    for pending in self._session.due(now):
                        if dealer.send(pending.frames) is SendResult.FULL:
                            self._session.not_sent(pending, now)
                    wait_s = self._session.wait_s(now)
                ready = poller.poll(min(wait_s, CLOSE_CHECK_S) if self._subscriptions else wait_s)
                self._wakeup.clear()
                now = time.monotonic()
                with self._lock:
                    if dealer in ready:
                        while (frames := self._recv(dealer)) is not None:
                            self._session.on_message(frames, now)
                    if self._session.expire(now):
                        dealer = self._reconnect(poller, dealer, now)
                self._run_callbacks()
                if self._sub is not None and self._sub in ready:
                    self._read_publications(self._sub)
        finally:
            poller.close()
            dealer.close()
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
        """Report each completed call to its function `tell`. No lock is held, because `tell` can call methods of this object."""
        while self._session.over:
            pending = self._session.over.popleft()
            if pending.tell is not None:
                pending.tell(pending)

    def _recv(self, socket: Socket) -> list[Frame] | None:
        try:
            return socket.recv(MAX_TREE_FRAMES + 2)
        except TooManyFrames:
            return []

    def _dial(self) -> Socket:
        return Socket.dealer(self._address, secure=self._secure, send_hwm=WINDOW, recv_hwm=WINDOW)

    def _reconnect(self, poller: Poller, dealer: Socket, now: float) -> Socket:
        """Replace the DEALER, so that the messages in its queue reach no server that starts later."""
        poller.unregister(dealer)
        dealer.close()
        dealer = self._dial()
        poller.register(dealer)
        self._session.on_reconnected(now)
        return dealer

    def _all(self) -> list[Subscription]:
        return [s for held in (*self._subscriptions.values(), self._wanted) for s in held]

    def _update_subscriptions(self, poller: Poller) -> None:
        """Start and end subscriptions, connect to the publisher, and request publications that were missed."""
        self._drop_ended()
        while self._wanted:
            subscription = self._wanted.popleft()
            held = self._subscriptions.setdefault(subscription.topic, [])
            held.append(subscription)
            if self._sub is not None and len(held) == 1:
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

    def _drop_ended(self) -> None:
        for topic, held in list(self._subscriptions.items()):
            if any(subscription.ended for subscription in held):
                self._subscriptions[topic] = left = [s for s in held if not s.ended]
                if not left:
                    del self._subscriptions[topic]
                    if self._sub is not None:
                        self._sub.unsubscribe(topic_frame(topic, self._pub[1]))

    def _dial_publisher(self, poller: Poller) -> None:
        """Connect to the publisher if its address or channel, from the reply to ``$hello``, has changed."""
        welcome = self._session.welcome
        if welcome is None:
            return
        pub, channel = welcome["pub"], welcome["channel"]
        if not pub or (pub, channel) == self._pub:
            return
        self._pub = pub, channel
        self._silence.restart(time.monotonic())
        try:
            sub = Socket.sub(self._reachable(pub), hwm=PUBLICATION_HWM, secure=self._secure)
        except TransportError as exc:
            self._session.counters.add("refused")
            log.warning("%s announces publisher address %.200r, which cannot be used: %s", self._address.uri, pub, exc)
            return
        if self._sub is not None:
            poller.unregister(self._sub)
            self._sub.close()
        self._sub = sub
        poller.register(self._sub)
        for topic in self._subscriptions:
            self._sub.subscribe(topic_frame(topic, channel))

    def _reachable(self, pub: str) -> Address:
        """Return the address for publications. Its tcp host is that of the address for calls: the announced host can be ``*``."""
        address = Address.parse(pub)
        if address.scheme == "tcp" and self._address.scheme == "tcp":
            return self._address.with_port(address.port)
        return address

    def _read_publications(self, sub: Socket) -> None:
        while (frames := self._recv(sub)) is not None:
            try:
                publication = decode_call(frames[1:])
            except ProtocolError:
                self._session.counters.add("refused")
                continue
            self._silence.restart(time.monotonic())
            subscriptions = self._subscriptions.get(publication.topic) if isinstance(publication, Publication) else None
            if subscriptions is None or not isinstance(publication, Publication):
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
