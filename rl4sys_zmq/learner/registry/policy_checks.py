"""Checks before the training: the size of a policy, the integers that it would train on, and the use of demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from rl4sys_zmq.config import DemonstrationsConfig
from rl4sys_zmq.errors import ConfigError, config_error
from rl4sys_zmq.layers.normalise import MEAN
from rl4sys_zmq.learner.registry.algorithm_entry import AlgorithmEntry
from rl4sys_zmq.values import BoxSpace, ObservationSpace, PolicySpec, Space
from rl4sys_zmq.values.observations import leaves_of


def check_planned_size(
    kind: AlgorithmEntry, spaces: tuple[ObservationSpace, Space], parameters: Mapping[str, object], limit: int
) -> PolicySpec | None:
    """Check that each network that an algorithm would build has at most `limit` parameters, if its entry can plan the networks.

    Returns:
        The planned policy; None if the entry cannot plan one.

    Raises:
        ConfigError: If a network has more than `limit` parameters, or a parameter of the algorithm is invalid.
    """
    plan = kind.planned(*spaces, parameters)
    if plan is not None:
        check_policy_size(plan, limit)
    if kind.count is not None and (count := kind.count(*spaces, parameters)) > limit:
        raise ConfigError(
            f"the networks of {kind.name} have {count} parameters; max_parameters allows {limit}", key="max_parameters"
        )
    return plan


def check_policy_size(spec: PolicySpec, limit: int) -> None:
    """Check that a policy has at most `limit` parameters, the option `max_parameters`.

    Raises:
        ConfigError: If the policy has more parameters.
    """
    if spec.parameters > limit:
        raise ConfigError(f"the policy has {spec.parameters} parameters; max_parameters allows {limit}", key="max_parameters")


def check_magnitudes(spec: PolicySpec, limit: float) -> None:
    """Check that integer observations in a Box are at most `limit`, the option `max_magnitude`.

    Larger integers need a network that normalises observations. Networks of plugins are not checked.

    Raises:
        ConfigError: If an integer can be larger and the network has no normalisation.
    """
    if spec.kind != "layers" or spec.tensors[0].name == MEAN:
        return
    for space in leaves_of(spec.observation_space).spaces:
        if isinstance(space, BoxSpace) and np.dtype(space.dtype).kind in "iu":
            held = np.iinfo(space.dtype)
            largest = np.abs(np.clip([space.low_array(), space.high_array()], held.min, held.max)).max(initial=0.0)
            if largest > limit:
                raise config_error(
                    "observation_space",
                    f"{space} has integers up to {largest:g}, and this network does not normalise them; the "
                    f"limit is max_magnitude ({limit:g}): scale them, or declare narrower bounds",
                )


@runtime_checkable
class MixedBatchParameters(Protocol):
    """The interface of an algorithm's parameters if its batches consist of demonstrations and of its replay."""

    def check_fraction(self, fraction: float) -> None:
        """Raise `ConfigError` if batches cannot be divided with this fraction of demonstrations."""


def require_use(name: str, options: DemonstrationsConfig, *, takes: bool, clones: bool) -> None:
    """Check that an algorithm can use demonstrations as the options ask.

    Args:
        name: The name of the algorithm.
        options: The options of the demonstrations.
        takes: True if the algorithm is a `DemonstrationAlgorithm`.
        clones: True if the algorithm is a `CloningAlgorithm`.

    Raises:
        ConfigError: If the algorithm cannot use the demonstrations in this way.
    """
    if options.fraction and not takes:
        raise config_error("demonstrations.fraction", f"{name} has no replay that takes demonstrations; set clone_steps instead")
    if options.clone_steps and not clones:
        raise config_error("demonstrations.clone_steps", f"{name} cannot clone demonstrations; remove the option")


def require_rewards(options: DemonstrationsConfig, *, rewarded: bool) -> None:
    """Raise `ConfigError` if demonstrations for a replay have no rewards."""
    if not rewarded:
        raise config_error(
            "demonstrations.fraction", f"{options.source} has no rewards, which a replay needs; set clone_steps instead"
        )
