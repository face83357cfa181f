"""The start of an algorithm's training from demonstrations: a file, or a Minari dataset."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.config.client import DemonstrationsConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry import Algorithm, CloneOptions, CloningAlgorithm, DemonstrationAlgorithm
from rl4sys_zmq.learner.registry.policy_checks import require_rewards, require_use
from rl4sys_zmq.learner.training.validation import SegmentContentRules, SegmentValueLimits, content_error
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.replay.demonstrations import Demonstration, demonstrations_of, read_demonstrations
from rl4sys_zmq.values import ObservationSpace, observation_space_from, space_from
from rl4sys_zmq.values.observations import flat_space, leaves_of
from rl4sys_zmq.values.spaces import FlatSpace
from rl4sys_zmq.wire import SegmentSchema
from rl4sys_zmq.wire.thread_messages import AssignClient

log = get_logger(__name__)

REPORT_S = 3.0
"""Time between two reports of the progress of cloning, in seconds."""


class TrainingDemonstrations:
    """The demonstrations of one client, and their use by its algorithm."""

    def __init__(self, assign: AssignClient, algorithm: Algorithm, schema: SegmentSchema, limits: SegmentValueLimits) -> None:
        """Read the demonstrations, check them, and give them to the replay of the algorithm, if `fraction` asks for that."""
        self._client_id, self._algorithm = assign.client_id, algorithm
        self._options = options = DemonstrationsConfig.from_mapping(assign.demonstrations)
        takes, clones = isinstance(algorithm, DemonstrationAlgorithm), isinstance(algorithm, CloningAlgorithm)
        require_use(assign.algorithm_name, options, takes=takes, clones=clones)
        if options.path is not None:
            demonstrations = read_demonstrations(options.path)
        else:
            assert options.minari is not None  # as the configuration has checked
            demonstrations = demonstrations_of(*read_minari(options.minari))
        self._demonstrations = demonstrations
        demonstrations.check_spaces(schema.observation_space, schema.action_space)
        rules = SegmentContentRules(schema, limits, 0, 0)
        for number, segment in enumerate(demonstrations.segments):
            if reason := content_error(segment, rules):
                episode = f"episode {number} of {len(demonstrations.segments)}"
                raise ConfigError(f"demonstrations: {episode}: {reason}", key="demonstrations")
        if isinstance(algorithm, DemonstrationAlgorithm) and options.fraction:
            require_rewards(options, rewarded=demonstrations.rewarded)
            algorithm.use_demonstrations(demonstrations.segments, options.fraction, demonstrations.digest)
        count = len(demonstrations.segments)
        log.info("client %s has %d demonstrations of %d steps", assign.client_id, count, demonstrations.steps)

    def clone(self, send: Callable[[dict[str, float]], None]) -> bool:
        """Train the policy to imitate the demonstrations, if the option `clone_steps` asks for that.

        `send` gets the metrics. Return True if the policy was trained.
        """
        options, algorithm = self._options, self._algorithm
        if not options.clone_steps or not isinstance(algorithm, CloningAlgorithm):
            return False
        said_s = time.monotonic()

        def report(step: int, loss: SupportsFloat) -> None:
            nonlocal said_s
            if time.monotonic() - said_s >= REPORT_S:
                said_s = time.monotonic()
                log.info("client %s clones: step %d of %d, loss %.4g", self._client_id, step, options.clone_steps, float(loss))
                send({"clone/progress": step / options.clone_steps, "clone/loss": float(loss)})

        steps = CloneOptions(options.clone_steps, options.clone_batch_size, options.clone_learning_rate, report)
        loss = algorithm.clone(self._demonstrations.segments, steps)
        log.info("client %s has cloned its demonstrations in %d steps; loss %.4g", self._client_id, steps.steps, loss)
        return True


def read_minari(dataset_id: str) -> tuple[ObservationSpace, FlatSpace, list[Demonstration]]:
    """Return the spaces and the episodes of a Minari dataset. Nothing is downloaded."""
    try:
        minari: Any = importlib.import_module("minari")
    except ModuleNotFoundError as exc:
        raise ConfigError(f"this needs Minari ({exc}): pip install 'minari[hdf5,arrow]'", key="minari") from exc
    try:
        dataset = minari.load_dataset(dataset_id)
        observation_space = observation_space_from(dataset.observation_space)
        action_space = flat_space(space_from(dataset.action_space), "a file of demonstrations", "action")
        leaves = leaves_of(observation_space)
        episodes = [
            Demonstration(
                [
                    _converted(leaf, space.dtype, "observations")
                    for leaf, space in zip(leaves.flatten(episode.observations), leaves.spaces, strict=True)
                ],
                _converted(episode.actions, action_space.dtype, "actions"),
                np.asarray(episode.rewards, np.float32),
                bool(episode.terminations[-1]),
            )
            for episode in dataset.iterate_episodes()
            if len(episode.rewards)
        ]
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ImportError, ConfigError) as exc:
        # An ImportError is a missing reader of the dataset's format; the others come from data that are not as Minari says.
        text = " ".join(str(exc).split())
        raise ConfigError(
            f"the Minari dataset {dataset_id!r} cannot be read: {text}; download it with: minari download {dataset_id}",
            key="minari",
        ) from exc
    return observation_space, action_space, episodes


def _converted(column: Any, dtype: str, name: str) -> NDArray[Any]:
    values = np.asarray(column)
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise ValueError(f"the {name} are {values.dtype}, and their space has {np.dtype(dtype)}")
    with np.errstate(over="ignore"):
        converted = values.astype(dtype, copy=False)
    unchanged = np.isfinite if converted.dtype.kind == "f" else np.asarray  # numbers with a point are rounded
    if not np.array_equal(unchanged(converted), unchanged(values)):
        raise ValueError(f"the {name} have numbers from {values.min()} to {values.max()}, which {np.dtype(dtype)} cannot hold")
    return converted
