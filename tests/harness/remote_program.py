"""A worker as on another machine: ``python remote_program.py`` reads its start data from stdin and no file of the learner.

RL4SYS_FAULT=version gives it another version of the library. RL4SYS_DIE_AT=PART:N kills it before part N of the checkpoints.
"""

import os
import signal
import sys
from typing import Any

import rl4sys_zmq
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.learner.run.worker_storage import SuspectFiles
from rl4sys_zmq.remote import worker_side_storage
from rl4sys_zmq.remote.worker import run_remote_worker
from rl4sys_zmq.remote.worker_side_storage import WorkerSideStorage
from rl4sys_zmq.wire.thread_messages import CheckpointPart


def no_access(self: object, *args: object, **kwargs: object) -> None:
    """Raise an error: a worker on another machine cannot open a file of the learner."""
    raise AssertionError(f"a worker on another machine opens {type(self).__name__}{args}")


def die_at_part(least: int) -> None:
    """Kill this process instead of sending part number `least` of the checkpoints."""
    post, count = WorkerSideStorage.post, 0

    def wrapped(self: WorkerSideStorage, message: Any) -> None:
        nonlocal count
        count += isinstance(message, CheckpointPart)
        if count >= least:
            os.kill(os.getpid(), signal.SIGKILL)
        post(self, message)

    WorkerSideStorage.post = wrapped  # type: ignore[method-assign]


def main() -> None:
    """Run the worker, and print how it ended."""
    start = sys.stdin.readline()
    CheckpointStore.__init__ = SuspectFiles.__init__ = no_access  # type: ignore[method-assign]
    setattr(worker_side_storage, "PART_BYTES", int(os.environ.get("RL4SYS_PART_BYTES", 4 << 20)))  # noqa: B010
    if os.environ.get("RL4SYS_FAULT") == "version":
        rl4sys_zmq.__version__ = "0.0.1"
    point, _, count = os.environ.get("RL4SYS_DIE_AT", "").partition(":")
    if point == "PART":
        die_at_part(int(count))
    print(run_remote_worker(start), flush=True)


if __name__ == "__main__":
    main()
