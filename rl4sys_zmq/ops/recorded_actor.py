"""An actor without a policy that sends recorded segments to a learner, for a training on data that were recorded earlier."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery.incarnation import first_incarnation
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
from rl4sys_zmq.errors import LearnerUnavailable, RL4SysError
from rl4sys_zmq.limits import MAX_MESSAGE_FRAMES
from rl4sys_zmq.transports import Poller, Socket
from rl4sys_zmq.values import Segment, observation_space_from, space_from, space_to_json
from rl4sys_zmq.wire import decode, encode, pack_segment
from rl4sys_zmq.wire.messages import Hello

__all__ = ["send_recorded"]

POLL_S = 0.05


def send_recorded(
    address: str,
    client_id: str,
    observation_space: object,
    action_space: object,
    segments: Sequence[Segment],
    *,
    timeout_s: float = 600.0,
) -> int:
    """Send segments to a learner as its flow control allows, and wait until all of them are acknowledged.

    The segments are sent as of the learner's current generation. The learner must know the algorithm of the client.

    Args:
        address: The address of the learner.
        client_id: The client that trains on the segments.
        observation_space: The space of the observations: a space of this package or of Gymnasium, or its JSON form.
        action_space: The space of the actions, in the same forms.
        segments: The segments, in the order in which they are sent.
        timeout_s: The longest time without an acknowledgement, in seconds.

    Returns:
        The number of segments that the learner accepted.

    Raises:
        ConfigError: If a space is not one that learners support.
        RL4SysError: If the learner refuses the actor. The message has its reason.
        LearnerUnavailable: If no segment was acknowledged within `timeout_s`.
    """
    spaces = {"observation_space": space_to_json(observation_space_from(observation_space))}
    spaces["action_space"] = space_to_json(space_from(action_space))
    rng = random.Random(0)
    hello = Hello(client_id, "recorded", first_incarnation(time.time(), rng), 0, 0, 0, **spaces)  # type: ignore[arg-type]
    session = ActorSession(hello, Counters(), rng)
    waiting = deque(segments)
    with Poller() as poller:
        dealer = Socket.dealer(address)
        poller.register(dealer)

        def perform(actions: Sequence[Action]) -> bool:
            """Carry out actions of the session. Return True if it needs a new socket."""
            again = False
            for action in actions:
                match action:
                    case SendMessage(message):
                        dealer.send(encode(message))
                    case SessionRefused(refused):
                        raise RL4SysError(f"the learner refused the recorded actor: {refused.code}: {refused.reason}")
                    case Reconnect() | ReplaceSockets():
                        again = True
                    case SessionJoined() | SessionTemporarilyRefused() | StreamRestarted():
                        pass
                    case _:
                        assert_never(action)
            return again

        try:
            perform(session.open(time.monotonic(), (0, 0)))
            progress, at = -1, time.monotonic()
            while waiting or session.in_flight:
                poller.poll(POLL_S)
                again = False
                while not again and (frames := dealer.recv(MAX_MESSAGE_FRAMES)) is not None:
                    again = perform(session.on_message(time.monotonic(), decode(frames)))
                now = time.monotonic()
                again = perform(session.tick(now, (0, 0))) or again
                if again:
                    poller.unregister(dealer)
                    dealer.close()
                    dealer = Socket.dealer(address)
                    poller.register(dealer)
                    perform(session.open(now, (0, 0)))
                if session.state is SessionState.JOINED:
                    perform(session.want(now, session.sent_steps + sum(segment.steps for segment in waiting)))
                    while waiting and session.can_take():
                        packed = pack_segment(replace(waiting.popleft(), generation=session.generation))
                        perform(session.take(now, [packed], sum(segment.steps for segment in waiting)))
                if session.durable != progress:
                    progress, at = session.durable, now
                elif now - at > timeout_s:
                    stage = f"an acknowledgement; {len(waiting)} of {len(segments)} segments were not sent"
                    raise LearnerUnavailable(address, stage, timeout_s)
            perform(session.close(time.monotonic()))
            return session.accepted
        finally:
            poller.unregister(dealer)
            dealer.close()
