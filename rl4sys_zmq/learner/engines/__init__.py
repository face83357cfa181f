"""Engines: the ways in which a learner runs the code that trains a client (a policy with its learner).

`base` has the interface, `registry` the names. Each other module is one engine: `thread` trains in a thread of the learner's
process, `process` in a separate process. `worker` is the program of such a process.
"""
