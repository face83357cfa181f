"""The episodes of a Minari dataset on this machine, as demonstrations."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.replay.demonstrations import Demonstration
from rl4sys_zmq.values import ObservationSpace, observation_space_from, space_from
from rl4sys_zmq.values.observations import flat_space, leaves_of
from rl4sys_zmq.values.spaces import FlatSpace

__all__ = ["read_minari"]


def read_minari(dataset_id: str) -> tuple[ObservationSpace, FlatSpace, list[Demonstration]]:
    """Return the spaces and the episodes of a Minari dataset. Nothing is downloaded.

    Args:
        dataset_id: The ID of the dataset, such as ``mujoco/hopper/expert-v0``.

    Raises:
        ConfigError: If Minari is not installed, there is no such dataset on this machine, or its spaces cannot be those of a
            client.
    """
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
                    np.asarray(leaf, space.dtype)
                    for leaf, space in zip(leaves.flatten(found.observations), leaves.spaces, strict=True)
                ],
                np.asarray(found.actions, action_space.dtype),
                np.asarray(found.rewards, np.float32),
                bool(found.terminations[-1]),
            )
            for found in dataset.iterate_episodes()
        ]
    except (OSError, ValueError, KeyError, ImportError) as exc:  # a missing reader of the dataset's format is an ImportError
        text = " ".join(str(exc).split())
        raise ConfigError(
            f"the Minari dataset {dataset_id!r} cannot be read: {text}; download it with: minari download {dataset_id}",
            key="minari",
        ) from exc
    return observation_space, action_space, episodes
