"""The seam between the learner and the algorithms: their interface (`Algorithm`), their entries, and the registries.

`networks` has entries and a registry for kinds of networks. `like` has the names and meanings of other libraries' parameters.
"""

from rl4sys_zmq.interfaces import Algorithm
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, AlgorithmFactory, Staleness, TaskPreset
from rl4sys_zmq.learner.registry.algorithm_protocols import (
    CloneOptions,
    CloningAlgorithm,
    DemonstrationAlgorithm,
    FolderAlgorithm,
    IncrementalAlgorithm,
    MemoryAlgorithm,
    ParallelAlgorithm,
    PlaceableAlgorithm,
    TunableAlgorithm,
    UndoableAlgorithm,
    WarmStartAlgorithm,
)
from rl4sys_zmq.learner.registry.algorithms import ALGORITHMS, make_algorithm, mask_refusal, planned_policy, register_algorithm

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlgorithmEntry",
    "AlgorithmFactory",
    "CloneOptions",
    "CloningAlgorithm",
    "DemonstrationAlgorithm",
    "FolderAlgorithm",
    "IncrementalAlgorithm",
    "MemoryAlgorithm",
    "ParallelAlgorithm",
    "PlaceableAlgorithm",
    "Staleness",
    "TaskPreset",
    "TunableAlgorithm",
    "UndoableAlgorithm",
    "WarmStartAlgorithm",
    "make_algorithm",
    "mask_refusal",
    "planned_policy",
    "register_algorithm",
]
