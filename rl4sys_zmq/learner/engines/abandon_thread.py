"""A thread of the learner that puts the checkpoints of a removed client aside."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from rl4sys_zmq.errors import CheckpointError
from rl4sys_zmq.interfaces import LearnerThreadHandle
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.resource import Worker

LOOK_S = 0.05


class AbandonCheckpointsThread(Worker):
    """A thread that renames the checkpoints of a removed client to ``NUMBER.abandoned``, after its learner threads have ended.

    It implements `AbandonCheckpointsTask`. The gateway must not wait for a disk.
    """

    def __init__(self, client_id: str, workers: Sequence[LearnerThreadHandle], folder: Path, wake: Callable[[], None]) -> None:
        super().__init__(f"rl4sys-forget-{client_id}")
        self.done = False
        self.problem = ""
        self.count = 0
        self._workers, self._folder, self._wake = tuple(workers), folder, wake
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            ended = [False]
            while not all(ended) and not self._stopping.is_set():
                ended = [worker.join(LOOK_S) for worker in self._workers]
            if self._stopping.is_set():
                self.problem = "the learner was closed before its checkpoints were put aside"
                return
            self.count = len(CheckpointStore(self._folder).abandon_all())
        except CheckpointError as exc:
            self.problem = str(exc)
        finally:
            self.done = True
            self._wake()

    def stop(self) -> None:
        """Cancel the task while it waits. The checkpoints then stay as they are."""
        self._stopping.set()
