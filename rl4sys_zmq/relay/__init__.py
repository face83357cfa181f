"""The relay: a process that receives the weights of policies from a learner or another relay, and passes them on.

`Relay` is the object that you start, query and close. Its thread has the sockets, and `core` decides, without I/O. `followed`
holds the weights of one client.
"""

from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.relay.relay import Relay

__all__ = ["Relay", "RelayConfig"]
