"""The configuration of one learner process."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, cast
from urllib.parse import urlsplit

from rl4sys_zmq.config.addresses import RelayRule, bind_uri, check_relay_keys, relay_rules
from rl4sys_zmq.config.client import ClientConfig, ResourcesConfig
from rl4sys_zmq.config.options import (
    InvalidValue,
    check_value,
    checked_arguments,
    device_name,
    flag,
    integer,
    mapping,
    modules,
    name,
    number,
    one_of,
    option,
    optional,
    parse_options,
    path,
    text,
    with_source,
)
from rl4sys_zmq.config.relay import LearnerAndRelayOptions
from rl4sys_zmq.config.rl4sys import ACTOR_KEYS, FLAT_KEYS, algorithm_name, algorithm_parameters, translate_global
from rl4sys_zmq.config.section import ConfigSection, ProcessConfig, WeightsConfig
from rl4sys_zmq.errors import ConfigError

_INHERITED = (
    "max_policy_lag",
    "on_lag",
    "pacing_lag",
    "publish_every_updates",
    "max_magnitude",
    "max_reward",
    "device",
    "torch_threads",
    "learners",
    "engine",
    "resources",
)
"""Options of `LearnerConfig` whose value applies if a client's entry does not set one."""


def _clients(value: object) -> dict[str, ClientConfig]:
    entries = mapping(value)
    return {check_value(key, key, name): check_value(key, entry, ClientConfig.read) for key, entry in entries.items()}


def _algorithms(value: object) -> dict[str, dict[str, object]]:
    return {algorithm_name(key): check_value(key, entry, algorithm_parameters) for key, entry in mapping(value).items()}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)


def ray_address(value: object) -> str:
    """Accept the address of a Ray cluster: ``auto``, ``local`` or ``HOST:PORT``."""
    if value in ("auto", "local"):
        return str(value)
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise InvalidValue(
            "'auto', 'local', or the HOST:PORT of the head node; with 'auto', this machine must be a node of the cluster "
            "(ray start --address HOST:PORT), as with HOST:PORT, and ray:// is not supported"
        )
    return str(value)


def _web_address(value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"https?://[^\s/?#@]+(?:[/?#][!-~]*)?", value):
        with contextlib.suppress(ValueError):
            if urlsplit(value).hostname and urlsplit(value).port != 0:
                return value
    raise InvalidValue("an http:// or https:// address")


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class AlarmsConfig(ConfigSection):
    """The receivers of messages about alarms, failed clients and lost data: the key ``alarms`` in a learner's configuration.

    Raises:
        ConfigError: If a value is invalid, or neither `webhook` nor `command` is given.
    """

    webhook: str | None = option(optional(_web_address), None)
    """The http or https address to which each message is posted as JSON. Redirects are not followed."""
    command: Path | None = option(optional(path), None)
    """The program that is run for each message. Its standard input has the message as JSON. Its output is dropped."""
    every_s: float = option(number(0), 60.0)
    """Shortest time between two messages of one kind about one client, in seconds. The second has the number of those between
    them (``left_out``)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.webhook is None and self.command is None:
            raise ConfigError("alarms: there is no receiver; set webhook, command, or both", key="webhook")


def _loggers(value: object) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(n, str) and re.fullmatch(r"[\w.-]+(:\w+)?", n) for n in given):
        raise InvalidValue("a list of loggers, such as tensorboard, wandb, mlflow or my_package.module:Class")
    return tuple(dict.fromkeys(given))


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class LearnerConfig(LearnerAndRelayOptions, ProcessConfig):
    """The configuration of one learner process, which receives data from actors, trains policies and publishes their weights.

    Raises:
        ConfigError: If the value of an option is invalid, or if other machines can reach an address although neither `keys` nor
            `insecure` is set.
    """

    _BOUND = ("bind", "pub", "inference")

    inference: str | None = option(optional(lambda value: "auto" if value == "auto" else bind_uri(value)), None)
    """The URI of the inference service, for actors with ``inference: remote`` or ``auto``. ``auto``: the host or transport
    of `bind`, with a free port or name. Default: no inference service."""
    relays: tuple[RelayRule, ...] = option(relay_rules, ())
    """The relays, which pass weights on, so that this learner sends each version once per relay and not once per actor. For
    each: ``address``, ``key`` (its public key), and the actors that take their weights from it: ``networks`` such as
    10.1.0.0/16, or ``actors``, patterns of their names. Default: all actors take the weights from `pub`."""
    run_dir: Path | None = option(optional(path), Path("runs/learner"))
    """The run directory, for all files of the learner. None (null): the learner writes no files."""
    clients: Mapping[str, ClientConfig] = option(_clients, {})
    """Options of individual clients, by client_id. They override what the client's actors send."""
    algorithms: Mapping[str, Mapping[str, object]] = option(_algorithms, {})
    """Default parameters by name of the algorithm. They apply to new clients, for parameters that neither the client's entry
    nor its first actor sets."""
    default_algorithm: str | None = option(optional(algorithm_name), None)
    """The algorithm of a client if neither its entry in `clients` nor its first actor names one."""
    engine: str = option(name, "thread")
    """The engine that runs the training of a client. ``thread``: a thread of this process. ``process``: a separate process.
    ``ray``: an actor of a Ray cluster, on any of its nodes."""
    resources: ResourcesConfig | None = option(optional(ResourcesConfig.read), None)
    """What the engine ``ray`` reserves for the training of each client. Default: one core."""
    ray_address: str | None = option(optional(ray_address), None)
    """The Ray cluster of the engine ``ray``. ``HOST:PORT``: the address of its head node. ``auto``: the cluster of which this
    machine is a node. ``local``: a Ray of the learner's own, on this machine, which ends with it. Default: the environment
    variable ``RAY_ADDRESS``, or else ``local``."""
    plugins: tuple[str, ...] = option(modules, ())
    """Modules to import at the start, before any actor joins, for example to register algorithms and policies."""
    resume: str = option(text, "auto")
    """``auto``: continue the run in the run directory. ``never``: begin a new run. ``accept-loss``: as ``auto``, even if a part
    of the journal is lost; the loss is counted. The path of a checkpoint's folder: return to that checkpoint."""
    journal: str | None = option(optional(one_of("memory", "sqlite")), None)
    """Storage of the journal, the record of accepted segments. Default: ``sqlite`` with a run directory, otherwise ``memory``."""
    fsync: str = option(one_of("normal", "always"), "normal")
    """``normal``: acknowledged segments survive the end of the process. ``always``: they also survive a loss of power."""
    journal_max_bytes: int = option(integer(1 << 20), 4 << 30)
    """Largest number of bytes of segments in the journal, if it is on disk."""
    log_max_bytes: int = option(integer(1 << 20), 256 << 20)
    """Largest number of bytes of ``log.jsonl`` and of its older parts in ``log/``. The newest lines are complete. The older the
    lines, the fewer are kept, and fewer metrics than events, so that the log always covers the whole run."""
    tensorboard_max_bytes: int = option(integer(1 << 20), 64 << 20)
    """Largest number of bytes of the TensorBoard files of each client. Of older points, fewer are kept, as in the log."""
    loggers: tuple[str, ...] = option(_loggers, ("tensorboard",))
    """Where the figures of the training are shown, in addition to ``log.jsonl``. ``tensorboard`` (with a run directory),
    ``wandb``, ``mlflow``, or a class of your own as ``package.module:Class``. An empty list: nowhere."""
    checkpoint_every_s: float = option(number(0, above=True), 10.0)
    """Time between two checkpoints of a client, in seconds."""
    max_policy_lag: int | None = option(optional(integer(0, 1 << 31)), None)
    """Largest number of policy versions by which a segment's oldest step can be behind. Default: the algorithm's own limit
    (PPO: 4, IMPALA and off-policy algorithms: no limit)."""
    on_lag: str = option(one_of("drop", "correct"), "drop")
    """Treatment of segments above `max_policy_lag`. ``drop``: drop and count the segment. ``correct``: train on the segment
    with importance weights."""
    max_magnitude: float = option(number(0, 1e39, above=True), 1e15)
    """Largest valid absolute value in an observation or in an action of the policy, where the space has no bound."""
    max_reward: float = option(number(0, 1e39, above=True), 1e12)
    """Largest valid absolute value of a reward."""
    pacing_lag: int | None = option(optional(integer(0, 1024)), None)
    """Number of training batches that simulators can collect ahead of the training. Default: the algorithm's choice (A3C: 8,
    IMPALA: 1), or else 0 for on-policy algorithms, which learn worse from older data, and 1 for off-policy algorithms."""
    publish_every_updates: int | None = option(optional(integer(1, 1 << 31)), None)
    """Number of training updates between two published versions of the policy. Default: the algorithm's choice."""
    weights: WeightsConfig = option(WeightsConfig.read, WeightsConfig())
    """Encoding of weights, for options that neither a client's entry nor its first actor sets. The defaults are ``fp32`` and
    the level ``auto``."""
    system_every_s: float = option(number(0), 10.0)
    """Time between two records of the processor time, memory, disk and network of the learner and its workers, in seconds. It
    needs psutil. 0: no records."""
    lease_s: float = option(number(0, above=True), 30.0)
    """Time without a message from an actor after which the actor no longer counts towards `max_actors`, in seconds."""
    idle_client_s: float = option(number(0, above=True), 60.0)
    """Time after which a client with no live actors, no data and no checkpoints is removed, in seconds."""
    shutdown_timeout_s: float = option(number(0), 1.5)
    """Longest time that the learner, when it closes, still processes data that it has received, in seconds."""
    max_clients: int = option(integer(1, 65_536), 64)
    """Largest number of clients."""
    max_actors: int = option(integer(1, 1 << 24), 1024)
    """Largest number of actors of a client."""
    max_parameters: int = option(integer(1, 1 << 36), 50_000_000)
    """Largest number of parameters of a policy."""
    messages_per_s: float = option(number(0, 1e9, above=True), 100.0)
    """Limit on the messages per second of each tcp or ipc connection without a key. A burst of two seconds' worth is allowed. A
    handshake counts as 20 messages, a status request as 10. Data within the credit that the learner has granted to an actor do
    not count."""
    bytes_per_s: float = option(number(0, 1e15, above=True), 256e6)
    """Limit on the bytes per second of the messages that `messages_per_s` counts. A burst of two seconds' worth is allowed."""
    torch_threads: int | None = option(optional(integer(1, 1024)), None)
    """Number of threads that torch computes with, in the learner thread of each client. Default: unchanged. For small networks
    a second thread doubles the CPU time without a gain, so ``rl4sys-learner serve`` and ``demo`` use 1 by default."""
    device: str = option(device_name, "cpu")
    """Device on which clients train: ``cpu``; ``cuda`` or ``cuda:N`` for a GPU; ``auto`` for a GPU if torch finds one, else the
    CPU. Small networks train faster on the CPU."""
    tf32: bool = option(flag, False)
    """True to let GPUs multiply float32 matrices with 10 bits of precision (TensorFloat-32), which is faster. It applies to the
    whole process."""
    learners: int = option(integer(1, 64), 1)
    """Number of processes that train each client together. Each computes the gradient of a part of every minibatch. This pays
    for networks of a million parameters and more."""
    seed: int | None = option(optional(integer(0, 2**63 - 1)), None)
    """The seed of the training of clients whose parameters have no ``seed``. Default: from the operating system."""
    alarms: AlarmsConfig | None = option(optional(AlarmsConfig.read), None)
    """The receivers of messages about alarms. Default: no messages."""
    ignored: tuple[str, ...] = option(_texts, ())
    """Keys of the file that have no meaning for the learner, such as ``server.trajectory_server``. The class sets this when it
    reads a file; it is not a key of the file. The learner logs them when it starts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.journal == "sqlite" and self.run_dir is None:
            raise ConfigError("journal: sqlite needs a run directory; set run_dir", key="journal")
        if self.resume not in ("auto", "never") and not self.durable:
            raise ConfigError(
                f"resume: {self.resume} needs the journal and the checkpoints of a run directory, but this learner keeps its "
                "journal in memory; set run_dir and journal: sqlite, or leave resume out",
                key="resume",
            )
        if self.keys is not None:
            check_relay_keys(self.relays)

    @property
    def durable(self) -> bool:
        """True if accepted segments survive the end of the process."""
        return (self.journal or ("memory" if self.run_dir is None else "sqlite")) == "sqlite"

    @property
    def engines(self) -> list[str]:
        """The names of all engines that this configuration uses, sorted."""
        return sorted({self.engine, *(entry.engine for entry in self.clients.values() if entry.engine is not None)})

    def client(self, client_id: str) -> ClientConfig:
        """Return the options of one client. Options that its entry does not set, such as `device`, have the learner's value."""
        entry = self.clients.get(client_id, ClientConfig())
        inherited = {name: getattr(self, name) for name in _INHERITED if getattr(entry, name) is None}
        return replace(entry, **inherited)

    @classmethod
    def from_mapping(cls, given: Mapping[str, object], *, source: str = "", **overrides: object) -> Self:
        """Create a configuration from a mapping with the keys of a configuration file (`ProcessConfig.from_mapping`)."""
        with with_source(source):
            if "ignored" in given:
                raise ConfigError("ignored: this is a result of reading a file, not a key; remove it", key="ignored")
            translated, ignored = translate_global(given)
            hint = "if it is a parameter of an algorithm, put it under 'algorithms', such as algorithms.PPO"
            values = parse_options(cls, translated, hint=hint)
        values.update(parse_options(cls, overrides))
        values["algorithms"], flat = _without_spaces(cast("Mapping[str, Mapping[str, object]]", values.get("algorithms", {})))
        with with_source(source):
            return cls(**{**values, "ignored": (*ignored, *flat)})  # type: ignore[arg-type]

    def to_json(self) -> dict[str, object]:
        """Return the configuration as JSON values that `from_mapping` can read."""
        return {key: value for key, value in super().to_json().items() if key != "ignored"}


def _without_spaces(
    algorithms: Mapping[str, Mapping[str, object]],
) -> tuple[dict[str, dict[str, object]], tuple[str, ...]]:
    """Return each algorithm's default parameters without the keys about spaces and actors that RL4Sys's files put there."""
    removed = {*FLAT_KEYS, *ACTOR_KEYS}
    kept = {name: {k: v for k, v in entry.items() if k not in removed} for name, entry in algorithms.items()}
    dropped = dict.fromkeys(k for entry in algorithms.values() for k in entry if k in removed)
    return kept, tuple(f"algorithms.*.{k}" for k in dropped)
