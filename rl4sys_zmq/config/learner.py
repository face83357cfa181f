"""What the learner process needs to know."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from rl4sys_zmq.config.addresses import bind_uri
from rl4sys_zmq.config.client import ClientConfig
from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.config.options import (
    as_json,
    check_fields,
    check_value,
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
    text,
)
from rl4sys_zmq.config.rl4sys import algorithm_name, translate_global
from rl4sys_zmq.config.spaces import FLAT_KEYS
from rl4sys_zmq.config.weights import WeightsConfig, weights_options
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.loopback import is_local

__all__ = ["LearnerConfig"]

log = logging.getLogger(__name__)

_INHERITED = ("max_policy_lag", "on_lag", "pacing_lag", "publish_every_updates", "max_magnitude", "max_reward")
"""Options of a client that come from the learner's own where its entry does not say them."""


def _clients(value: object) -> dict[str, ClientConfig]:
    entries = mapping(value)
    return {check_value(key, key, name): check_value(key, entry, _client) for key, entry in entries.items()}


def _client(value: object) -> ClientConfig:
    return value if isinstance(value, ClientConfig) else ClientConfig.from_mapping(mapping(value))


def _algorithms(value: object) -> dict[str, dict[str, object]]:
    return {algorithm_name(key): check_value(key, entry, parameters) for key, entry in mapping(value).items()}


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)


def _inference(value: object) -> str:
    return "auto" if value == "auto" else bind_uri(value)


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """The configuration of one learner process.

    Raises:
        ConfigError: for a value that an option refuses, or an address that other machines reach without `insecure`.
    """

    bind: str = option(bind_uri, "tcp://127.0.0.1:50051")
    """Where actors dial, as a URI; port 0 picks a free one."""
    pub: str | None = option(optional(bind_uri), None)
    """Where weights are published, as a URI; None: on the same host or transport, at a free port or name."""
    inference: str | None = option(optional(_inference), None)
    """Where actors may ask for actions (``inference: remote``), as a URI; ``auto``: on the same host or transport, at a free port
    or name; None: nowhere, and no port or thread is made for it."""
    advertise: str | None = option(optional(text), None)
    """The host that actors are told for `pub` and `inference`; None: the one that they dialled."""
    run_dir: Path | None = option(optional(path), Path("runs/learner"))
    """Where files go; None: none are written."""
    clients: Mapping[str, ClientConfig] = option(_clients, {})
    """What is fixed for a client, by its id. It wins over what its actors say."""
    algorithms: Mapping[str, Mapping[str, object]] = option(_algorithms, {})
    """Parameters by algorithm, which fill what neither a client's entry nor its actors set."""
    default_algorithm: str | None = option(optional(algorithm_name), None)
    """The algorithm of a client for which nobody names one."""
    plugins: tuple[str, ...] = option(modules, ())
    """Modules that are imported at the start, before any actor joins: they register algorithms and policies."""
    resume: str = option(text, "auto")
    """``auto``: goes on with what the run directory holds; ``never``: begins anew; a checkpoint's folder: goes back to it;
    ``accept-loss``: as ``auto``, though a part of the journal is gone, which is counted."""
    journal: str | None = option(optional(one_of("memory", "sqlite")), None)
    """Where what was received is recorded; None: ``sqlite`` with a run directory, else ``memory``."""
    fsync: str = option(one_of("normal", "always"), "normal")
    """``normal``: what was acknowledged survives the end of the process; ``always``: a loss of power too."""
    journal_max_bytes: int = option(integer(1 << 20), 4 << 30)
    """How many bytes of segments the journal on disk may hold."""
    log_max_bytes: int = option(integer(1 << 20), 256 << 20)
    """How many bytes ``log.jsonl`` and what it has become with age, in ``log/``, may take. The newest lines are all there; of
    older ones fewer and fewer are kept, events longer than figures, so that the whole run stays in sight."""
    tensorboard_max_bytes: int = option(integer(1 << 20), 64 << 20)
    """How many bytes of TensorBoard files each client may have; likewise thinned with age."""
    checkpoint_every_s: float = option(number(0, above=True), 10.0)
    """How often the state of each client is written to the run directory."""
    max_policy_lag: int | None = option(optional(integer(0, 1 << 31)), None)
    """At most how many versions old a segment may be; None: the algorithm's own limit (PPO: 4, DQN: none)."""
    on_lag: str = option(one_of("drop", "correct"), "drop")
    """What happens to an older one: dropped and counted, or corrected by importance weights."""
    max_magnitude: float = option(number(0, 1e39, above=True), 1e15)
    """The greatest absolute value of an observation or a raw action, where the space has no bound of its own."""
    max_reward: float = option(number(0, 1e39, above=True), 1e12)
    """The greatest absolute value of a reward."""
    pacing_lag: int = option(integer(0, 1024), 1)
    """How many batches simulators may collect ahead of the one that is trained on."""
    publish_every_updates: int | None = option(optional(integer(1, 1 << 31)), None)
    """How many updates make a version; None: the algorithm's choice."""
    weights: WeightsConfig = option(weights_options, WeightsConfig())
    """How weights travel, where neither a client's entry nor its first actor says it: ``fp32`` at level 1."""
    lease_s: float = option(number(0, above=True), 30.0)
    """After how long a silence an actor's place is given up."""
    idle_client_s: float = option(number(0, above=True), 60.0)
    """After how long a client that has no live actor, no data and no checkpoint is forgotten."""
    shutdown_timeout_s: float = option(number(0), 1.5)
    """How long closing may drain what has arrived."""
    max_clients: int = option(integer(1, 65_536), 64)
    """How many clients are accepted."""
    max_actors: int = option(integer(1, 1 << 24), 1024)
    """How many actors a client may have."""
    max_parameters: int = option(integer(1, 1 << 36), 50_000_000)
    """How many numbers a policy may have."""
    messages_per_s: float = option(number(0, 1e9, above=True), 100.0)
    """How many messages a second each connection without a key may send over tcp or ipc, besides data that it has credit for.
    Twice as many at once; a handshake counts as 20, a request for the status as 10."""
    bytes_per_s: float = option(number(0, 1e15, above=True), 256e6)
    """How many bytes of them, likewise."""
    max_memory_bytes: int | None = option(optional(integer(1 << 20)), None)
    """From which resident size of the process on connections are ended, and then the learner; None: it is not watched."""
    keys: Path | None = option(optional(path), None)
    """The folder with the learner's keys (``rl4sys-learner keys DIR`` makes it); None: no encryption."""
    users_file: Path | None = option(optional(path), None)
    """The access list: what the user of each key may do; None: ``users.toml`` in `keys`."""
    insecure: bool = option(flag, False)
    """True: other machines may connect without keys."""
    torch_threads: int | None = option(optional(integer(1, 1024)), None)
    """How many threads torch computes with, in the whole process; None: as the program has it. For small networks a second thread
    doubles the CPU and gains nothing, so ``rl4sys-learner serve`` and ``demo`` say 1 where nothing is said."""
    seed: int | None = option(optional(integer(0, 2**63 - 1)), None)
    """The seed of clients that set none; None: from the operating system."""
    ignored: tuple[str, ...] = option(_texts, ())
    """Keys of the file that have no meaning here, dotted. Not itself a key."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.journal == "sqlite" and self.run_dir is None:
            raise ConfigError("journal: sqlite needs a run directory; set run_dir", key="journal")
        for key, uri in (("bind", self.bind), ("pub", self.pub), ("inference", self.inference)):
            if uri not in (None, "auto") and not is_local(uri) and not self.insecure and self.keys is None:
                message = (
                    f"{key}: other machines can reach {uri}, without keys: give --keys DIR (keys), "
                    "or if that is meant, say --insecure (insecure: true)"
                )
                raise ConfigError(message, key=key)

    @property
    def durable(self) -> bool:
        """Whether acknowledged segments survive the process."""
        return (self.journal or ("memory" if self.run_dir is None else "sqlite")) == "sqlite"

    def client(self, client_id: str) -> ClientConfig:
        """The entry for a client, with its lag, pacing, publishing and bounds filled in from the learner's options."""
        entry = self.clients.get(client_id, ClientConfig())
        inherited = {name: getattr(self, name) for name in _INHERITED if getattr(entry, name) is None}
        return replace(entry, **inherited)

    @classmethod
    def load(cls, path: str | os.PathLike[str], **overrides: object) -> Self:
        """Reads a JSON or YAML file with our keys, or RL4Sys's global ``config.json``.

        Args:
            path: the file.
            **overrides: options that win over the file's.

        Raises:
            ConfigError: in one line, with the key, the file and the nearest valid name.
        """
        return cls.from_mapping(read_mapping(path), source=str(path), **overrides)

    @classmethod
    def from_mapping(cls, given: Mapping[str, object], *, source: str = "", **overrides: object) -> Self:
        """Reads a mapping as it would stand in a file; `source` is named in errors, `overrides` as in `load`.

        Raises:
            ConfigError: see `load`.
        """
        with located(source):
            if "ignored" in given:
                raise ConfigError("ignored: this is a result, not a key", key="ignored")
            translated, ignored = translate_global(given)
            values = gather(cls, translated)
        values.update(gather(cls, overrides))
        values["algorithms"], flat = _without_spaces(values.get("algorithms", {}))
        for key in (*ignored, *flat):
            log.warning("%s: %s has no meaning for the learner and is ignored", source or "configuration", key)
        with located(source):
            return cls(**{**values, "ignored": (*ignored, *flat)})  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """JSON values that `from_mapping` reads back."""
        return {key: value for key, value in as_json(self).items() if key != "ignored"}


def _without_spaces(algorithms: Any) -> tuple[dict[str, dict[str, object]], tuple[str, ...]]:
    """Takes the keys of spaces out of the defaults by algorithm: RL4Sys has them there, but a client's spaces are its own."""
    kept = {name: {k: v for k, v in entry.items() if k not in FLAT_KEYS} for name, entry in algorithms.items()}
    ignored = tuple(f"algorithms.{name}.{k}" for name, entry in algorithms.items() for k in entry if k in FLAT_KEYS)
    return kept, ignored
