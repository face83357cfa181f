"""The wait of an agent's constructor for a learner that starts a client, and the measurement of waits, on a simulated clock."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rl4sys_zmq.actor.components import AgentComponents, WaitTimer
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.delivery.session import SessionState
from rl4sys_zmq.errors import LearnerUnavailable
from rl4sys_zmq.liveness import CLIENT_START_S


class Joining(AgentComponents):
    """An agent whose learner reports at the given times that it starts the client. No other message comes."""

    def __init__(self, answers: list[float], policy_at: float) -> None:
        self.config = AgentConfig(client_id="pole", train_server_address="inproc://pole")
        self.now, self._answers, self._policy_at = 0.0, answers, policy_at
        gate, session = SimpleNamespace(stage="the learner to start", error=None), SimpleNamespace(state=SessionState.JOINING)
        host = SimpleNamespace(credit_gate=gate, open_error=None, starting_at=float("-inf"))
        io: Any = SimpleNamespace(host=host, session=session)
        io.explain_absence = lambda stage, timeout_s: LearnerUnavailable("inproc://pole", stage, timeout_s)
        self.io = io

    @property
    def has_policy(self) -> bool:
        return self.now >= self._policy_at

    def wait(self, ready: Callable[[], bool], timeout_s: float, stage: Any = None) -> None:
        self.now += timeout_s
        self.io.host.starting_at = max([at for at in self._answers if at <= self.now], default=float("-inf"))
        if not ready():
            raise LearnerUnavailable("inproc://pole", "the learner to start", timeout_s)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Callable[..., float]:
    """Return a function that joins, and returns the time in seconds at which `join` ended."""

    def join(answers: list[float], policy_at: float, *, patient: bool = True) -> float:
        agent = Joining(answers, policy_at)
        monkeypatch.setattr(time, "monotonic", lambda: agent.now)
        try:
            agent.join(10.0, patient=patient)
        except LearnerUnavailable:
            assert not agent.has_policy
        return agent.now

    return join


def test_an_overloaded_learner_that_answers_late_is_waited_for(joined: Callable[..., float]) -> None:
    assert joined([1.0, 8.0, 17.0, 26.0], policy_at=33.0) >= 33.0


def test_a_learner_that_stops_answering_is_not(joined: Callable[..., float]) -> None:
    assert joined([1.0, 8.0], policy_at=1000.0) == 18.0
    assert joined([], policy_at=1000.0) == 10.0
    assert joined([1.0, 8.0], policy_at=1000.0, patient=False) == 10.0


def test_the_whole_wait_has_a_limit(joined: Callable[..., float]) -> None:
    assert joined([float(at) for at in range(2000)], policy_at=1e6) == CLIENT_START_S


def test_time_counts_within_the_block_for_each_thread_and_while_it_lasts() -> None:
    now = [100.0]
    timer = WaitTimer(lambda: now[0])
    now[0] += 5
    assert timer.seconds == 0
    with timer:
        now[0] += 2
        assert timer.seconds == 2
        with timer:  # like a second thread
            now[0] += 1
        now[0] += 1
    now[0] += 50
    assert timer.seconds == 2 + 2 * 1 + 1


def test_a_wait_that_fails_counts() -> None:
    now = [0.0]
    timer = WaitTimer(lambda: now[0])
    with pytest.raises(KeyError), timer:
        now[0] += 3
        raise KeyError
    assert timer.seconds == 3
