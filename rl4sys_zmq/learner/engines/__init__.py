"""Engines: the ways in which a learner runs the code that trains a client.

`base` has the interface and the registry. `thread` and `process` are engines, and `worker` is the program of a worker
process, and `remote_start` the data with which it starts. For workers on other machines (`rl4sys_zmq.remote`), `worker_link`
has the sockets and keys, and `checkpoint_thread` the disk.
"""
