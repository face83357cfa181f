"""The check that the returns in a stored replay are those of the parameters with which a training continues."""

from __future__ import annotations

from collections.abc import Mapping

from rl4sys_zmq.errors import ConfigError


def check_stored_returns(stored: Mapping[str, float], given: Mapping[str, float]) -> None:
    """Check that the returns in a stored replay were computed with the given parameters."""
    for name, value in given.items():
        if stored[name] != value:
            raise ConfigError(
                f"algorithm_parameters.{name}: {value:g}, but the returns in the stored replay were computed with "
                f"{stored[name]:g}; set {name} to {stored[name]:g} again, or `forget` the client, which discards the replay",
                key=f"algorithm_parameters.{name}",
            )
