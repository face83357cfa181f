"""The common part of the off-policy algorithms: replay, units of training, state and undoing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.algorithms.cloning import CloneLoss, clone_policy
from rl4sys_zmq.algorithms.networks import ReplayShape
from rl4sys_zmq.algorithms.networks.flat_networks import FlatAdam
from rl4sys_zmq.algorithms.networks.inputs import encode_observations
from rl4sys_zmq.algorithms.networks.interface import FlatNetwork, ReplayNetwork
from rl4sys_zmq.algorithms.offpolicy.offpolicy_parameters import OffPolicyParameters
from rl4sys_zmq.algorithms.offpolicy.replay_training import ReplayTraining, check_replay_size
from rl4sys_zmq.algorithms.offpolicy.samplers import Columns, SequenceSampler, TransitionSampler
from rl4sys_zmq.errors import ConfigError, config_error
from rl4sys_zmq.learner.registry.algorithm_entry import read_parameters
from rl4sys_zmq.learner.registry.algorithm_protocols import CloneOptions
from rl4sys_zmq.learner.registry.compute import CPU, Compute, RowShare, check_one_rank, check_rows
from rl4sys_zmq.replay import ReplayOptions, SequenceMemory, TransitionBatch
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Segment, Space

P = TypeVar("P", bound=OffPolicyParameters)


class GradientStepResult(NamedTuple):
    """The result of a gradient step on one rank's rows: mean metrics by TensorBoard tag, and TD errors ``[rows]`` or None."""

    metrics: dict[str, Tensor]
    errors: Tensor | None = None


class ReplayAlgorithm(ReplayTraining, Generic[P]):
    """The base class of this package's off-policy algorithms.

    A subclass builds its networks, calls `_use` with them, and computes a gradient step in `_gradient_step`.
    """

    name: ClassVar[str]
    parameters_type: ClassVar[type[OffPolicyParameters]]

    def __init__(
        self, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> None:
        self.parameters: P
        self.parameters = p = cast(P, read_parameters(self.parameters_type, parameters, algorithm=self.name))
        self.rollout_length = p.rollout_length
        self.publish_every_updates = p.updates_per_version()
        self._spec = p.policy(self.name, observation_space, action_space)
        self._observation_space = observation_space
        self._compute = CPU
        self._sampler: TransitionSampler | SequenceSampler
        spaces = self._stored_space(), action_space
        if p.sequences is None:
            options = ReplayOptions(capacity=p.buffer_size, gamma=p.gamma, n_step=p.n_step, priority=p.priority)
            self._sampler = TransitionSampler(spaces, options, self._columns)
        else:
            sequences = SequenceMemory(*spaces, p.sequences, self._spec.columns)
            self._sampler = SequenceSampler(sequences, spaces[0], p.n_step, p.gamma)
        self._use_replay(self._sampler.memory, p.pace_rule, seed)
        self._networks: dict[str, FlatNetwork] = {}
        self._optimizers: dict[str, FlatAdam] = {}
        self._gradient_steps = 0
        self._fraction = 0.0
        self._in_files = False

    def _use(self, networks: Mapping[str, FlatNetwork], trained: Mapping[str, Sequence[slice] | None]) -> None:
        """Set the networks by name. The first one changes at each gradient step.

        Each network in `trained` gets an optimizer (`FlatAdam`), whose parts are the given slices.
        """
        self._networks = dict(networks)
        eps = self.parameters.adam_epsilon
        self._optimizers = {name: FlatAdam(networks[name].flat, parts, eps=eps) for name, parts in trained.items()}

    def _pair(self, shape: ReplayShape) -> tuple[ReplayNetwork, ReplayNetwork]:
        """Return two groups of networks with equal uniform random weights: one to train, and the target networks."""
        choice = self.parameters.chosen_network()
        trained, target = (choice.replay(self._observation_space, shape) for _ in range(2))
        trained.initialise_uniform(self._generator)
        target.flat.copy_(trained.flat)
        return trained, target

    @abstractmethod
    def _gradient_step(self, batch: Columns, weight: float, rate: float) -> GradientStepResult:
        """Take a gradient step with learning rate `rate` on this rank's rows, the share `weight` of the batch."""

    @abstractmethod
    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        """Return copies of the policy's weights by name."""

    @abstractmethod
    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Start the training from the weights of a policy, by tensor name."""

    def _stored_space(self) -> ObservationSpace:
        """Return the space of the observations as the replay stores them."""
        return self._observation_space

    def _target_due(self) -> bool:
        """Return True if the target networks must be updated before the next gradient step. Only rank 0 calls this."""
        return False

    def _follow_target(self) -> None:
        """Update the target networks from the trained networks."""

    def _schedules(self) -> dict[str, float]:
        """Return the present values of the algorithm's schedules, such as epsilon, by TensorBoard tag."""
        return {}

    def _columns(self, batch: TransitionBatch) -> Columns:
        """Convert a batch to the inputs of a gradient step, as tensors by name. Importance weights are not included."""
        return {
            "observations": encode_observations(self._observation_space, batch.observations),
            "actions": torch.from_numpy(batch.actions),
            "returns": torch.from_numpy(batch.returns),
            "discounts": torch.from_numpy(batch.discounts),
            "successors": encode_observations(self._observation_space, batch.successors),
        }

    def use_folder(self, folder: Path) -> None:
        """Keep the replay in files of this folder if a full replay is larger than `buffer_memory_bytes`."""
        if self._replay.nbytes > self.parameters.buffer_memory_bytes:
            self._replay.use_folder(folder)
            self._in_files = True

    def check_memory(self, available: int) -> None:
        size, p = self._replay.nbytes, self.parameters
        if not self._in_files:
            files = "a run directory" if size > p.buffer_memory_bytes else "a run directory and a smaller buffer_memory_bytes"
            check_replay_size(p.buffer_size, size, available, f"{files}, so that the replay is in files")

    def use_demonstrations(self, segments: Sequence[Segment], fraction: float, digest: int) -> None:
        """Take a fraction of each batch from demonstrations, which new segments never overwrite (Ball et al. 2023)."""
        self.parameters.check_fraction(fraction)
        assert isinstance(self._sampler, TransitionSampler)  # as `check_fraction` has checked
        self._sampler.use_demonstrations([self._stored(segment) for segment in segments], fraction, digest)
        self._fraction = fraction

    def spec(self) -> PolicySpec:
        return self._spec

    def _train_unit(self) -> Mapping[str, float]:
        p = self.parameters
        measured: dict[str, list[Tensor]] = {}
        for _ in range(p.gradient_steps):
            for tag, value in self._train_on(self._draw()).items():
                measured.setdefault(tag, []).append(value)
        return {
            **{tag: float(values[0] if len(values) == 1 else torch.stack(values).mean()) for tag, values in measured.items()},
            **self._schedules(),
            "charts/learning_rate": p.learning_rate_at(self._pace.steps),
        }

    def _draw(self) -> NDArray[np.int64]:
        return self._sampler.draw(self.parameters.batch_size, self._draws)

    def _train_on(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Take one gradient step on these rows of the replay, and update their priorities. Return metrics by name."""
        p = self.parameters
        columns = self._sampler.columns(rows, None if p.priority is None else p.priority_beta_at(self._pace.steps))
        rate = p.learning_rate_at(self._pace.steps)
        work: dict[str, Any] = {"columns": columns, "rate": rate, "target_due": self._target_due()}
        with self._compute.ranks.leading(work, self._training_state):
            metrics, errors = self._step(**work)
        if errors is not None:
            self._sampler.update_priorities(rows, errors.cpu().numpy())
        return metrics

    def follow(self, work: Mapping[str, Any]) -> None:
        self._step(**work)

    def _step(self, columns: Columns, rate: float, *, target_due: bool = False) -> GradientStepResult:
        """Take a gradient step in which each rank trains on its share of the rows. Return the results for all rows."""
        ranks, put = self._compute.ranks, self._compute.put
        if target_due:
            self._follow_target()
        rows = len(columns["returns"])
        share = ranks.share(rows)
        if ranks.size > 1:
            columns = {name: column[share.rows] for name, column in columns.items()}
        self._gradient_steps += 1
        result = self._gradient_step({name: put(column) for name, column in columns.items()}, share.weight, rate)
        if ranks.size == 1:
            return result
        metrics, errors = result
        means = torch.stack(list(metrics.values())) * share.weight
        ranks.add_up(means)
        metrics = dict(zip(metrics, means.unbind(), strict=True))
        return GradientStepResult(metrics, None if errors is None else self._all_errors(errors, share, rows))

    def _all_errors(self, errors: Tensor, share: RowShare, rows: int) -> Tensor:
        """Return the TD errors of all rows of a batch, given those of this rank."""
        every = torch.zeros(rows, dtype=errors.dtype, device=errors.device)
        if share.weight:
            every[share.rows] = errors
        self._compute.ranks.add_up(every)
        return every

    def _gradient(self, name: str, loss: Tensor, weight: float) -> Tensor:
        return self._networks[name].gradient(loss if weight == 1.0 else loss * weight)

    def _descend(self, name: str, loss: Tensor, weight: float, rate: float) -> None:
        """Take a step of the optimizer of network `name` with the gradient of `loss`, summed over all ranks."""
        gradient = self._gradient(name, loss, weight)
        self._compute.ranks.add_up(gradient)
        self._optimizers[name].step(gradient, [rate], max_norm=self.parameters.max_grad_norm)

    def _clone(self, name: str, columns: Sequence[Tensor], loss: CloneLoss, options: CloneOptions) -> float:
        network = self._networks[name]
        self._compute.ranks.differ()
        return clone_policy(columns, loss, network.gradient, network.flat, options, self._generator)

    def place(self, compute: Compute) -> None:
        """Move the networks and the optimizers to the device of `compute`. The replay stays in the memory of the CPU."""
        check_rows(self.parameters.batch_size, compute.ranks)
        if self.parameters.sequences is not None:
            check_one_rank(self.parameters.chosen_network().entry.name, compute.ranks)
        self._compute = compute
        for network in self._networks.values():
            network.place(compute.device)
        for name, optimizer in self._optimizers.items():
            optimizer.place(self._networks[name].flat)

    def change(self, parameters: Mapping[str, object]) -> None:
        new = cast(P, read_parameters(self.parameters_type, parameters, algorithm=self.name))
        if self._fraction:
            new.check_fraction(self._fraction)
        self.parameters, self._pace.rule = new, new.pace_rule
        self.publish_every_updates = new.updates_per_version()

    def _model_state(self) -> dict[str, Any]:
        return {
            "networks": {name: network.flat.clone() for name, network in self._networks.items()},
            "optimizers": {name: optimizer.state() for name, optimizer in self._optimizers.items()},
            "gradient_steps": self._gradient_steps,
        }

    def _restore_model(self, kept: Mapping[str, Any]) -> None:
        flats = {name: torch.as_tensor(kept["networks"][name], device="cpu") for name in self._networks}
        for name, flat in flats.items():
            size = self._networks[name].flat.numel()
            if flat.numel() != size:
                raise ConfigError(f"the state of {name} has {flat.numel()} parameters; the network has {size}")
        self._compute.ranks.differ()
        for name, flat in flats.items():
            self._networks[name].flat.copy_(flat)
        for name, optimizer in self._optimizers.items():
            optimizer.load(kept["optimizers"][name])
        self._gradient_steps = int(kept["gradient_steps"])

    def _replay_settings(self) -> dict[str, Mapping[str, float | None]]:
        return {"pace": self.parameters.pace, "stored_returns": self.parameters.stored_returns}

    def state_beyond(self, stored: Collection[str]) -> dict[str, Any]:
        return {**super().state_beyond(stored), "demonstrations": self._sampler.digest}

    def load(self, state: Mapping[str, Any]) -> None:
        saved, current = int(state.get("demonstrations", 0)), self._sampler.digest
        if saved and current and saved != current:
            raise config_error(
                "demonstrations",
                f"the training began with other ones (digest {saved:016x}, the file has {current:016x}); give that file, or none",
            )
        super().load(state)

    def numbers_to_check(self) -> list[NDArray[Any]]:
        weights = [network.flat.cpu().numpy() for network in self._networks.values()]
        return weights + [moment for optimizer in self._optimizers.values() for moment in optimizer.moments()]
