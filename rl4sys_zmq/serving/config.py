"""The configurations that servers and their clients share, and addresses from hosts, ports and URIs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rl4sys_zmq.config.options import (
    CALL_TIMEOUT_S,
    check_value,
    checked_arguments,
    integer,
    logger_level,
    mapping,
    number,
    optional,
)
from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.images import NEEDS_PILLOW, ImageFormat, has_pillow
from rl4sys_zmq.names import is_name
from rl4sys_zmq.transports import Address
from rl4sys_zmq.values.trees import Tree

MAX_KEYS = 1024
MAX_KEY = 256
PORT = integer(0, 65_535)
"""Port 0: the system picks one."""
MAX_RATE = 1e9
"""Highest `rate_limit`, in requests per second."""


def set_log_level(level: int | None) -> None:
    """Set the level of the logger ``rl4sys_zmq``; None leaves it unchanged."""
    if level is not None:
        logging.getLogger("rl4sys_zmq").setLevel(check_value("log_level", level, logger_level))


def bind_address(where: int | str) -> Address:
    """Return the address to bind. `where` is ``host:port``, a URI, or a port of 127.0.0.1."""
    if isinstance(where, str):
        return Address.parse(where)
    return Address("tcp", "127.0.0.1", check_value("port", where, PORT))


def connect_address(host: object, port: int | None = None) -> Address:
    """Return the address to connect to, from a host and a port, or from a URI in `host`."""
    if not isinstance(host, str):
        raise ConfigError(f"the server is {host!r:.60}; expected a host or a URI as text", key="server_ip")
    if port is None or "://" in host:
        return Address.parse(host)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"  # an IPv6 address
    return Address.parse(f"tcp://{host}:{check_value('port', port, PORT)}")


def address_of(name: str, port: int | str, host: str = "") -> Address:
    """Return the address that the configuration field `name` describes. `port` is a URI, or a port of `host`."""
    if type(port) not in (int, str) or (isinstance(port, str) and "://" not in port and not port.isdecimal()):
        raise ConfigError(f"{name} is {port!r:.60}; expected a port, or a URI like tcp://host:port", key=name)
    try:
        return Address.parse(port) if isinstance(port, str) and "://" in port else connect_address(host, int(port))
    except (ConfigError, TransportError) as exc:
        raise ConfigError(f"{name}: {exc}", key=name) from exc


class _ServerConfig:
    """The fields that both configurations have, and the addresses that follow from them."""

    _server: ClassVar[str]  # the class of the server
    port_number: int | str
    broadcast_port: int | str | None
    version: str
    bind: str

    def __post_init__(self) -> None:
        if not isinstance(self.version, str):
            raise ConfigError(f"version is {self.version!r:.60}; expected a string", key="version")
        self.bind_address()  # raises here if it is invalid
        self.broadcast_address()

    def bind_address(self) -> Address:
        """Return the address that the server binds for calls."""
        return address_of("port_number", self.port_number, self.bind)

    def broadcast_address(self) -> Address | None:
        """Return the address at which the server publishes, or None if it does not."""
        return None if self.broadcast_port is None else address_of("broadcast_port", self.broadcast_port, self.bind)

    def dial_address(self, server_ip: str, port: int | str | None = None) -> Address:
        """Return the address that a client connects to.

        Args:
            server_ip: Host, or a URI. With a URI, no port is used.
            port: Port or URI that replaces `port_number`.

        Raises:
            ConfigError: If a client cannot connect to the address, for example because the port is 0.
        """
        port = self.port_number if port is None else port
        if type(server_ip) is not str or not server_ip:
            raise ConfigError(f"server_ip is {server_ip!r:.60}; expected a host or a URI", key="server_ip")
        if "://" in server_ip:
            address = address_of("server_ip", server_ip)
        else:
            address = address_of("port_number", port, server_ip)
            if address.scheme == "tcp" and isinstance(port, str):
                address = address_of("server_ip", address.port, server_ip)
        if address.is_fresh:
            raise ConfigError(f"{address.uri} is only an address to bind; connect to {self._server}.address", key="server_ip")
        return address


@checked_arguments
@dataclass(frozen=True)
class ActionConfig(_ServerConfig):
    """The configuration of an `ActionServer` and its clients: addresses, and the names of observations and actions.

    The fields are checked when the object is created.

    Server and client must agree on `action_keys`, `observation_keys`, `version` and `image_codecs`. Both must have a
    `broadcast_port`, or both must have none. Otherwise the server refuses the client, and the error names the differences.
    Addresses and timeouts can differ.

    Attributes:
        port_number: Port or URI (``tcp://``, ``ipc://``, ``inproc://``) for calls. Port 0: any free port.
        action_keys: Keys that `ActionClient.act` accepts.
        observation_keys: Keys that `ActionClient.obs` can request.
        broadcast_port: Port or URI for `ActionServer.publish_obs`. None: observations are not published.
        version: A version that you choose, for example of your program. The library only checks that both sides have the same.
        bind: IP address on which the server listens, for ports that are given as numbers and not as URIs. If other machines can
            reach this address, the server needs its argument `keys`, or `insecure=True`. Clients do not use this field.
        image_codecs: Codec for each key with images: ``"jpeg"`` (quality 90), ``"jpeg:75"``, ``"png"``, or an `ImageFormat`. A
            codec applies to top-level entries of an observation, of an action's payload and of the reply to an action. Entries
            that are not arrays are sent unchanged. Needs the extra ``images``.
        timeout_s: Default time that a client waits for a reply, in seconds.
    """

    _server = "ActionServer"
    port_number: int | str
    action_keys: Sequence[str]
    observation_keys: Sequence[str]
    broadcast_port: int | str | None = None
    version: str = "0.0.1"
    bind: str = "127.0.0.1"
    image_codecs: Mapping[str, str | ImageFormat] = field(default_factory=dict)
    timeout_s: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("action_keys", "observation_keys"):
            object.__setattr__(self, name, _keys(name, getattr(self, name)))
        object.__setattr__(self, "timeout_s", check_value("timeout_s", self.timeout_s, CALL_TIMEOUT_S))
        codecs = check_value("image_codecs", self.image_codecs, mapping)
        object.__setattr__(self, "image_codecs", {key: _codec(key, codec) for key, codec in codecs.items()})
        if self.image_codecs and not has_pillow():
            raise ConfigError(f"image_codecs: {NEEDS_PILLOW}", key="image_codecs")

    @property
    def codecs(self) -> dict[str, ImageFormat]:
        """The `ImageFormat` for each key in `image_codecs`."""
        return {key: codec for key, codec in self.image_codecs.items() if isinstance(codec, ImageFormat)}

    def terms(self) -> dict[str, Tree]:
        """Return the fields that must be equal at the server and a client. The order of keys does not matter."""
        return {
            "action_keys": sorted(self.action_keys),
            "observation_keys": sorted(self.observation_keys),
            "version": self.version,
            "broadcast_port": "none" if self.broadcast_port is None else "given",
            "image_codecs": [f"{key}={c.format}:{c.quality}" for key, c in sorted(self.codecs.items())],
        }


def _keys(name: str, names: object) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Sequence | set | frozenset):
        raise ConfigError(f"{name} is {names!r:.60}; expected a list of names", key=name)
    keys = list(names) if isinstance(names, Sequence) else sorted(names)
    for key in keys:
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY:
            raise ConfigError(f"{name} has {key!r:.60}; a key must be a string of 1 to {MAX_KEY} characters", key=name)
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigError(f"{name} contains {', '.join(twice)} more than once", key=name)
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"{name} has {len(keys)} keys; the limit is {MAX_KEYS}", key=name)
    return keys


def _codec(key: str, value: object) -> ImageFormat:
    codec = value
    if isinstance(value, str):
        form, _, quality = value.partition(":")
        codec = ImageFormat(form, int(quality)) if quality.isdecimal() else ImageFormat(form) if not quality else None
    if not isinstance(codec, ImageFormat) or codec.format not in ("png", "jpeg") or not 1 <= codec.quality <= 100:
        raise ConfigError(
            f"image_codecs[{key!r}] is {value!r:.60}; expected jpeg, jpeg:1 to jpeg:100, or png", key="image_codecs"
        )
    return codec


@checked_arguments
@dataclass(frozen=True)
class TrainerConfig(_ServerConfig):
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

    _server = "TrainerServer"
    port_number: int | str = 5555
    broadcast_port: int | str = 5556
    request_types: Sequence[str] = ()
    rate_limit: float | None = None
    version: str = "0.0.1"
    experimental_pipeline_port: int | str | None = None
    bind: str = "127.0.0.1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.request_types, str) or not all(is_name(name) for name in self.request_types):
            raise ConfigError(f"request_types must be a list of names, not {self.request_types!r:.60}", key="request_types")
        object.__setattr__(self, "request_types", tuple(self.request_types))
        if len(set(self.request_types)) < len(self.request_types):
            raise ConfigError(f"request_types has a name twice: {', '.join(self.request_types)}", key="request_types")
        rate = check_value("rate_limit", self.rate_limit, optional(number(0, MAX_RATE, above=True)))
        object.__setattr__(self, "rate_limit", rate)
        if self.experimental_pipeline_port is not None:
            address_of("experimental_pipeline_port", self.experimental_pipeline_port, self.bind)
        broadcast = address_of("broadcast_port", self.broadcast_port, self.bind)  # None, which is not an address, is refused
        if self.bind_address() == broadcast and not self.bind_address().is_fresh:
            raise ConfigError(
                f"broadcast_port is {self.broadcast_port}, the same as port_number; choose another", key="broadcast_port"
            )

    def terms(self) -> dict[str, Any]:
        """Return the fields that must be equal at the server and a trainer client."""
        return {"version": self.version, "request_types": sorted(self.request_types), "rate_limit": self.rate_limit}
