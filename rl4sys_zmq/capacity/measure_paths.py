"""Measurement of the two paths of a learner: trajectories to an algorithm, and updates of the weights to every actor.

For the weights, the learner is in this process, and all actors are threads of one other process. The time begins when the
algorithm returns its weights, and ends when the host of the last actor is notified.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor import RL4SysAgent
from rl4sys_zmq.capacity.harness import PATIENCE_S, START_S, TrajectoryKind, UntrainedAlgorithm, body_bytes, child, send, senders
from rl4sys_zmq.config import AgentConfig, WeightsConfig
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.memory_watch import keep_freed_memory
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, PolicySpec, Segment, Space, space_to_json

T = TypeVar("T")

WARM_UP_S = 0.4
COUNTING = "COUNTS"
WALKING = "WALKS"
STEP = 1e-3
"""The largest change of a weight in an update, which changes all weights. Initial weights have a standard deviation of 0.1."""


@dataclass(frozen=True)
class ReceivingSpeed:
    """The measured speed of a process that receives trajectories."""

    steps_per_s: float
    cpu: float  # CPU time of the receiving process divided by wall time. 1.0 is one full core
    items_per_commit: float = 0.0  # mean number of trajectories that are written to disk together. 0: none is written
    gateway_cpu: float = 0.0  # the same as `cpu` of the gateway thread. 0 for a reference
    trainer_cpu: float = 0.0  # the same of the learner thread. 0 for a reference


def measure_ingress(
    kind: TrajectoryKind,
    *,
    batch: int,
    seconds: float,
    processes: int = 1,
    actors: int = 1,
    fsync: str = "",
    folder: Path | None = None,
) -> ReceivingSpeed:
    """Measure the steps per second that a learner receives from `processes` processes with `actors` actors each.

    A message has `batch` trajectories. `fsync` is the option ``fsync`` of a journal on disk. "" is a journal in memory.
    """
    keep_freed_memory()
    made: list[UntrainedAlgorithm] = []

    def build(observations: ObservationSpace, actions: Space, parameters: Mapping[str, object], seed: int) -> UntrainedAlgorithm:
        head = "gaussian" if isinstance(actions, BoxSpace) else "categorical"
        made.append(UntrainedAlgorithm(mlp_spec(observations, actions, head, (8,))))
        return made[-1]

    register_algorithm(COUNTING, build)
    others = set(threading.enumerate())  # a closed learner can leave a thread that is still busy
    with contextlib.ExitStack() as stack:
        spaces = {"observation_space": space_to_json(kind.observation_space), "action_space": space_to_json(kind.action_space)}
        config: dict[str, object] = {
            "bind": "tcp://127.0.0.1:0",
            "run_dir": None,
            "shutdown_timeout_s": START_S,  # it trains what it has received, also on a busy machine
            "clients": {"lab": {"algorithm_name": COUNTING, **spaces}},
        }
        if fsync:
            run = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
            config.update(run_dir=run, fsync=fsync, checkpoint_every_s=1.0)
        learner = stack.enter_context(Learner(LearnerConfig.from_mapping(config)))
        with senders([(send, (learner.address, kind, batch, actors, f"a{n}")) for n in range(processes)], seconds):
            wait_for(lambda: made and made[-1].steps)
            counting = made[-1]
            threads = [_threads(prefix, others) for prefix in ("rl4sys-gateway", "rl4sys-learner-")]
            rate, cpu, thread_cpu = measure(lambda: counting.steps, seconds, threads)
            journal = learner.status()["journal"] if fsync else None
        per = counting.segments / journal["commits"] if journal else 0.0
    return ReceivingSpeed(rate, cpu, per, *thread_cpu)


def append_rate(
    kind: TrajectoryKind, *, batch: int, items_per_commit: float, seconds: float, folder: Path | None = None
) -> ReceivingSpeed:
    """Measure how fast a file takes the bytes of trajectories, with `fdatasync` after each `items_per_commit` of them."""
    block = os.urandom(round(sum(body_bytes(kind, batch)) / batch * items_per_commit))
    with tempfile.TemporaryFile(dir=folder) as file:
        done, began, cpu = 0, time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            done += 1
        took = time.monotonic() - began
    steps = done * items_per_commit * kind.steps
    return ReceivingSpeed(steps / took, (time.process_time() - cpu) / took, items_per_commit)


def measure(count: Callable[[], int], seconds: float, threads: Sequence[Sequence[int]] = ()) -> tuple[float, float, list[float]]:
    """Measure how fast the number that `count` returns grows, for at least `seconds` after a warm-up.

    Return its growth per second, then CPU time divided by wall time for the process, and for each group of `threads`.
    """
    time.sleep(WARM_UP_S)
    used = [_cpu_s(group) for group in threads]
    began, cpu, steps = time.monotonic(), time.process_time(), count()
    time.sleep(seconds)
    wait_for(lambda: count() > steps)
    took, more = time.monotonic() - began, count() - steps
    shares = [(_cpu_s(group) - before) / took for group, before in zip(threads, used, strict=True)]
    return more / took, (time.process_time() - cpu) / took, shares


def _threads(prefix: str, others: Set[threading.Thread]) -> list[int]:
    """Return the identifiers of the running threads whose names begin with `prefix`, except `others`."""
    return [t.ident for t in threading.enumerate() if t.name.startswith(prefix) and t not in others and t.ident is not None]


def _cpu_s(threads: Sequence[int]) -> float:
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in threads)


def wait_for(look: Callable[[], T]) -> T:
    """Call `look` until its result is true, and return the result. Raise `TimeoutError` after 20 s."""
    deadline = time.monotonic() + START_S
    while not (result := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no steps arrived within {START_S:g} s; measure when the machine is less busy")
        time.sleep(0.01)
    return result


class _WalkingAlgorithm(UntrainedAlgorithm):
    """An algorithm that does not learn: it updates after each step, and changes its weights at random at each snapshot."""

    kind: ClassVar[str] = "onpolicy"
    rollout_length = 1

    def __init__(self, spec: PolicySpec, seed: int) -> None:
        super().__init__(spec)
        self.given_at: list[float] = []  # time of each snapshot, from `time.monotonic`
        self._pending = 0
        self._rng = np.random.default_rng(seed)
        self._weights = self._rng.normal(0.0, 0.1, spec.size).astype(np.float32)

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        self._pending += segment.steps

    def update(self, *, partial: bool = False) -> Mapping[str, float] | None:
        if not self._pending:
            return None
        self._pending = 0
        self.updates += 1
        return {"updates": float(self.updates)}

    def demand(self) -> int:
        return max(0, 1 - self._pending)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        self._weights += self._rng.uniform(-STEP, STEP, self._weights.size).astype(np.float32)
        self.given_at.append(time.monotonic())
        return self._spec.views(self._weights.copy())


def measure_fanout(kilobytes: int, actors: int, level: int, versions: int, seed: int) -> float:
    """Return the median time from an update until all actors have the new weights, in ms. At `level` 0, no diff is sent."""
    made: list[_WalkingAlgorithm] = []

    def build(observations: ObservationSpace, actions: Space, parameters: Mapping[str, object], _: int) -> _WalkingAlgorithm:
        made.append(_WalkingAlgorithm(_walking_spec(kilobytes), seed))
        return made[-1]

    register_algorithm(WALKING, build)
    config = LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, weights=WeightsConfig(level=level))
    with Learner(config) as learner, child(_follow, learner.address, actors, versions) as ear:
        assert ear.recv() == "ready"
        for version in range(1, versions + 1):
            assert ear.recv() == version  # all actors have it
        applied = np.array(ear.recv())
    updated = np.array(made[-1].given_at[1 : versions + 1])
    return 1e3 * float(np.median(applied.max(axis=0) - updated))


def policy_bytes(kilobytes: int) -> int:
    """Return the size of the weights, in bytes, that `measure_fanout` publishes for `kilobytes`."""
    return 4 * _walking_spec(kilobytes).size


def _walking_spec(kilobytes: int) -> PolicySpec:
    """Return the `PolicySpec` of a perceptron with two equal hidden layers, of about `kilobytes` in float32."""
    inputs, outputs = 8, 4
    width = round((-(inputs + outputs + 2) + ((inputs + outputs + 2) ** 2 + 4 * 250 * kilobytes) ** 0.5) / 2)
    return mlp_spec(BoxSpace((inputs,)), DiscreteSpace(outputs), "categorical", (width, width))


def _follow(pipe: Connection, address: str, actors: int, versions: int) -> None:
    """Run all actors as threads of this process. Each records when each version arrives; the first triggers the updates."""
    spaces: dict[str, Any] = {"observation_space": BoxSpace((8,)), "action_space": DiscreteSpace(4)}
    config = AgentConfig(
        client_id="lab", train_server_address=address, algorithm_name=WALKING, linger_ms=0, overflow="wait", **spaces
    )
    applied = [[0.0] * versions for _ in range(actors)]
    gates = [threading.Barrier(actors + 1) for _ in range(2)]

    def follow(index: int) -> None:
        with RL4SysAgent(config=config) as agent:
            gates[0].wait(PATIENCE_S)
            for version in range(1, versions + 1):
                if index == 0:
                    _ask(agent)
                agent.wait_version(version, PATIENCE_S)
                applied[index][version - 1] = time.monotonic()
                gates[version % 2].wait(PATIENCE_S)

    follow_versions(pipe, follow, actors, versions, gates)
    pipe.send(applied)


def _ask(agent: RL4SysAgent) -> None:
    """Send an episode of one step, which triggers one update of the algorithm."""
    traj, action = agent.request_for_action(None, np.zeros(8, np.float32))
    action.update_reward(0.0)
    agent.add_to_trajectory(traj, action)
    agent.mark_end_of_trajectory(traj, action)


def follow_versions(
    pipe: Connection, target: Callable[[int], None], actors: int, versions: int, gates: list[threading.Barrier]
) -> None:
    """Run `target` in a thread for each actor. Tell the parent process when all are ready, and when all have a version.

    Each thread waits at ``gates[0]`` before the first version, and after each version at ``gates[version % 2]``.
    """
    threads = [threading.Thread(target=target, args=(n,)) for n in range(actors)]
    for thread in threads:
        thread.start()
    gates[0].wait(PATIENCE_S)
    pipe.send("ready")
    for version in range(1, versions + 1):
        gates[version % 2].wait(PATIENCE_S)
        pipe.send(version)
    for thread in threads:
        thread.join()
