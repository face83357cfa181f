"""The learner process is killed with SIGKILL under a running actor, and another learner starts at the same address."""

from __future__ import annotations

from typing import Any

import pytest
from kit import until

from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.ops.requests import request_status

from .engine_lab import serving


def published(address: str) -> tuple[int, int, str]:
    """Return the generation, the version and the digest of the policy in the status of the learner at an address."""
    client = request_status(address, 10.0)["clients"]["lab"]
    return client["generation"], client["version"], client["digest"]


def held(agent: Any) -> tuple[int, int, str]:
    return agent.generation, agent.version, f"{agent.digest:016x}"


def agree(agents: list[Any], address: str) -> None:
    """Wait until both agents hold the version that the learner published last."""
    until(lambda: held(agents[0]) == held(agents[1]) == published(address), "the newest version")


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_actors_rejoin_a_learner_that_was_killed(inproc_lab: Any, scheme: str, tmp_path: Any) -> None:
    bind = "tcp://127.0.0.1:0" if scheme == "tcp" else f"ipc://{tmp_path}/l"
    with serving(bind) as (process, address):
        agents = [inproc_lab.agent(address) for _ in range(2)]
        for version in (1, 2):
            inproc_lab.episode(agents[version % 2], 16)
            for agent in agents:
                agent.wait_version(version, 20.0)
        assert held(agents[0]) == held(agents[1]) == published(address)
        generation = agents[0].generation
        process.kill()
        process.wait(10)
        with pytest.raises(RL4SysError):
            request_status(address, 0.2)
        for agent in agents:
            inproc_lab.episode(agent, 16)  # the actors continue to act
    with serving(address) as (_, again):
        assert again == address
        for agent in agents:
            with agent._io.host.changed:
                assert agent._io.host.changed.wait_for(lambda agent=agent: agent.generation > generation, timeout=30.0)
            agent.flush(20.0)
        for agent in agents:
            agent.wait_version(2, 20.0)  # the two episodes that were played without a learner are now trained
        agree(agents, address)
        inproc_lab.episode(agents[0], 16)
        for agent in agents:
            agent.wait_version(3, 20.0)
        agree(agents, address)
        for agent in agents:
            agent.close()
