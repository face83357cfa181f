"""A `gymnasium.Env` whose environment runs in a `GymEnvServer` elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.utils import seeding

from rl4sys_zmq.errors import CallRefusalReason, CallRefused, ConfigError
from rl4sys_zmq.serving.env_lease import EnvLease
from rl4sys_zmq.values.trees import copy_tree

TIMEOUT_S = 10.0


class RemoteEnv(gymnasium.Env[Any, Any]):
    """A client for one environment of a `GymEnvServer`, used like a local `gymnasium.Env`.

    No other caller can use the environment until this object is closed or garbage-collected. Each step and reset runs at most
    once, even if messages are lost. If an error says so, call `reset` to continue. This also works after a restart of the server.

    `np_random` is a local generator. It has the same seed as the generator of the environment at the server.

    Attributes:
        observation_space: Observation space of the environment.
        action_space: Action space of the environment.
        metadata: Metadata of the environment. The render mode ``human`` is removed unless the server uses it.
        render_mode: Render mode of the environment at the server.
        spec: The `EnvSpec` that this process has registered for the environment's id, or None. `spec.make` creates a local
            environment.
    """

    def __init__(
        self, address: str, *, timeout_s: float = TIMEOUT_S, env_index: int | None = None, keys: str | Path | None = None
    ) -> None:
        """Connect to the server and reserve (lease) an environment.

        Args:
            address: Address of the server.
            timeout_s: Longest time that a call can take, in seconds.
            env_index: Index of the environment. None: any free environment.
            keys: The user's key file (``NAME.keys``), if the server requires keys.

        Raises:
            CallTimeout: If no server answers.
            CallRefused: Code ``OCCUPIED`` if no environment is free, ``UNKNOWN`` for an invalid index, ``MISMATCH`` if the server
                is not a `GymEnvServer`.
            ConfigError: If the timeout is invalid or the keys cannot be read.
            TransportError: If the address is invalid.
        """
        self._env_lease = EnvLease(address, count=1, index=env_index, timeout_s=timeout_s, keys=keys)
        self.observation_space = self._env_lease.observation_space
        self.action_space = self._env_lease.action_space
        self.metadata = self._env_lease.metadata
        self.render_mode = self._env_lease.render_mode
        self.spec = self._env_lease.spec()

    @property
    def env_index(self) -> int:
        """The index of this environment at the server. It can change after a restart of the server."""
        return self._env_lease.slots[0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, also after the server was restarted or has given the environment to another caller.

        In these two cases, the method first leases an environment again, possibly another one.

        Raises:
            CallError: As `step`.
            PayloadError: If the options cannot be sent. The message has the path of the value.
            gymnasium.error.Error: If the seed is invalid, as with any environment.
        """
        super().reset(seed=seed)
        payload = {"only": [True], "seeds": [None if seed is None else str(seed)], "options": options}
        ((observation, info, used),) = self._env_lease.reset(payload)
        if parse_seed(used) not in (None, self._np_random_seed):
            self._np_random, self._np_random_seed = seeding.np_random(parse_seed(used))
        return self._env_lease.read_observation(observation), copy_tree(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Run one step of the environment at the server.

        Raises:
            CallFailed: If the environment raised an exception. The message has its type and text.
            CallRefused: Code ``INVALID`` if the action or the observation is outside its space. Code ``GONE`` or ``OCCUPIED`` if
                the episode no longer exists; call `reset`.
            CallTimeout: If no reply arrived in time. The step may have run.
            CallLost: If the server was restarted during the call. The step may have run.
            PayloadError: If the action cannot be sent.
        """
        payload = {"actions": [self._env_lease.actions.to_tree(action)], "anew": [False]}
        ((observation, reward, terminated, truncated, info),) = self._env_lease.call("step", payload)
        return self._env_lease.read_observation(observation), reward, terminated, truncated, copy_tree(info)

    def render(self) -> Any:
        """Return the result of the environment's `render`, in the render mode of the server.

        Raises:
            CallError: As `step`.
        """
        (frame,) = self._env_lease.call("render", {})
        return copy_tree(frame)

    @property
    def state(self) -> Any:
        """The attribute ``state`` of the environment at the server, such as CartPole's. It is a copy; read only.

        Raises:
            AttributeError: If the environment has no such attribute.
            CallError: As `step`. The episode continues.
        """
        try:
            (state,) = self._env_lease.call("state", {})
        except CallRefused as exc:
            if exc.code is not CallRefusalReason.UNKNOWN:
                raise
            raise AttributeError(f"{exc}", name="state", obj=self) from exc
        return copy_tree(state)

    def close(self) -> None:
        """Return the environment to the server. A second call does nothing."""
        self._env_lease.close()

    def __str__(self) -> str:
        return f"<RemoteEnv {self.env_index} at {self._env_lease.client.address}>"


def parse_seed(text: Any) -> int | None:
    """Convert the seed in a server's reply to an integer, or None if there is none."""
    if text is None:
        return None
    if not isinstance(text, str) or not text.isascii() or not text.isdigit():
        raise ConfigError(f"the server reported the seed {text!r:.40}; expected digits", key="seed")
    return int(text)
