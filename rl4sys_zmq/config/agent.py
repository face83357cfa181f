"""The configuration of one actor process."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Self

from rl4sys_zmq.config.addresses import connect_uri, dialled
from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.config.options import (
    OBSERVATION_SPACE,
    SPACE,
    as_json,
    check_fields,
    compression,
    flag,
    integer,
    log_level,
    mapping,
    modules,
    name,
    number,
    one_of,
    option,
    optional,
    parameters,
    parse_options,
    path,
    with_source,
)
from rl4sys_zmq.config.rl4sys import IGNORED_BY_ACTORS, algorithm_name, expand_sections, lift_actor_keys
from rl4sys_zmq.config.spaces import FLAT_KEYS, resolve_spaces
from rl4sys_zmq.config.weights import WeightsConfig, weights_options
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.images import NEEDS_PILLOW, ImageCodec, has_pillow, image_size
from rl4sys_zmq.values import ObservationSpace, Space

__all__ = ["AgentConfig"]

log = logging.getLogger(__name__)

_PLANNED = ("guard_rails",)
"""Options that the documentation announces and this version does not have."""

_FLAT = tuple(key for key in FLAT_KEYS if key != "act_limit")


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """The configuration of one actor process.

    It also accepts ``input_size``, ``act_dim`` and ``continuous``, here or in `algorithm_parameters`. They define flat spaces.

    Raises:
        ConfigError: If an option refuses its value, or two values contradict each other.
    """

    client_id: str = option(name, required=True)
    """The client: the name of the policy and its learner."""
    actor_id: str | None = option(optional(name), None)
    """The name of this actor. Default: a random UUID."""
    algorithm_name: str | None = option(optional(algorithm_name), None, names=("algorithm",))
    """The algorithm, in capitals. Default: the learner's configuration names it."""
    algorithm_parameters: Mapping[str, object] = option(parameters, {})
    """The algorithm's parameters, under any of their names. Empty: the learner's configuration sets them. A ``seed`` among them
    is the seed of the learner."""
    type: str | None = option(optional(one_of("onpolicy", "offpolicy")), None, names=("algorithm_type",))
    """The expected type of the algorithm. A different type is logged as a warning. Default: no expectation."""
    debug: bool = option(flag, False)
    """True: the same as ``log_level: DEBUG``."""
    log_level: str | None = option(optional(log_level), None)
    """The level of this package's logger: DEBUG, INFO, WARNING, ERROR or CRITICAL. Default: the program's logging decides."""
    plugins: tuple[str, ...] = option(modules, ())
    """Modules to import before the actor joins, for example to register policies."""
    observation_space: ObservationSpace | None = option(OBSERVATION_SPACE, None)
    """The observation space. Default: the learner's configuration sets it."""
    action_space: Space | None = option(SPACE, None)
    """The action space. Default: the learner's configuration sets it."""
    act_limit: float | None = option(optional(number(0, 1e30, above=True)), None)
    """The bound of continuous actions. It has no effect with ``act_dim`` if ``continuous`` is not set."""
    train_server_address: str = option(dialled, "localhost:50051", names=("server_address",))
    """The learner's address: host:port or a URI. The property `address` is always a URI."""
    connect_timeout_s: float = option(number(0), 10.0, names=("timeout", "connection_timeout_seconds"))
    """Longest time to wait for the learner at the start, in seconds."""
    send_frequency: int = option(integer(1, 8192), 1)
    """Number of finished segments to collect in one message."""
    linger_ms: int = option(integer(0, 3_600_000), 200)
    """Longest time that a finished segment waits for others to share its message, in milliseconds."""
    compression: str = option(compression, "off", names=("enable_compression",))
    """``zstd``, or true: compress trajectories without loss. It needs some CPU time of the actor and helps on slow networks."""
    image_codec: str = option(one_of("off", "png", "jpeg"), "off")
    """Coding of image observations, used if those of a segment take 64 KiB or more: ``png`` is lossless, ``jpeg`` is smaller and
    changes the images slightly. For uint8 boxes whose shape ends in ``[height, width]`` or ``[height, width, 1 or 3]``, with at
    least 8 pixels a side. Needs the extra ``images`` on both sides."""
    jpeg_quality: int = option(integer(1, 100), 90)
    """Quality of ``jpeg`` images."""
    max_traj_length: int = option(integer(1), 10_000)
    """Number of steps after which a trajectory is cut. Each part counts as a trajectory."""
    rollout_length: int | None = option(optional(integer(1, 1 << 20)), None)
    """Largest number of steps of a segment. Default: the algorithm's choice."""
    overflow: str = option(one_of("drop_oldest", "wait"), "drop_oldest")
    """Behavior when the outbox is full. ``drop_oldest``: drop the oldest segment and count it, for embedded hosts. ``wait``:
    block the host, for simulators."""
    wait_timeout_s: float = option(number(0), 60.0)
    """Longest time that ``overflow: wait`` blocks, in seconds."""
    queue_items: int = option(integer(1, 1 << 24), 1024)
    """Largest number of segments in the outbox."""
    queue_bytes: int = option(integer(1), 256 * 2**20)
    """Largest number of bytes in the outbox."""
    swap: str = option(one_of("step", "episode"), "step")
    """Time at which new weights come into use: at the next step or at the next episode."""
    seed: int | None = option(optional(integer(0, 2**63 - 1)), None)
    """The seed of this actor's random streams, one for each host thread. Default: from the operating system."""
    explore: bool = option(flag, True)
    """False: act by the mode of the distribution and send no data, for evaluation."""
    on_bad_input: str = option(one_of("raise", "drop"), "raise")
    """Behavior on invalid input from the host. ``raise``: raise an exception. ``drop``: count the input and return the last or
    the baseline action."""
    reward_timeout_s: float = option(number(0), 60.0)
    """Longest time that an automatic cut waits for late rewards, in seconds."""
    keys: Path | None = option(optional(path), None)
    """The actor's key file, created by ``rl4sys-learner keys DIR --user NAME``. Default: no encryption, for a learner without
    keys."""
    spool: Path | None = option(optional(path), None)
    """A folder that stores finished segments until the learner has them, so that they survive the end of this process. Default:
    in memory."""
    spool_max_bytes: int = option(integer(1 << 16), 1 << 30)
    """Largest number of bytes of segments in the spool. Beyond it, the oldest segments that were not sent are dropped and
    counted."""
    spool_max_age_s: float | None = option(optional(number(0, above=True)), None)
    """Age in seconds from which segments in the spool are dropped and counted, unless they were sent. Default: no limit."""
    policy_cache: Path | None = option(optional(path), None)
    """A file that keeps the newest policy, for a start without a learner. Default: ``policy.cache`` in `spool`, if there is a
    spool."""
    policy_max_age_s: float | None = option(optional(number(0, above=True)), None)
    """Time without a message from the learner after which the policy is stale, in seconds. Default: never."""
    on_stale: str = option(one_of("keep", "baseline", "raise"), "keep")
    """Behavior with a stale policy. ``keep``: continue to act by it. ``baseline``: act by the baseline and do not store its
    actions. ``raise``: raise `PolicyStale`."""
    sidecar: bool = option(flag, False)
    """True: keep the sockets in a separate process, so that a crash of libzmq does not end this one."""
    inference: str = option(one_of("local", "remote", "auto"), "local")
    """Place where actions are computed. ``local``: in this process, by a copy of the policy. ``remote``: by the learner, with a
    request at each step and no policy in this process. ``auto``: by the learner if it replies in time, else by the copy."""
    inference_timeout_s: float = option(number(0, above=True), 0.1)
    """Longest time to wait for the learner's action, in seconds."""
    weights: WeightsConfig = option(weights_options, WeightsConfig())
    """Encoding of weights. The learner sets what is not set here."""
    input_size: InitVar[int | None] = None
    """Size of a float32 Box as the observation space."""
    act_dim: InitVar[int | None] = None
    """Number of actions of a Discrete space, or the size of a Box if `continuous` is true."""
    continuous: InitVar[bool | None] = None
    """True: the action space is a Box, bounded by `act_limit`."""

    def __post_init__(self, input_size: int | None, act_dim: int | None, continuous: bool | None) -> None:
        check_fields(self)
        flat = {"input_size": input_size, "act_dim": act_dim, "continuous": continuous, "act_limit": self.act_limit}
        resolve_spaces(self, flat)
        if self.sidecar and self.address.startswith("inproc:"):
            raise ConfigError("sidecar: another process can't reach an inproc address; use ipc or tcp", key="sidecar")
        if self.sidecar and self.inference != "local":
            raise ConfigError("inference: a sidecar supports only inference: local; change one of them", key="inference")
        if self.inference == "remote" and self.policy_cache is not None:
            raise ConfigError("policy_cache: inference: remote has no policy to store; remove one of them", key="policy_cache")
        if self.images is not None and not has_pillow():
            raise ConfigError(f"image_codec: {NEEDS_PILLOW}", key="image_codec")
        if self.observation_space is not None:
            self.check_images(self.observation_space)

    @property
    def images(self) -> ImageCodec | None:
        """The image codec, or None if images are not coded."""
        return ImageCodec(self.image_codec, self.jpeg_quality) if self.image_codec != "off" else None

    def check_images(self, observation_space: ObservationSpace) -> None:
        """Check that the observations are images that `image_codec` can code.

        The agent calls this again when it joins, because the space may come from the learner.

        Raises:
            ConfigError: If they are not images.
        """
        if self.images is None:
            return
        shape = observation_space.shape
        if observation_space.dtype != "|u1" or shape is None or image_size(shape) is None:
            wanted = "a uint8 box that ends in [height, width] or [height, width, 1 or 3], of 8 to 65500 pixels a side"
            found = f"{observation_space!s:.80}" if shape is None else f"{observation_space.dtype} of shape {shape}"
            raise ConfigError(f"image_codec: needs {wanted}, not {found}; or turn it off", key="image_codec")

    @property
    def cache_file(self) -> Path | None:
        """The file of the policy cache, or None if there is none."""
        if self.inference == "remote":
            return None
        return self.policy_cache or (self.spool / "policy.cache" if self.spool is not None else None)

    @property
    def address(self) -> str:
        """The learner's address as a URI."""
        return connect_uri(self.train_server_address)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **overrides: object) -> Self:
        """Read a JSON or YAML file in either of RL4Sys's two forms.

        Args:
            path: The file.
            **overrides: Options, by name or synonym, that override those of the file. ``algorithm_parameters`` are merged into
                the file's, key by key.

        Raises:
            ConfigError: If the file cannot be read, or a key or value is invalid.
        """
        return cls.from_mapping(read_mapping(path), source=str(path), **overrides)

    @classmethod
    def from_mapping(cls, given: Mapping[str, object], *, source: str = "", **overrides: object) -> Self:
        """Read a mapping with the content of a configuration file.

        Args:
            given: The mapping.
            source: The name of the source in error messages.
            **overrides: As for `load`.

        Raises:
            ConfigError: If a key or value is invalid.
        """
        with with_source(source):
            values = _canonical(given)
        over = _canonical(overrides)
        with with_source(source):
            parameters = {**_parameters(values), **_parameters(over)}
            return cls(**parse_options(cls, {**values, **over, "algorithm_parameters": parameters}, extra=_FLAT))  # type: ignore[arg-type]

    def to_json(self) -> dict[str, object]:
        """Return the configuration as JSON values that `from_mapping` can read."""
        return as_json(self)


def _canonical(given: Mapping[str, object]) -> dict[str, object]:
    """Expand sections, replace synonyms, check each value, and log ignored keys. Required keys may be missing here."""
    for key in given:
        if key in _PLANNED:
            raise ConfigError(f"{key}: this version does not have this option yet; leave it out", key=key)
    for key in given.keys() & IGNORED_BY_ACTORS.keys():
        log.warning("%s has no meaning here and is ignored: %s", key, IGNORED_BY_ACTORS[key])
    kept = {key: value for key, value in given.items() if key not in IGNORED_BY_ACTORS}
    return parse_options(AgentConfig, lift_actor_keys(expand_sections(kept)), extra=_FLAT, partial=True)


def _parameters(values: Mapping[str, object]) -> dict[str, object]:
    return mapping(values.get("algorithm_parameters", {}))
