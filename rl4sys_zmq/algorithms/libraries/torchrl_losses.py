"""The networks and the losses of TorchRL's algorithms, for plain arrays without an environment or a collector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.data import Bounded
from torchrl.modules import ProbabilisticActor, QValueActor, TanhNormal, ValueOperator
from torchrl.objectives import (
    BCLoss,
    CQLLoss,
    DiscreteCQLLoss,
    DiscreteIQLLoss,
    IQLLoss,
    LossModule,
    REDQLoss,
    TD3BCLoss,
    TQCLoss,
    ValueEstimators,
)

from rl4sys_zmq.algorithms.libraries.adapter import ACTIVATION_LAYERS
from rl4sys_zmq.algorithms.libraries.torchrl_entries import (
    CQLParameters,
    TorchrlParameters,
    TQCParameters,
    ValueParameters,
)
from rl4sys_zmq.values import BoxSpace, Space
from rl4sys_zmq.values.action_layout import action_layout

LOG_STD_LIMITS = -20.0, 2.0
"""As in the head ``squashed_gaussian``."""

LARGEST_WEIGHT = 1_000_000.0
"""The limit of the learnt weight of CQL's penalty, as in the library."""


LossNetworks = tuple[LossModule, nn.Sequential]
"""A loss module of TorchRL, which contains all trained weights, and the perceptron of the policy in it."""


@dataclass(frozen=True, slots=True)
class _Sizes:
    features: int
    actions: int
    discrete: bool


class _GaussianOutputs(nn.Module):
    """A perceptron whose outputs are the means and the standard deviations of normal distributions over actions."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.network(observation).chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD_LIMITS).exp()


class _ActionValue(nn.Module):
    """A perceptron that estimates the values of continuous actions."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        values: Tensor = self.network(torch.cat([observation, action], dim=-1))
        return values


class _CQLLoss(CQLLoss):
    """TorchRL's loss for CQL, in which the weight of CQL's penalty is learned as in Kumar et al. 2020.

    In TorchRL 0.14, the penalty is not multiplied by the learned weight, and the loss of the weight (minus the weight times
    half the penalty) also changes the critics. If the weight is above 2, the sum of both losses rewards what it must penalise.
    Here, ``loss_cql`` has the weight as a factor, and ``loss_alpha_prime`` trains the weight alone.
    """

    def cql_loss(self, tensordict: TensorDictBase) -> tuple[Tensor, dict[str, Any]]:
        loss, metadata = super().cql_loss(tensordict)
        if self.with_lagrange:
            for key in (self.tensor_keys.cql_q1_loss, self.tensor_keys.cql_q2_loss):
                tensordict.set(key, tensordict.get(key).detach())
            loss = self.log_alpha_prime.detach().exp().clamp(max=LARGEST_WEIGHT) * loss
        return loss, metadata


def make_loss(name: str, parameters: TorchrlParameters, features: int, action_space: Space) -> LossNetworks:
    """Build the networks and the loss of algorithm `name`. The initial weights come from torch's global random generator."""
    count = action_layout(action_space).outputs
    loss, policy = _MAKERS[name](parameters, _Sizes(features, count, not isinstance(action_space, BoxSpace)))
    if isinstance(parameters, ValueParameters):
        loss.make_value_estimator(ValueEstimators.TD0, gamma=parameters.gamma)
    getattr(loss, "target_entropy", None)  # the library adds this buffer when it is first read
    return loss, policy


def _perceptron(parameters: TorchrlParameters, inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in parameters.hidden_sizes:
        layers += [nn.Linear(inputs, width, dtype=torch.float32, device="cpu"), ACTIVATION_LAYERS[parameters.activation]()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs, dtype=torch.float32, device="cpu"))


def _stochastic_actor(parameters: TorchrlParameters, sizes: _Sizes) -> tuple[nn.Sequential, Any]:
    network = _perceptron(parameters, sizes.features, sizes.actions * (1 if sizes.discrete else 2))
    if sizes.discrete:
        module = TensorDictModule(network, in_keys=["observation"], out_keys=["logits"])
        return network, ProbabilisticActor(module, in_keys=["logits"], distribution_class=Categorical)
    module = TensorDictModule(_GaussianOutputs(network), in_keys=["observation"], out_keys=["loc", "scale"])
    return network, ProbabilisticActor(module, in_keys=["loc", "scale"], distribution_class=TanhNormal, spec=_bounds(sizes))


def _bounds(sizes: _Sizes) -> Bounded:
    one = torch.ones(sizes.actions, dtype=torch.float32, device="cpu")
    return Bounded(-one, one)


def _action_value(parameters: TorchrlParameters, sizes: _Sizes, outputs: int = 1) -> Any:
    keys = ["state_action_value"]
    if sizes.discrete:
        network = _perceptron(parameters, sizes.features, sizes.actions)
        return TensorDictModule(network, in_keys=["observation"], out_keys=keys)
    network = _perceptron(parameters, sizes.features + sizes.actions, outputs)
    return TensorDictModule(_ActionValue(network), in_keys=["observation", "action"], out_keys=keys)


def _bc(parameters: TorchrlParameters, sizes: _Sizes) -> LossNetworks:
    if not sizes.discrete:
        network, actor = _stochastic_actor(parameters, sizes)
        return BCLoss(actor), network
    network = _perceptron(parameters, sizes.features, sizes.actions)
    return BCLoss(TensorDictModule(network, in_keys=["observation"], out_keys=["action"])), network


def _iql(parameters: TorchrlParameters, sizes: _Sizes) -> LossNetworks:
    network, actor = _stochastic_actor(parameters, sizes)
    value = ValueOperator(_perceptron(parameters, sizes.features, 1), in_keys=["observation"])
    arguments = parameters.arguments()
    action_value = _action_value(parameters, sizes)
    if sizes.discrete:
        return DiscreteIQLLoss(actor, action_value, value, action_space="categorical", **arguments), network
    return IQLLoss(actor, action_value, value, **arguments), network


def _cql(parameters: TorchrlParameters, sizes: _Sizes) -> LossNetworks:
    assert isinstance(parameters, CQLParameters)
    if sizes.discrete:
        network = _perceptron(parameters, sizes.features, sizes.actions)
        actor = QValueActor(network, in_keys=["observation"], action_space="categorical")
        arguments = {name: value for name, value in parameters.arguments().items() if name == "loss_function"}
        return DiscreteCQLLoss(actor, action_space="categorical", **arguments), network
    return _soft(_CQLLoss, parameters, sizes)


def _soft(loss: type[LossModule], parameters: TorchrlParameters, sizes: _Sizes, outputs: int = 1) -> LossNetworks:
    """Create an object of the class `loss`, and its two networks: a policy for bounded actions, and an action-value network.

    Each of the `outputs` outputs of the second network estimates the value of the same action. Return the loss and the policy's
    network.
    """
    network, actor = _stochastic_actor(parameters, sizes)
    action_value = _action_value(parameters, sizes, outputs)
    return loss(actor, action_value, action_spec=_bounds(sizes), **parameters.arguments()), network


def _td3bc(parameters: TorchrlParameters, sizes: _Sizes) -> LossNetworks:
    network = _perceptron(parameters, sizes.features, sizes.actions)
    actor = TensorDictModule(nn.Sequential(network, nn.Tanh()), in_keys=["observation"], out_keys=["action"])
    action_value = _action_value(parameters, sizes)
    return TD3BCLoss(actor, action_value, bounds=(-1.0, 1.0), **parameters.arguments()), network


def _tqc(parameters: TorchrlParameters, sizes: _Sizes) -> LossNetworks:
    assert isinstance(parameters, TQCParameters)
    return _soft(TQCLoss, parameters, sizes, parameters.n_quantiles)


_MAKERS: Mapping[str, Callable[[TorchrlParameters, _Sizes], LossNetworks]] = {
    "BC": _bc,
    "CQL": _cql,
    "IQL": _iql,
    "REDQ": partial(_soft, REDQLoss),
    "TD3BC": _td3bc,
    "TQC": _tqc,
}
