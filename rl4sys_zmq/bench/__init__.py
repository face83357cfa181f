"""Measuring: ours and a baseline in the same process layout, in interleaved pairs. ``rl4sys-learner bench`` and ``benchmarks/`` call it.

- `Result`, `compare`, `table`: one question's figures, how they are come by, how they are shown.
- `machine`: what to record beside them.
"""

from rl4sys_zmq.bench.machine import machine
from rl4sys_zmq.bench.pairs import Ratio, Result, compare, save, table

__all__ = ["Ratio", "Result", "compare", "machine", "save", "table"]
