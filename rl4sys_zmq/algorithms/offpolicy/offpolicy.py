"""The common part of the off-policy algorithms: replay, units of training, state and undoing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl4sys_zmq.algorithms.cloning import CloneLoss, clone_policy
from rl4sys_zmq.algorithms.networks.torch_layers import FlatAdam, encode_observations
from rl4sys_zmq.algorithms.offpolicy.failing_rows import find_failing_rows
from rl4sys_zmq.algorithms.offpolicy.offpolicy_parameters import OffPolicyParameters
from rl4sys_zmq.algorithms.offpolicy.replay_network import FlatNetwork
from rl4sys_zmq.algorithms.offpolicy.replay_sampler import Columns, ReplaySampler, TransitionSampler
from rl4sys_zmq.algorithms.offpolicy.replay_size import check_replay_size
from rl4sys_zmq.algorithms.offpolicy.sequence_sampler import SequenceSampler
from rl4sys_zmq.algorithms.offpolicy.stored_returns import check_stored_returns
from rl4sys_zmq.algorithms.offpolicy.unit_pace import UnitPace
from rl4sys_zmq.algorithms.torch_draws import TorchDraws
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm import CloneOptions
from rl4sys_zmq.learner.registry.algorithm_entry import read_parameters
from rl4sys_zmq.learner.registry.compute import CPU, Compute, RowShare, check_one_rank, check_rows
from rl4sys_zmq.replay import ReplayMemory, ReplayOptions, SequenceMemory, TransitionBatch
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Segment

P = TypeVar("P", bound=OffPolicyParameters)


class StepResult(NamedTuple):
    """The results of a gradient step on the rows of one rank.

    Attributes:
        metrics: Means over the rows, as scalar tensors, by tag.
        errors: The TD errors of the rows, from which prioritized sampling gets the priorities, ``[rows]``; None without it.
    """

    metrics: dict[str, Tensor]
    errors: Tensor | None = None


class ReplayAlgorithm(ABC, Generic[P]):
    """The base class of the off-policy algorithms.

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
        self._observation_space = spec.observation_space
        self._compute = CPU
        self._generator = torch.Generator("cpu").manual_seed(seed)
        self._draws = TorchDraws(self._generator)
        p = parameters
        self._replay: ReplayMemory | SequenceMemory
        self._sampler: ReplaySampler
        spaces = self._stored_space(), spec.action_space
        if p.sequences is None:
            options = ReplayOptions(capacity=p.buffer_size, gamma=p.gamma, n_step=p.n_step, priority=p.priority)
            self._replay = transitions = ReplayMemory(*spaces, options)
            self._sampler = TransitionSampler(transitions, spaces, self._columns)
        else:
            self._replay = sequences = SequenceMemory(*spaces, p.sequences, spec.columns)
            self._sampler = SequenceSampler(sequences, spaces[0], p.n_step, p.gamma)
        self._networks: dict[str, FlatNetwork] = {}
        self._optimizers: dict[str, FlatAdam] = {}
        self._pace = UnitPace()
        self._gradient_steps = 0
        self._fraction = 0.0
        self._in_files = False

    # ---- what a subclass defines

    def _use(self, networks: Mapping[str, FlatNetwork], optimizers: Mapping[str, FlatAdam]) -> None:
        """Take the networks by name, and the optimizers of those that are trained. The first network changes at each step."""
        self._networks, self._optimizers = dict(networks), dict(optimizers)

    @abstractmethod
    def _gradient_step(self, batch: Columns, weight: float, rate: float) -> StepResult:
        """Take a gradient step on the rows of this rank, and return metrics, and TD errors if they are needed."""

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

    def _target_due(self) -> bool:
        """Return True if the target networks must follow before the next gradient step. Only rank 0 is asked."""
        return False

    def _follow_target(self) -> None:
        """Let the target networks follow, because `_target_due` has returned True on rank 0."""

    def _schedules(self) -> dict[str, float]:
        """Return the present values of the algorithm's own schedules, as metrics by tag."""
        return {}

    def _columns(self, batch: TransitionBatch) -> Columns:
        """Return the inputs of a gradient step, without importance weights."""
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
            self._in_files = True

    def check_memory(self, available: int) -> None:
        """Check that a full replay buffer is not larger than the memory that the process can have, unless it is in files.

        Raises:
            ConfigError: If it is larger.
        """
        size, p = self._replay.nbytes, self.parameters
        if not self._in_files:
            files = "a run directory" if size > p.buffer_memory_bytes else "a run directory and a smaller buffer_memory_bytes"
            check_replay_size(p.buffer_size, size, available, f"{files}, so that the replay is in files")

    def use_demonstrations(self, segments: Sequence[Segment], fraction: float, digest: int) -> None:
        """Take a fraction of each batch from demonstrations, which never leave their own replay (Ball et al. 2023).

        Args:
            segments: The demonstrations, with rewards.
            fraction: The fraction, above 0 and below 1.
            digest: A number that identifies the demonstrations; see `load`.

        Raises:
            ConfigError: If a batch is too small to be divided, or if the network is recurrent.
        """
        self.parameters.check_fraction(fraction)
        self._sampler.use_demonstrations([self._stored(segment) for segment in segments], fraction, digest)
        self._fraction = fraction

    def spec(self) -> PolicySpec:
        """Return the specification of the policy."""
        return self._spec

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Write the segment into the replay buffer. Off-policy data can have any age, so `correct` has no effect."""
        self._replay.add(self._stored(segment))
        self._pace.observe(segment, self.parameters)

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do one unit of training (`gradient_steps` gradient steps) and return its metrics, or return None if it is too early.

        One unit follows each `train_frequency` observed environment steps, or each `traj_per_epoch` ended episodes if that is
        set. With `samples_per_insert`, a unit follows as soon as this ratio allows it. The argument `partial` has no effect.
        """
        p = self.parameters
        if not self._pace.due(p) or not len(self._replay):
            return None
        found: dict[str, list[Tensor]] = {}
        for _ in range(p.gradient_steps):
            for tag, value in self._train_on(self._draw()).items():
                found.setdefault(tag, []).append(value)
        self._pace.count_unit(p)
        return {
            **{tag: float(values[0] if len(values) == 1 else torch.stack(values).mean()) for tag, values in found.items()},
            **self._schedules(),
            "charts/learning_rate": p.learning_rate_at(self._pace.steps),
            "replay/size": float(len(self._replay)),
        }

    def demand(self) -> int:
        """Return the number of environment steps that are missing until the next policy version can be published.

        With `samples_per_insert`, the number is smaller if training lags behind the ratio.

        If `discard` has emptied the replay buffer, return the length of one segment, so that new data arrive.
        """
        if not len(self._replay) and self._pace.steps:  # the replay was discarded as a whole
            return self.parameters.rollout_length
        return self._pace.missing(self.parameters, self.publish_every_updates)

    def _draw(self) -> NDArray[np.int64]:
        """Return the rows of a batch, as the sampler draws them."""
        return self._sampler.draw(self.parameters.batch_size, self._draws)

    def _train_on(self, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """Take one gradient step on these rows, and update their priorities. Return metrics by tag, as scalar tensors."""
        p = self.parameters
        columns = self._sampler.columns(rows, None if p.priority is None else p.priority_beta_at(self._pace.steps))
        rate = p.learning_rate_at(self._pace.steps)
        target_due = self._target_due()
        work = {"columns": columns, "rate": rate, "target_due": target_due}
        with self._compute.ranks.leading(work, self._training_state):
            metrics, errors = self._step(columns, rate, target_due=target_due)
        if errors is not None:
            self._sampler.update_priorities(rows, errors.cpu().numpy())
        return metrics

    def follow(self, work: Mapping[str, Any]) -> None:
        """Do this rank's part of a gradient step. The ranks are the processes that train together."""
        self._step(work["columns"], work["rate"], target_due=work["target_due"])

    def _step(self, columns: Columns, rate: float, *, target_due: bool = False) -> StepResult:
        """Take a gradient step on a batch, of which each rank computes its share of the rows. Return the results for all rows."""
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
        return StepResult(metrics, None if errors is None else self._all_errors(errors, share, rows))

    def _all_errors(self, errors: Tensor, share: RowShare, rows: int) -> Tensor:
        """Return the TD errors of all rows of a batch, given those of this rank's share."""
        every = torch.zeros(rows, dtype=errors.dtype, device=errors.device)
        if share.weight:
            every[share.rows] = errors
        self._compute.ranks.add_up(every)
        return every

    def _gradient(self, name: str, loss: Tensor, weight: float) -> Tensor:
        """Return the gradient of a loss by the parameters of a network. The loss is a mean over this rank's rows."""
        return self._networks[name].gradient(loss if weight == 1.0 else loss * weight)

    def _clone(self, name: str, columns: Sequence[Tensor], loss: CloneLoss, options: CloneOptions) -> float:
        """Take the steps of behaviour cloning with one network (`clone_policy`)."""
        network = self._networks[name]
        found = clone_policy(columns, loss, network.gradient, network.flat, options, self._generator)
        self._compute.ranks.differ()
        return found

    # ---- device, parameters

    def place(self, compute: Compute) -> None:
        """Move the networks and the optimizers to a device, and use it and its ranks (processes) from now on.

        The replay buffer stays in the memory of the CPU.

        Raises:
            ConfigError: If there are more ranks than a batch has transitions, or if there are several and the network is
                recurrent.
        """
        check_rows(self.parameters.batch_size, compute.ranks)
        if self.parameters.sequences is not None:
            check_one_rank(self.parameters.chosen_network().entry.name, compute.ranks)
        self._compute = compute
        for network in self._networks.values():
            network.place(compute.device)
        for name, optimizer in self._optimizers.items():
            optimizer.place(self._networks[name].flat)

    def change(self, parameters: Mapping[str, object]) -> None:
        """Use these parameters from the next update on. Only those in `changeable` can have new values.

        Raises:
            ConfigError: If a batch is too small to be divided between demonstrations and the replay. Nothing has changed then.
        """
        new = read_parameters(type(self.parameters), parameters, algorithm=self._algorithm)
        if self._fraction:
            new.check_fraction(self._fraction)
        self.parameters = new
        self.publish_every_updates = new.updates_per_version()

    # ---- state

    def checkpoint(self) -> dict[str, Any]:
        """Return copies of everything that an update changes, so that `restore` can undo the update.

        These are the weights of all networks, the optimizers' states, the random state, the counts of updates, and the
        priorities of the transitions, not the transitions.
        """
        return {**self._training_state(), "priorities": self._replay.checkpoint()}

    def _training_state(self) -> dict[str, Any]:
        """Return what `checkpoint` does, without the priorities. Only rank 0 has these."""
        return {
            "networks": {name: network.flat.clone() for name, network in self._networks.items()},
            "optimizers": {name: optimizer.state() for name, optimizer in self._optimizers.items()},
            "generator": self._generator.get_state(),
            "units": self._pace.units,
            "samples": self._pace.samples,
            "gradient_steps": self._gradient_steps,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Return to a state that `checkpoint` has copied. The transitions and the counts of observed data do not change.

        Raises:
            ConfigError: If the state comes from networks of other sizes.
        """
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
        self._generator.set_state(torch.as_tensor(kept["generator"], device="cpu"))
        self._pace.units, self._pace.samples = int(kept["units"]), int(kept["samples"])
        self._gradient_steps = int(kept["gradient_steps"])
        self._replay.restore(kept.get("priorities"))

    def state(self) -> dict[str, Any]:
        """Return copies of all networks, the optimizers' states, the random state, the replay buffer and the counters."""
        return self.state_beyond(())

    def state_beyond(self, stored: Collection[str]) -> dict[str, Any]:
        """Return the same as `state`, but without the arrays of those pieces of the replay buffer whose names are in `stored`."""
        pace, p = self._pace, self.parameters
        counters = {"steps": pace.steps, "episodes": pace.episodes, "demonstrations": self._sampler.digest}
        parameters = {"pace": p.pace, "stored_returns": p.stored_returns}
        return {**self._training_state(), **counters, **parameters, "replay": self._replay.state(stored)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` has returned. If the parameters of the pace are new, no unit of training is due then.

        Raises:
            ConfigError: If the state comes from networks of other sizes, from a replay buffer of another capacity or shape, from
                one with returns of another `gamma` or `n_step`, or from a training with other demonstrations.
        """
        saved, given = int(state.get("demonstrations", 0)), self._sampler.digest
        if saved and given and saved != given:
            raise ConfigError(
                f"demonstrations: the training began with other ones (digest {saved:016x}, the file has {given:016x}); give that "
                "file, or none",
                key="demonstrations",
            )
        self.restore(state)
        self._replay.load(state["replay"])
        p = self.parameters
        if len(self._replay):
            check_stored_returns(state["stored_returns"], p.stored_returns)
        self._pace.steps, self._pace.episodes = int(state["steps"]), int(state["episodes"])
        if state["pace"] != p.pace:
            self._pace.settle(p)

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
        rows = find_failing_rows(p.gradient_steps, self._draw, self.checkpoint, self._survives)
        self.restore(kept)
        rows = rows[rows >= 0]  # demonstrations stay
        return self._replay.discard(np.unique(rows)) if len(rows) else []

    def _survives(self, rows: NDArray[np.int64], before: Mapping[str, Any]) -> bool:
        """Return True if the losses and all weights are finite after a gradient step on some replay rows, from a given state."""
        self.restore(before)
        metrics = self._train_on(rows)
        finite = all(bool(torch.isfinite(value)) for tag, value in metrics.items() if "loss" in tag.rpartition("/")[2])
        return finite and all(bool(np.isfinite(array).all()) for array in self.numbers_to_check())
