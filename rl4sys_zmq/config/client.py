"""The learner's entry for one client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from typing import Any, Self

from rl4sys_zmq.config.options import (
    SPACE,
    as_json,
    check_fields,
    gather,
    integer,
    number,
    one_of,
    option,
    optional,
    parameters,
)
from rl4sys_zmq.config.rl4sys import algorithm_name, expand_sections
from rl4sys_zmq.config.spaces import FLAT_KEYS, resolve_spaces
from rl4sys_zmq.config.weights import WeightsConfig, weights_options
from rl4sys_zmq.values import Space

__all__ = ["ClientConfig"]


@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """What the learner's file says of one client. What is None here comes from the learner's own options or from HELLO.

    Beside the fields, ``input_size``, ``act_dim`` and ``continuous`` make flat spaces, as in `AgentConfig`.

    Raises:
        ConfigError: for a value that an option refuses, or two that contradict each other.
    """

    algorithm_name: str | None = option(optional(algorithm_name), None, names=("algorithm",))
    """The algorithm, in capitals; None: the first actor names it."""
    algorithm_parameters: Mapping[str, object] = option(parameters, {})
    """Its parameters, by any of their names."""
    type: str | None = option(optional(one_of("onpolicy", "offpolicy")), None, names=("algorithm_type",))
    """What the user takes the algorithm for; None: the algorithm's own."""
    observation_space: Space | None = option(SPACE, None)
    """None: the first actor says it."""
    action_space: Space | None = option(SPACE, None)
    """None: the first actor says it."""
    act_limit: float | None = option(optional(number(0, 1e30, above=True)), None)
    """The bound of continuous actions."""
    max_policy_lag: int | None = option(optional(integer(0, 1 << 31)), None)
    """At most how many versions old a segment may be; None: the learner's option, or else the algorithm's own limit."""
    on_lag: str | None = option(optional(one_of("drop", "correct")), None)
    """What happens to an older one."""
    pacing_lag: int | None = option(optional(integer(0, 1024)), None)
    """How many batches simulators may collect ahead of the one that is trained on."""
    publish_every_updates: int | None = option(optional(integer(1, 1 << 31)), None)
    """How many updates make a version."""
    max_magnitude: float | None = option(optional(number(0, 1e39, above=True)), None)
    """The greatest absolute value of an observation or a raw action, where the space has no bound of its own."""
    max_reward: float | None = option(optional(number(0, 1e39, above=True)), None)
    """The greatest absolute value of a reward."""
    weights: WeightsConfig = option(weights_options, WeightsConfig())
    """How its weights travel; what is not said comes from the learner's option."""
    input_size: InitVar[int | None] = None
    """Makes a Box of that many float32."""
    act_dim: InitVar[int | None] = None
    """Makes a Discrete of that many actions, or a Box of that size if `continuous`."""
    continuous: InitVar[bool | None] = None
    """True: actions are a Box, bounded by `act_limit`."""

    def __post_init__(self, input_size: int | None, act_dim: int | None, continuous: bool | None) -> None:
        check_fields(self)
        flat = {"input_size": input_size, "act_dim": act_dim, "continuous": continuous, "act_limit": self.act_limit}
        resolve_spaces(self, flat)

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Self:
        """Reads a mapping as it would stand in a file.

        Raises:
            ConfigError: for an unknown key, or as the class says.
        """
        flat = tuple(key for key in FLAT_KEYS if key != "act_limit")
        return cls(**gather(cls, expand_sections(given, ("network_architecture", "training")), extra=flat))  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_mapping` reads back."""
        return as_json(self)
