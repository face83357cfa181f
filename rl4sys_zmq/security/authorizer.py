"""Authorization of messages by the rights of the user that sent them.

The key and the rates of a user are checked before a message is decoded. The role and the client are checked before the message
takes effect.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from rl4sys_zmq.errors import ProtocolError, RefusalReason
from rl4sys_zmq.security.access import AccessList, User, UserRateLimits
from rl4sys_zmq.wire.messages import Hello

READ_ROLE = "read_weights"
READERS = frozenset({READ_ROLE, "relay"})


class Authorizer:
    """The checker of the rights and quotas of a server's users.

    ZeroMQ marks each message with the public key of the connection (`Socket.user`). `admit` returns the `User` for that key.
    The other checks take this `User`. If the server has no access list, the user is None, and everything is allowed. A check
    that fails raises `ProtocolError` with the code of the refusal. The thread that owns the sockets calls the checks. Another
    thread can call `replace`.
    """

    def __init__(self, access: AccessList | None) -> None:
        """Create the object. Without an access list, the server uses no keys, and every peer has all rights."""
        self._access = access
        self._meters: dict[str, UserRateLimits] = {}
        self._lapsed: set[str] = set()

    def replace(self, access: AccessList) -> set[str]:
        """Use a new access list from now on, and reset all rate limits.

        Return the names of the users that may receive the weights of fewer clients than before.
        """
        old, self._access = self._access, access
        self._meters.clear()
        return {name for name, user in old.by_name.items() if _reads_less(user, access.by_name.get(name))} if old else set()

    def lapsed(self, unix_s: float) -> set[str]:
        """Return the names of the users whose keys have expired since the last call. They may no longer receive weights."""
        if self._access is None:
            return set()
        over = {name for name, user in self._access.by_name.items() if user.expired(unix_s) and READERS & user.roles}
        fresh, self._lapsed = over - self._lapsed, over
        return fresh

    def admit(self, key: str, nbytes: int, now: float) -> User | None:
        """Return the user that sent a message, before it is decoded. None if there is no access list.

        Raises:
            ProtocolError: ``FORBIDDEN`` if the key is no longer in the access list or has expired, ``QUOTA`` if the user has
                exceeded its limit on messages or bytes per second.
        """
        if self._access is None:
            return None
        user = self._access.by_key.get(key)
        if user is None:
            raise ProtocolError(RefusalReason.FORBIDDEN, "this key is no longer in the list of users")
        if user.expired(time.time()):
            raise ProtocolError(RefusalReason.FORBIDDEN, f"the key of {user.name} has expired")
        meter = self._meter_of(user, now)
        if meter.messages is not None and not meter.messages.take(1, now):
            raise ProtocolError(RefusalReason.QUOTA, f"more than {user.quota.messages_per_s:g} messages/s from {user.name}")
        if meter.nbytes is not None and not meter.nbytes.take(nbytes, now):
            raise ProtocolError(RefusalReason.QUOTA, f"more than {user.quota.bytes_per_s:g} bytes/s from {user.name}")
        return user

    @staticmethod
    def check_role(user: User | None, role: str) -> None:
        """Raise ProtocolError (``FORBIDDEN``) if the user does not have this role."""
        if user is not None and role not in user.roles:
            raise ProtocolError(RefusalReason.FORBIDDEN, f"the key of {user.name} does not have the role {role}")

    @staticmethod
    def limited_status(user: User | None) -> dict[str, Any]:
        """Return the status for a user without the role ``admin``: only the user's rights.

        Return ``{}`` for an admin, or if the server has no access list. They get the full status, which is not from here.
        """
        if user is None or "admin" in user.roles:
            return {}
        client_ids = None if user.client_ids is None else sorted(user.client_ids)
        return {"limited": f"the key of {user.name} does not have the role admin", "client_ids": client_ids}

    @staticmethod
    def visible_status(user: User | None, report: dict[str, Any]) -> dict[str, Any]:
        """Return a server's status without the clients for which the user may not act. Totals over all clients stay."""
        if user is None or user.client_ids is None:
            return report

        def own(by_client: dict[str, Any]) -> dict[str, Any]:
            return {client_id: part for client_id, part in by_client.items() if user.may_act_for(client_id)}

        relays = [{**relay, "children": own(relay["children"])} for relay in report.get("relays", ())]
        system = [record for record in report.get("system", ()) if user.may_act_for(record["client_id"])]
        return {**report, "clients": own(report.get("clients", {})), "relays": relays, "system": system}

    @staticmethod
    def check_client(user: User | None, client_id: str) -> None:
        """Raise ProtocolError (``IDENTITY``) if the user may not act for this client."""
        if user is not None and not user.may_act_for(client_id):
            raise ProtocolError(RefusalReason.IDENTITY, f"the key of {user.name} is not valid for client {client_id!r:.80}")

    def may_read(self, key: str, client_id: str | None = None) -> bool:
        """Return True if the user with this public key may receive the weights of this client (None: of any client)."""
        if self._access is None:
            return True
        user = self._access.by_key.get(key)
        if user is None or not READERS & user.roles or user.expired(time.time()):
            return False
        return client_id is None or user.may_act_for(client_id)

    def check_hello(self, user: User | None, hello: Hello, owner: str, live: int) -> None:
        """Check that an actor may open a session (its message HELLO).

        `owner` is the name of the user that has used this ``actor_id`` before. `live` is the number of this user's other
        connected actors.

        Raises:
            ProtocolError: ``IDENTITY`` if the user may not act for the client, or the ``actor_id`` belongs to another user;
                ``FORBIDDEN`` if the user does not have the necessary role; ``QUOTA`` if the user has too many actors.
        """
        if user is None:
            return
        self.check_client(user, hello.client_id)
        if owner not in ("", user.name):
            raise ProtocolError(RefusalReason.IDENTITY, f"actor {hello.actor_id!r:.80} belongs to another key")
        self.check_role(user, "submit" if hello.submits else READ_ROLE)
        if user.quota.actors is not None and live >= user.quota.actors:
            raise ProtocolError(RefusalReason.QUOTA, f"{live} actors of {user.name} are live; its quota is {user.quota.actors}")

    def check_fetch(self, user: User | None, now: float) -> None:
        """Check that an actor may request the complete weights.

        Raises:
            ProtocolError: ``FORBIDDEN`` if the user has neither the role ``read_weights`` nor ``relay``, ``QUOTA`` if its
                requests are too frequent.
        """
        if user is None:
            return
        self.check_reader(user)
        meter = self._meter_of(user, now)
        if meter.fetches is not None and not meter.fetches.take(1, now):
            raise ProtocolError(RefusalReason.QUOTA, f"more than {user.quota.fetches_per_min:g} fetches/min from {user.name}")

    @staticmethod
    def check_reader(user: User | None) -> None:
        """Raise ProtocolError (``FORBIDDEN``) if the user may not receive weights."""
        if user is not None and not READERS & user.roles:
            raise ProtocolError(RefusalReason.FORBIDDEN, f"the key of {user.name} does not have the role {READ_ROLE} or relay")

    @staticmethod
    def check_steps(user: User | None, steps: Iterable[int]) -> None:
        """Raise ProtocolError (``QUOTA``) if one of the segments has more steps than the user may send."""
        limit = user.quota.segment_steps if user is not None else None
        if limit is not None and (longest := max(steps, default=0)) > limit:
            raise ProtocolError(RefusalReason.QUOTA, f"a segment has {longest} steps; the quota of this key is {limit}")

    def _meter_of(self, user: User, now: float) -> UserRateLimits:
        if (meter := self._meters.get(user.key)) is None:
            meter = self._meters[user.key] = UserRateLimits(user.quota, now)
        return meter


def _reads_less(before: User, after: User | None) -> bool:
    """Return True if a user may receive the weights of fewer clients than before. `after` is its new entry, or None."""
    if not READERS & before.roles:
        return False
    if after is None or after.key != before.key or not READERS & after.roles:
        return True
    if after.client_ids is None:
        return False
    return before.client_ids is None or not before.client_ids <= after.client_ids
