"""A ZeroMQ REP that takes pickled, lz4-compressed trajectories and answers each, as agentlace's trainer does; counts the steps.

    python benchmarks/peers/reqrep_pickle.py --seconds 3 --senders 1

A trajectory is a list of 200 dicts, one per step (payload P1 of ``ingress.py``). Unpickling runs whatever the bytes say: here
they are its own child's. Needs ``lz4``.
"""

from __future__ import annotations

import argparse
import json
import pickle  # noqa: TID251 - what is measured
import threading
import time
from typing import Any

import lz4.frame
import numpy as np
import zmq
from counted import steps_per_s

STEPS, FEATURES = 200, 8


def send(port: int, seconds: float) -> None:
    """A sender: makes the list of steps, pickles, compresses, sends, waits for the answer."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((STEPS, FEATURES)).astype(np.float32)
    act = rng.integers(0, 4, STEPS)
    with zmq.Context() as context, context.socket(zmq.REQ) as req:
        req.linger = 0
        req.connect(f"tcp://127.0.0.1:{port}")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            steps = [
                {"obs": obs[t], "act": act[t], "rew": 0.5, "logp": -0.7, "done": t == STEPS - 1, "version": 3}
                for t in range(STEPS)
            ]
            req.send(lz4.frame.compress(pickle.dumps({"type": "datastore", "payload": steps})))
            if not req.poll(5000):
                return
            req.recv()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--senders", type=int, default=1)
    options = parser.parse_args()
    taken, over = [0], threading.Event()
    context: zmq.Context[Any] = zmq.Context()
    rep = context.socket(zmq.REP)
    rep.linger = 0
    port = rep.bind_to_random_port("tcp://127.0.0.1")

    def serve() -> None:
        while not over.is_set():
            if rep.poll(50):
                message = pickle.loads(lz4.frame.decompress(rep.recv()))  # noqa: S301 - what is measured
                taken[0] += len(message["payload"])
                rep.send(lz4.frame.compress(pickle.dumps({"success": True})))

    server = threading.Thread(target=serve)
    server.start()
    rate = steps_per_s(taken, send, port, options.senders, options.seconds)
    over.set()
    server.join()
    rep.close()
    context.term()
    print(json.dumps({"peer": "ZeroMQ REQ/REP, pickle + lz4", "senders": options.senders, "steps_per_s": round(rate)}))


if __name__ == "__main__":
    main()
