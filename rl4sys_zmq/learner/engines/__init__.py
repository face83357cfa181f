"""Engines: the ways in which a learner runs the code that trains a client.

`base` has the interface, `registry` the names. Each other module is one engine: `thread` trains in a thread of the learner's
process, `process` in a separate process. `worker` is the program of such a process.

Engines whose workers run on other machines share these modules:

- on the gateway's side, `remote` (the handle), `worker_link` (the sockets and keys) and `checkpoint_thread` (the disk);
- `remote_start`: the data that an engine passes to the other machine;
- on the other machine, `remote_worker` (the program) and `gateway_storage` (checkpoints, kept by the gateway).
"""
