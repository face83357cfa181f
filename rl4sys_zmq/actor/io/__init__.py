"""The I/O thread of an actor, and what it alone owns: the sockets, the session, the spool and the policy cache."""
