"""Actions from the learner's inference service. A host thread calls the service and waits for the answer until a deadline."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import (
    CallError,
    CallFailed,
    CallRefusalReason,
    CallRefused,
    CallTimeout,
    Closed,
    RL4SysError,
)
from rl4sys_zmq.liveness import INFERENCE_RETRY_S
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies.base import Mask
from rl4sys_zmq.private import fixed_path
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.transports import Address

if TYPE_CHECKING:
    from rl4sys_zmq.rpc import Caller

log = get_logger(__name__)

NOT_READY_RETRY_S = 0.01
"""The pause before the next call of a learner that has started but has no policy so far, in seconds."""
MIN_TIMEOUT_S = 0.001

Answer = tuple[NDArray[Any], NDArray[Any], NDArray[np.float32], tuple[int, int]]
"""Raw actions ``[N, *act]``, actions for the environment, log-probabilities ``[N]``, and (generation, version)."""


class InferenceCaller(Resource):
    """The connection to the learner's inference service. Several host threads can call `ask` at once."""

    def __init__(self, config: AgentConfig, counters: Counters) -> None:
        self.required = config.inference == "remote"  # no local policy could choose instead
        self._config, self._counters = config, counters
        self._keys = fixed_path(config.keys) if config.keys is not None else None
        self._method = f"policy/{config.client_id}"
        self._lock = threading.Lock()
        self._caller: Caller | None = None
        self._new_address = ""
        self._closed = False
        self._not_before = 0.0

    def ask(self, new_address: str, observations: NDArray[Any], masks: Mask) -> Answer | None:
        """Return raw actions, actions, log-probabilities and (generation, version) from the service at `new_address`.

        Return None for some seconds after a failed call: the local policy must then choose. With ``inference: remote``, raise
        CallError instead.
        """
        if not self.required and time.monotonic() < self._not_before:
            self._counters.add("inference.fallbacks")
            return None
        try:
            answer = self._ask(new_address, observations, masks)
        except RL4SysError as exc:
            self._counters.add("inference.timeouts" if isinstance(exc, CallTimeout) else "inference.errors")
            if self.required:
                if isinstance(exc, CallError):
                    raise
                raise CallFailed(self._method, new_address, type(exc).__name__, str(exc)) from exc
            log.info("no action from %s, so the local policy acts: %s", new_address, exc)
            self._not_before = time.monotonic() + INFERENCE_RETRY_S
            self._counters.add("inference.fallbacks")
            return None
        self._counters.add("inference.actions", len(observations))
        return answer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            client, self._caller = self._caller, None
        if client is not None:
            client.close()

    def _ask(self, new_address: str, observations: NDArray[Any], masks: Mask) -> Answer:
        payload = {"obs": observations, "mask": masks, "explore": self._config.explore}
        deadline = time.monotonic() + self._config.inference_timeout_s
        while True:
            client = self._caller
            if client is None or new_address != self._new_address:
                client = self._dial(new_address)
            try:
                reply = client.call(self._method, payload, max(deadline - time.monotonic(), MIN_TIMEOUT_S))
                break
            except Closed:
                if client is self._caller:
                    raise
                new_address = self._new_address  # another thread has the new address of the service
            except CallRefused as exc:
                left_s = deadline - time.monotonic()
                if exc.code is not CallRefusalReason.UNKNOWN or left_s <= 0:
                    raise
                time.sleep(min(NOT_READY_RETRY_S, left_s))  # a restarted learner serves before it has its policies
        try:
            return _read(reply, len(observations))
        except (LookupError, TypeError, ValueError) as exc:
            raise CallFailed(self._method, client.address, type(exc).__name__, f"the answer is malformed: {exc}") from exc

    def _dial(self, new_address: str) -> Caller:
        from rl4sys_zmq.rpc import Caller  # most actors never need it

        if not new_address:
            raise CallFailed(self._method, self._config.address, "LearnerUnavailable", "the learner offers no inference")
        with self._lock:
            if self._closed:
                raise Closed("the agent is closed")
            before = self._caller
            if before is not None and self._new_address == new_address:
                return before
            address = Address.parse(new_address).seen_from(Address.parse(self._config.address))
            client = self._caller = Caller(address, keys=self._keys)
            self._new_address = new_address
        if before is not None:
            before.close()
        return client


def _read(reply: Any, count: int) -> Answer:
    raw, act, log_probs = reply["raw"], reply["act"], reply["log_prob"]
    stamp = reply["generation"], reply["version"]
    if not (len(raw) == len(act) == len(log_probs) == count and np.isfinite(log_probs).all()):
        raise ValueError("its log-probabilities are not finite, or it has the wrong number of actions")
    if not all(isinstance(part, np.ndarray) for part in (raw, act, log_probs)) or not all(type(n) is int for n in stamp):
        raise TypeError("its actions or its version have the wrong type")
    return raw, act.copy(), log_probs, stamp
