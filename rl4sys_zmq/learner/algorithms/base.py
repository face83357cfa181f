"""What a learner thread asks of an algorithm, and nothing more.

An algorithm is a function of the segments it has observed: it does no I/O, starts no thread, logs nothing, counts no
versions and touches no global random state. The learner thread owns it, calls it from one thread only, and does the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.values import PolicySpec, Segment

__all__ = ["Algorithm", "Undoable"]


@runtime_checkable
class Algorithm(Protocol):
    """A learning rule for one policy.

    The life of an algorithm in its learner thread::

        algorithm.observe(segment)               # for each segment that is fresh enough
        while (metrics := algorithm.update()) is not None:
            ...                                  # each return is one update; every n-th is published

    Attributes:
        kind: ``"onpolicy"`` (a segment is used up by the next update) or ``"offpolicy"`` (it lives on in a replay; it
            counts as trained once `observe` has returned).
        rollout_length: at most how many steps an actor should put into one segment.
        publish_every_updates: how many updates make a version, unless the configuration says otherwise.
        max_policy_lag: how many versions old a segment may be, unless the configuration says otherwise; None for no limit.
    """

    kind: ClassVar[str]
    rollout_length: int
    publish_every_updates: int
    max_policy_lag: int | None

    def spec(self) -> PolicySpec:
        """The policy that actors must build. Fixed for the life of the algorithm."""

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Takes one segment.

        Args:
            segment: checked against the spaces and finite.
            correct: the segment is older than ``max_policy_lag`` and is to be corrected by importance weights rather
                than taken at face value (``on_lag: correct``).
        """

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Does one update if there is enough data, and returns its metrics by TensorBoard tag; None when there is not.

        An on-policy update uses all segments observed since the last one.

        Args:
            partial: no more data will come for this batch, so an on-policy algorithm trains on what it has, be it a single
                step; None when it has nothing. For an off-policy one, whose segments wait for nothing, it changes nothing.
                Only ever given as True: an `update` without this parameter works until a learner ends.
        """

    def demand(self) -> int:
        """How many more steps it can use before its next version: what actors may collect now. Never negative."""

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        """Copies of the tensors that ``spec().tensors`` names, as they are after the last update."""

    def state(self) -> dict[str, Any]:
        """Everything needed to go on as if nothing had happened: tensors, optimizer, random state, replay, schedules.

        It is what goes into a checkpoint: dicts (keys: str or int), lists, tuples, torch tensors, numpy arrays, numbers, str,
        bytes, bool and None, and all of it copies. An on-policy algorithm may be asked at any
        time, and gives its state after its last update: the segments that wait for the next one are delivered again.
        """

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes back to a `state` of an algorithm with the same parameters; from there on, equal segments give equal bits.

        An on-policy algorithm forgets the segments that wait for its next update.
        """


@runtime_checkable
class Undoable(Protocol):
    """What an algorithm may have besides, so that an update that comes out not finite is undone at little cost.

    Without these methods an on-policy algorithm goes back by `Algorithm.state` and `Algorithm.load`, a copy of everything for
    each update; an off-policy one, whose state holds a replay, can't go back at all, and its client fails.
    """

    def checkpoint(self) -> Any:
        """Copies of what updates change: weights, optimizer, random state, counters, statistics. Not the data observed."""

    def restore(self, kept: Any) -> None:
        """Goes back to a `checkpoint`, which may be used again; segments that wait for an on-policy update are forgotten."""

    def vitals(self) -> Sequence[NDArray[Any]]:
        """All numbers that training goes on from, the weights first: views, which are looked at and not kept."""

    def discard(self) -> Sequence[int]:
        """Takes the data out of the replay that make the next update not finite, by trying it; the state stays as it is.

        Only an off-policy algorithm is asked, right after a `restore`.

        Returns:
            Which segments they were part of, counted from 0 in the order of `observe` since the construction; negative numbers
            are left out by the caller, for data that came with a `load`.
        """
