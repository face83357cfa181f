"""The session of the compiled form, for the simulator: alone, or in lock-step with the session in Python.

A call is a name and a list of values, and so are its results: rows for the actions, and a dict of all that a caller can read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, assert_never

from rl4sys_zmq import native
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.session import (
    Action,
    ActorSession,
    Reconnect,
    ReplaceSockets,
    SendMessage,
    SessionJoined,
    SessionRefused,
    SessionState,
    SessionTemporarilyRefused,
    StreamRestarted,
)
from rl4sys_zmq.errors import RefusalReason
from rl4sys_zmq.images import ImageFormat
from rl4sys_zmq.wire import PackedSegment, decode, encode
from rl4sys_zmq.wire.coding import EncodedImages, plain_body
from rl4sys_zmq.wire.messages import Hello, Message, Refused, Submit, Welcome

Row = list[Any]
LOOK = (
    "credit_steps", "sent_steps", "min_version", "generation", "received", "durable", "journal_id", "in_doubt", "in_flight",
    "unreceived", "origin", "accepted",
)  # fmt: skip


def values_of(hello: Hello) -> dict[str, Any]:
    return {f.name: getattr(hello, f.name) for f in fields(hello)}


def segment_row(packed: PackedSegment) -> Row:
    large = [bytes(frame) for frame in packed.large]
    numbers = packed.steps, packed.generation, packed.oldest_version, packed.nbytes
    return [packed.layout, packed.head, list(packed.small), large, list(packed.digests), *numbers]


def frames_of(message: Message) -> list[bytes]:
    return [bytes(frame) for frame in encode(message)]


def code_of(refused: Refused) -> str:
    """Return the code as a session understands it: an unknown one is ``malformed``."""
    known = {reason.value for reason in RefusalReason}
    return refused.code if refused.code in known else RefusalReason.MALFORMED.value


def action_row(action: Action) -> Row:
    match action:
        case SendMessage(message):
            return ["send", frames_of(message)]
        case SessionJoined():
            return ["joined"]
        case SessionRefused(refused):
            return ["refused", code_of(refused), refused.field, refused.reason]
        case SessionTemporarilyRefused(refused):
            return ["refused_for_now", code_of(refused), refused.field, refused.reason]
        case Reconnect(silence_s):
            return ["reconnect", silence_s]
        case StreamRestarted(in_doubt):
            return ["restarted", in_doubt]
        case ReplaceSockets(incarnation):
            return ["replace_sockets", incarnation]
        case _:
            assert_never(action)


def look(session: ActorSession, counters: Counters) -> dict[str, Any]:
    """Return all that a caller can read."""
    return {
        "state": session.state.value,
        "deadline": session.next_deadline(),
        "can_take": session.can_take(),
        "leaving": session.leaving,
        **{name: getattr(session, name) for name in LOOK},
        "verdicts": session.verdicts,
        "counters": dict(sorted(counters.snapshot().items())),
    }


class _Calls:
    """The methods of a session, as calls by name."""

    def _call(self, name: str, arguments: Row, pure: Callable[[ActorSession], list[Action]], heard: Any = None) -> list[Action]:
        raise NotImplementedError

    def open(self, now: float, held: tuple[int, int]) -> list[Action]:
        return self._call("open", [now, *held], lambda session: session.open(now, held))

    def tick(self, now: float, held: tuple[int, int]) -> list[Action]:
        return self._call("tick", [now, *held], lambda session: session.tick(now, held))

    def want(self, now: float, steps: int) -> list[Action]:
        return self._call("want", [now, steps], lambda session: session.want(now, steps))

    def close(self, now: float) -> list[Action]:
        return self._call("close", [now], lambda session: session.close(now))

    def take(self, now: float, packed: Sequence[PackedSegment], ahead_steps: int = 0) -> list[Action]:
        rows = [segment_row(p) for p in packed]
        return self._call("take", [now, rows, ahead_steps], lambda session: session.take(now, packed, ahead_steps))

    def on_message(self, now: float, message: Message) -> list[Action]:
        return self._call("on_message", [now, frames_of(message)], lambda session: session.on_message(now, message), message)

    def reject(self, now: float) -> None:
        def rejected(session: ActorSession) -> list[Action]:
            session.reject(now)
            return []

        self._call("reject", [now], rejected)


class NativeSession(_Calls):
    """The compiled session, with the interface of `ActorSession` except for a spool and images."""

    def __init__(
        self, hello: Hello, counters: Counters, rng: random.Random, *, coded: bool = False, images: ImageFormat | None = None
    ) -> None:
        module = native.load()
        assert module is not None and not hello.spooled and images is None
        self._session = module.Session(values_of(hello), rng.getrandbits(64), coded)
        self._counters = counters

    def _call(self, name: str, arguments: Row, pure: Callable[[ActorSession], list[Action]], heard: Any = None) -> list[Action]:
        before = self._session.look()["counters"]
        rows = self._session.call(name, arguments)
        for event, count in self._session.look()["counters"].items():
            self._counters.add(event, count - before.get(event, 0))
        return [self._action(row, heard) for row in rows]

    def _action(self, row: Row, heard: Welcome | Refused) -> Action:
        match row:
            case ["send", frames]:
                return SendMessage(decode(frames))
            case ["joined"]:
                assert isinstance(heard, Welcome)
                return SessionJoined(heard)
            case ["refused", code, field, reason]:
                assert isinstance(heard, Refused)
                assert (code, field, reason) == (code_of(heard), heard.field, heard.reason)
                return SessionRefused(heard)
            case ["refused_for_now", code, field, reason]:
                assert isinstance(heard, Refused)
                assert (code, field, reason) == (code_of(heard), heard.field, heard.reason)
                return SessionTemporarilyRefused(heard)
            case ["reconnect", silence_s]:
                return Reconnect(silence_s)
            case ["restarted", in_doubt]:
                return StreamRestarted(in_doubt)
            case ["replace_sockets", incarnation]:
                return ReplaceSockets(incarnation)
            case _:
                raise AssertionError(row)

    def has_room(self, items: int, steps: int) -> bool:
        return bool(self._session.call("has_room", [items, steps])[0][1])

    def can_take(self) -> bool:
        return bool(self._session.look()["can_take"])

    def next_deadline(self) -> float:
        return float(self._session.look()["deadline"])

    def recover(self, packed: Sequence[PackedSegment]) -> None:
        assert not packed

    @property
    def state(self) -> SessionState:
        return SessionState(self._session.look()["state"])

    @property
    def leaving(self) -> bool:
        return bool(self._session.look()["leaving"])

    @leaving.setter
    def leaving(self, value: bool) -> None:
        self._session.call("leaving", [value])

    def __getattr__(self, name: str) -> Any:
        return self._session.look()[name]


class WatchedSession(_Calls):
    """A session in Python. Each call, its arguments, its rows and what can then be read go to `watch`."""

    def __init__(self, hello: Hello, counters: Counters, rng: random.Random, **options: Any) -> None:
        seed = rng.getrandbits(64)
        self.__dict__["pure"] = ActorSession(hello, counters, random.Random(seed), **options)
        self.__dict__["_counters"] = counters
        self.begin(values_of(hello), seed, bool(options.get("coded")))

    def begin(self, hello: dict[str, Any], seed: int, coded: bool) -> None:
        raise NotImplementedError

    def watch(self, name: str, arguments: Row, rows: Row, seen: dict[str, Any]) -> None:
        raise NotImplementedError

    def _call(self, name: str, arguments: Row, pure: Callable[[ActorSession], list[Action]], heard: Any = None) -> list[Action]:
        actions = pure(self.pure)
        self.watch(name, arguments, [action_row(action) for action in actions], look(self.pure, self._counters))
        return actions

    def has_room(self, items: int, steps: int) -> bool:
        room = self.pure.has_room(items, steps)
        self.watch("has_room", [items, steps], [["room", room]], look(self.pure, self._counters))
        return bool(room)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pure, name)

    def __setattr__(self, name: str, value: Any) -> None:
        assert name == "leaving"
        self.pure.leaving = value
        self.watch("leaving", [value], [], look(self.pure, self._counters))


class PairedSession(WatchedSession):
    """A session in Python, and a compiled one that gets the same calls and must do the same."""

    def begin(self, hello: dict[str, Any], seed: int, coded: bool) -> None:
        module = native.load()
        assert module is not None and not hello["spooled"]
        self.__dict__["_native"], self.__dict__["_coded"] = module.Session(hello, seed, coded), coded

    def watch(self, name: str, arguments: Row, rows: Row, seen: dict[str, Any]) -> None:
        found, wanted = self._native.call(name, arguments), rows
        if self._coded:  # two versions of zstd may give different bytes
            found, wanted = [_plain(row) for row in found], [_plain(row) for row in rows]
        assert (found, self._native.look()) == (wanted, seen), f"{name} {arguments}"


def _plain(row: Row) -> Row:
    message = decode(row[1]) if row[0] == "send" else None
    if not isinstance(message, Submit):
        return row
    return [replace(message, codings=[], body=()), *(bytes(f) for f in plain_body(message) if not isinstance(f, EncodedImages))]
