"""Predictions of the load of a learner, from constants that were measured on a machine.

- `Workload`: the planned actors, segments, weights and options. `traffic`: its messages and bytes per second.
- `Constants`: the measured times. `read_constants` and `write_constants` keep them in a file of the user.
- `predict`: the load of each resource (`ResourceLoad`), such as the interpreter, the journal, memory and network.
- `propose`: the layout that would carry a load beyond one process.

All of these but the functions for the file are pure. `rl4sys_zmq.capacity.measure` measures the constants.
"""

from __future__ import annotations

from rl4sys_zmq.capacity.constants import (
    RECORDED,
    Constants,
    FanoutCost,
    IngressCost,
    Measured,
    constants_path,
    read_constants,
    write_constants,
)
from rl4sys_zmq.capacity.layout import Proposal, propose
from rl4sys_zmq.capacity.resources import ResourceLoad, first_limit, predict
from rl4sys_zmq.capacity.workload import Traffic, Training, Workload, traffic

__all__ = [
    "RECORDED",
    "Constants",
    "FanoutCost",
    "IngressCost",
    "Measured",
    "Proposal",
    "ResourceLoad",
    "Traffic",
    "Training",
    "Workload",
    "constants_path",
    "first_limit",
    "predict",
    "propose",
    "read_constants",
    "traffic",
    "write_constants",
]
