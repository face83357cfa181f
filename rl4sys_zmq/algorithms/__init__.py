"""The learning algorithms: `onpolicy` and `offpolicy` ones, those of `libraries`, and their `networks`.

The learner finds them by `rl4sys_zmq.learner.registry`, whose names are here too: a program that adds an algorithm needs this
package only.
"""

from rl4sys_zmq.learner.registry import (
    ALGORITHMS,
    Algorithm,
    AlgorithmEntry,
    AlgorithmFactory,
    CloneOptions,
    CloningAlgorithm,
    DemonstrationAlgorithm,
    FolderAlgorithm,
    IncrementalAlgorithm,
    MemoryAlgorithm,
    ParallelAlgorithm,
    PlaceableAlgorithm,
    Staleness,
    TaskPreset,
    TunableAlgorithm,
    UndoableAlgorithm,
    WarmStartAlgorithm,
    make_algorithm,
    mask_refusal,
    planned_policy,
    register_algorithm,
)

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
