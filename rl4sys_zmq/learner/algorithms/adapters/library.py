"""The factory of an algorithm that a library trains. It imports the library when it builds the algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.base import Algorithm
from rl4sys_zmq.plugins import load_object
from rl4sys_zmq.values import ObservationSpace, Space

__all__ = ["LibraryFactory"]


@dataclass(frozen=True, slots=True)
class LibraryFactory:
    """An `AlgorithmFactory` for one algorithm of a library. To create it imports nothing.

    Attributes:
        builder: The function that builds the algorithm, as ``"package.module:attribute"``. Its first argument is `name`; the
            others are those of an `AlgorithmFactory`.
        name: The name of the algorithm in the library, or the location of the user's own class.
        extra: The optional dependency group of this package that installs the library.
    """

    builder: str
    name: str
    extra: str

    def __call__(
        self, observation_space: ObservationSpace, action_space: Space, parameters: Mapping[str, object], seed: int
    ) -> Algorithm:
        """Import the library, and build the algorithm.

        Raises:
            ConfigError: If the library is not installed, a parameter is invalid, or the algorithm cannot act in the spaces.
        """
        try:
            build = load_object(self.builder)
        except ImportError as exc:
            raise ConfigError(
                f"{self.extra}:{self.name} cannot be loaded ({exc}): pip install 'rl4sys-zmq[{self.extra}]'",
                key="algorithm_name",
            ) from exc
        return cast(Algorithm, build(self.name, observation_space, action_space, parameters, seed))
