"""The file with the constants that were measured on this machine. Only the user can read it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rl4sys_zmq.capacity.constants import Constants, FanoutCost, IngressCost, Measured
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.private import make_private, write_private

FORMAT = 1
FSYNC = ("normal", "always")
INGRESS_COSTS = ("ingress", "gateway", "trainer", "processor")
MAX_BYTES = 1 << 20
_REMEDY = "run rl4sys-learner capacity --measure again, or remove the file"


def constants_path() -> Path:
    """Return the file of the user for the constants: ``capacity.json`` in the folder for caches, in ``rl4sys_zmq``."""
    base = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "rl4sys_zmq" / "capacity.json"


def write_constants(path: Path, measured: Measured) -> None:
    """Write constants and the description of their machine to a file with mode 0600. An existing file is replaced as a whole.

    Raises:
        ConfigError: If the file cannot be written.
    """
    document = {"format": FORMAT, "machine": dict(measured.machine), "constants": asdict(measured.constants)}
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        make_private(path.parent)
        write_private(new, json.dumps(document, indent=2).encode() + b"\n")
        new.replace(path)
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written ({exc.strerror}); give --constants FILE", key="constants") from exc


def read_constants(path: Path) -> Measured:
    """Read the constants that `write_constants` wrote.

    Raises:
        ConfigError: If the file cannot be read, is of another version, or has a number that is not finite or is negative.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} has more than {MAX_BYTES} bytes; {_REMEDY}", key="constants")
        document = json.loads(path.read_bytes())
    except OSError as exc:
        raise ConfigError(f"{path} cannot be read ({exc.strerror}); {_REMEDY}", key="constants") from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path} is not JSON ({exc}); {_REMEDY}", key="constants") from exc
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(f"{path} was not written by this version; {_REMEDY}", key="constants")
    try:
        constants = document["constants"]
        return Measured(constants=_constants(constants), machine=dict(document["machine"]))
    except (KeyError, TypeError, ValueError) as exc:
        raise ConfigError(
            f"{path} lacks a constant, or has one that is not a number ({exc}); {_REMEDY}", key="constants"
        ) from exc


def _constants(document: Mapping[str, Any]) -> Constants:
    values: dict[str, Any] = {
        "fanout": _group(FanoutCost, document["fanout"]),
        "durable": {name: _group(IngressCost, document["durable"][name]) for name in FSYNC},
    }
    for name in (field.name for field in fields(Constants) if field.name not in values):
        value = document[name]
        values[name] = _group(IngressCost, value) if name in INGRESS_COSTS else _number(value)
    return Constants(**values)


def _group(kind: Any, document: Mapping[str, Any]) -> Any:
    return kind(**{field.name: _number(document[field.name]) for field in fields(kind)})


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{value!r} is not a finite number of 0 or more")
    return float(value)
