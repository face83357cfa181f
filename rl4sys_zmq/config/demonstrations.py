"""Options for the start of a client's training from demonstrations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rl4sys_zmq.config.options import (
    checked_arguments,
    integer,
    number,
    option,
    optional,
    path,
    text,
)
from rl4sys_zmq.config.section import ConfigSection
from rl4sys_zmq.errors import ConfigError


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class DemonstrationsConfig(ConfigSection):
    """The options of demonstrations, recorded episodes of the task: the key ``demonstrations`` in the entry of a client.

    Raises:
        ConfigError: If the value of an option is invalid, not exactly one of `path` and `minari` is given, or neither `fraction`
            nor `clone_steps` is above 0.
    """

    path: Path | None = option(optional(path), None)
    """The file with the episodes, from ``rl4sys-actor record``. The process that trains the client reads it."""
    minari: str | None = option(optional(text), None)
    """Instead of `path`: the ID of a Minari dataset, such as ``mujoco/hopper/expert-v0``. The process that trains the client
    reads it from its machine, and downloads nothing. It needs the package ``minari``."""
    fraction: float = option(number(0.0, 0.99), 0.0)
    """The fraction of each batch of transitions that comes from the demonstrations, during the whole training. It needs an
    algorithm with a replay, such as DQN, SAC or TD3, and rewards in the file. 0: none."""
    clone_steps: int = option(integer(0, 10_000_000), 0)
    """Number of gradient steps in which the policy imitates the demonstrations (behaviour cloning) before the training. They
    are taken only if the client has no checkpoint. 0: none."""
    clone_batch_size: int = option(integer(1, 1 << 20), 256)
    """Number of steps of the demonstrations in each of these gradient steps."""
    clone_learning_rate: float = option(number(0.0, 10.0, above=True), 1e-3)
    """Adam's step size in these gradient steps."""

    @property
    def source(self) -> str:
        """The file or the dataset, for messages."""
        return str(self.path) if self.path is not None else f"the Minari dataset {self.minari}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.path is None) == (self.minari is None):
            raise ConfigError("demonstrations: give either path or minari", key="path")
        if not self.fraction and not self.clone_steps:
            raise ConfigError("demonstrations: they would have no effect; set fraction, clone_steps, or both", key="fraction")
