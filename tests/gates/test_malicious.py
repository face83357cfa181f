"""Forty attacks: each gets its typed refusal, is counted, and disturbs no other peer.

Each case has a real learner, over tcp, and a good client that trains beside the attacker without a break. It has keys, unless
the case is about the protocol alone. After each case, only the counters that the case names have changed, the good client has
received new versions meanwhile, and all of its segments are trained on. Case 23 is in test_fair_shares.py.
"""

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from kit import play, until
from wire.conftest import build

from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.security.keys import UserKeys, new_key_pair
from rl4sys_zmq.testing import fake_spec
from rl4sys_zmq.transports import MonitorEvent, sockets
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, space_to_json
from rl4sys_zmq.weights import PayloadEncoding, digest
from rl4sys_zmq.wire import decode, encode, join_submit, pack_segment, spec_to_document
from rl4sys_zmq.wire import messages as m
from rl4sys_zmq.wire.segments import HEAD

from . import evil
from .conftest import PATIENCE_S, SOAK, join
from .siege import ALGORITHM, AtLeast, Siege, craft, hello, segment, submit, submit_with
from .zmtp import MORE, dial, frame, greeting, hear_ready, ready

pytestmark = pytest.mark.timeout(600 if SOAK else 120)

HANDSHAKE_S = 3.0
"""The HANDSHAKE_IVL of every socket."""

Expected = dict[str, Any]
Attack = Callable[[Siege], None]


@dataclass(frozen=True)
class Case:
    """One attack, and the counters that change."""

    number: int
    name: str
    attack: Attack
    expected: Expected
    keys: bool
    disk: bool
    besides: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"case-{self.number:02}-{self.name}"


CASES: list[Case] = []


def case(
    number: int, name: str, expected: Expected, *, keys: bool = True, disk: bool = False, besides: tuple[str, ...] = ()
) -> Callable[[Attack], Attack]:
    """Return a decorator that adds an attack to the table. The attack itself checks the counters of `besides`."""

    def enter(attack: Attack) -> Attack:
        CASES.append(Case(number, name, attack, expected, keys, disk, besides))
        return attack

    return enter


@pytest.fixture
def siege_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Case], Siege]]:
    monkeypatch.setattr("rl4sys_zmq.learner.gateway.gateway.BEACON_S", 0.05)
    monkeypatch.setattr("rl4sys_zmq.delivery.session.REFUSED_RETRY_S", 0.05)
    if not SOAK:  # case 39 waits for these; the long tier keeps their values
        monkeypatch.setitem(sockets._COMMON, zmq.HANDSHAKE_IVL, 1_000)
        monkeypatch.setattr("rl4sys_zmq.learner.gateway.client_registry.SILENCE_S", 1.5)
    with ExitStack() as stack:
        yield lambda case: Siege(tmp_path, stack, keys=case.keys, run_dir=tmp_path / "run" if case.disk else None)


@case(1, "no-keys-to-a-port-that-asks-for-them", {"connections.handshake_failed.protocol": 1})
def _(siege: Siege) -> None:
    attacker = siege.attacker("")
    attacker.try_to_say(hello())
    assert named(attacker.failure()) == ("handshake_failed.protocol", 0x11000002)


@case(2, "wrong-server-key", {"connections.handshake_failed.protocol": AtLeast(1)})
def _(siege: Siege) -> None:
    assert siege.ring is not None
    attacker = siege.attacker(keys=UserKeys(siege.ring.pair("mallory"), new_key_pair().public))
    assert named(attacker.failure()) == ("handshake_failed.no_detail", 32)
    attacker.close()


@case(3, "unlisted-key", {"connections.handshake_failed.auth": 1, "security.denied.unlisted": 2})
def _(siege: Siege) -> None:
    attacker = siege.attacker("nobody")
    attacker.try_to_say(hello())
    assert named(attacker.failure()) == ("handshake_failed.auth", 400)
    subscriber = siege.subscriber("nobody")
    until(lambda: ("handshake_failed.auth", 400) in map(named, subscriber.events()), "the publisher's denial")


@case(4, "expired-key", {"connections.handshake_failed.auth": 1, "security.denied.expired": 1})
def _(siege: Siege) -> None:
    attacker = siege.attacker("late")
    attacker.try_to_say(hello())
    assert named(attacker.failure()) == ("handshake_failed.auth", 400)


def named(event: MonitorEvent) -> tuple[str, int]:
    return event.name, event.detail


@case(5, "no-role-submit", {"refused.forbidden": 2})
def _(siege: Siege) -> None:
    attacker = siege.attacker("reader")
    assert attacker.refused(hello(submits=True)) == "forbidden"
    attacker.join(submits=False)
    assert attacker.refused(submit(0)) == "forbidden"


@case(6, "no-role-read-weights", {"refused.forbidden": 2, "subscriptions_refused": 2})
def _(siege: Siege) -> None:
    attacker = siege.attacker("writer")
    assert attacker.refused(hello(submits=False)) == "forbidden"
    welcome = attacker.join()
    assert attacker.refused(m.FetchWeights(0, 0)) == "forbidden"
    subscriber = siege.subscriber("writer")
    subscriber.subscribe(b"W" + welcome.topic)
    subscriber.subscribe(b"B" + welcome.topic)
    until(lambda: siege.moved().get("subscriptions_refused") == 2, "the refusal of both subscriptions")
    siege.good.served(2)
    assert subscriber.recv() is None


@case(7, "client-id-of-another-key", {"refused.identity": 2})
def _(siege: Siege) -> None:
    assert siege.attacker("foreign").refused(hello()) == "identity"
    assert siege.attacker("mallory").refused(hello(actor_id="good", incarnation=1 << 62)) == "identity"


@case(8, "routing-id-of-another", {}, besides=("refused.identity", "refused.no_session"))
def _(siege: Siege) -> None:
    victim = siege.attacker("victim", identity=b"me")
    victim.join(actor_id="victim")
    thief = siege.attacker("mallory", identity=b"me")
    thief.say(m.FetchWeights(0, 0))
    victim.say(m.FetchWeights(0, 0))
    victim.hear(m.WeightsReply)
    assert thief.listen(0.1) is None
    thief.close()
    victim.close()

    def heir() -> str:
        """Try to take the routing id. libzmq does not report when it is free."""
        attacker = siege.attacker("mallory", identity=b"me")
        attacker.say(m.Heartbeat(0))
        while (message := attacker.listen(0.2)) is not None:
            if isinstance(message, m.Refused):
                return message.code
        attacker.close()
        return ""

    code = until(heir, "the name to be free")
    assert code in ("identity", "no_session"), "the session is another's, or the learner has seen that its owner is gone"
    assert siege.moved()[f"refused.{code}"] == 1


@case(9, "data-before-hello", {"refused.no_session": 4})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    for message in (decode(submit(0)), m.Heartbeat(1), m.FetchWeights(0, 0), m.Bye()):
        assert attacker.refused(message) == "no_session"


@case(10, "older-incarnation", {"refused.fenced": 1})
def _(siege: Siege) -> None:
    siege.attacker().join(incarnation=5)
    assert siege.attacker().refused(hello(incarnation=4)) == "fenced"


@case(11, "two-live-incarnations", {"refused.conflict": 1})
def _(siege: Siege) -> None:
    siege.attacker().join(incarnation=5)
    siege.attacker().join(actor_id="another")
    assert siege.attacker().refused(hello(incarnation=6)) == "conflict"


@case(12, "sequence-jump", {"refused.gap": 1})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    attacker.join()
    attacker.send(submit(0))
    attacker.send(submit(3))
    refused = attacker.hear(m.Refused)
    assert (refused.code, refused.expected_seq) == ("gap", 1)


@case(13, "sequence-replay", {"lab.duplicate": 2})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    attacker.join()
    for _ in range(3):
        attacker.send(submit(0))
    ack = attacker.acked(lambda a: a.verdicts["duplicate"] == 2)
    assert (ack.received, ack.durable) == (1, 1)
    ack = attacker.acked(lambda a: a.trained == 1)
    assert ack.verdicts["trained"] == 1


@case(14, "same-number-other-content", {"refused.equivocation": 1})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    attacker.join()
    attacker.send(submit(0))
    assert attacker.refused(submit(0, segment(episode_id=2))) == "equivocation"
    assert attacker.acked(lambda a: True).received == 1


@case(15, "numbers-out-of-range", {"refused.range": 5, "refused.malformed": 1})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    attacker.join(incarnation=0)
    body = decode(submit(0))
    assert isinstance(body, m.Submit)
    for seq in ((1 << 64) - 1, 1 << 63):
        assert attacker.refused(encode(replace(body, first_seq=seq))) == "range"
    wrong: list[dict[str, Any]] = [
        {"incarnation": 1 << 63},
        {"first_seq": 1 << 63},
        {"incarnation": 7, "first_seq": (1 << 40) + 1},
    ]
    for fields in wrong:
        assert attacker.refused(hello(**{"actor_id": "ranger", **fields})) == "range"
    assert attacker.refused(encode(hello(incarnation=-1))) == "malformed"


def patched(at: int, value: bytes) -> list[bytes]:
    """Return a heartbeat with other bytes in its prefix."""
    good = bytes(encode(m.Heartbeat(0))[0])
    return [good[:at] + value + good[at + len(value) :]]


@case(16, "bad-magic", {"refused.magic": 2})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    assert attacker.refused(patched(0, b"HTTP")) == "magic"
    assert attacker.refused([b"GET / HTTP/1.1\r\n\r\n"]) == "magic"


@case(17, "unsupported-major", {"refused.version": 2})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    for major in (0, 2):
        assert attacker.refused(patched(4, bytes([major]))) == "version"


@case(18, "unknown-must-understand-flag", {"refused.feature": 16, "refused.no_session": 1})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    for bit in range(16):
        assert attacker.refused(craft(3, {"want_steps": 0}, flags=1 << bit)) == "feature"
    assert attacker.refused(craft(3, {"want_steps": 0}, flags=1 << 16)) == "no_session", "what may be ignored is"


@case(19, "no-frames", {"refused.magic": 1, "refused.frames": 3})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    assert attacker.refused([b""]) == "magic"  # a message has at least one frame
    attacker.join()
    assert attacker.refused([submit(0)[0]]) == "frames"
    assert attacker.refused([*encode(m.Heartbeat(0)), b""]) == "frames"
    assert attacker.refused(encode(replace(join_submit(0, 0, [pack_segment(segment())]), body=(), digests=()))) == "frames"


@case(20, "too-many-frames", {"refused.frames": 3})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    attacker.join()
    for count in (256, 257, 200_000):
        assert attacker.refused([submit(0)[0], *[b""] * (count - 1)]) == "frames"


@case(21, "frame-too-large", {"connections.disconnected": AtLeast(1)}, keys=False)
def _(siege: Siege) -> None:
    with dial(siege.learner.address) as connection:
        connection.sendall(greeting() + ready())
        assert hear_ready(connection)
        connection.sendall(frame(bytes(64), declared=(1 << 26) + 1))
        connection.settimeout(PATIENCE_S)
        assert ended(connection)


def ended(connection: socket.socket) -> bool:
    """Read until the peer closes the connection."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
    return True


@case(22, "message-too-large", {"refused.too_large": 2}, keys=False)
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    attacker.join()
    assert attacker.refused(craft(3, bytes((1 << 20) + 1))) == "too_large"
    assert attacker.refused([bytes(1 << 20)] * 65) == "too_large"


DEEP = b"\x91" * 100_000 + b"\xc0"
MSGPACK = {
    "cut": b"\x81\xaawant_",
    "no UTF-8": b"\x81\xaawant_ste\xff\xfe\x01",
    "deep": DEEP,
    "2^32 items": b"\xdd\xff\xff\xff\xff",
    "nothing": b"",
    "true for 1": b"\x81\xaawant_steps\xc3",
    "NaN": b"\x81\xaawant_steps\xcb\x7f\xf8\0\0\0\0\0\0",
}


@case(24, "malformed-msgpack", {"refused.malformed": len(MSGPACK)})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    for name, header in MSGPACK.items():
        assert attacker.refused(craft(3, header)) == "malformed", name


KEYS = {
    "twice": b"\x82\xaawant_steps\x01\xaawant_steps\x02",
    "integers": b"\x82\x01\x02\xaawant_steps\x01",
    "ext": b"\x81\xaawant_steps\xd4\x01\x00",
}


@case(25, "keys-and-ext-types", {"refused.malformed": len(KEYS)})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    for name, header in KEYS.items():
        assert attacker.refused(craft(3, header)) == "malformed", name


BAD_DTYPES: list[Any] = ["|O", [["a", "O"]], "S1000000000", ">f4", 7]


def array(dtype: Any = "<f4", shape: Any = (2,), data: bytes = bytes(8), **more: Any) -> dict[Any, Any]:
    """Return an array as msgpack-numpy writes it, with false values."""
    return {b"nd": True, b"type": dtype, b"kind": b"", b"shape": list(shape), b"data": data, **more}


def hello_with(value: Any) -> list[bytes]:
    fields = {f.name: getattr(hello(), f.name) for f in dataclasses.fields(m.Hello)}
    return craft(1, {**fields, "algorithm_parameters": {"x": value}})


BAD_COLUMN_DTYPES = [str(d) for d in BAD_DTYPES if d and " " not in str(d)]


def layout_with(dtype: str = "<f4", row: str = "4") -> str:
    """Return a layout with false values for the observations."""
    return f"o{dtype}:{row} a<i8 r<f4 l<f4 v<u8"


@case(26, "dtypes", {"refused.dtype": len(BAD_DTYPES) + len(BAD_COLUMN_DTYPES)})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    attacker.join()
    for dtype in BAD_DTYPES:
        assert attacker.refused(hello_with(array(dtype))) == "dtype", dtype
    for dtype in BAD_COLUMN_DTYPES:
        assert attacker.refused(submit_with(layout=layout_with(dtype))) == "dtype", dtype


BAD_SHAPES: list[list[Any]] = [[-3, -4], [True, 4], [1] * 9, [1 << 62, 0], [3, 5]]
BAD_ROWS = ["-1", "4x", "0", "1x1x1x1x1x1x1x1", f"{1 << 62}x0"]


@case(27, "shapes", {"refused.shape": len(BAD_SHAPES) + len(BAD_ROWS) + 5})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    attacker.join()
    for shape in BAD_SHAPES:
        assert attacker.refused(hello_with(array(shape=shape))) == "shape", shape
    for row in BAD_ROWS:
        assert attacker.refused(submit_with(layout=layout_with(row=row))) == "shape", row
    good = join_submit(0, 0, [pack_segment(segment())])
    for blob in (bytes(good.body[0]) + bytes(16), good.body[0][:-16]):
        assert attacker.refused(encode(replace(good, body=(blob,), digests=()))) == "shape"
    for lie in ({"flags": 10}, {"flags": 9 | 16}, {"steps": 1_000_000, "episode_length": 1_000_000}):
        assert attacker.refused(submit_with(**lie)) == "shape", lie


def judged(siege: Siege, *segments: Any, refused: int = 0, quarantined: int = 0) -> None:
    """Send segments from an attacker, and check that all are acknowledged with these verdicts."""
    attacker = siege.attacker()
    attacker.join()
    attacker.send(submit(0, *segments))
    verdicts = {"refused": refused, "quarantined": quarantined}
    ack = attacker.acked(lambda a: {key: a.verdicts[key] for key in verdicts} == verdicts)
    assert ack.received == ack.durable == len(segments)


@case(28, "other-spaces", {"refused.mismatch": 2, "lab.items_refused.spec": 5, "lab.refused": 5})
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    assert attacker.refused(hello(observation_space=space_to_json(BoxSpace((5,))))) == "mismatch"
    assert attacker.refused(hello(action_space=space_to_json(DiscreteSpace(3)))) == "mismatch"
    judged(
        siege,
        segment(observations=np.zeros((3, 5), np.float32)),
        segment(observations=np.zeros((3, 4), np.float64)),
        segment(observations=np.zeros((3, 2, 2), np.float32)),
        segment(actions=np.zeros(3, np.float32)),
        segment(masks=np.ones((3, 7), np.bool_)),
        refused=5,
    )


@case(29, "content", {"lab.quarantined": 7})
def _(siege: Siege) -> None:
    bad = np.array([0.0, np.nan, 0.0], np.float32)
    judged(
        siege,
        segment(rewards=bad),
        segment(rewards=np.full(3, np.inf, np.float32)),
        segment(observations=np.full((3, 4), -np.inf, np.float32)),
        segment(log_probs=bad),
        segment(actions=np.array([0, 7, 0])),
        segment(actions=np.array([0, -1, 0])),
        segment(episode_return=float("nan")),
        quarantined=7,
    )


@case(
    30,
    "steps",
    {"lab.items_refused.range": 4, "lab.refused": 4, "refused.malformed": 3, "refused.shape": 1},
    keys=False,
)
def _(siege: Siege) -> None:
    attacker = siege.attacker()
    attacker.join()
    good = join_submit(0, 0, [pack_segment(segment())])
    assert attacker.refused(replace(good, count=0, heads=m.AnyBytes(b""))) == "malformed"
    assert attacker.refused(replace(good, count=2)) == "malformed"
    assert attacker.refused(replace(good, layouts=[])) == "malformed"
    assert attacker.refused(submit_with(steps=1_000_000, episode_length=1_000_000)) == "shape"
    nothing = np.frombuffer(good.heads, HEAD).copy()
    nothing["steps"] = 0
    attacker.send(encode(replace(good, heads=m.AnyBytes(nothing.tobytes()), body=(b"",), digests=())))
    attacker.send(submit_with(1, flags=11))  # terminated and truncated
    attacker.send(submit(2, segment(episode_length=2)))  # an episode with a smaller length than its segment
    attacker.send(submit(3, segment((1 << 20) + 1)))
    ack = attacker.acked(lambda a: a.verdicts["refused"] == 4)
    assert ack.received == 4 and ack.verdicts["trained"] == 0


@case(31, "policy-from-the-future", {"lab.quarantined": 3})
def _(siege: Siege) -> None:
    generation = siege.good.agent.generation
    judged(
        siege,
        segment(generation=generation, versions=np.full(3, 1 << 62, np.uint64)),
        segment(generation=generation + 1),
        segment(generation=(1 << 64) - 1),
        quarantined=3,
    )


@case(32, "timestamps", {"refused.malformed": 2, "refused.range": 1, "refused.fenced": 1})
def _(siege: Siege) -> None:
    """No timestamp can be forged: all times are the learner's own. An actor's incarnation is a number, whatever its source."""
    kinds = (m.Hello, m.Submit, m.Heartbeat, m.FetchWeights, m.StatusRequest, m.Bye)
    said = {f.name for kind in kinds for f in dataclasses.fields(kind)}
    assert not {name for name in said if name.endswith(("_s", "_ns", "_ms", "_unix", "_at")) or "time" in name}
    attacker = siege.attacker()
    for key in ("timestamp", "at_unix_s"):
        assert attacker.refused(craft(3, {"want_steps": 0, key: time.time() + 1e9})) == "malformed"
    for number, when in enumerate((1, time.time_ns() - 10 * 365 * 86_400 * 10**9, time.time_ns() + 10**18, 1 << 62)):
        attacker.join(actor_id=f"clock-{number}", incarnation=when)
    assert siege.status()["clients"]["lab"]["actors"]["clock-3"]["live"]
    # The last number would lock a name permanently. After any other, the true actor learns the number and takes a higher one.
    assert attacker.refused(hello(actor_id="clock-4", incarnation=(1 << 63) - 1)) == "range"
    attacker.send(encode(hello(actor_id="clock-3", incarnation=time.time_ns())))
    assert attacker.hear(m.Refused).incarnation == 1 << 62


@case(34, "floods", {"refused.quota": AtLeast(20), "refused.no_session": AtLeast(10)})
def _(siege: Siege) -> None:
    chatty, bulky, lengthy, greedy = (siege.attacker(name) for name in ("chatty", "bulky", "lengthy", "mallory"))
    for _ in range(30):
        chatty.say(m.Heartbeat(0))
    assert chatty.hear(m.Refused, lambda r: r.code != "no_session").code == "quota"
    bulky.join(actor_id="bulky")
    bulky.send(submit(0, segment(20)))
    for _ in range(10):
        bulky.say(m.Heartbeat(0))
    assert bulky.hear(m.Refused).code == "quota"
    lengthy.join(actor_id="lengthy")
    assert lengthy.refused(submit(0, segment(11))) == "quota"
    greedy.join()
    assert greedy.refused(join_submit(0, (1 << 63) - 1, [pack_segment(segment(1))] * 8193)) == "quota"
    greedy.say(m.Heartbeat((1 << 63) - 1))  # a request for all credit, and then silence
    siege.good.served(2)


@case(35, "fetches", {"refused.quota": 3, "refused.range": 1, "replies_dropped.full": AtLeast(1)})
def _(siege: Siege) -> None:
    grabby = siege.attacker("grabby")
    grabby.join(actor_id="grabby")
    grabby.say(m.FetchWeights(0, 0))
    grabby.hear(m.WeightsReply)
    for _ in range(3):
        assert grabby.refused(m.FetchWeights(0, 0)) == "quota"
    liar = siege.attacker()
    liar.join()
    for held in ((0, (1 << 63) - 1), ((1 << 63) - 1, 3), (siege.good.agent.generation, 1 << 62)):
        liar.say(m.FetchWeights(*held))
        assert len(liar.hear(m.WeightsReply).body) == 2
    assert liar.refused(m.FetchWeights(1 << 63, 0)) == "range"
    deaf = siege.attacker()
    wide = space_to_json(BoxSpace((8_000,)))
    deaf.join(client_id="wide", actor_id="deaf", algorithm_name=ALGORITHM, observation_space=wide, action_space=two())
    for _ in range(400):
        deaf.say(m.FetchWeights(0, 0))
    until(lambda: siege.moved().get("replies_dropped.full"), "its queue to be full")


def two() -> dict[str, Any]:
    return space_to_json(DiscreteSpace(2))


@case(36, "subscriptions", {"subscriptions_refused": AtLeast(65)})
def _(siege: Siege) -> None:
    subscriber = siege.subscriber()
    for number in range(200_000 if SOAK else 20_000):
        subscriber.subscribe(number.to_bytes(4, "little"))
    until(lambda: any(event.name == "disconnected" for event in subscriber.events()), "the cut")
    subscriber.close()
    upstream = siege.raw(zmq.XSUB)
    for data in (b"", b"\x02", b"hello", bytes(4096)):
        upstream.send(data)
    upstream.send_multipart([b"\x01" + bytes(8), b"more"])
    refused = siege.moved()["subscriptions_refused"]
    upstream.send(b"\x01the last")
    until(lambda: siege.moved()["subscriptions_refused"] > refused, "the last of it")


OF_A_LEARNER = [message for message in build().values() if isinstance(message, m.ToActor)]
OF_THREADS = [message for message in build().values() if not isinstance(message, m.ToActor | m.ToLearner)]


@case(37, "words-of-the-other-side", {"refused.direction": len(OF_A_LEARNER), "refused.kind": len(OF_THREADS)})
def _(siege: Siege) -> None:
    """A learner refuses the messages that only it sends. It does not decode the messages of learner threads."""
    attacker = siege.attacker()
    for answer in OF_A_LEARNER:
        assert attacker.refused(answer) == "direction", answer
    for message in OF_THREADS:
        assert attacker.refused(list(encode(message))) == "kind", message


ODD = ["a\0b", "a\nb", "\x1b[2J", "x" * 201, "\u202egnirts"]
BAD_NAMES = ["../../escape", "..", ".", "", " ", "a/b", "a\\b", "c:", ".hidden", *ODD]


@case(
    38,
    "names",
    {"refused.config": 2 * len(BAD_NAMES), "refused.malformed": 3, "lab.quarantined": 3, "refused.identity": 1},
    disk=True,
)
def _(siege: Siege) -> None:
    assert siege.ring is not None
    root = siege.ring.folder.parent
    siege.learner.save(timeout_s=PATIENCE_S)
    before = files(root)
    attacker = siege.attacker()
    for name in BAD_NAMES:
        assert attacker.refused(hello(actor_id=name)) == "config", name
        assert attacker.refused(hello(client_id=name)) == "config", name
    assert attacker.refused(hello(client_id="con%2f..%2fx")) == "identity"
    for field in ("actor_id", "client_id", "library"):
        fields = {f.name: getattr(hello(), f.name) for f in dataclasses.fields(m.Hello)}
        assert attacker.refused(craft(1, {**fields, field: "x" * 65_536})) == "malformed"
    odd = ["%2e%2e%2fup", "$(reboot)~*?'\"", "ümlaut-" + "é" * 190]
    for name in odd:
        another = siege.attacker()
        another.join(actor_id=name)
        another.send(submit(0, segment(rewards=np.full(3, np.nan, np.float32))))
        another.acked(lambda a: a.verdicts["quarantined"] == 1)
    until(lambda: len(dead(files(root) - before)) == 2 * len(odd), "three dead letters")
    new = files(root) - before
    assert {path for path in new - dead(new) if path.parts[1] not in ("checkpoints", "lab")} == set()
    assert not list(root.parent.glob("*escape*"))


def files(root: Path) -> set[Path]:
    found = {path.relative_to(root) for path in root.rglob("*") if path.is_file()}
    return {path for path in found if not path.name.endswith(("-wal", "-shm", "-journal")) and ".tmp" not in str(path)}


def dead(paths: set[Path]) -> set[Path]:
    return {path for path in paths if path.parts[:2] == ("run", "dead")}


@case(39, "half-open", {"connections.handshake_failed.no_detail": AtLeast(2)})
def _(siege: Siege) -> None:
    began = time.monotonic()
    silent = siege.attacker()
    silent.join()
    with dial(siege.learner.address) as quiet, dial(siege.learner.address) as slow, dial(siege.learner.address) as half:
        half.sendall(greeting(mechanism=b"CURVE"))
        words = iter(greeting(mechanism=b"CURVE"))
        over: set[socket.socket] = set()
        while len(over) < 3:
            assert time.monotonic() - began < PATIENCE_S
            for connection in {quiet, slow, half} - over:
                connection.settimeout(0.05)
                try:
                    if connection is slow:
                        connection.sendall(bytes([next(words)]))
                    if not connection.recv(1 << 16):
                        over.add(connection)
                except TimeoutError:
                    continue
                except ConnectionError:
                    over.add(connection)
    took = time.monotonic() - began
    assert not SOAK or took < HANDSHAKE_S + 2.0, f"closed after {took:.1f} s"
    until(lambda: not siege.status()["clients"]["lab"]["actors"]["mallory"]["live"], "the end of a session that is silent")


class Host:
    """A host with an agent on an evil learner. The host must not be affected."""

    def __init__(self, siege: Siege) -> None:
        self.learner = evil.Evil()
        siege.stack.callback(self.learner.close)
        self.agent = join(self.learner.address, algorithm_name=None)
        siege.stack.callback(self.agent.close, 0.0)
        self._before = self.counted()
        self.version, self.digest = self.agent.version, self.agent.digest

    def counted(self) -> dict[str, int]:
        told = ("refused.", "ignored.", "weights_", "refused_by_learner.", "io_restarts", "redials", "resyncs", "sessions_lost")
        counters = self.agent.stats()["counters"]
        return {key: int(value) for key, value in counters.items() if key.startswith(told) and key != "weights_applied"}

    def suffers(self, *messages: Any, policy: bool = False, **expected: int) -> None:
        """Send messages to the agent, and check that they are counted and change nothing."""
        if policy:
            self.learner.publish(*messages)
        else:
            self.learner.say(*messages)
        wanted = {key.replace("__", "."): count for key, count in expected.items()}

        def moved() -> dict[str, int]:
            after = self.counted()
            return {key: after[key] - self._before.get(key, 0) for key in after if after[key] != self._before.get(key, 0)}

        until(lambda: moved() == wanted, lambda: f"{wanted}, not {moved()}", 20.0)
        self._before = self.counted()
        self.act()

    def act(self) -> None:
        """Continue to act. The policy must be the old one."""
        play(self.agent, 3)
        assert (self.agent.version, self.agent.digest) == (self.version, self.digest)

    def recovers(self, version: int) -> None:
        """Check that the agent still accepts a valid update."""
        self.learner.weights = evil.sound(version)
        self.learner.publish([b"W" + evil.TOPIC, *evil.sound(version)])
        until(lambda: self.agent.version == version, "a sound update")
        assert self.agent.digest == evil.state(version).digest
        self.version, self.digest = version, self.agent.digest
        self._before = self.counted()


ZEROS = evil.expands(evil.SPEC.size, declared=evil.SPEC.size)


def bombs() -> dict[str, bytes]:
    size = evil.SPEC.size
    return {
        "a bomb": evil.expands(256 << 20, declared=256 << 20),
        "a bomb that declares little": evil.expands(256 << 20, declared=size),
        "more than it declares": evil.expands(2 * size, declared=size),
        "less than it declares": evil.expands(size // 2, declared=size),
        "4 GiB declared": evil.expands(size, declared=(1 << 32) - 1),
        "a bomb that declares nothing": evil.expands(256 << 20, declared=None),
        "another frame behind": ZEROS + ZEROS,
        "a skippable frame behind": ZEROS + b"\x50\x2a\x4d\x18\x04\0\0\0skip",
        "no frame": b"\xff" * 9,
        "nothing": b"",
    }


def squeezed(*planes: bytes, version: int = 1, base: int | None = None) -> list[Any]:
    codec = PayloadEncoding.SNAPSHOT_PLANES if base is None else PayloadEncoding.PLANES
    fields = {} if base is None else {"base_version": base}
    payload = (b"" if base is None else evil.ALL_BLOCKS) + evil.planes(*planes)
    return [b"W" + evil.TOPIC, *evil.update(version, payload, codec=codec, **fields)]


@case(33, "zstd", {"refused.direction": 1})
def _(siege: Siege) -> None:
    """A learner decompresses nothing: a peer that sends it weights gets ``direction``. So the bombs go to an actor."""
    assert siege.attacker().refused(m.WeightsReply(tuple(squeezed(*[ZEROS] * 4)[1:]))) == "direction"
    host = Host(siege)
    for name, bomb in bombs().items():
        for base in (None, 0):
            print(name)
            host.suffers(squeezed(ZEROS, ZEROS, ZEROS, bomb, base=base), policy=True, weights_refused__payload=1)
    # A window of 2 GiB needs no memory when a frame is decompressed in one go. Its result is checked like any other.
    wide = evil.expands(evil.SPEC.size, declared=evil.SPEC.size, window_log=31)
    host.suffers(squeezed(ZEROS, ZEROS, ZEROS, wide), policy=True, weights_refused__digest=1)
    host.recovers(1)


@case(40, "evil-learner", {})
def _(siege: Siege) -> None:
    terms(siege)
    host = Host(siege)
    marks(host)
    weights(host)
    host.recovers(1)
    words(host)
    welcomes(host)
    host.recovers(2)


def terms(siege: Siege) -> None:
    """Check that a host joins and acts even if the session parameters are impossible to follow."""
    top = (1 << 63) - 1
    for rules in (
        {"max_segment_steps": 0, "rollout_length": 0},
        {"max_segment_steps": top, "rollout_length": top},
        {"max_message_bytes": 0},
        {"heartbeat_s": -5.0},
        {"heartbeat_s": 1e300},
        {"accepted_steps": top},
        {"version": top, "max_policy_lag": 0},
    ):
        with contextlib.closing(evil.Evil()) as learner:
            learner.welcome = rules
            agent = join(learner.address, algorithm_name=None)
            try:
                play(agent, 20)
                assert agent.stats()["state"] == "joined"
            finally:
                agent.close(0.0)


def marks(host: Host) -> None:
    """Send impossible acks and refusals."""
    learner = host.learner
    host.suffers(learner.ack(received=9, durable=9), ignored__ack=1)
    host.suffers(learner.ack(durable=1), ignored__ack=1)
    host.suffers(learner.ack(generation=evil.GENERATION - 1), ignored__ack=1)
    learner.accept(0)
    play(host.agent, 3)
    until(lambda: learner.submitted, "segments")
    host.suffers()
    learner.accept(2)
    until(lambda: host.agent.stats()["accepted"] == 2, "the ack")
    host.suffers(learner.ack(received=1, durable=1), ignored__ack=1)
    host.suffers(learner.ack(received=3, durable=1), ignored__ack=1)
    for name in ("credit_steps", "credit_items", "credit_bytes", "min_version", "received"):
        host.suffers(learner.ack(**{name: 1 << 63}), refused__range=1)
    top = (1 << 63) - 1
    host.suffers(learner.ack(credit_steps=top, credit_items=top, credit_bytes=top, min_version=top))
    host.suffers(learner.ack(verdicts={"trained": "many", "stale": -3, "refused": None, "quarantined": [], "x": {}}))
    host.suffers(m.Refused("gap", "", "", 1 << 40), ignored__gap=1, refused_by_learner__gap=1)
    host.suffers(m.Refused("no such code", "x" * 9_000, "\x1b[2J"), refused_by_learner__malformed=1)


def weights(host: Host) -> None:
    """Send invalid updates on both sockets."""
    size, flat = evil.SPEC.size, evil.state(1).flat
    nan = np.where(np.arange(size) == 7, np.float32(np.nan), flat).astype(np.float32)
    huge = bytes(4 * 5_000_000)
    bad: list[tuple[str, Any]] = [
        ("size", evil.update(1, flat[:-1].tobytes(), elements=size - 1)),
        ("size", evil.update(1, huge, elements=5_000_000)),
        ("payload", evil.update(1, flat[:-1].tobytes())),
        ("payload", evil.update(1, flat.tobytes(), payload_hash=1)),
        ("payload", evil.update(1, flat.tobytes(), chunk=1, chunks=2)),
        ("digest", evil.update(1, flat.tobytes(), state_hash=1)),
        ("finite", evil.update(1, nan.tobytes(), state_hash=digest(nan))),
        ("gap", evil.update(9, flat.tobytes(), codec=PayloadEncoding.RAW, base_version=8)),
    ]
    for reason, update in bad:
        counts: dict[str, Any] = {f"weights_refused__{reason}": 1}
        host.suffers(m.WeightsReply(update), **counts)
        host.suffers([b"W" + evil.TOPIC, *update], policy=True, **counts)
    sound = evil.sound(1)
    host.suffers(m.WeightsReply((*sound, b"one more")), refused__frames=1)
    host.suffers(m.WeightsReply(()), refused__frames=1)
    host.suffers(m.WeightsReply((bytes(72), sound[1])), refused__magic=1)
    host.suffers(m.WeightsReply((sound[0][:-1] + b"\0", sound[1])), refused__checksum=1)
    host.suffers(m.WeightsReply((sound[0] + b"\0", sound[1])), refused__malformed=1)
    for other in ({"policy_id": bytes(8)}, {"generation": evil.GENERATION + 1}):
        host.suffers(m.WeightsReply(evil.update(1, flat.tobytes(), **other)), weights_ignored=1)


def words(host: Host) -> None:
    """Send malformed messages, and messages that are not for an actor."""
    host.suffers([b""], refused__magic=1)
    host.suffers([b"x"] * 300, refused__frames=1)
    host.suffers(craft(18, b"\xc1"), refused__malformed=1)
    host.suffers([b"B" + evil.TOPIC, b"garbage"], policy=True, refused__magic=1)
    host.suffers([b"B" + evil.TOPIC, *[b""] * 60], policy=True, refused__frames=1)
    host.suffers([b"W" + evil.TOPIC, b"", b""], policy=True, refused__malformed=1)
    host.suffers([b"W" + evil.TOPIC], [b"B" + evil.TOPIC, *encode(m.Heartbeat(0))], policy=True)
    for message in build().values():
        if not isinstance(message, m.ToActor | m.ToLearner):
            host.suffers(message, refused__kind=1)
        elif not isinstance(message, m.Welcome | m.Ack | m.Refused | m.WeightsReply):
            host.suffers(message)


def welcomes(host: Host) -> None:
    """Send unusable WELCOMEs. The error appears in `stats`, and has no other effect."""
    learner = host.learner
    spec = spec_to_document(evil.SPEC)
    other = {"generation": evil.GENERATION + 1}
    host.suffers(learner.welcoming(received=1 << 40, durable=1 << 40, **other), ignored__welcome=1)
    host.suffers(learner.welcoming(received=1, durable=2, **other), ignored__welcome=1)
    host.suffers(learner.welcoming(heartbeat_s=1e300))
    giant = {
        **spec,
        "document": {**spec["document"], "hidden_sizes": [1 << 40, 1 << 40]},
        "tensors": [["layers.0.weight", [1 << 40, 4]]],
    }
    wrong: list[dict[str, Any]] = [
        {"spec": {}},
        {"spec": {**spec, "document": {**spec["document"], "activation": "os.system"}}},
        {"spec": {**spec, "tensors": [["x", [-1]]]}},
        {"spec": giant},
        {"spec": spec_to_document(fake_spec((1 << 20, 1 << 20)))},
        {"spec": spec_to_document(mlp_spec(BoxSpace((5,)), DiscreteSpace(2), "categorical", (8,)))},
        {"pub": "no address"},
        {"pub": "tcp://256.256.256.256:99999"},
        {"pub": ""},
    ]
    for number, bad in enumerate(wrong, 2):
        print(bad)
        learner.welcome = {"generation": evil.GENERATION + number, **bad}
        learner.say(m.Refused("no_session", "", ""))
        until(lambda: host.agent.stats()["error"], "the error of a welcome")
        host.act()
        learner.welcome = {}
        until(lambda: host.agent.stats()["state"] == "joined" and not host.agent.stats()["error"], "a welcome that is none")
    host.learner.welcome = {}


def endless(address: str) -> int:
    """Send frames of one message until the connection ends. Return the number of bytes."""
    sent, chunk = 0, frame(bytes(60_000), MORE) * 16
    with dial(address) as connection, contextlib.suppress(OSError):
        connection.sendall(greeting() + ready())
        assert hear_ready(connection)
        while True:
            connection.sendall(chunk)
            sent += len(chunk)
    return sent


IN_ORDER = sorted(CASES, key=lambda c: c.number)


@pytest.mark.parametrize("case", IN_ORDER, ids=[c.id for c in IN_ORDER])
def test_malicious(case: Case, siege_of: Callable[[Case], Siege]) -> None:
    siege = siege_of(case)
    case.attack(siege)
    siege.check(case.expected, besides=case.besides)


def test_the_table_is_complete() -> None:
    assert sorted(case.number for case in CASES) == [n for n in range(1, 41) if n != 23]
