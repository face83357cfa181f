"""Torch modules of the user with all parameters in one flat vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl4sys_zmq.algorithms.networks.flat_parameters import FlatParameters
from rl4sys_zmq.values import BoxSpace


class ModuleNetworks(FlatParameters):
    """Modules that compute with views into the flat vector of all parameters, not with parameters of their own."""

    def __init__(self, builders: Sequence[Callable[[int], nn.Module]], space: BoxSpace, extras: int) -> None:
        """Build the modules.

        Args:
            builders: The function that builds each module, given the seed of its initial values.
            space: The space of the observations that the modules get.
            extras: The number of parameters that follow those of the first module.
        """
        self._builders, self._space = builders, space
        self._modules = [build(0) for build in builders]
        self._names = [[name for name, _ in module.named_parameters()] for module in self._modules]
        shapes = [[tuple(tensor.shape) for tensor in module.parameters()] for module in self._modules]
        self._has_extras = bool(extras)
        if extras:
            shapes[0].append((extras,))
        super().__init__(shapes)

    def compute(self, k: int, x: Tensor, *others: Tensor) -> Tensor:
        """Compute one module.

        Args:
            k: The number of the module.
            x: The features of ``B`` observations, ``[B, F]``, which the module gets as observations ``[B, *obs]``.
            others: Further arguments of the module.
        """
        parameters = dict(zip(self._names[k], self.leaves[k], strict=False))
        outputs: Tensor = functional_call(self._modules[k], parameters, (x.view(len(x), *self._space.shape), *others))
        return outputs

    def initialise(self, generator: torch.Generator, output_gains: Sequence[float]) -> None:
        """Set the initial values that the modules give themselves. The extra parameters do not change.

        Args:
            generator: The source of the seed with which the modules are built.
            output_gains: Not used.
        """
        seed = int(torch.randint(1 << 62, (), generator=generator, dtype=torch.int64, device="cpu"))
        modules = [build(seed + k) for k, build in enumerate(self._builders)]
        for views, module in zip(self.views(self.flat), modules, strict=True):
            with torch.no_grad():
                for view, tensor in zip(views, module.parameters(), strict=False):
                    view.copy_(tensor)
