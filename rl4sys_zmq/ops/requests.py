"""Requests to a running learner or a relay, and the replies: its status, operator commands, and the messages of `doctor`."""

from __future__ import annotations

import errno
import json
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.config.options import CALL_TIMEOUT_S, check_value
from rl4sys_zmq.delivery.incarnation import first_incarnation
from rl4sys_zmq.errors import ConfigError, LearnerUnavailable, ProtocolError, RefusalReason
from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.security.keys import UserKeys, curve_client
from rl4sys_zmq.transports import Address, MonitorEvent, Poller, Socket, explain
from rl4sys_zmq.transports.greeting import LearnerUnreachable, explain_silence, look_up
from rl4sys_zmq.values import space_to_json
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import (
    Beacon,
    Hello,
    Message,
    OperatorCommand,
    OperatorCommandDone,
    Refused,
    StatusReply,
    StatusRequest,
)

LOOK_S = 0.05
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """The answer of a learner or a relay to one reading of its status."""

    report: dict[str, Any]  # ``started_unix_s`` tells one start of a learner from another, each of which numbers from 0
    records: list[dict[str, Any]]  # of the history, oldest first; numbers that are not finite are None. There can be more
    next_record: int  # the `since` with which to ask for the records after these


class StatusConnection(Resource):
    """A connection to a learner or a relay for operators. It opens at the first request, stays open, and is for one thread.

    After a failed request, the next one uses a new connection, so that it cannot get the late answer to an earlier one.
    """

    def __init__(self, address: str, keys: UserKeys | None = None) -> None:
        """Create the connection, without I/O. Raise ConfigError for a wrong address."""
        self._address = Address.parse(AgentConfig(client_id="status", train_server_address=address).address)
        self._keys = keys
        self._dealer: Socket | None = None

    def read(self, timeout_s: float, since: int = -1) -> StatusAnswer:
        """Return the status, and the records of the history from `since` on; no records for -1.

        Raises:
            LearnerUnavailable: If no answer arrives within `timeout_s` seconds.
            ProtocolError: If the request is refused, the keys do not have the role ``admin``, or the answer cannot be read.
        """
        answer = self.request(StatusRequest(since), StatusReply, timeout_s)
        if limited := answer.report.get("limited"):
            raise ProtocolError(RefusalReason.FORBIDDEN, str(limited))
        if not answer.body:
            return StatusAnswer(answer.report, [], max(since, 0))
        try:
            history = json.loads(bytes(answer.body[0]))
            records, following = history["records"], history["next_record"]
        except (LookupError, TypeError, ValueError, RecursionError) as exc:
            raise ProtocolError(RefusalReason.MALFORMED, f"the history cannot be read: {exc}") from exc
        if not isinstance(records, list) or not all(isinstance(r, dict) for r in records) or not isinstance(following, int):
            raise ProtocolError(RefusalReason.MALFORMED, "the history is not a list of records")
        return StatusAnswer(answer.report, records, following)

    def request(self, message: StatusRequest | OperatorCommand, kind: type[T], timeout_s: float) -> T:
        """Send a message, and return the reply. Raise an exception if the receiver refuses or is silent."""
        timeout_s = check_value("timeout_s", timeout_s, CALL_TIMEOUT_S)
        what = "a status request"
        if isinstance(message, OperatorCommand):
            what = f"{message.command}, which continues if it was received"
        try:
            answer, hint = self._exchange(message, what, timeout_s)
            if isinstance(answer, kind):
                return answer
            if answer is not None:
                raise ProtocolError(RefusalReason.DIRECTION, f"the reply to {what} was a {type(answer).__name__}")
            uri = self._address.uri
            hint = hint or explain_silence(uri, has_keys=self._keys is not None)
            hint = hint or "check that it runs and that the address is correct"
            raise LearnerUnavailable(uri, f"the reply to {what}", timeout_s, hint)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. A later request opens another one."""
        dealer, self._dealer = self._dealer, None
        if dealer is not None:
            dealer.close()

    def _exchange(self, message: StatusRequest | OperatorCommand, what: str, timeout_s: float) -> tuple[Message | None, str]:
        """Return the reply, or None and what is wrong with the connection, if that is known."""
        uri, hint = self._address.uri, ""
        if self._dealer is None:
            if self._address.scheme == "tcp":
                try:
                    look_up(self._address, timeout_s)  # a name without an address does not get one by waiting
                except LearnerUnreachable as exc:
                    raise LearnerUnavailable(uri, f"the reply to {what}", timeout_s, str(exc)) from exc
            secure = curve_client(self._keys) if self._keys is not None else None
            self._dealer = Socket.dealer(self._address, secure=secure, watch=True)
        dealer = self._dealer

        def look() -> Message | None:
            nonlocal hint
            while (frames := dealer.recv(MAX_MESSAGE_FRAMES)) is not None:
                answer = decode(frames)
                if not isinstance(answer, Refused):
                    return answer
                if answer.code == RefusalReason.CONFIG:
                    raise ConfigError(answer.reason, key=answer.field)
                code = RefusalReason(answer.code) if answer.code in set(RefusalReason) else RefusalReason.MALFORMED
                raise ProtocolError(code, answer.reason)
            for event in dealer.events():
                if event.is_failure:
                    hint = handshake_error(event, self._keys is not None)
                    if event.is_final:
                        raise ProtocolError(RefusalReason.FORBIDDEN, f"{uri}: {hint}")
            return None

        dealer.send(encode(message))
        return cast(Message | None, until(look, timeout_s, dealer)), hint  # mypy joins a union of many to object


def request_status(address: str, timeout_s: float, keys: UserKeys | None = None) -> dict[str, Any]:
    with StatusConnection(address, keys) as connection:
        return connection.read(timeout_s).report


def request_command(
    address: str, command: OperatorCommand, timeout_s: float, keys: UserKeys | None = None
) -> OperatorCommandDone:
    with StatusConnection(address, keys) as connection:
        return connection.request(command, OperatorCommandDone, timeout_s)


def handshake_error(event: MonitorEvent, have_keys: bool) -> str:
    """Return the cause of a failed handshake on the connecting side, and a remedy, as text ``cause; remedy``."""
    if event.is_final and event.name == "handshake_failed.protocol":
        if have_keys:
            return "keys were given, but the learner has none; omit the keys, or start the learner with --keys DIR"
        return "the learner requires keys, but none were given; give --keys NAME.keys"
    if event.name == "handshake_failed.no_detail" and event.detail != errno.EAGAIN:
        if not have_keys:
            return "it closed the connection, as a learner with keys does; give --keys NAME.keys, or correct the port"
        return "it closed the connection, probably for a wrong learner key in NAME.keys; copy the file again or correct the port"
    return explain(event, "actor")


def ask(dealer: Socket, message: Message, answers: tuple[type[Message], ...], timeout_s: float) -> Message | None:
    """Send a message, and return the first reply whose type is in `answers`, or None if none arrives in time."""
    dealer.send(encode(message))

    def look() -> Message | None:
        while (frames := dealer.recv(MAX_MESSAGE_FRAMES)) is not None:
            try:
                reply = decode(frames)
            except ProtocolError as exc:
                other = exc.code is RefusalReason.VERSION
                remedy = "install the same major version on both sides" if other else "it is not a learner: correct the port"
                raise LearnerUnreachable(f"the reply cannot be read ({exc})", remedy) from exc
            if type(reply) in answers:
                return reply
        return None

    return cast(Message | None, until(look, timeout_s, dealer))  # mypy joins a union of many to object


def until(look: Callable[[], T | None], timeout_s: float, socket: Socket | None = None) -> T | None:
    """Call `look` until it returns something other than None, or the time is over. A message at `socket` ends a pause early."""
    deadline = time.monotonic() + timeout_s
    with Poller() as poller:
        if socket is not None:
            poller.register(socket)
        while (result := look()) is None and (left_s := deadline - time.monotonic()) > 0:
            poller.poll(min(left_s, LOOK_S))
    return result


def evaluating_hello(config: AgentConfig) -> Hello:
    """Return the `Hello` of an actor that sends no data. The message has no lasting effect on the learner."""
    spaces = [space_to_json(s) if s is not None else {} for s in (config.observation_space, config.action_space)]
    return Hello(
        client_id=config.client_id,
        actor_id=f"doctor-{uuid.uuid4().hex[:8]}",
        incarnation=first_incarnation(time.time(), random.SystemRandom()),
        first_seq=0,
        held_generation=0,
        held_version=0,
        algorithm_name=config.algorithm_name or "",
        algorithm_parameters=dict(config.algorithm_parameters),
        algorithm_type=config.type or "",
        observation_space=spaces[0],
        action_space=spaces[1],
        submits=False,
        library=f"rl4sys_zmq {package_version()} doctor",
    )


def next_beacon(sub: Socket) -> Beacon | None:
    """Return the next beacon that has arrived at a SUB socket, or None. Do not wait."""
    while (frames := sub.recv()) is not None:
        try:
            message = decode(frames[1:])
        except ProtocolError:
            continue
        if isinstance(message, Beacon):
            return message
    return None
