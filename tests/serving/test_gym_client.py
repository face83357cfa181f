"""agentlace's environment client: it waits for its server, and for a free environment."""

from __future__ import annotations

import threading

import pytest
from kit import free_port

gymnasium = pytest.importorskip("gymnasium")

from rl4sys_zmq.errors import ConfigError  # noqa: E402
from rl4sys_zmq.serving import GymEnvClient, GymEnvServerWrapper  # noqa: E402


def test_agentlaces_client_waits_for_its_server() -> None:
    port = free_port()
    made: list[GymEnvClient] = []
    waiting = threading.Thread(target=lambda: made.append(GymEnvClient("127.0.0.1", port, retry_interval=0.01, timeout_ms=50)))
    waiting.start()
    waiting.join(0.2)
    assert not made
    served = GymEnvServerWrapper(gymnasium.make("CartPole-v1"), port=port)
    served.start(threaded=True)
    waiting.join(10.0)
    second: list[GymEnvClient] = []
    next_one = threading.Thread(target=lambda: second.append(GymEnvClient("127.0.0.1", port, 0.01)))
    try:
        assert made[0].reset(seed=1)[0].shape == (4,)
        next_one.start()
        next_one.join(0.1)
        assert not second  # the environment is not free
        made[0].close()
        next_one.join(10.0)
        assert second[0].reset(seed=1)[0].shape == (4,)
        with pytest.raises(ConfigError, match="retry_interval: expected a number above 0"):
            GymEnvClient("127.0.0.1", port, retry_interval=0)
    finally:
        for client in made + second:
            client.close()
        served.close()
