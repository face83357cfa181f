"""The interface between a learner thread and an algorithm.

An algorithm is a function of the segments it has observed. It does no I/O, starts no thread, logs nothing, counts no versions
and uses no global random state. The learner thread that created it makes all calls and does everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from numpy.typing import NDArray

from rl4sys_zmq.values import PolicySpec, Segment

__all__ = ["Algorithm", "UndoableAlgorithm"]


@runtime_checkable
class Algorithm(Protocol):
    """A learning rule for one policy.

    The learner thread uses an algorithm like this::

        algorithm.observe(segment)               # for each segment that is fresh enough
        while (metrics := algorithm.update()) is not None:
            ...                                  # each return is one update; every n-th is published

    Attributes:
        kind: ``"onpolicy"`` if the next update uses a segment up, ``"offpolicy"`` if the segment goes into a replay. An
            off-policy segment counts as trained once `observe` has returned.
        rollout_length: Largest number of steps that an actor should put into one segment.
        publish_every_updates: Number of updates per published version, unless the configuration sets it.
        max_policy_lag: Largest accepted age of a segment, in versions, unless the configuration sets it; None for no limit.
    """

    kind: ClassVar[str]
    rollout_length: int
    publish_every_updates: int
    max_policy_lag: int | None

    def spec(self) -> PolicySpec:
        """Return the policy that actors must build. It is fixed for the life of the algorithm."""

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Accept one segment.

        Args:
            segment: The segment. It fits the spaces, and its numbers are finite.
            correct: True if the segment is older than ``max_policy_lag`` and must be corrected by importance weights (``on_lag:
                correct``).
        """

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do one update if there is enough data, and return its metrics by TensorBoard tag; otherwise return None.

        An on-policy update uses all segments observed since the last update.

        Args:
            partial: No more data will come for this batch. An on-policy algorithm trains on what it has, even a single step,
                and returns None if it has nothing. An off-policy algorithm ignores this argument. The learner thread passes it
                only when it is True, so an `update` without this parameter works until the learner closes.
        """

    def demand(self) -> int:
        """Return how many more steps the next version can use, at least 0. Actors may collect this many now."""

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return copies of the tensors that ``spec().tensors`` names, as they are after the last update.

        Float32 tensors can have any dtype that converts to it. All others must have exactly the dtype of their spec.
        """

    def state(self) -> dict[str, Any]:
        """Return everything needed to continue exactly: tensors, optimizer, random state, replay, schedules.

        The state goes into a checkpoint. It consists of dicts (keys: str or int), lists, tuples, torch tensors, numpy arrays,
        numbers, str, bytes, bool and None. All of them are copies. An on-policy algorithm can be asked at any time and returns
        its state after the last update: the segments that wait for the next update are delivered again.
        """

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a `state` of an algorithm with the same parameters. After that, equal segments give equal bits.

        An on-policy algorithm discards the segments that wait for its next update.
        """


@runtime_checkable
class UndoableAlgorithm(Protocol):
    """The optional methods that let a learner thread undo a non-finite update cheaply.

    Without these methods, an on-policy algorithm is restored with `Algorithm.state` and `Algorithm.load`, which copy everything
    at each update. An off-policy algorithm, whose state holds a replay, cannot be restored at all, and its client fails.
    """

    def checkpoint(self) -> Any:
        """Return copies of what updates change.

        That is weights, optimizer, random state, counters and statistics, but not the observed data.
        """

    def restore(self, kept: Any) -> None:
        """Return to the state that `checkpoint` copied, and discard the segments that wait for an on-policy update.

        Args:
            kept: The result of `checkpoint`. It is not changed, because the caller can restore it several times.
        """

    def numbers_to_check(self) -> Sequence[NDArray[Any]]:
        """Return views of all numbers that training continues from, the weights first. The caller reads them and keeps none."""

    def discard(self) -> Sequence[int]:
        """Remove from the replay the data that make the next update non-finite. Leave the state unchanged.

        The algorithm finds these data by trying the update. Only an off-policy algorithm is asked, right after a `restore`.

        Returns:
            The segments that the data belonged to, counted from 0 in the order of `observe` since construction. Data that came
            with a `load` have negative numbers, which the caller ignores.
        """
