"""Options for the periodic evaluation of a client's policy by the learner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.config.options import (
    InvalidValue,
    checked_arguments,
    integer,
    number,
    option,
    optional,
    parameters,
    text,
)
from rl4sys_zmq.config.section import ConfigSection
from rl4sys_zmq.errors import ConfigError

DEFAULT_EVERY_VERSIONS = 10


def _environment(value: object) -> str | dict[str, object]:
    """Accept the ID of an environment, or a mapping with ``id``, which becomes what JSON has: a tuple is a list."""
    if not isinstance(value, Mapping):
        return text(value)
    given = parameters(value)
    if "id" not in given:
        raise InvalidValue("the ID of an environment, or a mapping with id and further arguments of gymnasium.make")
    text(given["id"])
    try:
        document: dict[str, object] = json.loads(json.dumps(given))
    except (TypeError, ValueError, RecursionError) as exc:
        raise InvalidValue(f"arguments of gymnasium.make that JSON can hold ({exc})") from exc
    return document


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(ConfigSection):
    """The options of the evaluation of a client's policy: the key ``evaluation`` in the entry of a client.

    A process of its own runs episodes of published versions without exploration. The version with the highest mean return is
    kept as the best one.

    Raises:
        ConfigError: If the value of an option is invalid, or `every_versions` and `every_steps` are both given.
    """

    env: str | Mapping[str, Any] = option(_environment, required=True)
    """The Gymnasium environment: its ID, or a mapping with ``id`` and further arguments of ``gymnasium.make``."""
    every_versions: int | None = option(optional(integer(1)), None)
    """Number of versions from one evaluation to the next. Default: 10, unless `every_steps` is set."""
    every_steps: int | None = option(optional(integer(1)), None)
    """Number of environment steps of the training from one evaluation to the next. Default: `every_versions` decides."""
    episodes: int = option(integer(1, 10_000), 10)
    """Number of episodes of an evaluation."""
    seed: int = option(integer(0, 2**63 - 1), 0)
    """The seed of the initial states. Each evaluation has the same ones."""

    timeout_s: float = option(number(0.0, above=True), 1800.0)
    """Longest time for an evaluation, in seconds. Then its process is killed, and the evaluation counts as failed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every_versions is not None and self.every_steps is not None:
            raise ConfigError("evaluation: every_versions and every_steps exclude each other; remove one", key="every_steps")

    @property
    def make_arguments(self) -> dict[str, Any]:
        """The arguments of ``gymnasium.make``, with ``id``."""
        return {"id": self.env} if isinstance(self.env, str) else dict(self.env)

    def period(self, version: int, steps: int) -> int:
        """Return the number of the evaluation period in which a version lies. The first version of a period is evaluated.

        Args:
            version: The version.
            steps: The environment steps of the training up to then.
        """
        if self.every_steps is not None:
            return steps // self.every_steps
        return version // (self.every_versions or DEFAULT_EVERY_VERSIONS)
