"""CURVE keys for remote workers.

A learner creates one key pair of its own for each run, and a fresh key pair for each assignment of a client to a worker. The
two sockets of an assignment have a ZAP domain that accepts only this key. No key is stored on a disk.
"""

from __future__ import annotations

import itertools
import os

from rl4sys_zmq.resource import Resource
from rl4sys_zmq.security.keys import ServerKeys, curve_server, new_key_pair
from rl4sys_zmq.security.zap import Denied, PeerCredentials, register_domain
from rl4sys_zmq.transports import Secure
from rl4sys_zmq.transports.network import Keys

_numbers = itertools.count()


class WorkerKeys:
    """The key pair of a learner for the connections of its remote workers, for one run."""

    def __init__(self) -> None:
        self._own = ServerKeys(new_key_pair())

    def admit(self) -> WorkerAccess:
        """Create a key pair for one worker, and accept it from now on.

        Raises:
            TransportError: If libzmq's authentication requests cannot be answered in this process.
        """
        return WorkerAccess(self._own)


class WorkerAccess(Resource):
    """The access of one worker to two sockets of a learner, by a key pair that is accepted nowhere else.

    Call `close` after the sockets are closed.
    """

    def __init__(self, own: ServerKeys) -> None:
        pair = new_key_pair()
        # worker's public key, its secret key, and the learner's public key. They are secret.
        self.keys: Keys = (pair.public, pair.secret, own.learner.public)
        self._revoked = False
        name = f"rl4sys-worker-{os.getpid()}-{next(_numbers)}"
        self._domain = register_domain(name, self._check)
        # sets the CURVE options on a socket that is about to be bound, so that only this worker can connect to it
        self.secure: Secure = curve_server(own, name)

    def _check(self, credentials: PeerCredentials) -> str | Denied:
        if credentials.key_z85 != self.keys[0]:
            return Denied("foreign")
        return Denied("revoked") if self._revoked else credentials.key_z85

    def revoke(self) -> None:
        """Accept no new connection of the worker. Connections that exist stay open."""
        self._revoked = True

    def close(self) -> None:
        """Stop answering libzmq's authentication requests for the two sockets."""
        self._domain.close()
