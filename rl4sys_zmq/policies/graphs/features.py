"""The features of observations in an ONNX graph, equal to those of `rl4sys_zmq.values.features`."""

from __future__ import annotations

import numpy as np

from rl4sys_zmq.policies.graphs.model import GraphBuilder
from rl4sys_zmq.values.features import FeatureLeaf


def add_features(graph: GraphBuilder, leaf: FeatureLeaf) -> str:
    """Add the nodes that compute the features of one array of an observation.

    The input is the array with the name of the leaf, ``[N, *shape]`` in the dtype of its space. An integer outside its space has
    no feature that is 1.

    Args:
        graph: The graph.
        leaf: The array.

    Returns:
        The name of the features, float32 ``[N, n]``.
    """
    if leaf.lowest is None:
        size = leaf.columns.stop - leaf.columns.start
        return graph.add("Reshape", graph.cast(leaf.name, np.float32), graph.constant([-1, size]))
    # Each feature is 1 if one of the integers has one value: repeat the integers, and compare them with the values.
    integers = graph.add("Reshape", graph.cast(leaf.name, np.int64), graph.constant([-1, len(leaf.counts)]))
    repeated = graph.add("Gather", integers, graph.constant(np.repeat(np.arange(len(leaf.counts)), leaf.counts)), axis=1)
    values = np.concatenate([low + np.arange(count) for low, count in zip(leaf.lowest, leaf.counts, strict=True)])
    return graph.cast(graph.add("Equal", repeated, graph.constant(values)), np.float32)
