"""Agentlace's two classes for one environment: a wrapper that serves the environment, and its client."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium

from rl4sys_zmq.serving.addresses import connect_address
from rl4sys_zmq.serving.environments import DEFAULT_PORT, GymEnvServer
from rl4sys_zmq.serving.remote_env import TIMEOUT_S, RemoteEnv

__all__ = ["GymEnvClientWrapper", "GymEnvServerWrapper"]


class _Guarded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that runs one call at a time: the server's, or the local program's."""

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
    """An environment that the local program uses as before and that is also served to one remote caller.

    Local and remote calls never run at the same time, but they act on the same episode.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], port: int = DEFAULT_PORT, **options: Any) -> None:
        """Wrap the environment. No address is bound before `start`.

        Args:
            env: Environment to serve.
            port: Port on 127.0.0.1; 0 picks a free one.
            options: Options of `GymEnvServer`, such as `bind` (in place of the port) or `keys`.

        Raises:
            ConfigError, TransportError: As `GymEnvServer`.
        """
        super().__init__(_Guarded(env))
        self.server = GymEnvServer(self.env, **{"bind": port, **options})

    def start(self, threaded: bool = False) -> None:
        """Serve: in threads of the server if `threaded`, else until `stop` or Ctrl-C.

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
            CallbackStuck: If the environment does not return.
        """
        self.server.stop()

    def close(self) -> None:
        """Stop the server and close the environment.

        Raises:
            CallbackStuck: If the environment does not return.
        """
        self.server.stop()
        super().close()


class GymEnvClientWrapper(RemoteEnv):
    """The remote environment of a `GymEnvServerWrapper`, by host and port."""

    def __init__(
        self, host: str = "localhost", port: int = DEFAULT_PORT, *, timeout_s: float = TIMEOUT_S, keys: str | Path | None = None
    ) -> None:
        """Take the environment.

        Args:
            host: Host name or IP address of the server, or a URI, which includes the port.
            port: Port of the server.
            timeout_s: Longest time that a call can take, in seconds.
            keys: The user's key file; see `RemoteEnv`.

        Raises:
            CallError, ConfigError, TransportError: As `RemoteEnv`.
        """
        super().__init__(connect_address(host, port).uri, timeout_s=timeout_s, keys=keys)
