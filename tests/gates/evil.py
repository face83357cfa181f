"""A malicious learner for one actor. It sends the messages that the test chooses."""

import queue
import struct
import threading
from collections.abc import Sequence
from typing import Any

import xxhash

from rl4sys_zmq.errors import ProtocolError
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.testing import fake_spec, fake_weights
from rl4sys_zmq.transports import Poller, Socket, Wakeup
from rl4sys_zmq.values import PolicySnapshot
from rl4sys_zmq.weights import PayloadEncoding, WeightsHeader, digest, encode_update
from rl4sys_zmq.weights.bits import varint
from rl4sys_zmq.wire import decode, encode, spec_to_document
from rl4sys_zmq.wire.messages import Ack, FetchWeights, Heartbeat, Hello, Message, Submit, Verdict, WeightsReply, Welcome

POLICY, TOPIC, GENERATION = b"\x01" + bytes(7), b"secret!!", 1_000
SPEC = fake_spec((1024,))
ALL_BLOCKS = b"\0"
"""The first byte of a diff whose planes contain all elements."""


def state(version: int) -> PolicySnapshot:
    flat = fake_weights(SPEC, version)
    return PolicySnapshot(GENERATION, version, digest(flat), flat)


def sound(version: int) -> tuple[bytes, bytes | memoryview]:
    """Return the update that a correct learner sends: a whole snapshot."""
    return encode_update(POLICY, None, state(version))


def update(
    version: int, payload: bytes, *, codec: PayloadEncoding = PayloadEncoding.SNAPSHOT, elements: int = SPEC.size, **fields: Any
) -> Any:
    """Return a well-formed header and the payload. The payload may be malformed."""
    given: dict[str, Any] = {
        "policy_id": POLICY,
        "generation": GENERATION,
        "base_version": version,
        "new_version": version,
        "codec": codec,
        "elements": elements,
        "payload_bytes": len(payload),
        "payload_hash": xxhash.xxh3_64_intdigest(payload),
        "state_hash": state(version).digest,
    }
    return WeightsHeader(**{**given, **fields}).pack(), payload


def planes(*frames: bytes) -> bytes:
    """Return the payload of a compressed state of four planes."""
    return b"".join(varint(len(frame)) + frame for frame in frames)


def expands(nbytes: int, *, declared: int | None, window_log: int = 10) -> bytes:
    """Return a zstd frame of zeros whose declared size or window may be wrong. It has run-length blocks and no magic number."""
    blocks = [min(1 << 17, nbytes - start) for start in range(0, nbytes, 1 << 17)]
    head = bytes([0x00 if declared is None else 0x80, (window_log - 10) << 3])
    head += b"" if declared is None else struct.pack("<I", declared)
    last = [False] * (len(blocks) - 1) + [True]
    return head + b"".join((n << 3 | 0b010 | end).to_bytes(3, "little") + b"\0" for n, end in zip(blocks, last, strict=True))


class Evil(Worker):
    """A learner that answers HELLO with `welcome`, FETCH with `weights` and a heartbeat with `marks`."""

    def __init__(self) -> None:
        super().__init__("rl4sys-evil")
        self.welcome: dict[str, Any] = {}
        self.weights: Sequence[Any] = sound(0)
        self.marks: dict[str, Any] = {}
        self.heard: list[Message] = []
        self.address = self._pub = ""
        self._peer = b""
        self._orders: queue.SimpleQueue[tuple[str, list[Any]]] = queue.SimpleQueue()
        self._open, self._over = threading.Event(), threading.Event()
        self._wakeup = Wakeup()
        self.start()
        assert self._open.wait(10.0)

    def say(self, *messages: Message | list[Any]) -> None:
        for message in messages:
            self._orders.put(("router", message if isinstance(message, list) else encode(message)))
        self._wakeup.set()

    def publish(self, *messages: list[Any]) -> None:
        """Publish messages. Their first frame is the topic."""
        for message in messages:
            self._orders.put(("pub", message))
        self._wakeup.set()

    def ack(self, **fields: Any) -> Ack:
        """Return an ack with the values of `marks`. `fields` override them."""
        return Ack(**{**dict.fromkeys(Ack.__slots__, 0), "generation": GENERATION, "verdicts": {}, **self.marks, **fields})

    def welcoming(self, **fields: Any) -> Welcome:
        """Return a WELCOME that an actor can use. `fields` override its values."""
        given: dict[str, Any] = {
            "policy_id": POLICY,
            "topic": TOPIC,
            "journal_id": 7,
            "gap": 0,
            "generation": GENERATION,
            "version": 0,
            "digest": state(0).digest,
            "spec": spec_to_document(SPEC),
            "pub": self._pub,
            "received": 0,
            "durable": 0,
            "accepted_steps": 0,
            "algorithm_name": "EVIL",
            "algorithm_type": "onpolicy",
            "rollout_length": 16,
            "max_policy_lag": -1,
            "on_lag": "drop",
            "max_message_bytes": 1 << 20,
            "max_segment_steps": 1 << 10,
            "heartbeat_s": 1.0,
        }
        return Welcome(**{**given, **fields})

    def run(self) -> None:
        """Serve the actor until `stop`."""
        with Socket.router("tcp://127.0.0.1:0") as router, Socket.xpub("tcp://127.0.0.1:0", hwm=1000) as pub, Poller() as poller:
            self.address, self._pub = router.bound.uri, pub.bound.uri
            for source in (router, pub, self._wakeup):
                poller.register(source)
            self._open.set()
            while not self._over.is_set():
                poller.poll(1.0)
                self._wakeup.clear()
                while pub.recv() is not None:
                    pass
                while (frames := router.recv(256)) is not None:
                    self._peer = bytes(frames[0])
                    for answer in self._answers(frames[1:]):
                        router.send([self._peer, *encode(answer)])
                while not self._orders.empty():
                    where, message = self._orders.get()
                    if where == "pub":
                        pub.send(message)
                    else:
                        router.send([self._peer, *message])

    def _answers(self, frames: list[Any]) -> list[Message]:
        try:
            message = decode(frames)
        except ProtocolError:
            return []
        self.heard.append(message)
        match message:
            case Hello():
                return [self.welcoming(**self.welcome)]
            case FetchWeights():
                return [WeightsReply(tuple(self.weights))]
            case Heartbeat():
                return [self.ack()]
        return []

    @property
    def submitted(self) -> int:
        """The number of segments that the actor has sent, repetitions included."""
        return sum(message.count for message in self.heard if isinstance(message, Submit))

    def accept(self, received: int) -> None:
        self.marks = {"received": received, "durable": received, "trained": received, "credit_steps": 1 << 20}
        self.marks.update(credit_items=1 << 20, credit_bytes=1 << 20, verdicts={Verdict.TRAINED: received})
        self.say(self.ack())

    def stop(self) -> None:
        self._over.set()
        self._wakeup.set()

    def close(self) -> None:
        self.stop()
        assert self.join(10.0)
        self._wakeup.close()
        self.raise_if_dead()
