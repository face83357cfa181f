"""The publications of one server: it keeps the newest publication of each topic, and checks the rights of subscribers."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CallRefusalReason, PayloadError
from rl4sys_zmq.security.authorizer import Authorizer
from rl4sys_zmq.transports import Socket, subscribed_topics
from rl4sys_zmq.values.trees import Tree
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.rpc import Publication, check_size, check_topic, decode_call, encode_publication, is_name

MAX_TOPICS = 1024
"""The largest number of topics with a publication, and of those without one for which there are beacons."""


def topic_frame(topic: str, channel: bytes) -> bytes:
    """Return the first frame of a topic's publications: the topic, and the random bytes `channel`. Subscribers filter by it."""
    # Without the zero byte, a filter for the topic `a` would also match the topic `ab`.
    return topic.encode() + b"\0" + channel


_NONE: tuple[int, list[Frame]] = (0, [])


class TopicPublisher:
    """The publisher of a server's topics. Any thread can call `post`, `numbers`, `latest` and `change_channel`.

    Only the thread that uses the sockets calls the other methods. `post` encodes the payload, so its arrays can change
    afterwards.
    """

    def __init__(self, server: int, counters: Counters, max_frame_bytes: int) -> None:
        self._server, self._counters, self._max_frame_bytes = server, counters, max_frame_bytes
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[int, list[Frame]]] = {}  # the number and the frames
        # The topics to send, in order. `send` takes no lock: `post` can hold it for long while it encodes a payload.
        self._posted: OrderedDict[str, None] = OrderedDict()
        self._asked: set[str] = set()
        # Random bytes at the end of each topic on the wire. With ZeroMQ, a server cannot withdraw a subscription. So when a user
        # loses the right to subscribe, the channel changes, and the others get the new one with their next `$hello`.
        self.channel = secrets.token_bytes(8)

    @property
    def waiting(self) -> bool:
        return bool(self._posted)

    def post(self, topic: str, payload: Tree) -> int:
        """Make a payload the newest publication of a topic, to be sent later by `send`. Return its number, from 1."""
        check_topic(topic)
        with self._lock:
            number = self._newest.get(topic, _NONE)[0] + 1
            if number == 1 and len(self._newest) >= MAX_TOPICS:
                raise PayloadError("topic", f"{topic!r:.60}: this server publishes {MAX_TOPICS} topics, which is the limit")
            frames = encode_publication(Publication(number, self._server, number, topic, payload))
            check_size(frames, self._max_frame_bytes)
            self._newest[topic] = number, frames
            self._posted[topic] = None
        self._counters.add("notices")
        return number

    def numbers(self) -> dict[str, int]:
        return {topic: number for topic, (number, _) in self._newest.copy().items()}

    def latest(self, topic: object) -> Tree:
        """Return a dict with the newest publication of a topic: `server`, `number` (0 if there is none) and `payload`."""
        number, frames = self._newest.get(topic, _NONE) if isinstance(topic, str) else _NONE
        payload = decode_call(frames).payload if number else None
        return {"server": self._server, "number": number, "payload": payload}

    def send(self, xpub: Socket) -> None:
        for _ in range(len(self._posted)):
            topic, _ = self._posted.popitem(last=False)
            xpub.send([topic_frame(topic, self.channel), *self._newest[topic][1]])

    def change_channel(self) -> None:
        """End all subscriptions, because a user has lost the right to subscribe. Users with the right subscribe again."""
        self.channel = secrets.token_bytes(8)

    def send_beacons(self, xpub: Socket) -> None:
        """Send each topic's newest number, so that subscribers notice a missed publication or a silent server."""
        for topic, number in {**dict.fromkeys(self._asked, 0), **self.numbers()}.items():
            self._send_beacon(xpub, topic, number)

    def look(self, xpub: Socket, authorizer: Authorizer) -> None:
        """Answer new subscriptions. If the user may subscribe, grant them and send the newest publication's number."""
        for wanted in subscribed_topics(xpub, self._counters):
            name, _, channel = wanted.partition(b"\0")
            topic = name.decode("utf-8", "replace")
            if channel != self.channel or (xpub.authenticated and not authorizer.may_read(xpub.user)):
                self._counters.add(f"refused.{CallRefusalReason.FORBIDDEN}")
                continue
            if not is_name(topic):
                self._counters.add(f"refused.{CallRefusalReason.INVALID}")
                continue
            xpub.grant(wanted)
            if len(self._asked) < MAX_TOPICS:
                self._asked.add(topic)
            self._send_beacon(xpub, topic, self._newest.get(topic, _NONE)[0])

    def _send_beacon(self, xpub: Socket, topic: str, number: int) -> None:
        xpub.send([topic_frame(topic, self.channel), *encode_publication(Publication(0, self._server, number, topic, None))])
