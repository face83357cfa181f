"""Conversion of the keys ``input_size``, ``act_dim``, ``act_limit`` and ``continuous`` of RL4Sys's files to spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl4sys_zmq.config.options import check_value, flag, integer, number, optional
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, Space
from rl4sys_zmq.values.action_layout import action_layout

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
