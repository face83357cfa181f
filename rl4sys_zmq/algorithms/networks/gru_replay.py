"""The torch form of the kind of network ``gru`` for replay algorithms that train on sequences."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl4sys_zmq.algorithms.networks.flat_parameters import FlatParameters
from rl4sys_zmq.algorithms.networks.gru import GRUOptions
from rl4sys_zmq.algorithms.networks.gru_body import GRUBody
from rl4sys_zmq.algorithms.networks.sequences import Sequences
from rl4sys_zmq.policies.gru import STATE
from rl4sys_zmq.values import ObservationSpace, feature_size


class GRUReplay(FlatParameters):
    """A network of action values, or of distributions of the return, with a recurrent unit. It implements `SequenceNetwork`."""

    state_column = STATE

    def __init__(self, options: GRUOptions, space: ObservationSpace, outputs: int) -> None:
        self._body = GRUBody(options)
        super().__init__([self._body.shapes(feature_size(space), outputs)])

    def __call__(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Compute the outputs, as `SequenceNetwork` describes."""
        return self._body.outputs(self.leaves[0], self.states(x, sequences))

    def states(self, x: Tensor, sequences: Sequences) -> Tensor:
        """Return the recurrent state after each row, as `SequenceNetwork` describes."""
        return self._body.states(self.leaves[0], x, sequences)

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set random orthogonal weights and zero biases, as `GRUBody` describes."""
        self._body.initialise(self.views(self.flat)[0], generator, output_gains[0])

    def initialise_uniform(self, generator: torch.Generator) -> None:
        """Set uniform weights and biases, as `GRUBody` describes."""
        self._body.initialise_uniform(self.views(self.flat)[0], generator)
