"""The learning algorithms, on-policy and off-policy, and those that users register.

- `Algorithm`: the interface through which a learner thread uses an algorithm. `UndoableAlgorithm`, `TunableAlgorithm`,
  `WarmStartAlgorithm`, `IncrementalAlgorithm`, `FolderAlgorithm`, `MemoryAlgorithm`, `PlaceableAlgorithm` and
  `ParallelAlgorithm`: its optional methods.
- `AlgorithmEntry`: the description of one algorithm in the registry. It can contain tested settings (`TaskPreset`)
  and the age of the data that the algorithm can learn from (`Staleness`).
- `register_algorithm`: adds an algorithm to the registry. `ALGORITHMS`: the registry.
"""

from rl4sys_zmq.learner.algorithms.base import (
    Algorithm,
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
from rl4sys_zmq.learner.algorithms.entry import AlgorithmEntry, AlgorithmFactory, Staleness, TaskPreset
from rl4sys_zmq.learner.algorithms.registry import ALGORITHMS, make_algorithm, mask_refusal, planned_policy, register_algorithm

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
