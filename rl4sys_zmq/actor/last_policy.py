"""The last policy of an earlier start, if it still fits this configuration."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import asdict
from pathlib import Path

from rl4sys_zmq.actor.policy_cache import PolicyCache
from rl4sys_zmq.actor.session_parameters import SessionParameters
from rl4sys_zmq.actor.weight_subscriber import WeightSubscriber
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import ConfigError, RL4SysError

__all__ = ["LastPolicy"]

log = logging.getLogger(__name__)

CLOCK_SLACK_S = 60.0
"""The lead of a cached policy's timestamp over the clock up to which its age counts as 0, in seconds."""


class LastPolicy:
    """The policy cache of one actor, which keeps the session parameters with the policy. Used in the I/O thread.

    It counts cached policies that cannot be used (``policy_cache.refused``).
    """

    def __init__(self, config: AgentConfig, path: Path, weight_subscriber: WeightSubscriber, counters: Counters) -> None:
        self._config, self._weight_subscriber, self._counters = config, weight_subscriber, counters
        self._cache = PolicyCache(path)
        self._saved = (0, 0)

    def take_up(self) -> tuple[SessionParameters, float] | None:
        """Make the cached policy the current one.

        Returns:
            The session parameters of the policy and its age in seconds. The age is infinite if the clock that saved it was
            ahead of this one. None if no usable policy is cached.
        """
        cached = self._cache.load()
        if cached is None:
            return None
        config = self._config
        try:
            if cached.extras["client_id"] != config.client_id:
                raise ConfigError(f"it belongs to client {cached.extras['client_id']!r}", key="policy_cache")
            session_parameters = SessionParameters(**cached.extras["session_parameters"])
            for ours, theirs in (
                (config.observation_space, cached.spec.observation_space),
                (config.action_space, cached.spec.action_space),
            ):
                if ours is not None and ours != theirs:
                    raise ConfigError(f"its space is {theirs}, this actor's is {ours}", key="policy_cache")
            self._weight_subscriber.take_up(cached.spec, cached.snapshot)
        except (KeyError, TypeError, RL4SysError) as exc:
            self._counters.add("policy_cache.refused")
            log.warning("%s: the policy in %s is not used: %s", config.client_id, config.cache_file, exc)
            return None
        age_s = time.time() - cached.saved_unix_s
        return session_parameters, max(0.0, age_s) if age_s > -CLOCK_SLACK_S else math.inf

    def save(self, session_parameters: SessionParameters | None, *, force: bool = False) -> None:
        """Save the current policy, if there is one. `force` saves it at once, unless this version is already saved."""
        policy, spec = self._weight_subscriber.policy, self._weight_subscriber.spec
        if policy is None or spec is None or session_parameters is None:
            return
        if force and (policy.generation, policy.version) == self._saved:
            return
        extras = {"client_id": self._config.client_id, "session_parameters": asdict(session_parameters)}
        if self._cache.save(spec, policy.snapshot, extras, force=force):
            self._saved = policy.generation, policy.version
