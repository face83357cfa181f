"""The torch form, for actor-critics, of the kinds of networks that consist of modules of the user."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from rl4sys_zmq.algorithms.networks.module_export import build_module
from rl4sys_zmq.algorithms.networks.module_networks import ModuleNetworks
from rl4sys_zmq.algorithms.networks.sequences import Sequences
from rl4sys_zmq.learner.registry.network_entry import ModuleBuilder
from rl4sys_zmq.policies.head_parameters import HeadParameters
from rl4sys_zmq.values import BoxSpace, PolicySpec


class ModuleActorCritic(ModuleNetworks):
    """A policy and a value network that are two torch modules of one kind. It implements `ActorCriticNetwork`.

    Attributes:
        extras: The logarithms of the standard deviations of continuous actions, as a view ``[n]``; None if there are none.
    """

    def __init__(self, build: ModuleBuilder, options: Any, spec: PolicySpec) -> None:
        space, head = spec.observation_space, HeadParameters(**spec.document)
        assert isinstance(space, BoxSpace)
        sizes = head.outputs(spec.action_space), 1
        extras = sum(tensor.size for tensor in head.head_tensors(spec.action_space))
        super().__init__([partial(build_module, "network", build, options, space, size) for size in sizes], space, extras)

    @property
    def extras(self) -> Tensor | None:
        """The logarithms of the standard deviations of continuous actions, as a view ``[n]``; None if there are none."""
        return self.leaves[0][-1] if self._has_extras else None

    def __call__(self, x: Tensor, sequences: Sequences | None = None) -> list[Tensor]:
        """Compute both networks, as `ActorCriticNetwork` describes."""
        return [self.compute(0, x), self.compute(1, x)]

    def one(self, k: int, x: Tensor, sequences: Sequences | None = None) -> Tensor:
        """Compute one network, as `ActorCriticNetwork` describes."""
        return self.compute(k, x)

    def change_inputs(self, mean: Tensor, scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
        """Raise NotImplementedError: the observations of a module are not standardised."""
        raise NotImplementedError("a policy of a torch module does not standardise observations")
