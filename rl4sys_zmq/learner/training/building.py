"""The building of a client's algorithm, its placement on devices, and the loading of initial weights."""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry import (
    ALGORITHMS,
    Algorithm,
    AlgorithmEntry,
    FolderAlgorithm,
    MemoryAlgorithm,
    ParallelAlgorithm,
    PlaceableAlgorithm,
    WarmStartAlgorithm,
)
from rl4sys_zmq.learner.registry.algorithm_entry import default_pacing_lag, rl4sys_notes
from rl4sys_zmq.learner.registry.like import ambiguous_names
from rl4sys_zmq.learner.registry.policy_checks import check_magnitudes, check_planned_size, check_policy_size
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.memory_watch import available_bytes
from rl4sys_zmq.policies.initial_weights import read_weights
from rl4sys_zmq.values import observation_space_from, space_from
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.wire.thread_messages import AssignClient

if TYPE_CHECKING:
    from rl4sys_zmq.learner.ranks.rank_group import RankGroup

log = get_logger(__name__)


class BuiltAlgorithm(NamedTuple):
    """A new algorithm that has loaded no checkpoint, with its devices and ranks."""

    algorithm: Algorithm
    devices: tuple[str, ...]  # of each rank
    ranks: RankGroup | None  # their processes are not started so far


def build_algorithm(assign: AssignClient, folder: Path | None, stopping: threading.Event) -> BuiltAlgorithm:
    """Build the algorithm of a client in the calling thread, which becomes the only one that uses it."""
    spaces = observation_space_from(assign.observation_space), space_from(assign.action_space)
    kind = ALGORITHMS.get(assign.algorithm_name)
    make = kind.load()
    check_planned_size(kind, spaces, assign.parameters, assign.max_parameters)
    if assign.torch_threads and "torch" in sys.modules:
        torch = importlib.import_module("torch")  # waits for another thread that is importing it
        # Set this before any computation: the number of threads changes the last bits. The number is this thread's own.
        torch.get_num_threads()  # its first call in a thread copies the process's number, and would undo the next line
        torch.set_num_threads(assign.torch_threads)
    algorithm = make(*spaces, assign.parameters, assign.seed)
    if folder is not None and isinstance(algorithm, FolderAlgorithm):
        algorithm.use_folder(folder)
    if isinstance(algorithm, MemoryAlgorithm):
        algorithm.check_memory(available_bytes())
    placed = assign.device != "cpu" or assign.learners > 1
    devices, ranks = place_algorithm(algorithm, assign, stopping) if placed else (("cpu",), None)
    for line in ambiguous_names(kind.parameters, assign.parameters, bool(action_layout(spaces[1]).numbers)):
        log.warning("client %s: %s", assign.client_id, line)
    for line in rl4sys_notes(getattr(algorithm, "parameters", None)):
        log.info("client %s: %s", assign.client_id, line)
    check_policy_size(algorithm.spec(), assign.max_parameters)
    check_magnitudes(algorithm.spec(), assign.max_magnitude)
    set_publishing(algorithm, assign)
    return BuiltAlgorithm(algorithm, devices, ranks)


def set_publishing(algorithm: Algorithm, assign: AssignClient) -> None:
    """Set the algorithm's `publish_every_updates` to the option of this name, if the configuration has it."""
    if assign.publish_every_updates:
        algorithm.publish_every_updates = assign.publish_every_updates


def load_initial_policy(algorithm: Algorithm, assign: AssignClient) -> None:
    """Load the policy weights that the settings of a client name (``init``) into its new algorithm."""
    if not isinstance(algorithm, WarmStartAlgorithm):
        name = assign.algorithm_name
        raise ConfigError(f"algorithm {name} cannot start with given weights; it has no method load_policy", key="init")
    source, spec = Path(assign.init), algorithm.spec()
    tensors = read_weights(source, spec)
    algorithm.load_policy({**algorithm.snapshot(), **tensors})
    log.info("client %s starts with %d of %d tensors of %s", assign.client_id, len(tensors), len(spec.tensors), source)


def max_policy_lag(algorithm: Algorithm, assign: AssignClient) -> int:
    """Return the largest policy lag of data for training, in versions; -1 for no limit."""
    if assign.max_policy_lag >= 0:
        return assign.max_policy_lag
    return -1 if algorithm.max_policy_lag is None else algorithm.max_policy_lag


def pacing_lag(algorithm: Algorithm, assign: AssignClient) -> int:
    """Return the number of batches that actors can collect ahead of the training."""
    if assign.pacing_lag >= 0:
        return assign.pacing_lag
    return default_pacing_lag(ALGORITHMS.get(assign.algorithm_name), algorithm.kind) or 0


def place_algorithm(
    algorithm: Algorithm, assign: AssignClient, stopping: threading.Event
) -> tuple[tuple[str, ...], RankGroup | None]:
    """Move an algorithm to its device. Return the device of each rank, and the group of ranks, which `start` starts later."""
    from rl4sys_zmq.learner.ranks.rank_group import RankGroup  # these two import torch
    from rl4sys_zmq.learner.registry.compute import ONE_RANK, Compute, allow_tf32, find_devices

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
