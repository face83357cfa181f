"""Why an actor does not reach its learner: one stage after the other, as far as it gets.

====================  ========================================================================================
stage                 what is tried
====================  ========================================================================================
name                  the host name is resolved (tcp)
connect               a plain connection, which is closed again (tcp, ipc)
greeting              what answers speaks ZMTP 3, and which mechanism it asks for (tcp, ipc)
keys                  a DEALER with our keys, or without, gets through the handshake (tcp, ipc)
protocol              a `StatusRequest` is answered, be it by a no
configuration         with an actor's configuration: a `Hello` of an actor that only evaluates is welcomed
weights               the PUB is reached at the address that actors are told; with a Welcome, its beacon too
====================  ========================================================================================

A client that the learner does not know is not founded by this: a `Hello` that can only be refused asks for it first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.config.addresses import dial_uri
from rl4sys_zmq.errors import Refusal, RL4SysError
from rl4sys_zmq.ops.requests import ask, evaluating_hello, next_beacon, until
from rl4sys_zmq.ops.status import handshake_words
from rl4sys_zmq.ops.zmtp import Greeting, Unreachable, dial, greet, look_up
from rl4sys_zmq.security import UserKeys, curve_client
from rl4sys_zmq.transports import Address, Secure, Socket
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Bye, Message, Refused, Status, StatusRequest, Welcome
from rl4sys_zmq.wire.prefix import MAJOR, MINOR

__all__ = ["STAGES", "Finding", "diagnose"]

STAGES = ("name", "connect", "greeting", "keys", "protocol", "configuration", "weights")

BEACON_WAIT_S = 2.0
BEACON_TOPIC = b"B"
NO_ALGORITHM = "(asked by doctor)"
"""No algorithm has this name, so a `Hello` with it is refused: ``mismatch`` by a client that is there, ``config`` otherwise."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one stage.

    Attributes:
        stage: of `STAGES`.
        state: ``ok``, ``FAIL``, ``skipped`` or ``not reached``.
        text: what was found; of a failure, the cause.
        remedy: what to do about it; empty unless it failed.
    """

    stage: str
    state: str
    text: str = ""
    remedy: str = ""


class _Skipped(Exception):
    """A stage that does not apply."""


def diagnose(
    address: str, *, keys: UserKeys | None = None, config: AgentConfig | None = None, timeout_s: float = 3.0
) -> Iterator[Finding]:
    """Tries the stages in order; after the first that fails the others are ``not reached``.

    Args:
        address: of the learner, host:port or a URI.
        keys: ours; None without.
        config: an actor's, to be compared with the learner's.
        timeout_s: for each stage.

    Raises:
        Unfit, TransportError: for text that is no address.
    """
    patient = _Diagnosis(Address.parse(dial_uri(address)), keys, config, timeout_s)
    failed = False
    try:
        for stage in STAGES:
            if failed:
                yield Finding(stage, "not reached")
                continue
            try:
                yield Finding(stage, "ok", getattr(patient, stage)())
            except _Skipped as exc:
                yield Finding(stage, "skipped", str(exc))
            except Unreachable as exc:
                failed = True
                yield Finding(stage, "FAIL", exc.cause, exc.remedy)
            except RL4SysError as exc:
                failed = True
                yield Finding(stage, "FAIL", str(exc), "see the log of the learner")
    finally:
        patient.close()


class _Diagnosis:
    """The state from one stage to the next; a method for each, which returns what was found."""

    def __init__(self, address: Address, keys: UserKeys | None, config: AgentConfig | None, timeout_s: float) -> None:
        self._address, self._keys, self._config, self._timeout_s = address, keys, config, timeout_s
        self._secure: Secure | None = curve_client(keys) if keys is not None else None
        self._greeting = Greeting("", "")
        self._dealer: Socket | None = None
        self._report_pub = ""
        self._welcome: Welcome | None = None

    def close(self) -> None:
        """Says goodbye."""
        if self._dealer is not None:
            self._dealer.close()

    # ---- down to the first byte

    def name(self) -> str:
        if self._address.scheme != "tcp":
            raise _Skipped(f"{self._address.scheme} has no host")
        found = look_up(self._address, self._timeout_s)
        found_at = ", ".join(where[0] for _, where in found[:4])
        return found_at if found_at == self._address.host else f"{self._address.host} is {found_at}"

    def connect(self) -> str:
        self._within_reach()
        dial(self._address, self._timeout_s).close()
        return f"something listens at {self._address.uri}"

    def greeting(self) -> str:
        self._within_reach()
        self._greeting = greet(self._address, self._timeout_s)
        kind = {"NULL": "without keys", "CURVE": "with keys"}.get(self._greeting.mechanism, "an unknown mechanism")
        return f"ZMTP {self._greeting.version}, {self._greeting.mechanism} ({kind})"

    def _within_reach(self) -> None:
        if self._address.scheme == "inproc":
            raise _Skipped("inproc reaches this process only")

    # ---- who is who

    def keys(self) -> str:
        self._dealer = Socket.dealer(self._address, secure=self._secure, watch=True)
        if self._address.scheme == "inproc":
            raise _Skipped("inproc has no keys")
        wanted = self._greeting.mechanism
        if wanted not in ("NULL", "CURVE"):
            raise Unreachable(f"it asks for {wanted!r}, which is none of ours", "it is no learner: correct the port")
        if wanted == "CURVE" and self._keys is None:
            raise Unreachable(
                "the learner asks for keys, and we have none",
                "give --keys NAME.keys; `rl4sys-learner keys DIR --user NAME` makes it on the learner's machine",
            )
        if wanted == "NULL" and self._keys is not None:
            raise Unreachable(
                "we have keys, and the learner has none: nothing would be encrypted",
                "start it with --keys DIR, or leave the keys away here",
            )
        self._shake_hands(self._dealer, "it is ZeroMQ, and does not speak with an actor; is this the port of the weights?")
        return "the learner accepts our key, and has the one that we know" if self._keys is not None else "none on either side"

    def _shake_hands(self, socket: Socket, silent: str) -> None:
        """Waits until a handshake has succeeded.

        Raises:
            Unreachable: when it is refused, fails twice, or does not end in time.
        """
        failures: list[str] = []

        def look() -> bool | None:
            for event in socket.events():
                if event.name == "handshake_succeeded":
                    return True
                if event.is_failure:
                    failures.append(handshake_words(event, self._keys is not None))
                    if event.is_final or len(failures) > 1:
                        return False
            return None

        if not until(look, self._timeout_s):
            cause, _, remedy = (failures[-1] if failures else silent).partition("; ")
            raise Unreachable(cause, remedy or "correct the port: the learner's first line says it")

    # ---- what it says

    def protocol(self) -> str:
        answer = self._ask(StatusRequest(), Status, Refused)
        if answer is None:
            if self._address.scheme == "inproc":
                raise Unreachable("nobody answers", "a learner of another process has a tcp or ipc address")
            words = f"it does not answer within {self._timeout_s:g} s"
            raise Unreachable(words, "is it another program's socket? If it is the learner, see its log")
        speaks = f"a learner answers, protocol {MAJOR}.{MINOR}"
        if isinstance(answer, Refused):
            if answer.code == Refusal.FORBIDDEN:
                return f"{speaks}; this key may not see its status"
            raise Unreachable(f"it refuses ({answer.code}): {answer.reason}", "see the log of the learner")
        assert isinstance(answer, Status)
        self._report_pub = str(answer.report.get("pub", ""))
        clients = answer.report.get("clients")
        count = len(clients) if isinstance(clients, dict) else 0
        return f"{speaks}, {count} client{'' if count == 1 else 's'}"

    def configuration(self) -> str:
        if self._config is None:
            raise _Skipped("no --config was given")
        client_id = self._config.client_id
        hello = evaluating_hello(self._config)
        probe = self._ask(replace(hello, algorithm_name=NO_ALGORITHM, algorithm_parameters={}), Welcome, Refused)
        if isinstance(probe, Refused):
            if probe.code == Refusal.CONFIG and probe.field not in ("client_id", "actor_id"):
                raise _Skipped(f"client {client_id!r} is not there yet; its first actor begins it")
            if probe.code != Refusal.MISMATCH:
                raise _refused(probe)
        answer = self._ask(hello, Welcome, Refused)
        if answer is None:
            words = f"client {client_id!r} is not ready within {self._timeout_s:g} s"
            raise Unreachable(words, "wait until its learner thread has started, or give more --timeout")
        if isinstance(answer, Refused):
            raise _refused(answer)
        assert isinstance(answer, Welcome)
        self._welcome = answer
        return f"client {client_id!r}: {answer.algorithm_name}, version {answer.version}, nothing differs"

    def weights(self) -> str:
        told = self._welcome.pub if self._welcome is not None else self._report_pub
        if not told:
            raise _Skipped("nobody told us where; give --config, or keys with the role admin")
        pub = _pub_address(told, self._address)
        try:
            if pub.scheme != "inproc":
                greet(pub, self._timeout_s)
            found = self._listen(pub)
        except Unreachable as exc:
            remedy = f"{exc.remedy}; the learner's --advertise HOST and --pub ADDRESS say where actors look for weights"
            raise Unreachable(f"{exc.cause}: it is where actors would look for weights", remedy) from exc
        finally:
            self._say_bye()
        return found

    def _listen(self, pub: Address) -> str:
        """Subscribes, and waits for a beacon if there is a topic to wait for."""
        with Socket.sub(pub, secure=self._secure, watch=True) as sub:
            if self._welcome is None:
                if pub.scheme != "inproc":
                    self._shake_hands(sub, f"{pub.uri} is ZeroMQ, and no PUB of this learner")
                return f"{pub.uri} lets us in; no client was named, so nothing was waited for"
            sub.subscribe(BEACON_TOPIC + self._welcome.topic)
            beacon = until(lambda: next_beacon(sub), max(BEACON_WAIT_S, self._timeout_s), sub)
        if beacon is None:
            words = f"{pub.uri} says nothing within {max(BEACON_WAIT_S, self._timeout_s):g} s"
            raise Unreachable(words, "is it this learner's? May this key read the weights?")
        return f"{pub.uri} says that version {beacon.version} is the newest"

    def _ask(self, message: Message, *answers: type[Message]) -> Message | None:
        assert self._dealer is not None  # made in the stage before
        return ask(self._dealer, message, answers, self._timeout_s)

    def _say_bye(self) -> None:
        if self._welcome is not None and self._dealer is not None:
            self._dealer.send(encode(Bye()))
            self._ask(StatusRequest(), Status, Refused)  # its answer says that the goodbye was heard


def _refused(answer: Refused) -> Unreachable:
    mends = {
        Refusal.MISMATCH: "make both sides say the same, or give the client another name",
        Refusal.IDENTITY: "list this client under the key's client_ids on the learner, or correct client_id",
        Refusal.FORBIDDEN: "give the key that role on the learner, in users.toml",
        Refusal.FAILED: "find out why its learner thread ended, and restart the client",
        Refusal.QUOTA: "wait until another actor has ended, or raise the limit on the learner",
        Refusal.CONFIG: f"correct {answer.field}" if answer.field else "correct the configuration",
    }
    code = Refusal(answer.code) if answer.code in set(Refusal) else Refusal.INTERNAL
    field = f", {answer.field}" if answer.field else ""
    return Unreachable(f"refused ({answer.code}{field}): {answer.reason}", mends.get(code, "see the log of the learner"))


def _pub_address(told: str, learner: Address) -> Address:
    """Where an actor would dial: a host that stands for all interfaces means the one that was dialled."""
    pub = Address.parse(told)
    if pub.scheme == "tcp" and pub.host in ("*", "0.0.0.0", "::"):
        return Address("tcp", learner.host, pub.port)
    return pub
