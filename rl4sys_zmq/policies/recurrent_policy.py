"""Policies whose layers carry a state from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rl4sys_zmq.layers.layer import Array, RecurrentState
from rl4sys_zmq.policies.action_heads import ActionHead
from rl4sys_zmq.policies.base import Action, Mask
from rl4sys_zmq.policies.column_policy import BatchChoice, BoundStep, ExtraColumnPolicy, StepChoice
from rl4sys_zmq.policies.layer_policy import STATE
from rl4sys_zmq.policies.network import LayerNetwork
from rl4sys_zmq.policies.sampler import RandomSource
from rl4sys_zmq.values import ObservationSpace, PolicySnapshot
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.trees import Tree


class RecurrentPolicy(ExtraColumnPolicy):
    """A policy of a network with a recurrent layer and an action head. The state is float32 ``[units]``; None means zeros."""

    def __init__(
        self, space: ObservationSpace, snapshot: PolicySnapshot, network: LayerNetwork, units: int, head: ActionHead
    ) -> None:
        super().__init__(snapshot)
        self._space, self._network, self._head = space, network, head
        self._zero = np.zeros(units, np.float32)
        self._zero.flags.writeable = False

    def step(self, observation: Any, mask: Mask, rng: RandomSource, explore: bool, state: Any) -> StepChoice:
        return self.bind_step(rng, explore)(observation, mask, state)

    def bind_step(self, rng: RandomSource, explore: bool) -> BoundStep:
        """Return a faster form of `step` for one thread, with the given `rng` and `explore`. The function has buffers."""
        carried, zero, choose = RecurrentState(), self._zero, self._head.choose
        forward = self._network.bind(carried)

        def step(observation: Any, mask: Mask, state: Any) -> StepChoice:
            carried.before = before = zero if state is None else state
            outputs = forward(observation)
            raw, act, log_prob = choose(outputs, mask, rng, explore)
            return raw, act, log_prob, {STATE: before}, carried.after

        return step

    def step_batch(self, observations: Tree, masks: Mask, rng: RandomSource, explore: bool, states: Sequence[Any]) -> BatchChoice:
        state = self._stacked(states)
        raws, acts, log_probs = self._head.choose_batch(self._network.batch(observations, state), masks, rng, explore)
        return raws, acts, log_probs, {STATE: state.before}, list(state.after)

    def assess(self, act: Action, observation: Tree, mask: Mask, rng: RandomSource, state: Any) -> tuple[Action, float]:
        outputs = self._network.batch(leaves_of(self._space).stack([observation]), self._stacked([state]))
        return self._head.assess(act, outputs[0], mask, rng)

    def _stacked(self, states: Sequence[Array | None]) -> RecurrentState:
        """Return a `RecurrentState` whose `before` is ``[N, units]``, one row for each of the ``N`` given states."""
        state = RecurrentState()
        state.before = np.stack([self._zero if one is None else one for one in states])
        return state
