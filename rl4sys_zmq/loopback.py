"""A test for addresses that only this machine can reach."""

from __future__ import annotations

import ipaddress


def is_local(uri: str) -> bool:
    """Return True if only this machine can reach a socket that is bound to an address.

    This is true for ipc and inproc, and for tcp on ``localhost``, ::1 and 127.0.0.0/8, also in the IPv6 form
    ``::ffff:127.0.0.1``. Other host names are not resolved, and the function returns False for them.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        scheme, rest = "tcp", uri
    if scheme != "tcp":
        return scheme in ("ipc", "inproc")
    host = rest.rpartition(":")[0].removeprefix("[").removesuffix("]")
    return host == "localhost" or is_loopback(host)


def is_loopback(host: str) -> bool:
    """Return True for the IP addresses ::1 and 127.0.0.0/8, also in the form ``::ffff:127.0.0.1``; False for any other text."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback
