"""What an agent consists of in one process, what each host thread has of its own, and how those wait for the I/O thread."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rl4sys_zmq.actor.io import ActorIO
from rl4sys_zmq.actor.outbox import Outbox
from rl4sys_zmq.actor.remote import RemoteInference
from rl4sys_zmq.actor.segments import PendingRewards, Stamp
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.delivery import SessionState
from rl4sys_zmq.delivery.incarnation import first_incarnation
from rl4sys_zmq.errors import Closed, ConfigError, LearnerUnavailable, ProtocolError
from rl4sys_zmq.policies import Act, Policy, Sampler, bind
from rl4sys_zmq.values import space_to_json
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.messages import Hello

if TYPE_CHECKING:
    from rl4sys_zmq.security import UserKeys

__all__ = ["AgentContext", "ThreadState"]


class ThreadState:
    """State of one host thread of one agent.

    Attributes:
        sampler: the thread's random numbers.
        policy: the policy that `act` is bound to, None at first.
        act: the `act` of that policy with this thread's numbers and buffers.
        stamp: the version of that policy; all actions of the thread share the object.
        last_act: the newest action.
        block_left: the number of batched requests until segments are cut together.
        block_width: the number of environments in the newest batched request.
    """

    __slots__ = ("_explore", "_owner", "act", "block_left", "block_width", "last_act", "policy", "sampler", "stamp")

    act: Act
    stamp: Stamp

    def __init__(self, seed: int, explore: bool, owner: object) -> None:
        self._explore, self._owner = explore, owner
        self.sampler = Sampler(seed)
        self.policy: Policy | None = None
        self.last_act: Any = None
        self.block_left = 0
        self.block_width = 0

    def take(self, policy: Policy) -> None:
        """Act by `policy` from now on."""
        if policy is not self.policy:
            self.act = bind(policy, self.sampler, self._explore)
            self.stamp = Stamp(policy.generation, policy.version, self._owner)
            self.policy = policy


class ThreadStates(threading.local):
    """The `ThreadState` of the current thread. Its seed is made of one seed and of the order of first use."""

    def __init__(self, seed: int, numbers: itertools.count[int], explore: bool, owner: object) -> None:
        self.state = ThreadState(seed << 32 | next(numbers), explore, owner)


class AgentContext:
    """What an agent consists of in one process. A forked child makes another one.

    Attributes:
        config: the agent's; in a forked child without what only the parent may use.
        actor_id: the actor's name on the wire.
        owner: identifies the agent; a forked child keeps its parent's.
        counters: what happened on the host's side.
        outbox: finished segments on their way to the I/O thread.
        io: the I/O thread, which owns the sockets, the spool and the policy cache.
        threads: the state of each host thread.
        pending: closed segments that wait for rewards.
        remote: asks the learner for actions; None with ``inference: local``.
        closed: the agent was closed, so no thread may wait any more.
    """

    def __init__(
        self, config: AgentConfig, keys: UserKeys | None, counters: Counters, parent: AgentContext | None = None
    ) -> None:
        """Start the I/O thread, and wait until it has opened what is on the disk.

        Args:
            config: the agent's.
            keys: the keys to use, None for a learner without keys.
            counters: where the host's side counts.
            parent: in a forked child, the context that the parent process uses. The child begins with its policy.

        Raises:
            ConfigError: If the configuration cannot be encoded.
        """
        self.config = config
        self.actor_id = config.actor_id or uuid.uuid4().hex
        self.owner: object = object() if parent is None else parent.owner
        self.counters = counters
        self.closed = False
        self._waits = config.overflow == "wait" and config.explore
        self.outbox = Outbox(config.queue_items, config.queue_bytes, drops=config.overflow == "drop_oldest")
        hello = _hello(config, self.actor_id)
        try:
            encode(hello)
        except ProtocolError as exc:
            raise ConfigError(f"the configuration cannot travel: {exc.detail}", key="algorithm_parameters") from exc
        self.io = ActorIO(config, hello, self.outbox, keys)
        seed = config.seed if config.seed is not None else random.SystemRandom().getrandbits(128)
        if parent is not None:
            self.io.inherit(parent.io)
            seed = seed << 32 | os.getpid()
        self.threads = ThreadStates(seed, itertools.count(), config.explore, self.owner)
        self.pending = PendingRewards(self.outbox, config.reward_timeout_s, self.io.wake_up)
        self.remote = RemoteInference(config, counters) if config.inference != "local" else None
        self.io.start()
        self.io.opened.wait()

    @property
    def policy(self) -> Policy:
        """The newest policy; there is one once the constructor of the agent has returned."""
        policy = self.io.weight_subscriber.policy
        assert policy is not None
        return policy

    @property
    def policy_age_s(self) -> float:
        """The seconds since the policy was last known to be the newest."""
        return max(0.0, time.monotonic() - self.io.current_at)

    def join(self, timeout_s: float) -> None:
        """Wait until the learner has answered and there is a policy.

        Raises:
            LearnerUnavailable, HandshakeRefused, ClientFailed, SpoolError: If that fails.
        """
        self.wait(lambda: self.io.policy is not None and self.io.session_parameters is not None, timeout_s)
        if self.io.spool is not None:
            self.actor_id = self.io.spool.actor_id

    def admit(self, steps: int) -> None:
        """Wait for the credit and the version that a segment of `steps` needs; only with ``overflow: wait``.

        Raises:
            LearnerUnavailable, ClientFailed: If the learner does not grant them within ``wait_timeout_s``.
        """
        if not self._waits:
            return
        io = self.io
        if self._granted(steps):
            return
        io.waiting += 1
        io.wake()
        try:
            self.wait(lambda: self._granted(steps), self.config.wait_timeout_s)
        finally:
            io.waiting -= 1

    def _granted(self, steps: int) -> bool:
        """Ask for credit beyond what all host threads have finished by now, and tell whether a segment may begin."""
        io, finished = self.io, self.outbox.put_steps
        wanted = finished + 2 * steps
        if wanted > io.want_steps:
            io.want_steps = wanted
            io.wake_up()
        credit_gate, policy = io.credit_gate, self.policy
        return (
            finished < credit_gate.limit_steps
            and policy.generation == credit_gate.generation
            and policy.version >= credit_gate.min_version
        )

    def wait(self, ready: Callable[[], bool], timeout_s: float, stage: str | Callable[[], str] | None = None) -> None:
        """Wait for a condition that the I/O thread brings about; its errors and `close` end the wait.

        Args:
            ready: the condition.
            timeout_s: the longest wait, in seconds.
            stage: names what is waited for, in the error; None: what the I/O thread waits for.

        Raises:
            LearnerUnavailable: If the condition does not hold in time.
            Closed: If another thread closes the agent.
            RL4SysError: The error of the I/O thread.
        """
        io = self.io
        deadline = time.monotonic() + timeout_s
        io.wake()
        with io.changed:
            while not ready():
                error = io.open_error or io.credit_gate.error
                if error is not None:
                    raise error.with_traceback(None)
                if self.closed and not io.flushing:
                    raise Closed("this agent was closed")
                left = deadline - time.monotonic()
                if left <= 0:
                    words = stage() if callable(stage) else stage
                    hint = (
                        f"it was waiting for {io.credit_gate.stage}"
                        if words and io.session.state is not SessionState.JOINED
                        else ""
                    )
                    raise LearnerUnavailable(self.config.address, words or io.credit_gate.stage, timeout_s, hint)
                io.changed.wait(min(left, 0.25))


def _hello(config: AgentConfig, actor_id: str) -> Hello:
    spaces = (config.observation_space, config.action_space)
    observation, action = (space_to_json(s) if s is not None else {} for s in spaces)
    return Hello(
        config.client_id,
        actor_id,
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
