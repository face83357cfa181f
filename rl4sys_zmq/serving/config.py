"""The configurations that servers and their clients share, and addresses from hosts, ports and URIs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from rl4sys_zmq.config.options import (
    CALL_TIMEOUT_S,
    Check,
    InvalidValue,
    check_fields,
    check_value,
    checked_arguments,
    instance_of,
    integer,
    logger_level,
    mapping,
    nullable,
    number,
    option,
)
from rl4sys_zmq.errors import CallRefusalReason, CallRefused, CallTimeout, ConfigError, TransportError, config_error
from rl4sys_zmq.images import NEEDS_PILLOW, ImageFormat, has_pillow
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import NAME_RULE, is_name
from rl4sys_zmq.transports import Address
from rl4sys_zmq.values.trees import Tree

log = get_logger(__name__)

T = TypeVar("T")

MAX_KEYS = 1024
MAX_KEY = 256
PORT = integer(0, 65_535)
"""Port 0: the system picks one."""
MAX_RATE = 1e9
"""Highest `rate_limit`, in requests per second."""


def _distinct(is_valid: Callable[[Any], bool], rule: str) -> Check[list[str]]:
    """Return a function that checks a list or set of different names, and returns a list. `rule` describes a valid name."""

    def check(value: object) -> list[str]:
        if isinstance(value, str) or not isinstance(value, Collection):
            raise InvalidValue("a list of names")
        for name in value:
            if not is_valid(name):
                raise InvalidValue(f"names, each {rule}, not {name!r:.60}")
        if len(value) > MAX_KEYS:
            raise InvalidValue(f"at most {MAX_KEYS} names, not {len(value)}")
        names: list[str] = list(value) if isinstance(value, Sequence) else sorted(value)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidValue(f"different names (more than once: {', '.join(twice)})")
        return names

    return check


_KEYS = _distinct(lambda key: isinstance(key, str) and 0 < len(key) <= MAX_KEY, f"a string of 1 to {MAX_KEY} characters")
_REQUESTS = _distinct(is_name, NAME_RULE)


def _image_codecs(value: object) -> dict[str, ImageFormat]:
    codecs = {key: _codec(key, codec) for key, codec in mapping(value).items()}
    if codecs and not has_pillow():
        raise ConfigError(NEEDS_PILLOW)
    return codecs


def _codec(key: str, value: object) -> ImageFormat:
    codec = value
    if isinstance(value, str):
        form, _, quality = value.partition(":")
        codec = ImageFormat(form, int(quality)) if quality.isdecimal() else ImageFormat(form) if not quality else None
    if not isinstance(codec, ImageFormat) or codec.format not in ("png", "jpeg") or not 1 <= codec.quality <= 100:
        raise InvalidValue(f"jpeg, jpeg:1 to jpeg:100, or png for each key; {key!r:.60} has {value!r:.60}")
    return codec


def set_log_level(level: int | None) -> None:
    """Set the level of the logger ``rl4sys_zmq``; None leaves it unchanged."""
    if level is not None:
        logging.getLogger("rl4sys_zmq").setLevel(check_value("log_level", level, logger_level))


def first_call(
    name: str,
    call: Callable[[], T],
    *,
    wait: bool,
    codes: Collection[CallRefusalReason] = (),
    every_s: float = 0.0,
    level: int = logging.WARNING,
) -> T:
    """Make a client's first call, and return its result.

    With `wait`, repeat the call every `every_s` seconds while no server answers or the server refuses with one of `codes`. Each
    repetition is logged with `level`.
    """
    while True:
        try:
            return call()
        except (CallTimeout, CallRefused) as exc:
            if not wait or (isinstance(exc, CallRefused) and exc.code not in codes):
                raise
            log.log(level, "%s is waiting for a server: %s", name, exc)
        time.sleep(every_s)


def bind_address(where: int | str) -> Address:
    """Return the address to bind. `where` is ``host:port``, a URI, or a port of 127.0.0.1."""
    if isinstance(where, str):
        return Address.parse(where)
    return Address("tcp", "127.0.0.1", check_value("port", where, PORT))


def connect_address(host: object, port: int | None = None) -> Address:
    """Return the address to connect to, from a host and a port, or from a URI in `host`."""
    if not isinstance(host, str):
        raise config_error("server_ip", f"expected a host or a URI as text, not {host!r:.60}")
    if port is None or "://" in host:
        return Address.parse(host)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"  # an IPv6 address
    return Address.parse(f"tcp://{host}:{check_value('port', port, PORT)}")


def address_of(name: str, port: int | str, host: str = "") -> Address:
    """Return the address that the configuration field `name` describes. `port` is a URI, or a port of `host`."""
    if type(port) not in (int, str) or (isinstance(port, str) and "://" not in port and not port.isdecimal()):
        raise config_error(name, f"expected a port, or a URI like tcp://host:port, not {port!r:.60}")
    try:
        return Address.parse(port) if isinstance(port, str) and "://" in port else connect_address(host, int(port))
    except (ConfigError, TransportError) as exc:
        raise config_error(name, str(exc)) from exc


class _ServerConfig:
    """The base class of `ActionConfig` and `TrainerConfig`: their common fields, and the addresses that these describe."""

    _server: ClassVar[str]  # the class of the server
    port_number: int | str
    broadcast_port: int | str | None
    version: str
    bind: str

    def __post_init__(self) -> None:
        check_fields(self)  # type: ignore[arg-type] # each subclass is a dataclass
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
            raise config_error("server_ip", f"expected a host or a URI, not {server_ip!r:.60}")
        if "://" in server_ip:
            address = address_of("server_ip", server_ip)
        else:
            address = address_of("port_number", port, server_ip)
            if address.scheme == "tcp" and isinstance(port, str):
                address = address_of("server_ip", address.port, server_ip)
        if address.is_fresh:
            raise config_error("server_ip", f"{address.uri} is only an address to bind; connect to {self._server}.address")
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
    action_keys: Sequence[str] = option(_KEYS, required=True)
    observation_keys: Sequence[str] = option(_KEYS, required=True)
    broadcast_port: int | str | None = None
    version: str = option(instance_of(str), "0.0.1")
    bind: str = "127.0.0.1"
    image_codecs: Mapping[str, str | ImageFormat] = option(_image_codecs, {})
    timeout_s: float = option(CALL_TIMEOUT_S, 10.0)

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
        rate_limit: Largest average number of custom requests per second of one trainer client, which can make the requests of
            two seconds at once. None: no limit. Items of data stores and networks are not limited.
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
    request_types: Sequence[str] = option(lambda value: tuple(_REQUESTS(value)), ())
    rate_limit: float | None = nullable(number(0, MAX_RATE, above=True))
    version: str = option(instance_of(str), "0.0.1")
    experimental_pipeline_port: int | str | None = None
    bind: str = "127.0.0.1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.experimental_pipeline_port is not None:
            address_of("experimental_pipeline_port", self.experimental_pipeline_port, self.bind)
        broadcast = address_of("broadcast_port", self.broadcast_port, self.bind)  # None, which is not an address, is refused
        if self.bind_address() == broadcast and not self.bind_address().is_fresh:
            raise config_error("broadcast_port", f"it is {self.broadcast_port}, the same as port_number; choose another")

    def terms(self) -> dict[str, Any]:
        """Return the fields that must be equal at the server and a trainer client."""
        return {"version": self.version, "request_types": sorted(self.request_types), "rate_limit": self.rate_limit}
