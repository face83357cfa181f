"""Several remote environments as one `gymnasium.vector.VectorEnv`: one message there and back for all of a server's."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rl4sys_zmq.errors import CallRefusal, CallRefused, ConfigError
from rl4sys_zmq.serving.env_lease import EnvLease
from rl4sys_zmq.serving.remote_env import TIMEOUT_S, seeded_as
from rl4sys_zmq.values.trees import Tree, copy_tree

__all__ = ["RemoteVectorEnv"]


class RemoteVectorEnv(VectorEnv[Any, Any, np.ndarray[Any, Any]]):
    """Environments of one or more servers, stepped together; otherwise as `gymnasium.vector.SyncVectorEnv`.

    A server steps its environments one after the other within one call, the servers among themselves at the same time. An
    environment whose episode has ended is reset by the next step (`AutoresetMode.NEXT_STEP`). After a step or reset that raised,
    all begin anew: call `reset`.

    Attributes:
        num_envs: how many there are.
        single_observation_space: of each.
        single_action_space: of each.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        num_envs: int | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        keys: str | Path | None = None,
    ) -> None:
        """Takes the environments.

        Args:
            address: of the server, or of several.
            num_envs: how many, from the first server first; None: all that they have.
            timeout_s: how long each call may take, in seconds.
            keys: see `RemoteEnv`.

        Raises:
            ConfigError: when the servers' spaces differ, or there is no address.
            CallRefused: ``OCCUPIED`` when there are not as many free ones.
            CallError, TransportError: as `RemoteEnv`.
        """
        self._parts: list[EnvLease] = []
        self._unsure = True
        """Not all episodes are known to stand where the last observations say."""
        addresses = [address] if isinstance(address, str) else list(address)
        if not addresses or (num_envs is not None and num_envs < 1):
            raise ConfigError(f"{num_envs} environments of {len(addresses)} servers", key="num_envs")
        self.num_envs = 0
        try:
            for where in addresses:
                left = None if num_envs is None else num_envs - self.num_envs
                if left != 0:
                    self._parts.append(EnvLease(where, count=left, index=None, timeout_s=timeout_s, keys=keys))
                    self.num_envs += len(self._parts[-1].seats)
            if num_envs is not None and self.num_envs < num_envs:
                text = f"{num_envs} wanted; there are {self.num_envs} environments in all"
                raise CallRefused("take", ", ".join(addresses), CallRefusal.OCCUPIED, text)
            first = self._parts[0]
            for part in self._parts[1:]:
                for name in ("observation_space", "action_space"):
                    here, there = getattr(first, name), getattr(part, name)
                    if here != there:
                        raise ConfigError(
                            f"{part.client.address} has the {name} {there}, {first.client.address} {here}", key=name
                        )
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
        """The seed of each environment's generator."""
        return tuple(self._seeds)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begins episodes in all environments, or in those of ``options["reset_mask"]``.

        Args:
            seed: the first environment's, the next has the next number; or one for each.
            options: handed to each.

        Returns:
            Observations ``[num_envs, ...]`` and infos, as `SyncVectorEnv` puts them together.

        Raises:
            CallError, PayloadError: as `RemoteEnv.reset`; then all must be reset.
            ConfigError: for seeds, options or a mask that are none; nothing was asked.
        """
        seeds = self._each_seed(seed)
        if not isinstance(options, dict | None):
            raise ConfigError(f"options are a {type(options).__name__}, and no dict", key="options")
        options = dict(options) if options is not None else None
        mask = (
            np.ones(self.num_envs, np.bool_) if options is None else options.pop("reset_mask", np.ones(self.num_envs, np.bool_))
        )
        if not isinstance(mask, np.ndarray) or mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ConfigError(f"reset_mask is no array of {self.num_envs} booleans of which one is True", key="reset_mask")
        if self._unsure and not mask.all():
            raise ConfigError(
                "at first, and when a call has failed, reset all environments, not those of a reset_mask", key="reset_mask"
            )
        payload = {"only": mask.tolist(), "seeds": seeds}
        self._unsure = True
        answers = [
            answer
            for part, here in self._slices()
            for answer in part.reset({**{k: v[here] for k, v in payload.items()}, "options": options})
        ]
        infos: dict[str, Any] = {}
        read = self._parts[0].read_observation
        for i, answer in enumerate(answers):
            if answer is not None:
                observation, info, used = answer
                self._observations[i] = read(observation)
                self._seeds[i] = seeded_as(used)
                infos = self._add_info(infos, copy_tree(info), i)
        self._ended[mask] = False
        self._unsure = False
        return self._batch(), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], dict[str, Any]]:
        """Steps all; those whose episode ended with the last step are reset instead.

        Args:
            actions: ``[num_envs, ...]``, an element of `action_space`.

        Returns:
            Observations ``[num_envs, ...]``; rewards float64, terminations and truncations bool, all ``[num_envs]``; infos.

        Raises:
            CallError, PayloadError: as `RemoteEnv.step`, of the first that failed; then all must be reset.
            ConfigError: for actions that are no batch of so many; nothing was asked.
        """
        if self._unsure and not self.closed:
            text = "not all environments were reset since the beginning, or since a call failed; call reset()"
            raise CallRefused("step", self._parts[0].client.address, CallRefusal.GONE, text)
        to_tree = self._parts[0].actions.to_tree
        try:
            each = [to_tree(a) for a in iterate(self.action_space, actions)]
        except Exception as exc:  # Gymnasium goes through whatever it is given
            raise ConfigError(f"{actions!r:.80} is no batch of actions: {exc}", key="actions") from exc
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
        """What each environment renders.

        Raises:
            CallError: as `RemoteEnv.render`.
        """
        return tuple(copy_tree(self._ask_all("render", [(part, {}) for part in self._parts])))

    def close_extras(self, **kwargs: Any) -> None:
        """Gives the environments back."""
        for part in self._parts:
            part.close()

    def _ask_all(self, verb: str, asked: list[tuple[EnvLease, dict[str, Tree]]]) -> list[Tree]:
        """One call for each server, all at the same time."""
        if len(asked) == 1:
            part, payload = asked[0]
            answers: list[Tree] = part.call(verb, payload)
            return answers
        futures: list[Future[Tree]] = []
        try:
            for part, payload in asked:
                futures.append(part.submit(verb, payload))
        finally:
            wait(futures)  # all of them, though one fails: none may be under way when the next begins
        return [answer for future in futures for answer in future.result()]

    def _each_seed(self, seed: Any) -> list[str | None]:
        """As they travel."""
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, (int, np.integer)):
            seed = [int(seed) + i for i in range(self.num_envs)]
        if not isinstance(seed, (Sequence, np.ndarray)):
            raise ConfigError(f"the seed {seed!r:.60} is no number, and no sequence of them", key="seed")
        if len(seed) != self.num_envs:
            raise ConfigError(f"{len(seed)} seeds for {self.num_envs} environments", key="seed")
        for one in seed:
            if one is not None and (not isinstance(one, (int, np.integer)) or one < 0):
                raise ConfigError(f"the seed {one!r:.60} is no number from 0 on", key="seed")
        return [None if one is None else str(int(one)) for one in seed]

    def _slices(self) -> list[tuple[EnvLease, slice]]:
        out, at = [], 0
        for part in self._parts:
            out.append((part, slice(at, at + len(part.seats))))
            at += len(part.seats)
        return out

    def _batch(self) -> Any:
        empty: Any = create_empty_array(self.single_observation_space, n=self.num_envs, fn=np.zeros)
        return copy.deepcopy(concatenate(self.single_observation_space, self._observations, empty))
