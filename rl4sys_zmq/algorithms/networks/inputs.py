"""The inputs of networks in torch: the features of observations, and the division of a batch of rows into sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.layers.normalise import OBS_CLIP
from rl4sys_zmq.values import ObservationSpace, Segment
from rl4sys_zmq.values.features import feature_layout
from rl4sys_zmq.values.trees import Tree


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """The division of a batch of ``B`` rows into ``S`` sequences of consecutive steps.

    Attributes:
        lengths: The number of rows of each sequence, ``S`` numbers of at least 1, whose sum is ``B``. Each sequence is a run of
            consecutive rows.
        states: The recurrent state before the first row of each sequence, float32 ``[S, n]``.
    """

    lengths: Sequence[int]
    states: Tensor

    def padding(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the indices that convert rows to a table ``[T, S]`` of equally long sequences, and back.

        ``T`` is the largest length. A shorter sequence is padded with its last row; the results of the padding are not used.

        Args:
            device: The device of the indices.

        Returns:
            The row for each element of the table, int64 ``[T * S]``; and the element of the table for each row, int64 ``[B]``.
        """
        lengths = np.asarray(self.lengths)
        starts = np.cumsum(lengths) - lengths
        times = np.arange(lengths.max())[:, None]
        padded = starts + np.minimum(times, lengths - 1)
        number = np.repeat(np.arange(len(lengths)), lengths)
        rows = (np.arange(len(number)) - starts[number]) * len(lengths) + number
        return torch.from_numpy(padded.reshape(-1)).to(device), torch.from_numpy(rows).to(device)

    def cut(self, longest: int | None, states_after: Tensor) -> Sequences:
        """Return the same rows as sequences of at most `longest` rows.

        Args:
            longest: The largest number of rows; None for no limit.
            states_after: The recurrent state after each row, ``[B, n]``, from which the rest of a cut sequence starts.
        """
        if longest is None or max(self.lengths) <= longest:
            return self
        lengths: list[int] = []
        states: list[Tensor] = []
        row = 0
        for length, state in zip(self.lengths, self.states, strict=True):
            for start in range(0, length, longest):
                lengths.append(min(longest, length - start))
                states.append(states_after[row + start - 1] if start else state)
            row += length
        return Sequences(lengths, torch.stack(states))

    def select(self, order: Sequence[int]) -> tuple[Sequences, Tensor]:
        """Return the sequences with the indices `order`, and their rows in this batch, int64 ``[b]`` on the CPU."""
        starts = np.cumsum(self.lengths) - self.lengths
        rows = np.concatenate([np.arange(starts[k], starts[k] + self.lengths[k]) for k in order])
        index = torch.as_tensor(order, device=self.states.device)
        return Sequences([self.lengths[k] for k in order], self.states.index_select(0, index)), torch.from_numpy(rows)


def encode_observations(space: ObservationSpace, observations: Tree) -> Tensor:
    """Return the features of observations, float32 ``[N, feature_size(space)]``, as the policies in actors compute them.

    Contiguous, writable float32 observations of a Box are not copied.

    Args:
        space: The space of the observations.
        observations: A tree of arrays ``[N, *leaf]``.
    """
    features = feature_layout(space).batch(observations)
    # A view of bytes from the wire is read-only. Torch has no read-only tensors and would warn, so copy it.
    return torch.from_numpy(features if features.flags.writeable else features.copy())


def forbidden_actions(segments: Sequence[Segment], options: int) -> Tensor | None:
    """Return True for each discrete action that a mask forbids, bool ``[N, options]``; None if no segment has a mask."""
    if all(segment.masks is None for segment in segments):
        return None
    everything = np.ones((max(segment.steps for segment in segments), options), dtype=np.bool_)
    masks = [everything[: s.steps] if s.masks is None else s.masks[: s.steps] for s in segments]
    return torch.from_numpy(~np.concatenate(masks))


def standardise(features: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Return ``(features - mean) * scale``, clipped to ±`OBS_CLIP`. A policy in an actor does the same before its first layer."""
    return ((features - mean) * scale).clamp_(-OBS_CLIP, OBS_CLIP)


def initial_states(segments: Sequence[Segment], column: str) -> Tensor:
    """Return the recurrent states before the first steps of segments, float32 ``[S, n]``, limited to -1 .. 1.

    `column` is the name of the extra column with these states.
    """
    for segment in segments:
        if column not in segment.initial:
            raise ConfigError(  # the learner refuses such a segment when it arrives
                f"a segment of episode {segment.episode_id} lacks the column {column!r}, the recurrent state before its first "
                "step; record data with a recurrent policy of the same kind"
            )
    states = np.stack([segment.initial[column] for segment in segments])
    return torch.from_numpy(np.clip(states, -1.0, 1.0, dtype=np.float32))
