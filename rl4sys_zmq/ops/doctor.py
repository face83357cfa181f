"""A diagnosis of the connection between an actor and its learner, in stages, up to the first stage that fails.

====================  ========================================================================================
stage                 test
====================  ========================================================================================
form                  The form of actors in this installation is named: compiled, or pure with the reason.
name                  The host name is resolved (tcp).
connect               A plain connection is opened and closed (tcp, ipc).
greeting              The peer uses ZMTP 3; its security mechanism is reported (tcp, ipc).
keys                  The ZeroMQ handshake succeeds, with the given keys or without keys (tcp, ipc).
protocol              A `StatusRequest` gets a reply, which is short for a key without the role ``admin``.
configuration         With an actor's configuration: a `Hello` of an actor that only evaluates is accepted.
weights               The PUB socket for weights is reached. If ``configuration`` ran, a beacon arrives.
relays                The relays from which the actor should take its weights answer.
====================  ========================================================================================

The diagnosis never creates a client: it sends a `Hello` only for a client that the reply to its `StatusRequest` names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq import native
from rl4sys_zmq.config import AgentConfig, RelayAddress
from rl4sys_zmq.config.addresses import connect_uri
from rl4sys_zmq.config.options import CALL_TIMEOUT_S, check_value
from rl4sys_zmq.errors import RefusalReason, RL4SysError
from rl4sys_zmq.liveness import BEACON_S, BEACON_TOPIC
from rl4sys_zmq.ops.report import worker_text
from rl4sys_zmq.ops.requests import ask, evaluating_hello, handshake_error, next_beacon, until
from rl4sys_zmq.security.keys import UserKeys, curve_client
from rl4sys_zmq.transports import Address, Secure, Socket
from rl4sys_zmq.transports.greeting import LearnerUnreachable, ZmtpGreeting, dial, greet, look_up
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.frames import MAJOR, MINOR
from rl4sys_zmq.wire.messages import (
    Bye,
    FollowWeights,
    Message,
    Refused,
    StatusReply,
    StatusRequest,
    WeightsSource,
    Welcome,
)

STAGES = ("form", "name", "connect", "greeting", "keys", "protocol", "configuration", "weights", "relays")

BEACON_WAIT_S = 2 * BEACON_S


@dataclass(frozen=True, slots=True)
class StageResult:
    stage: str
    state: str  # ``ok``, ``FAIL``, ``skipped`` or ``not reached``
    text: str = ""  # the result, or the cause of a failure
    remedy: str = ""  # what to do about a failure, otherwise empty


class _StageSkipped(Exception):
    """Raised by a stage that does not apply, with the reason."""


def diagnose(
    address: str, *, keys: UserKeys | None = None, config: AgentConfig | None = None, timeout_s: float = 3.0
) -> Iterator[StageResult]:
    """Test the connection to a learner, and yield the result of each stage. After a failure, stages are ``not reached``."""
    diagnosis = _Diagnosis(Address.parse(connect_uri(address)), keys, config, timeout_s)
    failed = False
    try:
        for stage in STAGES:
            if failed:
                yield StageResult(stage, "not reached")
                continue
            try:
                yield StageResult(stage, "ok", getattr(diagnosis, stage)())
            except _StageSkipped as exc:
                yield StageResult(stage, "skipped", str(exc))
            except LearnerUnreachable as exc:
                failed = True
                yield StageResult(stage, "FAIL", exc.cause, exc.remedy)
            except RL4SysError as exc:
                failed = True
                yield StageResult(stage, "FAIL", str(exc), "see the log of the learner")
    finally:
        diagnosis.close()


class _Diagnosis:
    """One diagnosis of the connection to a learner. It keeps what later stages need from earlier ones.

    Each name in `STAGES` is that of a method, which returns the result of its stage as text or raises an exception.
    """

    def __init__(self, address: Address, keys: UserKeys | None, config: AgentConfig | None, timeout_s: float) -> None:
        self._address, self._keys, self._config = address, keys, config
        self._timeout_s = check_value("timeout_s", timeout_s, CALL_TIMEOUT_S)
        self._secure: Secure | None = curve_client(keys) if keys is not None else None
        self._greeting = ZmtpGreeting("", "")
        self._dealer: Socket | None = None
        self._report: dict[str, Any] = {}
        self._clients: dict[str, Any] = {}
        self._welcome: Welcome | None = None

    def close(self) -> None:
        if self._dealer is not None:
            self._dealer.close()

    # ---- this installation

    def form(self) -> str:
        return native.form()

    # ---- connection and greeting

    def name(self) -> str:
        if self._address.scheme != "tcp":
            raise _StageSkipped(f"{self._address.scheme} has no host name")
        addresses = look_up(self._address, self._timeout_s)
        found_at = ", ".join(where[0] for _, where in addresses[:4])
        return found_at if found_at == self._address.host else f"{self._address.host} is {found_at}"

    def connect(self) -> str:
        self._within_reach()
        dial(self._address, self._timeout_s).close()
        return f"connected to {self._address.uri}"

    def greeting(self) -> str:
        self._within_reach()
        self._greeting = greet(self._address, self._timeout_s)
        kind = {"NULL": "without keys", "CURVE": "with keys"}.get(self._greeting.mechanism, "an unknown mechanism")
        return f"ZMTP {self._greeting.version}, {self._greeting.mechanism} ({kind})"

    def _within_reach(self) -> None:
        if self._address.scheme == "inproc":
            raise _StageSkipped("inproc exists only within one process")

    # ---- keys

    def keys(self) -> str:
        self._dealer = Socket.dealer(self._address, secure=self._secure, watch=True)
        if self._address.scheme == "inproc":
            raise _StageSkipped("inproc has no keys")
        wanted = self._greeting.mechanism
        if wanted not in ("NULL", "CURVE"):
            raise LearnerUnreachable(f"the peer requires the mechanism {wanted!r}", "it is not a learner: correct the port")
        if wanted == "CURVE" and self._keys is None:
            raise LearnerUnreachable(
                "the learner requires keys, but none were given",
                "give --keys NAME.keys; create it on the learner's machine with `rl4sys-learner keys DIR --user NAME`",
            )
        if wanted == "NULL" and self._keys is not None:
            raise LearnerUnreachable(
                "keys were given, but the learner has none: nothing would be encrypted",
                "start the learner with --keys DIR, or omit the keys here",
            )
        self._shake_hands(self._dealer, "a ZeroMQ socket that does not accept an actor; is this the port of the weights?")
        return "the learner accepts this key, and its key is as expected" if self._keys is not None else "no keys on either side"

    def _shake_hands(self, socket: Socket, silent: str) -> None:
        """Wait until the ZeroMQ handshake of a socket has succeeded. `silent` is the error text if nothing happens."""
        failures: list[str] = []

        def look() -> bool | None:
            for event in socket.events():
                if event.name == "handshake_succeeded":
                    return True
                if event.is_failure:
                    failures.append(handshake_error(event, self._keys is not None))
                    if event.is_final or len(failures) > 1:
                        return False
            return None

        if not until(look, self._timeout_s):
            cause, _, remedy = (failures[-1] if failures else silent).partition("; ")
            raise LearnerUnreachable(cause, remedy or "correct the port: the learner prints it in its first line")

    # ---- messages

    def protocol(self) -> str:
        answer = self._ask(StatusRequest(), StatusReply, Refused)
        if answer is None:
            if self._address.scheme == "inproc":
                raise LearnerUnreachable("no reply", "for a learner in another process, use a tcp or ipc address")
            cause = f"no reply within {self._timeout_s:g} s"
            raise LearnerUnreachable(cause, "check that the address belongs to a learner; if it does, see the learner's log")
        ours = f"rl4sys_zmq {package_version()}"
        speaks = f"a learner replies to {ours}, protocol {MAJOR}.{MINOR}"
        if isinstance(answer, Refused):
            raise LearnerUnreachable(f"the learner refuses ({answer.code}): {answer.reason}", "see the log of the learner")
        assert isinstance(answer, StatusReply)
        self._report = answer.report
        clients = answer.report.get("clients")
        self._clients = clients if isinstance(clients, dict) else {}
        if answer.report.get("limited"):
            return f"{speaks}; this key may not read its status"
        count = len(self._clients)
        what = "a relay" if answer.report.get("relay") else "a learner"
        theirs = f"rl4sys_zmq {answer.report.get('version', 'unknown')}"
        return f"{what} of {theirs} replies to {ours}, protocol {MAJOR}.{MINOR}, {count} client{'' if count == 1 else 's'}"

    def configuration(self) -> str:
        if self._config is None:
            raise _StageSkipped("no --config was given")
        client_id = self._config.client_id
        if self._report.get("relay"):
            raise _StageSkipped("this is a relay; actors send their data to the learner")
        own = self._report.get("client_ids")
        if isinstance(own, list) and client_id not in own:
            cause = f"this key is not valid for client {client_id!r}"
            raise _refused(Refused(RefusalReason.IDENTITY, "keys", cause, 0))
        if client_id not in self._clients:
            raise _StageSkipped(f"client {client_id!r} does not exist; its first actor creates it")
        answer = self._ask(evaluating_hello(self._config), Welcome, Refused)
        if answer is None:
            cause = f"client {client_id!r} is not ready within {self._timeout_s:g} s"
            raise LearnerUnreachable(cause, "wait until its learner thread has started, or increase --timeout")
        if isinstance(answer, Refused):
            raise _refused(answer)
        assert isinstance(answer, Welcome)
        self._welcome = answer
        client = self._clients[client_id]
        trained = f", {worker_text(client)}" if client else ""
        return f"client {client_id!r}: {answer.algorithm_name}, version {answer.version}, no differences{trained}"

    def weights(self) -> str:
        told = self._welcome.pub if self._welcome is not None else str(self._report.get("pub", ""))
        pub = _pub_address(told, self._address)
        try:
            if pub.scheme != "inproc":
                greet(pub, self._timeout_s)
            text = self._listen(pub)
        except LearnerUnreachable as exc:
            remedy = f"{exc.remedy}; the learner's --advertise HOST and --pub ADDRESS set the address of the weights"
            raise LearnerUnreachable(f"{exc.cause}: actors would get their weights there", remedy) from exc
        finally:
            self._say_bye()
        return text

    def relays(self) -> str:
        if self._welcome is None or self._config is None:
            raise _StageSkipped("no actor was admitted; give --config")
        own = self._config.relays
        relays = own if own is not None else [RelayAddress(address=a, key=key or None) for a, key in self._welcome.relays]
        if not relays:
            raise _StageSkipped("the actor takes its weights from the learner")
        return "; ".join(self._follow(relay, self._config.client_id) for relay in relays)

    def _follow(self, relay: RelayAddress, client_id: str) -> str:
        """Ask a relay for the weights of a client, and return the result as text."""
        keys = UserKeys(self._keys.own, relay.key) if self._keys is not None and relay.key is not None else None
        with Socket.dealer(Address.parse(relay.address), secure=curve_client(keys) if keys is not None else None) as dealer:
            answer = ask(dealer, FollowWeights(client_id), (WeightsSource, Refused), self._timeout_s)
        meanwhile = "until it answers, actors use another relay or the learner"
        if answer is None:
            remedy = f"start it, and compare its key and its users.toml with this actor's; {meanwhile}"
            raise LearnerUnreachable(f"the relay at {relay.address} does not answer", remedy)
        if isinstance(answer, Refused):
            raise LearnerUnreachable(f"the relay at {relay.address} refuses ({answer.code}): {answer.reason}", meanwhile)
        assert isinstance(answer, WeightsSource)
        return f"{relay.address} has version {answer.version}"

    def _listen(self, pub: Address) -> str:
        """Connect to the socket for weights, and return the result as text. If a `Hello` was accepted, wait for a beacon."""
        with Socket.sub(pub, secure=self._secure, watch=True) as sub:
            if self._welcome is None:
                if pub.scheme != "inproc":
                    self._shake_hands(sub, f"{pub.uri} is a ZeroMQ socket, but not the PUB of this learner")
                return f"{pub.uri} accepts the connection; no client was given, so no beacon was expected"
            sub.subscribe(BEACON_TOPIC + self._welcome.topic)
            beacon = until(lambda: next_beacon(sub), max(BEACON_WAIT_S, self._timeout_s), sub)
        if beacon is None:
            cause = f"no beacon from {pub.uri} within {max(BEACON_WAIT_S, self._timeout_s):g} s"
            raise LearnerUnreachable(cause, "check that it is the PUB of this learner, and that this key may read the weights")
        return f"{pub.uri} announces version {beacon.version} as the newest"

    def _ask(self, message: Message, *answers: type[Message]) -> Message | None:
        assert self._dealer is not None  # created by an earlier stage
        return ask(self._dealer, message, answers, self._timeout_s)

    def _say_bye(self) -> None:
        if self._welcome is not None and self._dealer is not None:
            self._dealer.send(encode(Bye()))
            self._ask(StatusRequest(), StatusReply, Refused)  # the reply to it comes after the Bye was processed


def _refused(answer: Refused) -> LearnerUnreachable:
    remedies = {
        RefusalReason.MISMATCH: "use the same value on both sides, or give the client another name",
        RefusalReason.IDENTITY: "add this client to the client_ids of the key on the learner, or correct client_id",
        RefusalReason.FORBIDDEN: "give the key that role on the learner, in users.toml",
        RefusalReason.FAILED: "find out why its learner thread ended, and restart the client",
        RefusalReason.QUOTA: "wait until another actor has ended, or raise the limit on the learner",
        RefusalReason.CONFIG: f"correct {answer.field}" if answer.field else "correct the configuration",
    }
    code = RefusalReason(answer.code) if answer.code in set(RefusalReason) else RefusalReason.INTERNAL
    field = f", {answer.field}" if answer.field else ""
    return LearnerUnreachable(
        f"refused ({answer.code}{field}): {answer.reason}", remedies.get(code, "see the log of the learner")
    )


def _pub_address(told: str, learner: Address) -> Address:
    """Return `told`, the address for weights. If its host is a wildcard, the learner's host replaces it, as in an actor."""
    pub = Address.parse(told)
    if pub.scheme == "tcp" and pub.host in ("*", "0.0.0.0", "::"):
        return Address("tcp", learner.host, pub.port)
    return pub
