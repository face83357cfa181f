"""Reading of JSON and YAML files. Duplicate keys, and numbers such as NaN in JSON, are errors."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from rl4sys_zmq.errors import ConfigError

_SUFFIXES = (".json", ".yaml", ".yml")
MAX_NESTED = 64
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$")
"""Floats for the YAML reader. Without this, pyyaml follows YAML 1.1 and reads ``3e-4`` as text."""


def read_mapping(path: str | os.PathLike[str]) -> dict[str, object]:
    """Read a JSON or YAML file whose top level is a mapping, without keys that begin with ``_comment`` (RL4Sys's comments)."""
    file = Path(path)
    source = str(file)
    if file.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"the name of a configuration file must end in {', '.join(_SUFFIXES)}", source=source)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as exc:
        raise ConfigError("no such file", source=source) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"cannot be read: {exc}", source=source) from exc
    try:
        document = _read_json(text, source) if file.suffix.lower() == ".json" else _read_yaml(text, source)
        if not isinstance(document, dict):
            raise ConfigError(f"expected a mapping at the top level, not {type(document).__name__}", source=source)
        return _without_comments(document, source)
    except RecursionError as exc:
        raise ConfigError("is nested too deeply", source=source) from exc


def _without_comments(given: Mapping[object, object], source: str, depth: int = 0) -> dict[str, object]:
    kept: dict[str, object] = {}
    if depth > MAX_NESTED:
        raise RecursionError
    for key, value in given.items():
        if not isinstance(key, str):
            raise ConfigError(f"{key!r}: a key must be text; put it in quotes", key=str(key), source=source)
        if not key.startswith("_comment"):
            kept[key] = _without_comments(value, source, depth + 1) if isinstance(value, dict) else value
    return kept


def _read_json(text: str, source: str) -> object:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        out: dict[str, object] = {}
        for key, value in pairs:
            if key in out:
                raise ConfigError(f"{key}: given twice in one mapping", key=key, source=source)
            out[key] = value
        return out

    def no_constant(name: str) -> object:
        raise ConfigError(f"{name} is not a valid JSON number", source=source)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except json.JSONDecodeError as exc:
        raise ConfigError(f"not JSON: line {exc.lineno}, column {exc.colno}: {exc.msg}", source=source) from exc
    except ValueError as exc:  # an integer of thousands of digits
        raise ConfigError(f"not JSON: {exc}", source=source) from exc


def _read_yaml(text: str, source: str) -> object:
    try:
        import yaml
    except ModuleNotFoundError as exc:
        raise ConfigError("needs the yaml extra: pip install 'rl4sys-zmq[yaml]' (or write it as JSON)", source=source) from exc
    try:
        return yaml.load(text, Loader=_strict_loader(yaml, source))
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"not YAML: {where}{exc.problem or exc.context}", source=source) from exc
    except (yaml.YAMLError, ValueError) as exc:
        raise ConfigError(f"not YAML: {' '.join(str(exc).split())}", source=source) from exc


def _strict_loader(yaml: ModuleType, source: str) -> type[Any]:
    """Return a subclass of PyYAML's safe loader that reads ``3e-4`` as a float, as JSON does, and refuses duplicate keys."""

    class StrictLoader(yaml.SafeLoader):  # type: ignore[misc,name-defined]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                if key_node.value in seen:
                    line = key_node.start_mark.line + 1
                    message = f"{key_node.value}: given twice in one mapping (line {line})"
                    raise ConfigError(message, key=str(key_node.value), source=source)
                if isinstance(key_node.value, str):
                    seen.add(key_node.value)
            return dict(super().construct_mapping(node, deep=deep))

    StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
    return StrictLoader
