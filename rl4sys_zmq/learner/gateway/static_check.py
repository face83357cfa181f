"""Checks of a learner's configuration before it starts, which need no actor."""

from __future__ import annotations

from collections.abc import Mapping

from rl4sys_zmq.config import ClientConfig, DemonstrationsConfig, LearnerConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.engines.base import ENGINES, check_engines
from rl4sys_zmq.learner.gateway.admission import check_engine, check_learning_options
from rl4sys_zmq.learner.gateway.parameters import algorithm_parameters, merged
from rl4sys_zmq.learner.registry import ALGORITHMS, AlgorithmEntry, CloningAlgorithm, DemonstrationAlgorithm
from rl4sys_zmq.learner.registry.networks import NetworkParameters, check_trainable
from rl4sys_zmq.learner.registry.policy_checks import (
    MixedBatchParameters,
    check_magnitudes,
    check_planned_size,
    require_rewards,
    require_use,
)
from rl4sys_zmq.learner.run.run_loggers import logger_classes
from rl4sys_zmq.names import algorithm_key
from rl4sys_zmq.replay.demonstrations import read_demonstrations

LOCAL_ENGINES = frozenset({"thread", "process"})
"""The engines that train on the learner's machine, and so read files from its disk."""


def check_buildable(config: LearnerConfig) -> None:
    """Check the names and parameters of all algorithms in a learner's configuration, without building one.

    A section for an algorithm that this learner does not have is no error. Plugins must have been imported.
    """
    check_engines(config)
    logger_classes(config)
    if config.default_algorithm is not None:
        ALGORITHMS.get(config.default_algorithm)
    for name, parameters in config.algorithms.items():
        if ALGORITHMS.has(name):
            try:
                _check_parameters(ALGORITHMS.get(name), parameters)
            except ConfigError as exc:
                raise under(f"algorithms.{name}", exc) from exc
    for client_id, entry in config.clients.items():
        try:
            _check_client(entry, config)
        except ConfigError as exc:
            raise under(f"clients.{client_id}", exc) from exc


def _check_client(entry: ClientConfig, config: LearnerConfig) -> None:
    name = entry.algorithm_name or config.default_algorithm
    if name is None:  # the first actor names the algorithm
        return
    kind = ALGORITHMS.get(name)
    check_engine(kind, entry.engine or config.engine)
    parameters = entry_parameters(kind, entry, config)
    _check_parameters(kind, parameters)
    if entry.observation_space is not None and entry.action_space is not None:
        spaces = entry.observation_space, entry.action_space
        plan = check_planned_size(kind, spaces, algorithm_parameters(parameters), config.max_parameters)
        if plan is not None:
            check_magnitudes(plan, entry.max_magnitude or config.max_magnitude)
    require_fraction(kind, parameters, entry.demonstrations)
    check_demonstrations(kind, entry, config)


def entry_parameters(kind: AlgorithmEntry, entry: ClientConfig, config: LearnerConfig) -> Mapping[str, object]:
    """Return an algorithm's parameters for a client, from the algorithm's section and the client's entry."""
    return merged(kind, config.algorithms.get(algorithm_key(kind.name), {}), entry.algorithm_parameters)


def _check_parameters(kind: AlgorithmEntry, parameters: Mapping[str, object]) -> None:
    check_learning_options(parameters)
    read = kind.read(algorithm_parameters(parameters))
    if isinstance(read, NetworkParameters):
        check_trainable(read.chosen_network(), kind.name, *read.network_forms)


def check_demonstrations(kind: AlgorithmEntry, entry: ClientConfig, config: LearnerConfig) -> None:
    """Check that the algorithm of a client can use its demonstrations. Check their file too, if training is on this machine."""
    options = entry.demonstrations
    if options is None:
        return
    factory = kind.load()
    if isinstance(factory, type):  # of a function, nothing is known
        require_use(
            kind.name,
            options,
            takes=issubclass(factory, DemonstrationAlgorithm),
            clones=issubclass(factory, CloningAlgorithm),
        )
    engine = ENGINES.get(entry.engine or config.engine)
    if options.path is not None and engine.name in LOCAL_ENGINES:
        demonstrations = read_demonstrations(options.path)
        if options.fraction:
            require_rewards(options, rewarded=demonstrations.rewarded)
        if entry.observation_space is not None and entry.action_space is not None:
            demonstrations.check_spaces(entry.observation_space, entry.action_space)


def require_fraction(kind: AlgorithmEntry, parameters: Mapping[str, object], options: DemonstrationsConfig | None) -> None:
    """Check that batches with these parameters are large enough for the fraction of demonstrations."""
    read = kind.read(algorithm_parameters(parameters))
    if options is not None and options.fraction and isinstance(read, MixedBatchParameters):
        read.check_fraction(options.fraction)


def under(where: str, error: ConfigError) -> ConfigError:
    """Return the error with the full path of its key in the file: `where`, such as ``clients.NAME``, and the key."""
    if not where:
        return error
    message, own = str(error), "algorithm_parameters."
    if not error.key or not message.startswith(error.key):
        return ConfigError(f"{where}: {message}", key=error.key)
    inner = error.key.removeprefix(own) if where.startswith("algorithms.") else error.key
    return ConfigError(f"{where}.{inner}{message.removeprefix(error.key)}", key=f"{where}.{inner}")
