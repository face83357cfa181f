"""Workers on other machines: the engine ``ray``, and the parts for engines of your own.

`handle` is the gateway's side of a worker, `worker` the program on the other machine, and `worker_side_storage` its checkpoints.
"""
