"""The entry for one client in the learner's configuration, with the groups of options in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rl4sys_zmq.config.options import (
    PARAMETER_HINT,
    InvalidValue,
    check_value,
    checked_arguments,
    device_name,
    integer,
    mapping,
    name,
    number,
    one_of,
    option,
    optional,
    parameters,
    parse_options,
    path,
    text,
)
from rl4sys_zmq.config.rl4sys import expand_sections
from rl4sys_zmq.config.section import ConfigSection, PolicyOptions, WeightsConfig
from rl4sys_zmq.errors import ConfigError

MAX_AMOUNT = 1e6


def _custom(value: object) -> dict[str, float]:
    amount = number(0, MAX_AMOUNT, above=True)
    return {check_value(key, key, name): check_value(key, given, amount) for key, given in mapping(value).items()}


def _gpus(value: object) -> float:
    gpus = number(0, MAX_AMOUNT)(value)
    if gpus > 1 and not gpus.is_integer():
        raise InvalidValue("a fraction below 1 of one GPU, or a whole number of GPUs")
    return gpus


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class ResourcesConfig(ConfigSection):
    """The resources that the engine ``ray`` reserves for the worker of a client, on one node.

    The reservation decides on which node the worker runs. It does not limit the worker.

    Raises:
        ConfigError: If a value is invalid.
    """

    cpus: float = option(number(0, MAX_AMOUNT), 1.0)
    """Number of processor cores. Several workers can share one: ``0.5``."""
    gpus: float = option(_gpus, 0.0)
    """Number of GPUs: a whole number, or a fraction of one GPU, which the worker then shares."""
    memory: int | None = option(optional(integer(1)), None)
    """Memory, in bytes. Default: not considered."""
    custom: Mapping[str, float] = option(_custom, {})
    """Amounts of the resources that the nodes of the cluster define themselves, by name, such as ``{edge: 1}``."""


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class DemonstrationsConfig(ConfigSection):
    """The options for training with demonstrations (recorded episodes): the key ``demonstrations`` in a client's entry.

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
        """The name of the file or of the Minari dataset, for messages."""
        return str(self.path) if self.path is not None else f"the Minari dataset {self.minari}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.path is None) == (self.minari is None):
            raise ConfigError("demonstrations: give either path or minari", key="path")
        if not self.fraction and not self.clone_steps:
            raise ConfigError("demonstrations: they would have no effect; set fraction, clone_steps, or both", key="fraction")


DEFAULT_EVERY_VERSIONS = 10


def _environment(value: object) -> str | dict[str, object]:
    """Accept the id of an environment, or a mapping with the key ``id``, which is converted to JSON values."""
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


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class ClientConfig(PolicyOptions):
    """The options of one client in the configuration of a learner process.

    An option that is None takes its value from the learner's own options, or from the handshake message (HELLO) of the client's
    first actor.

    Raises:
        ConfigError: If the value of an option is invalid, or two values contradict each other.
    """

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

    @classmethod
    def from_mapping(cls, given: Mapping[str, object]) -> Self:
        """Create the options from a mapping: one entry under ``clients`` in the learner's configuration file.

        Raises:
            ConfigError: If a key is unknown or a value is invalid.
        """
        expanded = expand_sections(given, ("network_architecture", "training"))
        return cls(**parse_options(cls, expanded, extra=cls.FLAT, hint=PARAMETER_HINT))  # type: ignore[arg-type]
