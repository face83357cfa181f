"""The I/O thread of an actor, with the objects that only this thread uses: sockets, session, spool and policy cache."""
