"""The common part of the off-policy algorithms with a policy and critics: replay, schedule of the training, state and undoing.

The amount of training depends only on the number of observed steps, never on time. After each `train_frequency` environment
steps, one unit of training follows, which consists of `gradient_steps` gradient steps. So the speed of the actors does not
change the number of gradient steps per environment step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.compute import CPU, Compute, check_rows
from rl4sys_zmq.learner.algorithms.entry import read_parameters
from rl4sys_zmq.learner.algorithms.failing_rows import find_failing_rows
from rl4sys_zmq.learner.algorithms.networks import FlatAdam, MLPStack, encode_observations
from rl4sys_zmq.learner.algorithms.offpolicy_parameters import OffPolicyParameters
from rl4sys_zmq.learner.algorithms.torch_draws import TorchDraws
from rl4sys_zmq.policies.gaussian import action_bounds
from rl4sys_zmq.replay import ReplayMemory, ReplayOptions, TransitionBatch
from rl4sys_zmq.values import BoxSpace, ObservationSpace, PolicySpec, Segment
from rl4sys_zmq.values.observations import flat_space

__all__ = ["ActionScale", "Columns", "ReplayAlgorithm"]

P = TypeVar("P", bound=OffPolicyParameters)

Columns = dict[str, Tensor]
"""The inputs of a gradient step on ``B`` transitions, by name.

``observations`` and ``successors`` are features, float32 ``[B, F]``. ``actions`` is float32 ``[B, n]``, or int64 ``[B]`` from 0
for discrete actions. ``returns`` and ``discounts`` are float32 ``[B]`` (see `TransitionBatch`). An algorithm adds further
columns, such as random numbers, so that each rank has those of its rows.
"""


class ActionScale:
    """A function that scales actions of a bounded Box, float32 ``[B, *act]``, to numbers between -1 and 1, ``[B, n]``.

    A dimension whose bounds are equal becomes 0.
    """

    def __init__(self, space: BoxSpace) -> None:
        bounds = action_bounds(space)
        self._centre = torch.from_numpy(bounds.centre.astype(np.float32))
        self._inverse = torch.from_numpy(1.0 / np.where(bounds.half > 0.0, bounds.half, np.inf).astype(np.float32))

    def __call__(self, actions: Tensor) -> Tensor:
        """Return the scaled actions."""
        return (actions.flatten(1) - self._centre).mul_(self._inverse).clamp_(-1.0, 1.0)


class ReplayAlgorithm(ABC, Generic[P]):
    """The base class of the off-policy algorithms with a policy and critics.

    A subclass builds its networks in its constructor, calls `_use` with them, and computes a gradient step in `_gradient_step`.
    """

    kind: ClassVar[str] = "offpolicy"
    max_policy_lag: int | None = None

    def __init__(self, spec: PolicySpec, parameters: P, algorithm: str, seed: int) -> None:
        """Create the parts that do not depend on the algorithm.

        Args:
            spec: The specification of the policy. It has the spaces.
            parameters: The parameters of the algorithm.
            algorithm: The name of the algorithm, for error messages.
            seed: The seed of all random numbers.
        """
        self.parameters: P = parameters
        self.rollout_length = parameters.rollout_length
        self.publish_every_updates = parameters.updates_per_version()
        self._algorithm = algorithm
        self._spec = spec
        self._observation_space = flat_space(spec.observation_space, algorithm)
        self._compute = CPU
        self._generator = torch.Generator().manual_seed(seed)
        self._draws = TorchDraws(self._generator)
        options = ReplayOptions(capacity=parameters.buffer_size, gamma=parameters.gamma, n_step=parameters.n_step)
        self._replay = ReplayMemory(self._stored_space(), spec.action_space, options)
        self._networks: dict[str, MLPStack] = {}
        self._optimizers: dict[str, FlatAdam] = {}
        self._steps = 0
        self._episodes = 0  # ended since `learning_starts`
        self._units = 0  # of training that are done
        self._gradient_steps = 0

    # ---- what a subclass defines

    def _use(self, networks: Mapping[str, MLPStack], optimizers: Mapping[str, FlatAdam]) -> None:
        """Take the networks by name, and the optimizers of those that are trained. The first network changes at each step."""
        self._networks, self._optimizers = dict(networks), dict(optimizers)

    @abstractmethod
    def _gradient_step(self, batch: Columns, weight: float) -> dict[str, Tensor]:
        """Take a gradient step on the rows of this rank, and return metrics by tag: means over these rows, as scalar tensors.

        Args:
            batch: The columns of these rows, on the device of the networks.
            weight: The share of these rows in the batch (`RowShare.weight`).
        """

    @abstractmethod
    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the policy's weights by name."""

    @abstractmethod
    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Replace the weights of the policy, to start the training from an existing policy."""

    def _stored_space(self) -> ObservationSpace:
        """Return the space of the observations in the replay."""
        return self._observation_space

    def _stored(self, segment: Segment) -> Segment:
        """Return the segment as the replay gets it."""
        return segment

    def _columns(self, batch: TransitionBatch) -> Columns:
        """Return the inputs of a gradient step."""
        return {
            "observations": encode_observations(self._observation_space, batch.observations),
            "actions": torch.from_numpy(batch.actions),
            "returns": torch.from_numpy(batch.returns),
            "discounts": torch.from_numpy(batch.discounts),
            "successors": encode_observations(self._observation_space, batch.successors),
        }

    # ---- observing and training

    def use_folder(self, folder: Path) -> None:
        """Keep the replay buffer in files in this folder if it will be larger than `buffer_memory_bytes`.

        Raises:
            ConfigError: If the disk has too little space.
        """
        if self._replay.nbytes > self.parameters.buffer_memory_bytes:
            self._replay.use_folder(folder)

    def spec(self) -> PolicySpec:
        """Return the specification of the policy."""
        return self._spec

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Write the segment into the replay buffer. Off-policy data can have any age, so `correct` has no effect."""
        self._replay.add(self._stored(segment))
        self._steps += segment.steps
        if self._steps >= self.parameters.learning_starts:
            self._episodes += segment.ended or segment.capped

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do one unit of training (`gradient_steps` gradient steps) and return its metrics, or return None if it is too early.

        One unit follows each `train_frequency` observed environment steps, or each `traj_per_epoch` ended episodes if that is
        set. The argument `partial` has no effect.
        """
        if self._units >= self._units_due() or not len(self._replay):
            return None
        p = self.parameters
        found: dict[str, list[Tensor]] = {}
        for _ in range(p.gradient_steps):
            for tag, value in self._train_on(self._replay.draw(p.batch_size, self._draws)).items():
                found.setdefault(tag, []).append(value)
        self._units += 1
        return {
            **{tag: float(values[0] if len(values) == 1 else torch.stack(values).mean()) for tag, values in found.items()},
            "charts/learning_rate": p.learning_rate,
            "replay/size": float(len(self._replay)),
        }

    def demand(self) -> int:
        """Return the number of environment steps that are missing until the next policy version can be published.

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
        return max(0, p.learning_starts + next_version * p.train_frequency - self._steps)

    def _units_due(self) -> int:
        p = self.parameters
        if p.traj_per_epoch is None:
            return max(0, self._steps - p.learning_starts) // p.train_frequency
        return self._episodes // p.traj_per_epoch

    def _train_on(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Take one gradient step on these replay rows, and return its metrics by tag, as scalar tensors."""
        columns = self._columns(self._replay.gather(rows))
        with self._compute.ranks.leading({"columns": columns}, self.checkpoint):
            return self._step(columns)

    def follow(self, work: Mapping[str, Any]) -> None:
        """Do this rank's part of a gradient step. The ranks are the processes that train together."""
        self._step(work["columns"])

    def _step(self, columns: Columns) -> dict[str, Tensor]:
        """Take a gradient step on a batch, of which each rank computes its share of the rows. Return the metrics."""
        ranks, put = self._compute.ranks, self._compute.put
        share = ranks.share(len(columns["returns"]))
        if ranks.size > 1:
            columns = {name: column[share.rows] for name, column in columns.items()}
        self._gradient_steps += 1
        metrics = self._gradient_step({name: put(column) for name, column in columns.items()}, share.weight)
        if ranks.size == 1:
            return metrics
        means = torch.stack(list(metrics.values())) * share.weight
        ranks.add_up(means)
        return dict(zip(metrics, means.unbind(), strict=True))

    def _gradient(self, name: str, loss: Tensor, weight: float) -> Tensor:
        """Return the gradient of a loss by the parameters of a network. The loss is a mean over this rank's rows."""
        return self._networks[name].gradient(loss if weight == 1.0 else loss * weight)

    # ---- device, parameters

    def place(self, compute: Compute) -> None:
        """Move the networks and the optimizers to a device, and use it and its ranks (processes) from now on.

        The replay buffer stays in the memory of the CPU.

        Raises:
            ConfigError: If there are more ranks than a batch has transitions.
        """
        check_rows(self.parameters.batch_size, compute.ranks)
        self._compute = compute
        for network in self._networks.values():
            network.place(compute.device)
        for name, optimizer in self._optimizers.items():
            optimizer.place(self._networks[name].flat)

    def change(self, parameters: Mapping[str, object]) -> None:
        """Use these parameters from the next update on. Only those in `changeable` can have new values."""
        self.parameters = read_parameters(type(self.parameters), parameters, algorithm=self._algorithm)

    # ---- state

    def checkpoint(self) -> dict[str, Any]:
        """Return copies of everything that an update changes, so that `restore` can undo the update.

        These are the weights of all networks, the optimizers' states, the random state and the counts of updates, not the replay
        buffer.
        """
        return {
            "networks": {name: network.flat.clone() for name, network in self._networks.items()},
            "optimizers": {name: optimizer.state() for name, optimizer in self._optimizers.items()},
            "generator": self._generator.get_state(),
            "units": self._units,
            "gradient_steps": self._gradient_steps,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Return to a state that `checkpoint` has copied. The replay buffer and the counts of observed data do not change.

        Raises:
            ConfigError: If the state comes from networks of other sizes.
        """
        flats = {name: torch.as_tensor(kept["networks"][name]) for name in self._networks}
        for name, flat in flats.items():
            size = self._networks[name].flat.numel()
            if flat.numel() != size:
                raise ConfigError(f"the state of {name} has {flat.numel()} parameters; the network has {size}")
        self._compute.ranks.differ()
        for name, flat in flats.items():
            self._networks[name].flat.copy_(flat)
        for name, optimizer in self._optimizers.items():
            optimizer.load(kept["optimizers"][name])
        self._generator.set_state(torch.as_tensor(kept["generator"]))
        self._units, self._gradient_steps = int(kept["units"]), int(kept["gradient_steps"])

    def state(self) -> dict[str, Any]:
        """Return copies of all networks, the optimizers' states, the random state, the replay buffer and the counters."""
        return self.state_beyond(())

    def state_beyond(self, stored: Collection[str]) -> dict[str, Any]:
        """Return the same as `state`, but without the arrays of those pieces of the replay buffer whose names are in `stored`."""
        counters = {"steps": self._steps, "episodes": self._episodes}
        return {**self.checkpoint(), **counters, "replay": self._replay.state(stored)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` has returned.

        Raises:
            ConfigError: If the state comes from networks of other sizes, or from a replay buffer of another capacity or shape.
        """
        self.restore(state)
        self._replay.load(state["replay"])
        self._steps, self._episodes = int(state["steps"]), int(state["episodes"])

    # ---- data that make an update fail

    def numbers_to_check(self) -> list[NDArray[Any]]:
        """Return the weights of all networks, and Adam's moments: views, or copies from a GPU.

        The caller checks that they are finite.
        """
        found = [network.flat.cpu().numpy() for network in self._networks.values()]
        return found + [moment for optimizer in self._optimizers.values() for moment in optimizer.moments()]

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

    def _survives(self, rows: NDArray[np.int64], before: Mapping[str, Any]) -> bool:
        """Return True if the losses and all weights are finite after a gradient step on some replay rows, from a given state."""
        self.restore(before)
        metrics = self._train_on(rows)
        finite = all(bool(torch.isfinite(value)) for tag, value in metrics.items() if "loss" in tag.rpartition("/")[2])
        return finite and all(bool(np.isfinite(array).all()) for array in self.numbers_to_check())
