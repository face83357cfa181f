"""Translation of the configuration files of the library RL4Sys into the keys of this library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from rl4sys_zmq.config.options import (
    InvalidValue,
    check_value,
    flag,
    integer,
    mapping,
    number,
    optional,
    parameters,
    text,
    unknown_key,
)
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import algorithm_key, is_name
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, Space
from rl4sys_zmq.values.action_layout import action_layout

_SECTIONS: dict[str, dict[str, str]] = {
    "network_architecture": {"hidden_sizes": "algorithm_parameters", "activation": "algorithm_parameters"},
    "training": {"batch_size": "algorithm_parameters", "epochs": "algorithm_parameters"},
    "communication": {"server_address": "", "timeout": ""},
}
"""The keys of each section of an RL4Sys file, and the key under which each is stored instead. "" is the top level."""

_PARAMETER_NAMES = {"entropy_coef": "ent_coef"}
"""Names of parameters in RL4Sys's files that no algorithm has as a synonym."""

_NO_MEANING_HERE = ("ensemble_algorithms", "max_traj_length", "model_paths", "tensorboard")
ACTOR_KEYS = ("max_traj_length", "type")
"""Keys among the algorithm's parameters in RL4Sys's files that are options of the actor here."""
IGNORED_BY_ACTORS = {
    "request_timeout_seconds": "segments are acknowledged without a deadline; inference_timeout_s bounds remote inference",
}
"""Keys of RL4Sys's actors that this library ignores, and the reasons."""


def algorithm_name(value: object) -> str:
    """Return an algorithm's name in the form in which names are compared and stored (`algorithm_key`)."""
    return algorithm_key(text(value))


def algorithm_parameters(value: object) -> dict[str, object]:
    """Return a checked copy of an algorithm's parameters. RL4Sys's name ``entropy_coef`` becomes ``ent_coef``."""
    entries = parameters(value)
    for theirs, ours in _PARAMETER_NAMES.items():
        if theirs in entries:
            given = entries.pop(theirs)
            if entries.setdefault(ours, given) != given:
                raise ConfigError(f"{theirs}: {given!r} contradicts {ours!r}: {entries[ours]!r}", key=theirs)
    return entries


def default_client_id(given: Mapping[str, object], source: str) -> str | None:
    """Return the client id for an RL4Sys file, which names none: the file's name without suffix, or ``default``."""
    if "client_id" in given or not given.keys() & _SECTIONS.keys():
        return None
    stem = PurePath(source).stem
    return stem if is_name(stem) else "default"


def expand_sections(given: Mapping[str, object], sections: tuple[str, ...] = tuple(_SECTIONS)) -> dict[str, object]:
    """Move the keys of the sections of an RL4Sys file to the top level or to ``algorithm_parameters``."""
    out = {key: value for key, value in given.items() if key not in sections}
    if "algorithm_parameters" in given:
        out["algorithm_parameters"] = check_value("algorithm_parameters", given["algorithm_parameters"], mapping)
    for section in sections:
        for key, value in check_value(section, given.get(section, {}), mapping).items():
            if key not in _SECTIONS[section]:
                raise unknown_key(key, _SECTIONS[section], section)
            place = _SECTIONS[section][key]
            target = out if not place else out.setdefault(place, {})
            assert isinstance(target, dict)
            if key in target and target[key] != value:
                where = f"{place}.{key}" if place else key
                raise ConfigError(f"{section}.{key}: {value!r} contradicts {where!r}: {target[key]!r}", key=f"{section}.{key}")
            target[key] = value
    return out


def lift_actor_keys(given: Mapping[str, object]) -> dict[str, object]:
    """Move an actor's keys (`ACTOR_KEYS`) from ``algorithm_parameters`` to the top level, unless that has them."""
    parameters = check_value("algorithm_parameters", given.get("algorithm_parameters", {}), mapping)
    lifted = {key: parameters.pop(key) for key in ACTOR_KEYS if key in parameters}
    return {**lifted, **given, "algorithm_parameters": parameters} if lifted else dict(given)


def translate_global(given: Mapping[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Translate RL4Sys's global file. Return the options, and the names of the keys that this library does not use."""
    out = {key: value for key, value in given.items() if key not in (*_NO_MEANING_HERE, "server")}
    ignored = [key for key in _NO_MEANING_HERE if key in given]
    servers = check_value("server", given.get("server", {}), mapping)
    for name, server in servers.items():
        if name == "training_server" and "bind" not in given:
            out["bind"] = check_value(f"server.{name}", server, _server_address)
        elif name in ("training_server", "trajectory_server"):
            ignored.append(f"server.{name}")
        else:
            raise unknown_key(name, ("training_server", "trajectory_server"), "server")
    return out, tuple(ignored)


def _server_address(value: object) -> str:
    if isinstance(value, str):
        return value
    parts = mapping(value)
    valid = ("prefix", "host", "port")
    for key in parts:
        if key not in valid:
            raise unknown_key(key, valid)
    prefix, host, port = parts.get("prefix", "tcp://"), parts.get("host", "localhost"), parts.get("port", 50051)
    if not isinstance(prefix, str) or not isinstance(host, str) or isinstance(port, bool) or not isinstance(port, int | str):
        raise InvalidValue('host:port, or {"prefix": text, "host": text, "port": number or text}')
    return f"{prefix}{host}:{str(port).removeprefix(':')}"


_CHECKS = {
    "input_size": optional(integer(1, 1 << 24)),
    "act_dim": optional(integer(1, 1 << 24)),
    "act_limit": optional(number(0, 1e30, above=True)),
    "continuous": optional(flag),
}
FLAT_KEYS = tuple(_CHECKS)


def resolve_spaces(config: Any, flat: Mapping[str, object]) -> None:
    """Set ``observation_space``, ``action_space`` and ``act_limit`` of a configuration from the keys in `FLAT_KEYS`.

    The keys come from `flat` and from ``config.algorithm_parameters``, from which they are removed.
    """
    parameters = dict(config.algorithm_parameters)
    sizes: dict[str, Any] = {}
    for key, check in _CHECKS.items():
        top = check_value(key, flat.get(key), check)
        nested_key = f"algorithm_parameters.{key}"
        nested = check_value(nested_key, parameters.pop(key, None), check)
        if top is not None and nested is not None and top != nested:
            raise ConfigError(f"{key}: {top!r} contradicts {nested_key!r}: {nested!r}", key=key)
        sizes[key] = nested if top is None else top
    observation_space = _observation_space(config.observation_space, sizes["input_size"])
    action_space = _action_space(config.action_space, sizes)
    object.__setattr__(config, "algorithm_parameters", parameters)
    object.__setattr__(config, "observation_space", observation_space)
    object.__setattr__(config, "action_space", action_space)
    object.__setattr__(config, "act_limit", sizes["act_limit"])


def _observation_space(given: ObservationSpace | None, size: int | None) -> ObservationSpace | None:
    if size is None:
        return given
    if given is None:
        return BoxSpace((size,))
    if not isinstance(given, BoxSpace | DiscreteSpace):
        raise ConfigError(f"input_size: {size} needs a Box or Discrete 'observation_space', not {given!s:.80}", key="input_size")
    actual = given.size if isinstance(given, BoxSpace) else given.n
    if actual != size:
        raise ConfigError(f"input_size: {size} contradicts 'observation_space' of {actual} elements", key="input_size")
    return given


def _action_space(given: Space | None, sizes: Mapping[str, Any]) -> Space | None:
    size, limit, continuous = sizes["act_dim"], sizes["act_limit"], sizes["continuous"]
    if given is not None:
        actual = action_layout(given).outputs
        if size is not None and size != actual:
            raise ConfigError(f"act_dim: {size} contradicts 'action_space' of {actual}", key="act_dim")
        if continuous is not None and continuous != isinstance(given, BoxSpace):
            raise ConfigError(f"continuous: {str(continuous).lower()} contradicts 'action_space' {given}", key="continuous")
        return given
    if size is None:
        if continuous:
            raise ConfigError(
                "act_dim is missing: continuous: true needs act_dim and act_limit, or an action_space", key="act_dim"
            )
        return None
    if not continuous:
        return DiscreteSpace(size)
    if limit is None:
        raise ConfigError("act_limit is missing: continuous actions need act_limit or an action_space", key="act_limit")
    return BoxSpace((size,), low=-limit, high=limit)
