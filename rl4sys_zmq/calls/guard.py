"""Which key may do what, checked for each message before it is decoded."""

from __future__ import annotations

import time

from rl4sys_zmq.config import AccessList, Peer
from rl4sys_zmq.delivery.quota import TokenBucket
from rl4sys_zmq.errors import ProtocolError, Refusal

__all__ = ["Guard", "Meter"]


class Meter:
    """The rates of one key."""

    def __init__(self, peer: Peer, now: float) -> None:
        q = peer.quota
        self.messages = TokenBucket(q.messages_per_s, now) if q.messages_per_s is not None else None
        self.nbytes = TokenBucket(q.bytes_per_s, now) if q.bytes_per_s is not None else None
        self.fetches = TokenBucket(q.fetches_per_min / 60, now) if q.fetches_per_min is not None else None


class Guard:
    """The rules of one server. Without an access list everybody who reaches the sockets may do everything.

    A *user* is a key, as the ZAP handler found it in the list and gave it to the connection; empty without keys. Used in the
    thread that has the sockets.
    """

    def __init__(self, access: AccessList | None) -> None:
        self._access = access
        self._meters: dict[str, Meter] = {}
        self._lapsed: set[str] = set()

    def lapsed(self, unix_s: float) -> set[str]:
        """The users whose keys have expired since the last call and that could read weights."""
        if self._access is None:
            return set()
        over = {name for name, peer in self._access.by_name.items() if peer.expired(unix_s) and "read_weights" in peer.roles}
        fresh, self._lapsed = over - self._lapsed, over
        return fresh

    def replace(self, access: AccessList) -> set[str]:
        """Takes a new list; returns the names that may read less than before, or are gone."""
        old, self._access = self._access, access
        self._meters.clear()
        return {name for name, peer in old.by_name.items() if _reads_less(peer, access.by_name.get(name))} if old else set()

    def admit(self, user: str, nbytes: int, now: float) -> Peer | None:
        """Lets a message in, before it is decoded; returns whose it is, None without keys.

        Raises:
            ProtocolError: ``FORBIDDEN`` when the key is not in the list (any more) or has expired, ``QUOTA`` when it sends too
                much.
        """
        if self._access is None:
            return None
        peer = self._access.by_key.get(user)
        if peer is None:
            raise ProtocolError(Refusal.FORBIDDEN, "this key is not in the list of clients any more")
        if peer.expired(time.time()):
            raise ProtocolError(Refusal.FORBIDDEN, f"the key of {peer.name} has expired")
        meter = self._meters.get(user)
        if meter is None:
            meter = self._meters[user] = Meter(peer, now)
        if meter.messages is not None and not meter.messages.take(1, now):
            raise ProtocolError(Refusal.QUOTA, f"more than {peer.quota.messages_per_s:g} messages/s from {peer.name}")
        if meter.nbytes is not None and not meter.nbytes.take(nbytes, now):
            raise ProtocolError(Refusal.QUOTA, f"more than {peer.quota.bytes_per_s:g} bytes/s from {peer.name}")
        return peer

    @staticmethod
    def check_role(peer: Peer | None, role: str) -> None:
        """Raises ProtocolError (``FORBIDDEN``) when a key does not have a role."""
        if peer is not None and role not in peer.roles:
            raise ProtocolError(Refusal.FORBIDDEN, f"the key of {peer.name} has no role {role}")

    def serves(self, user: str, client_id: str) -> bool:
        """Whether a key may act for a client."""
        if self._access is None:
            return True
        peer = self._access.by_key.get(user)
        return peer is not None and peer.serves(client_id)

    def may(self, user: str, role: str) -> bool:
        """Whether a key is listed, has not expired, and has a role."""
        if self._access is None:
            return True
        peer = self._access.by_key.get(user)
        return peer is not None and role in peer.roles and not peer.expired(time.time())


def _reads_less(before: Peer, after: Peer | None) -> bool:
    """Whether weights that a key could read must be hidden from it."""
    if "read_weights" not in before.roles:
        return False
    if after is None or after.key != before.key or "read_weights" not in after.roles:
        return True
    if after.client_ids is None:
        return False
    return before.client_ids is None or not before.client_ids <= after.client_ids
