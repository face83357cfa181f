"""The episodes of a Minari dataset on this machine, as demonstrations."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay.demonstrations import Demonstration
from rl4sys_zmq.values import ObservationSpace, observation_space_from, space_from
from rl4sys_zmq.values.observations import flat_space, leaves_of
from rl4sys_zmq.values.spaces import FlatSpace


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
