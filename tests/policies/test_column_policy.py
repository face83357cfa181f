"""The default batch of a policy with extra columns: as many steps, joined for actions of every space."""

from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.policies import ExtraColumnPolicy, RandomSource
from rl4sys_zmq.values import BoxSpace, DictSpace, DiscreteSpace, PolicySnapshot, TupleSpace
from rl4sys_zmq.values.observations import leaves_of

TURN = BoxSpace((2,))
ACTIONS: dict[str, tuple[Any, Any]] = {
    "discrete": (DiscreteSpace(9), lambda n: np.int64(n)),
    "box": (TURN, lambda n: np.full(2, n, np.float32)),
    "dict": (
        DictSpace({"gear": DiscreteSpace(9), "turn": TURN}),
        # the order of the keys is that of the host
        lambda n: dict(sorted({"gear": np.int64(n), "turn": np.full(2, n, np.float32)}.items(), reverse=bool(n % 2))),
    ),
    "tuple": (TupleSpace((DiscreteSpace(9), TURN)), lambda n: (np.int64(n), np.full(2, n, np.float32))),
}


class Counting(ExtraColumnPolicy):
    """A policy whose action contains the number in the observation."""

    def __init__(self, make: Any) -> None:
        super().__init__(PolicySnapshot(1, 1, 0, np.zeros(1, np.float32)))
        self._make = make

    def step(self, observation: Any, mask: Any, rng: Any, explore: bool, state: Any) -> Any:
        return self._make(int(observation)), self._make(int(observation)), -1.0, {"count": np.float32(observation)}, state


@pytest.mark.parametrize("name", ACTIONS)
def test_the_default_batch_joins_the_actions_of_its_steps(name: str) -> None:
    space, make = ACTIONS[name]
    policy, leaves = Counting(make), leaves_of(space, "actions")
    seen = np.array([3.0, 4.0, 8.0], np.float32)
    raws, acts, log_probs, columns, _ = policy.step_batch(seen, None, RandomSource(1), True, [None] * 3)
    assert (log_probs.tolist(), columns["count"].tolist()) == ([-1.0] * 3, [3, 4, 8])
    first = policy.act_batch(seen, None, RandomSource(1), True)
    for joined in (raws, acts, *first[:2]):
        for n, action in zip((3, 4, 8), leaves.rows(joined), strict=True):
            for leaf, expected in zip(leaves.flatten(action), leaves.flatten(make(n)), strict=True):
                np.testing.assert_array_equal(leaf, expected)
