"""The configuration of one relay process, and the options that a relay and a learner share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rl4sys_zmq.config.addresses import bind_uri, connect_uri, host_name
from rl4sys_zmq.config.options import (
    checked_arguments,
    flag,
    integer,
    number,
    option,
    optional,
    path,
)
from rl4sys_zmq.config.section import ConfigSection
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.loopback import is_local


@dataclass(frozen=True, kw_only=True)
class LearnerAndRelayOptions(ConfigSection):
    """The options that a learner and a relay share. The *peers* are the actors and relays that connect to it."""

    _BOUND: ClassVar[tuple[str, ...]] = ("bind", "pub")

    bind: str = option(bind_uri, "tcp://127.0.0.1:50051")
    """The URI that peers connect to. Port 0 picks a free port."""
    pub: str | None = option(optional(bind_uri), None)
    """The URI at which weights are published. Default: the host or transport of `bind`, with a free port or name."""
    advertise: str | None = option(optional(host_name), None)
    """The host name or IP address that peers use to reach the other addresses of this process. Default: the host through which a
    peer reached `bind`."""
    keys: Path | None = option(optional(path), None)
    """The folder with the keys of this process, created by ``rl4sys-learner keys DIR``. Default: no encryption."""
    users_file: Path | None = option(optional(path), None)
    """The access list, with the rights of each user. It needs `keys`. Default: ``users.toml`` in `keys`."""
    insecure: bool = option(flag, False)
    """True to let other machines connect without keys."""
    max_memory_bytes: int | None = option(optional(integer(1 << 20)), None)
    """Limit on the resident size of the process. Above this limit, connections are closed. If that does not help, the process
    ends. Default: no limit; ``rl4sys-learner serve`` and ``relay`` set one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in self._BOUND:
            uri = getattr(self, key)
            if uri not in (None, "auto") and not is_local(uri) and self.keys is None and not self.insecure:
                message = (
                    f"{key}: other machines can reach {uri} without keys; give --keys DIR (keys), "
                    "or allow it with --insecure (insecure: true)"
                )
                raise ConfigError(message, key=key)
        if self.users_file is not None and self.keys is None:
            message = f"users_file: the access list {self.users_file} has no effect without keys; give --keys DIR (keys)"
            raise ConfigError(message, key="users_file")


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class RelayConfig(LearnerAndRelayOptions):
    """The configuration of one relay. Its peers, actors and other relays, are its *children*.

    Raises:
        ConfigError: If the value of an option is invalid, or if other machines can reach an address although neither `keys` nor
            `insecure` is set.
    """

    upstream: str = option(connect_uri, required=True)
    """The address of the learner or relay from which the weights come, as host:port or as a URI."""
    bind: str = option(bind_uri, "tcp://127.0.0.1:50061")
    """The URI that children connect to. Port 0 picks a free port."""
    upstream_keys: Path | None = option(optional(path), None)
    """The relay's key file for the upstream, created by ``rl4sys-learner keys DIR --user NAME --role relay`` with the
    upstream's folder of keys. Default: no encryption."""
    max_clients: int = option(integer(1, 65_536), 64)
    """Largest number of clients whose weights the relay holds. A client that no child has requested for a minute is dropped."""
    max_children: int = option(integer(1, 1 << 20), 4096)
    """Largest number of children."""
    messages_per_s: float = option(number(0, 1e9, above=True), 50.0)
    """Limit on the requests per second of each child, in addition to five for each of `max_clients`, which a child that is a
    relay can need. A burst of two seconds' worth is allowed."""
