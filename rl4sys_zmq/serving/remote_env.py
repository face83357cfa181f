"""A `gymnasium.Env` whose environment runs in a `GymEnvServer` in another process, and the lease of such environments."""

from __future__ import annotations

import copy
import random
import weakref
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import seeding

from rl4sys_zmq.errors import (
    CallLost,
    CallRefusalReason,
    CallRefused,
    CallTimeout,
    Closed,
    ConfigError,
    PayloadError,
    RL4SysError,
    config_error,
)
from rl4sys_zmq.liveness import MISSED_MESSAGES, RENEWAL_LIMITS_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.rpc import Caller
from rl4sys_zmq.serving.environments import SERVICE
from rl4sys_zmq.serving.gymnasium_spaces import GymSpace, element_reader, to_gymnasium
from rl4sys_zmq.values.space_conversion import space_from_text
from rl4sys_zmq.values.trees import Tree, copy_tree

log = get_logger(__name__)

TIMEOUT_S = 10.0
RELEASE_TIMEOUT_S = 1.0
"""Longest time to wait for the server's reply when a lease is returned. A lease that is not returned expires later."""
LEASE_ENDED = (CallRefusalReason.GONE, CallRefusalReason.OCCUPIED)
"""The codes with which a server refuses a call of an ended lease."""
_rng = random.SystemRandom()


class _LeaseRenewer(Worker):
    """The thread that renews the lease of a `LeasedEnvClient`, and returns the lease if that object is garbage-collected."""

    def __init__(self, env_lease: LeasedEnvClient) -> None:
        super().__init__("rl4sys-lease")
        self.token = 0  # identifies the lease at the server. 0 while there is none
        self.every_s = 1.0
        self._client = env_lease.client
        over: SimpleQueue[None] = SimpleQueue()  # reentrant: the garbage collector can `put` at any point
        self._over = over
        self._env_lease = weakref.ref(env_lease, lambda _: over.put(None))

    def run(self) -> None:
        """Renew the lease until `stop`, or until the `LeasedEnvClient` is garbage-collected."""
        while not self._is_over():
            try:
                self._client.call("keep", {"token": self.token}, self.every_s)
            except RL4SysError as exc:  # the next step reports the error to the host
                log.debug("the lease at %s could not be renewed: %s", self._client.address, exc)
        if self._env_lease() is None:
            self.give_back()

    def stop(self) -> None:
        """End the thread."""
        self._over.put(None)

    def give_back(self) -> None:
        """Return the lease, waiting at most `RELEASE_TIMEOUT_S`, and close the RPC client."""
        token, self.token = self.token, 0
        if token:
            try:
                self._client.call("give", {"token": token}, RELEASE_TIMEOUT_S)
            except RL4SysError as exc:
                log.info("the lease at %s could not be returned, and will expire: %s", self._client.address, exc)
        self._client.close()

    def _is_over(self) -> bool:
        try:
            self._over.get(timeout=self.every_s)
        except Empty:
            return False
        return True


class LeasedEnvClient(Resource):
    """A client that leases environments of a `GymEnvServer`, and resets and steps them. A thread renews the lease.

    Only one thread at a time may use this object. Any thread can call `close`.
    """

    def __init__(
        self, address: str, *, count: int | None, index: int | None, timeout_s: float, keys: str | Path | None = None
    ) -> None:
        self.client = Caller(address, timeout_s=timeout_s, terms={"service": SERVICE}, keys=keys)
        self.slots: list[int] = []  # indices of the environments at the server
        self._renewer = _LeaseRenewer(self)
        # True if the server has answered the last request for a lease. It can have ended the lease since
        self.is_leased = False
        self._unsure = ""
        self._index = index
        try:
            description = self.client.call("describe")
            observations = space_from_text(_of(description, "observation_space", str))
            self.actions = space_from_text(_of(description, "action_space", str))  # the action space as a space of this library
            self.read_observation = element_reader(observations)  # converts a received payload to an observation
            self.observation_space: GymSpace = to_gymnasium(observations)
            self.action_space: GymSpace = to_gymnasium(self.actions)
            self.metadata: dict[str, Any] = copy_tree(_of(description, "metadata", dict))
            self.render_mode: str | None = _of(description, "render_mode", str | None)
            self._description = description
            self._count = _of(description, "count", int) if count is None else min(count, _of(description, "count", int))
            shortest_s, longest_s = RENEWAL_LIMITS_S
            self._renewer.every_s = min(max(shortest_s, _of(description, "lease_s", float) / MISSED_MESSAGES), longest_s)
            self.acquire()
            self._renewer.start()
        except BaseException:
            self.close()
            raise

    def spec(self) -> EnvSpec | None:
        """Return the `EnvSpec` that this process has registered for the id of the server's environments, or None."""
        id_, kwargs = self._description.get("id"), self._description.get("kwargs")
        spec = gymnasium.registry.get(id_) if isinstance(id_, str) else None  # `gymnasium.spec` could import a module
        if spec is None or not isinstance(kwargs, dict):
            return None
        return replace(
            copy.deepcopy(spec), kwargs=copy_tree(kwargs), max_episode_steps=self._description.get("max_episode_steps")
        )

    def acquire(self) -> None:
        """Lease environments. After a missing reply, the next call sends the same token, so the server leases only once."""
        renewer = self._renewer
        if self.is_leased or not renewer.token:
            renewer.token, self.is_leased = _rng.getrandbits(63), False
        self._unsure = "no environment was reset since the lease was requested"
        try:
            slots = self.client.call("take", {"token": renewer.token, "count": self._count, "index": self._index})
        except CallRefused:
            renewer.token = 0
            raise
        if not isinstance(slots, list) or len(slots) != self._count or not all(type(i) is int for i in slots):
            raise ConfigError(f"the server returned the environments {slots!r:.60}; {self._count} were requested", key="count")
        self.slots, self.is_leased = slots, True

    def reset(self, payload: dict[str, Tree]) -> Tree:
        """Reset the environments, and return the reply. If the server has ended the lease, first lease environments again."""
        if self.is_leased:
            try:
                return self.call("reset", payload)
            except CallRefused as refused:
                if refused.code not in LEASE_ENDED:
                    raise
        self.acquire()
        return self.call("reset", payload)

    def call(self, verb: str, payload: dict[str, Tree]) -> Tree:
        """Call the method `verb`, at most once, and return the reply. After a failed call, refuse steps until a reset."""
        before = self._unsure
        if not self.is_leased or (before and verb == "step"):
            text = f"{before}, so the state of the episode is unknown; call reset()"
            raise CallRefused(verb, self.client.address, CallRefusalReason.GONE, text)
        if verb in ("reset", "step"):
            self._unsure = f"the last {verb} failed"
        try:
            answer = self.client.call(*self._request(verb, payload), once=True)
        except (CallRefused, Closed, PayloadError):
            self._unsure = before
            raise
        except (CallTimeout, CallLost) as exc:
            exc.add_note("call reset() to continue")
            raise
        if verb in ("reset", "step"):
            self._unsure = ""
        return answer

    def submit(self, verb: str, payload: dict[str, Tree]) -> Future[Tree]:
        """Start a call, and return a future for the reply. Unlike `call`, this does not refuse steps after a failed call."""
        return self.client.submit(*self._request(verb, payload), once=True)

    def close(self) -> None:
        """Return the environments to the server, and end the thread. Wait at most a second. A second call does nothing."""
        self._renewer.stop()
        self._renewer.give_back()
        self._renewer.join()

    def _request(self, verb: str, payload: dict[str, Tree]) -> tuple[str, Tree]:
        return f"{verb}.{self.slots[0]}", {"token": self._renewer.token, **payload}


def _of(about: Tree, name: str, kind: Any) -> Any:
    value = about.get(name) if isinstance(about, dict) else None
    if not isinstance(value, kind):
        raise config_error(name, f"a {type(value).__name__} in the server's description of its environments is malformed")
    return value


class RemoteEnv(gymnasium.Env[Any, Any]):
    """A client for one environment of a `GymEnvServer`, used like a local `gymnasium.Env`.

    No other caller can use the environment until this object is closed or garbage-collected. Each step and reset runs at most
    once, even if messages are lost. If the text of an error names `reset`, call `reset` to continue, also after a restart of
    the server.

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
        self._env_lease = LeasedEnvClient(address, count=1, index=env_index, timeout_s=timeout_s, keys=keys)
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
            CallError: If the environment raised an exception, no environment is free, or no reply arrived in time.
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
            CallError: If the environment raised an exception, or no reply arrived in time.
        """
        (frame,) = self._env_lease.call("render", {})
        return copy_tree(frame)

    @property
    def state(self) -> Any:
        """A copy of the attribute ``state`` of the environment at the server, such as CartPole's state.

        Raises:
            AttributeError: If the environment has no such attribute.
            CallError: If the call failed. The episode continues.
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
