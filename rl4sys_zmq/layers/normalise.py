"""The kind of layer ``normalise``: ``(x - mean) * scale``, clipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rl4sys_zmq.layers.layer import Array, FunctionLayer, Layer, LayerEntry, NumpyLayer, OnnxNodeWriter, Shape, TorchForm, unfit

OBS_CLIP = 10.0
"""The largest absolute value of a normalised observation. Larger values are clipped."""

MEAN, SCALE = "obs_mean", "obs_scale"
"""The names of the tensors, ``[F]``. The algorithm sets them from the observations that it has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalise(Layer):
    """A first layer that standardises an observation's features by the tensors `MEAN` and `SCALE`, clipped to ±`OBS_CLIP`.

    A learner standardises before the network, once for a batch (`standardise` in `rl4sys_zmq.algorithms.networks.inputs`), so
    the torch form of the layer has no effect.
    """

    kind: ClassVar[str] = "normalise"
    trained: ClassVar[bool] = False

    def output(self, inputs: Shape, features: int) -> Shape:
        if inputs != (features,):
            raise unfit(self.kind, inputs, f"the {features} features of an observation, as the first layer")
        return inputs

    def tensors(self, inputs: Shape) -> Mapping[str, Shape]:
        return {MEAN: inputs, SCALE: inputs}

    def numpy_form(self, tensors: Sequence[Array]) -> NumpyLayer:
        mean, scale = tensors
        high = np.full((), OBS_CLIP, np.float32)  # a 0-d array: a scalar doubles the time of a small ufunc call
        low = -high

        def normalise(features: Array, out: Array) -> None:
            np.subtract(features, mean, out)
            np.multiply(out, scale, out)
            np.maximum(out, low, out=out)
            np.minimum(out, high, out=out)

        return FunctionLayer(normalise)

    def onnx_form(self, graph: OnnxNodeWriter, values: str, names: Sequence[str], features: str, inputs: Shape) -> str:
        scaled = graph.add("Mul", graph.add("Sub", values, names[0]), names[1])
        return graph.add("Clip", scaled, graph.constant(np.float32(-OBS_CLIP)), graph.constant(np.float32(OBS_CLIP)))

    def torch_form(self, inputs: Shape) -> TorchForm:
        return lambda x, tensors, rows: x


ENTRY = LayerEntry(name="normalise", layer=Normalise, summary="The standardisation of observations.")
