"""The common part of the on-policy algorithms: batches of whole segments, two networks, statistics, and the state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rl4sys_zmq.algorithms.action_distributions import ActionDistributions
from rl4sys_zmq.algorithms.action_scale import ActionScale
from rl4sys_zmq.algorithms.cloning import clone_policy, cloned_columns, cross_entropy
from rl4sys_zmq.algorithms.networks.sequences import Sequences
from rl4sys_zmq.algorithms.networks.torch_layers import Distribution, FlatAdam, standardise
from rl4sys_zmq.algorithms.onpolicy.actor_critic_network import RecurrentNetwork, initial_states
from rl4sys_zmq.algorithms.onpolicy.actor_critic_parameters import ActorCriticParameters
from rl4sys_zmq.algorithms.onpolicy.normalise import RewardScaler, RunningMoments
from rl4sys_zmq.algorithms.onpolicy.rollout import RolloutBatch, join_segments
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm import CloneOptions
from rl4sys_zmq.learner.registry.algorithm_entry import read_parameters
from rl4sys_zmq.learner.registry.compute import CPU, Compute, check_one_rank, check_rows
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, PolicySpec, Segment, Space
from rl4sys_zmq.values.features import feature_layout

POLICY_GAIN, VALUE_GAIN = 0.01, 1.0
FIRST_LENGTH_GUESS = 200.0
"""Assumed length of a trajectory until the first one has ended, in steps."""

WARM_START_ROWS = 10_000
"""The number of observations that the statistics of a policy count as, if the training starts with that policy."""

LENGTH_STEP = 0.05
"""The weight of each ended trajectory in the running mean of trajectory lengths."""


class ActorCritic(ABC):
    """An on-policy algorithm with a policy and a value network. Each update trains on a batch of whole segments.

    A subclass computes the gradient steps of an update, in `_train`. This class does everything else:

    - A batch consists of whole segments (parts of episodes), so it can be larger than configured. The next batch is then
      smaller by the surplus.
    - The statistics that standardise observations change at the end of an update only, and are sent to actors with the weights.
      So the learner and actors with the newest version use the same statistics. The first batch is an exception: its statistics
      hold already for the first update, because the first policy hardly depends on its input.
    - When the statistics change, the first layers are adjusted, so that the networks compute what they computed before. Without
      this, each change disturbs what was learned: one run of three on Pendulum stayed at a return of -600.
    - ``episodes_per_update`` counts ended episodes. In an episode that continues, each part with ``max_traj_length`` steps counts
      too.
    - `state` does not contain the segments that wait for the next update. After a restart, they are delivered again.

    Attributes:
        name: The name of the algorithm.
        parameters_type: The dataclass of its parameters.
        parameters: The parameters.
    """

    kind: ClassVar[str] = "onpolicy"
    name: ClassVar[str]
    parameters_type: ClassVar[type[ActorCriticParameters]]
    publish_every_updates: int = 1
    max_policy_lag: int | None = 4

    def __init__(
        self, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> None:
        self._observation_space = observation_space
        layout = feature_layout(observation_space)
        self._actions = ActionDistributions(action_space)
        self.parameters = p = read_parameters(self.parameters_type, parameters, algorithm=self.name)
        self.rollout_length = p.segment_length()
        self._spec = p.policy(self.name, observation_space, action_space)
        self._compute = CPU
        self._normalise = any(tensor.name == "obs_mean" for tensor in self._spec.tensors)
        self._generator = torch.Generator("cpu").manual_seed(seed)
        features = layout.size
        self._network = p.chosen_network().actor_critic(self._spec)
        self._network.initialise(self._generator, (POLICY_GAIN, VALUE_GAIN))
        if self._network.extras is not None:
            self._network.extras.data.fill_(p.log_std_init)
        self._optimizer = self._new_optimizer()
        self._moments = RunningMoments(features)
        self._mean = torch.zeros(features, dtype=torch.float32, device="cpu")
        self._scale = torch.ones_like(self._mean)
        self._reward_scale = RewardScaler(p.gamma) if p.normalise_rewards else None
        self._steps = 0
        self._trajectory_length = FIRST_LENGTH_GUESS
        self._taken: list[tuple[Segment, bool]] = []
        self._buffered = 0
        self._trajectories = 0
        self._batch = p.batch()
        self._complete = False
        self._surplus = 0
        self._configure(p)

    def _configure(self, parameters: ActorCriticParameters) -> None:
        """Use these parameters from the next update on. A subclass adds those that only it has."""
        self.parameters = parameters
        if self._reward_scale is not None:
            self._reward_scale.gamma = parameters.gamma

    def _new_optimizer(self) -> FlatAdam:
        """Return an optimizer of the networks that has taken no step."""
        p = self.parameters
        return FlatAdam(self._network.flat, self._network.parts, eps=p.adam_eps, betas=p.betas, bias_correction=not p.rms_prop)

    @abstractmethod
    def _train(self, rollout: RolloutBatch) -> dict[str, float]:
        """Do the gradient steps of one update on a batch. Return the metrics of the update."""

    @abstractmethod
    def follow(self, work: Mapping[str, Any]) -> None:
        """Do this rank's part of the gradient steps of an update. The ranks are the processes that train together."""

    def place(self, compute: Compute) -> None:
        """Move the networks and the optimizer to a device, and use it and its ranks (processes) from now on.

        Raises:
            ConfigError: If there are more ranks than a minibatch has steps, or if there are several and the network is recurrent.
        """
        check_rows(self.parameters.minibatch_steps(), compute.ranks)
        if isinstance(self._network, RecurrentNetwork):
            check_one_rank(self.parameters.chosen_network().entry.name, compute.ranks)
        self._compute = compute
        self._network.place(compute.device)
        self._actions.place(compute.device)
        self._optimizer = self._new_optimizer()
        self._mean, self._scale = compute.put(self._mean), compute.put(self._scale)

    def spec(self) -> PolicySpec:
        """Return the specification of the policy, whose head samples the actions of `ActionDistributions`.

        It includes the statistics that standardise observations, if the parameters ask for standardisation.
        """
        return self._spec

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Keep the segment for the next update. If `correct` is True, the update must correct for its age."""
        if not segment.steps:
            return
        self._taken.append((segment, correct))
        self._buffered += segment.steps
        ends = segment.ended or segment.capped
        self._trajectories += ends
        self._complete = self._complete or (self._missing() == 0 and (ends or not self._batch.ends_trajectory))

    def demand(self) -> int:
        """Return the number of steps that are missing until the batch is complete.

        If the batch depends on the ends of trajectories, this is an estimate from the mean length of trajectories.
        """
        if self._complete:
            return 0
        return self._missing() or math.ceil(self._trajectory_length)

    def _missing(self) -> int:
        """Return the number of steps that are missing from the batch, without the steps until the current trajectory ends."""
        if self._batch.steps is not None:
            return max(0, self._batch.steps - self._surplus - self._buffered)
        return math.ceil(max(0, (self._batch.trajectories or 0) - self._trajectories) * self._trajectory_length)

    def _limited(self, surplus: int) -> int:
        """Return the number of surplus steps by which the next batch is smaller. No batch shrinks to less than half."""
        steps = self._batch.steps
        return min(max(0, surplus), steps // 2) if steps is not None and not self._batch.ends_trajectory else 0

    def update(self, *, partial: bool = False) -> dict[str, float] | None:
        """Do one update on all segments observed since the last update, and return its metrics.

        Return None if these segments are not a complete batch. With `partial`, return None only if there are no segments.
        """
        if not self._buffered or (self.demand() > 0 and not partial):
            return None
        rollout = join_segments(self._taken, self._observation_space, self._actions)
        trajectories = self._trajectories
        self._clear()
        first = self._normalise and not self._moments.count
        if first:  # the first policy hardly depends on its input, so it may get other statistics before its first gradient step
            self._measure(rollout.features.numpy()[rollout.rows])
        metrics = self._train(rollout)
        self._steps += len(rollout.rewards)
        self._surplus = self._limited(self._surplus + len(rollout.rewards) - (self._batch.steps or 0))
        if trajectories:
            mean_length = len(rollout.rewards) / trajectories
            self._trajectory_length += (1 - (1 - LENGTH_STEP) ** trajectories) * (mean_length - self._trajectory_length)
        if self._normalise and not first:
            self._measure(rollout.features.numpy()[rollout.rows])
        return metrics

    def _measure(self, features: NDArray[np.float32]) -> None:
        """Add observations to the statistics by which observations are standardised: those of Box features.

        The networks keep computing what they computed before, because their first layers and Adam's moments are adjusted. The
        first observations are an exception: before them, the networks were not trained.

        Args:
            features: The features of the observations, ``[N, F]``.
        """
        trained = self._moments.count > 0
        self._moments.update(features)
        mean, scale = self._statistics()
        if trained:
            self._optimizer.rescale(self._network.change_inputs(self._mean, self._scale, mean, scale))
            self._compute.ranks.differ()
        self._mean, self._scale = mean, scale

    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the factor of each feature for standardisation, 0 and 1 for a feature that is not of a Box."""
        continuous = feature_layout(self._observation_space).continuous()
        arrays = np.where(continuous, self._moments.mean, 0.0), np.where(continuous, self._moments.scale(), 1.0)
        mean, scale = (self._compute.put(torch.from_numpy(array.astype(np.float32))) for array in arrays)
        return mean, scale

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the policy's weights by name.

        They include ``log_std`` for continuous actions, and the current statistics that standardise observations.
        """
        flat = np.empty(self._spec.size, dtype=np.float32)
        policy = self._network.flat[self._network.parts[0]].cpu().numpy()
        flat[self._spec.size - len(policy) :] = policy
        tensors = self._spec.views(flat)
        if self._normalise:
            tensors["obs_mean"][:] = self._mean.cpu().numpy()
            tensors["obs_scale"][:] = self._scale.cpu().numpy()
        return tensors

    def state(self) -> dict[str, Any]:
        """Return copies of the whole state, except the segments that wait for the next update."""
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
        """Restore a state that `state` has returned. Discard the segments observed since the last update.

        Raises:
            ConfigError: If the state comes from a network of another size, or was saved with another ``normalise_rewards``.
        """
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
        self._surplus = self._limited(int(state["surplus"]))  # the size of a batch can be new
        self._trajectory_length = float(state["trajectory_length"])
        self._moments.load(state["observations"])
        device = self._compute.device
        self._mean = torch.as_tensor(state["obs_mean"], device="cpu").to(device, copy=True)
        self._scale = torch.as_tensor(state["obs_scale"], device="cpu").to(device, copy=True)
        if self._reward_scale is not None:
            self._reward_scale.load(state["rewards"])
        self._clear()

    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Replace the policy's weights and observation statistics, to start training from an existing policy.

        The statistics count as those of `WARM_START_ROWS` observations, so that new data replaces them slowly.
        """
        flat, _ = self._spec.flatten(tensors)
        policy = self._network.flat[self._network.parts[0]]
        policy.copy_(torch.from_numpy(flat[self._spec.size - len(policy) :]))
        self._compute.ranks.differ()
        if self._normalise:
            mean, scale = (np.array(tensors[name], np.float32) for name in ("obs_mean", "obs_scale"))
            self._mean, self._scale = (self._compute.put(torch.from_numpy(array)) for array in (mean, scale))
            variance = 1.0 / np.maximum(scale.astype(np.float64), 1e-12) ** 2
            self._moments.load({"count": WARM_START_ROWS, "mean": mean.astype(np.float64), "variance": variance})

    def clone(self, segments: Sequence[Segment], options: CloneOptions) -> float:
        """Train the policy on demonstrations, without the standard deviations of continuous actions and without the values.

        The loss is the cross-entropy of discrete actions, or the mean squared error of the means of continuous actions (after
        tanh, if the policy has it). The statistics that standardise observations begin with the demonstrations, or after
        `load_policy` they continue with them. Return the mean loss of the last tenth of the steps.

        Raises:
            ConfigError: If the policy has a recurrent state, or the actions are neither Discrete nor Box.
        """
        space, network = self._spec.action_space, self._network
        if self._spec.columns or not isinstance(space, BoxSpace | DiscreteSpace):
            raise ConfigError(
                f"demonstrations.clone_steps: {self.name} clones only policies without a recurrent state, for Discrete or Box "
                f"actions, not {self._spec.kind} for {space}",
                key="demonstrations.clone_steps",
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

        found = clone_policy(
            (features, actions, *forbidden),
            loss,
            lambda value: network.gradient(value, 0),
            network.flat,
            options,
            self._generator,
        )
        self._compute.ranks.differ()
        return found

    def change(self, parameters: Mapping[str, object]) -> None:
        """Use these parameters from the next update on. Only those in ``changeable`` of the parameters can have new values."""
        self._configure(read_parameters(self.parameters_type, parameters, algorithm=self.name))

    def checkpoint(self) -> dict[str, Any]:
        """Return copies of everything that an update changes, for `restore`. This is the same as `state`."""
        return self.state()

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Return to a state that `checkpoint` has copied, and discard the segments that wait for the next update."""
        self.load(kept)

    def numbers_to_check(self) -> list[NDArray[Any]]:
        """Return the weights, Adam's moments, and the statistics of observations and returns: views, or copies from a GPU.

        The learner thread checks that they are finite.
        """
        found: list[NDArray[Any]] = [self._network.flat.cpu().numpy(), *self._optimizer.moments()]
        for moments in (self._moments, *([] if self._reward_scale is None else [self._reward_scale.moments])):
            found += [moments.mean, moments.variance]
        return found

    def discard(self) -> list[int]:
        """Return an empty list: an on-policy algorithm has no replay buffer from which to remove bad segments."""
        return []

    def _clear(self) -> None:
        """Discard the segments that wait for the next update."""
        self._taken, self._buffered, self._trajectories, self._complete = [], 0, 0, False

    def _standardised(self, features: Tensor) -> Tensor:
        """Return features after the standardisation of observations, if the parameters ask for it."""
        return standardise(features, self._mean, self._scale) if self._normalise else features

    def _evaluate(self, rollout: RolloutBatch, features: Tensor) -> tuple[Tensor, Tensor, Sequences | None]:
        """Compute both networks for all observations of a batch, without gradients.

        Args:
            rollout: The batch.
            features: The standardised features of all its ``M`` observations.

        Returns:
            The outputs of the policy ``[M, n]``, the estimated values ``[M, 1]``, and the sequences of the batch's ``N`` steps to
            train a recurrent network on; None for other networks.
        """
        network = self._network
        with torch.no_grad():
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

    def _scaled_rewards(self, rollout: RolloutBatch) -> NDArray[np.float64]:
        """Return the rewards of a batch after scaling. Update the statistics of rewards. Call this once per batch."""
        rewards = rollout.rewards * self.parameters.reward_scale
        if self._reward_scale is None:
            return rewards
        of = rollout.segments
        return self._reward_scale(rewards, [s.steps for s in of], [s.episode_id for s in of], [s.ended for s in of])

    def _step_values(self, rollout: RolloutBatch, estimates: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the values before and after each step of a batch, ``[N]`` each; 0 after a step to a terminal state.

        Args:
            rollout: The batch.
            estimates: The estimated values of all its observations, ``[M, 1]``.
        """
        all_values = np.append(estimates.squeeze(1).cpu().numpy().astype(np.float64), 0.0)
        return all_values[rollout.rows], all_values[rollout.rows + 1] * rollout.alive

    def _distribution(self, outputs: Tensor, forbidden: Tensor | None) -> Distribution:
        return self._actions(outputs, self._network.extras, forbidden)
