"""The log handlers of a host neither raise nor wait in the calls of an agent, and do not end its I/O thread."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.actor.io.thread import ActorIOThread
from rl4sys_zmq.logs import get_logger

from .conftest import Bench

OBSERVATION = np.zeros(4, np.float32)


class Handler(logging.Handler):
    """A handler that does what a test wants."""

    def __init__(self, emit: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self.emit = emit  # type: ignore[assignment]


def broken(record: logging.LogRecord) -> None:
    raise ValueError("I/O operation on closed file")


@pytest.fixture
def agent(bench: Bench) -> RL4SysAgent:
    return bench.agent(reward_timeout_s=0.0)


def end_without_reward(agent: RL4SysAgent) -> None:
    traj, action = agent.request_for_action(None, OBSERVATION)
    agent.mark_end_of_trajectory(traj, action)


@pytest.fixture
def handle() -> Iterator[Callable[[Callable[[logging.LogRecord], object]], None]]:
    added: list[Handler] = []

    def add(emit: Callable[[logging.LogRecord], object]) -> None:
        added.append(Handler(emit))
        logging.getLogger().addHandler(added[-1])

    yield add
    for handler in added:
        logging.getLogger().removeHandler(handler)


@pytest.mark.usefixtures("pure_form")
def test_a_handler_that_raises_does_not_reach_the_host(agent: RL4SysAgent, handle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    handle(broken)
    end_without_reward(agent)  # logs that it waits for the reward
    traj, action = agent.request_for_action(None, OBSERVATION)  # logs that the reward did not come
    agent.add_to_trajectory(traj, action)
    assert agent.stats()["dropped"] == {"reward_timeout": 1}
    turn = ActorIOThread._turn
    faults = iter([OSError("the network")])

    def fail_once(thread: ActorIOThread) -> None:
        for fault in faults:
            raise fault
        turn(thread)

    monkeypatch.setattr(ActorIOThread, "_turn", fail_once)
    action.update_reward(1.0)
    agent.mark_end_of_trajectory(traj, action)
    agent.flush(20.0)
    assert agent.stats()["accepted"] == 1 and agent.stats()["counters"]["io_restarts"] == 1


def test_a_format_with_the_context_of_rl4sys_shows_every_record(
    agent: RL4SysAgent, handle: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    form = logging.Formatter("%(levelname)s - %(message)s - %(context)s")
    handle(lambda record: lines.append(form.format(record)))
    end_without_reward(agent)
    agent.logger.warning("of the program", steps=3)
    get_logger("rl4sys_zmq.test").warning("with its own", extra={"context": "[1]"})
    assert [line.rpartition(" - ")[2] for line in lines] == ["{}", "{}", "[1]"]
    assert lines[1] == "WARNING - of the program (steps=3) - {}" and "Logging error" not in capsys.readouterr().err


def test_a_handler_that_waits_does_not_halt_the_other_threads(agent: RL4SysAgent, handle: Any) -> None:
    end_without_reward(agent)
    entered, free = threading.Event(), threading.Event()

    def wait(record: logging.LogRecord) -> None:
        if "did not come within" in record.getMessage():
            entered.set()
            free.wait(20.0)

    handle(wait)
    first = threading.Thread(target=agent.request_for_action, args=(None, OBSERVATION))
    first.start()
    assert entered.wait(20.0)
    second = threading.Thread(target=end_without_reward, args=(agent,))
    second.start()
    second.join(10.0)
    try:
        assert not second.is_alive()
    finally:
        free.set()
        first.join()
        second.join()


def test_a_logger_drops_the_exceptions_of_handlers_and_filters() -> None:
    log, seen = get_logger("rl4sys_zmq.tests.logs"), list[str]()
    log.addHandler(Handler(lambda record: seen.append(f"{record.filename} {record.getMessage()}")))
    log.warning("number %d", 1)
    log.addFilter(broken)  # type: ignore[arg-type]
    log.error("number %d", 2)
    assert seen == ["test_host_logging.py number 1"]


CLOSED = """
import sys
sys.stdin.close(), sys.stdout.close(), sys.stderr.close()  # as a daemon does; `logging` is not configured
from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.values import BoxSpace, DiscreteSpace
agent = RL4SysAgent(config=AgentConfig(client_id="daemon", algorithm_name="PPO", connect_timeout_s=0,
    train_server_address="127.0.0.1:1", observation_space=BoxSpace((3,)), action_space=DiscreteSpace(3)),
    baseline=lambda observation, mask: 1)
traj, action = agent.request_for_action(None, [0.0, 0.0, 0.0])
agent.close()
"""


def test_a_daemon_that_has_closed_its_streams_runs() -> None:
    assert subprocess.run([sys.executable, "-c", CLOSED], timeout=60, check=False).returncode == 0
