"""A trainer that tests kill: ``python trainer.py '{"address": ..., "run_dir": ..., "disk": ..., "die_at": "commit:3"}'``.

Its stores are ``memory`` and, in files, ``disk``. The request ``contents`` returns the clients and the numbers of the items in
each store. With ``die_at`` it kills itself after the N-th ``commit``, when no store has the committed items, or after the N-th
``insert``, before the client gets its reply.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rl4sys_zmq.serving import QueuedDataStore, ReplayBuffer, TrainerConfig, TrainerServer
from rl4sys_zmq.serving.store_ingest import StoreInserter
from rl4sys_zmq.serving.trainer_journal import StoreJournal

CAPACITY = 100_000


def die_after(method: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return a method that kills this process at the end of its `count`-th call."""
    left = [count]

    def dying(*args: Any) -> Any:
        result = method(*args)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    return dying


def main() -> None:
    options = json.loads(sys.argv[1])
    point, _, count = options.get("die_at", "").partition(":")
    mark = Path(options["run_dir"]) / f"died-{point}-{count}"
    memory, disk = QueuedDataStore(CAPACITY), ReplayBuffer(CAPACITY, path=options["disk"])

    def contents(kind: str, payload: Any) -> Any:
        transitions = disk.get_latest_data(-1)
        return {
            "memory": np.array(memory.get_latest_data(-1), np.int64).reshape(-1, 2),
            "disk": np.array([[t["actions"], t["rewards"]] for t in transitions], np.int64).reshape(-1, 2),
        }

    config = TrainerConfig(port_number=options["address"], broadcast_port=options["address"] + "-pub", request_types=["contents"])
    with TrainerServer(config, request_callback=contents, run_dir=options["run_dir"]) as server:
        server.register_data_store("memory", memory)
        server.register_data_store("disk", disk)
        if point and not mark.exists():
            mark.touch()
            if point == "commit":
                StoreJournal.commit = die_after(StoreJournal.commit, int(count))  # type: ignore[method-assign]
            else:
                StoreInserter._insert_waiting = die_after(StoreInserter._insert_waiting, int(count))  # type: ignore[method-assign]
        server.start(threaded=True)
        sys.stdin.read()  # until the parent process ends, or closes the pipe
    disk.close()


if __name__ == "__main__":
    main()
