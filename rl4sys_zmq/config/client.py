"""The entry for one client in the learner's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Self

from rl4sys_zmq.config.demonstrations import DemonstrationsConfig
from rl4sys_zmq.config.evaluation import EvaluationConfig
from rl4sys_zmq.config.options import (
    OBSERVATION_SPACE,
    PARAMETER_HINT,
    SPACE,
    checked_arguments,
    device_name,
    integer,
    name,
    number,
    one_of,
    option,
    optional,
    parse_options,
    path,
)
from rl4sys_zmq.config.resources import ResourcesConfig
from rl4sys_zmq.config.rl4sys import algorithm_name, algorithm_parameters, expand_sections
from rl4sys_zmq.config.section import ConfigSection
from rl4sys_zmq.config.spaces import FLAT_KEYS, resolve_spaces
from rl4sys_zmq.config.weights import WeightsConfig
from rl4sys_zmq.values import ObservationSpace, Space


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class ClientConfig(ConfigSection):
    """The options of one client in the configuration of a learner process.

    An option that is None takes its value from the learner's own options, or from the handshake message (HELLO) of the client's
    first actor. Instead of the two spaces, ``input_size``, ``act_dim`` and ``continuous`` can be given, as in `AgentConfig`.

    Raises:
        ConfigError: If the value of an option is invalid, or two values contradict each other.
    """

    algorithm_name: str | None = option(optional(algorithm_name), None, names=("algorithm",))
    """The name of the learning algorithm, such as ``PPO`` or ``sb3:TRPO``. Default: the first actor names it."""
    algorithm_parameters: Mapping[str, object] = option(algorithm_parameters, {})
    """The algorithm's parameters. A parameter can have its own name or a synonym."""
    type: str | None = option(optional(one_of("onpolicy", "offpolicy")), None, names=("algorithm_type",))
    """The expected type of the algorithm: ``onpolicy`` or ``offpolicy``. Default: no expectation."""
    observation_space: ObservationSpace | None = option(OBSERVATION_SPACE, None)
    """The observation space. Default: the first actor sets it."""
    action_space: Space | None = option(SPACE, None)
    """The action space. Default: the first actor sets it."""
    act_limit: float | None = option(optional(number(0, 1e30, above=True)), None)
    """The bound of continuous actions that `act_dim` defines: from ``-act_limit`` to ``act_limit``. No effect otherwise."""
    max_policy_lag: int | None = option(optional(integer(0, 1 << 31)), None)
    """Largest number of policy versions by which a segment's oldest step can be behind. Default: the learner's option, or else
    the algorithm's own limit."""
    on_lag: str | None = option(optional(one_of("drop", "correct")), None)
    """Treatment of segments above `max_policy_lag`: ``drop`` or ``correct`` (see `LearnerConfig`). Default: the learner's
    option."""
    pacing_lag: int | None = option(optional(integer(0, 1024)), None)
    """Number of training batches that simulators can collect ahead of the training. Default: the learner's option."""
    publish_every_updates: int | None = option(optional(integer(1, 1 << 31)), None)
    """Number of training updates between two published versions of the policy. Default: the learner's option."""
    max_magnitude: float | None = option(optional(number(0, 1e39, above=True)), None)
    """Largest valid absolute value in an observation or in an action of the policy, where the space has no bound. Default: the
    learner's option."""
    max_reward: float | None = option(optional(number(0, 1e39, above=True)), None)
    """Largest valid absolute value of a reward. Default: the learner's option."""
    weights: WeightsConfig = option(WeightsConfig.read, WeightsConfig())
    """Encoding of the client's weights. The learner's `weights` set the options that are not set here."""
    device: str | None = option(optional(device_name), None)
    """Device on which the client trains: ``cpu``, ``cuda``, ``cuda:N``, or ``auto``. Default: the learner's option."""
    torch_threads: int | None = option(optional(integer(1, 1024)), None)
    """Number of threads that torch computes with in the client's learner thread, and in each rank. Default: the learner's
    option."""
    learners: int | None = option(optional(integer(1, 64)), None)
    """Number of processes that train the client together. Default: the learner's option."""
    init: Path | None = option(optional(path), None)
    """A policy folder, or a ``.safetensors`` file of named tensors, with whose weights the training starts. It has no effect on
    a client with a checkpoint. Default: random weights."""
    demonstrations: DemonstrationsConfig | None = option(optional(DemonstrationsConfig.read), None)
    """Recorded episodes of the task, as a part of the replay or to clone the policy from before the training. Default: none."""
    evaluation: EvaluationConfig | None = option(optional(EvaluationConfig.read), None)
    """The periodic evaluation of the policy without exploration, in a process of the learner: environment, period, episodes. The
    best version is kept in ``best/`` of the run directory. Default: no evaluation."""
    engine: str | None = option(optional(name), None)
    """The engine that runs the training of this client: ``thread``, ``process`` or ``ray``. Default: the learner's option."""
    resources: ResourcesConfig | None = option(optional(ResourcesConfig.read), None)
    """What the engine ``ray`` reserves for the training of this client. Default: the learner's option."""
    input_size: InitVar[int | None] = None
    """Number of elements of an observation. The observation space becomes a float32 Box of this size."""
    act_dim: InitVar[int | None] = None
    """Number of discrete actions, or, if `continuous` is true, number of elements of a continuous action."""
    continuous: InitVar[bool | None] = None
    """True: the action space that `act_dim` defines is a Box, bounded by `act_limit`. Otherwise it is Discrete."""

    def __post_init__(self, input_size: int | None, act_dim: int | None, continuous: bool | None) -> None:
        super().__post_init__()
        flat = {"input_size": input_size, "act_dim": act_dim, "continuous": continuous, "act_limit": self.act_limit}
        resolve_spaces(self, flat)

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Self:
        """Create the options from a mapping: one entry under ``clients`` in the learner's configuration file.

        Raises:
            ConfigError: If a key is unknown or a value is invalid.
        """
        flat = tuple(key for key in FLAT_KEYS if key != "act_limit")
        expanded = expand_sections(given, ("network_architecture", "training"))
        return cls(**parse_options(cls, expanded, extra=flat, hint=PARAMETER_HINT))  # type: ignore[arg-type]
