"""What tests of served environments share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium")

from rl4sys_zmq.serving import GymEnvServer  # noqa: E402

from .worlds import ROOM, Room  # noqa: E402


@pytest.fixture(autouse=True)
def room_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    if ROOM not in gymnasium.registry:
        gymnasium.register(ROOM, entry_point=Room)


@pytest.fixture
def serve() -> Iterator[Any]:
    """Starts servers: ``serve("CartPole-v1", 2, lease_s=1.0)``, on a free port unless told."""
    servers: list[GymEnvServer] = []

    def start(env: Any, count: int = 1, **options: Any) -> GymEnvServer:
        servers.append(GymEnvServer(env, count, **{"bind": "tcp://127.0.0.1:0", **options}))
        return servers[-1].start()

    yield start
    for server in servers:
        server.stop()
