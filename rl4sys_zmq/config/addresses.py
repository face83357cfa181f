"""Addresses in a configuration, as ZeroMQ URIs (``tcp://host:port``, ``ipc://path``, ``inproc://name``), and lists of relays."""

from __future__ import annotations

import fnmatch
import ipaddress
from dataclasses import dataclass
from typing import Self, TypeVar

from rl4sys_zmq.config.options import (
    Check,
    InvalidValue,
    checked_arguments,
    option,
    optional,
    text,
)
from rl4sys_zmq.config.section import ConfigSection
from rl4sys_zmq.errors import ConfigError

_FORMS = "host:port, tcp://host:port, ipc://path or inproc://name"


def connect_uri(value: object) -> str:
    """Return an address as the URI to connect to."""
    return _uri(value, least_port=1)


def dialled(value: object) -> str:
    """Check that a socket can connect to an address, and return the address unchanged."""
    connect_uri(value)
    return str(value)


def bind_uri(value: object) -> str:
    """Return an address as the URI to bind to. Port ``*`` becomes 0, for which the operating system picks a free port."""
    return _uri(value, least_port=0)


def host_name(value: object) -> str:
    """Return a host name or an IP address, without scheme and port. Raise `InvalidValue` for other values."""
    try:
        host, _, _ = _uri(f"tcp://{value}:1" if isinstance(value, str) else value, least_port=1)[len("tcp://") :].rpartition(":")
        if host.startswith("["):
            ipaddress.IPv6Address(host[1:-1])
    except ValueError:
        raise InvalidValue(
            "a host name or an IP address, without scheme and port, and an IPv6 address in brackets, such as plant.example.org, "
            "10.0.0.5 or [fd00::5]"
        ) from None
    return host


def _uri(value: object, least_port: int) -> str:
    if not isinstance(value, str):
        raise InvalidValue(f"an address ({_FORMS})")
    scheme, separator, rest = value.strip().partition("://")
    if not separator:
        scheme, rest = "tcp", value.strip()
    if scheme not in ("tcp", "ipc", "inproc") or not rest or not rest.isprintable():
        raise InvalidValue(f"an address ({_FORMS})")
    if scheme != "tcp":
        return f"{scheme}://{rest}"
    host, _, port = rest.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or any(c.isspace() or c in "/@" for c in host) or (":" in host and not bracketed):
        raise InvalidValue(f"an address ({_FORMS}; an IPv6 host in brackets)")
    if port == "*" and least_port == 0:
        port = "0"
    if not (port.isascii() and port.isdigit() and least_port <= int(port) <= 65535):
        raise InvalidValue(f"an address with a port from {least_port} to 65535")
    return f"tcp://{host}:{int(port)}"


_KEY_CHARS = 40
MAX_RELAYS = 256
"""The largest number of relays in a list."""


def _key(value: object) -> str:
    key = text(value)
    if len(key) != _KEY_CHARS or " " in key:
        raise InvalidValue(f"a public key: {_KEY_CHARS} characters of Z85, from the relay's learner.public")
    return key


def _networks(value: object) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        raise InvalidValue("a list of networks such as 10.1.0.0/16")
    try:
        return tuple(str(ipaddress.ip_network(network, strict=False)) for network in given)
    except ValueError as exc:
        raise InvalidValue(f"a list of networks such as 10.1.0.0/16 ({exc})") from None


def _patterns(value: object) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(p, str) and p for p in given):
        raise InvalidValue("a list of actor ids, in which * stands for any characters")
    return tuple(given)


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class RelayAddress(ConfigSection):
    """The address of a relay and its public key.

    Raises:
        ConfigError: If the value of an option is invalid.
    """

    address: str = option(connect_uri, required=True)
    """The relay's address, as host:port or as a URI."""
    key: str | None = option(optional(_key), None)
    """The relay's public key, from the file ``learner.public`` of its folder of keys. Needed if the relay has keys."""

    @classmethod
    def from_value(cls, value: object) -> Self:
        """Create the object from a value in a file: an address, or a mapping with the options.

        Raises:
            ConfigError: If a key is unknown or a value is invalid.
        """
        return cls.read({"address": value} if isinstance(value, str) else value)


@checked_arguments
@dataclass(frozen=True, kw_only=True)
class RelayRule(RelayAddress):
    """A relay, and the actors that a learner sends to it.

    An actor is sent to the relay if its address is in one of `networks` or its name matches one of `actors`. A relay with
    neither `networks` nor `actors` serves all actors.

    Raises:
        ConfigError: If the value of an option is invalid.
    """

    networks: tuple[str, ...] = option(_networks, ())
    """The networks of the actors, such as ``10.1.0.0/16``."""
    actors: tuple[str, ...] = option(_patterns, ())
    """The names of the actors (``actor_id``). ``*`` stands for any characters, ``?`` for one."""

    def serves(self, actor_id: str, host: str) -> bool:
        """Return True if this relay is meant for an actor.

        Args:
            actor_id: The name of the actor.
            host: The IP address from which the actor has connected; empty if it is unknown.
        """
        if not self.networks and not self.actors:
            return True
        if any(fnmatch.fnmatchcase(actor_id, pattern) for pattern in self.actors):
            return True
        try:
            address = ipaddress.ip_address(host) if host and self.networks else None
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return address is not None and any((mapped or address) in ipaddress.ip_network(network) for network in self.networks)


T = TypeVar("T", bound=RelayAddress)


def _list_of(kind: type[T]) -> Check[tuple[T, ...]]:
    def check(value: object) -> tuple[T, ...]:
        if not isinstance(value, list | tuple) or len(value) > MAX_RELAYS:
            raise InvalidValue(f"a list of at most {MAX_RELAYS} relays, each an address or a mapping with an address")
        return tuple(kind.from_value(item) for item in value)

    return check


relay_addresses: Check[tuple[RelayAddress, ...]] = _list_of(RelayAddress)
relay_rules: Check[tuple[RelayRule, ...]] = _list_of(RelayRule)


def check_relay_keys(relays: tuple[RelayAddress, ...]) -> None:
    """Check that each relay has a public key, which actors and learners with keys need. Over inproc, keys have no effect."""
    for place, relay in enumerate(relays):
        if relay.key is None and not relay.address.startswith("inproc:"):
            key = f"relays[{place}].key"
            raise ConfigError(f"{key} is missing: {relay.address} needs keys too; give the key in its learner.public", key=key)
