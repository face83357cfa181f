"""What a trainer and its clients must agree on, and where they meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.transports import Address

__all__ = ["MAX_NAME", "TrainerConfig", "check_config", "check_name"]

MAX_NAME = 100
"""The longest name of a store, a client or a request type, in characters."""


@dataclass(frozen=True)
class TrainerConfig:
    """The same for a `TrainerServer` and all of its clients.

    A client whose `request_types`, `rate_limit` or `version` differ from the server's is refused, by the name of the field. The
    addresses need not be equal: a client may come through a tunnel.

    Attributes:
        port_number: where the server takes calls, on 127.0.0.1; 0 picks a free one (`TrainerServer.address` says which).
        broadcast_port: where networks leave, likewise. Clients need not know it: the server tells them.
        request_types: the names of the custom requests.
        rate_limit: how many custom requests one client may make a second, in the long run (two seconds' worth at once); None for
            any number. Data and networks are not limited by it.
        version: of whatever the two must have in common besides.
        address: a URI (``tcp://0.0.0.0:5555``, ``ipc:///run/trainer``, ``inproc://trainer``) in place of `port_number`.
        broadcast_address: a URI in place of `broadcast_port`; needed with an `address` that is not tcp.

    Raises:
        ConfigError: for a value that none of these can have; names the field.
    """

    port_number: int = 5555
    broadcast_port: int = 5556
    request_types: Sequence[str] = ()
    rate_limit: float | None = None
    version: str = "0.0.1"
    address: str = ""
    broadcast_address: str = ""

    def __post_init__(self) -> None:
        for field in ("port_number", "broadcast_port"):
            port = getattr(self, field)
            if type(port) is not int or not 0 <= port < 65_536:
                raise ConfigError(f"{field} is a port from 0 to 65535, not {port!r:.60}", key=field)
        if self.port_number == self.broadcast_port != 0 and not self.address and not self.broadcast_address:
            raise ConfigError(f"broadcast_port is {self.broadcast_port}, as port_number is; take another", key="broadcast_port")
        if isinstance(self.request_types, str) or not all(_is_name(name) for name in self.request_types):
            raise ConfigError(f"request_types is a list of names, not {self.request_types!r:.60}", key="request_types")
        object.__setattr__(self, "request_types", tuple(self.request_types))
        if len(set(self.request_types)) < len(self.request_types):
            raise ConfigError(f"request_types has a name twice: {', '.join(self.request_types)}", key="request_types")
        if self.rate_limit is not None and not (_is_number(self.rate_limit) and 0 < self.rate_limit < math.inf):
            raise ConfigError(f"rate_limit is more than 0 a second, or None, not {self.rate_limit!r:.60}", key="rate_limit")
        if type(self.version) is not str:
            raise ConfigError(f"version is a string, not {self.version!r:.60}", key="version")
        for field in ("address", "broadcast_address"):
            uri = getattr(self, field)
            try:
                if uri:
                    Address.parse(uri)
            except TransportError as exc:
                raise ConfigError(f"{field}: {exc}", key=field) from exc
        if self.address and not self.address.startswith("tcp://") and not self.broadcast_address:
            raise ConfigError(f"broadcast_address is needed with the address {self.address}", key="broadcast_address")

    def terms(self) -> dict[str, Any]:
        """What both sides must agree on, field by field."""
        rate = None if self.rate_limit is None else float(self.rate_limit)
        return {"version": self.version, "request_types": sorted(self.request_types), "rate_limit": rate}

    def bind(self) -> str:
        """Where the server takes calls."""
        return self.address or f"tcp://127.0.0.1:{self.port_number}"

    def bind_broadcast(self) -> str:
        """Where the server's networks leave."""
        if self.broadcast_address:
            return self.broadcast_address
        if self.address:
            return Address.parse(self.address).with_port(self.broadcast_port).uri
        return f"tcp://127.0.0.1:{self.broadcast_port}"

    def dial(self, server: str) -> str:
        """Where a client finds the server.

        Args:
            server: its host or IP address, or its URI.
        """
        if "://" in server:
            return server
        port = Address.parse(self.address).port if self.address.startswith("tcp://") else self.port_number
        return f"tcp://{server}:{port}"


def check_config(config: object) -> TrainerConfig:
    """A configuration.

    Raises:
        ConfigError: when it is none.
    """
    if not isinstance(config, TrainerConfig):
        raise ConfigError(f"config is a TrainerConfig, not {config!r:.60}", key="config")
    return config


def check_name(name: object, key: str) -> str:
    """The name of a store or a client.

    Raises:
        ConfigError: when it is none.
    """
    if not _is_name(name):
        raise ConfigError(f"{key} is a name of 1 to {MAX_NAME} characters, not {name!r:.60}", key=key)
    return str(name)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
