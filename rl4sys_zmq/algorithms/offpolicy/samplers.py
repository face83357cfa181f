"""The inputs of the gradient steps of an off-policy algorithm, drawn from its replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.algorithms.networks.inputs import Sequences, encode_observations
from rl4sys_zmq.algorithms.networks.interface import SequenceNetwork
from rl4sys_zmq.replay import ReplayMemory, ReplayOptions, SequenceBatch, SequenceMemory, TransitionBatch
from rl4sys_zmq.replay.n_step import n_step_sequences
from rl4sys_zmq.replay.priorities import Draws
from rl4sys_zmq.values import ObservationSpace, Segment, Space
from rl4sys_zmq.values.trees import Tree, flatten, unflatten


class TorchDraws:
    """A source of random numbers from a generator of torch, whose owner saves the generator's state. It implements `Draws`."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def integers(self, low: int, high: int, size: int, /) -> NDArray[np.int64]:
        drawn: NDArray[np.int64] = torch.randint(
            low, high, (size,), generator=self._generator, dtype=torch.int64, device="cpu"
        ).numpy()
        return drawn

    def random(self, size: int, /) -> NDArray[np.float64]:
        drawn: NDArray[np.float64] = torch.rand(size, generator=self._generator, dtype=torch.float64, device="cpu").numpy()
        return drawn


Columns = dict[str, Tensor]
"""The inputs of a gradient step on ``B`` transitions, by name.

``observations`` and ``successors`` are features, float32 ``[B, F]``. ``actions`` is float32 ``[B, n]``, or int64 ``[B]`` from 0
for discrete actions. ``returns`` and ``discounts`` are float32 ``[B]`` (see `TransitionBatch`). With prioritized sampling,
``weights`` are the importance weights, float32 ``[B]``. An algorithm adds further columns, such as random numbers, so that each
rank has those of its rows. `SequenceSampler` describes the columns of sequences.
"""


class TransitionSampler:
    """An object that draws batches of transitions from a replay, or in part from demonstrations (Ball et al. 2023).

    A batch is an array of *rows*, int64. The demonstrations have a separate replay, from which they are drawn uniformly. Row
    ``r`` of that replay has the number ``-1 - r`` in a batch. These numbers come first.

    Attributes:
        digest: The number that identifies the demonstrations; 0 without any.
        memory: The replay.
    """

    def __init__(
        self, spaces: tuple[ObservationSpace, Space], options: ReplayOptions, convert: Callable[[TransitionBatch], Columns]
    ) -> None:
        self.digest = 0
        self.memory = ReplayMemory(*spaces, options)
        self._spaces, self._convert = spaces, convert
        self._demonstrations: ReplayMemory | None = None
        self._fraction = 0.0

    def use_demonstrations(self, segments: Sequence[Segment], fraction: float, digest: int) -> None:
        """Take this fraction of each batch from demonstrations, which `digest` identifies."""
        capacity = sum(segment.steps for segment in segments)
        options = replace(self.memory.options, capacity=capacity, priority=None)
        self._demonstrations = ReplayMemory(*self._spaces, options)
        for segment in segments:
            self._demonstrations.add(segment)
        self._fraction, self.digest = fraction, digest

    def draw(self, size: int, draws: Draws) -> NDArray[np.int64]:
        """Return the row numbers of a batch, int64 ``[size]``: those of demonstrations, and then one or more of the replay."""
        if self._demonstrations is None:
            return self.memory.draw(size, draws)
        count = min(round(size * self._fraction), size - 1)
        return np.concatenate([-1 - self._demonstrations.draw(count, draws), self.memory.draw(size - count, draws)])

    def gather(self, rows: NDArray[np.int64]) -> TransitionBatch:
        count = int(np.count_nonzero(rows < 0))
        if self._demonstrations is None or not count:
            return self.memory.gather(rows)
        demonstrations = self._demonstrations.gather(-1 - rows[:count])
        return demonstrations if count == len(rows) else demonstrations.join(self.memory.gather(rows[count:]))

    def columns(self, rows: NDArray[np.int64], beta: float | None) -> Columns:
        """Return the inputs of a gradient step on these rows, with importance weights if their exponent `beta` is given."""
        columns = self._convert(self.gather(rows))
        if beta is not None:
            own = rows[rows >= 0]
            ones = np.ones(len(rows) - len(own), np.float32)
            weights = self.memory.weights(own, beta) if len(own) else ones[:0]
            columns["weights"] = torch.from_numpy(np.concatenate([ones, weights]))
        return columns

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.floating[Any]]) -> None:
        """Set the priorities of transitions to their absolute TD errors. Demonstrations have no priorities."""
        own = rows >= 0
        if own.any():
            self.memory.update_priorities(rows[own], errors[own])


_FEATURES, _LENGTHS = "features", "lengths"
_BURN_IN, _BURN_IN_LENGTHS = "burn_in", "burn_in_lengths"
_INITIAL = "initial/"


class SequenceSampler:
    """An object that draws batches of sequences from a `SequenceMemory`, with the methods of `TransitionSampler`.

    A batch of ``S`` sequences has ``B`` trained steps. The columns ``actions``, ``returns``, ``discounts``, ``weights`` and
    ``forbidden`` (of the successors, ``[B, n]``) have a row for each. ``observations`` and ``successors``, int64 ``[B]``, are
    rows of ``features``, float32 ``[R, F]``: the observations before the trained steps and after the last one, one sequence
    after another. ``lengths``, int64 ``[S]``, are the numbers of these observations in each sequence. An n-step return ends
    with its sequence.

    ``initial/NAME`` is the recurrent state NAME before the first row, or before the burn-in if any sequence has a burn-in. In
    that case ``burn_in`` has the features of the burn-in, and ``burn_in_lengths``, int64 ``[S]``, the number of its rows.
    """

    digest = 0

    def __init__(self, memory: SequenceMemory, observation_space: ObservationSpace, n_step: int, gamma: float) -> None:
        self.memory, self._space = memory, observation_space
        self._n_step, self._gamma = n_step, gamma

    def draw(self, size: int, draws: Draws) -> NDArray[np.int64]:
        """Return the rows of random sequences that together have about `size` trained steps: at least one sequence."""
        return self.memory.draw(max(1, round(size / self.memory.options.length)), draws)

    def columns(self, rows: NDArray[np.int64], beta: float | None) -> Columns:
        batch = self.memory.gather(rows)
        columns = self._trained_columns(batch) | self._unrolled_columns(batch)
        if beta is not None:
            weights = self.memory.weights(rows, beta)
            columns["weights"] = torch.from_numpy(np.repeat(weights, self.memory.trained(rows).sum(axis=1)))
        return columns

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.floating[Any]]) -> None:
        trained = self.memory.trained(rows)
        table = np.zeros(trained.shape)
        table[trained] = errors
        self.memory.update_priorities(rows, table)

    def _trained_columns(self, batch: SequenceBatch) -> Columns:
        """Return the columns of a batch that have a row for each trained step."""
        burn_in = self.memory.options.burn_in
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
        """Return the columns that `sequence_outputs` needs."""
        burn_in = self.memory.options.burn_in
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
    """Return a network's outputs for the column ``features``, ``[R, outputs]``. No gradient flows through the burn-in."""
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
    """Return a bool for each observation, ``[S, T + 1]``: True before each valid step and after the last valid step."""
    observed = np.pad(valid, ((0, 0), (0, 1)))
    observed[:, 1:] |= valid
    return observed
