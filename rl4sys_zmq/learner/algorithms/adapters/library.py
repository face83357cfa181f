"""The parts of registry entries that the algorithms of all libraries share. This module imports no library.

- `LibraryFactory`: a factory that imports the library when it builds an algorithm.
- `spaces_of`: the spaces of an algorithm, for people.
- `TQC_REFERENCE`: the source of TQC, which two libraries have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms.base import Algorithm
from rl4sys_zmq.plugins import load_object
from rl4sys_zmq.policies.mlp import BOUNDED_HEADS
from rl4sys_zmq.values import ObservationSpace, Space

__all__ = ["TQC_REFERENCE", "LibraryFactory", "spaces_of"]

TQC_REFERENCE = (
    "Kuznetsov et al. 2020, Controlling overestimation bias with truncated mixture of continuous distributional quantile critics"
)


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


def spaces_of(heads: Mapping[str, str]) -> str:
    """Return `AlgorithmEntry.spaces` of an algorithm that has these heads for each kind of action space."""
    kinds = (f"bounded {kind}" if head in BOUNDED_HEADS else kind for kind, head in heads.items())
    return f"observations as one Box or Discrete; {' or '.join(kinds)} actions"
