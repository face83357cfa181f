"""Measurement of the steps per second that reach an algorithm, in a learner with a journal in memory or on disk."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rl4sys_zmq.capacity.harness import START_S, TrajectoryKind, UntrainedAlgorithm, body_bytes, send, senders
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.memory_watch import keep_freed_memory
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, ObservationSpace, Space, space_to_json

T = TypeVar("T")

WARM_UP_S = 0.4
ALGORITHM = "COUNTS"


@dataclass(frozen=True)
class IngressMeasurement:
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
) -> IngressMeasurement:
    """Measure the steps per second that a learner receives from several sending processes.

    Args:
        kind: The kind of trajectory to send.
        batch: Number of trajectories in a message.
        seconds: Duration of the measurement.
        processes: Number of sending processes.
        actors: Number of actors in each of them.
        fsync: The option ``fsync`` of a journal on disk. Empty: in memory.
        folder: Folder for the run directory. None: the temporary folder.
    """
    keep_freed_memory()
    made: list[UntrainedAlgorithm] = []

    def build(observations: ObservationSpace, actions: Space, parameters: Mapping[str, object], seed: int) -> UntrainedAlgorithm:
        head = "gaussian" if isinstance(actions, BoxSpace) else "categorical"
        made.append(UntrainedAlgorithm(mlp_spec(observations, actions, head, (8,))))
        return made[-1]

    register_algorithm(ALGORITHM, build)
    others = set(threading.enumerate())  # a closed learner can leave a thread that is still busy
    with contextlib.ExitStack() as stack:
        spaces = {"observation_space": space_to_json(kind.observation_space), "action_space": space_to_json(kind.action_space)}
        config: dict[str, object] = {
            "bind": "tcp://127.0.0.1:0",
            "run_dir": None,
            "shutdown_timeout_s": START_S,  # it trains what it has received, also on a busy machine
            "clients": {"lab": {"algorithm_name": ALGORITHM, **spaces}},
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
    return IngressMeasurement(rate, cpu, per, *thread_cpu)


def append_rate(
    kind: TrajectoryKind, *, batch: int, items_per_commit: float, seconds: float, folder: Path | None = None
) -> IngressMeasurement:
    """Measure a loop that appends the same bytes to a file, with `fdatasync` after each `items_per_commit` trajectories."""
    block = os.urandom(round(sum(body_bytes(kind, batch)) / batch * items_per_commit))
    with tempfile.TemporaryFile(dir=folder) as file:
        done, began, cpu = 0, time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            done += 1
        took = time.monotonic() - began
    steps = done * items_per_commit * kind.steps
    return IngressMeasurement(steps / took, (time.process_time() - cpu) / took, items_per_commit)


def measure(count: Callable[[], int], seconds: float, threads: Sequence[Sequence[int]] = ()) -> tuple[float, float, list[float]]:
    """Measure during `seconds` after a warm-up, or until the first steps arrive, if that is later.

    Return the steps per second, the CPU time of the process divided by wall time, and the same of each group of `threads`, which
    are given by their ``ident``.
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
    """Return the first true result of a function. Raise `TimeoutError` after `START_S`."""
    deadline = time.monotonic() + START_S
    while not (result := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no steps arrived within {START_S:g} s; measure when the machine is less busy")
        time.sleep(0.01)
    return result
