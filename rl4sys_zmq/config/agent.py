"""What one actor process needs to know."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any, Self

from rl4sys_zmq.config.addresses import dial_uri, dialled
from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.config.options import (
    SPACE,
    as_json,
    check_fields,
    flag,
    gather,
    integer,
    located,
    mapping,
    modules,
    name,
    number,
    one_of,
    option,
    optional,
    parameters,
    path,
)
from rl4sys_zmq.config.rl4sys import algorithm_name, expand_sections
from rl4sys_zmq.config.spaces import FLAT_KEYS, resolve_spaces
from rl4sys_zmq.config.weights import WeightsConfig, weights_options
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.images import NEEDS_PILLOW, ImageCodec, has_pillow, image_size
from rl4sys_zmq.values import Space

__all__ = ["AgentConfig"]

_LATER = ("guard_rails",)
"""Options that the documents name and this version does not have."""

_FLAT = tuple(key for key in FLAT_KEYS if key != "act_limit")


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The configuration of one actor process.

    Beside the fields, ``input_size``, ``act_dim`` and ``continuous`` are accepted, here or among the algorithm's
    parameters: they make flat spaces.

    Raises:
        ConfigError: for a value that an option refuses, or two that contradict each other.
    """

    client_id: str = option(name, required=True)
    """The policy and its learner."""
    actor_id: str | None = option(optional(name), None)
    """This process; None: the agent makes a random UUID."""
    algorithm_name: str | None = option(optional(algorithm_name), None, names=("algorithm",))
    """The algorithm, in capitals; None: the learner's file names it."""
    algorithm_parameters: Mapping[str, object] = option(parameters, {})
    """Its parameters, by any of their names; empty: the learner's file says them. ``seed`` among them is the learner's."""
    type: str | None = option(optional(one_of("onpolicy", "offpolicy")), None, names=("algorithm_type",))
    """What the user takes the algorithm for; None: the algorithm's own."""
    plugins: tuple[str, ...] = option(modules, ())
    """Modules that are imported before the learner is asked to join: they register policies."""
    observation_space: Space | None = option(SPACE, None)
    """None: the learner's file says it."""
    action_space: Space | None = option(SPACE, None)
    """None: the learner's file says it."""
    act_limit: float | None = option(optional(number(0, 1e30, above=True)), None)
    """The bound of continuous actions; with ``act_dim`` and without ``continuous`` it changes nothing."""
    train_server_address: str = option(dialled, "localhost:50051", names=("server_address",))
    """The learner's address as the user wrote it: host:port or a URI. `address` is always a URI."""
    connect_timeout_s: float = option(number(0), 10.0, names=("timeout",))
    """How long to wait for the learner at start."""
    send_frequency: int = option(integer(1, 8192), 1)
    """Finished segments per message."""
    linger_ms: int = option(integer(0, 3_600_000), 200)
    """The longest that a finished segment waits for others to share a message."""
    compression: str = option(one_of("off", "zstd"), "off")
    """``zstd``: trajectories travel in fewer bytes, exactly, for some of the actor's CPU; for slow links."""
    image_codec: str = option(one_of("off", "png", "jpeg"), "off")
    """How observations that are images travel, where a segment's take 64 KiB or more: ``png`` is exact, ``jpeg`` is shorter and
    changes them a little. For uint8 boxes that end in ``[height, width]`` or ``[height, width, 1 or 3]``, of 8 pixels and more;
    needs the extra ``images`` on both sides."""
    jpeg_quality: int = option(integer(1, 100), 90)
    """Of ``jpeg``."""
    max_traj_length: int = option(integer(1), 10_000)
    """A longer trajectory is cut into parts of so many steps, which count as trajectories."""
    rollout_length: int | None = option(optional(integer(1, 1 << 20)), None)
    """At most how many steps a segment has; None: the algorithm's choice."""
    overflow: str = option(one_of("drop_oldest", "wait"), "drop_oldest")
    """What a full outbox does: drop and count (an embedded host), or make the host wait (a simulator)."""
    wait_timeout_s: float = option(number(0), 60.0)
    """How long ``wait`` waits."""
    queue_items: int = option(integer(1, 1 << 24), 1024)
    """How many segments the outbox holds."""
    queue_bytes: int = option(integer(1), 256 * 2**20)
    """How many bytes the outbox holds."""
    swap: str = option(one_of("step", "episode"), "step")
    """When new weights come into use: before the next step, or the next episode."""
    seed: int | None = option(optional(integer(0, 2**63 - 1)), None)
    """The seed of this actor's own random streams, one for each host thread; None: from the operating system."""
    explore: bool = option(flag, True)
    """False: act by the mode of the distribution, for evaluation; nothing is submitted."""
    on_bad_input: str = option(one_of("raise", "drop"), "raise")
    """What bad input from the host does: raise, or be counted and answered with the last or the baseline action."""
    reward_timeout_s: float = option(number(0), 60.0)
    """How long an automatic cut waits for late rewards."""
    keys: Path | None = option(optional(path), None)
    """The actor's key file (``rl4sys-learner keys DIR --user NAME`` makes it); None: no encryption, for a learner without
    keys."""
    spool: Path | None = option(optional(path), None)
    """A folder in which finished segments wait for the learner, whatever happens to this process; None: in memory."""
    spool_max_bytes: int = option(integer(1 << 16), 1 << 30)
    """How many bytes of segments the spool holds; beyond them the oldest that were not sent yet are dropped, and counted."""
    spool_max_age_s: float | None = option(optional(number(0, above=True)), None)
    """Segments in the spool that are older are dropped, and counted, unless they were sent; None: whatever their age."""
    policy_cache: Path | None = option(optional(path), None)
    """A file that keeps the newest policy, to start with when no learner answers; None: ``policy.cache`` in `spool`, if any."""
    policy_max_age_s: float | None = option(optional(number(0, above=True)), None)
    """For how long the learner may be unheard before the policy counts as stale; None: for ever."""
    on_stale: str = option(one_of("keep", "baseline", "raise"), "keep")
    """What a stale policy means: act by it all the same, by the baseline (which is not stored), or raise `PolicyStale`."""
    sidecar: bool = option(flag, False)
    """True: the sockets live in a process of their own, so that nothing in libzmq can end this one."""
    inference: str = option(one_of("local", "remote", "auto"), "local")
    """Where actions are chosen: ``local``, by this process's copy of the policy; ``remote``, by the learner, which is asked
    at each step, so that no policy is needed here; ``auto``, by the learner if it answers in time, else by the copy."""
    inference_timeout_s: float = option(number(0, above=True), 0.1)
    """How long a request may wait for the learner's action."""
    weights: WeightsConfig = option(weights_options, WeightsConfig())
    """How weights travel; what is not said here, the learner says."""
    input_size: InitVar[int | None] = None
    """Makes a Box of that many float32."""
    act_dim: InitVar[int | None] = None
    """Makes a Discrete of that many actions, or a Box of that size if `continuous`."""
    continuous: InitVar[bool | None] = None
    """True: actions are a Box, bounded by `act_limit`."""

    def __post_init__(self, input_size: int | None, act_dim: int | None, continuous: bool | None) -> None:
        check_fields(self)
        flat = {"input_size": input_size, "act_dim": act_dim, "continuous": continuous, "act_limit": self.act_limit}
        resolve_spaces(self, flat)
        if self.sidecar and self.address.startswith("inproc:"):
            raise ConfigError("sidecar: another process can't reach an inproc address; use ipc or tcp", key="sidecar")
        if self.sidecar and self.inference != "local":
            raise ConfigError("inference: a host with a sidecar has no sockets of its own; act locally", key="inference")
        if self.inference == "remote" and self.policy_cache is not None:
            raise ConfigError("policy_cache: with inference: remote there is no policy to keep", key="policy_cache")
        if self.images is not None and not has_pillow():
            raise ConfigError(f"image_codec: {NEEDS_PILLOW}", key="image_codec")
        if self.observation_space is not None:
            self.check_images(self.observation_space)

    @property
    def images(self) -> ImageCodec | None:
        """How images are coded, None for not at all."""
        return ImageCodec(self.image_codec, self.jpeg_quality) if self.image_codec != "off" else None

    def check_images(self, observation_space: Space) -> None:
        """Whether `image_codec` suits the observations, of which only the learner may know what they are.

        Raises:
            ConfigError: when they are no images.
        """
        if self.images is None:
            return
        if observation_space.dtype != "|u1" or image_size(observation_space.shape) is None:
            wanted = "a uint8 box that ends in [height, width] or [height, width, 1 or 3], of 8 to 65500 pixels a side"
            found = f"{observation_space.dtype} of {observation_space.shape}"
            raise ConfigError(f"image_codec: needs {wanted}, not {found}; or turn it off", key="image_codec")

    @property
    def cache_file(self) -> Path | None:
        """Where the policy is kept on disk, None for nowhere."""
        if self.inference == "remote":
            return None
        return self.policy_cache or (self.spool / "policy.cache" if self.spool is not None else None)

    @property
    def address(self) -> str:
        """The learner's address as a URI."""
        return dial_uri(self.train_server_address)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **overrides: object) -> Self:
        """Reads a JSON or YAML file in either of RL4Sys's forms.

        Args:
            path: the file.
            **overrides: options by name or synonym that win over the file's; ``algorithm_parameters`` are merged into
                the file's, key by key.

        Raises:
            ConfigError: see the module; in one line, with the file's name.
        """
        return cls.from_mapping(read_mapping(path), source=str(path), **overrides)

    @classmethod
    def from_mapping(cls, given: Mapping[str, object], *, source: str = "", **overrides: object) -> Self:
        """Reads a mapping as it would stand in a file; `source` is named in errors, `overrides` as in `load`.

        Raises:
            ConfigError: see `load`.
        """
        with located(source):
            values = _canonical(given)
        over = _canonical(overrides)
        with located(source):
            parameters = {**_parameters(values), **_parameters(over)}
            return cls(**gather(cls, {**values, **over, "algorithm_parameters": parameters}, extra=_FLAT))  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_mapping` reads back."""
        return as_json(self)


def _canonical(given: Mapping[str, object]) -> dict[str, object]:
    """Sections expanded, synonyms replaced, each value checked; what may be missing is left to the whole."""
    for key in given:
        if key in _LATER:
            raise ConfigError(f"{key}: this version does not have this option yet; leave it out", key=key)
    return gather(AgentConfig, expand_sections(given), extra=_FLAT, partial=True)


def _parameters(values: Mapping[str, object]) -> dict[str, object]:
    return mapping(values.get("algorithm_parameters", {}))
