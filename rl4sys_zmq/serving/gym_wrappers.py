"""Two classes with the names of the library agentlace: a wrapper that serves one environment, and its client."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium

from rl4sys_zmq.serving.addresses import connect_address
from rl4sys_zmq.serving.environments import DEFAULT_PORT, GymEnvServer
from rl4sys_zmq.serving.remote_env import TIMEOUT_S, RemoteEnv

__all__ = ["GymEnvClientWrapper", "GymEnvServerWrapper"]


class _LockedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment wrapper with a lock, so that calls of the server and of the local program never run at the same time."""

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
    """A wrapper that serves an environment to one remote caller, while the local program can use the environment too.

    Local and remote calls never run at the same time, but both act on the same episode.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], port: int = DEFAULT_PORT, **options: Any) -> None:
        """Wrap the environment. The server binds no address before `start`.

        Args:
            env: Environment to serve.
            port: Port of 127.0.0.1. 0: any free port.
            options: Options of `GymEnvServer`, such as `bind` (in place of the port) or `keys`.

        Raises:
            ConfigError, TransportError: As `GymEnvServer`.
        """
        super().__init__(_LockedEnv(env))
        self.server = GymEnvServer(self.env, **{"bind": port, **options})

    def start(self, threaded: bool = False) -> None:
        """Bind the address and serve, in background threads if `threaded`, otherwise blocking until `stop` or Ctrl-C.

        Raises:
            TransportError: As `GymEnvServer.start`.
        """
        if threaded:
            self.server.start()
        else:
            self.server.run()

    def stop(self) -> None:
        """Stop the server. The environment stays open.

        Raises:
            CallbackStuck: If a call of the environment does not return within five seconds.
        """
        self.server.stop()

    def close(self) -> None:
        """Stop the server and close the environment.

        Raises:
            CallbackStuck: If a call of the environment does not return within five seconds.
        """
        self.server.stop()
        super().close()


class GymEnvClientWrapper(RemoteEnv):
    """A `RemoteEnv` that connects to a `GymEnvServerWrapper` by host and port."""

    def __init__(
        self, host: str = "localhost", port: int = DEFAULT_PORT, *, timeout_s: float = TIMEOUT_S, keys: str | Path | None = None
    ) -> None:
        """Connect, and lease the environment. No other caller can use it until `close`.

        Args:
            host: Host name or IP address of the server, or a URI, which includes the port.
            port: Port of the server.
            timeout_s: Longest time that a call can take, in seconds.
            keys: The user's key file; see `RemoteEnv`.

        Raises:
            CallError, ConfigError, TransportError: As `RemoteEnv`.
        """
        super().__init__(connect_address(host, port).uri, timeout_s=timeout_s, keys=keys)
