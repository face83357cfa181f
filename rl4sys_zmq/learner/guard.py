"""Who may say what to the gateway: rights and quotas of an actor's key, beyond what every server checks."""

from __future__ import annotations

from collections.abc import Iterable

from rl4sys_zmq.calls.guard import Guard
from rl4sys_zmq.config import Peer
from rl4sys_zmq.errors import ProtocolError, Refusal
from rl4sys_zmq.wire.messages import Hello

__all__ = ["ActorGuard"]


class ActorGuard(Guard):
    """The rules of one learner. Used in the gateway thread."""

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
        return self.may(user, "read_weights") and self.serves(user, client_id)
