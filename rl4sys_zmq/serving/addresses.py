"""Hosts, ports and URIs from arguments and configurations as `Address` objects."""

from __future__ import annotations

from rl4sys_zmq.errors import ConfigError, TransportError
from rl4sys_zmq.transports import Address


def bind_address(where: int | str) -> Address:
    """Return the address to bind. `where` is ``host:port``, a URI, or a port of 127.0.0.1."""
    if isinstance(where, str):
        return Address.parse(where)
    return Address("tcp", "127.0.0.1", _checked(where))


def connect_address(host: object, port: int | None = None) -> Address:
    """Return the address to connect to, from a host and a port, or from a URI in `host`."""
    if not isinstance(host, str):
        raise ConfigError(f"the server is {host!r:.60}; expected a host or a URI as text", key="server_ip")
    if port is None or "://" in host:
        return Address.parse(host)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"  # an IPv6 address
    return Address.parse(f"tcp://{host}:{_checked(port)}")


def address_of(name: str, port: int | str, host: str = "") -> Address:
    """Return the address in a field of a configuration, which has a URI, or a port of `host`."""
    if type(port) not in (int, str) or (isinstance(port, str) and "://" not in port and not port.isdecimal()):
        raise ConfigError(f"{name} is {port!r:.60}; expected a port, or a URI like tcp://host:port", key=name)
    try:
        return Address.parse(port) if isinstance(port, str) and "://" in port else connect_address(host, int(port))
    except (ConfigError, TransportError) as exc:
        raise ConfigError(f"{name}: {exc}", key=name) from exc


def _checked(port: int) -> int:
    if type(port) is not int or not 0 <= port <= 65535:
        raise ConfigError(f"{port!r} is not a port; expected a number from 0 to 65535 (0: the system picks one)", key="port")
    return port
