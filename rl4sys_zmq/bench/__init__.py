"""What benchmarks are made of: functions that measure and return figures. Scripts in ``benchmarks/`` print them.

- `machine`: what a figure was measured on. `pairs`: ours and a baseline in turn, and the ratios.
- `ingress`: trajectories into a learner; `ingress_load`: what sends them.
"""
