"""A learner under attack: its keys, a good client that trains beside it, attackers that can send anything, and all counters."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from harness.keys import KeyRing
from kit import segment_with, until

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.security.keys import UserKeys, curve_client
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.transports import MonitorEvent, Poller, Socket, context
from rl4sys_zmq.values import Segment
from rl4sys_zmq.wire import decode, encode, join_submit, pack_segment
from rl4sys_zmq.wire.frames import pack_frames, pack_header
from rl4sys_zmq.wire.messages import Ack, AnyBytes, Hello, Message, Refused, Welcome
from rl4sys_zmq.wire.segments import HEAD

from .conftest import PATIENCE_S, check_law, check_learner_law, drive, join

ALGORITHM = "SIEGE"
STEPS = 16
WORKER = ("submit", "read_weights")
register_algorithm(ALGORITHM, FakeAlgorithm.factory(steps_per_update=STEPS, rollout_length=STEPS))

BUSINESS = (
    "hellos",
    "connections.accepted",
    "connections.handshake_succeeded",
    "connections.disconnected",
    "replies_dropped.gone",
    "security.accepted",
)
"""Counters that good clients change too."""


@dataclass(frozen=True)
class AtLeast:
    """A lower limit of a count."""

    count: int = 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and other >= self.count

    __hash__ = None  # type: ignore[assignment]


def hello(actor_id: str = "mallory", incarnation: int = 5, **fields: Any) -> Hello:
    given = {"client_id": "lab", "actor_id": actor_id, "incarnation": incarnation, "first_seq": 0}
    return Hello(**{**given, "held_generation": 0, "held_version": 0, **fields})


def segment(steps: int = 3, **changes: Any) -> Segment:
    """Return a segment with a whole episode of the client ``lab``."""
    return segment_with(steps, **{"generation": 0, "episode_return": 0.0, "episode_length": steps, **changes})


def submit(first_seq: int, *segments: Segment) -> list[Any]:
    return encode(join_submit(first_seq, 0, [pack_segment(s) for s in segments or (segment(),)]))


def craft(kind: int, header: Any = b"\x80", body: Sequence[bytes] = (), **prefix: Any) -> list[Any]:
    """Return a message with a correct checksum and any header, as bytes or as a value."""
    raw = header if isinstance(header, bytes) else pack_header(header)
    return pack_frames(kind, raw, body, **prefix)


def submit_with(first_seq: int = 0, *, layout: Any = None, **numbers: Any) -> list[Any]:
    message = join_submit(first_seq, 0, [pack_segment(segment())])
    heads = np.frombuffer(message.heads, HEAD).copy()
    for name, value in numbers.items():
        heads[name] = value
    layouts = message.layouts if layout is None else [layout]
    return encode(replace(message, layouts=layouts, heads=AnyBytes(heads.tobytes())))


class Attacker:
    """A DEALER with or without keys that can send anything."""

    def __init__(self, address: str, keys: UserKeys | None, *, identity: bytes = b"") -> None:
        def secure(raw: zmq.Socket[bytes]) -> None:
            if keys is not None:
                curve_client(keys)(raw)
            if identity:
                raw.setsockopt(zmq.ROUTING_ID, identity)

        self.socket = Socket.dealer(address, secure=secure, watch=True, send_hwm=100_000)
        self._poller = Poller()
        self._poller.register(self.socket)

    def send(self, frames: Sequence[Any]) -> None:
        assert self.socket.send(frames)

    def say(self, message: Message) -> None:
        self.send(encode(message))

    def try_to_say(self, message: Message) -> None:
        """Send a well-formed message. It may fail, because the learner may have refused the connection by now."""
        self.socket.send(encode(message))

    def listen(self, timeout_s: float) -> Message | None:
        deadline = time.monotonic() + timeout_s
        while (frames := self.socket.recv(256)) is None:
            if time.monotonic() >= deadline:
                return None
            self._poller.poll(max(0.0, deadline - time.monotonic()))
        return decode(frames)

    def hear(self, kind: type[Any], enough: Callable[[Any], bool] = lambda message: True) -> Any:
        """Return the next message of a kind that satisfies a condition."""
        while True:
            message = self.listen(PATIENCE_S)
            assert message is not None, f"no {kind.__name__}"
            if isinstance(message, kind) and enough(message):
                return message

    def refused(self, frames: Sequence[Any] | Message) -> str:
        """Send a message and return the code of its refusal."""
        self.send(frames if isinstance(frames, Sequence) else encode(frames))
        return str(self.hear(Refused).code)

    def join(self, **fields: Any) -> Welcome:
        self.say(hello(**fields))
        welcome: Welcome = self.hear(Welcome)
        return welcome

    def acked(self, enough: Callable[[Ack], bool]) -> Ack:
        ack: Ack = self.hear(Ack, enough)
        return ack

    def failure(self) -> MonitorEvent:
        return until(lambda: [e for e in self.socket.events() if e.is_failure], "a failed handshake")[0]

    def close(self) -> None:
        self._poller.close()
        self.socket.close()


class GoodClient(threading.Thread):
    """A thread that trains without end, as fast as it receives new versions. It keeps the first error."""

    def __init__(self, agent: RL4SysAgent, steps: int = STEPS) -> None:
        super().__init__(name="good-client")
        self.agent, self._steps = agent, steps
        self.rounds = 0
        self.error: BaseException | None = None
        self._over = threading.Event()

    def run(self) -> None:
        """Play episodes. Each makes one version."""
        try:
            while not self._over.wait(0.005):
                drive(self.agent, steps=self._steps)
                self.rounds += 1
        except BaseException as exc:
            self.error = exc

    def served(self, rounds: int = 2) -> None:
        """Wait until the client has received this many further versions."""
        target = self.rounds + rounds
        until(lambda: self.rounds >= target or self.error, f"{rounds} versions for the good client")
        assert self.error is None, repr(self.error)

    def stop(self) -> None:
        self._over.set()
        if self.ident is not None:
            self.join(PATIENCE_S)
            assert not self.is_alive()


class Siege:
    """A learner over tcp, a good client on it, and attackers."""

    def __init__(self, folder: Path, stack: ExitStack, *, keys: bool, run_dir: Path | None = None, **config: Any) -> None:
        self.stack = stack
        self.ring = KeyRing(folder / "keys") if keys else None
        if self.ring is not None:
            _list_everybody(self.ring)
            config["keys"] = self.ring.folder
        self.learner = stack.enter_context(Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=run_dir, **config)))
        self.good = GoodClient(self.agent("good", actor_id="good", overflow="wait"))
        self._at_join = self.good.agent.stats()["counters"]  # on a busy machine it was told that its client was starting
        stack.callback(self.good.stop)
        self.good.start()
        self.good.served(1)
        self._before = self.counts()

    def agent(self, name: str = "good", **options: Any) -> RL4SysAgent:
        if self.ring is not None and "keys" not in options:
            options["keys"] = self.ring.file(name)
        return self.stack.enter_context(join(self.learner.address, algorithm_name=ALGORITHM, **options))

    def attacker(self, name: str = "mallory", *, keys: UserKeys | None = None, identity: bytes = b"") -> Attacker:
        """Return an attacker with the keys of a name, listed or not. With an empty name it has no keys."""
        if keys is None and self.ring is not None and name:
            keys = self.ring.client(name)
        attacker = Attacker(self.learner.address, keys, identity=identity)
        self.stack.callback(attacker.close)
        return attacker

    def subscriber(self, name: str = "mallory") -> Socket:
        secure = curve_client(self.ring.client(name)) if self.ring is not None else None
        return self.stack.enter_context(Socket.sub(self.learner.pub_address, secure=secure, watch=True))

    def raw(self, kind: int, name: str = "mallory") -> zmq.Socket[bytes]:
        """Return a socket of a kind that should not be used there, connected to the publisher."""
        raw = self.stack.enter_context(context().socket(kind))
        raw.linger = 0
        if self.ring is not None:
            curve_client(self.ring.client(name))(raw)
        raw.connect(self.learner.pub_address)
        return raw

    def status(self) -> dict[str, Any]:
        return self.learner.status()

    def counts(self) -> dict[str, int]:
        """Return all counters except those of training."""
        status = self.status()
        found = {name: int(value) for name, value in status["counters"].items()}
        security = status["security"] or {}
        counted = (key for key in security if key == "accepted" or key.startswith("denied."))
        found.update({f"security.{key}": int(security[key]) for key in counted})
        for client_id, client in status["clients"].items():
            verdicts = {key: n for key, n in client["verdicts"].items() if key != "trained"}
            more = {"rolled_back": client["rolled_back"], "gap": client["gap"], "restarts": client["restarts"]}
            for key, value in {**client["counters"], **verdicts, **more}.items():
                found[f"{client_id}.{key}"] = int(value)
        good = status["clients"].get("lab", {"actors": {}})["actors"].get("good")
        if good is not None:  # on a busy machine the good client may resend segments just before they are acknowledged
            found["lab.duplicate"] -= good["verdicts"]["duplicate"]
        return found

    def moved(self) -> dict[str, int]:
        after = self.counts()
        return {key: after[key] - self._before.get(key, 0) for key in after if after[key] != self._before.get(key, 0)}

    def check(self, expected: Mapping[str, int | AtLeast], *, besides: Sequence[str] = ()) -> None:
        """Check that the good client was not disturbed, and that only the expected counters changed."""

        def counted() -> dict[str, int]:
            return {key: value for key, value in self.moved().items() if key in expected or key not in (*BUSINESS, *besides)}

        self.good.served(2)
        deadline = time.monotonic() + PATIENCE_S / 4
        pause = threading.Event()
        while counted() != expected and time.monotonic() < deadline:
            pause.wait(0.02)
        assert counted() == expected, f"{counted()}, not {expected}"
        self.good.served(1)
        self.good.stop()
        agent = self.good.agent
        agent.flush(PATIENCE_S)
        until(lambda: agent.stats()["verdicts"]["trained"] == agent.stats()["submitted"], "the good client's segments")
        stats = agent.stats()
        check_law(stats)
        assert stats["submitted"] == stats["accepted"] == self.good.rounds * 1 > 0
        unwanted = ("refused", "sessions_lost", "redials", "io_restarts")
        counters = {name: count - self._at_join.get(name, 0) for name, count in stats["counters"].items()}
        disturbed = {name: count for name, count in counters.items() if count and name.startswith(unwanted)}
        assert not disturbed, f"the good client was disturbed: {disturbed}"
        assert agent.digest == self.learner.digest("lab", agent.version)
        self.learner.raise_if_dead()
        for client in self.status()["clients"].values():
            check_learner_law(client)
        assert counted() == expected, f"{counted()}, not {expected}"


def _list_everybody(ring: KeyRing) -> None:
    ring.allow("good")
    ring.allow("victim")
    ring.allow("mallory", ids=["lab", "wide"])
    ring.allow("reader", ["read_weights"])
    ring.allow("writer", ["submit"])
    ring.allow("operator", ["admin"])
    ring.allow("foreign", ids=["other"])
    ring.allow("late", expires="2020-01-01T00:00:00Z")
    ring.allow("chatty", quota={"messages_per_s": 5})
    ring.allow("bulky", quota={"bytes_per_s": 500})
    ring.allow("grabby", quota={"fetches_per_min": 1})
    ring.allow("lengthy", quota={"segment_steps": 10})
    ring.allow("crowded", quota={"actors": 1})
    ring.write()
