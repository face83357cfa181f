"""The resources that an engine which places workers on machines, such as ``ray``, reserves for a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rl4sys_zmq.config.options import (
    InvalidValue,
    check_value,
    checked_arguments,
    integer,
    mapping,
    name,
    number,
    option,
    optional,
)
from rl4sys_zmq.config.section import ConfigSection

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

    They decide where the worker is placed. They do not limit what it uses.

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
