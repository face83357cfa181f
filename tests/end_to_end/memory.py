"""A plug-in: a recurrent policy with extra columns, and an algorithm that recomputes all of them from the observations."""

from collections.abc import Mapping
from math import exp, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, MaskError
from rl4sys_zmq.learner import AlgorithmEntry, register_algorithm
from rl4sys_zmq.policies import ExtraColumnPolicy, PolicyEntry, RandomSource, register_policy
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import BoxSpace, ColumnSpec, DiscreteSpace, PolicySnapshot, PolicySpec, Segment, Space, TensorSpec

WIDTH = 4
COLUMNS = (
    ColumnSpec("state", (WIDTH,), per="segment"),
    ColumnSpec("hidden", (WIDTH,)),
    ColumnSpec("tick", dtype="<i8"),
)


def advance(state: NDArray[np.float32], observation: NDArray[Any]) -> NDArray[np.float32]:
    """Return the next state: the tanh of half of the state plus the observation."""
    return np.asarray(np.tanh(state * np.float32(0.5) + observation.astype(np.float32)))


class MemoryPolicy(ExtraColumnPolicy):
    """A policy that draws one of two actions. Its state depends on all observations of the episode so far."""

    def __init__(self, spec: PolicySpec, snapshot: PolicySnapshot) -> None:
        super().__init__(snapshot)
        self.weights = spec.views(snapshot.flat)["weights"]

    def step(self, observation: NDArray[Any], mask: NDArray[Any] | None, rng: RandomSource, explore: bool, state: Any) -> Any:
        before, tick = (np.zeros(WIDTH, np.float32), 0) if state is None else state
        hidden = advance(before, observation)
        chance = 1.0 / (1.0 + exp(-float(self.weights @ hidden)))
        if mask is not None and not mask.all():
            if not mask.any():
                raise MaskError("the mask forbids every action")
            chance = float(mask.argmax())
        act = np.int64(rng.uniform() < chance if explore else chance > 0.5)
        log_prob = log(chance if act else 1.0 - chance)
        return act, act, log_prob, {"state": before, "hidden": hidden, "tick": tick}, (hidden, tick + 1)


def memory_spec(observation_space: Space, action_space: Space, parameters: Mapping[str, object] | None = None) -> PolicySpec:
    if not isinstance(observation_space, BoxSpace) or observation_space.shape != (WIDTH,) or action_space != DiscreteSpace(2):
        raise ConfigError(f"MEMORY needs a Box of {WIDTH} and 2 actions, not {observation_space} and {action_space}")
    return PolicySpec(observation_space, action_space, "memory", tensors=(TensorSpec("weights", (WIDTH,)),), columns=COLUMNS)


class Memory(FakeAlgorithm):
    """A fake algorithm that accepts a segment only if its extra columns follow from its observations."""

    def __init__(self, spec: PolicySpec, parameters: FakeParameters, seed: int) -> None:
        super().__init__(spec, parameters, seed)
        self.found: list[Segment] = []

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        assert set(segment.extras) == {"hidden", "tick"} and set(segment.initial) == {"state"}
        hidden = segment.initial["state"]
        assert hidden.shape == (WIDTH,) and segment.extras["hidden"].shape == (segment.steps, WIDTH)
        for row in range(segment.steps):
            hidden = advance(hidden, segment.observations[row])
            np.testing.assert_array_equal(hidden, segment.extras["hidden"][row])
        first = int(segment.extras["tick"][0])
        assert segment.extras["tick"].tolist() == list(range(first, first + segment.steps))
        assert (segment.segment_index > 0) == bool(first), "the state of the segment before travels with the next one"
        self.found.append(segment)
        super().observe(segment, correct=correct)


def make_memory(observation_space: Space, action_space: Space, parameters: Mapping[str, object], seed: int) -> Memory:
    known = {"steps_per_update": 8, "rollout_length": 5}
    if unknown := set(parameters) - set(known):
        raise ConfigError(f"unknown parameters {sorted(unknown)}", key="algorithm_parameters")
    made.append(Memory(memory_spec(observation_space, action_space), FakeParameters(**{**known, **parameters}), seed))  # type: ignore[arg-type]
    return made[-1]


made: list[Memory] = []
"""All `Memory` objects that were created in this process."""

register_policy(PolicyEntry(name="memory", factory=MemoryPolicy))
register_algorithm(AlgorithmEntry(name="MEMORY", factory=make_memory, kind="onpolicy", plan=memory_spec))
