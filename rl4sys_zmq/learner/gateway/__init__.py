"""The gateway thread: the learner's network sockets, the sessions of actors, and the clients.

`gateway` has the sockets, and `core` makes its decisions without I/O.
"""
