"""The configuration that a `TrainerServer` and its clients share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl4sys_zmq.config.options import check_value, checked_arguments, number, optional
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.names import is_name
from rl4sys_zmq.serving.addresses import address_of
from rl4sys_zmq.transports import Address

MAX_RATE = 1e9
"""Highest `rate_limit`, in requests per second."""


@checked_arguments
@dataclass(frozen=True)
class TrainerConfig:
    """The configuration of a `TrainerServer` and all of its trainer clients, checked when it is created.

    The server refuses a trainer client whose `request_types`, `rate_limit` or `version` differ from the server's. The error names
    the fields that differ. Addresses can differ.

    Attributes:
        port_number: Port or URI (``tcp://``, ``ipc://``, ``inproc://``) for calls. Port 0: any free port;
            `TrainerServer.address` then has the number.
        broadcast_port: Port or URI at which the server publishes networks. Trainer clients receive this address from the server.
        request_types: Names of the custom requests.
        rate_limit: Largest average number of custom requests per second of one trainer client. Bursts of two seconds' worth are
            allowed. None: no limit. Items of data stores and networks are not limited.
        version: A version that you choose, for example of your program. The library only checks that both sides have the same.
        experimental_pipeline_port: Port of agentlace's separate connection for items. It is accepted, so that programs run
            unchanged, but not bound: items are sent to `port_number`, in large messages that the server acknowledges.
        bind: IP address of the interface on which the server binds ports that are numbers. If other machines can reach this
            address, the server needs `keys` or `insecure=True`. Trainer clients do not use this field.

    Raises:
        ConfigError: If a value is invalid. The message names the field.
    """

    port_number: int | str = 5555
    broadcast_port: int | str = 5556
    request_types: Sequence[str] = ()
    rate_limit: float | None = None
    version: str = "0.0.1"
    experimental_pipeline_port: int | str | None = None
    bind: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if isinstance(self.request_types, str) or not all(is_name(name) for name in self.request_types):
            raise ConfigError(f"request_types must be a list of names, not {self.request_types!r:.60}", key="request_types")
        object.__setattr__(self, "request_types", tuple(self.request_types))
        if len(set(self.request_types)) < len(self.request_types):
            raise ConfigError(f"request_types has a name twice: {', '.join(self.request_types)}", key="request_types")
        rate = check_value("rate_limit", self.rate_limit, optional(number(0, MAX_RATE, above=True)))
        object.__setattr__(self, "rate_limit", rate)
        if not isinstance(self.version, str):
            raise ConfigError(f"version must be a string, not {self.version!r:.60}", key="version")
        if self.experimental_pipeline_port is not None:
            address_of("experimental_pipeline_port", self.experimental_pipeline_port, self.bind)
        if self.bind_address() == self.broadcast_address() and not self.bind_address().is_fresh:
            raise ConfigError(
                f"broadcast_port is {self.broadcast_port}, the same as port_number; choose another", key="broadcast_port"
            )

    def terms(self) -> dict[str, Any]:
        """Return the fields that must be equal at the server and a trainer client."""
        return {"version": self.version, "request_types": sorted(self.request_types), "rate_limit": self.rate_limit}

    def bind_address(self) -> Address:
        """Return the address that the server binds for calls."""
        return address_of("port_number", self.port_number, self.bind)

    def broadcast_address(self) -> Address:
        """Return the address that the server binds to publish networks."""
        return address_of("broadcast_port", self.broadcast_port, self.bind)

    def dial_address(self, server_ip: str) -> Address:
        """Return the address that a trainer client connects to.

        Args:
            server_ip: Host name, IP address, or URI of the server.

        Raises:
            ConfigError: If a client cannot connect to the address, for example because the port is 0.
        """
        if type(server_ip) is not str or not server_ip:
            raise ConfigError(f"server_ip is {server_ip!r:.60}; expected a host or a URI", key="server_ip")
        bound = self.bind_address()
        if "://" in server_ip:
            address = address_of("server_ip", server_ip)
        else:
            address = address_of("server_ip", bound.port, server_ip) if bound.scheme == "tcp" else bound
        if address.is_fresh:
            raise ConfigError(f"{address.uri} is only an address to bind; connect to TrainerServer.address", key="server_ip")
        return address
