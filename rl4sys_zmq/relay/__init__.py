"""The relay: a process that receives the weights of policies from a learner, or from another relay, and passes them on.

Relays form a tree with the learner at its root. The learner then sends each version once per relay that it feeds, and not once
per actor. Only weights go through relays. Actors send their segments directly to the learner.

- `Relay` is the object that you start, query and close. `RelayConfig` is its configuration.

The modules: `thread` has the sockets, and `core` makes the decisions, without I/O. `followed` holds the weights of one client.
"""

from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.relay.relay import Relay

__all__ = ["Relay", "RelayConfig"]
