"""A driver program for C++ actors, and a learner that keeps the segments of its clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.cpp_client import PROGRAMS, Driver, build
from numpy.typing import NDArray

from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import PolicySpec, Segment

HEADS = {"Discrete": "categorical", "Box": "gaussian"}


class Keeper(FakeAlgorithm):
    """A fake algorithm for any spaces that keeps the segments that it observes."""

    def __init__(self, spec: PolicySpec, parameters: FakeParameters, records: Records) -> None:
        super().__init__(spec, parameters)
        self.records = records

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        super().observe(segment, correct=correct)
        self.records.kept.append(segment)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        tensors = super().snapshot()
        if self.records.constant is not None:
            tensors = {name: np.full_like(tensor, self.records.constant) for name, tensor in tensors.items()}
        self.records.published.append(np.concatenate([tensor.ravel() for tensor in tensors.values()]))
        return tensors


class Records:
    """The segments that the keepers of a test keep, and the number of which all weights consist, if not None."""

    def __init__(self) -> None:
        self.kept: list[Segment] = []
        self.published: list[NDArray[np.float32]] = []
        self.constant: float | None = None

    def make(self, observation_space: Any, action_space: Any, parameters: Any, seed: int) -> Keeper:
        spec = mlp_spec(observation_space, action_space, HEADS[action_space.KIND], (8,))
        steps, rollout = parameters.get("steps_per_update", 1 << 30), parameters.get("rollout_length", 8)
        return Keeper(spec, FakeParameters(steps_per_update=steps, rollout_length=rollout), self)


@pytest.fixture(scope="session")
def program() -> Path:
    return build(PROGRAMS / "actor_driver.cpp")


@pytest.fixture
def driver(program: Path) -> Iterator[Driver]:
    driver = Driver(program)
    yield driver
    assert driver.stop() == 0


@pytest.fixture
def records() -> Records:
    records = Records()
    register_algorithm("KEEPER", records.make)
    return records


@pytest.fixture(params=["tcp", "ipc"])
def address(request: pytest.FixtureRequest, tmp_path: Path, records: Records) -> Iterator[str]:
    """The address of a learner whose algorithm keeps segments."""
    bind = "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/learner"
    with ExitStack() as stack:
        yield stack.enter_context(Learner(LearnerConfig(bind=bind, run_dir=None))).address
