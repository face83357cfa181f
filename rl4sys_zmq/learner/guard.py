"""Who may say what to the gateway: rights and quotas of the authenticated sender, checked before a message is decoded."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rl4sys_zmq.config import AccessList, Peer
from rl4sys_zmq.delivery.quota import TokenBucket
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.wire.messages import Hello

__all__ = ["Guard"]


class _Meter:
    """The rates of one key."""

    def __init__(self, peer: Peer, now: float) -> None:
        q = peer.quota
        self.messages = TokenBucket(q.messages_per_s, now) if q.messages_per_s is not None else None
        self.nbytes = TokenBucket(q.bytes_per_s, now) if q.bytes_per_s is not None else None
        self.fetches = TokenBucket(q.fetches_per_min / 60, now) if q.fetches_per_min is not None else None


class Guard:
    """The rules of one learner. Without an access list everybody who reaches the sockets may do everything.

    A *user* is a key, as the ZAP handler found it in the list and gave it to the connection; empty without keys. Used in the
    gateway thread.
    """

    def __init__(self, access: AccessList | None) -> None:
        self._access = access
        self._meters: dict[str, _Meter] = {}
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
            meter = self._meters[user] = _Meter(peer, now)
        if meter.messages is not None and not meter.messages.take(1, now):
            raise ProtocolError(Refusal.QUOTA, f"more than {peer.quota.messages_per_s:g} messages/s from {peer.name}")
        if meter.nbytes is not None and not meter.nbytes.take(nbytes, now):
            raise ProtocolError(Refusal.QUOTA, f"more than {peer.quota.bytes_per_s:g} bytes/s from {peer.name}")
        return peer

    def check_hello(self, peer: Peer | None, hello: Hello, owner: str, live: int) -> None:
        """Lets an actor join.

        Args:
            peer: whose key.
            hello: what it says.
            owner: the user that this actor_id belongs to, empty for nobody.
            live: how many actors of this key are live besides.

        Raises:
            ProtocolError: ``IDENTITY`` for a client or actor of somebody else, ``FORBIDDEN`` without the role, ``QUOTA`` with
                too many actors.
        """
        if peer is None:
            return
        if not peer.serves(hello.client_id):
            raise ProtocolError(Refusal.IDENTITY, f"the key of {peer.name} is not for client {hello.client_id!r:.80}")
        if owner not in ("", peer.name):
            raise ProtocolError(Refusal.IDENTITY, f"actor {hello.actor_id!r:.80} belongs to another key")
        role = "submit" if hello.submits else "read_weights"
        if role not in peer.roles:
            raise ProtocolError(Refusal.FORBIDDEN, f"the key of {peer.name} has no role {role}")
        if peer.quota.actors is not None and live >= peer.quota.actors:
            raise ProtocolError(Refusal.QUOTA, f"{live} actors of {peer.name} are live; its quota is {peer.quota.actors}")

    @staticmethod
    def check_role(peer: Peer | None, role: str) -> None:
        """Raises ProtocolError (``FORBIDDEN``) when a key does not have a role."""
        if peer is not None and role not in peer.roles:
            raise ProtocolError(Refusal.FORBIDDEN, f"the key of {peer.name} has no role {role}")

    def check_fetch(self, peer: Peer | None, now: float) -> None:
        """Lets an actor ask for weights.

        Raises:
            ProtocolError: ``FORBIDDEN`` without the role, ``QUOTA`` when it asks too often.
        """
        if peer is None:
            return
        self.check_role(peer, "read_weights")
        meter = self._meters[peer.key]
        if meter.fetches is not None and not meter.fetches.take(1, now):
            raise ProtocolError(Refusal.QUOTA, f"more than {peer.quota.fetches_per_min:g} fetches/min from {peer.name}")

    @staticmethod
    def check_steps(peer: Peer | None, steps: Iterable[int]) -> None:
        """Raises ProtocolError (``QUOTA``) when a segment is longer than a key may send."""
        limit = peer.quota.segment_steps if peer is not None else None
        if limit is not None and (longest := max(steps, default=0)) > limit:
            raise ProtocolError(Refusal.QUOTA, f"a segment of {longest} steps; the quota of this key is {limit}")

    def may_read(self, user: str, client_id: str) -> bool:
        """Whether a subscription to a client's weights is granted."""
        if self._access is None:
            return True
        peer = self._access.by_key.get(user)
        allowed = peer is not None and "read_weights" in peer.roles and peer.serves(client_id)
        return allowed and not (peer is not None and peer.expired(time.time()))


def _reads_less(before: Peer, after: Peer | None) -> bool:
    """Whether weights that a key could read must be hidden from it."""
    if "read_weights" not in before.roles:
        return False
    if after is None or after.key != before.key or "read_weights" not in after.roles:
        return True
    if after.client_ids is None:
        return False
    return before.client_ids is None or not before.client_ids <= after.client_ids
