"""DQN: double Q-learning from a replay buffer of n-step transitions, for discrete actions.

The amount of training depends only on the number of observed steps, never on time. After each `train_frequency` environment
steps, one unit of training follows, which consists of `gradient_steps` gradient steps. So the speed of the actors does not
change the number of gradient steps per environment step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.compute import CPU, Compute, RowShare, check_rows
from rl4sys_zmq.learner.algorithms.dqn_parameters import DQNParameters, plan_dqn
from rl4sys_zmq.learner.algorithms.entry import read_parameters
from rl4sys_zmq.learner.algorithms.failing_rows import find_failing_rows
from rl4sys_zmq.learner.algorithms.networks import FlatAdam, MLPStack, encode_observations
from rl4sys_zmq.learner.algorithms.torch_draws import TorchDraws
from rl4sys_zmq.replay import ReplayMemory, ReplayOptions, TransitionBatch
from rl4sys_zmq.values import DiscreteSpace, ObservationSpace, PolicySpec, Segment, Space, feature_size
from rl4sys_zmq.values.observations import flat_space

__all__ = ["DQN"]

_STEPS_PER_VERSION = 256
_COUNTERS = ("steps", "episodes", "units", "gradient_steps")


@dataclass(frozen=True, slots=True, eq=False)
class _TransitionTensors:
    """The inputs of a gradient step on ``B`` transitions, as tensors.

    Attributes:
        observations: The features of the observations before the actions, float32 ``[B, F]``.
        actions: Int64 ``[B]``, from 0.
        returns: The n-step returns, float32 ``[B]``.
        discounts: The factors of the values of `successors`, float32 ``[B]``.
        successors: The features of the observations whose estimated values are added to the returns, float32 ``[B, F]``.
        forbidden: True for each action that is forbidden in `successors`, bool ``[B, n]``; None if all are allowed.
        weights: The importance weights of prioritized sampling, float32 ``[B]``; None with uniform sampling.
    """

    observations: torch.Tensor
    actions: torch.Tensor
    returns: torch.Tensor
    discounts: torch.Tensor
    successors: torch.Tensor
    forbidden: torch.Tensor | None = None
    weights: torch.Tensor | None = None

    def columns(self) -> dict[str, torch.Tensor]:
        """Return the columns by name, without those that are None."""
        return {name: column for name in self.__slots__ if (column := getattr(self, name)) is not None}


class _StepResult(NamedTuple):
    """The results of a gradient step: the loss, the mean value of the batch's actions, and the TD errors ``[B]`` if needed."""

    loss: torch.Tensor
    mean_value: torch.Tensor
    errors: torch.Tensor | None


class DQN:
    """Deep Q-learning (Mnih et al. 2015) with double Q-learning (van Hasselt et al. 2016) and n-step returns.

    With the parameter `prioritised`, transitions with large TD errors are drawn more often (Schaul et al. 2016).

    The default parameters prevent two causes of collapse, both measured on CartPole-v1:

    - The maximum over noisy values is too high on average. Each bootstrap adds this error, so the values become too high by
      about ``1 / (1 - gamma ** n_step)`` times the error. A larger `n_step` and a target network that changes slowly keep the
      error small. Values above ``reward / (1 - gamma)`` are a symptom.
    - With a loss that is linear beyond an error of 1, the values approach the median of their targets, not the mean. Where
      values are near 100, the median hides a failure that occurs in one of ten cases. So the default `huber_delta` is 100.
    """

    kind: ClassVar[str] = "offpolicy"
    max_policy_lag: int | None = None

    def __init__(
        self, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> None:
        observations = self._observation_space = flat_space(observation_space, "DQN")
        self._spec = plan_dqn(observation_space, action_space, parameters)
        self._compute = CPU
        self.parameters = p = read_parameters(DQNParameters, parameters, algorithm="DQN")
        assert isinstance(action_space, DiscreteSpace)
        self.rollout_length = p.rollout_length
        self.publish_every_updates = max(1, round(_STEPS_PER_VERSION / p.unit_steps)) if p.traj_per_epoch is None else 1
        self._generator = torch.Generator().manual_seed(seed)
        self._draws = TorchDraws(self._generator)
        options = ReplayOptions(capacity=p.buffer_size, gamma=p.gamma, n_step=p.n_step, priority=p.priority)
        self._replay = ReplayMemory(observations, action_space, options)
        self._online, self._target = (
            MLPStack(feature_size(observations), p.hidden_sizes, [action_space.n], p.activation) for _ in range(2)
        )
        self._online.initialise(self._generator, [1.0])
        self._target.flat.copy_(self._online.flat)
        self._optimizer = FlatAdam(self._online.flat, eps=p.adam_epsilon)
        self._steps = 0
        self._episodes = 0  # ended since `learning_starts`
        self._units = 0  # of training that are done
        self._gradient_steps = 0

    def place(self, compute: Compute) -> None:
        """Move the networks and the optimizer to a device, and use it and its ranks (processes) from now on.

        The replay buffer stays in the memory of the CPU.

        Raises:
            ConfigError: If there are more ranks than a batch has transitions.
        """
        check_rows(self.parameters.batch_size, compute.ranks)
        self._compute = compute
        for network in (self._online, self._target):
            network.place(compute.device)
        self._optimizer = FlatAdam(self._online.flat, eps=self.parameters.adam_epsilon)

    def use_folder(self, folder: Path) -> None:
        """Keep the replay buffer in files in this folder if it will be larger than `buffer_memory_bytes`.

        Raises:
            ConfigError: If the disk has too little space.
        """
        if self._replay.nbytes > self.parameters.buffer_memory_bytes:
            self._replay.use_folder(folder)

    def spec(self) -> PolicySpec:
        """Return the specification of the policy: an MLP with one value per action, and epsilon (for random actions)."""
        return self._spec

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Write the segment into the replay buffer. Off-policy data can have any age, so `correct` has no effect."""
        self._replay.add(segment)
        self._steps += segment.steps
        if self._steps >= self.parameters.learning_starts:
            self._episodes += segment.ended or segment.capped

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do one unit of training (`gradient_steps` gradient steps) and return its metrics, or return None if it is too early.

        One unit follows each `train_frequency` observed environment steps, or each `traj_per_epoch` ended episodes if that is
        set. With `samples_per_insert`, a unit follows as soon as this ratio allows it (`SamplesPerInsert`). The argument
        `partial` has no effect.
        """
        if self._units >= self._units_due() or not len(self._replay):
            return None
        p = self.parameters
        rate = p.learning_rate_at(self._steps)
        losses, values, _ = zip(*(self._gradient_step(rate) for _ in range(p.gradient_steps)), strict=True)
        self._units += 1
        annealed = {"replay/priority_beta": p.priority_beta_at(self._steps)} if p.prioritised else {}
        return {
            "losses/td_loss": float(torch.stack(losses).mean()),
            "losses/q_values": float(torch.stack(values).mean()),
            "charts/epsilon": p.epsilon_at(self._steps),
            "charts/learning_rate": rate,
            "replay/size": float(len(self._replay)),
            **annealed,
        }

    def demand(self) -> int:
        """Return the number of environment steps that are missing until the next policy version can be published.

        With `samples_per_insert`, the number is smaller if training lags behind the ratio.

        If `discard` has emptied the replay buffer, return the length of one segment, so that new data arrive.
        """
        p = self.parameters
        if not len(self._replay) and self._steps:  # the replay was discarded as a whole
            return p.rollout_length
        next_version = (self._units // self.publish_every_updates + 1) * self.publish_every_updates
        if p.traj_per_epoch is not None:
            # The lengths of future episodes are unknown. One segment per missing episode never stalls and rarely overshoots.
            missing = max(0, next_version * p.traj_per_epoch - self._episodes) * p.rollout_length
            return max(missing, p.learning_starts - self._steps, 0)
        if (rate := p.insert_rate) is not None:
            due = rate.inserts_for(next_version * p.unit_samples) - self._steps
            return max(0, min(due, rate.room(self._steps, self._units * p.unit_samples)))
        return max(0, p.learning_starts + next_version * p.train_frequency - self._steps)

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the online network's weights, and the current epsilon. The target network is not included."""
        flat = np.append(self._online.flat.cpu().numpy(), np.float32(self.parameters.epsilon_at(self._steps))).astype(np.float32)
        return {k: v.copy() for k, v in self._spec.views(flat).items()}

    def state(self) -> dict[str, Any]:
        """Return copies of both networks, the optimizer's state, the random state, the replay buffer and the counters."""
        return self.state_beyond(())

    def state_beyond(self, stored: Collection[str]) -> dict[str, Any]:
        """Return the same as `state`, but without the arrays of those pieces of the replay buffer whose names are in `stored`."""
        return {
            "online": self._online.flat.clone(),
            "target": self._target.flat.clone(),
            "optimizer": self._optimizer.state(),
            "generator": self._generator.get_state(),
            "replay": self._replay.state(stored),
            "counters": {name: getattr(self, f"_{name}") for name in _COUNTERS},
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` has returned.

        Raises:
            ConfigError: If the state comes from a network of another size, or from a replay buffer of another capacity or shape.
        """
        size = torch.as_tensor(state["online"]).numel()
        if size != self._online.flat.numel():
            raise ConfigError(f"the state has {size} parameters; the network has {self._online.flat.numel()}")
        self._compute.ranks.differ()
        self._online.flat.copy_(torch.as_tensor(state["online"]))
        self._target.flat.copy_(torch.as_tensor(state["target"]))
        self._optimizer.load(state["optimizer"])
        self._generator.set_state(torch.as_tensor(state["generator"]))
        self._replay.load(state["replay"])
        for name in _COUNTERS:
            setattr(self, f"_{name}", int(state["counters"][name]))

    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Replace the weights of the online and the target network, to start training from an existing policy.

        Epsilon (the probability of a random action) keeps its schedule.
        """
        self._compute.ranks.differ()
        flat, _ = self._spec.flatten(tensors)
        for network in (self._online, self._target):
            network.flat.copy_(torch.from_numpy(flat[: network.flat.numel()]))

    def change(self, parameters: Mapping[str, object]) -> None:
        """Use these parameters from the next update on. Only those in `DQNParameters.changeable` can have new values."""
        self.parameters = read_parameters(DQNParameters, parameters, algorithm="DQN")

    def checkpoint(self) -> tuple[Any, ...]:
        """Return copies of everything that an update changes, so that `restore` can undo the update.

        These are the weights of both networks, the optimizer's state, the random state, the counts of updates, and the
        priorities of the transitions, not the transitions.
        """
        return *self._training_state(), self._replay.checkpoint()

    def _training_state(self) -> tuple[Any, ...]:
        """Return what `checkpoint` does, without the priorities. Only rank 0 has these."""
        networks = self._online.flat.clone(), self._target.flat.clone()
        return *networks, self._optimizer.state(), self._generator.get_state(), self._units, self._gradient_steps

    def restore(self, kept: tuple[Any, ...]) -> None:
        """Return to a state that `checkpoint` has copied. The transitions and the counts of observed data do not change."""
        self._compute.ranks.differ()
        online, target, optimizer, generator, self._units, self._gradient_steps, priorities = kept
        self._online.flat.copy_(online)
        self._target.flat.copy_(target)
        self._optimizer.load(optimizer)
        self._generator.set_state(generator)
        self._replay.restore(priorities)

    def numbers_to_check(self) -> list[NDArray[Any]]:
        """Return the weights of both networks, and Adam's moments: views, or copies from a GPU.

        The caller checks that they are finite.
        """
        return [self._online.flat.cpu().numpy(), self._target.flat.cpu().numpy(), *self._optimizer.moments()]

    def discard(self) -> list[int]:
        """Find the transitions that make the next update non-finite, and remove their segments from the replay buffer.

        The transitions of the first failing gradient step are halved again and again, as long as a half still fails. The networks
        stay unchanged.

        Returns:
            The numbers of the removed segments, counted from 0 in the order of the calls of `observe`.
        """
        kept = self.checkpoint()
        p = self.parameters
        draw = lambda: self._replay.draw(p.batch_size, self._draws)  # noqa: E731
        rows = find_failing_rows(p.gradient_steps, draw, self.checkpoint, self._survives)
        self.restore(kept)
        return self._replay.discard(np.unique(rows)) if len(rows) else []

    def _survives(self, rows: NDArray[np.int64], before: tuple[Any, ...]) -> bool:
        """Return True if the loss and all weights are finite after a gradient step on some replay rows, from a given state."""
        self.restore(before)
        loss = self._train_on(rows, self.parameters.learning_rate_at(self._steps)).loss
        return bool(torch.isfinite(loss)) and all(bool(np.isfinite(array).all()) for array in self.numbers_to_check())

    def _units_due(self) -> int:
        p = self.parameters
        if (rate := p.insert_rate) is not None:
            return rate.samples(self._steps) // p.unit_samples
        if p.traj_per_epoch is None:
            return max(0, self._steps - p.learning_starts) // p.train_frequency
        return self._episodes // p.traj_per_epoch

    def _gradient_step(self, rate: float) -> _StepResult:
        """Take one gradient step on a random batch."""
        return self._train_on(self._replay.draw(self.parameters.batch_size, self._draws), rate)

    def _train_on(self, rows: NDArray[np.int64], rate: float) -> _StepResult:
        """Take one gradient step on these replay rows, and update their priorities."""
        batch = self._tensors(self._replay.gather(rows), self._importance(rows))
        with self._compute.ranks.leading({"columns": batch.columns(), "rate": rate}, lambda: (*self._training_state(), None)):
            result = self._step(batch, rate)
        if result.errors is not None:
            self._replay.update_priorities(rows, result.errors.cpu().numpy())
        return result

    def _importance(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
        p = self.parameters
        return self._replay.weights(rows, p.priority_beta_at(self._steps)) if p.prioritised else None

    def _tensors(self, batch: TransitionBatch, weights: NDArray[np.float32] | None = None) -> _TransitionTensors:
        observations, successors = (
            encode_observations(self._observation_space, column) for column in (batch.observations, batch.successors)
        )
        actions, returns, discounts = (torch.from_numpy(column) for column in (batch.actions, batch.returns, batch.discounts))
        forbidden = None if batch.masks is None else ~torch.from_numpy(batch.masks)
        importance = None if weights is None else torch.from_numpy(weights)
        return _TransitionTensors(observations, actions, returns, discounts, successors, forbidden, importance)

    def follow(self, work: Mapping[str, Any]) -> None:
        """Do this rank's part of a gradient step. The ranks are the processes that train together."""
        self._step(_TransitionTensors(**work["columns"]), work["rate"])

    def _step(self, batch: _TransitionTensors, rate: float) -> _StepResult:
        """Take a gradient step on a batch.

        Each rank (one of the processes that train together) computes with its share of the rows.
        """
        p, ranks, put = self.parameters, self._compute.ranks, self._compute.put
        rows = len(batch.actions)
        share = ranks.share(rows)
        if ranks.size > 1:
            batch = _TransitionTensors(**{name: column[share.rows] for name, column in batch.columns().items()})
        targets = self._targets(batch)
        values = self._online(put(batch.observations))[0].gather(1, put(batch.actions).unsqueeze(1)).squeeze(1)
        if batch.weights is None:
            loss = functional.huber_loss(values, targets, delta=p.huber_delta)
        else:
            loss = (put(batch.weights) * functional.huber_loss(values, targets, reduction="none", delta=p.huber_delta)).mean()
        gradient = self._online.gradient(loss if ranks.size == 1 else loss * share.weight)
        ranks.add_up(gradient)
        self._optimizer.step(gradient, [rate], max_norm=p.max_grad_norm)
        self._gradient_steps += 1
        if self._gradient_steps % p.target_every == 0:
            self._target.flat.lerp_(self._online.flat, p.target_share)
        loss, mean_value = loss.detach(), values.detach().mean()
        errors = None if batch.weights is None else values.detach() - targets
        if ranks.size > 1:
            means = torch.stack((loss, mean_value)) * share.weight
            ranks.add_up(means)
            loss, mean_value = means.unbind()
            errors = None if errors is None else self._all_errors(errors, share, rows)
        return _StepResult(loss, mean_value, errors)

    def _all_errors(self, errors: torch.Tensor, share: RowShare, rows: int) -> torch.Tensor:
        """Return the TD errors of all rows of a batch, given those of this rank's share."""
        every = torch.zeros(rows, device=errors.device)
        if share.weight:
            every[share.rows] = errors
        self._compute.ranks.add_up(every)
        return every

    @torch.no_grad()
    def _targets(self, batch: _TransitionTensors) -> torch.Tensor:
        """Return the values that the online network must learn for a batch, ``[B]`` (van Hasselt et al. 2016, equation 4)."""
        put = self._compute.put
        successors = put(batch.successors)
        values = self._target(successors)[0]
        chooser = self._online(successors)[0] if self.parameters.double_q else values
        if batch.forbidden is not None:
            chooser = chooser.masked_fill(put(batch.forbidden), -torch.inf)
        best = values.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)
        return put(batch.returns) + put(batch.discounts) * best
