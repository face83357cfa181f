"""Algorithms with TorchRL's losses, trained on segments from actors."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor
from torchrl.objectives import SoftUpdate

from rl4sys_zmq.algorithms.libraries.adapter import (
    LibraryReplayTraining,
    PublishedNetwork,
    network_layers,
    scaled_actions,
)
from rl4sys_zmq.algorithms.libraries.torchrl_entries import TorchrlParameters, ValueParameters
from rl4sys_zmq.algorithms.libraries.torchrl_losses import make_loss
from rl4sys_zmq.algorithms.networks.inputs import encode_observations
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, read_parameters
from rl4sys_zmq.learner.registry.algorithms import ALGORITHMS
from rl4sys_zmq.policies.layer_policy import read_network
from rl4sys_zmq.replay import ReplayOptions
from rl4sys_zmq.replay.pace import PaceRule
from rl4sys_zmq.values import BoxSpace, ObservationSpace, Space, feature_size


def build(
    name: str, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
) -> TorchrlAlgorithm:
    """Build the algorithm `name`, which trains with a loss class of TorchRL."""
    return TorchrlAlgorithm(ALGORITHMS.get(f"torchrl:{name}"), observation_space, action_space, parameters, seed)


class TorchrlAlgorithm(LibraryReplayTraining):
    """An off-policy algorithm with a loss class of TorchRL.

    A gradient step is one step of Adam for all networks, on the sum of the losses that the parameters select. Then the target
    networks move, unless the parameters delay that.
    """

    parameters: TorchrlParameters

    def __init__(self, entry: AlgorithmEntry, *arguments: Any) -> None:
        super().__init__(entry, *arguments)
        assert entry.plan is not None
        self._spec = entry.plan(*arguments[:3])
        self._head = read_network(self._spec)[0].head
        p = self.parameters
        name = entry.name.partition(":")[2]
        with self._random.active(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about later versions of the library
            self._loss, self._policy = make_loss(name, p, feature_size(self._observation_space), self._action_space)
            self._targets = SoftUpdate(self._loss, tau=p.tau) if isinstance(p, ValueParameters) else None
        self._gradient_steps = 0
        self._optimizer = torch.optim.Adam(self._loss.parameters(), lr=p.learning_rate)
        gamma = p.gamma if isinstance(p, ValueParameters) else 1.0
        self.use_replay(ReplayOptions(capacity=p.buffer_size, gamma=gamma), PaceRule.of(p), arguments[-1])

    def _published(self) -> PublishedNetwork:
        layers, activation = network_layers(self._policy)
        started = self._gradient_steps > 0  # the count of updates changes without training if their rule changes (`settle`)
        extras: dict[str, Tensor] = {}
        if self._head in ("q_values", "deterministic"):
            epsilon = getattr(self.parameters, "epsilon", 0.0) if started else 1.0
            extras["epsilon"] = torch.tensor([epsilon], dtype=torch.float32, device="cpu")
        if self._head == "deterministic":
            noise_std = getattr(self.parameters, "exploration_noise", 0.1)
            extras["noise_std"] = torch.tensor([noise_std], dtype=torch.float32, device="cpu")
        return PublishedNetwork(self._head, layers, activation, extras)

    @torch.no_grad()
    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Start the training from a policy. The policy's target network gets the same weights."""
        self._published().load(tensors)
        for own in ("actor_network", "value_network"):
            target = getattr(self._loss, f"target_{own}_params", None)
            if target is not None and self._targets is not None:
                for new, old in zip(
                    getattr(self._loss, f"{own}_params").values(True, True), target.values(True, True), strict=True
                ):
                    old.data.copy_(new.data)

    def _train_unit(self) -> dict[str, float]:
        steps = [self._train_on(self._draw()) for _ in range(self.parameters.gradient_steps)]
        return {name: float(np.mean([losses[name] for losses in steps])) for name in steps[0]}

    def _train_on(self, rows: NDArray[np.int64]) -> dict[str, float]:
        """Take one gradient step on these rows of the replay. Return all losses by name, also those that it did not reduce."""
        p = self.parameters
        with self._random.active():
            outputs = self._loss(self._batch(rows))
        losses = {str(name): loss for name, loss in outputs.items() if str(name).startswith("loss")}
        self._gradient_steps += 1
        unused = p.unused_losses(self._gradient_steps)
        total = sum(
            (loss for name, loss in losses.items() if name not in unused), torch.zeros((), dtype=torch.float32, device="cpu")
        )
        self._optimizer.zero_grad()
        total.backward()
        if p.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._loss.parameters(), p.max_grad_norm)
        self._optimizer.step()
        if self._targets is not None and p.moves_targets(self._gradient_steps):
            self._targets.step()
        metrics = {f"losses/{name.removeprefix('loss_')}_loss": float(loss.detach()) for name, loss in losses.items()}
        return {**metrics, "charts/learning_rate": p.learning_rate}

    def _batch(self, rows: NDArray[np.int64]) -> TensorDict:
        batch = self._replay.gather(rows)
        ended = torch.from_numpy(batch.discounts == 0).unsqueeze(1)
        actions = scaled_actions(batch.actions, self._action_space)
        after = {
            "observation": encode_observations(self._observation_space, batch.successors),
            "reward": torch.from_numpy(batch.returns).unsqueeze(1),
            "terminated": ended,
            "done": ended,
        }
        return TensorDict(
            {
                "observation": encode_observations(self._observation_space, batch.observations),
                "action": actions if isinstance(self._action_space, BoxSpace) else actions.squeeze(1),
                "next": TensorDict(after, [len(rows)]),
            },
            [len(rows)],
        )

    def change(self, parameters: Mapping[str, object]) -> None:
        self.parameters = p = read_parameters(type(self.parameters), parameters, algorithm=self._name)
        for group in self._optimizer.param_groups:
            group["lr"] = p.learning_rate

    def _tensors(self) -> dict[str, Tensor]:
        """Return the trained weights and those of the target networks. All other buffers can be computed from the parameters."""
        targets = {name: buffer for name, buffer in self._loss.named_buffers() if "_params." in name}
        return {**dict(self._loss.named_parameters()), **targets}

    def _model_state(self) -> dict[str, Any]:
        return {
            "weights": {name: tensor.detach().clone() for name, tensor in self._tensors().items()},
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "random": self._random.state(),
            "gradient_steps": self._gradient_steps,
        }

    @torch.no_grad()
    def _restore_model(self, kept: Mapping[str, Any]) -> None:
        own = self._tensors()
        weights = {name: torch.as_tensor(tensor, device="cpu") for name, tensor in kept["weights"].items()}
        if {name: tensor.shape for name, tensor in own.items()} != {name: tensor.shape for name, tensor in weights.items()}:
            raise ConfigError(f"{self._name}: the state comes from networks of other sizes")
        for name, tensor in own.items():
            tensor.data.copy_(weights[name])
        rates = [group["lr"] for group in self._optimizer.param_groups]
        self._optimizer.load_state_dict(copy.deepcopy(dict(kept["optimizer"])))
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._random.load(kept["random"])
        self._gradient_steps = int(kept["gradient_steps"])

    def numbers_to_check(self) -> Sequence[NDArray[Any]]:
        weights = [tensor.detach().reshape(-1).float() for tensor in self._tensors().values()]
        moments = [moment.numpy() for state in self._optimizer.state.values() for moment in state.values()]
        return [torch.cat(weights).numpy(), *moments]
