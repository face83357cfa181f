"""Learners and agents with a fake algorithm, and the small loops that drive them."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from harness.children import is_there, stop_process
from kit import open_agent
from kit import play as play_episode

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.learner.training.training import UpdateRunner
from rl4sys_zmq.learner.training.validation import DecodedSegmentMessage
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters, TransportUnderTest, fake_spec
from rl4sys_zmq.values import Segment


class Lab:
    """A factory of learners and agents that closes them when the test ends."""

    def __init__(self, stack: ExitStack, new_address: Callable[[], str]) -> None:
        self.stack = stack
        self.new_address = new_address

    def learner(self, bind: str | None = None, run_dir: Path | None = None, **options: Any) -> Learner:
        """Start and return a learner. It has no files if `run_dir` is None."""
        config = LearnerConfig(bind=bind or self.new_address(), run_dir=run_dir, **options)
        return self.stack.enter_context(Learner(config))

    def agent(self, learner: Learner | str, client_id: str = "lab", **options: Any) -> RL4SysAgent:
        return self.stack.enter_context(open_agent(learner, client_id, **{"algorithm_name": "FAKE", **options}))

    episode = staticmethod(play_episode)

    def train(self, agent: RL4SysAgent, steps: int, *versions: int) -> None:
        """For each version, play an episode, and wait until the actor has the version."""
        for version in versions:
            self.episode(agent, steps)
            agent.wait_version(version, 20.0)


def play(agent: Any, count: int, reward: float = 1.0) -> None:
    for _ in range(count):
        Lab.episode(agent, 2, reward)


class Picky(FakeAlgorithm):
    """A fake algorithm that raises for segments of three steps."""

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        if segment.steps == 3:
            raise ValueError("three steps are not for me")
        super().observe(segment, correct=correct)


register_algorithm("PICKY", lambda *_: Picky(fake_spec(), FakeParameters(steps_per_update=8, rollout_length=16)))
register_algorithm("FAKE", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16))
register_algorithm("FAKE_OFF", FakeAlgorithm.factory("offpolicy", steps_per_update=16, rollout_length=16))


@pytest.fixture
def lab(transport: TransportUnderTest) -> Iterator[Lab]:
    """Yield a lab, on each transport in turn."""
    with ExitStack() as stack:
        yield Lab(stack, transport.address)


@pytest.fixture
def inproc_lab() -> Iterator[Lab]:
    """Yield a lab that uses inproc only. For tests that do not depend on the transport."""
    with TransportUnderTest("inproc") as under_test, ExitStack() as stack:
        yield Lab(stack, under_test.address)


@pytest.fixture
def ipc_lab() -> Iterator[Lab]:
    """Yield a lab whose learners get their address, an ipc address, from their options."""
    with ExitStack() as stack:
        yield Lab(stack, lambda: pytest.fail("the options name the address"))


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[Segment]:
    """Return a list to which each segment is added that an algorithm in this process observes."""
    found: list[Segment] = []
    observe = UpdateRunner.observe

    def note(self: UpdateRunner, message: DecodedSegmentMessage, place: int, *, correct: bool = False) -> None:
        found.append(message.segments[place])
        observe(self, message, place, correct=correct)

    monkeypatch.setattr(UpdateRunner, "observe", note)
    return found


@pytest.fixture
def stopped() -> Iterator[Callable[[int], None]]:
    """Yield a function that stops a process. At the end, continue the stopped processes that still exist."""
    pids: list[int] = []

    def stop(pid: int) -> None:
        pids.append(pid)
        stop_process(pid)

    yield stop
    for pid in pids:
        if is_there(pid):
            os.kill(pid, signal.SIGCONT)
