"""The common part of the on-policy algorithms: batches of whole segments, two networks, statistics, and the state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rl4sys_zmq.algorithms.action_distributions import ActionDistributionBuilder, ActionScale, Distribution
from rl4sys_zmq.algorithms.cloning import clone_policy, cloned_columns, cross_entropy
from rl4sys_zmq.algorithms.networks.flat_networks import FlatAdam
from rl4sys_zmq.algorithms.networks.inputs import Sequences, initial_states, standardise
from rl4sys_zmq.algorithms.networks.interface import RecurrentNetwork
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import ActorCriticParameters
from rl4sys_zmq.algorithms.onpolicy.rollout import OnPolicyTraining, RewardScaler, RolloutBatch, RunningMoments
from rl4sys_zmq.errors import ConfigError, config_error
from rl4sys_zmq.learner.registry.algorithm_entry import read_parameters
from rl4sys_zmq.learner.registry.algorithm_protocols import CloneOptions
from rl4sys_zmq.learner.registry.compute import CPU, Compute, check_one_rank, check_rows
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, PolicySpec, Segment, Space
from rl4sys_zmq.values.features import feature_layout

POLICY_GAIN, VALUE_GAIN = 0.01, 1.0
WARM_START_ROWS = 10_000
"""The number of observations that the statistics of a given policy count as."""


class ActorCritic(OnPolicyTraining):
    """An on-policy algorithm with a policy and a value network. Each update trains on a batch of whole segments.

    A subclass computes the gradient steps of an update. This class does everything else:

    - The statistics that standardise observations change at the end of an update only, and actors get them with the weights. So
      the learner and actors with the newest version use the same statistics. The first update already uses those of the first
      batch, because the first policy hardly depends on its input.
    - When the statistics change, the first layers are adjusted, so that the networks compute what they computed before. Without
      this, each change would disturb what was learned: one of three runs on Pendulum stayed at a return of -600.
    """

    name: ClassVar[str]
    parameters_type: ClassVar[type[ActorCriticParameters]]

    def __init__(
        self, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> None:
        self._observation_space = observation_space
        self.parameters = p = read_parameters(self.parameters_type, parameters, algorithm=self.name)
        self.rollout_length = p.segment_length()
        self._spec = p.policy(self.name, observation_space, action_space)
        self._compute = CPU
        self._normalise = any(tensor.name == "obs_mean" for tensor in self._spec.tensors)
        self._generator = torch.Generator("cpu").manual_seed(seed)
        features = feature_layout(observation_space).size
        self._network = p.chosen_network().actor_critic(self._spec)
        self._network.initialise(self._generator, (POLICY_GAIN, VALUE_GAIN))
        if self._network.extras is not None:
            self._network.extras.data.fill_(p.log_std_init)
        self._optimizer = FlatAdam(self._network.flat, self._network.parts, eps=p.adam_eps, rms_prop=p.rms_prop)
        self._moments = RunningMoments(features)
        self._mean = torch.zeros(features, dtype=torch.float32, device="cpu")
        self._scale = torch.ones_like(self._mean)
        self._reward_scale = RewardScaler(p.gamma) if p.normalise_rewards else None
        self._steps = 0
        self._use_batches(p.batch(), ActionDistributionBuilder(action_space))
        self._configure(p)

    def _configure(self, parameters: ActorCriticParameters) -> None:
        """Use these parameters from the next update on."""
        self.parameters = parameters
        if self._reward_scale is not None:
            self._reward_scale.gamma = parameters.gamma

    @abstractmethod
    def _work(self, rollout: RolloutBatch) -> tuple[dict[str, Any], Sequences | None, dict[str, float]]:
        """Return the inputs of an update on all ranks, the sequences (None unless recurrent), and metrics.

        The first item has at least the tensors ``columns``, and ``rates``, the learning rates of both networks.
        """

    @abstractmethod
    def _fit(self, work: Mapping[str, Any], sequences: Sequences | None) -> dict[str, float]:
        """Do this rank's part of the gradient steps of an update, for the results of `_work`. Return the losses of all ranks."""

    def _train(self, rollout: RolloutBatch) -> dict[str, float]:
        """Do the gradient steps of one update, and return its metrics."""
        work, sequences, metrics = self._work(rollout)
        before = self._network.flat.clone()
        with self._compute.ranks.leading(work, self.checkpoint):
            losses = self._fit(work, sequences)
        change = float(torch.linalg.vector_norm(self._network.flat - before))
        return {**losses, **metrics, "losses/weight_change": change, "charts/learning_rate": work["rates"][0]}

    def follow(self, work: Mapping[str, Any]) -> None:
        self._fit({**work, "columns": {name: self._compute.put(column) for name, column in work["columns"].items()}}, None)

    def place(self, compute: Compute) -> None:
        check_rows(self.parameters.minibatch_steps(), compute.ranks)
        if isinstance(self._network, RecurrentNetwork):
            check_one_rank(self.parameters.chosen_network().entry.name, compute.ranks)
        self._compute = compute
        self._network.place(compute.device)
        self._actions.place(compute.device)
        self._optimizer.place(self._network.flat)
        self._mean, self._scale = compute.put(self._mean), compute.put(self._scale)

    def spec(self) -> PolicySpec:
        return self._spec

    def _train_batch(self, rollout: RolloutBatch) -> dict[str, float]:
        first = self._normalise and not self._moments.count
        if first:  # the first policy hardly depends on its input, so it may get other statistics before its first gradient step
            self._measure(rollout.features.numpy()[rollout.rows])
        metrics = self._train(rollout)
        self._steps += len(rollout.rewards)
        if self._normalise and not first:
            self._measure(rollout.features.numpy()[rollout.rows])
        return metrics

    def _measure(self, features: NDArray[np.float32]) -> None:
        """Add features ``[N, F]`` to the statistics that standardise observations.

        Then adjust the first layers of networks that have trained, so that their outputs stay the same.
        """
        trained = self._moments.count > 0
        self._moments.update(features)
        continuous = feature_layout(self._observation_space).continuous()  # all other features keep 0 and 1
        arrays = np.where(continuous, self._moments.mean, 0.0), np.where(continuous, self._moments.scale(), 1.0)
        mean, scale = (self._compute.put(torch.from_numpy(array.astype(np.float32))) for array in arrays)
        if trained:
            self._optimizer.rescale(self._network.change_inputs(self._mean, self._scale, mean, scale))
            self._compute.ranks.differ()
        self._mean, self._scale = mean, scale

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        flat = np.empty(self._spec.size, dtype=np.float32)
        policy = self._network.flat[self._network.parts[0]].cpu().numpy()
        flat[self._spec.size - len(policy) :] = policy
        tensors = self._spec.views(flat)
        if self._normalise:
            tensors["obs_mean"][:] = self._mean.cpu().numpy()
            tensors["obs_scale"][:] = self._scale.cpu().numpy()
        return tensors

    def state(self) -> dict[str, Any]:
        return {
            "parameters": self._network.flat.clone(),
            "optimizer": self._optimizer.state(),
            "generator": self._generator.get_state(),
            "steps": self._steps,
            "surplus": self._surplus,
            "trajectory_length": self._trajectory_length,
            "observations": self._moments.state(),
            "obs_mean": self._mean.clone(),
            "obs_scale": self._scale.clone(),
            "rewards": {} if self._reward_scale is None else self._reward_scale.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        flat = torch.as_tensor(state["parameters"], device="cpu")
        if flat.shape != self._network.flat.shape:
            raise ConfigError(f"the state has {flat.numel()} parameters; the networks have {self._network.flat.numel()}")
        if (self._reward_scale is None) is bool(state["rewards"]):
            raise ConfigError("the state has another normalise_rewards", key="algorithm_parameters.normalise_rewards")
        self._compute.ranks.differ()
        self._network.flat.copy_(flat)
        self._optimizer.load(state["optimizer"])
        self._generator.set_state(torch.as_tensor(state["generator"], device="cpu").clone())
        self._steps = int(state["steps"])
        self._trajectory_length = float(state["trajectory_length"])
        self._moments.load(state["observations"])
        device = self._compute.device
        self._mean = torch.as_tensor(state["obs_mean"], device="cpu").to(device, copy=True)
        self._scale = torch.as_tensor(state["obs_scale"], device="cpu").to(device, copy=True)
        if self._reward_scale is not None:
            self._reward_scale.load(state["rewards"])
        self._restart(int(state["surplus"]))

    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        flat, _ = self._spec.flatten(tensors)
        policy = self._network.flat[self._network.parts[0]]
        policy.copy_(torch.from_numpy(flat[self._spec.size - len(policy) :]))
        self._compute.ranks.differ()
        if self._normalise:
            mean, scale = (np.array(tensors[name], np.float32) for name in ("obs_mean", "obs_scale"))
            self._mean, self._scale = (self._compute.put(torch.from_numpy(array)) for array in (mean, scale))
            # New data replace the given statistics slowly.
            variance = 1.0 / np.maximum(scale.astype(np.float64), 1e-12) ** 2
            self._moments.load({"count": WARM_START_ROWS, "mean": mean.astype(np.float64), "variance": variance})

    def clone(self, segments: Sequence[Segment], options: CloneOptions) -> float:
        """Train the policy alone, by the cross-entropy of discrete actions or the mean squared error of continuous ones."""
        space, network = self._spec.action_space, self._network
        if self._spec.columns or not isinstance(space, BoxSpace | DiscreteSpace):
            raise config_error(
                "demonstrations.clone_steps",
                f"{self.name} clones only policies without a recurrent state, for Discrete or Box "
                f"actions, not {self._spec.kind} for {space}",
            )
        features, actions, *forbidden = cloned_columns(segments, self._observation_space, space)
        if self._normalise:
            self._measure(features.numpy())
        squashed = isinstance(space, BoxSpace) and self._spec.document.get("squash") == "tanh"
        if squashed and isinstance(space, BoxSpace):
            actions = ActionScale(space)(actions)

        def loss(inputs: Tensor, wanted: Tensor, excluded: Tensor | None = None) -> Tensor:
            outputs = network.one(0, self._standardised(inputs))
            if isinstance(space, DiscreteSpace):
                return cross_entropy(outputs, wanted, excluded)
            return functional.mse_loss(outputs.tanh() if squashed else outputs, wanted)

        self._compute.ranks.differ()
        columns = features, actions, *forbidden
        return clone_policy(columns, loss, lambda value: network.gradient(value, 0), network.flat, options, self._generator)

    def change(self, parameters: Mapping[str, object]) -> None:
        self._configure(read_parameters(self.parameters_type, parameters, algorithm=self.name))

    def numbers_to_check(self) -> list[NDArray[Any]]:
        statistics = [self._moments, *([] if self._reward_scale is None else [self._reward_scale.moments])]
        arrays = [array for moments in statistics for array in (moments.mean, moments.variance)]
        return [self._network.flat.cpu().numpy(), *self._optimizer.moments(), *arrays]

    def _standardised(self, features: Tensor) -> Tensor:
        return standardise(features, self._mean, self._scale) if self._normalise else features

    def _forward(self, rollout: RolloutBatch) -> tuple[dict[str, Tensor], Tensor, Tensor, Sequences | None]:
        """Compute both networks for all observations of a batch, without gradients.

        Return the columns ``features``, ``actions`` and (with masks) ``forbidden`` of the ``N`` steps, the log-probabilities of
        the actions ``[N]``, the values of all ``M`` observations ``[M, 1]``, and the sequences on which a recurrent network
        trains.
        """
        put = self._compute.put
        features, actions = self._standardised(put(rollout.features)), put(rollout.actions)
        rows = put(torch.from_numpy(rollout.rows))
        columns = {"features": features.index_select(0, rows), "actions": actions}
        if rollout.forbidden is not None:
            columns["forbidden"] = put(rollout.forbidden)
        with torch.no_grad():
            outputs, estimates, sequences = self._outputs(rollout, features)
            log_probs = self._distribution(outputs.index_select(0, rows), columns.get("forbidden")).log_probs(actions)
        return columns, log_probs, estimates, sequences

    def _outputs(self, rollout: RolloutBatch, features: Tensor) -> tuple[Tensor, Tensor, Sequences | None]:
        network = self._network
        if not isinstance(network, RecurrentNetwork):
            outputs, estimates = network(features)
            return outputs, estimates, None
        segments = rollout.segments
        states = self._compute.put(initial_states(segments, network.state_column))
        observed = Sequences([segment.steps + (not segment.terminated) for segment in segments], states)
        outputs, estimates = network(features, observed)
        trained = Sequences([segment.steps for segment in segments], states)
        longest = network.sequence_length
        if longest is not None and max(trained.lengths) > longest:
            after = network.states(features, observed).index_select(0, self._compute.put(torch.from_numpy(rollout.rows)))
            trained = trained.cut(longest, after)
        return outputs, estimates, trained

    def _step(self, loss: Tensor, rates: Sequence[float | None], only: int | None = None) -> None:
        """Take a gradient step together with all ranks; with `only`, it changes the parameters of this network alone."""
        gradient = self._network.gradient(loss, only)
        self._compute.ranks.add_up(gradient if only is None else gradient[self._network.parts[only]])
        self._optimizer.step(gradient, rates, max_norm=self.parameters.max_grad_norm)

    def _scaled_rewards(self, rollout: RolloutBatch) -> NDArray[np.float64]:
        """Update the statistics of rewards, and return the scaled ones. Call this once per batch."""
        rewards = rollout.rewards * self.parameters.reward_scale
        if self._reward_scale is None:
            return rewards
        of = rollout.segments
        return self._reward_scale(rewards, [s.steps for s in of], [s.episode_id for s in of], [s.ended for s in of])

    def _normalised(self, advantages: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the advantages of a batch with mean 0 and standard deviation 1; a single advantage does not change."""
        return (advantages - advantages.mean()) / (advantages.std() + 1e-8) if len(advantages) > 1 else advantages

    def _distribution(self, outputs: Tensor, forbidden: Tensor | None) -> Distribution:
        return self._actions(outputs, self._network.extras, forbidden)
