"""``rl4sys-learner config check`` and ``algorithms``: what a file means, and what may stand in it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rl4sys_zmq.cli.app import require, say
from rl4sys_zmq.config import AgentConfig, ClientConfig, LearnerConfig
from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.admission import algorithm_parameters, check_learning_options
from rl4sys_zmq.learner.algorithms import algorithm_names, make_algorithm, resolve_algorithm
from rl4sys_zmq.learner.algorithms.parameters import parameter_table
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, Space

__all__ = ["check_file", "list_algorithms"]

PARAMETERS = {
    "DQN": ("rl4sys_zmq.learner.algorithms.dqn", "DQNParameters"),
    "PPO": ("rl4sys_zmq.learner.algorithms.ppo_parameters", "PPOParameters"),
}
RL4SYS_GLOBAL = {"default_algorithm", "algorithms", "server", "model_paths", "tensorboard", "ensemble_algorithms"}
STAND_INS = (BoxSpace((4,)), DiscreteSpace(2))
"""Spaces to build an algorithm with when a file names none."""


def check_file(path: Path) -> None:
    """Validates a file, its algorithm's parameters too, and says what will be used.

    Raises:
        ConfigError: in one line, with the key, the file and the nearest valid name.
    """
    require("learner", "torch")
    given = read_mapping(path)
    try:
        lines = list(_learner(given, path) if is_learners(given) else _agent(given, path))
    except ConfigError as exc:
        raise exc if exc.source else ConfigError(str(exc), key=exc.key, source=str(path)) from exc
    for line in lines:
        say(line)
    say("ok")


def is_learners(given: Mapping[str, object]) -> bool:
    """Whether a file is a learner's (or RL4Sys's global) rather than an agent's, by the keys that only one of them has."""
    agents, learners = _keys(AgentConfig), _keys(LearnerConfig) | RL4SYS_GLOBAL
    return len(given.keys() & (learners - agents)) > len(given.keys() & (agents - learners))


def _keys(config: type[Any]) -> set[str]:
    return {name for f in fields(config) if "check" in f.metadata for name in (f.name, *f.metadata["names"])}


def _agent(given: Mapping[str, object], path: Path) -> Iterator[str]:
    missing = "client_id" not in given
    config = AgentConfig.from_mapping({"client_id": "?", **given}, source=str(path))
    yield f"{path}: an agent's configuration"
    if missing:
        yield "  client_id: not in the file; the program gives it (rl4sys-actor run --client-id NAME)"
    yield from _values({k: v for k, v in config.to_json().items() if not (missing and k == "client_id")})
    if config.algorithm_name is None:
        yield "  algorithm: the learner's file says it"
        if config.algorithm_parameters:
            yield "  algorithm_parameters: not checked, because no algorithm is named"
    else:
        yield from _algorithm(config.algorithm_name, config.algorithm_parameters, config.observation_space, config.action_space)


def _learner(given: Mapping[str, object], path: Path) -> Iterator[str]:
    config = LearnerConfig.from_mapping(given, source=str(path))
    yield f"{path}: a learner's configuration"
    yield from _values(config.to_json())
    for key in config.ignored:
        yield f"  {key}: has no meaning for the learner and is ignored"
    for name, parameters in config.algorithms.items():
        if name in algorithm_names():
            yield from _algorithm(name, parameters, None, None, f"algorithms.{name}")
        else:
            yield f"  algorithms.{name}: this learner has no such algorithm; the entry is not used"
    if config.default_algorithm is not None:
        resolve_algorithm(config.default_algorithm)
    for client_id, entry in config.clients.items():
        chosen = entry.algorithm_name or config.default_algorithm
        if chosen is not None:
            yield from _client(client_id, chosen, entry, config)


def _client(client_id: str, name: str, entry: ClientConfig, config: LearnerConfig) -> Iterator[str]:
    parameters = {**config.algorithms.get(name, {}), **entry.algorithm_parameters}
    yield from _algorithm(name, parameters, entry.observation_space, entry.action_space, f"clients.{client_id}")


def _algorithm(
    name: str, parameters: Mapping[str, object], observations: Space | None, actions: Space | None, where: str = ""
) -> Iterator[str]:
    """Builds the algorithm: only that checks everything."""
    try:
        check_learning_options(parameters)
        own = algorithm_parameters(parameters)
        built = make_algorithm(name, observations or STAND_INS[0], actions or STAND_INS[1], own, 0)
    except ConfigError as exc:
        raise ConfigError(f"{where}: {exc}" if where else str(exc), key=exc.key) from exc
    spaces = "" if observations and actions else ", with stand-ins for the spaces that the file does not name"
    yield f"  {where or 'algorithm'}: {name} ({built.kind}) can be built, {built.spec().size:,} numbers in its policy{spaces}"
    used = getattr(built, "parameters", None)
    if used is not None:
        yield from (f"    {key}: {_text(getattr(used, key))}" for key in (f.name for f in fields(used)))


def _values(values: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"  {key}: {_text(value)}" for key, value in values.items() if value not in ({}, None))


def _text(value: object) -> str:
    return json.dumps(value, default=str)


def list_algorithms() -> None:
    """Prints each algorithm's parameters."""
    require("learner", "torch")
    for name in algorithm_names():
        say(name)
        if name not in PARAMETERS:
            say("  (registered by a program; its parameters are its own)")
            continue
        module, attribute = PARAMETERS[name]
        for key, default, synonyms, meaning in parameter_table(getattr(importlib.import_module(module), attribute)):
            also = f"  [also: {', '.join(synonyms)}]" if synonyms else ""
            say(f"  {key} = {_text(default)}")
            say(f"      {meaning}{also}")
        say()
