"""The publications of one server: the newest of each topic, its number, and the rights of subscribers."""

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
"""The limit on published topics, and on subscribed topics that get beacons before anything was published on them."""


def topic_frame(topic: str, channel: bytes) -> bytes:
    """Return a topic as a subscription filter. The zero byte separates topics of which one is a prefix of another."""
    return topic.encode() + b"\0" + channel


@dataclass(frozen=True, slots=True)
class _Newest:
    number: int
    frames: list[Frame]


class TopicPublisher:
    """The publisher of a server's topics. It keeps the newest publication of each topic, and sends it to the subscribers.

    `post`, `numbers` and `latest` can be called from any thread, and so can `change_channel`. The other methods belong to the
    thread that uses the sockets. Publications are kept encoded, so the arrays can change after `post`.

    Attributes:
        channel: Random bytes that end each topic on the wire. A subscription cannot be withdrawn by the server. When a user
            loses the right to subscribe, the channel changes, and the remaining subscribers get the new one from their next
            ``$hello``.
    """

    def __init__(self, server: int, counters: Counters, max_frame_bytes: int) -> None:
        self._server, self._counters, self._max_frame_bytes = server, counters, max_frame_bytes
        self._lock = threading.Lock()
        self._newest: dict[str, _Newest] = {}
        self._posted: OrderedDict[str, None] = OrderedDict()
        """Topics whose newest publication is to be sent, in order. Sending takes no lock, since packing can hold it long."""
        self._asked: set[str] = set()
        self.channel = secrets.token_bytes(8)

    @property
    def waiting(self) -> bool:
        """True if a publication is still to be sent."""
        return bool(self._posted)

    def post(self, topic: str, payload: Tree) -> int:
        """Add a publication, and return its number.

        Raises:
            PayloadError: If the payload cannot be encoded or a frame is too large, if the topic is not a valid name, or if
                `MAX_TOPICS` other topics are published already.
        """
        check_topic(topic)
        with self._lock:
            held = self._newest.get(topic)
            if held is None and len(self._newest) >= MAX_TOPICS:
                raise PayloadError("topic", f"{topic!r:.60}: this server publishes {MAX_TOPICS} topics, which is the limit")
            number = held.number + 1 if held is not None else 1
            frames = encode_publication(Publication(number, self._server, number, topic, payload))
            check_size(frames, self._max_frame_bytes)
            self._newest[topic] = _Newest(number, frames)
            self._posted[topic] = None
        self._counters.add("notices")
        return number

    def numbers(self) -> dict[str, int]:
        """Return the newest number of each topic."""
        return {topic: held.number for topic, held in self._newest.copy().items()}

    def latest(self, topic: object) -> Tree:
        """Return the newest publication of a topic as a payload. Without one, `number` is 0 and `payload` is None."""
        held = self._newest.get(topic) if isinstance(topic, str) else None
        if held is None:
            return {"server": self._server, "number": 0, "payload": None}
        return {"server": self._server, "number": held.number, "payload": decode_call(held.frames).payload}

    def send(self, xpub: Socket) -> None:
        """Send the newest publication of each topic that was posted since the last call."""
        for _ in range(len(self._posted)):
            topic, _ = self._posted.popitem(last=False)
            xpub.send([topic_frame(topic, self.channel), *self._newest[topic].frames])

    def change_channel(self) -> None:
        """Change the channel. All subscriptions end; a subscriber must ask for the new channel."""
        self.channel = secrets.token_bytes(8)

    def send_beacons(self, xpub: Socket) -> None:
        """Send the newest number of each topic, so that subscribers detect a lost last publication or a silent server."""
        for topic, number in {**dict.fromkeys(self._asked, 0), **self.numbers()}.items():
            self._send_beacon(xpub, topic, number)

    def look(self, xpub: Socket, authorizer: Authorizer) -> None:
        """Handle new subscriptions: grant those that are allowed, and send each the newest number of its topic."""
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
