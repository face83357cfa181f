"""Predictions of the load of a learner, from constants that were measured on a machine.

- `workload`: the planned actors, segments, weights and options (`Workload`), and its messages and bytes per second (`Traffic`).
- `constants`: the measured times (`Constants`), and a file of the user that keeps them.
- `resources`: the load of each resource (`predict`), such as the interpreter, the journal, memory and network, and the layout
  that would carry a load beyond one process (`propose`).
- `measure`: the measurement of the constants, with `measure_paths` and `harness`.

All but the functions for the file and the measurements are pure.
"""
