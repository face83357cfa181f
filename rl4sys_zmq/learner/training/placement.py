"""The placement of an algorithm on its device, and with its ranks."""

from __future__ import annotations

import sys
import threading

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.ranks.rank_group import RankGroup
from rl4sys_zmq.learner.registry import ALGORITHMS, Algorithm, AlgorithmEntry, ParallelAlgorithm, PlaceableAlgorithm
from rl4sys_zmq.learner.registry.compute import ONE_RANK, Compute, allow_tf32, find_devices
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.wire.thread_messages import AssignClient

log = get_logger(__name__)


def place_algorithm(
    algorithm: Algorithm, assign: AssignClient, stopping: threading.Event
) -> tuple[tuple[str, ...], RankGroup | None]:
    """Move an algorithm to its device. Return the device of each rank, and the ranks, which are not started so far."""
    count = assign.learners
    if count > 1 and not isinstance(algorithm, ParallelAlgorithm):
        raise ConfigError(
            f"learners: algorithm {assign.algorithm_name} trains in one process; {count} need the methods of ParallelAlgorithm",
            key="learners",
        )
    if not isinstance(algorithm, PlaceableAlgorithm):
        if assign.device in ("auto", "cpu"):
            return ("cpu",), None
        raise ConfigError(
            f"device: algorithm {assign.algorithm_name} trains on the CPU, because it has no method place; set it to cpu or auto",
            key="device",
        )
    devices = find_devices(assign.device, count)
    allow_tf32(assign.tf32, devices[0])
    group = None
    if count > 1:
        group = RankGroup(assign, importable_factory(ALGORITHMS.get(assign.algorithm_name)), devices, stopping)
    algorithm.place(Compute(device=devices[0], ranks=ONE_RANK if group is None else group))
    log.info("client %s trains on %s", assign.client_id, ", ".join(map(str, devices)))
    return tuple(map(str, devices)), group


def importable_factory(entry: AlgorithmEntry) -> str:
    """Return the factory of an algorithm as ``"package.module:attribute"``, from which another process can import it."""
    factory = entry.factory
    if isinstance(factory, str):
        return factory
    module, name = str(getattr(factory, "__module__", "")), str(getattr(factory, "__qualname__", ""))
    if module == "__main__" or getattr(sys.modules.get(module), name, None) is not factory:
        raise ConfigError(
            f"learners: another process cannot import the factory of algorithm {entry.name}; define it at the top of a module "
            "that is not the program itself, or use learners: 1",
            key="learners",
        )
    return f"{module}:{name}"
