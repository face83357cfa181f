"""Times to wait that are no finite number, or negative. Every call refuses them in the same way, as configuration files do."""

from collections.abc import Callable
from typing import Any

import pytest

from rl4sys_zmq.errors import ConfigError, LearnerUnavailable
from rl4sys_zmq.ops.doctor import diagnose
from rl4sys_zmq.ops.requests import request_status
from rl4sys_zmq.rpc import Server

from .conftest import Lab

BAD_TIMES = [float("inf"), float("nan"), -1, "5", None, True, 10**400]


def test_no_call_of_a_learner_or_an_agent_waits_without_a_limit(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner()
    agent = inproc_lab.agent(learner)
    calls: dict[str, Callable[[Any], object]] = {
        "wait": lambda time_s: learner.wait(client_id="lab", version=9, timeout_s=time_s),
        "save": lambda time_s: learner.save(timeout_s=time_s),
        "drain": lambda time_s: learner.drain(timeout_s=time_s),
        "set_parameters": lambda time_s: learner.set_parameters("lab", {}, timeout_s=time_s),
        "drop_actor": lambda time_s: learner.drop_actor("lab", agent.actor_id, timeout_s=time_s),
        "forget": lambda time_s: learner.forget("lab", timeout_s=time_s),
        "wait_version": lambda time_s: agent.wait_version(9, time_s),
        "flush": lambda time_s: agent.flush(time_s),
        "close": lambda time_s: agent.close(time_s),
        "request_status": lambda time_s: request_status("127.0.0.1:1", time_s),
        "diagnose": lambda time_s: next(diagnose("127.0.0.1:1", timeout_s=time_s)),
    }
    for name, call in calls.items():
        for time_s in BAD_TIMES:
            with pytest.raises(ConfigError, match="timeout_s: expected a number"):
                call(time_s)
                pytest.fail(f"{name}({time_s}) returned")
    Lab.episode(agent, 2)  # no refused call did a part of its work
    agent.flush(20.0)
    assert learner.status()["clients"]["lab"]["accepted"] == 1


def test_waiting_for_a_version_that_does_not_come_says_so(inproc_lab: Lab) -> None:
    agent = inproc_lab.agent(inproc_lab.learner())
    with pytest.raises(LearnerUnavailable, match="version 3"):
        agent.wait_version(3, 0.05)


def test_a_server_is_not_stopped_with_a_time_that_is_none() -> None:
    with Server("inproc://*", name="limits") as server:
        server.start()
        for time_s in BAD_TIMES:
            with pytest.raises(ConfigError, match="timeout_s: expected a number"):
                server.stop(time_s)  # type: ignore[arg-type]
        assert server.address
