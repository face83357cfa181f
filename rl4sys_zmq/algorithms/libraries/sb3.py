"""Stable-Baselines3's algorithms, trained on segments from actors."""

from __future__ import annotations

from collections.abc import Mapping

import sb3_contrib
import stable_baselines3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from rl4sys_zmq.algorithms.libraries.sb3_model import Sb3Adapter
from rl4sys_zmq.algorithms.libraries.sb3_offpolicy import Sb3OffPolicy
from rl4sys_zmq.algorithms.libraries.sb3_onpolicy import Sb3OnPolicy
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithms import ALGORITHMS
from rl4sys_zmq.plugins import load_object
from rl4sys_zmq.values import ObservationSpace, Space


def build(
    name: str, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
) -> Sb3Adapter:
    """Build one of the library's algorithms, or an algorithm of the user."""
    entry, cls = ALGORITHMS.get(f"sb3:{name}"), _find_class(name)
    if entry.plan is not None:
        entry.plan(observation_space, action_space, parameters)
    adapter: type[Sb3Adapter] = Sb3OnPolicy if issubclass(cls, OnPolicyAlgorithm) else Sb3OffPolicy
    return adapter(entry, cls, observation_space, action_space, parameters, seed)


def _find_class(name: str) -> type[BaseAlgorithm]:
    if ":" not in name:
        algorithm = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    else:
        try:
            algorithm = load_object(name)
        except (ImportError, AttributeError) as exc:
            raise ConfigError(
                f"sb3:{name} cannot be loaded ({exc}); install or correct the module, or add its folder to PYTHONPATH",
                key="algorithm_name",
            ) from exc
    if isinstance(algorithm, type) and issubclass(algorithm, OnPolicyAlgorithm | OffPolicyAlgorithm):
        return algorithm
    raise ConfigError(
        f"sb3:{name} is {algorithm!r:.80}; expected a class that is derived from OnPolicyAlgorithm or OffPolicyAlgorithm of "
        "stable_baselines3",
        key="algorithm_name",
    )
