"""A driver program for C++ actors, and a learner that keeps the segments of its clients."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import PolicySpec, Segment

ROOT = Path(__file__).parents[2]
BUILD = Path(os.environ.get("RL4SYS_CLIENT_BUILD", ROOT / "build" / "native"))
HEADS = {"Discrete": "categorical", "Box": "gaussian"}


def libraries() -> list[Path]:
    """The built C++ client: the shared library, or the static one."""
    return [path for name in ("librl4sys_client.so", "librl4sys_client.a") if (path := BUILD / name).exists()]


def build(source: Path) -> Path:
    """Compile a program that uses the C++ client, beside the client. An earlier result is used again if it is still valid."""
    found, target = libraries(), BUILD / source.stem
    compiler = shutil.which("cc" if source.suffix == ".c" else "c++")
    if not found or compiler is None:
        pytest.skip("the C++ client is not built: run `make native`" if compiler else "there is no C++ compiler")
    if target.exists() and target.stat().st_mtime > max(source.stat().st_mtime, found[0].stat().st_mtime):
        return target
    standard = "-std=c99" if source.suffix == ".c" else "-std=c++17"
    more = ["-lzmq", "-lzstd", "-lstdc++"] if found[0].suffix == ".a" else [f"-Wl,-rpath,{BUILD}"]
    sanitize = os.environ.get("RL4SYS_CLIENT_FLAGS", "").split()
    subprocess.run(
        [compiler, standard, "-Wall", "-Wextra", "-Werror", *sanitize, f"-I{ROOT / 'native' / 'include'}", str(source),
         "-o", str(target), str(found[0]), *more, "-lm", "-pthread"],
        check=True,
    )  # fmt: skip
    return target


class DriverError(Exception):
    """The answer of the driver to a command that failed."""


class Driver:
    """A process with one C++ agent, which carries out commands (native/tests/actor_driver.cpp)."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, do: str, **fields: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the driver died of {do}: exit status {self.process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise DriverError(answer["error"])
        return answer["ok"]

    def open(self, address: str, *, baseline: list[float] | None = None, baseline_throws: bool = False, **options: Any) -> None:
        config = {
            "client_id": "lab", "algorithm_name": "KEEPER", "train_server_address": address, "seed": 7, "linger_ms": 0,
            "algorithm_parameters": {"input_size": 4, "act_dim": 3}, **options,
        }  # fmt: skip
        extra = {} if baseline is None else {"baseline": baseline}
        self("open", config=json.dumps(config), baseline_throws=baseline_throws, **extra)

    def step(self, value: float, reward: float | None = 1.0, **fields: Any) -> Any:
        """Make one step in trajectory 0."""
        action = self("request", obs=[value] * 4, **fields)
        self("add", a=action["a"])
        if reward is not None:
            self("reward", a=action["a"], reward=reward)
        return action

    def stop(self) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(30.0)
        self.process.stdout.close()
        return code


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
    return build(ROOT / "native" / "tests" / "actor_driver.cpp")


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
