"""Users and their keys: authentication of connections, authorization of messages, and quotas.

- `keys`: CURVE key pairs, their files, and the socket options for CURVE.
- `access`: the access list ``users.toml``, with quotas and the token buckets (rate limits) that enforce them.
- `zap`: authentication of connections for libzmq, in one thread per process.
- `authenticator`: the keys and the access list of one server; keys for remote workers.
- `authorizer`: authorization of each message, for learners and services.

Two related modules are outside this package, because the configuration and the journal also need them: `rl4sys_zmq.loopback`
and `rl4sys_zmq.private`.
"""
