"""Users and their keys: authentication of connections, authorization of messages, and quotas.

- `keys`: CURVE key pairs, their files, and the socket options for CURVE.
- `access`: the access list ``users.toml``, with quotas and the token buckets (rate limits) that enforce them.
- `zap`: authentication of connections for libzmq, in one thread per process.
- `authenticator`: the keys and the access list of one server; keys for remote workers.
- `authorizer`: authorization of each message, for learners and services.

Two related modules are outside this package, because the configuration and the journal also need them: `rl4sys_zmq.loopback`
and `rl4sys_zmq.private`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl4sys_zmq._lazy import lazy_getattr

if TYPE_CHECKING:
    from rl4sys_zmq.security.access import USERS_FILE, AccessList, TokenBucket, User, load_access
    from rl4sys_zmq.security.authenticator import Authenticator, WorkerAccess
    from rl4sys_zmq.security.authorizer import Authorizer
    from rl4sys_zmq.security.keys import (
        LEARNER_PUBLIC,
        LEARNER_SECRET,
        KeyPair,
        UserKeys,
        curve_client,
        new_key_pair,
        read_learner_public,
        read_server_keys,
        read_user_keys,
        write_learner_public,
        write_server_keys,
        write_user_keys,
    )

__all__ = [
    "AccessList",
    "Authenticator",
    "Authorizer",
    "KeyPair",
    "LEARNER_PUBLIC",
    "LEARNER_SECRET",
    "TokenBucket",
    "USERS_FILE",
    "User",
    "UserKeys",
    "WorkerAccess",
    "curve_client",
    "load_access",
    "new_key_pair",
    "read_learner_public",
    "read_server_keys",
    "read_user_keys",
    "write_learner_public",
    "write_server_keys",
    "write_user_keys",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "access": ("USERS_FILE", "AccessList", "TokenBucket", "User", "load_access"),
        "authenticator": ("Authenticator", "WorkerAccess"),
        "authorizer": ("Authorizer",),
        "keys": (
            "LEARNER_PUBLIC",
            "LEARNER_SECRET",
            "KeyPair",
            "UserKeys",
            "curve_client",
            "new_key_pair",
            "read_learner_public",
            "read_server_keys",
            "read_user_keys",
            "write_learner_public",
            "write_server_keys",
            "write_user_keys",
        ),
    },
)
