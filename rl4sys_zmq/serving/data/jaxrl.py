"""Data stores with the names and the order of arguments of jaxrl and SERL. They need neither JAX nor TensorFlow."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rl4sys_zmq.errors import ConfigError, DataError, config_error
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.replay.layout import ArraySpec, DataShape, is_space, space_leaves
from rl4sys_zmq.serving.data.base import as_batch
from rl4sys_zmq.serving.data.replay import TRANSITION_KEYS, ReplayBuffer
from rl4sys_zmq.serving.data.samplers import LatestSampler
from rl4sys_zmq.serving.data.trajectory import TrajectoryBuffer

log = get_logger(__name__)


class _SerlBuffer(ReplayBuffer):
    """A `ReplayBuffer` that leaves out unknown keys of a transition, and returns a batch as a `FrozenDict` of flax."""

    _said = False

    def batch_insert(self, batch_data: Sequence[Mapping[str, Any]]) -> None:
        """Store several transitions, without keys that the store does not have. If a transition is invalid, store none."""
        super().batch_insert([self._known(data) for data in as_batch(batch_data)])

    def sample(self, batch_size: int, keys: Iterable[str] | None = None, indx: object | None = None) -> dict[str, Any]:
        """Draw a batch of transitions, as `ReplayBuffer.sample` does. In a program with flax, the batch is a `FrozenDict`."""
        return _as_flax(super().sample(batch_size, keys, indx))

    def _known(self, data: Any) -> Any:
        """Return a transition without the keys that the store does not have."""
        if not isinstance(data, Mapping) or not (unknown := data.keys() - TRANSITION_KEYS - self._further.keys()):
            return data
        if not self._said:
            self._said = True
            log.warning("%s does not store the keys %s; use ReplayBuffer to store them", type(self).__name__, sorted(unknown))
        return {key: value for key, value in data.items() if key not in unknown}


class ReplayBufferDataStore(_SerlBuffer):
    """A replay buffer of transitions, with the order of arguments of the RL libraries jaxrl and SERL.

    It stores the keys that `ReplayBuffer` names, and leaves out other keys of a transition, with one warning.

    Args:
        observation_space: Space that sets the shapes and dtypes of observations.
        action_space: Space that sets the shapes and dtypes of actions.
        capacity: Largest number of transitions.
        rlds_logger: Must be None. Logging in the format RLDS is not supported.
        seed: Seed of the random generator that draws samples.
        path: Folder to keep the transitions on disk. A store that is already in the folder is opened. None: keep them in
            memory.

    Raises:
        ConfigError: If an argument is invalid, or the arguments have another order.
        StoreFileError: If the folder cannot be used.
    """

    def __init__(
        self,
        observation_space: object,
        action_space: object,
        capacity: int,
        rlds_logger: None = None,
        *,
        seed: int | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        _check(type(self).__name__, observation_space, action_space, rlds_logger)
        super().__init__(capacity, observation_space, action_space, seed=seed, path=path)


class MemoryEfficientReplayBufferDataStore(_SerlBuffer):
    """A replay buffer of transitions that stores an image once that is in several stacks of images.

    The arguments are those of the class of this name in SERL and HIL-SERL. The store keeps the keys that `ReplayBuffer` names
    and those that the arguments add. Other keys of a transition are left out, with one warning.

    Args:
        observation_space: Dict space that sets the shapes and dtypes of observations. Axis 0 of an image observation is the
            axis along which images are stacked.
        action_space: Space that sets the shapes and dtypes of actions.
        capacity: Largest number of transitions.
        image_keys: Keys of observations that are stacks of images.
        rlds_logger: Must be None. Logging in the format RLDS is not supported.
        include_next_actions: True to store the keys ``next_actions`` (as actions) and ``next_intvn`` (a bool).
        include_grasp_penalty: True to store the key ``grasp_penalty`` (a float32).
        seed: Seed of the random generator that draws samples.
        path: Folder to keep the transitions on disk. A store that is already in the folder is opened. None: keep them in
            memory.

    Raises:
        ConfigError: If an argument is invalid, or the arguments have another order.
        StoreFileError: If the folder cannot be used.
    """

    def __init__(  # noqa: PLR0913 - its call shape is HIL-SERL's
        self,
        observation_space: object,
        action_space: object,
        capacity: int,
        image_keys: Iterable[str] = ("image",),
        rlds_logger: None = None,
        *,
        include_next_actions: bool = False,
        include_grasp_penalty: bool = False,
        seed: int | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        _check(type(self).__name__, observation_space, action_space, rlds_logger)
        actions = space_leaves("next_actions", action_space) | {"next_intvn": ArraySpec((), np.dtype("?"))}
        penalty = {"grasp_penalty": ArraySpec((), np.dtype("<f4"))}
        self._further = (actions if include_next_actions else {}) | (penalty if include_grasp_penalty else {})
        self._image_keys = list(image_keys)
        leaves = space_leaves("observations", observation_space)
        missing = [key for key in self._image_keys if not getattr(leaves.get(f"observations/{key}"), "shape", ())]
        if missing or not self._image_keys:
            raise config_error("image_keys", f"expected keys of the images in {sorted(leaves)}, not {self._image_keys}")
        stacks = {leaves[f"observations/{key}"].shape[0] for key in self._image_keys}
        if len(stacks) > 1:
            raise config_error("image_keys", f"they have stacks of {sorted(stacks)} images; expected the same number")
        super().__init__(
            capacity, observation_space, action_space, image_keys=self._image_keys, num_stack=stacks.pop(), seed=seed, path=path
        )

    def sample(
        self, batch_size: int, keys: Iterable[str] | None = None, indx: object | None = None, pack_obs_and_next_obs: bool = False
    ) -> dict[str, Any]:
        """Draw a batch of transitions uniformly, with replacement.

        Args:
            batch_size: Number of transitions.
            keys: Keys of the result. None: those of a transition, and ``masks``.
            indx: Numbers of the transitions to return instead of drawn ones.
            pack_obs_and_next_obs: True to append the last image of the next observation to the stack of the observation, so that
                an image has the shape ``[batch, num_stack + 1, ...]``, and to leave images out of ``next_observations``.

        Raises:
            StoreEmpty: If the store is empty.
            DataError: If a key is unknown, a transition of `indx` is not stored, or the batch does not fit in memory. Also if
                images are packed, and `keys` lacks an observation.
            Closed: After `close`.
        """
        batch = ReplayBuffer.sample(self, batch_size, keys, indx)
        if pack_obs_and_next_obs:
            observations, following = batch.get("observations"), batch.get("next_observations")
            if observations is None or following is None:
                raise DataError("keys", "pack_obs_and_next_obs needs observations and next_observations among the keys")
            for key in self._image_keys:
                observations[key] = np.concatenate([observations[key], following.pop(key)[:, -1:]], axis=1)
        return _as_flax(batch)


class TrajectoryBufferDataStore(TrajectoryBuffer):
    """A replay buffer of trajectories (`TrajectoryBuffer`) with the arguments of the library agentlace.

    Args:
        capacity: Largest number of steps.
        data_shapes: Keys, shapes and dtypes of a step, as in `TrajectoryBuffer`.
        device: Ignored, with a warning: the steps are in the memory of the process, as they are in agentlace.
        seed: Seed of the random generator that draws samples.
        min_trajectory_length: Smallest number of stored steps of a trajectory that is sampled.
        rlds_logger: Must be None. Logging in the format RLDS is not supported.
        path: Folder to keep the steps on disk. A store that is already in the folder is opened. None: keep them in memory.

    Raises:
        ConfigError: If an argument is invalid, or the arguments have another order.
        StoreFileError: If the folder cannot be used.
    """

    def __init__(
        self,
        capacity: int,
        data_shapes: Sequence[DataShape] | None = None,
        device: object | None = None,
        seed: int | None = 0,
        min_trajectory_length: int = 2,
        rlds_logger: None = None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        _check_rlds(rlds_logger)
        if isinstance(device, int):
            raise ConfigError(
                f"device is {device}; the order is TrajectoryBufferDataStore(capacity, data_shapes, device, seed, "
                "min_trajectory_length). TrajectoryBuffer has the seed in this place",
                key="device",
            )
        if device is not None:
            log.warning("TrajectoryBufferDataStore: device %s is ignored; copy the samples to the device", device)
        super().__init__(capacity, data_shapes, seed, min_trajectory_length, path=path)


def make_default_trajectory_buffer(
    observation_space: object, action_space: object, capacity: int, device: object | None = None, rlds_logger: None = None
) -> TrajectoryBufferDataStore:
    """Create a trajectory buffer for transitions, from which ``sample("training", batch_size)`` draws single transitions.

    A step has ``observations``, ``next_observations``, ``actions``, ``rewards`` and ``masks``, and optionally the flag
    ``end_of_trajectory``. A sample has all six keys. The last step of a trajectory is also sampled, unlike in agentlace.

    Args:
        observation_space: Space that sets the shapes and dtypes of observations.
        action_space: Space that sets the shapes and dtypes of actions.
        capacity: Largest number of steps.
        device: Ignored, with a warning: the steps are in the memory of the process.
        rlds_logger: Must be None.

    Raises:
        ConfigError: If an argument is invalid, or the arguments have another order.
    """
    _check("make_default_trajectory_buffer", observation_space, action_space, rlds_logger)
    leaves = {
        **space_leaves("observations", observation_space),
        **space_leaves("next_observations", observation_space),
        **space_leaves("actions", action_space),
    }
    shapes = [DataShape(path, leaf.shape, leaf.dtype.str) for path, leaf in leaves.items()]
    shapes += [DataShape("rewards", (), "float64"), DataShape("masks", (), "float64")]
    buffer = TrajectoryBufferDataStore(capacity, shapes, device)
    keys = ("observations", "next_observations", "actions", "rewards", "masks", "end_of_trajectory")
    buffer.register_sample_config("training", {key: LatestSampler() for key in keys})
    return buffer


def _as_flax(batch: dict[str, Any]) -> dict[str, Any]:
    """Convert a batch to flax's `FrozenDict`, which SERL's agents expect, if the program has imported flax."""
    flax = sys.modules.get("flax.core.frozen_dict")
    frozen: dict[str, Any] = batch if flax is None else flax.freeze(batch)
    return frozen


def _check(name: str, observation_space: object, action_space: object, rlds_logger: object) -> None:
    for key, space in (("observation_space", observation_space), ("action_space", action_space)):
        if not is_space(space):
            order = f"the order is {name}(observation_space, action_space, capacity)"
            raise config_error(key, f"{space!r:.60} is not a space; {order}")
    _check_rlds(rlds_logger)


def _check_rlds(rlds_logger: object) -> None:
    if rlds_logger is not None:
        problem = "this package does not write RLDS; give None, and log the transitions in your actor"
        raise config_error("rlds_logger", problem)
