"""Learning rules behind one protocol: PPO (on-policy) and DQN (off-policy), and whatever a user registers."""

from rl4sys_zmq.learner.algorithms.base import Algorithm, Undoable
from rl4sys_zmq.learner.algorithms.registry import (
    algorithm_names,
    make_algorithm,
    planned_policy,
    register_algorithm,
    require_algorithm,
    resolve_algorithm,
)

__all__ = [
    "Algorithm",
    "Undoable",
    "algorithm_names",
    "make_algorithm",
    "planned_policy",
    "register_algorithm",
    "require_algorithm",
    "resolve_algorithm",
]
