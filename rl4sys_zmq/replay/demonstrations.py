"""Demonstrations: recorded episodes of a task, in a ``.npz`` file, from which the training of a policy can start.

The file has these arrays, for ``E`` episodes with ``N`` steps in all. Nothing is pickled.

::

    format                            1
    observation_space, action_space   the spaces as JSON text (`space_to_json`)
    observations                      [N + E, *obs]: the observations of each episode, with the one after its last step.
                                      For a Dict or Tuple space, one array for each leaf: observations['camera'], ...
    actions                           [N, *act], as the environment gets them
    rewards                           [N] float32; can be left out
    lengths                           [E] int64, the steps of each episode
    terminated                        [E] bool, False for an episode that was ended from outside
    masks                             [N + E, n] bool, True for each action that is allowed in an observation, for n options
                                      of all choices (`ActionLayout`); left out if there are none
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError, config_error
from rl4sys_zmq.private import open_private
from rl4sys_zmq.values import DiscreteSpace, ObservationSpace, Segment, Space, observation_space_from, space_from, space_to_json
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.observations import leaves_of
from rl4sys_zmq.values.spaces import BoxSpace, LeafSpace

__all__ = ["Demonstration", "Demonstrations", "demonstrations_of", "read_demonstrations", "write_demonstrations"]

FORMAT = 1
_DAMAGE = (
    *(ConfigError, ValueError, LookupError, TypeError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error),
    RuntimeError,  # another compression or an encryption, or JSON that is nested too deep
    OverflowError,
    MemoryError,
)
"""What numpy, zipfile and json raise for a file that they cannot read."""


@dataclass(frozen=True, slots=True, eq=False)
class Demonstration:
    """One recorded episode of ``T`` steps.

    Attributes:
        observations: The observations ``[T + 1, *obs]``, with the one after the last step: one array for each leaf of the
            space.
        actions: The actions ``[T, *act]``, as the environment gets them.
        rewards: The rewards, float32 ``[T]``; None if they are unknown.
        terminated: True if the episode ended in a terminal state.
        masks: The masks of allowed actions, bool ``[T + 1, n]``, one for each observation; None if all actions are allowed.
    """

    observations: Sequence[NDArray[Any]]
    actions: NDArray[Any]
    rewards: NDArray[np.float32] | None
    terminated: bool
    masks: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Demonstrations:
    """The recorded episodes in one file, as segments.

    Attributes:
        observation_space: The space of the observations.
        action_space: The space of the actions.
        segments: One segment for each episode. Log-probabilities, versions and unknown rewards are 0.
        rewarded: True if the rewards are known.
        digest: The xxh3-64 checksum of all arrays.
    """

    observation_space: ObservationSpace
    action_space: Space
    segments: tuple[Segment, ...]
    rewarded: bool
    digest: int

    @property
    def steps(self) -> int:
        """The number of steps of all episodes."""
        return sum(segment.steps for segment in self.segments)

    def check_spaces(self, observation_space: ObservationSpace, action_space: Space) -> None:
        """Check that the demonstrations are of a task with these spaces. Bounds of a Box can differ.

        Raises:
            ConfigError: If a space differs. The message has both spaces.
        """
        for key, ours, theirs in (
            ("observation_space", observation_space, self.observation_space),
            ("action_space", action_space, self.action_space),
        ):
            if _form(ours) != _form(theirs):
                raise config_error("demonstrations", f"their {key} is {theirs}; the client's is {ours}")


def _form(space: ObservationSpace) -> tuple[object, ...]:
    """Return a space without the bounds of its Boxes. If two spaces have equal forms, elements of one fit the other."""
    leaves = leaves_of(space)
    return leaves.structure, *[(leaf.shape, leaf.dtype) if isinstance(leaf, BoxSpace) else leaf for leaf in leaves.spaces]


def write_demonstrations(path: Path, observation_space: object, action_space: object, episodes: Sequence[Demonstration]) -> None:
    """Write episodes to a new file, which gets mode 0600.

    Args:
        path: The file.
        observation_space: The space of the observations: a space of this package or of Gymnasium, or its JSON form.
        action_space: The space of the actions, in the same forms.
        episodes: The episodes.

    Raises:
        ConfigError: If there is no episode, the arrays do not fit together or to the spaces, or the file exists already or
            cannot be written.
    """
    arrays, _ = _checked(observation_space, action_space, episodes)
    try:
        with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written: {exc.strerror}; choose another file", key="demonstrations") from exc


def read_demonstrations(path: Path) -> Demonstrations:
    """Read a file of demonstrations, which `write_demonstrations` or another program has written.

    Raises:
        ConfigError: If the file is missing, damaged, or its arrays do not fit together. The message has the wrong numbers.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = dict(file)
        if int(arrays["format"]) != FORMAT:
            raise ValueError(f"it has the format {int(arrays['format'])}; this version reads {FORMAT}")
        return _parse(arrays)
    except OSError as exc:
        raise config_error("demonstrations", f"{path} cannot be read: {exc.strerror or exc}") from exc
    except _DAMAGE as exc:
        problem = f"the array {exc} is missing" if isinstance(exc, KeyError) else str(exc)
        raise config_error(
            "demonstrations", f"{path} is not a file of demonstrations: {problem}; record it again with `rl4sys-actor record`"
        ) from exc


def demonstrations_of(observation_space: object, action_space: object, episodes: Sequence[Demonstration]) -> Demonstrations:
    """Return what `read_demonstrations` would return for a file of these episodes, with the same digest.

    Raises:
        ConfigError: If there is no episode, or the arrays do not fit together or to the spaces.
    """
    return _checked(observation_space, action_space, episodes)[1]


def _checked(
    observation_space: object, action_space: object, episodes: Sequence[Demonstration]
) -> tuple[dict[str, NDArray[Any]], Demonstrations]:
    """Return the arrays for a file of these episodes, and the `Demonstrations` that `read_demonstrations` would return."""
    try:
        arrays = _arrays(observation_space_from(observation_space), space_from(action_space), episodes)
        return arrays, _parse(arrays)
    except ValueError as exc:
        raise config_error("demonstrations", f"the episodes cannot be used: {exc}") from exc


def _arrays(
    observation_space: ObservationSpace, action_space: Space, episodes: Sequence[Demonstration]
) -> dict[str, NDArray[Any]]:
    if not episodes:
        raise ConfigError("there is no episode to write", key="demonstrations")
    names = leaves_of(observation_space).names
    arrays: dict[str, NDArray[Any]] = {
        "format": np.asarray(FORMAT),
        "observation_space": np.asarray(json.dumps(space_to_json(observation_space))),
        "action_space": np.asarray(json.dumps(space_to_json(action_space))),
        "actions": np.concatenate([episode.actions for episode in episodes]),
        "lengths": np.array([len(episode.actions) for episode in episodes], np.int64),
        "terminated": np.array([episode.terminated for episode in episodes], np.bool_),
    }
    columns = zip(*[episode.observations for episode in episodes], strict=True)
    arrays |= {name: np.concatenate(parts) for name, parts in zip(names, columns, strict=True)}
    rewards = [episode.rewards for episode in episodes if episode.rewards is not None]
    if len(rewards) == len(episodes):
        arrays["rewards"] = np.concatenate(rewards)
    if any(episode.masks is not None for episode in episodes):
        free = action_layout(action_space).logits
        arrays["masks"] = np.concatenate(
            [np.ones((len(e.actions) + 1, free), np.bool_) if e.masks is None else np.asarray(e.masks) for e in episodes]
        )
    return arrays


def _parse(arrays: dict[str, NDArray[Any]]) -> Demonstrations:
    spaces = {name: json.loads(str(arrays[name])) for name in ("observation_space", "action_space")}
    observation_space, action_space = observation_space_from(spaces["observation_space"]), space_from(spaces["action_space"])
    leaves = leaves_of(observation_space)
    lengths, terminated, actions = arrays["lengths"].astype(np.int64), arrays["terminated"], arrays["actions"]
    steps, episodes = int(lengths.sum()), len(lengths)
    if not episodes or lengths.min() < 1:
        raise ValueError(f"it has {episodes} episodes; expected at least one, and at least one step in each")
    rewards, masks = arrays.get("rewards"), arrays.get("masks")
    expected = {"actions": steps, "terminated": episodes, **dict.fromkeys(leaves.names, steps + episodes)}
    if rewards is not None:
        expected["rewards"] = steps
    if masks is not None:
        expected["masks"] = steps + episodes
    for name, rows in expected.items():
        if len(arrays[name]) != rows:
            raise ValueError(f"{name} has {len(arrays[name])} rows; {episodes} episodes of {steps} steps need {rows}")
    for name in {"lengths", "terminated", "rewards"} & arrays.keys():
        column = arrays[name]
        if column.ndim != 1 or column.dtype.kind not in "biuf":
            raise ValueError(f"{name} has rows {column.dtype}{list(column.shape[1:])}; expected one number in each")
    _check_columns([arrays[name] for name in leaves.names], leaves.spaces, leaves.names)
    _check_columns([actions], leaves_of(action_space).spaces, ("actions",))
    if masks is not None:
        _check_masks(masks, action_space)
    given = np.zeros(steps, np.float32) if rewards is None else rewards.astype(np.float32)
    segments: list[Segment] = []
    start = 0
    for number, length in enumerate(lengths.tolist()):
        end, first = start + length, start + number
        ended = bool(terminated[number])
        part = slice(first, first + length + (not ended))
        observations = leaves.unflatten([np.ascontiguousarray(arrays[name][part]) for name in leaves.names])
        segments.append(
            Segment(
                observations=observations,
                actions=actions[start:end],
                rewards=given[start:end],
                log_probs=np.zeros(length, np.float32),
                versions=np.zeros(length, np.uint64),
                masks=None if masks is None else _allowing(masks[part], actions[start:end], action_space, number),
                generation=0,
                episode_id=number,
                segment_index=0,
                terminated=ended,
                truncated=not ended,
                episode_return=float(given[start:end].sum(dtype=np.float64)),
                episode_length=length,
            )
        )
        start = end
    digest = xxhash.xxh3_64()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
    return Demonstrations(observation_space, action_space, tuple(segments), rewards is not None, digest.intdigest())


def _check_masks(masks: NDArray[Any], action_space: Space) -> None:
    options = action_layout(action_space).logits
    if masks.dtype != np.bool_ or masks.shape[1:] != (options,) or not options:
        wanted = f"{action_space} needs bool[{options}]" if options else f"{action_space} has no masks"
        raise ValueError(f"masks has rows {masks.dtype}{list(masks.shape[1:])}; {wanted}")


def _allowing(masks: NDArray[np.bool_], actions: NDArray[Any], action_space: Space, number: int) -> NDArray[np.bool_]:
    """Return the masks of one episode, after a check that they allow its actions."""
    if isinstance(action_space, DiscreteSpace):
        chosen = actions.astype(np.int64) - action_space.start
        known = (chosen >= 0) & (chosen < action_space.n)  # the learner refuses other actions
        allowed = masks[np.arange(len(chosen)), np.where(known, chosen, 0)] | ~known
        if not allowed.all():
            step = int(np.argmin(allowed))
            raise ValueError(f"the mask of step {step} of episode {number} forbids its action {actions[step]}")
    return np.ascontiguousarray(masks)


def _check_columns(columns: Sequence[NDArray[Any]], spaces: Sequence[LeafSpace], names: Sequence[str]) -> None:
    """Check that columns fit their spaces: the shapes, the kinds of dtypes, and room for all integers."""
    for column, space, name in zip(columns, spaces, names, strict=True):
        kind = np.dtype(space.dtype).kind
        if column.shape[1:] != space.shape or (column.dtype.kind in "iu") != (kind in "iu"):
            raise ValueError(
                f"{name} has rows {column.dtype}{list(column.shape[1:])}; {space} needs {space.dtype}{list(space.shape)}"
            )
        if kind in "iu" and column.size:
            low, high, limits = int(column.min()), int(column.max()), np.iinfo(space.dtype)
            if low < limits.min or high > limits.max:
                raise ValueError(f"{name} has numbers from {low} to {high}; {space} needs {limits.min} to {limits.max}")
