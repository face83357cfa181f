"""Who may join, and with which configuration: the learner's entry for a client, then the first HELLO, then the defaults."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.algorithms import require_algorithm
from rl4sys_zmq.values import Space, space_from, space_to_json
from rl4sys_zmq.wire.messages import Assign, Hello

__all__ = ["ClientSettings", "check_names", "require_match", "settle"]

MAX_NAME = 200


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What a client is, settled once: by its entry in the learner's configuration and the first actor that came."""

    client_id: str
    algorithm_name: str
    parameters: Mapping[str, Any]
    observation_space: Space
    action_space: Space
    seed: int
    max_policy_lag: int | None
    on_lag: str
    pacing_lag: float
    publish_every_updates: int | None

    def assign(self, policy_id: bytes, generation: int, max_parameters: int) -> Assign:
        """The first message to this client's learner thread."""
        return Assign(
            self.client_id,
            policy_id,
            generation,
            self.algorithm_name,
            dict(self.parameters),
            space_to_json(self.observation_space),
            space_to_json(self.action_space),
            self.seed,
            -1 if self.max_policy_lag is None else self.max_policy_lag,
            self.on_lag,
            self.pacing_lag,
            self.publish_every_updates or 0,
            max_parameters,
        )


def check_names(hello: Hello) -> None:
    """Lets nobody in whose names no file system, log or label should have to carry.

    Raises:
        ConfigError: naming the rule.
    """
    for key in ("client_id", "actor_id"):
        value = getattr(hello, key)
        if not 1 <= len(value) <= MAX_NAME or not value.isprintable() or value.strip(". ") != value or set(value) & set("/\\:"):
            rule = f"1 to {MAX_NAME} printable characters without / \\ :, not starting or ending with a dot or space"
            raise ConfigError(f"{key} {value[:40]!r} is not a name: {rule}", key=key)


def settle(config: LearnerConfig, hello: Hello) -> ClientSettings:
    """The settings of a client that is met for the first time.

    Raises:
        ConfigError: when something is missing, unknown or impossible, or the actor contradicts the learner's entry.
    """
    entry = config.client(hello.client_id)
    name = entry.algorithm_name or hello.algorithm_name or config.default_algorithm
    if not name:
        raise ConfigError(
            "neither the learner's configuration nor this actor names an algorithm; set algorithm_name", key="algorithm_name"
        )
    require_algorithm(name)
    defaults = config.algorithms.get(name.upper(), {})
    parameters = {**hello.algorithm_parameters, **entry.algorithm_parameters}
    missing = {k: v for k, v in defaults.items() if k not in parameters}
    parameters |= missing

    configured = config.clients.get(hello.client_id)

    def pick(key: str) -> Any:
        """The client's entry, then its parameters, then the learner's own option."""
        if (configured is None or getattr(configured, key) is None) and key in parameters:
            return parameters[key]
        return getattr(entry, key)

    seed = parameters.get("seed")
    if seed is None:
        seed = zlib.crc32(f"{config.seed}/{hello.client_id}".encode()) if config.seed is not None else secrets.randbits(32)
    settings = ClientSettings(
        hello.client_id,
        name.upper(),
        parameters,
        _space("observation_space", entry.observation_space, hello.observation_space),
        _space("action_space", entry.action_space, hello.action_space),
        int(seed),
        pick("max_policy_lag"),
        pick("on_lag"),
        float(pick("pacing_lag")),
        pick("publish_every_updates"),
    )
    require_match(settings, hello)
    return settings


def require_match(settings: ClientSettings, hello: Hello) -> None:
    """Lets an actor in only if what it says of its client is what the client is.

    Raises:
        ConfigError: for the first field that differs, with both values.
    """
    pairs: list[tuple[str, object, object]] = []
    if hello.algorithm_name:
        pairs.append(("algorithm_name", hello.algorithm_name.upper(), settings.algorithm_name))
    for key in ("observation_space", "action_space"):
        if given := getattr(hello, key):
            pairs.append((key, space_to_json(space_from(given)), space_to_json(getattr(settings, key))))
    for key, value in hello.algorithm_parameters.items():
        pairs.append((f"algorithm_parameters.{key}", value, settings.parameters.get(key, "not set")))
    for field, theirs, ours in pairs:
        if theirs != ours:
            message = f"{field} of client {settings.client_id!r} is {ours!r} on the learner, the actor has {theirs!r}"
            raise ConfigError(message, key=field)


def _space(key: str, entry: Space | None, given: Mapping[str, Any]) -> Space:
    if entry is not None:
        return entry
    if given:
        return space_from(given)
    raise ConfigError(
        f"neither the learner's configuration nor this actor gives the {key}; set it (or input_size and act_dim)", key=key
    )
