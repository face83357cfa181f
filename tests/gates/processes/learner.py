"""A learner with the fake algorithm, of any policy size. It waits while its addresses are in use, and answers commands."""

import threading
import time
from collections import Counter
from typing import Any

from harness.talk import obey, options, say

from rl4sys_zmq.delivery import weight_history
from rl4sys_zmq.errors import AddressInUse
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import Segment
from rl4sys_zmq.weights import encode_update

WAIT_S = 20.0

given = options()
made: list[FakeAlgorithm] = []
snapshots: Counter[int] = Counter()


class Forgetful(FakeAlgorithm):
    """A fake algorithm that does not keep the list of observed segments, which would grow."""

    def observe(self, segment: Segment, *, correct: bool = False) -> None:
        super().observe(segment, correct=correct)
        self.keys.clear()


def build(observation_space: Any, action_space: Any, parameters: Any, seed: int) -> FakeAlgorithm:
    """Return a fake algorithm whose policy has a hidden layer of the given size."""
    spec = mlp_spec(observation_space, action_space, "categorical", (given.get("hidden", 8),))
    kind = Forgetful if given.get("forgetful") else FakeAlgorithm
    made.append(kind(spec, FakeParameters(**{**given.get("fake", {}), **parameters}), seed))
    return made[-1]


def count_snapshots() -> None:
    """Count the snapshots of each version that are encoded. There is no counter for them, so the encoder is wrapped."""

    def counting(policy_id: bytes, held: Any, new: Any, *args: Any, **kwargs: Any) -> Any:
        if held is None:
            snapshots[new.version] += 1
        return encode_update(policy_id, held, new, *args, **kwargs)

    setattr(weight_history, "encode_update", counting)  # noqa: B010 the module does not export it


def keys() -> dict[str, int]:
    seen = [key for algorithm in made for key in algorithm.keys]
    return {"observed": len(seen), "different": len(set(seen))}


held = threading.Event()


def hold() -> bool:
    running = threading.Event()

    def wait() -> None:
        running.set()
        held.wait()

    assert learner._gateway is not None
    learner._gateway.call(wait)
    return running.wait(60.0)


def started() -> Learner:
    """Return a started learner. Its addresses may still be in use by the process before it."""
    deadline = time.monotonic() + WAIT_S
    while True:
        learner = Learner(config)
        try:
            return learner.start()
        except AddressInUse:
            learner.close()
            if time.monotonic() > deadline:
                raise


def drain(timeout_s: float) -> dict[str, Any]:
    learner.drain(timeout_s=timeout_s)
    return learner.status()


count_snapshots()
register_algorithm("FAKE", build)
# On a busy machine, several threads of torch make each update tens of times slower. Actors elsewhere would get diffs.
settings = {"bind": given["bind"], "run_dir": None, "torch_threads": 1, "weights": {"level": 1}, **given.get("config", {})}
config = LearnerConfig.from_mapping(settings)
with started() as learner:
    say({"address": learner.address, "pub": learner.pub_address})
    obey(
        digest=lambda version: learner.digest("lab", version),
        status=learner.status,
        save=lambda: learner.save(timeout_s=60.0),
        drain=drain,
        keys=keys,
        wait=lambda version: learner.wait(client_id="lab", version=version, timeout_s=60.0),
        hold=hold,
        release=held.set,
        snapshots=lambda: [len(snapshots), max(snapshots.values())],
    )
