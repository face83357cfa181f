"""The benchmark of receiving trajectories: steps per second that reach an algorithm, which only counts them.

The baseline is a plain ROUTER loop, or, with a journal on disk, appending the same bytes to a file.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import zmq
from harness.session_load import send_sessions

from rl4sys_zmq.capacity.senders import RAW_HWM, TrajectoryKind, body_bytes, bytes_per_item, send_ours, send_raw
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.memory_watch import keep_freed_memory
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import BoxSpace, ObservationSpace, Segment, Space, space_to_json

__all__ = ["IngressMeasurement", "append_rate", "ours", "raw"]

T = TypeVar("T")

WARM_UP_S = 0.4
START_S = 20.0
ALGORITHM = "COUNTS"


@dataclass(frozen=True)
class IngressMeasurement:
    """The measured speed of a process that receives trajectories.

    Attributes:
        steps_per_s: Number of steps received per second.
        cpu: CPU time of the receiving process divided by wall time. 1.0 is one full core.
        items_per_commit: Mean number of trajectories that the learner writes to disk together. 0 if it keeps them in memory.
        gateway_cpu: CPU time of the gateway (the learner's network thread) divided by wall time. 0 for a reference.
        trainer_cpu: The same of the learner thread (the thread that trains a client). 0 for a reference.
    """

    steps_per_s: float
    cpu: float
    items_per_commit: float = 0.0
    gateway_cpu: float = 0.0
    trainer_cpu: float = 0.0


class IngressCountingAlgorithm(FakeAlgorithm):
    """An algorithm that only counts the received trajectories and their steps, and never makes actors wait."""

    kind: ClassVar[str] = "offpolicy"
    made: ClassVar[list[IngressCountingAlgorithm]] = []

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        self.segments += 1
        self.steps += segment.steps

    def demand(self) -> int:
        return 1 << 50

    def update(self, *, partial: bool = False) -> None:
        return None


def _build(
    observations: ObservationSpace, actions: Space, parameters: Mapping[str, object], seed: int
) -> IngressCountingAlgorithm:
    head = "gaussian" if isinstance(actions, BoxSpace) else "categorical"
    IngressCountingAlgorithm.made.append(
        IngressCountingAlgorithm(mlp_spec(observations, actions, head, (8,)), FakeParameters(), seed)
    )
    return IngressCountingAlgorithm.made[-1]


def ours(
    payload: TrajectoryKind,
    *,
    batch: int,
    actors: int,
    seconds: float,
    fsync: str = "",
    folder: Path | None = None,
    simulated: int = 0,
) -> IngressMeasurement:
    """Measure the steps per second that a learner of this library receives from several sending processes.

    Args:
        payload: The kind of trajectory to send.
        batch: Number of trajectories in a message.
        actors: Number of sending processes.
        simulated: Number of actors of each sending process (`harness.session_load`), which send one trajectory in a
            message; 0 for one actor, which sends prepared messages.
        seconds: Duration of the measurement.
        fsync: The option ``fsync``, for a learner that records received data on disk (the journal). Empty: in memory.
        folder: Folder for the run directory. None: the temporary folder.
    """
    keep_freed_memory()
    register_algorithm(ALGORITHM, _build)
    others = set(threading.enumerate())  # a closed learner can leave a thread that is still busy
    with contextlib.ExitStack() as stack:
        spaces = {
            "observation_space": space_to_json(payload.observation_space),
            "action_space": space_to_json(payload.action_space),
        }
        config: dict[str, object] = {
            "bind": "tcp://127.0.0.1:0",
            "run_dir": None,
            "clients": {"lab": {"algorithm_name": ALGORITHM, **spaces}},
        }
        if fsync:
            run = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
            config.update(run_dir=run, fsync=fsync, checkpoint_every_s=1.0)
        learner = stack.enter_context(Learner(LearnerConfig.from_mapping(config)))
        senders: list[tuple[Callable[..., None], tuple[object, ...]]] = [
            (send_sessions, (learner.address, payload, simulated, n))
            if simulated
            else (send_ours, (learner.address, payload, batch, f"a{n}"))
            for n in range(actors)
        ]
        with _processes(senders, seconds):
            _wait_for(lambda: IngressCountingAlgorithm.made and IngressCountingAlgorithm.made[-1].steps)
            counting = IngressCountingAlgorithm.made[-1]
            threads = [_threads(prefix, others) for prefix in ("rl4sys-gateway", "rl4sys-learner-")]
            rate, cpu, thread_cpu = _measure(lambda: counting.steps, seconds, threads)
            journal = learner.status()["journal"] if fsync else None
        per = counting.segments / journal["commits"] if journal else 0.0
    IngressCountingAlgorithm.made.clear()
    return IngressMeasurement(rate, cpu, per, *thread_cpu)


def raw(payload: TrajectoryKind, *, batch: int, actors: int, seconds: float) -> IngressMeasurement:
    """Measure the reference for a learner that keeps its data in memory: a plain ROUTER loop that receives the same messages.

    The messages have the same number of bytes and frames.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.set_hwm(RAW_HWM)
    router.linger = 0
    port = router.bind_to_random_port("tcp://127.0.0.1")
    sizes, messages, ending = body_bytes(payload, batch), [0], threading.Event()

    def take() -> None:
        while not ending.is_set():
            if router.poll(50):
                frames = router.recv_multipart(copy=False)
                assert len(frames[-1]) == sizes[-1]
                messages[0] += 1

    thread = threading.Thread(target=take)
    thread.start()
    try:
        with _processes([(send_raw, (f"tcp://127.0.0.1:{port}", sizes))] * actors, seconds):
            _wait_for(lambda: messages[0])
            return IngressMeasurement(*_measure(lambda: messages[0] * batch * payload.steps, seconds)[:2])
    finally:
        ending.set()
        thread.join()
        router.close()
        context.term()


def append_rate(
    payload: TrajectoryKind, *, batch: int, items_per_commit: float, seconds: float, folder: Path | None = None
) -> IngressMeasurement:
    """Measure the reference for a learner that records received data on disk: a loop that appends the same bytes to a file.

    The loop calls `fdatasync` after each `items_per_commit` trajectories, as many as the learner writes together.
    """
    block = os.urandom(round(bytes_per_item(payload, batch) * items_per_commit))
    with tempfile.TemporaryFile(dir=folder) as file:
        done, began, cpu = 0, time.monotonic(), time.process_time()
        while time.monotonic() - began < seconds:
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            done += 1
        took = time.monotonic() - began
    steps = done * items_per_commit * payload.steps
    return IngressMeasurement(steps / took, (time.process_time() - cpu) / took, items_per_commit)


def _measure(count: Callable[[], int], seconds: float, threads: Sequence[Sequence[int]] = ()) -> tuple[float, float, list[float]]:
    """Measure during `seconds` after a warm-up, or until the first steps arrive, if that is later.

    Return the steps per second, the CPU time of the process divided by wall time, and the same of each group of `threads`, which
    are given by their ``ident``.
    """
    time.sleep(WARM_UP_S)
    used = [_cpu_s(group) for group in threads]
    began, cpu, steps = time.monotonic(), time.process_time(), count()
    time.sleep(seconds)
    _wait_for(lambda: count() > steps)
    took, more = time.monotonic() - began, count() - steps
    shares = [(_cpu_s(group) - before) / took for group, before in zip(threads, used, strict=True)]
    return more / took, (time.process_time() - cpu) / took, shares


def _threads(prefix: str, others: Set[threading.Thread]) -> list[int]:
    """Return the identifiers of the running threads whose names begin with `prefix`, except `others`."""
    return [t.ident for t in threading.enumerate() if t.name.startswith(prefix) and t not in others and t.ident is not None]


def _cpu_s(threads: Sequence[int]) -> float:
    """Return the CPU time that these running threads have used so far, in seconds."""
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in threads)


def _wait_for(look: Callable[[], T]) -> T:
    deadline = time.monotonic() + START_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"no steps arrived within {START_S:g} s; measure when the machine is less busy")
        time.sleep(0.01)
    return found


@contextlib.contextmanager
def _processes(targets: Sequence[tuple[Callable[..., None], tuple[object, ...]]], seconds: float) -> Iterator[None]:
    """Run sender processes during the ``with`` block, and end them afterwards."""
    spawn = multiprocessing.get_context("spawn")
    until_s = time.time() + START_S + seconds
    running = [spawn.Process(target=target, args=(*args, until_s)) for target, args in targets]
    for process in running:
        process.start()
    try:
        yield
    finally:
        for process in running:
            process.terminate()
            process.join()
