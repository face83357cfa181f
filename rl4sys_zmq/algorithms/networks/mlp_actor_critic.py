"""The torch form of the kind of network ``mlp`` for actor-critics."""

from __future__ import annotations

from torch import Tensor

from rl4sys_zmq.algorithms.networks.mlp import MLPOptions
from rl4sys_zmq.algorithms.networks.sequences import Sequences
from rl4sys_zmq.algorithms.networks.torch_layers import MLPStack
from rl4sys_zmq.values import PolicySpec

__all__ = ["MLPActorCritic"]


class MLPActorCritic(MLPStack):
    """The policy and the value network of an actor-critic as two multilayer perceptrons. It implements `ActorCriticNetwork`."""

    def __init__(self, options: MLPOptions, spec: PolicySpec) -> None:
        shapes = {tensor.name: tensor.shape for tensor in spec.tensors}
        features = shapes["layers.0.weight"][1]
        outputs = shapes[f"layers.{len(options.hidden_sizes)}.bias"][0]
        extras = shapes.get("log_std", (0,))[0]
        super().__init__(features, options.hidden_sizes, (outputs, 1), options.activation, extras=extras)

    def __call__(self, x: Tensor, sequences: Sequences | None = None) -> list[Tensor]:
        """Compute both networks, as `ActorCriticNetwork` describes."""
        return super().__call__(x)

    def one(self, k: int, x: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Compute one network, as `ActorCriticNetwork` describes."""
        return super().one(k, x)
