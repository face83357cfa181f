"""What a server tells whoever subscribed: the newest notice of each topic, and how far each topic is."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallRefusal, PayloadError
from rl4sys_zmq.security import Authorizer
from rl4sys_zmq.transports import Socket, read_subscription
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.rpc import Publication, check_size, check_topic, decode_call, encode_publication, is_name
from rl4sys_zmq.wire.trees import Tree

__all__ = ["TopicPublisher", "topic_frame"]

MAX_TOPICS = 1024
"""So many a server publishes, and of so many it says how far they are though nothing was published yet."""


def topic_frame(topic: str, channel: bytes) -> bytes:
    """What a subscriber asks for. The zero byte keeps topics apart of which one begins with the other."""
    return topic.encode() + b"\0" + channel


@dataclass(frozen=True, slots=True)
class _Newest:
    number: int
    frames: list[Frame]


class TopicPublisher:
    """The topics of one server. `post` and the questions come from any thread, the rest from the one that has the sockets.

    Notices are kept as the bytes that go out: what the caller does to its arrays after `post` changes nothing.

    Attributes:
        channel: random bytes that end each topic on the wire. A subscription can't be taken back: when somebody loses the right
            to hear, there is another channel, and whoever may hear asks for it in its next ``$hello``.
    """

    def __init__(self, server: int, counters: Counters, max_frame_bytes: int) -> None:
        self._server, self._counters, self._max_frame_bytes = server, counters, max_frame_bytes
        self._lock = threading.Lock()
        self._newest: dict[str, _Newest] = {}
        self._posted: OrderedDict[str, None] = OrderedDict()
        """Topics whose newest notice is to be sent, in order. Without the lock: to pack a large notice holds up no sending."""
        self._asked: set[str] = set()
        self.channel = secrets.token_bytes(8)

    @property
    def waiting(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._posted)

    def post(self, topic: str, payload: Tree) -> int:
        """Takes a notice; returns its number.

        Raises:
            PayloadError: when the payload can't travel, or a part of it is too large; for a topic beyond `MAX_TOPICS`.
        """
        check_topic(topic)
        with self._lock:
            held = self._newest.get(topic)
            if held is None and len(self._newest) >= MAX_TOPICS:
                raise PayloadError("topic", f"{topic!r:.60}: this server publishes {MAX_TOPICS} topics and takes no more")
            number = held.number + 1 if held is not None else 1
            frames = encode_publication(Publication(number, self._server, number, topic, payload))
            check_size(frames, self._max_frame_bytes)
            self._newest[topic] = _Newest(number, frames)
            self._posted[topic] = None
        self._counters.add("notices")
        return number

    def numbers(self) -> dict[str, int]:
        """The newest number of each topic."""
        return {topic: held.number for topic, held in self._newest.copy().items()}

    def latest(self, topic: object) -> Tree:
        """The newest notice of a topic: its number and payload; number 0 and None when there is none yet."""
        held = self._newest.get(topic) if isinstance(topic, str) else None
        if held is None:
            return {"server": self._server, "number": 0, "payload": None}
        return {"server": self._server, "number": held.number, "payload": decode_call(held.frames).payload}

    def send(self, xpub: Socket) -> None:
        """Sends what was posted: of each topic the newest, whatever was posted before it."""
        for _ in range(len(self._posted)):
            topic, _ = self._posted.popitem(last=False)
            xpub.send([topic_frame(topic, self.channel), *self._newest[topic].frames])

    def rotate(self) -> None:
        """Nobody who hears now hears any more, but who asks again."""
        self.channel = secrets.token_bytes(8)

    def send_beacons(self, xpub: Socket) -> None:
        """Says of each topic how far it is: the loss of a last message, and of the server, are invisible otherwise."""
        for topic, number in {**dict.fromkeys(self._asked, 0), **self.numbers()}.items():
            self._send_beacon(xpub, topic, number)

    def look(self, xpub: Socket, authorizer: Authorizer) -> None:
        """Grants new subscribers what they may read, and tells them how far it is."""
        while (frames := xpub.recv()) is not None:
            subscription = read_subscription(frames)
            if subscription is None or not subscription[0]:
                continue
            name, _, channel = subscription[1].partition(b"\0")
            topic = name.decode("utf-8", "replace")
            if channel != self.channel or (xpub.authenticated and not authorizer.may_read(xpub.user)):
                self._counters.add(f"refused.{CallRefusal.FORBIDDEN}")
                continue
            if not is_name(topic):
                self._counters.add(f"refused.{CallRefusal.INVALID}")
                continue
            xpub.grant(subscription[1])
            if len(self._asked) < MAX_TOPICS:
                self._asked.add(topic)
            held = self._newest.get(topic)
            self._send_beacon(xpub, topic, held.number if held is not None else 0)

    def _send_beacon(self, xpub: Socket, topic: str, number: int) -> None:
        xpub.send([topic_frame(topic, self.channel), *encode_publication(Publication(0, self._server, number, topic, None))])
