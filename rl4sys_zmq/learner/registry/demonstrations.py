"""Checks that an algorithm can use demonstrations as the options ask."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from rl4sys_zmq.config import DemonstrationsConfig
from rl4sys_zmq.errors import ConfigError


@runtime_checkable
class MixedBatchParameters(Protocol):
    """Parameters of an algorithm whose batches consist of demonstrations and of its replay."""

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
        ConfigError: If it cannot.
    """
    if options.fraction and not takes:
        raise ConfigError(
            f"demonstrations.fraction: {name} has no replay that takes demonstrations; set clone_steps instead",
            key="demonstrations.fraction",
        )
    if options.clone_steps and not clones:
        raise ConfigError(
            f"demonstrations.clone_steps: {name} cannot clone demonstrations; remove the option",
            key="demonstrations.clone_steps",
        )


def require_rewards(options: DemonstrationsConfig, *, rewarded: bool) -> None:
    """Raise `ConfigError` if demonstrations for a replay have no rewards."""
    if not rewarded:
        raise ConfigError(
            f"demonstrations.fraction: {options.source} has no rewards, which a replay needs; set clone_steps instead",
            key="demonstrations.fraction",
        )
