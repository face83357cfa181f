"""Sequences of consecutive steps from a replay, for a recurrent network, by the method of R2D2.

A sequence begins with the recurrent state that the actor had (*stored state*), or with some earlier steps that only bring the
state up to date (*burn-in*). Source: Kapturowski et al. 2019, Recurrent experience replay in distributed reinforcement learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.algorithms.networks.inputs import Sequences, encode_observations
from rl4sys_zmq.algorithms.networks.interface import SequenceNetwork
from rl4sys_zmq.algorithms.offpolicy.replay_sampler import Columns
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay import SequenceBatch, SequenceMemory
from rl4sys_zmq.replay.draws import Draws
from rl4sys_zmq.replay.n_step import n_step_sequences
from rl4sys_zmq.values import ObservationSpace, Segment
from rl4sys_zmq.values.trees import Tree, flatten, unflatten

_FEATURES, _LENGTHS = "features", "lengths"
_BURN_IN, _BURN_IN_LENGTHS = "burn_in", "burn_in_lengths"
_INITIAL = "initial/"


class SequenceSampler:
    """A sampler of sequences. It implements `ReplaySampler`.

    A batch of ``S`` sequences has ``B`` trained steps. ``actions``, ``returns``, ``discounts``, ``weights`` and ``forbidden`` (of
    the successors, ``[B, n]``) have a row for each. ``observations`` and ``successors``, int64 ``[B]``, are rows of ``features``,
    float32 ``[R, F]``: the observations before the trained steps and after the last one, one sequence after another.
    ``lengths``, int64 ``[S]``, are their numbers in each sequence. An n-step return ends with its sequence.

    ``initial/NAME`` is the recurrent state NAME before the first row, or before the burn-in, if a sequence has one. Then
    ``burn_in`` has the features of the burn-in, and ``burn_in_lengths``, int64 ``[S]``, their numbers.
    """

    digest = 0

    def __init__(self, memory: SequenceMemory, observation_space: ObservationSpace, n_step: int, gamma: float) -> None:
        self._memory, self._space = memory, observation_space
        self._n_step, self._gamma = n_step, gamma

    def use_demonstrations(self, segments: Sequence[Segment], fraction: float, digest: int) -> None:
        raise ConfigError(
            "demonstrations.fraction: a recurrent network trains on sequences with recurrent states, which demonstrations do not "
            "have; use another kind of network",
            key="demonstrations.fraction",
        )

    def draw(self, size: int, draws: Draws) -> NDArray[np.int64]:
        """Return the rows of sequences that have about `size` trained steps together; at least one."""
        return self._memory.draw(max(1, round(size / self._memory.options.length)), draws)

    def columns(self, rows: NDArray[np.int64], beta: float | None) -> Columns:
        batch = self._memory.gather(rows)
        columns = self._trained_columns(batch) | self._unrolled_columns(batch)
        if beta is not None:
            weights = self._memory.weights(rows, beta)
            columns["weights"] = torch.from_numpy(np.repeat(weights, self._memory.trained(rows).sum(axis=1)))
        return columns

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.floating[Any]]) -> None:
        trained = self._memory.trained(rows)
        table = np.zeros(trained.shape)
        table[trained] = errors
        self._memory.update_priorities(rows, table)

    def _trained_columns(self, batch: SequenceBatch) -> Columns:
        """Return the columns with a row for each trained step."""
        burn_in = self._memory.options.burn_in
        ahead = n_step_sequences(batch.rewards, batch.terminated, batch.valid, self._n_step, self._gamma)
        observed = _observed(batch.valid)[:, burn_in:]
        number = (np.cumsum(observed) - 1).reshape(observed.shape)
        sequence, step = np.nonzero(batch.valid[:, burn_in:])
        at, reach = (sequence, step + burn_in), ahead.reach[sequence, step + burn_in]
        columns = {
            "observations": number[sequence, step],
            "successors": number[sequence, reach - burn_in],
            "actions": batch.actions[at],
            "returns": ahead.returns[at],
            "discounts": ahead.discounts[at],
        }
        if batch.masks is not None:
            columns["forbidden"] = ~batch.masks[sequence, reach]
        return {name: torch.from_numpy(column) for name, column in columns.items()}

    def _unrolled_columns(self, batch: SequenceBatch) -> Columns:
        """Return the columns from which `sequence_outputs` computes."""
        burn_in = self._memory.options.burn_in
        observed, before = _observed(batch.valid), np.pad(batch.valid, ((0, 0), (0, 1)))
        observed[:, :burn_in] = False
        before[:, burn_in:] = False
        columns = {_INITIAL + name: torch.from_numpy(column) for name, column in batch.initial.items()}
        columns[_FEATURES] = self._features(batch.observations, observed)
        columns[_LENGTHS] = torch.from_numpy(observed.sum(axis=1))
        if before.any():
            columns[_BURN_IN] = self._features(batch.observations, before)
            columns[_BURN_IN_LENGTHS] = torch.from_numpy(before.sum(axis=1))
        return columns

    def _features(self, observations: Tree, chosen: NDArray[np.bool_]) -> Tensor:
        """Return the features of the chosen observations, one sequence after another, float32 ``[R, F]``."""
        leaves, structure = flatten(observations, by_key=True)
        return encode_observations(self._space, unflatten(structure, [leaf[chosen] for leaf in leaves]))


def sequence_outputs(network: SequenceNetwork, batch: Columns) -> Tensor:
    """Return the outputs for the column ``features``, ``[R, outputs]``, without a gradient into the burn-in."""
    states = batch[_INITIAL + network.state_column].clamp(-1.0, 1.0)
    if _BURN_IN in batch:
        lengths = batch[_BURN_IN_LENGTHS]
        begun = lengths.nonzero().squeeze(1)
        burn_in = Sequences(lengths[begun].tolist(), states[begun])
        with torch.no_grad():
            after = network.states(batch[_BURN_IN], burn_in)
        states = states.index_copy(0, begun, after[lengths[begun].cumsum(0) - 1])
    return network(batch[_FEATURES], Sequences(batch[_LENGTHS].tolist(), states))[0]


def _observed(valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return True for the observation before each valid step, and for the one after the last, ``[S, T + 1]``."""
    observed = np.pad(valid, ((0, 0), (0, 1)))
    observed[:, 1:] |= valid
    return observed
