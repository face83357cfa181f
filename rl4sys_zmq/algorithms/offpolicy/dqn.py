"""DQN: double Q-learning from a replay of n-step transitions, for discrete actions; and C51, a variant of DQN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.algorithms.cloning import cloned_columns, margin_loss
from rl4sys_zmq.algorithms.networks import ReplayShape
from rl4sys_zmq.algorithms.networks.interface import ReplayNetwork, SequenceNetwork
from rl4sys_zmq.algorithms.offpolicy.dqn_parameters import C51Parameters, DQNParameters
from rl4sys_zmq.algorithms.offpolicy.offpolicy import GradientStepResult, ReplayAlgorithm
from rl4sys_zmq.algorithms.offpolicy.samplers import Columns, sequence_outputs
from rl4sys_zmq.algorithms.offpolicy.value_heads import make_value_head
from rl4sys_zmq.errors import config_error
from rl4sys_zmq.learner.registry.algorithm_protocols import CloneOptions
from rl4sys_zmq.replay import TransitionBatch
from rl4sys_zmq.values import ObservationSpace, Segment, Space


class DQN(ReplayAlgorithm[DQNParameters]):
    """Deep Q-learning (Mnih et al. 2015) with double Q-learning (van Hasselt et al. 2016) and n-step returns.

    With `prioritised`, transitions with large TD errors are drawn more often (Schaul et al. 2016). `value_heads` has the
    losses, dueling and distributions of the return.

    The defaults prevent two causes of collapse and one of slowness, all measured on CartPole-v1:

    - The maximum over noisy values is too high on average. Bootstraps add this error up, to about ``1 / (1 - gamma ** n_step)``
      times. A larger `n_step` and a slow target network keep it small. Values above ``reward / (1 - gamma)`` are a symptom.
    - With a loss that is linear beyond an error of 1, the values approach the median of their targets, not the mean. Where
      values are near 100, such a loss hides a failure in one of ten cases. So `huber_delta` is 100.
    - With orthogonal weights and zero biases, as PPO has them, a network of 256 and 256 units learns much more slowly than with
      the uniform ones of ``torch.nn.Linear``. So `initialisation` is uniform.
    """

    name: ClassVar[str] = "DQN"
    parameters_type: ClassVar[type[DQNParameters]] = DQNParameters

    def __init__(
        self, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> None:
        super().__init__(observation_space, action_space, parameters, seed)
        self._head = make_value_head(self.parameters, self._spec.outputs)
        self._online, self._target = (self._new_network() for _ in range(2))
        if self.parameters.initialisation == "orthogonal":
            self._online.initialise(self._generator, [1.0])
        else:
            self._online.initialise_uniform(self._generator)
        self._target.flat.copy_(self._online.flat)
        self._target_steps = 0
        self._use({"online": self._online, "target": self._target}, {"online": None})

    def _new_network(self) -> ReplayNetwork | SequenceNetwork:
        choice, space, outputs = self.parameters.chosen_network(), self._observation_space, self._head.outputs
        if self.parameters.recurrent:
            return choice.sequence_replay(space, outputs)
        return choice.replay(space, ReplayShape(outputs=(outputs,)))

    def _columns(self, batch: TransitionBatch) -> Columns:
        columns = super()._columns(batch)
        if batch.masks is not None:
            columns["forbidden"] = ~torch.from_numpy(batch.masks)
        return columns

    def _target_due(self) -> bool:
        p = self.parameters
        interval = p.target_steps
        return interval is not None and self._pace.next_unit_steps() // interval > self._target_steps // interval

    def _follow_target(self) -> None:
        self._target.flat.lerp_(self._online.flat, self.parameters.target_share)
        self._target_steps = self._pace.next_unit_steps()  # other ranks than 0 have no steps, and are not asked

    def _model_state(self) -> dict[str, Any]:
        return {**super()._model_state(), "target_steps": self._target_steps}

    def _restore_model(self, kept: Mapping[str, Any]) -> None:
        super()._restore_model(kept)
        self._target_steps = int(kept.get("target_steps", 0))

    def _schedules(self) -> dict[str, float]:
        p, steps = self.parameters, self._pace.steps
        annealed = {"replay/priority_beta": p.priority_beta_at(steps)} if p.prioritised else {}
        return {"charts/epsilon": p.epsilon_at(steps), **annealed}

    def change(self, parameters: Mapping[str, object]) -> None:
        super().change(parameters)
        self._head = make_value_head(self.parameters, self._spec.outputs)

    def _gradient_step(self, batch: Columns, weight: float, rate: float) -> GradientStepResult:
        p, head = self.parameters, self._head
        targets = self._targets(batch)
        estimates = _of_actions(self._vectors(self._online, batch, "observations"), batch["actions"])
        losses = head.losses(estimates, targets)
        importance = batch.get("weights")
        loss = (losses if importance is None else importance * losses).mean()
        self._descend("online", loss, weight, rate)
        if p.target_every is not None and self._gradient_steps % p.target_every == 0:
            self._follow_target()
        estimates = estimates.detach()
        metrics = {"losses/td_loss": loss.detach(), "losses/q_values": head.values(estimates).mean()}
        return GradientStepResult(metrics, None if importance is None else head.errors(estimates, targets))

    @torch.no_grad()
    def _targets(self, batch: Columns) -> Tensor:
        """Return the target vectors (`ValueHead`) of the chosen actions, ``[B, W]`` (van Hasselt et al. 2016, equation 4)."""
        head = self._head
        estimates = self._vectors(self._target, batch, "successors")
        chooser = self._vectors(self._online, batch, "successors") if self.parameters.double_q else estimates
        values = head.values(chooser)
        if (forbidden := batch.get("forbidden")) is not None:
            values = values.masked_fill(forbidden, -torch.inf)
        return head.targets(batch["returns"], batch["discounts"], _of_actions(estimates, values.argmax(1)))

    def _vectors(self, network: ReplayNetwork | SequenceNetwork, batch: Columns, of: str) -> Tensor:
        """Return the vectors (`ValueHead`) of all actions, ``[B, n, W]``, for the observations in the column `of` of a batch.

        For a recurrent network, that column has rows of the column ``features``.
        """
        if isinstance(network, SequenceNetwork):
            return self._head.estimates(sequence_outputs(network, batch).index_select(0, batch[of]))
        return self._head.estimates(network(batch[of])[0])

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        """Return the weights of the policy: the trained network, with one output for each action value or logit."""
        parts = [self._online.flat.cpu().numpy()]
        if self._head.merges:
            weights, biases = self._output_layer(parts[0])
            hidden = parts[0][: -weights.size - biases.size]
            rows = self._head.policy_rows
            parts = [hidden, rows(weights).ravel(), rows(biases).ravel()]
        epsilon = np.array([self.parameters.epsilon_at(self._pace.steps)], np.float32)
        return self._spec.views(np.concatenate([*parts, epsilon]))

    def clone(self, segments: Sequence[Segment], options: CloneOptions) -> float:
        """Train the online network with a large margin (`margin_loss`). The target network then gets the same weights."""
        head, network = self._head, self._online
        if isinstance(network, SequenceNetwork):
            raise config_error(
                "demonstrations.clone_steps",
                f"{self.name} clones only policies without a recurrent state, not "
                f"{self.parameters.chosen_network().entry.name}; use another kind of network",
            )
        columns = cloned_columns(segments, self._observation_space, self._spec.action_space)

        def loss(features: Tensor, actions: Tensor, forbidden: Tensor | None = None) -> Tensor:
            return margin_loss(head.values(head.estimates(network(features)[0])), actions, forbidden)

        mean_loss = self._clone("online", columns, loss, options)
        self._target.flat.copy_(self._online.flat)
        return mean_loss

    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Replace the weights of the online and the target network by those of a policy. Epsilon keeps its schedule."""
        self._compute.ranks.differ()
        parts = [tensors[spec.name] for spec in self._spec.tensors[:-1]]  # the last one is epsilon
        if self._head.merges:
            # Many networks have this policy: the state gets the mean of the actions' values, and all quantiles are equal.
            rows = self._head.network_rows
            parts[-2:] = rows(parts[-2]), rows(parts[-1][:, None])
        flat = np.concatenate([part.ravel() for part in parts], dtype=np.float32)
        for network in (self._online, self._target):
            network.flat.copy_(torch.from_numpy(flat))

    def _output_layer(self, flat: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return views of the weights ``[outputs, inputs]`` and biases ``[outputs, 1]`` of the output layer."""
        outputs, inputs = self._head.outputs, self._spec.tensors[-3].shape[1]  # before the bias and epsilon
        return flat[-outputs * (inputs + 1) : -outputs].reshape(outputs, inputs), flat[-outputs:].reshape(outputs, 1)


class C51(DQN):
    """DQN with a categorical distribution of the return (Bellemare et al. 2017)."""

    name = "C51"
    parameters_type = C51Parameters


def _of_actions(estimates: Tensor, actions: Tensor) -> Tensor:
    """Return the vectors ``[B, W]`` that belong to the actions ``[B]``, from the vectors of all actions ``[B, n, W]``."""
    index = actions.view(-1, 1, 1).expand(-1, 1, estimates.shape[2])
    return estimates.gather(1, index).squeeze(1)
