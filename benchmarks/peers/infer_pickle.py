"""A ZeroMQ REP that answers pickled, lz4-compressed observations one at a time, as agentlace's inference does; counts the calls.

    python benchmarks/peers/infer_pickle.py --seconds 3 --callers 8 --hidden 64 64

The load is that of ``bench.infer``: 256 float32 in, four out, a perceptron in numpy, each caller a process. Unpickling
runs whatever the bytes say: here they are its own child's. Needs ``lz4``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import pickle  # noqa: TID251 - what is measured
import threading
import time
from typing import Any

import lz4.frame
import numpy as np
import zmq

INPUTS, OUTPUTS = 256, 4


def pack(value: object) -> bytes:
    return lz4.frame.compress(pickle.dumps(value))


def unpack(data: bytes) -> Any:
    return pickle.loads(lz4.frame.decompress(data))  # noqa: S301 - what is measured


def call(port: int, seconds: float, begin: Any, told: Any) -> None:
    """A caller: asks one question after the other, and tells how long each took."""
    observation = np.random.default_rng().standard_normal(INPUTS).astype(np.float32)
    times: list[float] = []
    with zmq.Context() as context, context.socket(zmq.REQ) as req:
        req.linger = 0
        req.connect(f"tcp://127.0.0.1:{port}")
        req.send(pack({"type": "warm", "payload": {"obs": observation}}))
        req.recv()
        begin.wait()
        end = time.perf_counter() + seconds
        while (before := time.perf_counter()) < end:
            req.send(pack({"type": "policy", "payload": {"obs": observation}}))
            unpack(req.recv())
            times.append(time.perf_counter() - before)
    told.put(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--hidden", type=int, nargs="*", default=[64, 64])
    parser.add_argument("--device-s", type=float, default=0.0)
    options = parser.parse_args()
    sizes = [INPUTS, *options.hidden, OUTPUTS]
    rng = np.random.default_rng(0)
    weights = [rng.normal(0.0, n**-0.5, (n, m)).astype(np.float32) for n, m in itertools.pairwise(sizes)]
    context: zmq.Context[Any] = zmq.Context()
    rep = context.socket(zmq.REP)
    rep.linger = 0
    port = rep.bind_to_random_port("tcp://127.0.0.1")
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            if rep.poll(50):
                x = unpack(rep.recv())["payload"]["obs"]
                if options.device_s:
                    time.sleep(options.device_s)
                for weight in weights[:-1]:
                    x = np.tanh(x @ weight)
                rep.send(pack({"act": x @ weights[-1]}))

    server = threading.Thread(target=serve)
    server.start()
    spawn = multiprocessing.get_context("spawn")
    begin, told = spawn.Barrier(options.callers), spawn.Queue()
    callers = [spawn.Process(target=call, args=(port, options.seconds, begin, told)) for _ in range(options.callers)]
    for caller in callers:
        caller.start()
    times = [told.get() for _ in callers]
    for caller in callers:
        caller.join()
    over.set()
    server.join()
    rep.close()
    context.term()
    median_us = 1e6 * float(np.median(np.concatenate(times)))
    rate = sum(len(t) for t in times) / options.seconds
    print(
        json.dumps(
            {
                "peer": "ZeroMQ REQ/REP, pickle + lz4",
                "callers": options.callers,
                "calls_per_s": round(rate),
                "median_us": round(median_us),
            }
        )
    )


if __name__ == "__main__":
    main()
