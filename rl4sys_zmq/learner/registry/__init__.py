"""The algorithms and networks that exist, and what one is: the seam between the learner and the algorithms.

- `Algorithm`: the interface through which a learner thread uses an algorithm; `UndoableAlgorithm` and its like are optional
  methods.
- `AlgorithmEntry`: the description of one algorithm in the registry `ALGORITHMS`, with its tested settings (`TaskPreset`) and
  the age of the data that it can learn from (`Staleness`).
- `register_algorithm`: adds an algorithm to the registry.
- `networks`: the same for kinds of networks. `like`: the names and meanings of other libraries' parameters.
"""

from rl4sys_zmq.learner.registry.algorithm import (
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
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, AlgorithmFactory, Staleness, TaskPreset
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
