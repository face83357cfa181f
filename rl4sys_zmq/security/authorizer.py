"""Authorization: what the user of a connection may do, checked before a message is decoded and again before it takes effect."""

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
    """The rights and quotas of one server's users: of a learner's actors and operators, and of a service's callers alike.

    ZAP marks each connection with the public key of its user; `admit` returns the `User` for such a key. Every other check
    takes that `User`, or None if there is no access list; then everything is allowed. A check that fails raises
    `ProtocolError` with the refusal's code. The thread that has the sockets asks; another thread may call `replace`.
    """

    def __init__(self, access: AccessList | None) -> None:
        """Take the access list in force; None: the server has no keys, and any peer may do everything."""
        self._access = access
        self._meters: dict[str, QuotaMeter] = {}
        self._lapsed: set[str] = set()

    # ---- the access list

    def replace(self, access: AccessList) -> set[str]:
        """Put a new access list in force; return the names of users that may read less than before, or are gone."""
        old, self._access = self._access, access
        self._meters.clear()
        return {name for name, user in old.by_name.items() if _reads_less(user, access.by_name.get(name))} if old else set()

    def lapsed(self, unix_s: float) -> set[str]:
        """Return the names of users that could read weights and whose keys have expired since the last call."""
        if self._access is None:
            return set()
        over = {name for name, user in self._access.by_name.items() if user.expired(unix_s) and READ_ROLE in user.roles}
        fresh, self._lapsed = over - self._lapsed, over
        return fresh

    # ---- every message

    def admit(self, key: str, nbytes: int, now: float) -> User | None:
        """Return the user of a message before it is decoded, or None without an access list.

        Args:
            key: the public key of the connection.
            nbytes: the size of the message.
            now: on the monotonic clock, in seconds.

        Raises:
            ProtocolError: ``FORBIDDEN`` if the key is not listed (any more) or has expired, ``QUOTA`` if its user sends too
                much.
        """
        if self._access is None:
            return None
        user = self._access.by_key.get(key)
        if user is None:
            raise ProtocolError(Refusal.FORBIDDEN, "this key is not in the list of users any more")
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
            raise ProtocolError(Refusal.FORBIDDEN, f"the key of {user.name} has no role {role}")

    @staticmethod
    def check_client(user: User | None, client_id: str) -> None:
        """Raise ProtocolError (``IDENTITY``) if a user may not act for a client."""
        if user is not None and not user.serves(client_id):
            raise ProtocolError(Refusal.IDENTITY, f"the key of {user.name} is not for client {client_id!r:.80}")

    def may_read(self, key: str, client_id: str | None = None) -> bool:
        """Return True if the user of a key may subscribe: to a client's weights, or without `client_id` to a service's topics."""
        if self._access is None:
            return True
        user = self._access.by_key.get(key)
        if user is None or READ_ROLE not in user.roles or user.expired(time.time()):
            return False
        return client_id is None or user.serves(client_id)

    # ---- actors

    def check_hello(self, user: User | None, hello: Hello, owner: str, live: int) -> None:
        """Check that an actor may join.

        Args:
            user: the user of the connection.
            hello: the actor's greeting.
            owner: the name of the user that the actor_id belongs to; empty if it belongs to none.
            live: how many other actors of this user are live.

        Raises:
            ProtocolError: ``IDENTITY`` for a client or an actor of another user, ``FORBIDDEN`` without the role, ``QUOTA`` for
                too many actors.
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
        """Check that an actor may ask for whole weights.

        Raises:
            ProtocolError: ``FORBIDDEN`` without the role, ``QUOTA`` if it asks too often.
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
            raise ProtocolError(Refusal.QUOTA, f"a segment of {longest} steps; the quota of this key is {limit}")

    def _new_meter(self, user: User, now: float) -> QuotaMeter:
        meter = self._meters[user.key] = QuotaMeter(user.quota, now)
        return meter


def _reads_less(before: User, after: User | None) -> bool:
    """Return True if weights that a user could read must be hidden from it."""
    if READ_ROLE not in before.roles:
        return False
    if after is None or after.key != before.key or READ_ROLE not in after.roles:
        return True
    if after.client_ids is None:
        return False
    return before.client_ids is None or not before.client_ids <= after.client_ids
