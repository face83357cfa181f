"""What benchmarks are made of: functions that measure and return figures. Scripts in ``benchmarks/`` print them.

- `machine`: what a figure was measured on. `pairs`: ours and a baseline in turn, and the ratios.
- `counting`: a learner in a process of its own that only counts.
- `step`: one step of an actor. `footprint`: import, memory, host overhead. `collect`: environment steps per second.
"""
