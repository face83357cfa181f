"""Fixtures for the tests of served environments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a function that starts servers: ``serve("CartPole-v1", 2, lease_s=1.0)``.

    The default is a free port. `ROOM` is registered.
    """
    gymnasium = pytest.importorskip("gymnasium")
    from rl4sys_zmq.serving import GymEnvServer

    from .worlds import ROOM, Room

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(gymnasium.registry, ROOM, gymnasium.envs.registration.EnvSpec(ROOM, Room))
    servers: list[GymEnvServer] = []

    def start(env: Any, count: int = 1, **options: Any) -> GymEnvServer:
        servers.append(GymEnvServer(env, count, **{"bind": 0, **options}))
        return servers[-1].start()

    yield start
    for server in servers:
        server.stop()
