"""The configuration of one relay process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


def check_users_file(users_file: Path | None, keys: Path | None) -> None:
    """Check that a configuration with an access list (`users_file`) has `keys`; the list has no effect without keys."""
    if users_file is not None and keys is None:
        raise ConfigError(
            f"users_file: the access list {users_file} has no effect without keys; give --keys DIR (keys)", key="users_file"
        )


def check_reachable(uris: Mapping[str, str | None], keys: Path | None, insecure: bool) -> None:
    """Check that an address that other machines can reach is protected by `keys`, unless `insecure` is True."""
    for key, uri in uris.items():
        if uri not in (None, "auto") and not is_local(uri) and keys is None and not insecure:
            message = (
                f"{key}: other machines can reach {uri} without keys; give --keys DIR (keys), "
                "or allow it with --insecure (insecure: true)"
            )
            raise ConfigError(message, key=key)


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class RelayConfig(ConfigSection):
    """The configuration of one relay process, which passes weights on to actors and to other relays.

    Raises:
        ConfigError: If the value of an option is invalid, or if other machines can reach an address although neither `keys` nor
            `insecure` is set.
    """

    upstream: str = option(connect_uri, required=True)
    """The address of the learner or relay from which the weights come, as host:port or as a URI."""
    bind: str = option(bind_uri, "tcp://127.0.0.1:50061")
    """The URI that children connect to. Port 0 picks a free port."""
    pub: str | None = option(optional(bind_uri), None)
    """The URI at which weights are published. Default: the host or transport of `bind`, with a free port or name."""
    advertise: str | None = option(optional(host_name), None)
    """The host name or IP address that children use to reach `pub`. Default: the host through which a child reached `bind`."""
    upstream_keys: Path | None = option(optional(path), None)
    """The relay's key file for the upstream, created by ``rl4sys-learner keys DIR --user NAME --role relay`` with the
    upstream's folder of keys. Default: no encryption."""
    keys: Path | None = option(optional(path), None)
    """The folder with the relay's own keys, created by ``rl4sys-learner keys DIR``. Default: no encryption."""
    users_file: Path | None = option(optional(path), None)
    """The access list of the relay's children. It needs `keys`. Default: ``users.toml`` in `keys`."""
    insecure: bool = option(flag, False)
    """True to let other machines connect without keys."""
    max_clients: int = option(integer(1, 65_536), 64)
    """Largest number of clients whose weights the relay holds. A client that no child has requested for a minute is dropped."""
    max_children: int = option(integer(1, 1 << 20), 4096)
    """Largest number of children."""
    messages_per_s: float = option(number(0, 1e9, above=True), 50.0)
    """Limit on the requests per second of each child, in addition to five for each of `max_clients`, which a child that is a
    relay can need. A burst of two seconds' worth is allowed."""
    max_memory_bytes: int | None = option(optional(integer(1 << 20)), None)
    """Limit on the resident memory of the process. Above it the relay closes connections, then ends. Default: no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_reachable({"bind": self.bind, "pub": self.pub}, self.keys, self.insecure)
        check_users_file(self.users_file, self.keys)
