"""The benchmark of publishing: the time from a training update until every actor has the new weights.

The baseline is a plain PUB socket that sends as many bytes as the weights have in float32. In both cases, the learner (or the PUB
socket) is in this process, and all actors (or SUB sockets) are in one other process, with one thread each.

The time of this library begins when the algorithm returns its weights, and ends when the host of the last actor is notified. It
includes copying, encoding, sending, decoding, checking and building the policy. The time of the baseline begins with the send and
ends when the last SUB socket has received the bytes.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from bench.pairs import PairedFigures, measure_pairs
from rl4sys_zmq.actor import RL4SysAgent
from rl4sys_zmq.capacity.processes import PATIENCE_S, child
from rl4sys_zmq.config import AgentConfig, WeightsConfig
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.testing import FakeAlgorithm, FakeParameters
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, ObservationSpace, PolicySpec, Space

__all__ = ["CASES", "LEVELS", "measure_fanout", "policy_bytes"]

ALGORITHM = "WALKS"
STEP = 1e-3
"""The largest change of a weight in an update. Weights begin with a standard deviation of 0.1. Each update changes all
weights."""
CASES = ((75, 1), (730, 1), (1000, 8), (1000, 32))
"""The measured cases: pairs of the policy's size in kilobytes and the number of actors."""
LEVELS = (0, 1)
"""Values of the option ``weights.level``: 0 sends all weights, 1 sends diffs."""


class FanoutBenchAlgorithm(FakeAlgorithm):
    """An algorithm that changes its weights at random at each snapshot and records the time.

    Attributes:
        given_at: Time of each snapshot, from `time.monotonic`, in seconds.
    """

    def __init__(self, spec: PolicySpec, parameters: FakeParameters, seed: int) -> None:
        super().__init__(spec, parameters, seed)
        self.given_at: list[float] = []
        self._rng = np.random.default_rng(seed)
        self._weights = self._rng.normal(0.0, 0.1, spec.size).astype(np.float32)

    def snapshot(self) -> dict[str, NDArray[np.float32]]:
        """Change all weights at random, and return a copy."""
        self._weights += self._rng.uniform(-STEP, STEP, self._weights.size).astype(np.float32)
        self.given_at.append(time.monotonic())
        out, start = {}, 0
        for tensor in self.spec().tensors:
            size = int(np.prod(tensor.shape))
            out[tensor.name] = self._weights[start : start + size].reshape(tensor.shape).copy()
            start += size
        return out


def measure_fanout(kilobytes: int, actors: int, level: int, pairs: int, versions: int, seed: int) -> PairedFigures:
    """Measure the time from an update until the last actor has the new weights, in milliseconds.

    Each figure is the median over `versions` updates.

    Args:
        kilobytes: Size of the policy in float32.
        actors: Number of actors.
        level: Value of the option ``weights.level``.
        pairs: Number of pairs of measurements.
        versions: Number of versions published in each measurement.
        seed: Seed of the weights.
    """
    spec = _spec(kilobytes)
    ours = functools.partial(_ours, spec, actors, level, versions, seed)
    return measure_pairs(ours, functools.partial(_bare, 4 * spec.size, actors, versions), pairs, warm=False)


def policy_bytes(kilobytes: int) -> int:
    """Return the exact size in bytes of the float32 weights that `measure_fanout` uses for a policy of about `kilobytes`."""
    return 4 * _spec(kilobytes).size


def _spec(kilobytes: int) -> PolicySpec:
    """Return the `PolicySpec` of a perceptron with two equal hidden layers, of about `kilobytes` in float32."""
    inputs, outputs = 8, 4
    width = round((-(inputs + outputs + 2) + ((inputs + outputs + 2) ** 2 + 4 * 250 * kilobytes) ** 0.5) / 2)
    return mlp_spec(BoxSpace((inputs,)), DiscreteSpace(outputs), "categorical", (width, width))


def _ours(spec: PolicySpec, actors: int, level: int, versions: int, seed: int) -> float:
    made: list[FanoutBenchAlgorithm] = []

    def build(observations: ObservationSpace, actions: Space, parameters: Mapping[str, object], _: int) -> FanoutBenchAlgorithm:
        made.append(FanoutBenchAlgorithm(spec, FakeParameters(steps_per_update=1, rollout_length=1), seed))
        return made[-1]

    register_algorithm(ALGORITHM, build)
    config = LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, weights=WeightsConfig(level=level))
    with Learner(config) as learner, child(_follow, learner.address, actors, versions) as ear:
        assert ear.recv() == "ready"
        for version in range(1, versions + 1):
            assert ear.recv() == version  # all actors have it
        applied = np.array(ear.recv())
    given = np.array(made[-1].given_at[1 : versions + 1])
    return 1e3 * float(np.median(applied.max(axis=0) - given))


def _follow(pipe: Connection, address: str, actors: int, versions: int) -> None:
    """Run a thread for each actor, which records the time at which each version of the weights arrives.

    The first actor triggers the updates.
    """
    spaces: dict[str, Any] = {"observation_space": BoxSpace((8,)), "action_space": DiscreteSpace(4)}
    config = AgentConfig(
        client_id="lab", train_server_address=address, algorithm_name=ALGORITHM, linger_ms=0, overflow="wait", **spaces
    )
    applied = [[0.0] * versions for _ in range(actors)]
    gates = [threading.Barrier(actors + 1) for _ in range(2)]

    def follow(index: int) -> None:
        with RL4SysAgent(config=config) as agent:
            gates[0].wait(PATIENCE_S)
            for version in range(1, versions + 1):
                if index == 0:
                    _ask(agent)
                agent.wait_version(version, PATIENCE_S)
                applied[index][version - 1] = time.monotonic()
                gates[version % 2].wait(PATIENCE_S)

    _report(pipe, follow, actors, versions, gates)
    pipe.send(applied)


def _ask(agent: RL4SysAgent) -> None:
    """Send an episode of one step, which triggers one update of the algorithm."""
    traj, action = agent.request_for_action(None, np.zeros(8, np.float32))
    action.update_reward(0.0)
    agent.add_to_trajectory(traj, action)
    agent.mark_end_of_trajectory(traj, action)


def _report(pipe: Connection, target: Callable[[int], None], actors: int, versions: int, gates: list[threading.Barrier]) -> None:
    threads = [threading.Thread(target=target, args=(n,)) for n in range(actors)]
    for thread in threads:
        thread.start()
    gates[0].wait(PATIENCE_S)
    pipe.send("ready")
    for version in range(1, versions + 1):
        gates[version % 2].wait(PATIENCE_S)
        pipe.send(version)
    for thread in threads:
        thread.join()


def _bare(nbytes: int, actors: int, versions: int) -> float:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    pub = context.socket(zmq.XPUB)
    pub.linger = 0
    pub.setsockopt(zmq.XPUB_VERBOSER, 1)  # report every subscriber
    port = pub.bind_to_random_port("tcp://127.0.0.1")
    payload, sent = np.random.default_rng(0).bytes(nbytes), []
    try:
        with child(_listen, port, actors, versions) as ear:
            assert ear.recv() == "ready"
            for _ in range(actors):
                pub.recv()
            for version in range(1, versions + 1):
                sent.append(time.monotonic())
                pub.send_multipart([b"w", payload])
                assert ear.recv() == version
            heard = np.array(ear.recv())
    finally:
        pub.close()
        context.term()
    return 1e3 * float(np.median(heard.max(axis=0) - np.array(sent)))


def _listen(pipe: Connection, port: int, actors: int, versions: int) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    heard = [[0.0] * versions for _ in range(actors)]
    gates = [threading.Barrier(actors + 1) for _ in range(2)]

    def listen(index: int) -> None:
        with context.socket(zmq.SUB) as sub:
            sub.linger = 0
            sub.subscribe(b"w")
            sub.connect(f"tcp://127.0.0.1:{port}")
            gates[0].wait(PATIENCE_S)
            for version in range(1, versions + 1):
                sub.recv_multipart(copy=False)
                heard[index][version - 1] = time.monotonic()
                gates[version % 2].wait(PATIENCE_S)

    _report(pipe, listen, actors, versions, gates)
    pipe.send(heard)
    context.term()
