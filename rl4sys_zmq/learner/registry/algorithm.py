"""The interface between a learning algorithm and the learner thread that calls it.

The state of an algorithm depends only on its parameters, its seed and the calls of its methods. An algorithm does no I/O, starts
no thread, logs nothing, counts no policy versions and uses no global random state. All calls come from the learner thread that
created the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, SupportsFloat, runtime_checkable

from numpy.typing import NDArray

from rl4sys_zmq.values import PolicySpec, Segment

if TYPE_CHECKING:
    from rl4sys_zmq.learner.registry.compute import Compute


@dataclass(frozen=True, slots=True)
class CloneOptions:
    """The options of behaviour cloning.

    Attributes:
        steps: Number of gradient steps.
        batch_size: Steps of the demonstrations in each of them.
        learning_rate: Adam's step size.
        report: A function to call after each gradient step, with the number of steps so far and the loss; None for none.
    """

    steps: int
    batch_size: int
    learning_rate: float
    report: Callable[[int, SupportsFloat], None] | None = None


PACING_LAG = {"onpolicy": 0, "offpolicy": 1}
"""The default of ``pacing_lag``, by kind of algorithm: the number of batches that actors can collect ahead of training.

An algorithm's entry can have another default, in `AlgorithmEntry.staleness`.
"""


@runtime_checkable
class Algorithm(Protocol):
    """A learning rule for one policy. It receives segments and updates the weights.

    The learner thread uses an algorithm like this::

        algorithm.observe(segment)               # for each segment that is fresh enough
        while (metrics := algorithm.update()) is not None:
            ...                                  # one update was done; the weights of every n-th are published

    Attributes:
        kind: ``"onpolicy"`` if a segment is used by the next update only; ``"offpolicy"`` if segments go into a replay buffer.
            A segment of an off-policy algorithm counts as trained as soon as `observe` has returned.
        rollout_length: Largest number of steps that an actor should put into one segment.
        publish_every_updates: Number of updates from one published policy version to the next. The configuration can override
            this.
        max_policy_lag: Largest number of policy versions by which a segment can be behind the newest version; None for no
            limit. The configuration can override this.
    """

    kind: ClassVar[str]
    rollout_length: int
    publish_every_updates: int
    max_policy_lag: int | None

    def spec(self) -> PolicySpec:
        """Return the description from which actors build the policy: spaces, kind and tensors. Every call returns the same."""

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Accept one segment for training.

        Args:
            segment: The segment. It fits the observation and action spaces, and its numbers are finite. Only an off-policy
                algorithm gets segments of overridden actions (`Segment.source`), whose log-probabilities can be NaN or infinite.
            correct: True if the segment is more than ``max_policy_lag`` versions old and must be corrected by importance weights.
                This happens only with the option ``on_lag: correct``.
        """

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do one update if there is enough data, and return its metrics by TensorBoard tag; otherwise return None.

        An on-policy update uses all segments observed since the last update.

        Args:
            partial: True if no more data will come for this batch. An on-policy algorithm then trains on the data that it has,
                even if that is a single step, and returns None only without any data. An off-policy algorithm ignores this
                argument. The learner thread passes this argument only if it is True.
        """

    def demand(self) -> int:
        """Return how many more environment steps the algorithm can use before its next policy version, at least 0.

        Actors are allowed to collect this many steps now.
        """

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return copies of the policy's weights after the last update: the tensors that ``spec().tensors`` lists, by name.

        For a tensor that is float32 in the specification, any dtype that converts to float32 is accepted. All other tensors must
        have exactly the dtype in the specification.
        """

    def state(self) -> dict[str, Any]:
        """Return copies of everything that is needed to continue exactly: tensors, optimizer, random state, replay, schedules.

        The result is stored in a checkpoint. It can consist of dicts (keys: str or int), lists, tuples, torch tensors, numpy
        arrays, numbers, str, bytes, bool, None and `rl4sys_zmq.replay.StatePiece`.

        The learner thread can call this at any time. An on-policy algorithm returns its state after the last update, without
        the segments that wait for the next update. After a restart from the checkpoint, these segments are delivered again.
        """

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state` returned for an algorithm with the same parameters.

        After this call, the same segments must lead to bit-identical weights. An on-policy algorithm discards the segments that
        wait for its next update.
        """


@runtime_checkable
class FolderAlgorithm(Protocol):
    """The optional method of an algorithm whose data can be larger than memory should be, such as a replay."""

    def use_folder(self, folder: Path) -> None:
        """Keep large data in files in this folder, if there will be much data.

        The learner thread calls this at most once, before the first segment and before `Algorithm.load`, and only if the learner
        has a run directory. The data need not survive the process, because `Algorithm.state` contains them.

        Raises:
            ConfigError: If the disk has too little space.
        """


@runtime_checkable
class MemoryAlgorithm(Protocol):
    """The optional method of an algorithm that knows from the beginning how much memory its data can need, such as a replay."""

    def check_memory(self, available: int) -> None:
        """Check that the data fit in memory, except for those that are in files.

        The learner thread calls this once, after `FolderAlgorithm.use_folder` and before the first segment.

        Args:
            available: The memory that the process can have at most, in bytes.

        Raises:
            ConfigError: If the data need more.
        """


@runtime_checkable
class IncrementalAlgorithm(Protocol):
    """The optional method of an algorithm whose state is large and mostly the same in each checkpoint, such as a replay."""

    def state_beyond(self, stored: Collection[str]) -> dict[str, Any]:
        """Return the same as `Algorithm.state`, but without the arrays of those pieces that the last checkpoint has.

        Args:
            stored: The names of these pieces; see `rl4sys_zmq.replay.StatePiece`. Pieces of other states can be among them.
        """


@runtime_checkable
class TunableAlgorithm(Protocol):
    """The optional method of an algorithm some of whose parameters can change while it trains (`AlgorithmEntry.changeable`)."""

    def change(self, parameters: Mapping[str, object]) -> None:
        """Use these parameters from the next update on. Keep the observed data and the whole state.

        Args:
            parameters: All parameters. They are valid together, and differ from the earlier ones only in changeable parameters.
        """


@runtime_checkable
class UndoableAlgorithm(Protocol):
    """The optional methods of an algorithm with which a learner thread can undo an update cheaply.

    An update is undone if it raises an exception, or makes a loss or a weight non-finite (NaN or infinity). Without these
    methods, the learner thread uses `Algorithm.state` and `Algorithm.load` for an on-policy algorithm, and so copies the whole
    state at each update. For an off-policy algorithm, whose state contains a replay buffer, this would be too slow: its update
    is not undone, and its learner thread ends with an error.
    """

    def checkpoint(self) -> Any:
        """Return copies of everything that an update changes.

        These are the weights, the optimizer's state, the random state, counters and statistics, but not the observed data.
        """

    def restore(self, kept: Any) -> None:
        """Return to a state that `checkpoint` has copied. Discard the segments that wait for an on-policy update.

        Args:
            kept: The result of `checkpoint`. This method must not change it, because the caller can restore it several times.
        """

    def numbers_to_check(self) -> Sequence[NDArray[Any]]:
        """Return views of all arrays that must stay finite, the weights first: weights, optimizer's state, statistics.

        The caller only reads the arrays and does not keep them.
        """

    def discard(self) -> Sequence[int]:
        """Remove from the replay buffer the data that make the next update non-finite. Leave everything else unchanged.

        The algorithm finds these data by trying the update on parts of them. The learner thread calls this only for an
        off-policy algorithm, right after `restore`.

        Returns:
            The numbers of the segments that contained the data. Segments are numbered from 0 in the order of the calls of
            `observe` on this object. Data that came with `load` have no number, or a negative one, which the caller ignores.
        """


@runtime_checkable
class WarmStartAlgorithm(Protocol):
    """The optional method of an algorithm whose training can start with given weights of the policy (the option ``init``)."""

    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Replace the weights of the policy. The rest of the state, such as value network and optimizer, stays as it is.

        The learner thread calls this once, before the first segment. After the call, `Algorithm.snapshot` returns these weights.
        Tensors that the algorithm computes itself, such as the current epsilon, can differ.

        Args:
            tensors: All tensors of the specification, by name, in its shapes and dtypes.
        """


@runtime_checkable
class DemonstrationAlgorithm(Protocol):
    """The optional method of an algorithm with a replay, part of whose data can be demonstrations (`demonstrations.fraction`)."""

    def use_demonstrations(self, segments: Sequence[Segment], fraction: float, digest: int) -> None:
        """Take a fraction of each batch from demonstrations, during the whole training.

        The learner thread calls this at most once, before the first segment and before `Algorithm.load`. The demonstrations need
        not be in `Algorithm.state`, but `Algorithm.load` must refuse a state of a training with others.

        Args:
            segments: The demonstrations: one segment for each episode, with rewards.
            fraction: The fraction, above 0 and below 1.
            digest: A number that identifies the demonstrations.

        Raises:
            ConfigError: If the fraction is not possible.
        """


@runtime_checkable
class CloningAlgorithm(Protocol):
    """The optional method of an algorithm whose policy can first imitate demonstrations (`demonstrations.clone_steps`)."""

    def clone(self, segments: Sequence[Segment], options: CloneOptions) -> float:
        """Train the policy alone to choose the actions of demonstrations. Return the mean loss of the last tenth of the steps.

        The learner thread calls this at most once, before the first segment, and only if there is no checkpoint.

        Args:
            segments: The demonstrations: one segment for each episode. Their rewards can be 0.
            options: The number and the size of the gradient steps.
        """


@runtime_checkable
class PlaceableAlgorithm(Protocol):
    """The optional method of an algorithm that can compute on a GPU (the option ``device``)."""

    def place(self, compute: Compute) -> None:
        """Move the networks and the optimizer to a device, and use it and its ranks from now on.

        The learner thread calls this at most once, right after it has built the algorithm. Afterwards, `Algorithm.state` can
        return tensors on the device. `Algorithm.load` must accept a state of any device: its tensors are on the CPU.

        Raises:
            ConfigError: If there are more ranks than a minibatch has rows.
        """


@runtime_checkable
class ParallelAlgorithm(PlaceableAlgorithm, UndoableAlgorithm, Protocol):
    """The optional methods of an algorithm that several ranks can train together (the option ``learners``).

    Each rank is a process with an object of the algorithm with the same parameters and seed. Only rank 0 observes
    segments and makes updates. The other ranks follow it through `follow`, and get its state through
    `UndoableAlgorithm.restore`. `Ranks` in `rl4sys_zmq.learner.registry.compute` describes an update.
    """

    def follow(self, work: Mapping[str, Any]) -> None:
        """Do this rank's part of the work that rank 0 has announced. Only ranks other than 0 call this.

        Args:
            work: The argument of rank 0 for `Ranks.leading`. Its tensors are on the CPU.
        """
