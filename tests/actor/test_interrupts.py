"""A signal handler of the host raises, or calls the agent, in the middle of the agent's calls."""

import contextlib
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.actor.components import WaitTimer
from rl4sys_zmq.actor.io.thread import ActorIOThread
from rl4sys_zmq.errors import LearnerUnavailable
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

from .conftest import Bench, obs

STEPS, ROLLOUT = 6, 4
SPACES: dict[str, Any] = {"observation_space": BoxSpace((3,)), "action_space": DiscreteSpace(3)}


@pytest.fixture
def agent(bench: Bench) -> RL4SysAgent:
    parameters = {"rollout_length": ROLLOUT}
    return bench.agent(algorithm_name="KEEPER_OFF", algorithm_parameters=parameters, max_traj_length=64)


def ends(call: Callable[[], object]) -> bool:
    """Return True if a call returns, and False if it waits for itself."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10.0)
    return not thread.is_alive()


class Interrupt:
    """Raises `KeyboardInterrupt` at one of the points at which CPython runs signal handlers: where a function is called, or
    a function in C returns.
    """

    def __init__(self, point: int) -> None:
        self.left = point

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and "rl4sys_zmq/actor" in frame.f_code.co_filename:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt


def live(agent: RL4SysAgent) -> None:
    """Live one episode. Repeat each call that is interrupted, as far as the action is not stored."""
    traj: Any = None
    action: Any = None
    step = 0
    while step < STEPS:
        try:
            traj, action = agent.request_for_action(traj, obs(step))
            agent.add_to_trajectory(traj, action)
        except KeyboardInterrupt:
            if action is None or action.writer is None or action.known_reward is not None:
                continue
        while action.known_reward is None:
            with contextlib.suppress(KeyboardInterrupt):
                action.update_reward(1.0)
        step += 1
    while not traj.completed:
        with contextlib.suppress(KeyboardInterrupt):
            agent.mark_end_of_trajectory(traj, action)


def test_no_step_is_sent_twice_and_the_counts_agree_after_an_interrupt(agent: RL4SysAgent) -> None:
    point, interrupted = 0, True
    while interrupted:
        point += 1
        before, interrupt = agent.stats(), Interrupt(point)
        sys.setprofile(interrupt)
        try:
            live(agent)
        finally:
            sys.setprofile(None)
        interrupted = interrupt.left <= 0
        after = agent.stats()
        # One segment more, if the request was interrupted after its action was made: the action counts as not added.
        assert after["submitted"] - before["submitted"] <= 3 and after["steps"] - before["steps"] <= STEPS, point
    assert point > 100
    agent.flush(20.0)
    stats = agent.stats()
    assert stats["submitted"] == stats["accepted"] and agent._parts.outbox.steps == 0
    # An interrupt loses a segment at a few of the points at most, and none of the others.
    assert stats["submitted"] >= 2 * point - 40


@pytest.mark.usefixtures("pure_form")
def test_an_interrupted_constructor_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, free = ActorIOThread._open, threading.Event()

    def slow(thread: ActorIOThread) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        free.wait(20.0)
        opened(thread)

    monkeypatch.setattr(ActorIOThread, "_open", slow)
    with pytest.raises(KeyboardInterrupt):
        RL4SysAgent(config=AgentConfig(client_id="signals", train_server_address="inproc://nobody", **SPACES))
    free.set()
    deadline = time.monotonic() + 10.0
    while any(thread.name.startswith("rl4sys-actor") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_handler_can_read_the_time_that_its_thread_is_adding_to() -> None:
    seen = list[float]()

    def clock() -> float:
        if len(seen) < 2:
            seen.append(0.0)
            seen.append(timer.seconds)  # as a handler of SIGUSR1 that prints `agent.stats()`
        return 1.0

    timer = WaitTimer(clock)
    assert ends(lambda: timer.seconds)


@pytest.mark.usefixtures("pure_form")
def test_a_signal_handler_can_close_an_agent_that_its_thread_closes(agent: RL4SysAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    wakeup, wake = agent._io._wakeup, agent._io._wakeup.set

    def interrupted() -> None:
        monkeypatch.setattr(wakeup, "set", wake)
        agent.close(0.0)  # as a handler of SIGTERM
        wake()

    monkeypatch.setattr(wakeup, "set", interrupted)
    assert ends(agent.close)


@pytest.mark.usefixtures("pure_form")
def test_an_agent_whose_close_was_interrupted_can_be_closed(agent: RL4SysAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    wakeup, wake = agent._io._wakeup, agent._io._wakeup.set

    def interrupted() -> None:
        monkeypatch.setattr(wakeup, "set", wake)
        raise KeyboardInterrupt

    monkeypatch.setattr(wakeup, "set", interrupted)
    with pytest.raises(KeyboardInterrupt):
        agent.close()
    agent.close()
    assert not agent._io.alive


@pytest.mark.usefixtures("pure_form")
def test_an_io_thread_that_pauses_after_an_error_stops_at_once(agent: RL4SysAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    paused = threading.Event()
    pause = ActorIOThread._pause

    def long(thread: ActorIOThread, seconds: float) -> None:
        paused.set()
        pause(thread, 1e6)

    def fail(thread: ActorIOThread) -> None:
        raise OSError("the network")

    monkeypatch.setattr(ActorIOThread, "_pause", long)
    monkeypatch.setattr(ActorIOThread, "_turn", fail)
    assert paused.wait(10.0)
    agent._io.wake_now()  # of a host thread that queues a segment: the pause goes on
    agent.close(0.0)
    assert not agent._io.alive


@pytest.mark.usefixtures("pure_form")
def test_a_signal_handler_can_roll_back_while_its_thread_does(agent: RL4SysAgent) -> None:
    class Interrupted(deque[Any]):
        def pop(self) -> Any:  # type: ignore[override]
            policy = super().pop()
            with contextlib.suppress(LearnerUnavailable):  # there is no further version
                agent.rollback()
            return policy

    subscriber = agent._io.weight_subscriber
    subscriber._previous = Interrupted([subscriber.policy])
    assert ends(agent.rollback)
