"""An algorithm and a policy that learn nothing, deterministically and without torch."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config.options import MAX_NUMBER, number, option, optional, whole
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.entry import read_parameters
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, FlatWeights, PolicySpec, Segment, Space

__all__ = ["FakeAlgorithm", "FakeFactory", "FakeParameters", "fake_spec", "fake_weights"]

_SEED_MODULUS = 2**64


def fake_spec(hidden_sizes: tuple[int, ...] = (8,)) -> PolicySpec:
    """A small categorical policy: a box of 4 numbers in, one of 2 actions out."""
    return mlp_spec(BoxSpace((4,)), DiscreteSpace(2), "categorical", hidden_sizes)


def fake_weights(spec: PolicySpec, update: int, seed: int = 0) -> FlatWeights:
    """The weights that a `FakeAlgorithm` has after `update` updates, float32 ``[spec.size]``: other bytes for each update."""
    return np.random.default_rng([seed % _SEED_MODULUS, update]).normal(0.0, 0.1, spec.size).astype(np.float32)


@dataclass(frozen=True)
class FakeParameters:
    """What a fake algorithm's configuration may say."""

    steps_per_update: int = option(whole(1), 16, doc="steps that make an update")
    rollout_length: int = option(whole(1), 16, doc="at most how many steps an actor puts into a segment")
    publish_every_updates: int = option(whole(1), 1, doc="updates that make a version")
    fail_after_updates: int | None = option(optional(whole(0)), None, doc="the update after so many raises")
    slow_s: float = option(number(0.0, MAX_NUMBER), 0.0, doc="how long an update takes, in seconds, unless `release` is set")


class FakeAlgorithm:
    """Implements `Algorithm`: counts steps, and changes its weights to `fake_weights` at each update.

    Attributes:
        segments: how many segments were observed, in the lineage that `load` goes back to.
        steps: how many steps they had.
        updates: how many updates were done.
        keys: ``(episode_id, segment_index)`` of each observed segment, in order: what must be there exactly once.
        corrected: how many segments came with ``correct=True``.
        release: while not set, an update takes ``slow_s`` seconds; set it to let a slow update go on at once.
    """

    kind: ClassVar[str] = "onpolicy"
    max_policy_lag: int | None = None

    def __init__(
        self, spec: PolicySpec, parameters: FakeParameters, seed: int = 0, release: threading.Event | None = None
    ) -> None:
        self.parameters = parameters
        self.rollout_length = parameters.rollout_length
        self.publish_every_updates = parameters.publish_every_updates
        self.release = release or threading.Event()
        self.segments = self.steps = self.updates = self.corrected = 0
        self.keys: list[tuple[int, int]] = []
        self._spec = spec
        self._seed = seed
        self._pending = 0
        self._used = (0, 0, 0)

    @staticmethod
    def factory(kind: str = "onpolicy", *, release: threading.Event | None = None, **defaults: object) -> FakeFactory:
        """A factory for ``register_algorithm("FAKE", FakeAlgorithm.factory(...))``.

        Args:
            kind: ``"onpolicy"`` or ``"offpolicy"``.
            release: shared by all algorithms that it makes.
            **defaults: fields of `FakeParameters`; a configuration's own parameters override them.

        Raises:
            ConfigError: for an unknown kind or parameter.
        """
        return FakeFactory(kind, defaults, release or threading.Event())

    def spec(self) -> PolicySpec:
        """The policy that actors must build."""
        return self._spec

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Counts a segment."""
        self.segments += 1
        self.steps += segment.steps
        self.corrected += correct
        self._pending += segment.steps
        self.keys.append((segment.episode_id, segment.segment_index))

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Does one update for each ``steps_per_update`` steps; an on-policy one uses up all that was observed.

        With `partial`, an on-policy one does it on however few steps were observed, if any.

        Raises:
            RuntimeError: at the update after ``fail_after_updates``.
        """
        least = 1 if partial and self.kind == "onpolicy" else self.parameters.steps_per_update
        if self._pending < least:
            return None
        if self.updates == self.parameters.fail_after_updates:
            raise RuntimeError(f"the fake algorithm fails after {self.updates} updates, as it was told to")
        if self.parameters.slow_s:
            self.release.wait(self.parameters.slow_s)
        self._pending = 0 if self.kind == "onpolicy" else self._pending - self.parameters.steps_per_update
        self._used = self.segments, self.steps, self.corrected
        self.updates += 1
        return {"fake/updates": float(self.updates), "fake/steps": float(self.steps)}

    def demand(self) -> int:
        """How many steps are missing for the next update."""
        return max(0, self.parameters.steps_per_update - self._pending)

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        """`fake_weights` of the updates so far."""
        return self._spec.views(fake_weights(self._spec, self.updates, self._seed))

    def state(self) -> dict[str, Any]:
        """All counts, as integers and lists of them; an on-policy one leaves out what waits for the next update."""
        onpolicy = self.kind == "onpolicy"
        segments, steps, corrected = self._used if onpolicy else (self.segments, self.steps, self.corrected)
        return {
            "segments": segments,
            "steps": steps,
            "updates": self.updates,
            "corrected": corrected,
            "pending": 0 if onpolicy else self._pending,
            "keys": [list(key) for key in self.keys[:segments]],
        }

    def checkpoint(self) -> tuple[Any, ...]:
        """See `Undoable`."""
        return self.updates, self._used

    def restore(self, kept: tuple[Any, ...]) -> None:
        """See `Undoable`: an on-policy one forgets what was observed since."""
        again = self.updates - kept[0]
        self.updates, self._used = kept
        if self.kind == "offpolicy":
            self._pending += again * self.parameters.steps_per_update
        else:
            self.segments, self.steps, self.corrected = self._used
            self._pending = 0
            del self.keys[self.segments :]

    def numbers_to_check(self) -> list[NDArray[Any]]:
        """See `Undoable`: the number of updates stands for the weights."""
        return [np.array([self.updates], np.float32)]

    def discard(self) -> list[int]:
        """See `Undoable`: it is never asked, for nothing here is not finite."""
        return []

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes back to a `state`."""
        self.segments, self.steps, self.updates = state["segments"], state["steps"], state["updates"]
        self.corrected, self._pending = state["corrected"], state["pending"]
        self.keys = [(int(episode), int(index)) for episode, index in state["keys"]]
        self._used = self.segments, self.steps, self.corrected


class _FakeOffPolicy(FakeAlgorithm):
    """The same, with segments that count as trained once observed."""

    kind = "offpolicy"


class FakeFactory:
    """Makes fake algorithms, and keeps them for the test to look at.

    Attributes:
        made: every algorithm made, in order.
        release: their `FakeAlgorithm.release`.
    """

    def __init__(self, kind: str, defaults: Mapping[str, object], release: threading.Event) -> None:
        classes = {"onpolicy": FakeAlgorithm, "offpolicy": _FakeOffPolicy}
        if kind not in classes:
            raise ConfigError(f"no fake algorithm of kind {kind!r}; valid: onpolicy, offpolicy", key="kind")
        self._class = classes[kind]
        self._defaults = dict(defaults)
        self.release = release
        self.made: list[FakeAlgorithm] = []
        read_parameters(FakeParameters, self._defaults, algorithm="FAKE")

    def __call__(
        self, observation_space: Space, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> FakeAlgorithm:
        """One algorithm for these spaces.

        Raises:
            ConfigError: for a bad parameter.
        """
        read = read_parameters(FakeParameters, {**self._defaults, **parameters}, algorithm="FAKE")
        head = "gaussian" if isinstance(action_space, BoxSpace) else "categorical"
        spec = mlp_spec(observation_space, action_space, head, (8,))
        self.made.append(self._class(spec, read, seed, self.release))
        return self.made[-1]
