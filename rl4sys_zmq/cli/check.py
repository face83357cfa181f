"""The commands ``rl4sys-learner config check``, ``alarm-test`` and ``algorithms``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rl4sys_zmq.algorithms import ALGORITHMS, AlgorithmEntry, make_algorithm
from rl4sys_zmq.algorithms.networks import NETWORKS, network_names
from rl4sys_zmq.cli.app import FAILED, print_line
from rl4sys_zmq.config import AgentConfig, ClientConfig, LearnerConfig
from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.config.options import with_source
from rl4sys_zmq.config.rl4sys import default_client_id
from rl4sys_zmq.errors import ConfigError, RL4SysError
from rl4sys_zmq.learner.gateway.admission import check_learning_options
from rl4sys_zmq.learner.gateway.parameters import algorithm_parameters
from rl4sys_zmq.learner.gateway.static_check import check_buildable, entry_parameters, under
from rl4sys_zmq.learner.registry.algorithm_entry import parameter_table, rl4sys_notes
from rl4sys_zmq.learner.registry.like import ambiguous_names, our_name
from rl4sys_zmq.learner.run.alarm_messages import deliver, message
from rl4sys_zmq.ops.episodes import make_environment
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, Space, observation_space_from, space_from
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.observations import have_same_form

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RL4SYS_GLOBAL = {"default_algorithm", "algorithms", "server", "model_paths", "tensorboard", "ensemble_algorithms"}
EXAMPLE_OBSERVATIONS = (BoxSpace((4,)), BoxSpace((84, 84, 3), "|u1", low=0, high=255))
EXAMPLE_ACTIONS = (DiscreteSpace(2), BoxSpace((2,), low=-1.0, high=1.0))
"""Spaces for a file that has none. The second ones are for networks and algorithms that refuse the first."""


def check_file(path: Path) -> None:
    """Validate a configuration file, including the parameters of its algorithms, and print the resulting values."""
    document = read_mapping(path)
    with with_source(str(path)):
        lines = list(_learner(document, path) if is_learner_file(document) else _agent(document, path))
    for line in lines:
        print_line(line)
    print_line("ok")


def alarm_test(path: Path) -> int:
    """Send a message to each receiver of alarms that a learner's file names, print the results, and return the exit code."""
    config = LearnerConfig.load(path)
    if config.alarms is None:
        raise ConfigError("there is no receiver of alarms; set alarms.webhook, alarms.command, or both", key="alarms")
    sample = message("alarm_test", {"text": "this is a test"}, time.time(), config.run_dir)
    code = 0
    for receiver, error in deliver(config.alarms, sample):
        print_line(f"{receiver}: {error or 'delivered'}")
        code = FAILED if error else code
    return code


def is_learner_file(document: Mapping[str, object]) -> bool:
    """Return True if a file configures a learner, and False if it configures an actor.

    Of the keys that only one of the two can have, it has more keys of that one. At equal numbers, a file with ``client_id`` is
    an actor's. RL4Sys's global file counts as a learner's.
    """
    agents, learners = _keys(AgentConfig), _keys(LearnerConfig) | RL4SYS_GLOBAL | {"port"}  # an option of `serve`
    learner, agent = len(document.keys() & (learners - agents)), len(document.keys() & (agents - learners))
    return learner > agent or (learner == agent > 0 and "client_id" not in document)


def _keys(config: type[DataclassInstance]) -> set[str]:
    return {name for f in fields(config) if "check" in f.metadata for name in (f.name, *f.metadata["names"])}


def _agent(document: Mapping[str, object], path: Path) -> Iterator[str]:
    missing = "client_id" not in document and default_client_id(document, str(path)) is None
    config = AgentConfig.from_mapping({"client_id": "?", **document} if missing else document, source=str(path))
    import_plugins(config.plugins, path)
    yield f"{path}: an actor's configuration"
    if missing:
        yield "  client_id: not in the file; the program must set it (rl4sys-actor run --client-id NAME)"
    yield from _values({k: v for k, v in config.to_json().items() if not (missing and k == "client_id")})
    if config.algorithm_name is None:
        yield "  algorithm: from the learner's configuration"
        if config.algorithm_parameters:
            yield "  algorithm_parameters: not checked, because the file does not name an algorithm"
    else:
        yield from _algorithm(config.algorithm_name, config.algorithm_parameters, config.observation_space, config.action_space)


def _learner(document: Mapping[str, object], path: Path) -> Iterator[str]:
    config = LearnerConfig.from_mapping(document, source=str(path))
    import_plugins(config.plugins, path)
    yield f"{path}: a learner's configuration"
    yield from _values(config.to_json())
    if config.ignored:
        yield f"  ignored, without a meaning for the learner: {', '.join(config.ignored)}"
    for name, parameters in config.algorithms.items():
        if ALGORITHMS.has(name):
            yield from _algorithm(name, parameters, None, None, f"algorithms.{name}")
        else:
            yield f"  algorithms.{name}: this learner does not have this algorithm; the entry is not used"
    check_buildable(config)
    for client_id, entry in config.clients.items():
        yield from _client(f"clients.{client_id}", entry.algorithm_name or config.default_algorithm, entry, config)


def _client(where: str, name: str | None, entry: ClientConfig, config: LearnerConfig) -> Iterator[str]:
    try:
        observations, actions = _spaces(entry)
    except ConfigError as exc:
        raise under(where, exc) from exc
    if entry.evaluation is not None:
        yield f"  {where}.evaluation: {entry.evaluation.make_arguments['id']} can be created"
    if name is not None:
        yield from _algorithm(name, entry_parameters(ALGORITHMS.get(name), entry, config), observations, actions, where)


def _spaces(entry: ClientConfig) -> tuple[ObservationSpace | None, Space | None]:
    """Return the spaces of a client. Spaces that the client's entry does not give are those of its evaluation, if any."""
    observations, actions = entry.observation_space, entry.action_space
    if entry.evaluation is None:
        return observations, actions
    arguments = entry.evaluation.make_arguments
    try:
        env = make_environment(arguments)
        try:
            played = observation_space_from(env.observation_space), space_from(env.action_space)
        finally:
            env.close()
    except Exception as exc:  # the code of an environment can raise anything
        text = str(exc) if isinstance(exc, ConfigError) else f"{arguments['id']} raised {type(exc).__name__}: {exc!s:.400}"
        raise ConfigError(f"evaluation.env: {text}", key="evaluation.env") from exc
    for key, ours, theirs in (("observation_space", observations, played[0]), ("action_space", actions, played[1])):
        if ours is not None and not have_same_form(ours, theirs):
            raise ConfigError(f"{key}: {ours}, but {arguments['id']} of evaluation has {theirs}; change one of them", key=key)
    return observations or played[0], actions or played[1]


def _algorithm(
    name: str, parameters: Mapping[str, object], observations: ObservationSpace | None, actions: Space | None, where: str = ""
) -> Iterator[str]:
    """Check the parameters of an algorithm, compute the size of its policy, and yield the result as lines."""
    try:
        check_learning_options(parameters)
        kind, used, size = _planned_with_examples(name, parameters, observations, actions)
    except ConfigError as exc:
        raise under(where, exc) from exc
    said = f"{name} ({kind})" if kind else name
    note = "" if observations and actions else ", with example spaces because the file does not give both"
    yield f"  {where or 'algorithm'}: {said} can be built; its policy has {size:,} parameters{note}"
    cls, numbers = ALGORITHMS.get(name).parameters, None if actions is None else bool(action_layout(actions).numbers)
    yield from (f"    warning: {line}" for line in ambiguous_names(cls, parameters, numbers))
    yield from (f"    {line}" for line in rl4sys_notes(used))
    if is_dataclass(used):
        yield from (f"    {key}: {_text(getattr(used, key))}" for key in (f.name for f in fields(used)))


def _planned_with_examples(
    name: str, parameters: Mapping[str, object], observations: ObservationSpace | None, actions: Space | None
) -> tuple[str, object, int]:
    """Return an algorithm's kind, its parameters (a dataclass or None), and the number of weights of its policy.

    None for a space means that it is not known. Then example spaces are tried, until the algorithm accepts one.

    Raises:
        ConfigError: If the algorithm accepts none of the spaces.
    """
    refusal: ConfigError | None = None
    for observed in EXAMPLE_OBSERVATIONS if observations is None else (observations,):
        for acted in EXAMPLE_ACTIONS if actions is None else (actions,):
            try:
                return _planned(name, parameters, observed, acted)
            except ConfigError as exc:
                refusal = refusal or exc
    assert refusal is not None
    raise refusal


def _planned(
    name: str, parameters: Mapping[str, object], observations: ObservationSpace, actions: Space
) -> tuple[str, object, int]:
    """Return an algorithm's kind, its parameters as a dataclass or None, and the number of weights of its policy.

    An algorithm without a function ``plan`` is created, which can import torch.
    """
    entry, own = ALGORITHMS.get(name), algorithm_parameters(parameters)
    used, planned = entry.read(own), entry.planned(observations, actions, own)
    if planned is not None:
        return entry.kind, used, planned.parameters
    try:
        built = make_algorithm(name, observations, actions, own, 0)
    except RL4SysError:
        raise
    except Exception as exc:
        raise ConfigError(f"{name} cannot be built: {type(exc).__name__}: {exc!s:.400}", key="algorithm_name") from exc
    return built.kind, getattr(built, "parameters", None), built.spec().parameters


def _values(values: Mapping[str, object]) -> Iterator[str]:
    yield from (f"  {key}: {_text(value)}" for key, value in values.items() if value not in ({}, None))


def _text(value: object) -> str:
    return json.dumps(value, default=str)


def list_algorithms() -> None:
    """Print the summary, the parameters and the presets of each algorithm, then the kinds of networks with their options."""
    broken = ALGORITHMS.faults()
    for _, entry in ALGORITHMS.loadable():
        for line in _described(entry):
            print_line(line)
        print_line()
    for line in _described_networks():
        print_line(line)
    for fault in [*broken, *NETWORKS.faults()]:
        print_line(f"!! {fault}")


def _described(entry: AlgorithmEntry) -> Iterator[str]:
    yield entry.name if ":" in entry.name else entry.name.upper()
    about = f"{entry.summary} ({entry.kind})" if entry.kind else entry.summary
    if about:
        yield f"  {about}"
    rows = {
        "spaces": entry.spaces,
        "action masks": {True: "yes", False: "no", None: ""}[entry.takes_masks],
        "staleness": entry.staleness,
        "reference": entry.reference,
        "networks": ", ".join(network_names(*entry.network_forms)) if entry.chooses_network else "",
        "needs engine": "process" if entry.isolated else "",
    }
    yield from (f"  {name}: {value}" for name, value in rows.items() if value)
    if entry.parameters is None:
        yield "  (the entry of this algorithm does not list its parameters)"
    else:
        yield from _parameters(entry.parameters, entry.changeable)
        for key, library in getattr(entry.parameters, "libraries", {}).items():
            yield f"  like: {key} ({library.title})"
            for theirs, row in ((theirs, library.row(theirs)) for theirs in library.names):
                default = "" if row.default is ... else f" = {_text(row.default)}"
                note = f": {row.note}" if row.note else ""
                yield f"      {theirs}{default} -> {our_name(entry.parameters, library, theirs)}{note}"
            yield f"      besides: {', '.join(f'{ours} = {_text(value)}' for ours, value in library.rules.items())}"
            yield f"      different: {library.differences}"
    if entry.presets:
        yield f"  presets: {', '.join(sorted(entry.presets))}"


def _described_networks() -> Iterator[str]:
    for name in network_names():
        entry = NETWORKS.get(name)
        yield f"network {{kind: {entry.name}}}"
        yield f"  {entry.summary}"
        if entry.reference:
            yield f"  reference: {entry.reference}"
        yield from _parameters(entry.options)
        yield ""


def _parameters(cls: type[DataclassInstance], changeable: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield two lines for each parameter: its name with the default, and its meaning with the synonyms."""
    for key, default, synonyms, meaning in parameter_table(cls):
        also = f"  [also: {', '.join(synonyms)}]" if synonyms else ""
        yield f"  {key} = {_text(default)}" + (" *" if key in changeable else "")
        yield f"      {meaning}{also}"
