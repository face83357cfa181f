"""The configuration of clients, and the check of each HELLO against it.

The learner's entry for a client takes precedence over the first actor's HELLO, and that over the learner's defaults.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from rl4sys_zmq.config import ClientConfig, LearnerConfig, WeightsConfig
from rl4sys_zmq.config.options import check_value
from rl4sys_zmq.config.options import parameters as finite_parameters
from rl4sys_zmq.config.weights import weights_options
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms import ALGORITHMS
from rl4sys_zmq.names import check_name
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Space, observation_space_from, space_from, space_to_json
from rl4sys_zmq.weights import EncodingOptions, WireDtype
from rl4sys_zmq.wire.messages import Assign, Hello

__all__ = [
    "ClientSettings",
    "algorithm_parameters",
    "check_hello",
    "check_learning_options",
    "require_match",
    "restore_configuration",
    "resolve_configuration",
]

_WEIGHTS = WeightsConfig(wire_dtype="fp32", level=1)
"""The default encoding of weights."""
_LEARNING_KEYS = ("max_policy_lag", "on_lag", "pacing_lag", "publish_every_updates")
"""Options of the learner that can also be among an algorithm's parameters. The algorithm itself does not receive them."""


_SPACES: Mapping[str, Callable[[object], ObservationSpace]] = {
    "observation_space": observation_space_from,
    "action_space": space_from,
}
"""The readers of a client's spaces."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of a client, resolved once from the learner's configuration and its first actor's HELLO."""

    client_id: str
    algorithm_name: str
    algorithm_type: str
    parameters: Mapping[str, Any]
    observation_space: ObservationSpace
    action_space: Space
    seed: int
    max_policy_lag: int | None
    on_lag: str
    pacing_lag: float
    publish_every_updates: int | None
    weights: WeightsConfig = _WEIGHTS

    def writing(self, spec: PolicySpec | None = None) -> EncodingOptions:
        """Return the encoding options of its weights.

        Args:
            spec: The policy; None if only the wire dtype and the level are needed.
        """
        complete = self.weights.over(_WEIGHTS)
        assert complete.wire_dtype is not None and complete.level is not None
        dtype = WireDtype[complete.wire_dtype.upper()]
        return EncodingOptions(dtype, complete.level, *((spec.sizes, spec.others) if spec is not None else ()))

    def assign(self, policy_id: bytes, generation: int, config: LearnerConfig, *, checkpoints: str, journal_id: int) -> Assign:
        """Return the first message to this client's learner thread."""
        writing, entry = self.writing(), config.client(self.client_id)
        return Assign(
            self.client_id,
            policy_id,
            generation,
            self.algorithm_name,
            algorithm_parameters(self.parameters),
            space_to_json(self.observation_space),
            space_to_json(self.action_space),
            self.seed,
            -1 if self.max_policy_lag is None else self.max_policy_lag,
            self.on_lag,
            self.pacing_lag,
            self.publish_every_updates or 0,
            config.max_parameters,
            checkpoints,
            float(config.checkpoint_every_s),
            journal_id,
            writing.dtype.name.lower(),
            writing.level,
            float(entry.max_magnitude or config.max_magnitude),
            float(entry.max_reward or config.max_reward),
            config.torch_threads or 0,
        )

    def to_json(self) -> dict[str, Any]:
        """Return JSON values from which `restore_configuration` restores the settings."""
        return {
            "algorithm_name": self.algorithm_name,
            "algorithm_type": self.algorithm_type,
            "parameters": _plain(self.parameters),
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "seed": self.seed,
            "max_policy_lag": self.max_policy_lag,
            "on_lag": self.on_lag,
            "pacing_lag": int(self.pacing_lag),
            "publish_every_updates": self.publish_every_updates,
            "weights": self.weights.to_json(),
        }


def _plain(value: Any) -> Any:
    """Return a value with its arrays and tuples converted to lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    return value


def check_hello(hello: Hello) -> None:
    """Check the names of the client and the actor in a HELLO, and that its parameters are finite.

    Raises:
        ConfigError: If a name or a parameter is invalid.
    """
    check_name(hello.client_id, "client_id")
    check_name(hello.actor_id, "actor_id")
    check_value("algorithm_parameters", hello.algorithm_parameters, finite_parameters)


def check_learning_options(parameters: Mapping[str, Any]) -> ClientConfig:
    """Return the learner's options that are among an algorithm's parameters.

    Raises:
        ConfigError: If one of them, or `seed`, has a wrong type or is out of range.
    """
    seed = parameters.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 63):
        raise ConfigError(
            f"algorithm_parameters.seed: expected an integer from 0 to {2**63 - 1}, not {seed!r:.80}",
            key="algorithm_parameters.seed",
        )
    return ClientConfig.from_mapping({key: parameters[key] for key in _LEARNING_KEYS if parameters.get(key) is not None})


def algorithm_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters without the learner's options and `seed`: those that the algorithm itself receives."""
    return {key: value for key, value in parameters.items() if key not in (*_LEARNING_KEYS, "seed")}


def resolve_configuration(config: LearnerConfig, hello: Hello) -> ClientSettings:
    """Return the settings of a new client.

    Raises:
        ConfigError: If a value is missing, unknown or out of range, or if the HELLO contradicts the learner's entry.
    """
    settings = _resolve_configuration(config, hello.client_id, hello)
    require_match(settings, hello)
    return settings


def restore_configuration(config: LearnerConfig, client_id: str, known: Mapping[str, Any]) -> ClientSettings:
    """Return the settings of a client that the journal holds.

    The learner's entry for the client takes precedence over the saved settings, and those over the learner's defaults.

    Raises:
        ConfigError: If the entry names another algorithm or space, with which the saved state cannot be used.
    """
    entry = config.clients.get(client_id, ClientConfig())
    spaces = {key: read(known[key]) for key, read in _SPACES.items()}
    ours: dict[str, object] = {"algorithm_name": known["algorithm_name"], **spaces}
    for key, value in ours.items():
        said = getattr(entry, key)
        if said is not None and said != value:
            raise ConfigError(
                f"{key} of client {client_id!r} is {said!r} in the configuration, but {value!r} in the run directory; give the "
                "client another name, or start another run with --resume never",
                key=key,
            )
    kept = {"seed": known["seed"], **{key: known[key] for key in _LEARNING_KEYS}}
    hello = Hello(
        client_id,
        "",
        0,
        0,
        0,
        0,
        algorithm_name=known["algorithm_name"],
        algorithm_parameters={**known["parameters"], **{k: v for k, v in kept.items() if v is not None}},
        observation_space=known["observation_space"],
        action_space=known["action_space"],
        weights=known.get("weights", {}),
    )
    return replace(_resolve_configuration(config, client_id, hello), algorithm_type=entry.type or known["algorithm_type"])


def _resolve_configuration(config: LearnerConfig, client_id: str, hello: Hello) -> ClientSettings:
    entry = config.clients.get(client_id, ClientConfig())
    name = entry.algorithm_name or hello.algorithm_name or config.default_algorithm
    if not name:
        raise ConfigError(
            "neither the learner's configuration nor this actor names an algorithm; set algorithm_name", key="algorithm_name"
        )
    ALGORITHMS.require(name)
    defaults = config.algorithms.get(name.upper(), {})
    parameters = {**defaults, **hello.algorithm_parameters, **entry.algorithm_parameters}
    said = check_learning_options(parameters)

    def pick(key: str) -> Any:
        """Return the option from the client's entry, else from its parameters, else from the learner's configuration."""
        choices = (getattr(entry, key), getattr(said, key), getattr(config, key))
        return next((choice for choice in choices if choice is not None), None)

    return ClientSettings(
        client_id,
        name.upper(),
        entry.type or "",
        parameters,
        _space("observation_space", entry.observation_space, hello.observation_space),
        cast(Space, _space("action_space", entry.action_space, hello.action_space)),
        _seed(config, client_id, parameters.get("seed")),
        pick("max_policy_lag"),
        pick("on_lag"),
        float(pick("pacing_lag")),
        pick("publish_every_updates"),
        entry.weights.over(check_value("weights", hello.weights, weights_options)).over(config.weights).over(_WEIGHTS),
    )


def require_match(settings: ClientSettings, hello: Hello) -> None:
    """Check that the fields of a HELLO equal the client's settings.

    Raises:
        ConfigError: If a field differs. The error names the first one, with both values.
    """
    pairs: list[tuple[str, object, object]] = []
    if hello.algorithm_name:
        pairs.append(("algorithm_name", hello.algorithm_name.upper(), settings.algorithm_name))
    for key, read in _SPACES.items():
        if given := getattr(hello, key):
            pairs.append((key, space_to_json(read(given)), space_to_json(getattr(settings, key))))
    for key, value in hello.algorithm_parameters.items():
        ours = getattr(settings, key) if key in _LEARNING_KEYS and value is not None else settings.parameters.get(key, "not set")
        pairs.append((f"algorithm_parameters.{key}", value, ours))
    ours_of_weights = settings.weights.to_json()
    for key, value in check_value("weights", hello.weights, weights_options).to_json().items():
        pairs.append((f"weights.{key}", value, ours_of_weights[key]))
    for field, theirs, ours in pairs:
        if not _same(theirs, ours):
            message = f"{field} of client {settings.client_id!r} is {ours!r} on the learner, but the actor has {theirs!r}"
            raise ConfigError(message, key=field)


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(np.asarray(one), np.asarray(other)))
    return one == other


def _space(key: str, entry: ObservationSpace | None, given: Mapping[str, Any]) -> ObservationSpace:
    if entry is not None:
        return entry
    if given:
        return _SPACES[key](given)
    raise ConfigError(
        f"neither the learner's configuration nor this actor gives the {key}; set it (or input_size and act_dim)", key=key
    )


def _seed(config: LearnerConfig, client_id: str, given: int | None) -> int:
    """Return the given seed, else one from the learner's seed and the client's name, else a random one."""
    if given is not None:
        return given
    return zlib.crc32(f"{config.seed}/{client_id}".encode()) if config.seed is not None else secrets.randbits(32)
