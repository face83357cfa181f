"""What an actor knows from an earlier start: the last policy, if it is still one for this configuration."""

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
"""By how much a clock may have been set back without hiding how old a policy is."""


class LastPolicy:
    """The policy cache of one actor, which keeps the learner's terms with the policy. Used in the I/O thread."""

    def __init__(self, config: AgentConfig, path: Path, weight_subscriber: WeightSubscriber, counters: Counters) -> None:
        """Touches nothing yet.

        Args:
            config: the agent's.
            path: the cache's file.
            weight_subscriber: what holds the policy.
            counters: where a policy that can't be used is counted (``policy_cache.refused``).
        """
        self._config, self._weight_subscriber, self._counters = config, weight_subscriber, counters
        self._cache = PolicyCache(path)
        self._saved = (0, 0)

    def take_up(self) -> tuple[SessionParameters, float] | None:
        """Has the follower begin with it.

        Returns:
            The terms that it was trained under, and its age in seconds, infinite where it was saved by a clock that was ahead of
            this one; None when there is none to begin with.
        """
        cached = self._cache.load()
        if cached is None:
            return None
        config = self._config
        try:
            if cached.extras["client_id"] != config.client_id:
                raise ConfigError(f"it is of client {cached.extras['client_id']!r}", key="policy_cache")
            session_parameters = SessionParameters(**cached.extras["session_parameters"])
            for ours, theirs in (
                (config.observation_space, cached.spec.observation_space),
                (config.action_space, cached.spec.action_space),
            ):
                if ours is not None and ours != theirs:
                    raise ConfigError(f"it has the space {theirs}, this actor {ours}", key="policy_cache")
            self._weight_subscriber.take_up(cached.spec, cached.snapshot)
        except (KeyError, TypeError, RL4SysError) as exc:
            self._counters.add("policy_cache.refused")
            log.warning("%s: the policy in %s is not used: %s", config.client_id, config.cache_file, exc)
            return None
        age_s = time.time() - cached.saved_unix_s
        return session_parameters, max(0.0, age_s) if age_s > -CLOCK_SLACK_S else math.inf

    def save(self, session_parameters: SessionParameters | None, *, force: bool = False) -> None:
        """Saves the follower's policy, if there is one; by `force` at once, unless that has been done."""
        policy, spec = self._weight_subscriber.policy, self._weight_subscriber.spec
        if policy is None or spec is None or session_parameters is None:
            return
        if force and (policy.generation, policy.version) == self._saved:
            return
        extras = {"client_id": self._config.client_id, "session_parameters": asdict(session_parameters)}
        if self._cache.save(spec, policy.snapshot, extras, force=force):
            self._saved = policy.generation, policy.version
