"""A client's lease of environments: taken, kept while nothing is called, taken anew after a restart, given back."""

from __future__ import annotations

import copy
import logging
import random
import weakref
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from rl4sys_zmq.errors import CallLost, CallRefusal, CallRefused, CallTimeout, Closed, ConfigError, PayloadError, RL4SysError
from rl4sys_zmq.resource import Resource, Worker
from rl4sys_zmq.rpc import Caller
from rl4sys_zmq.serving.environments import SERVICE
from rl4sys_zmq.serving.gymnasium_spaces import ElementReader, GymSpace, to_gymnasium
from rl4sys_zmq.values.space_forms import space_from_text
from rl4sys_zmq.values.trees import Tree, copy_tree

__all__ = ["EnvLease"]

log = logging.getLogger(__name__)

GIVE_S = 1.0
"""How long giving back may take: a lease that could not be given back runs out by itself."""
_rng = random.SystemRandom()


class _LeaseRenewer(Worker):
    """Says now and then that the client is still there; gives back the lease of a `EnvLease` that was dropped without `close`.

    Attributes:
        token: the number of the lease; 0 while there is none.
        every_s: how often, in seconds.
    """

    def __init__(self, env_lease: EnvLease) -> None:
        super().__init__("rl4sys-lease")
        self.token = 0
        self.every_s = 1.0
        self._client = env_lease.client
        over: SimpleQueue[None] = SimpleQueue()  # the garbage collector may `put`, whatever it has interrupted
        self._over = over
        self._env_lease = weakref.ref(env_lease, lambda _: over.put(None))

    def run(self) -> None:
        """The thread's body."""
        while not self._is_over():
            try:
                self._client.call("keep", {"token": self.token}, self.every_s)
            except RL4SysError as exc:  # the next step will say it, to whom it concerns
                log.debug("the lease at %s could not be renewed: %s", self._client.address, exc)
        if self._env_lease() is None:
            self.give_back()

    def stop(self) -> None:
        """Ends the thread."""
        self._over.put(None)

    def give_back(self) -> None:
        """Gives the lease back, as well as that can be done within a second, and closes the client."""
        token, self.token = self.token, 0
        if token:
            try:
                self._client.call("give", {"token": token}, GIVE_S)
            except RL4SysError as exc:
                log.info("the lease at %s could not be given back, and will run out: %s", self._client.address, exc)
        self._client.close()

    def _is_over(self) -> bool:
        try:
            self._over.get(timeout=self.every_s)
        except Empty:
            return False
        return True


class EnvLease(Resource):
    """The lease of one or more environments of one server. Used by one thread at a time, besides `close`.

    Attributes:
        client: who calls.
        seats: the environments' numbers at the server.
        observation_space: of each environment.
        action_space: of each.
        actions: the action space as one of ours.
        read_observation: makes an observation from a received tree.
        metadata: theirs.
        render_mode: theirs.
    """

    def __init__(
        self, address: str, *, count: int | None, index: int | None, timeout_s: float, keys: str | Path | None = None
    ) -> None:
        """Asks what is served, and takes it.

        Args:
            address: the server's.
            count: how many environments; None: all that it has.
            index: which one it must be, with a count of one; None: any.
            timeout_s: how long a call may take, in seconds.
            keys: the file of this client's keys, for a server that has keys.

        Raises:
            CallTimeout: when there is no server.
            CallRefused: ``OCCUPIED`` when there are not as many free ones; ``MISMATCH`` when it is a server of something else.
            ConfigError: for a description that is none, or a time that is none.
            TransportError: for an address that nobody can be at.
        """
        if not isinstance(timeout_s, (int, float, np.number)):
            raise ConfigError(f"timeout_s is {timeout_s!r:.60}, and no number of seconds", key="timeout_s")
        self.client = Caller(address, timeout_s=timeout_s, terms={"service": SERVICE}, keys=keys)
        self.seats: list[int] = []
        self._keeper = _LeaseRenewer(self)
        self._taken = False
        self._unsure = ""
        self._index = index
        try:
            about = self.client.call("describe")
            observations = space_from_text(_of(about, "observation_space", str))
            self.actions = space_from_text(_of(about, "action_space", str))
            self.read_observation = ElementReader(observations)
            self.observation_space: GymSpace = to_gymnasium(observations)
            self.action_space: GymSpace = to_gymnasium(self.actions)
            self.metadata: dict[str, Any] = copy_tree(_of(about, "metadata", dict))
            self.render_mode: str | None = _of(about, "render_mode", str | None)
            self._about = about
            self._count = _of(about, "count", int) if count is None else min(count, _of(about, "count", int))
            self._keeper.every_s = min(max(0.05, _of(about, "lease_s", float) / 3.0), 3600.0)
            self.take()
            self._keeper.start()
        except BaseException:
            self.close()
            raise

    def spec(self) -> EnvSpec | None:
        """What this process knows under the id that the server's environments have; None when it knows nothing."""
        id_, kwargs = self._about.get("id"), self._about.get("kwargs")
        spec = gymnasium.registry.get(id_) if isinstance(id_, str) else None  # a look-up: `gymnasium.spec` might import a module
        if spec is None or not isinstance(kwargs, dict):
            return None
        return replace(copy.deepcopy(spec), kwargs=copy_tree(kwargs), max_episode_steps=self._about.get("max_episode_steps"))

    def take(self) -> None:
        """Takes environments, under a new number; or under the last one when that was not answered: they may be taken already.

        Raises:
            CallError: when that is refused or not answered.
            ConfigError: for an answer that is none.
        """
        keeper = self._keeper
        if self._taken or not keeper.token:
            keeper.token, self._taken = _rng.getrandbits(63), False
        self._unsure = "no environment was reset since they were asked for"
        try:
            seats = self.client.call("take", {"token": keeper.token, "count": self._count, "index": self._index})
        except CallRefused:
            keeper.token = 0
            raise
        if not isinstance(seats, list) or len(seats) != self._count or not all(type(i) is int for i in seats):
            raise ConfigError(f"the server gives the environments {seats!r:.60}, and {self._count} were wanted", key="count")
        self.seats, self._taken = seats, True

    def reset(self, payload: dict[str, Tree]) -> Tree:
        """A reset, with a new lease when the old one is no more."""
        if self._taken:
            try:
                return self.call("reset", payload)
            except CallRefused as refused:
                if refused.code not in (CallRefusal.GONE, CallRefusal.OCCUPIED):
                    raise
        self.take()
        return self.call("reset", payload)

    def call(self, verb: str, payload: dict[str, Tree]) -> Tree:
        """Calls a method on the environments of the lease and waits, once.

        Unless it is answered, or was not run at all, nobody knows where the episodes stand, and they are not stepped before a
        reset.

        Raises:
            CallRefused: ``GONE`` or ``OCCUPIED`` when there is no episode any more: reset.
            CallError: what else may become of a call.
        """
        before = self._unsure
        if not self._taken or (before and verb == "step"):
            text = f"{before}, so nobody knows where the episode stands; call reset()"
            raise CallRefused(verb, self.client.address, CallRefusal.GONE, text)
        if verb != "render":
            self._unsure = f"the last {verb} failed"
        try:
            answer = self.client.call(*self._said(verb, payload), once=True)
        except (CallRefused, Closed, PayloadError):
            self._unsure = before
            raise
        except (CallTimeout, CallLost) as exc:
            exc.add_note("call reset() to go on")
            raise
        if verb != "render":
            self._unsure = ""
        return answer

    def submit(self, verb: str, payload: dict[str, Tree]) -> Future[Tree]:
        """Calls without waiting. It is the caller who knows then whether the episodes go on."""
        return self.client.submit(*self._said(verb, payload), once=True)

    def close(self) -> None:
        """Gives the environments back, as well as that can be done within a second. A second call does nothing."""
        self._keeper.stop()
        self._keeper.give_back()
        self._keeper.join()

    def _said(self, verb: str, payload: dict[str, Tree]) -> tuple[str, Tree]:
        return f"{verb}.{self.seats[0]}", {"token": self._keeper.token, **payload}


def _of(about: Tree, name: str, kind: Any) -> Any:
    value = about.get(name) if isinstance(about, dict) else None
    if not isinstance(value, kind):
        raise ConfigError(f"the server describes no environment: its {name} is a {type(value).__name__}", key=name)
    return value
