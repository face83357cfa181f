"""Authorization of messages by the rights of their user.

A message is checked before it is decoded, and again before it takes effect.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.security.access import AccessList, User
from rl4sys_zmq.security.quota import QuotaMeter
from rl4sys_zmq.wire.messages import Hello

__all__ = ["Authorizer"]

READ_ROLE = "read_weights"


class Authorizer:
    """The rights and quotas of one server's users: actors, operators and callers of services.

    ZAP marks each connection with the public key of its user, and `admit` returns the `User` for that key. The other checks
    take this `User`, or None if there is no access list; then everything is allowed. A check that fails raises
    `ProtocolError` with the code of the refusal. The thread with the sockets calls the checks. Another thread can call
    `replace`.
    """

    def __init__(self, access: AccessList | None) -> None:
        """Start with an access list. None: the server has no keys, and every peer has all rights."""
        self._access = access
        self._meters: dict[str, QuotaMeter] = {}
        self._lapsed: set[str] = set()

    # ---- the access list

    def replace(self, access: AccessList) -> set[str]:
        """Put a new access list in force; return the names of users that lost rights to read weights or were removed."""
        old, self._access = self._access, access
        self._meters.clear()
        return {name for name, user in old.by_name.items() if _reads_less(user, access.by_name.get(name))} if old else set()

    def lapsed(self, unix_s: float) -> set[str]:
        """Return the names of users with the role ``read_weights`` whose keys have expired since the last call."""
        if self._access is None:
            return set()
        over = {name for name, user in self._access.by_name.items() if user.expired(unix_s) and READ_ROLE in user.roles}
        fresh, self._lapsed = over - self._lapsed, over
        return fresh

    # ---- every message

    def admit(self, key: str, nbytes: int, now: float) -> User | None:
        """Return the user of a message before it is decoded, or None if there is no access list.

        Args:
            key: The public key of the connection.
            nbytes: The size of the message, in bytes.
            now: The time on the monotonic clock, in seconds.

        Raises:
            ProtocolError: ``FORBIDDEN`` if the key is no longer listed or has expired, ``QUOTA`` if the user is over its limits.
        """
        if self._access is None:
            return None
        user = self._access.by_key.get(key)
        if user is None:
            raise ProtocolError(Refusal.FORBIDDEN, "this key is no longer in the list of users")
        if user.expired(time.time()):
            raise ProtocolError(Refusal.FORBIDDEN, f"the key of {user.name} has expired")
        meter = self._meters.get(key) or self._new_meter(user, now)
        if meter.messages is not None and not meter.messages.take(1, now):
            raise ProtocolError(Refusal.QUOTA, f"more than {user.quota.messages_per_s:g} messages/s from {user.name}")
        if meter.nbytes is not None and not meter.nbytes.take(nbytes, now):
            raise ProtocolError(Refusal.QUOTA, f"more than {user.quota.bytes_per_s:g} bytes/s from {user.name}")
        return user

    # ---- roles and client_ids

    @staticmethod
    def check_role(user: User | None, role: str) -> None:
        """Raise ProtocolError (``FORBIDDEN``) if a user does not have a role."""
        if user is not None and role not in user.roles:
            raise ProtocolError(Refusal.FORBIDDEN, f"the key of {user.name} does not have the role {role}")

    @staticmethod
    def check_client(user: User | None, client_id: str) -> None:
        """Raise ProtocolError (``IDENTITY``) if a user may not act for a client."""
        if user is not None and not user.may_act_for(client_id):
            raise ProtocolError(Refusal.IDENTITY, f"the key of {user.name} is not valid for client {client_id!r:.80}")

    def may_read(self, key: str, client_id: str | None = None) -> bool:
        """Return True if the user of a key may subscribe: to a client's weights, or without `client_id` to any topic."""
        if self._access is None:
            return True
        user = self._access.by_key.get(key)
        if user is None or READ_ROLE not in user.roles or user.expired(time.time()):
            return False
        return client_id is None or user.may_act_for(client_id)

    # ---- actors

    def check_hello(self, user: User | None, hello: Hello, owner: str, live: int) -> None:
        """Check that an actor may join.

        Args:
            user: The user of the connection.
            hello: The actor's HELLO message.
            owner: The name of the user to which the actor_id belongs; empty if it belongs to no user.
            live: The number of other live actors of this user.

        Raises:
            ProtocolError: ``IDENTITY`` if the client or the actor belongs to another user, ``FORBIDDEN`` if the role is missing,
                ``QUOTA`` if the user has too many actors.
        """
        if user is None:
            return
        self.check_client(user, hello.client_id)
        if owner not in ("", user.name):
            raise ProtocolError(Refusal.IDENTITY, f"actor {hello.actor_id!r:.80} belongs to another key")
        self.check_role(user, "submit" if hello.submits else READ_ROLE)
        if user.quota.actors is not None and live >= user.quota.actors:
            raise ProtocolError(Refusal.QUOTA, f"{live} actors of {user.name} are live; its quota is {user.quota.actors}")

    def check_fetch(self, user: User | None, now: float) -> None:
        """Check that an actor may request the complete weights.

        Raises:
            ProtocolError: ``FORBIDDEN`` if the role is missing, ``QUOTA`` if the requests are too frequent.
        """
        if user is None:
            return
        self.check_role(user, READ_ROLE)
        meter = self._meters.get(user.key) or self._new_meter(user, now)
        if meter.fetches is not None and not meter.fetches.take(1, now):
            raise ProtocolError(Refusal.QUOTA, f"more than {user.quota.fetches_per_min:g} fetches/min from {user.name}")

    @staticmethod
    def check_steps(user: User | None, steps: Iterable[int]) -> None:
        """Raise ProtocolError (``QUOTA``) if a segment is longer than a user may send."""
        limit = user.quota.segment_steps if user is not None else None
        if limit is not None and (longest := max(steps, default=0)) > limit:
            raise ProtocolError(Refusal.QUOTA, f"a segment has {longest} steps; the quota of this key is {limit}")

    def _new_meter(self, user: User, now: float) -> QuotaMeter:
        meter = self._meters[user.key] = QuotaMeter(user.quota, now)
        return meter


def _reads_less(before: User, after: User | None) -> bool:
    """Return True if a user must no longer receive some weights that it could read before."""
    if READ_ROLE not in before.roles:
        return False
    if after is None or after.key != before.key or READ_ROLE not in after.roles:
        return True
    if after.client_ids is None:
        return False
    return before.client_ids is None or not before.client_ids <= after.client_ids
