"""Remote Gymnasium environments under agentlace's class names."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import gymnasium

from rl4sys_zmq.config.options import CALL_TIMEOUT_MS, check_value, number
from rl4sys_zmq.errors import CallRefusalReason
from rl4sys_zmq.rpc import Caller
from rl4sys_zmq.serving.config import connect_address, first_call
from rl4sys_zmq.serving.environments import DEFAULT_PORT, GymEnvServer
from rl4sys_zmq.serving.remote_env import TIMEOUT_S, RemoteEnv

DAY_S = 86_400.0


class _LockedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper with a lock, so that the server and the local program never call the environment at the same time."""

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
            ConfigError, TransportError: If the environment cannot be served, or an option or the address is invalid.
        """
        super().__init__(_LockedEnv(env))
        self.server = GymEnvServer(self.env, **{"bind": port, **options})

    def start(self, threaded: bool = False) -> None:
        """Bind the address and serve, in background threads if `threaded`, otherwise blocking until `stop` or Ctrl-C.

        Raises:
            TransportError: If the address cannot be bound.
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
        """Connect, and reserve the environment. No other caller can use it until `close`.

        Args:
            host: Host name or IP address of the server, or a URI, which includes the port.
            port: Port of the server.
            timeout_s: Longest time that a call can take, in seconds.
            keys: The user's key file; see `RemoteEnv`.

        Raises:
            CallTimeout: If no server answers.
            CallRefused: Code ``OCCUPIED`` if the environment is not free.
            ConfigError, TransportError: If an argument or the address is invalid.
        """
        super().__init__(connect_address(host, port).uri, timeout_s=timeout_s, keys=keys)


class GymEnvClient(RemoteEnv):
    """A `RemoteEnv` that waits for its server, with the arguments of agentlace's class.

    The constructor waits without limit until a server answers and has a free environment. After that, a call waits for its reply
    for up to a day. agentlace sends a call again every `timeout_ms`, so that a slow environment makes several steps. Here a step
    runs once. If the server was restarted during a call, the call raises `CallLost`; continue with `reset`.
    """

    def __init__(
        self,
        host: str = "localhost",
        port: int = DEFAULT_PORT,
        retry_interval: float = 0.5,
        timeout_ms: float = 800,
        *,
        keys: str | Path | None = None,
    ) -> None:
        """Wait for the server, and reserve the environment. No other caller can use it until `close`.

        Args:
            host: Host name or IP address of the server, or a URI, which includes the port.
            port: Port of the server.
            retry_interval: Time between two attempts to find the server, in seconds.
            timeout_ms: Longest time that one attempt waits for a reply, in milliseconds.
            keys: The user's key file; see `RemoteEnv`.

        Raises:
            ConfigError: If a time is out of range, or the keys cannot be read.
            CallRefused: Code ``MISMATCH`` if the server is not a `GymEnvServer`.
            TransportError: If the address is invalid.
        """
        retry_interval = check_value("retry_interval", retry_interval, number(0, above=True))
        timeout_s = check_value("timeout_ms", timeout_ms, CALL_TIMEOUT_MS) / 1000
        address = connect_address(host, port).uri

        def connect() -> None:
            with Caller(address, timeout_s=timeout_s, keys=keys) as probe:
                probe.call("describe")
            RemoteEnv.__init__(self, address, timeout_s=DAY_S, keys=keys)

        first_call("GymEnvClient", connect, wait=True, codes=[CallRefusalReason.OCCUPIED], every_s=retry_interval)
