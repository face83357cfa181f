"""The export of a torch module to an ONNX graph with the parameters as inputs."""

from __future__ import annotations

import io
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.registry.algorithm_entry import parameter_error
from rl4sys_zmq.learner.registry.network_entry import ModuleBuilder
from rl4sys_zmq.policies.graphs.model import OPSET, OnnxValue, encode_model
from rl4sys_zmq.policies.graphs.reader import decode_model
from rl4sys_zmq.policies.graphs.rules import OUTPUTS, check_graph
from rl4sys_zmq.values import BoxSpace, TensorSpec

INPUT = "observations"
_SEED = 0


class _Cast(nn.Module):
    """A module that converts observations to float32 before the module of the user, as the learner does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, observations: Tensor) -> Tensor:
        """Return the outputs of the module."""
        outputs: Tensor = self.module(observations.to(torch.float32))
        return outputs


def build_module(name: str, build: ModuleBuilder, options: Any, space: BoxSpace, outputs: int, seed: int) -> nn.Module:
    """Build a module with initial values that depend only on a seed. The state of torch's own generator does not change.

    The module is in evaluation mode, even in training, because the learner must compute the same as actors.

    Raises:
        ConfigError: If the module has buffers, active dropout layers, or parameters that are not float32, or none.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build(options, space, outputs)
    problem = ""
    if buffers := [key for key, _ in module.named_buffers()]:
        problem = f"has the buffer {buffers[0]!r}, which no optimizer step changes; use LayerNorm in place of BatchNorm"
    elif dropouts := [key for key, part in module.named_modules() if isinstance(part, _DropoutNd) and part.p > 0.0]:
        problem = f"has the dropout layer {dropouts[0]!r}, but actors act without dropout; remove it, or give it p=0"
    elif not (parameters := dict(module.named_parameters())):
        problem = "has no parameters"
    elif wrong := [key for key, tensor in parameters.items() if tensor.dtype != torch.float32 or not tensor.requires_grad]:
        problem = f"has the parameter {wrong[0]!r}, which is not a trainable float32 tensor"
    if problem:
        raise parameter_error("network", f"the torch module of kind {name!r} {problem}")
    return module.eval()


@lru_cache(maxsize=16)
def export_module(
    name: str, build: ModuleBuilder, options: Any, space: BoxSpace, outputs: int
) -> tuple[tuple[TensorSpec, ...], bytes]:
    """Return the parameters of a module, and its ONNX graph with these parameters as inputs. `name` is the kind of network.

    Raises:
        ConfigError: If the package ``onnx`` is missing, torch cannot export the module, or actors would refuse the graph.
    """
    module = build_module(name, build, options, space, outputs, _SEED)
    weights = tuple([TensorSpec(key, tuple(tensor.shape)) for key, tensor in module.named_parameters()])
    sample = torch.from_numpy(np.zeros((2, *space.shape), space.dtype))
    target: Any = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter by tracing is deprecated; the other one cannot leave weights out
            torch.onnx.export(
                _Cast(module).eval(), (sample,), target, dynamo=False, opset_version=OPSET, input_names=[INPUT],
                output_names=[OUTPUTS], dynamic_axes={INPUT: {0: "N"}, OUTPUTS: {0: "N"}}, export_params=False,
                do_constant_folding=False,
            )  # fmt: skip
    except Exception as exc:  # the module is foreign code, and the exporter has many errors of its own
        remedy = "pip install 'rl4sys-zmq[export]'" if "onnx is not installed" in str(exc) else "change the module"
        raise parameter_error(
            "network", f"torch cannot export the module of kind {name!r} to ONNX ({exc!s:.300}): {remedy}"
        ) from exc
    prefix = "module."
    inputs = [OnnxValue(INPUT, np.dtype(space.dtype).name, (None, *space.shape))]
    inputs += [OnnxValue(prefix + weight.name, weight.dtype, weight.shape) for weight in weights]
    graph = decode_model(target.getvalue())
    renamed = {value.name: value.name.removeprefix(prefix) for value in inputs}
    taken = {value for node in graph.nodes for value in node.outputs} | set(graph.constants)
    if clash := taken & set(renamed.values()):
        raise ConfigError(f"the parameter {clash.pop()!r} of a module has the name of another value of its graph", key="network")
    graph = graph.renamed(renamed, [OnnxValue(renamed[value.name], value.dtype, value.shape) for value in inputs], outputs)
    check_graph(graph, graph.inputs, outputs)
    return weights, encode_model(graph)
