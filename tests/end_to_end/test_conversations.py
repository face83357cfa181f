"""Recorded conversations of earlier actors, played to today's learner: it must still accept what they sent.

Each file in ``conversations`` has the frames of an actor and of a learner, in their order. `record` wrote it, at the commit that
it names. A file is never changed. A protocol of another major version is refused instead.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from harness.cpp_client import PROGRAMS, Driver, build
from kit import until

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
from rl4sys_zmq.wire import decode
from rl4sys_zmq.wire.messages import Ack, Bye, FetchWeights, Hello, Message, Refused, Submit, WeightsReply, Welcome

FOLDER = Path(__file__).parent / "conversations"
FILES = sorted(FOLDER.glob("*.msgpack"))
NAMES: dict[str, Any] = {"client_id": "recorded", "actor_id": "recorded-1", "algorithm_name": "CONVERSATION"}
MAJOR_BYTE = 4
"""The offset of the protocol's major version in the first frame of a message."""


@contextmanager
def learner() -> Iterator[Learner]:
    register_algorithm("CONVERSATION", FakeAlgorithm.factory("offpolicy", steps_per_update=8, rollout_length=8))
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:*", run_dir=None)) as it:
        yield it


def python_actor(address: str) -> None:
    """Play two episodes, with masks in the second, and deliver them."""
    spaces: dict[str, Any] = {"observation_space": BoxSpace((3,)), "action_space": DiscreteSpace(2)}
    with RL4SysAgent(config=AgentConfig(train_server_address=address, seed=1, **NAMES, **spaces)) as agent:
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


def cpp_actor(address: str) -> None:
    """Do the same as `python_actor`."""
    driver = Driver(build(PROGRAMS / "actor_driver.cpp"))
    driver.open(address, **NAMES, algorithm_parameters={"input_size": 3, "act_dim": 2})
    for episode in range(2):
        for step in range(10):
            mask = [1.0, float(step % 2)] if episode else []
            action = driver("request", obs=[float(step)] * 3, mask=mask)["a"]
            driver("add", a=action)
            driver("reward", a=action, reward=1.0)
        driver("end", a=action, truncated=bool(episode), obs=[0.0] * 3)
    driver("flush", s=30.0)
    driver("close")
    assert driver.stop() == 0


def record(path: Path, commit: str, actor: Callable[[str], None]) -> None:
    """Record an actor's conversation with a learner, through a proxy between them."""
    said: list[tuple[str, list[bytes]]] = []
    with learner() as its, zmq.Context() as context, context.socket(zmq.ROUTER) as front, context.socket(zmq.DEALER) as back:
        front.linger = back.linger = 0
        port = front.bind_to_random_port("tcp://127.0.0.1")
        back.connect(its.address)
        with ThreadPoolExecutor(1) as pool:
            acting, name = pool.submit(actor, f"tcp://127.0.0.1:{port}"), b""
            while front.poll(100) or not acting.done():
                if front.poll(0):
                    name, *frames = front.recv_multipart()
                    said.append(("actor", frames))
                    back.send_multipart(frames)
                while back.poll(0):
                    said.append(("learner", back.recv_multipart()))
                    front.send_multipart([name, *said[-1][1]])
        acting.result()
    path.write_bytes(msgpack.packb({"commit": commit, "said": said}))


@pytest.mark.parametrize("actor", [python_actor, cpp_actor])
def test_a_conversation_is_recorded_from_its_first_message_to_its_last(actor: Callable[[str], None], tmp_path: Path) -> None:
    record(tmp_path / "said", "", actor)
    sent = [decode(frames) for who, frames in msgpack.unpackb((tmp_path / "said").read_bytes())["said"] if who == "actor"]
    assert isinstance(sent[0], Hello) and isinstance(sent[-1], Bye)
    assert max(message.first_seq + message.count for message in sent if isinstance(message, Submit)) == 4


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
