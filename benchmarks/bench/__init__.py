"""Benchmarks of this library, which the scripts in ``benchmarks/`` run.

Most benchmarks compare this library ("ours") with a reference implementation of the same work (the "baseline").

- `measurements`: all benchmarks by name.
- `pairs`: alternating measurements of ours and the baseline.
- `counting`: a learner process that only counts steps.
- `step`: one step of an actor. `footprint`: import time, memory and CPU use. `collect`: environment steps per second.
"""
