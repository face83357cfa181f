"""Networks as lists of layers, which numpy, torch and ONNX compute alike. A `PolicySpec` carries such a list to actors.

- `Layer`: one layer, with its options, the shapes of its tensors, and its forms in numpy, ONNX and torch.
- `LayerEntry`: one kind of layer in the registry `LAYERS`. `register_layer` adds a kind.
- `LayerList`: the layers of one network with the shapes between them. `read_layers` checks a list from the wire.

To add a kind of layer, write a module with a subclass of `Layer` and its entry, and add its path to `LAYERS`.
"""

from rl4sys_zmq.layers.layer import LAYERS, Layer, LayerEntry, NumpyLayer, register_layer
from rl4sys_zmq.layers.layer_list import LAYERS_VERSION, LayerList, read_layers

__all__ = [
    "LAYERS",
    "LAYERS_VERSION",
    "Layer",
    "LayerEntry",
    "LayerList",
    "NumpyLayer",
    "read_layers",
    "register_layer",
]
