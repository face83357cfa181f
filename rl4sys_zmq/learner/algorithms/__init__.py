"""Learning rules behind one protocol: PPO (on-policy), DQN (off-policy), and those that users register.

- `Algorithm`: the interface that a learner thread uses; `UndoableAlgorithm`: its optional part.
- `AlgorithmEntry`: an entry of the registry, with `Preset`s; `register_algorithm` adds one, `ALGORITHMS` holds all.
"""

from rl4sys_zmq.learner.algorithms.base import Algorithm, UndoableAlgorithm
from rl4sys_zmq.learner.algorithms.entry import AlgorithmEntry, AlgorithmFactory, Preset
from rl4sys_zmq.learner.algorithms.registry import ALGORITHMS, make_algorithm, planned_policy, register_algorithm

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlgorithmEntry",
    "AlgorithmFactory",
    "Preset",
    "UndoableAlgorithm",
    "make_algorithm",
    "planned_policy",
    "register_algorithm",
]
