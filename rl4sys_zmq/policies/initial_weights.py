"""Weights from files, with which the training of a policy can start.

The source is a policy folder, the folder of a checkpoint, or a file of named tensors (safetensors). In a file, the names are
those of the policy (``layers.0.weight``), or, for a policy of the kind ``layers``, those of a torch ``nn.Sequential``: pairs
``N.weight`` and ``N.bias`` in ascending order of N, with or without a common prefix. Pickled files are never read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rl4sys_zmq.errors import config_error
from rl4sys_zmq.policies.folder import MAX_HEADER_BYTES, SPEC, read_file, read_policy, safetensors_library
from rl4sys_zmq.values import PolicySpec, TensorSpec
from rl4sys_zmq.wire import blob_digest

OPTIONAL = frozenset({"log_std", "epsilon", "noise_std", "obs_mean", "obs_scale"})
"""Tensors of a policy of the kind ``layers`` that a file can leave out. The algorithm's own values then stay."""

_PICKLED = frozenset({".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".tar"})
_SEQUENTIAL = re.compile(r"(|.*\.)(\d{1,6})\.(weight|bias)")
_CONVERSION = (
    "convert it once, where you trust it: `import torch; from safetensors.torch import save_file` and "
    "`save_file({k: v.contiguous() for k, v in torch.load(FILE, weights_only=True).items()}, 'weights.safetensors')`, with the "
    "state_dict of the policy alone"
)


def check_weights_source(path: Path) -> None:
    """Check that a path can be a source of weights, without reading it.

    Raises:
        ConfigError: If there is no such file or folder, or it is a file that would have to be unpickled. The message then has
            the code that converts it.
    """
    if path.suffix.lower() in _PICKLED:
        raise config_error("init", f"{path} is pickled, and reading it could run code; {_CONVERSION}")
    if not (path.is_file() if path.suffix else (path / SPEC).is_file()):
        raise config_error(
            "init", f"{path} is neither the folder of a policy (from `rl4sys-learner export`) nor a .safetensors file"
        )


def read_weights(path: Path, spec: PolicySpec) -> dict[str, NDArray[Any]]:
    """Return the weights in a file or folder, by the names of the tensors in `spec`. Tensors in `OPTIONAL` can be missing.

    Args:
        path: A policy folder, the folder of a checkpoint, or a ``.safetensors`` file.
        spec: The description of the policy whose training starts with the weights.

    Raises:
        ConfigError: If the policies differ, or a tensor is missing, unknown or of another shape. The message has both shapes.
        PolicyFolderError: If a file is missing or damaged.
    """
    check_weights_source(path)
    if path.is_dir():
        stored = read_policy(path)
        _check_same(path, stored.spec, spec)
        return stored.spec.views(stored.snapshot.flat, stored.snapshot.others)
    library = safetensors_library()
    try:
        found: dict[str, NDArray[Any]] = library.numpy.load(read_file(path, spec.nbytes + MAX_HEADER_BYTES))
    except (library.SafetensorError, KeyError, ValueError) as exc:  # KeyError: a dtype that NumPy does not have
        raise config_error("init", f"{path} is not a safetensors file with dtypes of NumPy: {exc}") from exc
    complete = _names(spec) - OPTIONAL <= set(found)
    tensors = found if complete or spec.kind != "layers" else _from_sequential(path, found)
    optional = OPTIONAL if spec.kind == "layers" else frozenset()
    missing = sorted(_names(spec) - set(tensors) - optional)
    unknown = sorted(set(tensors) - _names(spec))
    if missing or unknown:
        raise config_error(
            "init",
            f"{path} lacks {_listed(missing)} and has the unknown {_listed(unknown)}; expected the policy's "
            f"{_listed([_text(t) for t in spec.tensors])}, or N.weight and N.bias of an nn.Sequential with as many layers",
        )
    for tensor in spec.tensors:
        if tensor.name in tensors and tensors[tensor.name].shape != tensor.shape:
            shape = tensors[tensor.name].shape
            raise config_error("init", f"tensor {tensor.name} is {shape} in {path}; the policy has {tensor.shape}")
    return tensors


def _check_same(path: Path, theirs: PolicySpec, ours: PolicySpec) -> None:
    """Raise ConfigError with the first difference, and both values, if two specs describe different policies."""
    pairs: list[tuple[str, object, object]] = [
        (name, getattr(theirs, name), getattr(ours, name)) for name in ("observation_space", "action_space", "kind")
    ]
    pairs += [("tensors", [_text(t) for t in theirs.tensors], [_text(t) for t in ours.tensors])]
    pairs += [("parameters", dict(theirs.document), dict(ours.document)), ("columns", theirs.columns, ours.columns)]
    pairs += [("blob", blob_digest(theirs.blob), blob_digest(ours.blob))]
    for name, one, other in pairs:
        if one != other:
            raise config_error(
                "init",
                f"the policy in {path} has the {name} {one!s:.300}; this client's policy has {other!s:.300}; give the "
                "client the same algorithm parameters and spaces",
            )


def _from_sequential(path: Path, found: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the tensors of a torch ``nn.Sequential``, renamed to dense layers (``layers.0.weight``)."""
    layers: dict[int, dict[str, NDArray[Any]]] = {}
    prefixes, tensors = set(), {}
    for name, tensor in found.items():
        match = _SEQUENTIAL.fullmatch(name)
        if match is None:
            tensors[name] = tensor
            continue
        prefixes.add(match[1])
        layers.setdefault(int(match[2]), {})[match[3]] = tensor
    if len(prefixes) > 1:
        raise config_error(
            "init", f"{path} has the networks {_listed(sorted(prefixes))}; save the state_dict of the policy's network alone"
        )
    for index, number in enumerate(sorted(layers)):
        for part, tensor in layers[number].items():
            tensors[f"layers.{index}.{part}"] = tensor
    return tensors


def _names(spec: PolicySpec) -> set[str]:
    return {tensor.name for tensor in spec.tensors}


def _text(tensor: TensorSpec) -> str:
    return f"{tensor.name} {tensor.shape}"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "") if names else "nothing"
