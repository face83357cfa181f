"""The inference service, which computes actions for actors without a policy of their own.

An actor calls the method ``policy/CLIENT_ID`` with these arguments:

- ``obs``: ``N`` observations, ``[N, *obs]``.
- ``mask``: Bool ``[N, n]`` for ``n`` discrete actions, True for each allowed action; or None.
- ``explore``: True to sample actions; False for the policy's best actions.

The reply contains:

- ``raw``: The actions as the policy chose them, ``[N, *act]``. Training uses these.
- ``act``: The actions for the environment, clipped or squashed into the bounds, ``[N, *act]``.
- ``log_prob``: The log-probability of each action, float32 ``[N]``.
- ``generation``, ``version``: The version of the policy that acted.

Calls for one client that arrive during a forward pass share the next forward pass.
"""

from __future__ import annotations

import functools
import itertools
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import CallbackStuck, CallRefusalReason, MaskError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies import Policy, RandomSource, build_policy, local_only_reason
from rl4sys_zmq.resource import Resource
from rl4sys_zmq.rpc import BatchLimits, CallRefusedByCallback, Server
from rl4sys_zmq.values import DictSpace, DiscreteSpace, PolicySnapshot, PolicySpec, TupleSpace
from rl4sys_zmq.values.arrays import fits_float32
from rl4sys_zmq.values.observations import integer_bounds

log = get_logger(__name__)

CLOSE_S = 1.0
MAX_ROWS = 4096
"""Largest number of observations in one call."""
BATCHING = BatchLimits(max_size=64)


def method_of(client_id: str) -> str:
    """Return the name of the method that computes actions with this client's policy."""
    return f"policy/{client_id}"


class InferenceService(Resource):
    """An RPC server that computes actions with the newest version of each client's policy, in its own threads.

    Attributes:
        address: The URI that the server is bound to; empty before `start`.
        asked: The ids of the clients for which a call has arrived, without policies that only actors can run.
    """

    def __init__(self, bind: str, keys: Path | None, users: Path | None, *, insecure: bool) -> None:
        self.address = ""
        self.asked: set[str] = set()
        self._server = Server(bind, name="inference", keys=keys, users=users, insecure=insecure)
        self._offered: dict[str, tuple[PolicySpec, PolicySnapshot]] = {}
        self._policies: dict[str, Policy] = {}
        self._concurrency_groups: dict[str, str] = {}
        self._lock = threading.Lock()
        self._sampler = RandomSource(secrets.randbits(64))

    def start(self) -> None:
        """Bind the server and start its threads."""
        self.address = self._server.start().address

    def offer(self, client_id: str, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        """Compute this client's actions with a new version of its policy from now on. The next request builds the policy."""
        first = client_id not in self._offered
        self._offered[client_id] = spec, snapshot
        if first:
            act = functools.partial(self._act, client_id)
            taken = self._concurrency_groups.values()
            group = next(f"policy-{n}" for n in itertools.count(1) if f"policy-{n}" not in taken)
            self._concurrency_groups[client_id] = group
            self._server.register(method_of(client_id), act, concurrency_group=group, batching=BATCHING, client_id=client_id)

    def forget(self, client_id: str) -> None:
        """Remove a client's policy, its method and its concurrency group. Do nothing if the client is unknown."""
        if self._offered.pop(client_id, None) is not None:
            self._server.unregister(method_of(client_id))
            self._policies.pop(client_id, None)
            self.asked.discard(client_id)
            del self._concurrency_groups[client_id]

    def report(self) -> dict[str, Any]:
        """Return the part of the learner's status about this service."""
        return self._server.status()

    def close(self) -> None:
        """Stop the server. If a forward pass runs for more than `CLOSE_S` seconds, its thread closes the server at its end."""
        try:
            self._server.stop(CLOSE_S)
        except CallbackStuck as exc:
            log.warning("%s", exc)

    def _act(self, client_id: str, payloads: Sequence[Any]) -> list[Any]:
        """Compute the actions for a batch of calls: one forward pass for each value of `explore` that occurs."""
        offered = self._offered.get(client_id)
        if offered is None:  # the client was forgotten while these calls waited
            return [CallRefusedByCallback(CallRefusalReason.UNKNOWN, f"client {client_id!r} was forgotten") for _ in payloads]
        spec, snapshot = offered
        policy = self._policies.get(client_id)
        if policy is None or policy.snapshot is not snapshot:
            policy = self._policies[client_id] = build_policy(spec, snapshot)
        if reason := local_only_reason(spec):
            return [_invalid(reason) for _ in payloads]
        self.asked.add(client_id)
        answers: list[Any] = [None] * len(payloads)
        groups: dict[bool, dict[int, Rows]] = {}
        for index, payload in enumerate(payloads):
            try:
                rows = _parse_call(payload, spec)
            except CallRefusedByCallback as refusal:
                answers[index] = refusal
            else:
                groups.setdefault(rows[2], {})[index] = rows
        for explore, members in groups.items():
            asked = list(members.values())
            observations = asked[0][0] if len(asked) == 1 else np.concatenate([rows[0] for rows in asked])
            masks = None
            if any(rows[1] is not None for rows in asked):
                masks = np.concatenate([_all_allowed(rows[0], spec) if rows[1] is None else rows[1] for rows in asked])
            with self._lock:  # the concurrency groups of all clients share the random generator
                raw, act, log_probs = policy.act_batch(observations, masks, self._sampler, explore)
            start = 0
            for index, rows in members.items():
                part = slice(start, start := start + len(rows[0]))
                answers[index] = {
                    "raw": raw[part],
                    "act": act[part],
                    "log_prob": log_probs[part],
                    "generation": policy.generation,
                    "version": policy.version,
                }
        return answers


Rows = tuple[NDArray[Any], NDArray[np.bool_] | None, bool]


def _invalid(reason: str) -> CallRefusedByCallback:
    return CallRefusedByCallback(CallRefusalReason.INVALID, reason)


def _parse_call(payload: Any, spec: PolicySpec) -> Rows:
    """Return the observations, the masks (or None) and the `explore` of a call, with the same checks as inside an actor."""
    if not isinstance(payload, dict) or set(payload) != {"obs", "mask", "explore"}:
        raise _invalid("the payload must be a dict with the keys obs, mask and explore")
    obs, mask, explore = payload["obs"], payload["mask"], payload["explore"]
    observed = spec.observation_space
    shape = observed.shape
    if not isinstance(obs, np.ndarray) or obs.shape[1:] != shape or not 1 <= len(obs) <= MAX_ROWS:
        kind = getattr(obs, "shape", type(obs).__name__)
        raise _invalid(f"obs is {kind}; expected the shape [N, *{list(shape or ())}], N from 1 to {MAX_ROWS}")
    if obs.dtype != observed.dtype:
        raise _invalid(f"obs is {obs.dtype}; expected {np.dtype(observed.dtype)}")
    if obs.dtype.kind == "f" and not fits_float32(obs).all():
        raise _invalid("obs has a number that is not finite in float32")
    bounds = None if isinstance(observed, DictSpace | TupleSpace) else integer_bounds(observed)
    if bounds is not None and not ((obs >= bounds[0]) & (obs <= bounds[1])).all():
        raise _invalid(f"obs has an integer outside {observed!s:.80}")
    if type(explore) is not bool:
        raise _invalid("explore must be true or false")
    if mask is None:
        return obs, None, explore
    space = spec.action_space
    if not isinstance(space, DiscreteSpace):
        return obs, None, explore
    if not isinstance(mask, np.ndarray) or mask.shape != (len(obs), space.n):
        raise _invalid(f"mask must have the shape [N, {space.n}]")
    allowed = mask.astype(np.bool_)
    if not allowed.any(axis=1).all():
        raise _invalid(str(MaskError("a mask forbids every action")))
    return obs, allowed, explore


def _all_allowed(obs: NDArray[Any], spec: PolicySpec) -> NDArray[np.bool_]:
    space = spec.action_space
    return np.ones((len(obs), space.n if isinstance(space, DiscreteSpace) else 1), np.bool_)
