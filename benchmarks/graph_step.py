"""The cost of an action by an ONNX graph, beside a bare call of onnxruntime with the weights inside the graph.

    python benchmarks/graph_step.py --calls 2000 --pairs 5

The networks are those of ``network: cnn`` for images of 10x10 and 84x84 pixels. Ours chooses an action and computes its
log-probability; the baseline is ``session.run`` alone, for the same graph with constant weights, one thread, without spinning.
All run in turn. The figures are medians in microseconds; the ratio is the median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime

from rl4sys_zmq.algorithms import planned_policy
from rl4sys_zmq.policies import RandomSource, bind, build_policy
from rl4sys_zmq.policies.graphs.model import OnnxGraph, encode_model
from rl4sys_zmq.policies.graphs.reader import decode_model
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot

SHAPES = ((10, 10, 1), (84, 84, 4))


def main() -> None:
    """Measures and prints one line for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    for shape in SHAPES:
        calls = both(shape)
        image = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
        pairs = []
        for _ in range(options.pairs):
            pairs.append(tuple(median_us(call, image, options.calls) for call in calls))
        ratio = float(np.median([one / bare for one, bare in pairs]))
        one, bare = np.median(pairs, axis=0)
        print(f"{'x'.join(map(str, shape)):>9}: action {one:.1f} us, session.run {bare:.1f} us, ratio {ratio:.2f}")


def both(shape: tuple[int, ...]) -> tuple[Callable[[Any], object], ...]:
    """Our call for one action, and the bare call of onnxruntime."""
    spec = planned_policy("PPO", BoxSpace(shape, low=0, high=255, dtype="|u1"), DiscreteSpace(4), {"network": "cnn"})
    assert spec is not None
    flat = np.random.default_rng(0).normal(0.0, 0.05, spec.size).astype(np.float32)
    snapshot = PolicySnapshot(1, 1, 0, flat)
    act = bind(build_policy(spec, snapshot), RandomSource(1), True)
    graph, views = decode_model(spec.blob), spec.views(flat)
    constant = OnnxGraph(graph.inputs[:1], graph.outputs, graph.nodes, {**graph.constants, **views})
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(encode_model(constant), settings, providers=["CPUExecutionProvider"])
    return (
        lambda image: act(image, None),
        lambda image: session.run(None, {"observations": image[None]}),
    )


def median_us(call: Callable[[Any], object], image: Any, calls: int) -> float:
    """The median time of a call, in microseconds."""
    for _ in range(calls // 10):
        call(image)
    taken = np.empty(calls)
    for index in range(calls):
        began = time.perf_counter_ns()
        call(image)
        taken[index] = time.perf_counter_ns() - began
    return float(np.median(taken)) / 1000


if __name__ == "__main__":
    main()
