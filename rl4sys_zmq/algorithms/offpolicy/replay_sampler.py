"""The inputs of the gradient steps of an off-policy algorithm, drawn from its replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.replay import ReplayMemory, TransitionBatch
from rl4sys_zmq.replay.draws import Draws
from rl4sys_zmq.replay.mixed import DemonstrationReplay
from rl4sys_zmq.values import ObservationSpace, Segment, Space

Columns = dict[str, Tensor]
"""The inputs of a gradient step on ``B`` transitions, by name.

``observations`` and ``successors`` are features, float32 ``[B, F]``. ``actions`` is float32 ``[B, n]``, or int64 ``[B]`` from 0
for discrete actions. ``returns`` and ``discounts`` are float32 ``[B]`` (see `TransitionBatch`). With prioritized sampling,
``weights`` are the importance weights, float32 ``[B]``. An algorithm adds further columns, such as random numbers, so that each
rank has those of its rows. `SequenceSampler` describes the columns of sequences.
"""


class ReplaySampler(Protocol):
    """The interface of the object that draws batches from a replay, and gives the errors of a gradient step back to it.

    A batch is an array of *rows*, int64. The owner of the sampler stores, saves and discards the data of the replay itself.
    """

    @property
    def digest(self) -> int:
        """The number that identifies the demonstrations; 0 without any."""

    def draw(self, size: int, draws: Draws) -> NDArray[np.int64]:
        """Return the rows of a batch of about `size` transitions. A row below 0 is not in the replay of the owner."""

    def columns(self, rows: NDArray[np.int64], beta: float | None) -> Columns:
        """Return the inputs of a gradient step on these rows.

        Args:
            rows: Rows, as `draw` returns them, or some of them.
            beta: The exponent of the importance weights; None without prioritized sampling.
        """

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.floating[Any]]) -> None:
        """Set the priorities that follow from the TD errors of a gradient step on these rows, one for each transition."""

    def use_demonstrations(self, segments: Sequence[Segment], fraction: float, digest: int) -> None:
        """Take this fraction of each batch from demonstrations with the number `digest`.

        Raises:
            ConfigError: If this sampler cannot do so.
        """


class TransitionSampler:
    """A sampler of single transitions, some of which can be demonstrations. It implements `ReplaySampler`."""

    def __init__(
        self,
        memory: ReplayMemory,
        spaces: tuple[ObservationSpace, Space],
        convert: Callable[[TransitionBatch], Columns],
    ) -> None:
        self._memory, self._spaces, self._convert = memory, spaces, convert
        self._demonstrations: DemonstrationReplay | None = None

    @property
    def digest(self) -> int:
        return 0 if self._demonstrations is None else self._demonstrations.digest

    def use_demonstrations(self, segments: Sequence[Segment], fraction: float, digest: int) -> None:
        self._demonstrations = DemonstrationReplay(*self._spaces, self._memory.options, segments, fraction, digest)

    def draw(self, size: int, draws: Draws) -> NDArray[np.int64]:
        """Return the rows, first those of demonstrations, as -1 - row."""
        demonstrations = self._demonstrations
        return self._memory.draw(size, draws) if demonstrations is None else demonstrations.draw(self._memory, size, draws)

    def gather(self, rows: NDArray[np.int64]) -> TransitionBatch:
        demonstrations = self._demonstrations
        return self._memory.gather(rows) if demonstrations is None else demonstrations.gather(self._memory, rows)

    def columns(self, rows: NDArray[np.int64], beta: float | None) -> Columns:
        columns = self._convert(self.gather(rows))
        if beta is not None:
            own = rows[rows >= 0]
            ones = np.ones(len(rows) - len(own), np.float32)
            weights = self._memory.weights(own, beta) if len(own) else ones[:0]
            columns["weights"] = torch.from_numpy(np.concatenate([ones, weights]))
        return columns

    def update_priorities(self, rows: NDArray[np.int64], errors: NDArray[np.floating[Any]]) -> None:
        """Set the priorities to the absolute TD errors. Demonstrations have none."""
        own = rows >= 0
        if own.any():
            self._memory.update_priorities(rows[own], errors[own])
