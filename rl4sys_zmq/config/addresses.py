"""Conversion of addresses from a configuration to ZeroMQ URIs: ``tcp://host:port``, ``ipc://path`` or ``inproc://name``."""

from __future__ import annotations

import ipaddress

from rl4sys_zmq.config.options import InvalidValue

_FORMS = "host:port, tcp://host:port, ipc://path or inproc://name"


def connect_uri(value: object) -> str:
    """Return an address as the URI to connect to."""
    return _uri(value, least_port=1)


def dialled(value: object) -> str:
    """Accept an address to connect to, and return it unchanged."""
    connect_uri(value)
    return str(value)


def bind_uri(value: object) -> str:
    """Return an address as the URI to bind to. Port ``*`` becomes 0, for which the operating system picks a free port."""
    return _uri(value, least_port=0)


def host_name(value: object) -> str:
    """Accept a host name or an IP address, without scheme and port."""
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
