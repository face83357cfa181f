"""A learner with a run directory and a memory limit: `spare_bytes` above its memory at the start."""

import threading

from harness.talk import obey, options, say

from rl4sys_zmq.errors import RL4SysError
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.memory_watch import resident_bytes
from rl4sys_zmq.testing import FakeAlgorithm

given = options()
register_algorithm("SIEGE", FakeAlgorithm.factory(steps_per_update=16, rollout_length=16))
limit_bytes = resident_bytes() + given["spare_bytes"]
wasted: list[bytes] = []


def waste(count: int) -> int:
    """Allocate this many bytes and never free them. Return the resident memory."""
    wasted.append(b"\1" * count)
    return resident_bytes()


def watch(learner: Learner, over: threading.Event) -> None:
    """Report the reason of the learner's end, as `serve` would."""
    while not over.wait(0.05):
        try:
            learner.raise_if_dead()
        except RL4SysError as exc:
            say({"ended": type(exc).__name__, "why": str(exc)})
            return


over = threading.Event()
config = LearnerConfig(bind=given["bind"], run_dir=given["run_dir"], max_memory_bytes=limit_bytes)
with Learner(config) as learner:
    watcher = threading.Thread(target=watch, args=(learner, over))
    watcher.start()
    say({"address": learner.address, "limit_bytes": limit_bytes})
    obey(status=learner.status, waste=waste)
    over.set()
    watcher.join()
