"""Functions that measure and return benchmark figures. The scripts in ``benchmarks/`` print them.

- `machine`: the machine and versions of a measurement. `pairs`: ours and a baseline in turn, and their ratios.
- `counting`: a learner process that only counts.
- `step`: one step of an actor. `footprint`: import time, memory and overhead. `collect`: environment steps per second.
"""
