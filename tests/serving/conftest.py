"""Fixtures for the tests of served environments."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
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


@pytest.fixture
def dial(serve: Any) -> Iterator[Any]:
    """Yield a function that connects an environment to a server, and begins an episode if it gets a seed.

    ``dial(server, seed=1, timeout_s=0.4)`` returns a `RemoteEnv`. The environments are closed before the servers.
    """
    from rl4sys_zmq.serving import RemoteEnv

    with ExitStack() as stack:

        def connect(server: Any, kind: Any = RemoteEnv, seed: int | None = None, **options: Any) -> Any:
            env = stack.enter_context(closing(kind(server.address, **options)))
            if seed is not None:
                env.reset(seed=seed)
            return env

        yield connect
