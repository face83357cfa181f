"""A deterministic algorithm for tests, which does not learn and needs no torch, and the specification of its policy."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config.options import MAX_NUMBER, number, option, optional, whole_number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import read_parameters
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, FlatWeights, ObservationSpace, PolicySpec, Segment, Space

_SEED_MODULUS = 2**64


def fake_spec(hidden_sizes: tuple[int, ...] = (8,)) -> PolicySpec:
    """Return the `PolicySpec` of a small policy with observations of 4 numbers and 2 discrete actions."""
    return mlp_spec(BoxSpace((4,)), DiscreteSpace(2), "categorical", hidden_sizes)


def fake_weights(spec: PolicySpec, update: int, seed: int = 0) -> FlatWeights:
    """Return the weights of a `FakeAlgorithm` after `update` updates: float32 ``[spec.size]``, different for each update."""
    return np.random.default_rng([seed % _SEED_MODULUS, update]).normal(0.0, 0.1, spec.size).astype(np.float32)


@dataclass(frozen=True)
class FakeParameters:
    """The parameters of a `FakeAlgorithm`."""

    steps_per_update: int = option(whole_number(1), 16, doc="steps for one update")
    rollout_length: int = option(whole_number(1), 16, doc="longest segment of an actor, in steps")
    publish_every_updates: int = option(whole_number(1), 1, doc="updates for one version")
    fail_after_updates: int | None = option(
        optional(whole_number(0)), None, doc="number of updates after which the next one raises"
    )
    slow_s: float = option(number(0.0, MAX_NUMBER), 0.0, doc="duration of an update in seconds, unless `release` is set")


class FakeAlgorithm:
    """A learning algorithm for tests. It counts steps, and an update sets its weights to random numbers from `fake_weights`.

    Attributes:
        segments: Number of observed segments. `load` sets this and the other counts to those of the loaded state.
        steps: Number of steps in the observed segments.
        updates: Number of updates.
        keys: Pairs ``(episode_id, segment_index)`` of the observed segments, in order. A test can check that each occurs once.
        corrected: Number of segments that were observed with ``correct=True``.
        release: Event that ends slow updates. Until it is set, an update takes ``slow_s`` seconds.
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
        """Return a factory of fake algorithms, for ``register_algorithm("FAKE", FakeAlgorithm.factory(...))``.

        Args:
            kind: ``"onpolicy"`` or ``"offpolicy"``.
            release: Event that all algorithms of the factory share.
            **defaults: Fields of `FakeParameters`. The parameters of a configuration override them.

        Raises:
            ConfigError: If the kind or a parameter is unknown.
        """
        return FakeFactory(kind, defaults, release or threading.Event())

    def spec(self) -> PolicySpec:
        """Return the `PolicySpec` of the policy that actors build."""
        return self._spec

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        """Count a segment and its steps."""
        self.segments += 1
        self.steps += segment.steps
        self.corrected += correct
        self._pending += segment.steps
        self.keys.append((segment.episode_id, segment.segment_index))

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        """Do one update if at least ``steps_per_update`` observed steps are unused. Otherwise return None.

        An on-policy update uses all unused steps, an off-policy update ``steps_per_update`` of them.

        Args:
            partial: True to let an on-policy algorithm update with any number of unused steps above 0.

        Raises:
            RuntimeError: At the update after ``fail_after_updates``.
        """
        least = 1 if partial and self.kind == "onpolicy" else self.parameters.steps_per_update
        if self._pending < least:
            return None
        if self.updates == self.parameters.fail_after_updates:
            raise RuntimeError(f"the fake algorithm fails after {self.updates} updates, as configured")
        if self.parameters.slow_s:
            self.release.wait(self.parameters.slow_s)
        self._pending = 0 if self.kind == "onpolicy" else self._pending - self.parameters.steps_per_update
        self._used = self.segments, self.steps, self.corrected
        self.updates += 1
        return {"fake/updates": float(self.updates), "fake/steps": float(self.steps)}

    def demand(self) -> int:
        """Return the number of further steps that the next update needs."""
        return max(0, self.parameters.steps_per_update - self._pending)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return the weights by tensor name: random numbers from `fake_weights`, different after each update."""
        return self._spec.views(fake_weights(self._spec, self.updates, self._seed))

    def state(self) -> dict[str, Any]:
        """Return all counts, as integers and lists. An on-policy algorithm omits segments that no update has used."""
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
        """Return the state that an update changes (the counts of updates and used data), so that `restore` can undo an update."""
        return self.updates, self._used

    def restore(self, kept: tuple[Any, ...]) -> None:
        """Return to the state of an earlier `checkpoint`. An on-policy algorithm discards segments that were observed later."""
        again = self.updates - kept[0]
        self.updates, self._used = kept
        if self.kind == "offpolicy":
            self._pending += again * self.parameters.steps_per_update
        else:
            self.segments, self.steps, self.corrected = self._used
            self._pending = 0
            del self.keys[self.segments :]

    def numbers_to_check(self) -> list[NDArray[Any]]:
        """Return an array with the number of updates. The learner checks that it is finite, as it does with real weights."""
        return [np.array([self.updates], np.float32)]

    def discard(self) -> list[int]:
        """Return an empty list: no data make a fake update fail, so there is nothing to remove."""
        return []

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the counts from a result of `state`."""
        self.segments, self.steps, self.updates = state["segments"], state["steps"], state["updates"]
        self.corrected, self._pending = state["corrected"], state["pending"]
        self.keys = [(int(episode), int(index)) for episode, index in state["keys"]]
        self._used = self.segments, self.steps, self.corrected


class _FakeOffPolicy(FakeAlgorithm):
    kind = "offpolicy"


class FakeFactory:
    """A callable that creates `FakeAlgorithm` objects and keeps them, so that a test can inspect them.

    Attributes:
        made: All algorithms that were created, in order.
        release: Event that ends slow updates of all these algorithms; see `FakeAlgorithm`.
    """

    def __init__(self, kind: str, defaults: Mapping[str, object], release: threading.Event) -> None:
        classes = {"onpolicy": FakeAlgorithm, "offpolicy": _FakeOffPolicy}
        if kind not in classes:
            raise ConfigError(f"unknown kind of fake algorithm {kind!r}; valid: onpolicy, offpolicy", key="kind")
        self._class = classes[kind]
        self._defaults = dict(defaults)
        self.release = release
        self.made: list[FakeAlgorithm] = []
        read_parameters(FakeParameters, self._defaults, algorithm="FAKE")

    def __call__(
        self, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> FakeAlgorithm:
        """Create an algorithm for the given spaces, and add it to `made`.

        Raises:
            ConfigError: If a parameter is unknown or invalid.
        """
        read = read_parameters(FakeParameters, {**self._defaults, **parameters}, algorithm="FAKE")
        head = "gaussian" if isinstance(action_space, BoxSpace) else "categorical"
        spec = mlp_spec(observation_space, action_space, head, (8,))
        self.made.append(self._class(spec, read, seed, self.release))
        return self.made[-1]
