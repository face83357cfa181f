"""Messages to a learner or a relay, and the replies."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from typing import TypeVar, cast

from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.delivery.incarnation import first_incarnation
from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.transports import Poller, Socket
from rl4sys_zmq.transports.greeting import LearnerUnreachable
from rl4sys_zmq.values import space_to_json
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import Beacon, Hello, Message

LOOK_S = 0.05
T = TypeVar("T")


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
    """Call `look` until it returns something other than None, or the time is over. A message at `socket` ends a pause."""
    deadline = time.monotonic() + timeout_s
    with Poller() as poller:
        if socket is not None:
            poller.register(socket)
        while (result := look()) is None and (left_s := deadline - time.monotonic()) > 0:
            poller.poll(min(left_s, LOOK_S))
    return result


def evaluating_hello(config: AgentConfig) -> Hello:
    """Return the `Hello` of an actor that sends no data, which has no lasting effect on the learner."""
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
    """Return the next beacon that has arrived, or None. Never wait."""
    while (frames := sub.recv()) is not None:
        try:
            message = decode(frames[1:])
        except ProtocolError:
            continue
        if isinstance(message, Beacon):
            return message
    return None
