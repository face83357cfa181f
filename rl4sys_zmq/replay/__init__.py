"""The replay: stored steps from which batches are drawn at random. The only dependency is numpy.

A learner's algorithms use `ReplayMemory`, or `SequenceMemory` with a recurrent network. The data stores of
`rl4sys_zmq.serving.data` are built from the same parts:

- `ring`: rows with consecutive numbers, in one array for each value. New rows overwrite the oldest.
- `priorities`: draws in proportion to priorities.
- `spans`: the steps of each trajectory, for windows of consecutive steps.
- `frames`: storage in which equal images are stored once.
- `pieces`: the rows of a replay, with their state for checkpoints. `folder`: the arrays in memory-mapped files.
- `layout`: the shape and dtype of each value, and the validation of new items.
"""

from rl4sys_zmq.replay.memory import ReplayMemory, ReplayOptions, TransitionBatch
from rl4sys_zmq.replay.n_step import NStepReturns, n_step_columns
from rl4sys_zmq.replay.pace import SamplesPerInsert
from rl4sys_zmq.replay.pieces import StatePiece
from rl4sys_zmq.replay.priorities import Draws, PriorityOptions, importance_weights
from rl4sys_zmq.replay.sequences import SequenceBatch, SequenceMemory, SequenceOptions

__all__ = [
    "Draws",
    "NStepReturns",
    "PriorityOptions",
    "ReplayMemory",
    "ReplayOptions",
    "SamplesPerInsert",
    "SequenceBatch",
    "SequenceMemory",
    "SequenceOptions",
    "StatePiece",
    "TransitionBatch",
    "importance_weights",
    "n_step_columns",
]
