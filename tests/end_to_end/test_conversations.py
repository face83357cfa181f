"""Recorded conversations of earlier actors, played to today's learner: it must still accept what they sent.

Each file in ``conversations`` has the frames of an actor and of a learner, in their order. `record` wrote it, at the commit that
it names. A file is never changed. A protocol of another major version is refused instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from kit import until

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor.io.thread import ActorIOThread
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
from rl4sys_zmq.wire import decode, encode
from rl4sys_zmq.wire.messages import Ack, FetchWeights, Hello, Message, Refused, Submit, WeightsReply, Welcome

FOLDER = Path(__file__).parent / "conversations"
FILES = sorted(FOLDER.glob("*.msgpack"))
MAJOR_BYTE = 4
"""The offset of the protocol's major version in the first frame of a message."""


@contextmanager
def learner() -> Iterator[Learner]:
    register_algorithm("CONVERSATION", FakeAlgorithm.factory("offpolicy", steps_per_update=8, rollout_length=8))
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:*", run_dir=None)) as it:
        yield it


def record(path: Path, commit: str) -> None:
    """Record an actor's conversation, with two episodes, masks, a fetch and a Bye."""
    said: list[tuple[str, list[bytes]]] = []

    class RecordedThread(ActorIOThread):
        def _send(self, message: Message) -> None:
            said.append(("actor", [bytes(frame) for frame in encode(message)]))
            super()._send(message)

        def _read_dealer(self) -> None:
            dealer = self._dealer
            self._dealer = Recorded(dealer)  # type: ignore[assignment]
            super()._read_dealer()
            self._dealer = dealer

    class Recorded:
        def __init__(self, dealer: Any) -> None:
            self._dealer = dealer

        def recv(self, *arguments: Any) -> Any:
            frames = self._dealer.recv(*arguments)
            if frames is not None:
                said.append(("learner", [bytes(frame) for frame in frames]))
            return frames

        def send(self, frames: Any) -> Any:
            return self._dealer.send(frames)

    patch = pytest.MonkeyPatch()
    patch.setattr("rl4sys_zmq.actor.components.ActorIOThread", RecordedThread)
    with patch.context(), learner() as its:
        config = AgentConfig(
            client_id="recorded",
            algorithm_name="CONVERSATION",
            observation_space=BoxSpace((3,)),
            action_space=DiscreteSpace(2),
            train_server_address=its.address,
            actor_id="recorded-1",
            seed=1,
        )
        with RL4SysAgent(config=config) as agent:
            for episode in range(2):
                traj = None
                for step in range(10):
                    mask = np.array([1, step % 2]) if episode else None
                    traj, action = agent.request_for_action(traj, np.full(3, step, np.float32), mask)
                    agent.add_to_trajectory(traj, action)
                    action.update_reward(1.0)
                assert traj is not None
                agent.mark_end_of_trajectory(traj, action, truncated=bool(episode), final_obs=np.zeros(3, np.float32))
            agent.flush(30.0)
    path.write_bytes(msgpack.packb({"commit": commit, "said": said}))


class Player:
    """A bare DEALER socket, which sends recorded frames."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(address)
        self.answers: list[Message] = []

    def send(self, frames: list[bytes]) -> None:
        self._socket.send_multipart(frames)

    def answered(self, kind: type[Message]) -> Message | None:
        """Read what has come, and return the last answer of this kind."""
        while self._socket.poll(0):
            self.answers.append(decode(self._socket.recv_multipart()))
        return next((message for message in reversed(self.answers) if isinstance(message, kind)), None)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def player() -> Iterator[Player]:
    with learner() as its, zmq.Context() as context:
        player = Player(context, its.address)
        yield player
        player.close()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recorded_actor_still_joins_and_loses_nothing(file: Path, player: Player) -> None:
    said = msgpack.unpackb(file.read_bytes())["said"]
    answers = [decode(frames) for who, frames in said if who == "learner"]
    segments = 0
    for who, frames in said:
        if who != "actor":
            continue
        message = decode(frames)
        player.send(frames)
        if isinstance(message, Hello):
            assert until(lambda: player.answered(Welcome), lambda: player.answers)
        elif isinstance(message, FetchWeights):
            assert until(lambda: player.answered(WeightsReply), lambda: player.answers)
        elif isinstance(message, Submit):
            segments = message.first_seq + message.count
            until(lambda want=segments: _received(player) >= want, lambda: player.answers)  # type: ignore[misc]
    assert segments == max(answer.received for answer in answers if isinstance(answer, Ack))
    verdicts = player.answered(Ack).verdicts  # type: ignore[union-attr]
    assert not verdicts.get("refused") and not player.answered(Refused)
    # What that actor reads of a Welcome is still there, in the same types.
    before, now = (next(m for m in each if isinstance(m, Welcome)) for each in (answers, player.answers))
    for field in before.__match_args__:
        assert type(getattr(now, field)) is type(getattr(before, field)), field


def _received(player: Player) -> int:
    ack = player.answered(Ack)
    return ack.received if isinstance(ack, Ack) else 0


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_another_major_version_is_refused_with_both_versions_named(file: Path, player: Player) -> None:
    frames = next(frames for who, frames in msgpack.unpackb(file.read_bytes())["said"] if who == "actor")
    first = bytearray(frames[0])
    first[MAJOR_BYTE] += 1
    player.send([bytes(first), *frames[1:]])
    refused = until(lambda: player.answered(Refused), lambda: player.answers)
    assert isinstance(refused, Refused) and refused.code == "version"
    assert f"{first[MAJOR_BYTE]}" in refused.reason and f"{first[MAJOR_BYTE] - 1}" in refused.reason
