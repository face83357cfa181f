"""The configuration of one actor process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rl4sys_zmq.config.addresses import RelayAddress, check_relay_keys, connect_uri, dialled, relay_addresses
from rl4sys_zmq.config.options import (
    PARAMETER_HINT,
    checked_arguments,
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
    parse_options,
    path,
    with_source,
)
from rl4sys_zmq.config.rl4sys import (
    IGNORED_BY_ACTORS,
    default_client_id,
    expand_sections,
    lift_actor_keys,
)
from rl4sys_zmq.config.section import PolicyOptions, ProcessConfig, WeightsConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.images import NEEDS_PILLOW, ImageFormat, has_pillow, image_size
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.values import ObservationSpace

log = get_logger(__name__)

_PLANNED = ("guard_rails",)
"""Options that the pages announce but that this version refuses."""


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class AgentConfig(PolicyOptions, ProcessConfig):
    """The configuration of one actor process, which acts with a policy and sends its experience to a learner.

    Raises:
        ConfigError: If the value of an option is invalid, or two values contradict each other.
    """

    client_id: str = option(name, required=True)
    """The name of the client. A client is one policy and the learner thread that trains the policy. Default for a file
    with sections (RL4Sys's second form): the name of the file without its suffix."""
    actor_id: str | None = option(optional(name), None)
    """The name of this actor. Default: host, process and a random number, such as ``cache-7.4121-9f3c01ab``."""
    debug: bool = option(flag, False)
    """True has the same effect as ``log_level: DEBUG``."""
    log_level: str | None = option(optional(log_level), None)
    """The level of this package's logger: DEBUG, INFO, WARNING, ERROR or CRITICAL. Default: the program's logging decides."""
    plugins: tuple[str, ...] = option(modules, ())
    """Python modules to import before the actor joins the learner, for example to register policies."""
    train_server_address: str = option(dialled, "localhost:50051", names=("server_address",))
    """The learner's address, as host:port or as a URI. The property `address` converts it to a URI."""
    connect_timeout_s: float = option(number(0), 10.0, names=("timeout", "connection_timeout_seconds"))
    """Longest time to wait for the learner at the start, in seconds. An actor that can act without a policy (by its baseline,
    or with ``fallback: random``) then starts without the learner. Any other actor waits on while the learner answers that it
    starts this client, up to 10 minutes."""
    fallback: str = option(one_of("raise", "random"), "raise")
    """Behavior of an actor that starts without its learner, and has neither a cached policy nor a baseline. ``raise``: raise
    `LearnerUnavailable`. ``random``: take random actions of the action space until the first policy arrives. ``random`` needs
    both spaces, and ``overflow: drop_oldest``."""
    send_frequency: int = option(integer(1, 8192), 1)
    """Number of finished segments to send in one message."""
    linger_ms: int = option(integer(0, 3_600_000), 200)
    """Longest time, in milliseconds, that a finished segment waits for further segments, to be sent in one message with them."""
    compression: str = option(compression, "off", names=("enable_compression",))
    """``zstd``, or true: compress trajectories without loss. Compression uses CPU time of the actor and helps on slow
    networks."""
    image_codec: str = option(one_of("off", "png", "jpeg"), "off")
    """Encoding of image observations, for segments whose observations take 64 KiB or more. ``png`` is lossless. ``jpeg`` is
    smaller and changes the images slightly. The observation space must be a uint8 box whose shape ends in ``[height, width]``
    or ``[height, width, 1 or 3]``, with at least 8 pixels a side. Actor and learner need the extra ``images``."""
    jpeg_quality: int = option(integer(1, 100), 90)
    """Quality of ``jpeg`` images, from 1 (smallest) to 100 (best)."""
    max_traj_length: int = option(integer(1), 10_000)
    """Number of steps after which a trajectory is split. Each part counts as a trajectory, not as an episode."""
    rollout_length: int | None = option(optional(integer(1, 1 << 20)), None)
    """Largest number of steps of a segment, the unit in which steps are sent. Default: the algorithm's choice."""
    overflow: str = option(one_of("drop_oldest", "wait"), "drop_oldest")
    """Behavior when the outbox, the queue of finished segments, is full. ``drop_oldest``: drop the oldest segment and count it,
    for real systems. ``wait``: block the host program until there is room, for simulators."""
    wait_timeout_s: float = option(number(0), 60.0)
    """Longest time that ``overflow: wait`` blocks, in seconds."""
    queue_items: int = option(integer(1, 1 << 24), 1024)
    """Largest number of segments in the outbox, the queue of finished segments."""
    queue_bytes: int = option(integer(1), 256 * 2**20)
    """Largest number of bytes in the outbox, the queue of finished segments."""
    swap: str = option(one_of("step", "episode"), "step")
    """Time at which a trajectory switches to newly received weights: the next step or the next episode. Remote inference always
    uses the newest version."""
    seed: int | None = option(optional(integer(0, 2**63 - 1)), None)
    """The seed from which each thread of the host gets its own random number generator. Default: from the operating system."""
    explore: bool = option(flag, True)
    """False: choose the most probable action, for evaluation. No step is trained on. True: sample actions."""
    report_returns: bool = option(flag, True)
    """With ``explore: false``: send the return and the length of each finished episode to the learner, which counts them as
    evaluation. False: send nothing, so that the right to read the weights is enough. No effect with ``explore: true``."""
    on_bad_input: str = option(one_of("raise", "drop"), "raise")
    """Behavior on invalid input from the host. ``raise``: raise an exception. ``drop``: count the input. A request then returns
    the last action, or an idle action (the first allowed one, or the middle of the range) if there is none. An invalid reward
    is ignored."""
    reward_timeout_s: float = option(number(0), 60.0)
    """Longest time that a segment which ended without the host's request waits for rewards that are still missing, in seconds."""
    report_system: bool = option(flag, False)
    """True: send the processor time, memory, disk and network of this process and its machine to the learner every 10 s, for
    its status and its log. It needs psutil."""
    keys: Path | None = option(optional(path), None)
    """The actor's key file, created by ``rl4sys-learner keys DIR --user NAME``. Default: no encryption. The learner must then
    run without keys too."""
    spool: Path | None = option(optional(path), None)
    """The folder of the spool, the queue on disk of finished segments. A segment stays there until the learner has acknowledged
    it, so that it survives the end of this process. Default: the queue is in memory."""
    spool_max_bytes: int = option(integer(1 << 16), 1 << 30)
    """Largest number of bytes of segments in the spool. Above this limit, the oldest segments that were not sent are dropped
    and counted."""
    spool_max_age_s: float | None = option(optional(number(0, above=True)), None)
    """Age, in seconds, at which unsent segments in the spool are dropped and counted. Default: no limit."""
    policy_cache: Path | None = option(optional(path), None)
    """A file in which the actor keeps the newest policy, so that it can start without a learner. Default: ``policy.cache`` in
    `spool`, or no file without a spool."""
    policy_max_age_s: float | None = option(optional(number(0, above=True)), None)
    """Time without a message from the learner after which `on_stale` applies, in seconds. Default: no limit."""
    on_stale: str = option(one_of("keep", "baseline", "raise"), "keep")
    """Behavior with a stale policy. ``keep``: continue to use the policy. ``baseline``: use the baseline, the host's own
    fallback function, and do not record its actions. ``raise``: raise `PolicyStale`."""
    sidecar: bool = option(flag, False)
    """True: keep the sockets in a separate process, so that a crash of libzmq does not end the host's process."""
    native: str | None = option(optional(one_of("auto", "always", "never")), None)
    """The form of the actor. ``auto``: compiled code if this installation has it and the other options permit it, else pure
    Python. ``always``: raise `ConfigError` in place of the pure form. ``never``: pure Python. ``form`` in `RL4SysAgent.stats`
    names the form, with the reason. Default: the environment variable ``RL4SYS_NATIVE``, else ``auto``. In the variable,
    ``always`` raises only if the compiled code cannot be loaded."""
    inference: str = option(one_of("local", "remote", "auto"), "local")
    """Place where actions are computed. ``local``: in this process, by a copy of the policy. ``remote``: by the learner, with a
    request at each step and no policy in this process. ``auto``: by the learner if it replies in time, else by the copy."""
    inference_timeout_s: float = option(number(0, above=True), 0.1)
    """Longest time to wait for the learner's action, in seconds."""
    weights: WeightsConfig = option(WeightsConfig.read, WeightsConfig())
    """Encoding of the weights that the learner sends. An option in the learner's entry for the client overrides it; the
    learner's `weights` set the options that are set in neither."""
    relays: tuple[RelayAddress, ...] | None = option(optional(relay_addresses), None)
    """The relays (processes that pass weights on) from which this actor takes the weights, nearest first, each an address or a
    mapping with ``address`` and ``key``. If none answers, the actor takes them from the learner. An empty list: use no relay.
    Default: the relays that the learner names."""

    def __post_init__(self, input_size: int | None, act_dim: int | None, continuous: bool | None) -> None:
        super().__post_init__(input_size, act_dim, continuous)
        if self.sidecar and self.address.startswith("inproc:"):
            raise ConfigError("sidecar: another process can't reach an inproc address; use ipc or tcp", key="sidecar")
        if self.sidecar and self.inference != "local":
            raise ConfigError("inference: a sidecar supports only inference: local; change one of them", key="inference")
        if self.inference == "remote" and self.policy_cache is not None:
            raise ConfigError("policy_cache: inference: remote has no policy to store; remove one of them", key="policy_cache")
        if self.fallback == "random" and (self.observation_space is None or self.action_space is None):
            raise ConfigError(
                "fallback: random actions need both spaces; set observation_space and action_space, or input_size and act_dim",
                key="fallback",
            )
        if self.fallback == "random" and self.overflow == "wait":
            raise ConfigError("fallback: an actor with overflow: wait never acts without its learner; remove one", key="fallback")
        if self.images is not None and not has_pillow():
            raise ConfigError(f"image_codec: {NEEDS_PILLOW}", key="image_codec")
        if self.observation_space is not None:
            self.check_images(self.observation_space)
        if self.keys is not None:
            check_relay_keys(self.relays or ())

    @property
    def images(self) -> ImageFormat | None:
        """The codec for image observations, or None if images are sent uncompressed."""
        return ImageFormat(self.image_codec, self.jpeg_quality) if self.image_codec != "off" else None

    def check_images(self, observation_space: ObservationSpace) -> None:
        """Check that observations of this space, which may come from the learner, are images that `image_codec` can encode.

        Raises:
            ConfigError: If they are not.
        """
        if self.images is None:
            return
        shape = observation_space.shape
        if observation_space.dtype != "|u1" or shape is None or image_size(shape) is None:
            wanted = "a uint8 box that ends in [height, width] or [height, width, 1 or 3], of 8 to 65500 pixels a side"
            actual = f"{observation_space!s:.80}" if shape is None else f"{observation_space.dtype} of shape {shape}"
            raise ConfigError(f"image_codec: needs {wanted}, not {actual}; or turn it off", key="image_codec")

    @property
    def submits(self) -> bool:
        """True if the actor sends segments, either for training or with the returns of an evaluation."""
        return self.explore or self.report_returns

    @property
    def cache_file(self) -> Path | None:
        """The path of the policy cache, the file with the newest policy; None without one."""
        if self.inference == "remote":
            return None
        return self.policy_cache or (self.spool / "policy.cache" if self.spool is not None else None)

    @property
    def address(self) -> str:
        """The learner's address as a URI."""
        return connect_uri(self.train_server_address)

    @classmethod
    def from_mapping(cls, given: Mapping[str, object], *, source: str = "", **overrides: object) -> Self:
        """Create a configuration from a mapping with the keys of a configuration file (`ProcessConfig.from_mapping`)."""
        with with_source(source):
            values = _canonical(given)
        over = _canonical(overrides)
        client_id = default_client_id({**given, **over}, source)
        if client_id is not None:
            log.warning("%s has no client_id: the client is %r, after the file's name", source or "the configuration", client_id)
            values["client_id"] = client_id
        with with_source(source):
            parameters = {**_parameters(values), **_parameters(over)}
            return cls(**parse_options(cls, {**values, **over, "algorithm_parameters": parameters}, extra=cls.FLAT))  # type: ignore[arg-type]


def _canonical(given: Mapping[str, object]) -> dict[str, object]:
    """Convert the keys of a file or of arguments to option names, and check each value. Required keys may be missing."""
    for key in given:
        if key in _PLANNED:
            raise ConfigError(f"{key}: this version does not have this option yet; leave it out", key=key)
    for key in given.keys() & IGNORED_BY_ACTORS.keys():
        log.warning("%s has no meaning here and is ignored: %s", key, IGNORED_BY_ACTORS[key])
    kept = {key: value for key, value in given.items() if key not in IGNORED_BY_ACTORS}
    return parse_options(
        AgentConfig, lift_actor_keys(expand_sections(kept)), extra=AgentConfig.FLAT, partial=True, hint=PARAMETER_HINT
    )


def _parameters(values: Mapping[str, object]) -> dict[str, object]:
    return mapping(values.get("algorithm_parameters", {}))
