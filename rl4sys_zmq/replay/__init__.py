"""The replay: stored steps from which batches are drawn at random. The only dependency is numpy.

A learner's algorithms use `ReplayMemory`. The data stores of `rl4sys_zmq.serving.data` are built from the same parts:

- `ring`: rows with consecutive numbers, in one array for each value. New rows overwrite the oldest.
- `sum_tree` and `priorities`: draws in proportion to priorities.
- `spans`: the steps that belong together, for windows of consecutive steps.
- `frame_store`: equal images are stored once.
- `folder`: the arrays in memory-mapped files.
- `layout`: the shape and dtype of each value, and the validation of new items.
"""

from rl4sys_zmq.replay.draws import Draws
from rl4sys_zmq.replay.memory import ReplayMemory, ReplayOptions, TransitionBatch
from rl4sys_zmq.replay.n_step import NStepReturns, n_step_columns

__all__ = ["Draws", "NStepReturns", "ReplayMemory", "ReplayOptions", "TransitionBatch", "n_step_columns"]
