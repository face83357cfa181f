"""What an agent is made of in one process, and how it waits for its I/O thread."""

from __future__ import annotations

import itertools
import logging
import os
import random
import time
import uuid
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor.builder import SegmentBuilder
from rl4sys_zmq.actor.handover import Handover
from rl4sys_zmq.actor.hosts import Hosts
from rl4sys_zmq.actor.inputs import Inputs
from rl4sys_zmq.actor.io import ActorIO
from rl4sys_zmq.actor.outbox import Outbox
from rl4sys_zmq.actor.trajectory import Life, RL4SysTrajectory
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import SessionState
from rl4sys_zmq.delivery.incarnation import first_incarnation
from rl4sys_zmq.errors import Closed, ConfigError, LearnerUnavailable, ProtocolError
from rl4sys_zmq.policies import Policy
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.values import PolicySpec, space_to_json
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Hello

if TYPE_CHECKING:
    from rl4sys_zmq.actor.remote import RemoteInference
    from rl4sys_zmq.security import UserKeys

__all__ = ["AGENTS", "AgentCore", "Baseline"]

log = logging.getLogger(__name__)

AGENTS: weakref.WeakSet[AgentCore] = weakref.WeakSet()
"""Those of this process, so that a forked child can tell them."""

Baseline = Callable[[NDArray[Any], NDArray[np.bool_] | None], Any]


class AgentCore(Resource):
    """The state of an agent; the floors above it act with it.

    `_life` is what trajectories and actions of this agent in this process know. `_fast` is the same while requests need no look
    at the agent's own state, else None: closed, just forked, or asking the learner for actions (`_remote`).
    """

    actor_id: str
    config: AgentConfig
    _io: ActorIO
    _spec: PolicySpec
    _inputs: Inputs
    _rollout: int
    _life: Life
    _fast: Life | None = None
    _remote: RemoteInference | None = None

    def __init__(self, config: AgentConfig, keys: UserKeys | None, baseline: Baseline | None) -> None:
        self.config = config
        self._keys = keys
        self._baseline = baseline
        self._counters = Counters()
        self._drops = config.overflow == "drop_oldest"
        self._stores = config.explore
        self._max_age_s = config.policy_max_age_s if config.on_stale != "keep" else None
        self._closed = False
        self._forked = False

    def _begin_life(self, config: AgentConfig, parent: ActorIO | None) -> None:
        """Makes everything that belongs to one process: the queue, the I/O thread and its sockets, the random streams."""
        self.actor_id = config.actor_id or uuid.uuid4().hex
        self._outbox = Outbox(config.queue_items, config.queue_bytes, drops=self._drops)
        hello = self._hello()
        try:
            encode(hello)
        except ProtocolError as exc:
            raise ConfigError(f"the configuration cannot travel: {exc.detail}", key="algorithm_parameters") from exc
        self._io = ActorIO(config, hello, self._outbox, self._keys)
        if parent is not None:
            self._io.inherit(parent)
        self._follower = self._io.follower
        seed = config.seed if config.seed is not None else random.SystemRandom().getrandbits(128)
        self._hosts = Hosts(seed if parent is None else seed << 32 | os.getpid(), itertools.count())
        self._episode_ids = random.Random()
        self._handover = Handover(self._outbox, config.reward_timeout_s, self._io.nudge)
        self._life = Life(self, self._handover)
        self._fast = self._life if config.inference == "local" else None
        self._remote = _remote(config, self._counters)
        self._io.start()
        self._io.opened.wait()

    def _after_fork(self) -> None:
        """In a forked child: becomes another actor. The parent keeps the spool, the sockets and the running trajectories."""
        self._forked = False
        if self._closed:
            return
        if self.config.spool is not None:
            log.warning("a forked child has no spool: that of its parent is in use")
        self._counters.add("forks")
        self._begin_life(replace(self.config, actor_id=None, spool=None, policy_cache=None), self._io)

    def _hello(self) -> Hello:
        config = self.config
        spaces = (config.observation_space, config.action_space)
        observation, action = (space_to_json(s) if s is not None else {} for s in spaces)
        return Hello(
            config.client_id,
            self.actor_id,
            first_incarnation(time.time(), random.SystemRandom()),
            0,
            0,
            0,
            config.algorithm_name or "",
            dict(config.algorithm_parameters),
            config.type or "",
            observation,
            action,
            config.explore,
            "rl4sys_zmq",
            weights=config.weights.to_json(),
        )

    @property
    def _policy(self) -> Policy:
        policy = self._follower.policy
        assert policy is not None  # the constructor has waited for the first
        return policy

    @property
    def policy_age_s(self) -> float:
        """For how many seconds the policy has not been known to be the newest."""
        return max(0.0, time.monotonic() - self._io.current_at)

    # ---- segments

    def _begin(self) -> RL4SysTrajectory:
        return RL4SysTrajectory(
            self._life, self._episode_ids.getrandbits(64), self._builder(self._rollout, 0), self.config.max_traj_length
        )

    def _builder(self, rows: int, index: int) -> SegmentBuilder:
        return SegmentBuilder(self._spec.observation_space, self._spec.action_space, rows, index)

    def _must_cut(self, builder: SegmentBuilder) -> bool:
        steps = builder.steps
        return steps >= builder.limit or (steps > 0 and builder.generation != self._policy.generation)

    def _cut(
        self, traj: RL4SysTrajectory, observation: NDArray[Any], mask: NDArray[np.bool_] | None, *, follows: bool = True
    ) -> SegmentBuilder:
        """Ends the running segment, of which `observation` is the one to bootstrap from, and begins the next.

        With `follows` False steps are missing between the two: their indices are no neighbours, so nobody joins them.
        """
        builder = traj._builder
        builder.close(observation, mask)
        traj._cap_left -= builder.steps
        if traj._cap_left <= 0:
            builder.capped = True
            traj._cap_left = self.config.max_traj_length
        self._handover.close(traj, builder)
        traj._entered = False
        traj._seen = None
        traj._builder = self._builder(min(self._rollout, traj._cap_left), builder.segment_index + (1 if follows else 2))
        return traj._builder

    # ---- waiting: with ``overflow: wait``, and in calls that say that they wait

    def _enter(self, steps: int) -> None:
        """At the start of a segment: with ``overflow: wait``, waits for credit and for the version that goes with it."""
        if self._drops or not self._stores:
            return
        io = self._io
        if self._wish(steps) and self._granted():
            return
        io.waiting += 1
        io.wake()
        try:
            self._wait(lambda: self._wish(steps) and self._granted(), self.config.wait_timeout_s)
        finally:
            io.waiting -= 1

    def _wish(self, steps: int) -> bool:
        """Asks for credit beyond what all host threads have finished by now."""
        io = self._io
        wanted = self._outbox.put_steps + 2 * steps
        if wanted > io.want_steps:
            io.want_steps = wanted
            io.nudge()
        return True

    def _granted(self) -> bool:
        gate, policy = self._io.gate, self._policy
        if self._outbox.put_steps >= gate.limit_steps:
            return False
        return policy.generation == gate.generation and policy.version >= gate.min_version

    def _wait(self, ready: Callable[[], bool], timeout_s: float, stage: str | Callable[[], str] | None = None) -> None:
        """Waits for a condition that the I/O thread brings about; its errors and `close` end the wait."""
        io = self._io
        deadline = time.monotonic() + timeout_s
        io.wake()
        with io.changed:
            while not ready():
                error = io.open_error or io.gate.error
                if error is not None:
                    raise error.with_traceback(None)
                if self._closed and not io.flushing:
                    raise Closed("this agent was closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    words = stage() if callable(stage) else stage
                    hint = f"it was waiting for {io.gate.stage}" if words and io.session.state is not SessionState.JOINED else ""
                    raise LearnerUnavailable(self.config.address, words or io.gate.stage, timeout_s, hint)
                io.changed.wait(min(left, 0.25))


def _remote(config: AgentConfig, counters: Counters) -> RemoteInference | None:
    if config.inference == "local":
        return None
    from rl4sys_zmq.actor.remote import RemoteInference

    return RemoteInference(config, counters)


def _fork() -> None:
    for agent in list(AGENTS):
        agent._forked = True
        agent._fast = None


os.register_at_fork(after_in_child=_fork)
