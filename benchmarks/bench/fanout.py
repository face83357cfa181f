"""The benchmark of publishing: the time from a training update until every actor has the new weights.

The baseline is a plain PUB socket that sends as many bytes as the weights have in float32. In both cases, the learner (or the PUB
socket) is in this process, and all actors (or SUB sockets) are in one other process, with one thread each. The time of the
baseline begins with the send and ends when the last SUB socket has received the bytes.
"""

from __future__ import annotations

import threading
import time
from multiprocessing.connection import Connection

import numpy as np
import zmq

from bench.pairs import PairedFigures, measure_pairs
from rl4sys_zmq.capacity.harness import PATIENCE_S, child
from rl4sys_zmq.capacity.measure_paths import follow_versions, measure_fanout, policy_bytes

__all__ = ["CASES", "LEVELS", "compare_fanout"]

CASES = ((75, 1), (730, 1), (1000, 8), (1000, 32))
"""The measured cases: pairs of the policy's size in kilobytes and the number of actors."""
LEVELS = (0, 1)
"""Values of the option ``weights.level``: 0 sends all weights, 1 sends diffs."""


def compare_fanout(kilobytes: int, actors: int, level: int, pairs: int, versions: int, seed: int) -> PairedFigures:
    """Measure the time from an update until the last actor has the new weights, in milliseconds, beside the baseline.

    Each figure is the median over `versions` updates.

    Args:
        kilobytes: Size of the policy in float32.
        actors: Number of actors.
        level: Value of the option ``weights.level``.
        pairs: Number of pairs of measurements.
        versions: Number of versions published in each measurement.
        seed: Seed of the weights.
    """
    return measure_pairs(
        lambda: measure_fanout(kilobytes, actors, level, versions, seed),
        lambda: _bare(policy_bytes(kilobytes), actors, versions),
        pairs,
        warm=False,
    )


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

    follow_versions(pipe, listen, actors, versions, gates)
    pipe.send(heard)
    context.term()
