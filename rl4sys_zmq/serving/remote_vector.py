"""A `gymnasium.vector.VectorEnv` of remote environments. A step needs one request to each server and one reply."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rl4sys_zmq.config.options import check_value, integer, mapping, optional
from rl4sys_zmq.errors import CallRefusalReason, CallRefused, ConfigError, config_error
from rl4sys_zmq.serving.remote_env import LEASE_ENDED, TIMEOUT_S, LeasedEnvClient, parse_seed
from rl4sys_zmq.values.trees import Tree, copy_tree


class RemoteVectorEnv(VectorEnv[Any, Any, np.ndarray[Any, Any]]):
    """A vector environment whose environments run in one or more `GymEnvServer` processes.

    It behaves like `gymnasium.vector.SyncVectorEnv`. The servers work in parallel; each server steps its environments one after
    the other. The step after the end of an episode resets the environment (`AutoresetMode.NEXT_STEP`). If a step or a reset
    raises an exception, call `reset` for all environments.

    Attributes:
        num_envs: Number of environments.
        single_observation_space: Observation space of each environment.
        single_action_space: Action space of each environment.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        num_envs: int | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        keys: str | Path | None = None,
    ) -> None:
        """Connect to the servers and reserve (lease) environments.

        Args:
            address: Address of a server, or a sequence of addresses.
            num_envs: Number of environments. The environments of the first server are used first. None: all environments of all
                servers.
            timeout_s: Longest time that a call can take, in seconds.
            keys: The user's key file; see `RemoteEnv`.

        Raises:
            ConfigError: If the servers' spaces differ, no address is given, or `num_envs` is less than 1.
            CallRefused: Code ``OCCUPIED`` if too few environments are free.
            CallError, TransportError: As `RemoteEnv`.
        """
        self._parts: list[LeasedEnvClient] = []
        self._unsure = True  # the state of an episode is unknown, so all must be reset before the next step
        if not isinstance(address, (str, Sequence)):
            raise ConfigError(f"address is {address!r:.60}; expected an address or a sequence of addresses", key="address")
        addresses = [address] if isinstance(address, str) else list(address)
        num_envs = check_value("num_envs", num_envs, optional(integer(1)))
        if not addresses:
            raise ConfigError("address: no address of a server is given", key="address")
        self.num_envs = 0
        try:
            for where in addresses:
                left = None if num_envs is None else num_envs - self.num_envs
                if left != 0:
                    self._parts.append(LeasedEnvClient(where, count=left, index=None, timeout_s=timeout_s, keys=keys))
                    self.num_envs += len(self._parts[-1].slots)
            if num_envs is not None and self.num_envs < num_envs:
                text = f"{num_envs} requested; there are {self.num_envs} environments in all"
                raise CallRefused("take", ", ".join(addresses), CallRefusalReason.OCCUPIED, text)
            first = self._parts[0]
            for part in self._parts[1:]:
                for name in ("observation_space", "action_space"):
                    here, there = getattr(first, name), getattr(part, name)
                    if here != there:
                        raise config_error(name, f"{part.client.address} has {there}, {first.client.address} {here}")
        except BaseException:
            self.close_extras()
            raise
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.render_mode = first.render_mode
        self._observations: list[Any] = [None] * self.num_envs
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._seeds: list[int | None] = [None] * self.num_envs

    @property
    def np_random_seed(self) -> Any:  # a tuple, as SyncVectorEnv's
        """A tuple with the seed of each environment's generator, or None if unknown."""
        return tuple(self._seeds)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin episodes in all environments, or in those for which ``options["reset_mask"]`` is True.

        Args:
            seed: Seed of the first environment; the others get the following integers. Or a sequence with a seed for each.
            options: Options for the `reset` of each environment. The entry ``reset_mask``, a bool array ``[num_envs]``, is
                removed.

        Returns:
            Observations ``[num_envs, ...]`` and infos, in the form of `SyncVectorEnv`.

        Raises:
            CallError, PayloadError: If a call failed, or the options cannot be sent. Then reset all environments.
            ConfigError: If the seeds, the options or the mask are invalid. No environment was reset.
        """
        seeds = self._each_seed(seed)
        options = check_value("options", options, optional(mapping))
        everyone = np.ones(self.num_envs, np.bool_)
        mask = everyone if options is None else options.pop("reset_mask", everyone)
        if not isinstance(mask, np.ndarray) or mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ConfigError(f"reset_mask must be an array of {self.num_envs} booleans with at least one True", key="reset_mask")
        if self._unsure and not mask.all():
            problem = "the first reset, and the first after a failed call, must reset all environments: omit it"
            raise config_error("reset_mask", problem)
        only, self._unsure = mask.tolist(), True
        asked = [(part, {"only": only[here], "seeds": seeds[here], "options": options}) for part, here in self._slices()]
        answers = self._reset_all(asked)
        infos: dict[str, Any] = {}
        read = self._parts[0].read_observation
        for i, answer in enumerate(answers):
            if answer is not None:
                observation, info, used = answer
                self._observations[i] = read(observation)
                self._seeds[i] = parse_seed(used)
                infos = self._add_info(infos, copy_tree(info), i)
        self._ended[mask] = False
        self._unsure = False
        return self._batch(), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]:
        """Step all environments. An environment whose episode ended with the last step is reset instead.

        Args:
            actions: ``[num_envs, ...]``, an element of `action_space`.

        Returns:
            Observations ``[num_envs, ...]``; rewards (float64), terminations and truncations (bool), each ``[num_envs]``; and the
            infos, in the form of `SyncVectorEnv`.

        Raises:
            CallError, PayloadError: If a call failed, or an action cannot be sent. Then reset all environments.
            ConfigError: If `actions` is not a batch of `num_envs` actions. No environment was stepped.
        """
        if self._unsure and not self.closed:
            text = "the environments were not all reset at the beginning, or since a call failed; call reset()"
            raise CallRefused("step", self._parts[0].client.address, CallRefusalReason.GONE, text)
        to_tree = self._parts[0].actions.to_tree
        try:
            each = [to_tree(a) for a in iterate(self.action_space, actions)]
        except Exception as exc:  # Gymnasium iterates over any object, which can raise anything
            raise ConfigError(f"{actions!r:.80} is not a batch of actions: {exc}", key="actions") from exc
        if len(each) != self.num_envs:
            raise ConfigError(f"{len(each)} actions for {self.num_envs} environments", key="actions")
        anew = self._ended.tolist()
        asked = [(part, {"actions": each[here], "anew": anew[here]}) for part, here in self._slices()]
        self._unsure = True
        answers = self._ask_all("step", asked)
        rewards = np.zeros(self.num_envs, np.float64)
        terminations, truncations = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        read = self._parts[0].read_observation
        for i, (observation, reward, terminated, truncated, info) in enumerate(answers):
            self._observations[i] = read(observation)
            rewards[i], terminations[i], truncations[i] = reward, terminated, truncated
            infos = self._add_info(infos, copy_tree(info), i)
        self._ended = np.logical_or(terminations, truncations)
        self._unsure = False
        return self._batch(), rewards, terminations, truncations, infos

    def render(self) -> tuple[Any, ...] | None:
        """Return a tuple with the result of each environment's `render`.

        Raises:
            CallError: If an environment raised an exception, or no reply arrived in time.
        """
        return tuple(copy_tree(self._ask_all("render", [(part, {}) for part in self._parts])))

    def close_extras(self, **kwargs: Any) -> None:
        """Return all environments to their servers. Gymnasium calls this from `close`."""
        for part in self._parts:
            part.close()

    def _ask_all(self, verb: str, asked: list[tuple[LeasedEnvClient, dict[str, Tree]]]) -> list[Tree]:
        """Call the method `verb` of several servers in parallel. Return the reply for each environment."""
        if len(asked) == 1:
            part, payload = asked[0]
            return list(part.call(verb, payload))
        return [answer for future in self._send_all(verb, asked) for answer in future.result()]

    def _reset_all(self, asked: list[tuple[LeasedEnvClient, dict[str, Tree]]]) -> list[Tree]:
        """Reset environments of several servers in parallel. Where a server has ended the lease, lease environments again."""
        if len(asked) == 1:
            part, payload = asked[0]
            return list(part.reset(payload))
        leased = [(place, one) for place, one in enumerate(asked) if one[0].is_leased]
        replies = dict(zip([place for place, _ in leased], self._send_all("reset", [one for _, one in leased]), strict=True))
        lost = [place for place in range(len(asked)) if place not in replies or _lease_has_ended(replies[place])]
        for place in set(range(len(asked))) - set(lost):
            replies[place].result()  # raise its error before any environment is leased again
        for place in lost:
            asked[place][0].acquire()
        replies.update(zip(lost, self._send_all("reset", [asked[place] for place in lost]), strict=True))
        return [answer for place in range(len(asked)) for answer in replies[place].result()]

    def _send_all(self, verb: str, asked: list[tuple[LeasedEnvClient, dict[str, Tree]]]) -> list[Future[Tree]]:
        """Call the method `verb` of several servers in parallel. Return a completed future with the reply of each."""
        futures: list[Future[Tree]] = []
        try:
            for part, payload in asked:
                futures.append(part.submit(verb, payload))
        finally:
            wait(futures)  # for all of them, even if one fails: none can run on when the next call begins
        return futures

    def _each_seed(self, seed: Any) -> list[str | None]:
        """Return the seed of each environment as a text of digits, or None where none is given."""
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            seed = [int(seed) + i for i in range(self.num_envs)]
        if not isinstance(seed, (Sequence, np.ndarray)):
            raise ConfigError(f"the seed {seed!r:.60} is neither an integer nor a sequence of integers", key="seed")
        if len(seed) != self.num_envs:
            raise ConfigError(f"{len(seed)} seeds for {self.num_envs} environments", key="seed")
        for one in seed:
            if one is not None and (not isinstance(one, (int, np.integer)) or one < 0):
                raise ConfigError(f"the seed {one!r:.60} is not an integer of at least 0", key="seed")
        return [None if one is None else str(int(one)) for one in seed]

    def _slices(self) -> list[tuple[LeasedEnvClient, slice]]:
        out, at = [], 0
        for part in self._parts:
            out.append((part, slice(at, at + len(part.slots))))
            at += len(part.slots)
        return out

    def _batch(self) -> Any:
        empty: Any = create_empty_array(self.single_observation_space, n=self.num_envs, fn=np.zeros)
        return copy.deepcopy(concatenate(self.single_observation_space, self._observations, empty))


def _lease_has_ended(reply: Future[Tree]) -> bool:
    error = reply.exception()
    return isinstance(error, CallRefused) and error.code in LEASE_ENDED
