"""The registry of algorithms: built-in ones, those that a program registers, and those of installed Python packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import overload

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.interfaces import Algorithm
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry, AlgorithmFactory
from rl4sys_zmq.names import algorithm_key
from rl4sys_zmq.plugins import Registry
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Space

_SB3 = ("A2C", "DDPG", "DQN", "MASKABLEPPO", "PPO", "QRDQN", "SAC", "TD3", "TQC", "TRPO")
_TORCHRL = ("BC", "CQL", "IQL", "REDQ", "TD3BC", "TQC")

ALGORITHMS = Registry(
    AlgorithmEntry,
    {
        "PPO": "rl4sys_zmq.algorithms.onpolicy.ppo_parameters:ENTRY",
        "A2C": "rl4sys_zmq.algorithms.onpolicy.onpolicy_entries:A2C",
        "A3C": "rl4sys_zmq.algorithms.onpolicy.onpolicy_entries:A3C",
        "BANDIT": "rl4sys_zmq.algorithms.bandit:ENTRY",
        "DQN": "rl4sys_zmq.algorithms.offpolicy.dqn_parameters:ENTRY",
        "C51": "rl4sys_zmq.algorithms.offpolicy.dqn_parameters:C51_ENTRY",
        "IMPALA": "rl4sys_zmq.algorithms.onpolicy.onpolicy_entries:IMPALA",
        "REINFORCE": "rl4sys_zmq.algorithms.onpolicy.onpolicy_entries:REINFORCE",
        "RPO": "rl4sys_zmq.algorithms.onpolicy.onpolicy_entries:RPO",
        "SAC": "rl4sys_zmq.algorithms.offpolicy.critic_parameters:ENTRY",
        "TD3": "rl4sys_zmq.algorithms.offpolicy.critic_parameters:TD3_ENTRY",
        "DDPG": "rl4sys_zmq.algorithms.offpolicy.critic_parameters:DDPG_ENTRY",
        **{f"sb3:{name}": f"rl4sys_zmq.algorithms.libraries.sb3_entries:{name}" for name in _SB3},
        **{f"torchrl:{name}": f"rl4sys_zmq.algorithms.libraries.torchrl_entries:{name}" for name in _TORCHRL},
    },
    noun="algorithm",
    group="rl4sys_zmq.algorithms",
    key="algorithm_name",
    fold=algorithm_key,
    families={"sb3": "rl4sys_zmq.algorithms.libraries.sb3_entries:own_class"},
)
"""The registry of all algorithms. To add one to this package, write a module with its entry, and add its path here."""


@overload
def register_algorithm(entry: AlgorithmEntry, /) -> None: ...


@overload
def register_algorithm(name: str, factory: AlgorithmFactory, /) -> None: ...


def register_algorithm(entry: AlgorithmEntry | str, factory: AlgorithmFactory | None = None, /) -> None:
    """Make an algorithm available to configurations in this process. It replaces a registered algorithm of the same name.

    Args:
        entry: The description of the algorithm; or its name, in any case, together with a factory.
        factory: The function or class that builds the algorithm. Give it only together with a name. If it has an attribute
            ``plan``, this becomes `AlgorithmEntry.plan`.

    Raises:
        ConfigError: If a name is given without a factory, or an entry with a factory.
    """
    if isinstance(entry, str) and factory is not None:
        entry = AlgorithmEntry(name=entry, factory=factory, plan=getattr(factory, "plan", None))
    elif isinstance(entry, str) or factory is not None:
        raise ConfigError("register_algorithm takes an AlgorithmEntry, or a name and a factory", key="algorithm_name")
    ALGORITHMS.add(entry, replace=True)


def make_algorithm(
    name: str, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
) -> Algorithm:
    """Build an object of a registered algorithm, which trains one policy.

    Raises:
        ConfigError: If the algorithm is unknown or cannot be loaded, or a parameter is invalid.
    """
    return ALGORITHMS.get(name).load()(observation_space, action_space, parameters, seed)


def planned_policy(
    name: str, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object]
) -> PolicySpec | None:
    """Return the specification of the policy that an algorithm would train, without building a network.

    Return None if the algorithm's entry has no `AlgorithmEntry.plan`.

    Raises:
        ConfigError: If the algorithm is unknown, a parameter is invalid, or the plan raises another exception.
    """
    return ALGORITHMS.get(name).planned(observation_space, action_space, parameters)


def mask_refusal(name: str) -> str:
    """Return the reason why an algorithm must get no action masks, and the algorithms that take masks; else an empty text."""
    asked = ALGORITHMS.get(name)
    if asked.takes_masks is not False:
        return ""
    takers = [entry.name for _, entry in ALGORITHMS.loadable() if entry.takes_masks]
    return f"{asked.name} ignores action masks; give none, or choose an algorithm that takes them: {', '.join(sorted(takers))}"
