"""An environment that runs elsewhere, as a `gymnasium.Env`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.utils import seeding

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.serving.env_lease import EnvLease
from rl4sys_zmq.values.trees import copy_tree

__all__ = ["RemoteEnv", "seeded_as"]

TIMEOUT_S = 10.0


class RemoteEnv(gymnasium.Env[Any, Any]):
    """One environment of a `GymEnvServer`. Nobody else steps it until it is closed, or dropped.

    Each step and reset runs at most once, whatever becomes of messages and connections. After an error that says so, `reset` goes
    on; with a server that was started again, too.

    `np_random` is a generator on this side, seeded as the environment's own, which stays where it is. `spec` is what this process
    has registered under the environment's id, so `spec.make` makes a local one.

    Attributes:
        observation_space: the environment's.
        action_space: the environment's.
        metadata: the environment's, without the render mode ``human`` unless the server renders so.
        render_mode: the server's.
        spec: see above; None for an id that is not registered here.
    """

    def __init__(
        self, address: str, *, timeout_s: float = TIMEOUT_S, env_index: int | None = None, keys: str | Path | None = None
    ) -> None:
        """Takes an environment.

        Args:
            address: the server's.
            timeout_s: how long each call may take, in seconds.
            env_index: which environment it must be; None: any free one.
            keys: the file of this client's keys (``NAME.keys``), for a server that has keys.

        Raises:
            CallTimeout: when there is no server.
            CallRefused: ``OCCUPIED`` when all are taken; ``UNKNOWN`` for an index that is none; ``MISMATCH`` when the server
                serves something else.
            ConfigError: for a time that is none, or keys that can't be read.
            TransportError: for an address that nobody can be at.
        """
        self._env_lease = EnvLease(address, count=1, index=env_index, timeout_s=timeout_s, keys=keys)
        self.observation_space = self._env_lease.observation_space
        self.action_space = self._env_lease.action_space
        self.metadata = self._env_lease.metadata
        self.render_mode = self._env_lease.render_mode
        self.spec = self._env_lease.spec()

    @property
    def env_index(self) -> int:
        """Which of the server's environments this is. After a restart of the server it may be another."""
        return self._env_lease.seats[0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; takes an environment anew when the server does not know this client any more.

        Raises:
            CallError: as `step`.
            PayloadError: for options that cannot travel, with their place.
            gymnasium.error.Error: for a seed that is none, as any environment does.
        """
        super().reset(seed=seed)
        payload = {"only": [True], "seeds": [None if seed is None else str(seed)], "options": options}
        ((observation, info, used),) = self._env_lease.reset(payload)
        if seeded_as(used) not in (None, self._np_random_seed):
            self._np_random, self._np_random_seed = seeding.np_random(seeded_as(used))
        return self._env_lease.read_observation(observation), copy_tree(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step.

        Raises:
            CallFailed: the environment raised; its type and text.
            CallRefused: ``INVALID`` for an action of another shape, and for an observation outside its space; ``GONE`` or
                ``OCCUPIED`` when there is no episode any more: reset.
            CallTimeout: no answer came in time; whether it ran is unknown.
            CallLost: the server was started again meanwhile; whether it ran is unknown.
            PayloadError: for an action that cannot travel.
        """
        payload = {"actions": [self._env_lease.actions.to_tree(action)], "anew": [False]}
        ((observation, reward, terminated, truncated, info),) = self._env_lease.call("step", payload)
        return self._env_lease.read_observation(observation), reward, terminated, truncated, copy_tree(info)

    def render(self) -> Any:
        """What the environment renders in the server's render mode.

        Raises:
            CallError: as `step`.
        """
        (frame,) = self._env_lease.call("render", {})
        return copy_tree(frame)

    def close(self) -> None:
        """Gives the environment back. A second call does nothing."""
        self._env_lease.close()

    def __str__(self) -> str:
        return f"<RemoteEnv {self.env_index} at {self._env_lease.client.address}>"


def seeded_as(text: Any) -> int | None:
    """The seed that the server says it used; None when it says none."""
    if text is None:
        return None
    if not isinstance(text, str) or not text.isascii() or not text.isdigit():
        raise ConfigError(f"the server says it used the seed {text!r:.40}", key="seed")
    return int(text)
