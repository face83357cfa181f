"""The actor's light client: what somebody else's program holds.

With ``overflow: drop_oldest`` no call waits for anything but the constructor and those that say so (`wait_version`, `flush`,
`close`): acting is in-process work on one immutable policy, and finished segments go into a bounded queue that the I/O thread
empties.

An agent is built in storeys, a module for each: `core` (what it consists of, and waiting), `standins` (answers without a policy),
`acting` (one environment), `batch` (many), and here its life and its learner.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.batch import BatchActing
from rl4sys_zmq.actor.core import AGENTS
from rl4sys_zmq.actor.inputs import Inputs
from rl4sys_zmq.actor.terms import Terms
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.errors import ConfigError, LearnerUnavailable, RL4SysError
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.values import PolicySpec

if TYPE_CHECKING:
    from rl4sys_zmq.transports import ClientKeys

__all__ = ["RL4SysAgent"]

log = logging.getLogger(__name__)


class RL4SysAgent(BatchActing):
    """Acts with the learner's newest policy and sends what happened back to it.

    ::

        with RL4SysAgent(conf_path="luna_conf.json") as agent:
            traj = None
            while running:
                traj, action = agent.request_for_action(traj, observation)
                agent.add_to_trajectory(traj, action)
                action.update_reward(do(action.act))
            agent.mark_end_of_trajectory(traj, action)

    Several threads may use one agent, each with trajectories of its own. The constructor waits for the learner, at most
    ``connect_timeout_s``; not if a policy is there from an earlier start (`AgentConfig.policy_cache`).

    A forked child may go on with the agent: at its first call there it becomes another actor, with sockets of its own, the
    policy that was held, and no spool. Trajectories that were running belong to the parent.
    """

    def __init__(
        self,
        conf_path: str | os.PathLike[str] | None = None,
        *,
        config: AgentConfig | None = None,
        debug: bool = False,
        baseline: Callable[[NDArray[Any], NDArray[np.bool_] | None], Any] | None = None,
    ) -> None:
        """Joins the learner.

        Args:
            conf_path: a configuration file, JSON or YAML; or
            config: the configuration itself.
            debug: logs this package at level DEBUG (where the host's logging shows it).
            baseline: what to do instead of a policy that is stale (``on_stale: baseline``) or unusable, from the observation
                and the mask; None: an action that does little.

        Raises:
            ConfigError: for a wrong configuration, a plugin that cannot be imported, a policy of a kind that is not registered
                here, keys that can't be used, or an ``image_codec`` for what are no images.
            SpoolError: when the spool can't be used, or another process uses it.
            LearnerUnavailable: when no learner answers in time; the message says what was waited for.
            HandshakeRefused: when the learner refuses; the message names the field and both values.
            ClientFailed: when this client's learner thread has stopped.
        """
        if (conf_path is None) == (config is None):
            raise ConfigError("give either conf_path or config", key="conf_path")
        config = config if config is not None else AgentConfig.load(cast(str, conf_path))
        if debug:
            logging.getLogger("rl4sys_zmq").setLevel(logging.DEBUG)
        import_plugins(config.plugins)
        super().__init__(config, _keys(config), baseline)
        self._begin_life(self.config, None)
        try:
            self._wait(self._joined, self.config.connect_timeout_s)
            self.actor_id = self._io.spool.actor_id if self._io.spool is not None else self.actor_id
            self._spec = cast(PolicySpec, self._io.spec)
            self.config.check_images(self._spec.observation_space)
            self._inputs = Inputs(self._spec.observation_space, self._spec.action_space)
            terms = cast(Terms, self._io.terms)
            learners = terms.rollout_length or 128
            self._rollout = min(self.config.rollout_length or learners, self.config.max_traj_length, terms.max_segment_steps)
        except BaseException:
            self.close(0.0)
            raise
        AGENTS.add(self)

    # ---- the learner

    @property
    def version(self) -> int:
        """The version of the policy that acts."""
        return self._policy.version

    @property
    def generation(self) -> int:
        """The generation of the policy that acts."""
        return self._policy.generation

    @property
    def digest(self) -> int:
        """The xxh3-64 digest of that policy's weights."""
        return self._policy.snapshot.digest

    @property
    def spec(self) -> PolicySpec:
        """The policy's description: its spaces and layers."""
        return self._spec

    def wait_version(self, version: int, timeout_s: float) -> int:
        """Waits until the policy has `version` or a later one; returns the one it has.

        Raises:
            LearnerUnavailable: when that takes longer than `timeout_s` seconds.
            HandshakeRefused, ClientFailed: when it will not come.
        """
        self._wait(lambda: self.version >= version, timeout_s, f"version {version}")
        return self.version

    def rollback(self) -> int:
        """Goes back to the version before the current one, which the host found to be bad; returns the version that acts now.

        The bad one is not taken up again; the next that the learner publishes is.

        Raises:
            LearnerUnavailable: when no earlier version is held.
        """
        bad = self._policy
        previous = self._io.roll_back(bad)
        if previous is None:
            raise LearnerUnavailable(self.config.address, f"a version to go back to from {bad.version}", 0.0)
        self._counters.add("rollbacks")
        return previous.version

    def flush(self, timeout_s: float) -> None:
        """Waits until every finished segment is durable on the learner.

        Raises:
            LearnerUnavailable: when that takes longer than `timeout_s` seconds; it says how many are left.
            HandshakeRefused, ClientFailed: when it will not happen.
        """
        self._io.flushing += 1
        try:
            self._wait(
                lambda: self._io.idle and self._io.gate.error is None, timeout_s, lambda: f"the ack of {self._in_actor} segments"
            )
        finally:
            self._io.flushing -= 1

    def stats(self) -> dict[str, Any]:
        """What this actor has done and where its segments are, as a copy.

        ``submitted = dropped_at_source + in_actor + refused + accepted`` holds whenever nothing is on its way.
        """
        session, io, supply = self._io.session, self._io, self._io.supply
        dropped, spool = supply.dropped, self._io.spool
        refused = session.verdicts["refused"]
        gate_error = io.gate.error
        policy = io.policy
        return {
            "client_id": self.config.client_id,
            "actor_id": self.actor_id,
            "state": session.state.value,
            "error": str(gate_error) if gate_error is not None else "",
            "generation": policy.generation if policy is not None else 0,
            "version": policy.version if policy is not None else -1,
            "policy_age_s": round(self.policy_age_s, 3) if policy is not None else None,
            "submitted": supply.submitted,
            "steps": self._outbox.put_steps,
            "dropped_at_source": int(sum(dropped.values())),
            "dropped": dropped,
            "in_actor": self._in_actor,
            "in_flight": session.in_flight,
            "durable": session.durable,
            "refused": refused,
            "accepted": session.accepted,
            "in_doubt": session.in_doubt,
            "verdicts": dict(session.verdicts),
            "alarms": dict(io.follower.alarms),
            "credit_steps": max(0, session.credit_steps - session.sent_steps),
            "waiting_for_rewards": len(self._handover.late),
            "spool": None
            if spool is None
            else {
                "items": len(spool),
                "bytes": spool.nbytes,
                "memory_items": spool.memory_items,
                "error": spool.error or "",
                **spool.counters.snapshot(),
            },
            "counters": {**self._counters.snapshot(), **io.counters.snapshot()},
        }

    def close(self, timeout_s: float = 2.0) -> None:
        """Sends what is finished, says goodbye and ends the I/O thread, within `timeout_s` seconds and at most half a second.

        What the learner has not taken by then is counted (``in_actor`` in `stats`) and dropped, or with a spool stays in it for
        the next start. A second call does nothing.
        """
        if self._forked:  # a child that never used it has nothing to close
            self._closed, self._fast = True, None
            return
        if self._closed and not self._io.alive:
            return
        self._closed, self._fast = True, None
        deadline = time.monotonic() + timeout_s
        if timeout_s > 0 and not self._io.idle and self._io.gate.error is None:
            try:
                self.flush(timeout_s)
            except RL4SysError as exc:
                if self._io.spool is not None:
                    log.info("closed with %d segments in the spool, for the next start: %s", self._in_actor, exc)
                else:
                    log.warning("closed with %d segments undelivered: %s", self._in_actor, exc)
        if self._remote is not None:
            self._remote.close()
        self._io.stop()
        if self._io.join(max(0.5, deadline - time.monotonic())):
            self._io.release()
        AGENTS.discard(self)

    # ---- the rest

    @property
    def _in_actor(self) -> int:
        return self._io.waiting_segments + self._io.session.unreceived

    def _joined(self) -> bool:
        return self._io.policy is not None and self._io.terms is not None


def _keys(config: AgentConfig) -> ClientKeys | None:
    if config.keys is None:
        return None
    from rl4sys_zmq.transports import read_client_keys

    return read_client_keys(config.keys)[1]
