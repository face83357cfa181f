"""The one rule that says which hosts no other machine can reach."""

from __future__ import annotations

import ipaddress

__all__ = ["is_loopback"]


def is_loopback(host: str) -> bool:
    """True for ``localhost``, 127.0.0.0/8, ::1, and these as IPv6 writes IPv4 (``::ffff:127.0.0.1``).

    Other host names are not looked up, so a name that happens to mean this machine counts as reachable.

    Args:
        host: a host name or an IP address, without brackets.
    """
    if host == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback
