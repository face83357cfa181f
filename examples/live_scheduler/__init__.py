"""A batch daemon that really runs, with an actor in it. Read the modules in this order.

- `jobs`: a job, and what a scheduler sees of the waiting ones.
- `journal`: all submitted jobs, on disk.
- `processes`: jobs as processes that outlive the daemon and run once.
- `schedulers`: the classic schedulers of `job_scheduling`, a random one, and an actor with a learned policy.
- `daemon`: the daemon, on a Unix socket.
- `client`: its users, and a load generator.
- `compare`: the schedulers on the same arrivals, with their decision times.
"""
