"""What a trainer and its clients must agree on, and where they meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import is_name
from rl4sys_zmq.serving.addresses import address_of
from rl4sys_zmq.transports import Address

__all__ = ["TrainerConfig", "check_config"]

MAX_RATE = 1e9
"""Of requests, a second."""


@dataclass(frozen=True)
class TrainerConfig:
    """The same for a `TrainerServer` and all of its clients, checked when it is made.

    A client whose `request_types`, `rate_limit` or `version` differ from the server's is refused, by the names of the fields.
    Addresses may differ.

    Attributes:
        port_number: where calls come: a port (0: a free one, `TrainerServer.address` says which), or a URI (``tcp://``,
            ``ipc://``, ``inproc://``).
        broadcast_port: where networks leave, likewise. Clients need not know it: the server tells them.
        request_types: the names of the custom requests.
        rate_limit: how many custom requests one client may make a second, in the long run (two seconds' worth at once); None for
            any number. Data and networks are not limited by it.
        version: the user's own mark of compatibility.
        bind: the interface on which the server binds ports that are numbers. With one that other machines reach, the server
            needs `keys`, or `insecure=True`. A client dials the host that it is given.

    Raises:
        ConfigError: for a value that none of these can have; names the field.
    """

    port_number: int | str = 5555
    broadcast_port: int | str = 5556
    request_types: Sequence[str] = ()
    rate_limit: float | None = None
    version: str = "0.0.1"
    bind: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if isinstance(self.request_types, str) or not all(is_name(name) for name in self.request_types):
            raise ConfigError(f"request_types is a list of names, not {self.request_types!r:.60}", key="request_types")
        object.__setattr__(self, "request_types", tuple(self.request_types))
        if len(set(self.request_types)) < len(self.request_types):
            raise ConfigError(f"request_types has a name twice: {', '.join(self.request_types)}", key="request_types")
        if self.rate_limit is not None and not (_is_number(self.rate_limit) and 0 < self.rate_limit <= MAX_RATE):
            raise ConfigError(
                f"rate_limit is more than 0 and at most {MAX_RATE:g} a second, or None, not {self.rate_limit!r:.60}",
                key="rate_limit",
            )
        if not isinstance(self.version, str):
            raise ConfigError(f"version is a string, not {self.version!r:.60}", key="version")
        if self.bind_address() == self.broadcast_address() and not self.bind_address().is_fresh:
            raise ConfigError(f"broadcast_port is {self.broadcast_port}, as port_number is; take another", key="broadcast_port")

    def terms(self) -> dict[str, Any]:
        """What both sides must agree on, field by field."""
        rate = None if self.rate_limit is None else float(self.rate_limit)
        return {"version": self.version, "request_types": sorted(self.request_types), "rate_limit": rate}

    def bind_address(self) -> Address:
        """Where the server takes calls."""
        return address_of("port_number", self.port_number, self.bind)

    def broadcast_address(self) -> Address:
        """Where the server's networks leave."""
        return address_of("broadcast_port", self.broadcast_port, self.bind)

    def dial_address(self, server_ip: str) -> Address:
        """Where a client finds the server.

        Args:
            server_ip: its host or IP address, or its URI.

        Raises:
            ConfigError: for something that can't be dialled, like port 0.
        """
        if type(server_ip) is not str or not server_ip:
            raise ConfigError(f"server_ip is {server_ip!r:.60}; it is a host or a URI", key="server_ip")
        bound = self.bind_address()
        if "://" in server_ip:
            address = address_of("server_ip", server_ip)
        else:
            address = address_of("server_ip", bound.port, server_ip) if bound.scheme == "tcp" else bound
        if address.is_fresh:
            raise ConfigError(f"{address.uri} says only what to bind; dial TrainerServer.address", key="server_ip")
        return address


def check_config(config: object) -> TrainerConfig:
    """A configuration.

    Raises:
        ConfigError: when it is none.
    """
    if not isinstance(config, TrainerConfig):
        raise ConfigError(f"config is a TrainerConfig, not {config!r:.60}", key="config")
    return config


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
