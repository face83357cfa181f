"""The interface between a learning algorithm and the learner thread that calls it.

The state of an algorithm depends only on its parameters, its seed and the calls of its methods. An algorithm does no I/O, starts
no thread, logs nothing, counts no policy versions and uses no global random state. All calls come from the learner thread that
created it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat, runtime_checkable

from numpy.typing import NDArray

from rl4sys_zmq.values import Segment

if TYPE_CHECKING:
    from rl4sys_zmq.learner.registry.compute import Compute


@dataclass(frozen=True, slots=True)
class CloneOptions:
    """The options of behaviour cloning.

    Attributes:
        steps: Number of gradient steps.
        batch_size: Number of demonstrated steps in each gradient step.
        learning_rate: Adam's step size.
        report: A function to call after each gradient step, with the number of steps so far and the loss; None for none.
    """

    steps: int
    batch_size: int
    learning_rate: float
    report: Callable[[int, SupportsFloat], None] | None = None


PACING_LAG = {"onpolicy": 0, "offpolicy": 1}
"""The default of ``pacing_lag``, by kind of algorithm: the batches that actors can collect ahead of training."""


@runtime_checkable
class FolderAlgorithm(Protocol):
    """The interface of an algorithm that can keep large data, such as a replay, in files instead of memory."""

    def use_folder(self, folder: Path) -> None:
        """Keep large data in files in this folder, if there will be much data.

        The learner thread calls this at most once, before the first segment and before `Algorithm.load`, and only if there is a
        run directory. The data need not survive the process, because `Algorithm.state` contains them.

        Raises:
            ConfigError: If the disk has too little space.
        """


@runtime_checkable
class MemoryAlgorithm(Protocol):
    """The interface of an algorithm that knows from the beginning how much memory its data can need."""

    def check_memory(self, available: int) -> None:
        """Check that the algorithm's data, except for data in files, fit in `available` bytes of memory.

        The learner thread calls this once, after `FolderAlgorithm.use_folder` and before the first segment.

        Raises:
            ConfigError: If the data need more.
        """


@runtime_checkable
class IncrementalAlgorithm(Protocol):
    """The interface of an algorithm whose state is large and mostly the same in each checkpoint."""

    def state_beyond(self, stored: Collection[str]) -> dict[str, Any]:
        """Return `Algorithm.state` without the arrays of the pieces (`rl4sys_zmq.replay.StatePiece`) that are stored already.

        Args:
            stored: The names of these pieces. Pieces of other states can be among them.
        """


@runtime_checkable
class TunableAlgorithm(Protocol):
    """The interface of an algorithm with parameters that can change in training (`AlgorithmEntry.changeable`)."""

    def change(self, parameters: Mapping[str, object]) -> None:
        """Use these parameters from the next update on. Keep the observed data and the whole state.

        Args:
            parameters: All parameters. They are valid together, and differ from the earlier ones only in changeable parameters.
        """


@runtime_checkable
class UndoableAlgorithm(Protocol):
    """The interface of an algorithm whose updates a learner thread can undo cheaply.

    An update is undone if it raises an exception, or makes a loss or a weight non-finite. Without these methods, the learner
    thread copies the whole state of an on-policy algorithm at each update. An update of an off-policy algorithm, whose state
    has a replay, is then not undone, and its learner thread ends with an error.
    """

    def checkpoint(self) -> Any:
        """Return copies of everything that an update changes, but not the observed data."""

    def restore(self, kept: Any) -> None:
        """Return to a state that `checkpoint` has copied. Discard the segments that wait for an on-policy update.

        This method must not change `kept`, because the caller can restore it several times.
        """

    def numbers_to_check(self) -> Sequence[NDArray[Any]]:
        """Return views of all arrays that must stay finite, the weights first. The caller only reads them and keeps none."""

    def discard(self) -> Sequence[int]:
        """Remove from the replay the data that make the next update non-finite. Leave everything else unchanged.

        The algorithm finds these data by trying the update on parts of them. The learner thread calls this only for an off-policy
        algorithm, right after `restore`.

        Returns:
            The numbers of the segments that contained the data, counted from 0 in the order of the calls of `observe` on this
            object. Data that came with `load` have no number, or a negative one, which the caller ignores.
        """


@runtime_checkable
class WarmStartAlgorithm(Protocol):
    """The interface of an algorithm whose training can start with given weights (the option ``init``)."""

    def load_policy(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Replace the weights of the policy. The rest of the state, such as the optimizer, stays as it is.

        The learner thread calls this once, before the first segment. After the call, `Algorithm.snapshot` returns these weights.
        Tensors that the algorithm computes itself, such as the current epsilon, can differ.

        Args:
            tensors: All tensors of the specification, by name, in its shapes and dtypes.
        """


@runtime_checkable
class DemonstrationAlgorithm(Protocol):
    """The interface of an algorithm whose replay can have demonstrations (`demonstrations.fraction`)."""

    def use_demonstrations(self, segments: Sequence[Segment], fraction: float, digest: int) -> None:
        """Take a fraction of each batch from demonstrations, during the whole training.

        The learner thread calls this at most once, before the first segment and before `Algorithm.load`. The demonstrations
        need not be in `Algorithm.state`, but `Algorithm.load` must refuse a state that was trained with other demonstrations.

        Args:
            segments: The demonstrations: one segment for each episode, with rewards.
            fraction: The fraction, above 0 and below 1.
            digest: A number that identifies the demonstrations.

        Raises:
            ConfigError: If the fraction is not possible.
        """


@runtime_checkable
class CloningAlgorithm(Protocol):
    """The interface of an algorithm whose policy can imitate demonstrations (`demonstrations.clone_steps`)."""

    def clone(self, segments: Sequence[Segment], options: CloneOptions) -> float:
        """Train the policy alone to choose the demonstrated actions. Return the mean loss of the last tenth of the steps.

        The learner thread calls this at most once, before the first segment, and only if there is no checkpoint.

        Args:
            segments: The demonstrations: one segment for each episode. Their rewards can be 0.
            options: The number and the size of the gradient steps.
        """


@runtime_checkable
class PlaceableAlgorithm(Protocol):
    """The interface of an algorithm that can compute on a GPU (the option ``device``)."""

    def place(self, compute: Compute) -> None:
        """Move the networks and the optimizer to the device of `compute`, and use this device and the ranks from now on.

        The learner thread calls this at most once, right after it has built the algorithm. Afterwards, `Algorithm.state` can
        return tensors on the device. The tensors of a state for `Algorithm.load` are on the CPU.

        Raises:
            ConfigError: If there are more ranks than a minibatch has rows.
        """


@runtime_checkable
class ParallelAlgorithm(PlaceableAlgorithm, UndoableAlgorithm, Protocol):
    """The interface of an algorithm that several ranks can train together (the option ``learners``).

    Each rank is a process with an object of the algorithm with the same parameters and seed. Only rank 0 observes segments and
    makes updates. The others follow it, and get its state through `UndoableAlgorithm.restore`. `Ranks` in
    `rl4sys_zmq.learner.registry.compute` describes an update.
    """

    def follow(self, work: Mapping[str, Any]) -> None:
        """Do this rank's part of the work that rank 0 has announced. Only the other ranks call this.

        Args:
            work: The argument of rank 0 for `Ranks.leading`. Its tensors are on the CPU.
        """
