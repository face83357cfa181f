"""The settings of each client, and the check of each actor's request for a session against them.

An actor requests a session with the message HELLO, which describes the client that the actor expects.

The sources of settings, highest precedence first: the client's entry in the learner's configuration, the HELLO of the client's
first actor, and the learner's defaults.
"""

from __future__ import annotations

import secrets
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rl4sys_zmq.config import ClientConfig, LearnerConfig, WeightsConfig
from rl4sys_zmq.config.options import check_value
from rl4sys_zmq.config.options import parameters as finite_parameters
from rl4sys_zmq.config.section import AUTO
from rl4sys_zmq.errors import ConfigError, RefusalReason, config_error
from rl4sys_zmq.interfaces import EventSink
from rl4sys_zmq.learner.engines.base import ENGINES
from rl4sys_zmq.learner.gateway.parameters import (
    LEARNING_KEYS,
    ParameterChanges,
    algorithm_parameters,
    by_name,
    changes_between,
    effective_parameters,
    merged,
    plain,
    read_change,
)
from rl4sys_zmq.learner.registry import ALGORITHMS, AlgorithmEntry
from rl4sys_zmq.learner.registry.like import LIKE
from rl4sys_zmq.logs import get_logger, printable
from rl4sys_zmq.names import algorithm_key, check_name
from rl4sys_zmq.values import ObservationSpace, PolicySpec, Space, observation_space_from, space_from, space_to_json
from rl4sys_zmq.weights import EncodingOptions, WireDtype
from rl4sys_zmq.wire.messages import Hello
from rl4sys_zmq.wire.thread_messages import AssignClient

log = get_logger(__name__)

_WEIGHTS = WeightsConfig(wire_dtype="fp32", level=AUTO)

SPACES: Mapping[str, Callable[[object], ObservationSpace]] = {
    "observation_space": observation_space_from,
    "action_space": space_from,
}
"""The functions that convert the JSON form of a space, by the name of the field in `Hello`."""

SAVED = ("algorithm_name", "algorithm_type", "parameters", "changed", "file_parameters", "seed")
"""The settings that the journal has as they are."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of one client. An option that `LearnerConfig` has too means the same there.

    Attributes:
        algorithm_name: Registered name of the algorithm, in the form of `algorithm_key`.
        algorithm_type: Expected type of the algorithm, ``onpolicy`` or ``offpolicy``; empty for no expectation.
        parameters: Parameters of the algorithm with which the client was created. `seed` and options of the learner can be
            among them.
        actor_weights: The part of `weights` that the client's first actor asked for.
        init: File or folder with the weights with which the training starts if there is no checkpoint; empty for none. This
            setting is not saved.
        changed: Parameters that were changed after the client was created, by name. They override `parameters`.
        file_parameters: Parameters that the learner's configuration gave for this client at the last start, by name. If the
            configuration has other values at a later start, they override `changed`.
    """

    client_id: str
    algorithm_name: str
    algorithm_type: str
    parameters: Mapping[str, Any]
    observation_space: ObservationSpace
    action_space: Space
    seed: int
    max_policy_lag: int | None
    on_lag: str
    pacing_lag: int | None
    publish_every_updates: int | None
    weights: WeightsConfig = _WEIGHTS
    actor_weights: WeightsConfig = WeightsConfig()
    init: str = ""
    changed: Mapping[str, Any] = field(default_factory=dict)
    file_parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> AlgorithmEntry:
        """The client's algorithm in the registry."""
        return ALGORITHMS.get(self.algorithm_name)

    @property
    def in_force(self) -> dict[str, Any]:
        """The current parameters of the algorithm."""
        return merged(self.kind, self.parameters, self.changed)

    def change(self, values: Mapping[str, Any]) -> tuple[ClientSettings, ParameterChanges]:
        """Return a copy of the settings with new values for parameters of the algorithm, and the changes."""
        kind = self.kind
        new = replace(
            self, changed=merged(kind, self.changed, read_change(kind, values, self.in_force), like=self.in_force.get(LIKE))
        )
        before, after = (effective_parameters(kind, settings.in_force) for settings in (self, new))
        return new, changes_between(before, after)

    def writing(self, spec: PolicySpec | None = None, *, near: bool) -> EncodingOptions:
        """Return the options with which this client's weights are encoded. `near`: all its subscribers are on this machine."""
        complete = self.weights.over(_WEIGHTS)
        assert complete.wire_dtype is not None and complete.level is not None
        dtype = WireDtype[complete.wire_dtype.upper()]
        level = int(not near) if complete.level == AUTO else int(complete.level)
        return EncodingOptions(dtype, level, spec.tensors if spec is not None else ())

    def assign(
        self, policy_id: bytes, generation: int, config: LearnerConfig, *, checkpoints: str, journal_id: int, near: bool
    ) -> AssignClient:
        """Return the first message to this client's learner thread. `near` is that of `writing`."""
        writing, entry = self.writing(near=near), config.client(self.client_id)
        return AssignClient(
            self.client_id,
            policy_id,
            generation,
            self.algorithm_name,
            algorithm_parameters(self.in_force),
            space_to_json(self.observation_space),
            space_to_json(self.action_space),
            self.seed,
            -1 if self.max_policy_lag is None else self.max_policy_lag,
            self.on_lag,
            -1 if self.pacing_lag is None else self.pacing_lag,
            self.publish_every_updates or 0,
            config.max_parameters,
            checkpoints,
            float(config.checkpoint_every_s),
            journal_id,
            writing.dtype.name.lower(),
            writing.level,
            float(entry.max_magnitude or config.max_magnitude),
            float(entry.max_reward or config.max_reward),
            entry.torch_threads or 0,
            self.init,
            entry.device or config.device,
            config.tf32,
            entry.learners or config.learners,
            entry.demonstrations.to_json() if entry.demonstrations is not None else {},
        )

    def to_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, which `restore_configuration` reads.

        Of the options that the learner has too, such as `max_policy_lag`, only those of the client's first actor are saved, in
        `parameters` and `weights`. The learner's configuration gives the others at each start.
        """
        return {
            **{key: plain(getattr(self, key)) for key in SAVED},
            **{key: space_to_json(getattr(self, key)) for key in SPACES},
            "weights": self.actor_weights.to_json(),
        }


def check_hello(hello: Hello) -> None:
    """Check that an actor's request for a session has valid names and finite algorithm parameters."""
    check_name(hello.client_id, "client_id")
    check_name(hello.actor_id, "actor_id")
    check_value("algorithm_parameters", hello.algorithm_parameters, finite_parameters)


def check_learning_options(parameters: Mapping[str, Any]) -> ClientConfig:
    """Check `seed` and the learner's options among an algorithm's parameters, and return these options (`LEARNING_KEYS`)."""
    seed = parameters.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 63):
        raise config_error("algorithm_parameters.seed", f"expected an integer from 0 to {2**63 - 1}, not {seed!r:.80}")
    return ClientConfig.from_mapping({key: parameters[key] for key in LEARNING_KEYS if parameters.get(key) is not None})


def resolve_configuration(config: LearnerConfig, hello: Hello) -> ClientSettings:
    """Return the settings of a new client, from the learner's configuration and the first actor's request for a session."""
    entry = config.clients.get(hello.client_id, ClientConfig())
    ours = (config.default_algorithm, *config.algorithms, *(client.algorithm_name for client in config.clients.values()))
    if ALGORITHMS.locates(hello.algorithm_name) and algorithm_key(hello.algorithm_name) not in ours:
        problem = (
            "only the learner's configuration can name a class; add its name there, for a client or as a section of algorithms"
        )
        raise ConfigError(f"algorithm_name: {hello.algorithm_name!r:.80}: {problem}", key="algorithm_name")
    settings = resolve_settings(config, hello, entry)
    require_match(settings, hello)
    return settings


def resolve_settings(config: LearnerConfig, hello: Hello, entry: ClientConfig) -> ClientSettings:
    """Return the settings of a client: from `entry`, else from the first actor's request, else from the learner's options."""
    client_id = hello.client_id
    name = entry.algorithm_name or hello.algorithm_name or config.default_algorithm
    if not name:
        raise ConfigError(
            "neither the learner's configuration nor this actor names an algorithm; set algorithm_name", key="algorithm_name"
        )
    kind = ALGORITHMS.get(name)
    check_engine(kind, entry.engine or config.engine)
    parameters = merged(
        kind, config.algorithms.get(algorithm_key(name), {}), hello.algorithm_parameters, entry.algorithm_parameters
    )
    options = check_learning_options(parameters)
    actor_weights = check_value("weights", hello.weights, WeightsConfig.read)

    def pick(key: str) -> Any:
        choices = (getattr(entry, key), getattr(options, key), getattr(config, key))
        return next((choice for choice in choices if choice is not None), None)

    return ClientSettings(
        client_id,
        algorithm_key(name),
        entry.type or "",
        parameters,
        _space("observation_space", entry.observation_space, hello.observation_space),
        _space("action_space", entry.action_space, hello.action_space),
        _seed(config, client_id, parameters.get("seed")),
        **{key: pick(key) for key in LEARNING_KEYS},
        weights=entry.weights.over(actor_weights).over(config.weights).over(_WEIGHTS),
        actor_weights=actor_weights,
        init=str(entry.init or ""),
        file_parameters=by_name(kind, entry.algorithm_parameters, parameters.get(LIKE)),
    )


def check_engine(kind: AlgorithmEntry, engine: str) -> None:
    """Check that a client has an engine with a process of its own, if its algorithm needs that."""
    if kind.isolated and not ENGINES.get(engine).isolated:
        raise ConfigError(
            f"engine: {kind.name} draws from global random generators, so it needs a process of its own and not the engine "
            f"{engine}; set engine: process in the learner's configuration",
            key="engine",
        )


def require_match(settings: ClientSettings, hello: Hello) -> None:
    """Check that an actor's request for a session agrees with the client's settings. An empty field agrees with all."""
    pairs: list[tuple[str, object, object]] = []
    if hello.algorithm_name:
        pairs.append(("algorithm_name", algorithm_key(hello.algorithm_name), settings.algorithm_name))
    for key, read in SPACES.items():
        if document := getattr(hello, key):
            pairs.append((key, space_to_json(read(document)), space_to_json(getattr(settings, key))))
    pairs += _parameter_pairs(settings, hello.algorithm_parameters) if hello.algorithm_parameters else []
    ours_of_weights = settings.weights.to_json()
    for key, value in check_value("weights", hello.weights, WeightsConfig.read).to_json().items():
        pairs.append((f"weights.{key}", value, ours_of_weights[key]))
    for key, theirs, ours in pairs:
        if plain(theirs) != plain(ours):
            message = (
                f"{key} of client {settings.client_id!r} is {ours!r:.1000} on the learner, but the actor has {theirs!r:.1000}"
            )
            raise ConfigError(message, key=key)


def _parameter_pairs(settings: ClientSettings, theirs: Mapping[str, Any]) -> list[tuple[str, object, object]]:
    """Return ``(key, actor's value, learner's value)`` for each parameter in `theirs` that must be equal on both sides.

    `theirs` are the parameters that an actor sends when it opens its session. A parameter is left out if an operator has
    changed it and the actor sends the value with which the client was created.
    """
    kind, in_force = settings.kind, settings.in_force
    like = in_force.get(LIKE)
    ours, original = (by_name(kind, parameters, like) for parameters in (in_force, settings.parameters))
    pairs: list[tuple[str, object, object]] = []
    for key, value in theirs.items():
        (name,) = by_name(kind, {key: value}, like)
        own = getattr(settings, key) if key in LEARNING_KEYS and value is not None else ours.get(name, "not set")
        if name not in settings.changed or plain(value) != original.get(name):
            pairs.append((f"algorithm_parameters.{key}", value, own))
    return pairs


def _space(key: str, entry: ObservationSpace | None, document: Mapping[str, Any]) -> ObservationSpace:
    if entry is not None:
        return entry
    if document:
        return SPACES[key](document)
    raise ConfigError(
        f"neither the learner's configuration nor this actor gives the {key}; set it (or input_size and act_dim)", key=key
    )


def _seed(config: LearnerConfig, client_id: str, seed: int | None) -> int:
    """Return the given seed, else a hash of the learner's seed and the client's name, else a random number."""
    if seed is not None:
        return seed
    return zlib.crc32(f"{config.seed}/{client_id}".encode()) if config.seed is not None else secrets.randbits(32)


MAX_KNOWN = 1024
"""The number of refusals that are remembered, so that a repeated one is not logged again."""
MAX_LINES, WINDOW_S = 20, 60.0
MAX_NAME_CHARS, MAX_REASON_CHARS = 80, 500

NOT_LOGGED = frozenset(
    {RefusalReason.FAILED, RefusalReason.STARTING, RefusalReason.NO_SESSION, RefusalReason.CLOSING}
    | {RefusalReason.CONFLICT, RefusalReason.EXPIRED}
)
"""Codes of refusals that are no fault of the actor, or that end without a person. The learner logs a failed client itself."""


class RefusalLog:
    """The log of refused requests for sessions. Use it in one thread.

    An actor repeats a refused request every few seconds, and a peer can invent any number of names. So the log limits the
    length and the rate of its lines.
    """

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._known: dict[tuple[str, str, str], None] = {}
        self._lines: deque[float] = deque()
        self._omitted = 0

    def note(self, hello: Hello, code: RefusalReason, reason: str, field: str, now: float) -> None:
        """Log the refusal of an actor's request for a session, unless the same refusal was logged before."""
        if code in NOT_LOGGED:
            return
        client_id, actor_id = hello.client_id[:MAX_NAME_CHARS], hello.actor_id[:MAX_NAME_CHARS]
        reason = printable(reason[:MAX_REASON_CHARS])
        key = client_id, actor_id, reason
        if key in self._known:
            return
        while self._lines and now - self._lines[0] >= WINDOW_S:
            self._lines.popleft()
        if len(self._lines) >= MAX_LINES:  # it is not remembered, so a later repetition can be logged
            self._omitted += 1
            return
        if len(self._known) >= MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = None
        self._lines.append(now)
        omitted, self._omitted = self._omitted, 0
        more = f" ({omitted} further refusals were not logged)" if omitted else ""
        log.warning("client %r: actor %r is refused (%s): %s%s", client_id, actor_id, code.value, reason, more)
        self._sink.event("hello_refused", client_id=client_id, actor_id=actor_id, code=code.value, field=field, reason=reason)
