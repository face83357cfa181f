"""Agentlace's two classes for one environment: a wrapper that serves what it wraps, and its client."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium

from rl4sys_zmq.serving.addresses import dialled
from rl4sys_zmq.serving.environments import DEFAULT_PORT, GymEnvServer
from rl4sys_zmq.serving.remote_env import TIMEOUT_S, RemoteEnv

__all__ = ["GymEnvClientWrapper", "GymEnvServerWrapper"]


class _Guarded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One caller at a time: the server's, or the wrapper's own."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._guard = threading.Lock()

    def step(self, action: Any) -> Any:
        with self._guard:
            return self.env.step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        with self._guard:
            return self.env.reset(seed=seed, options=options)

    def render(self) -> Any:
        with self._guard:
            return self.env.render()


class GymEnvServerWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that is used here as before, and served to one client at the same time.

    A call here and a call of the client never run at the same time, but they act on one and the same episode.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], port: int = DEFAULT_PORT, **options: Any) -> None:
        """Binds nothing yet.

        Args:
            env: what is served.
            port: on 127.0.0.1; 0 takes a free one.
            options: of `GymEnvServer`, such as `bind` (instead of the port) or `keys`.

        Raises:
            ConfigError, TransportError: as `GymEnvServer`.
        """
        super().__init__(_Guarded(env))
        self.server = GymEnvServer(self.env, **{"bind": port, **options})

    def start(self, threaded: bool = False) -> None:
        """Serves: in threads of its own when `threaded`, else until `stop` or Ctrl-C.

        Raises:
            TransportError: as `GymEnvServer.start`.
        """
        if threaded:
            self.server.start()
        else:
            self.server.run()

    def stop(self) -> None:
        """Ends the serving; the environment stays.

        Raises:
            CallbackStuck: when the environment does not return.
        """
        self.server.stop()

    def close(self) -> None:
        """Ends the serving and closes the environment.

        Raises:
            CallbackStuck: when the environment does not return.
        """
        self.server.stop()
        super().close()


class GymEnvClientWrapper(RemoteEnv):
    """The environment of a `GymEnvServerWrapper`, by host and port."""

    def __init__(
        self, host: str = "localhost", port: int = DEFAULT_PORT, *, timeout_s: float = TIMEOUT_S, keys: str | Path | None = None
    ) -> None:
        """Takes the environment.

        Args:
            host: the server's name or number, or an address with a scheme, which says the port too.
            port: the server's.
            timeout_s: how long each call may take, in seconds.
            keys: see `RemoteEnv`.

        Raises:
            CallError, ConfigError, TransportError: as `RemoteEnv`.
        """
        super().__init__(dialled(host, port).uri, timeout_s=timeout_s, keys=keys)
