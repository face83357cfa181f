"""Initial weights: named tensors that fit, torch's names for a Sequential, and no file that would be unpickled."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError, PolicyFolderError
from rl4sys_zmq.policies.folder import encode_policy, write_policy
from rl4sys_zmq.policies.initial_weights import check_weights_source, read_weights
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace

from .stored import stored

safetensors = pytest.importorskip("safetensors.numpy")

OBSERVED, ACTED = BoxSpace((3,)), BoxSpace((2,))
SPEC = mlp_spec(OBSERVED, ACTED, "gaussian", hidden_sizes=(5, 4), normalise_observations=True)
POLICY = stored(SPEC)
TENSORS = SPEC.views(POLICY.snapshot.flat)
LAYERS = {name: tensor for name, tensor in TENSORS.items() if name.startswith("layers.")}


def saved(path: Path, tensors: Any) -> Path:
    safetensors.save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, path)
    return path


def sequential(prefix: str = "", step: int = 2) -> dict[str, Any]:
    """Return the layers under the names that `torch.nn.Sequential` gives them, with an activation between each two."""
    return {f"{prefix}{int(name.split('.')[1]) * step}.{name.rpartition('.')[2]}": tensor for name, tensor in LAYERS.items()}


def assert_same(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor)


def test_a_policy_folder_gives_all_tensors(tmp_path: Path) -> None:
    write_policy(tmp_path / "p", encode_policy(POLICY))
    assert_same(read_weights(tmp_path / "p", SPEC), TENSORS)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_sizes": (5, 3)},
        {"activation": "relu"},
        {"normalise_observations": False},
        {"observation_space": BoxSpace((4,))},
        {"action_space": BoxSpace((2,), low=-1.0, high=1.0)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_another_policy_is_refused_with_both_values(tmp_path: Path, change: dict[str, Any]) -> None:
    write_policy(tmp_path / "p", encode_policy(POLICY))
    plain = {"hidden_sizes": (5, 4), "normalise_observations": True, "observation_space": OBSERVED, "action_space": ACTED}
    options = {**plain, **change}
    spaces = options.pop("observation_space"), options.pop("action_space")
    with pytest.raises(ConfigError, match=r"has the .*this client's policy has"):
        read_weights(tmp_path / "p", mlp_spec(*spaces, "gaussian", **options))


def test_both_shapes_are_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors", LAYERS)
    with pytest.raises(ConfigError, match=r"layers\.1\.weight is \(4, 5\) in .*; the policy has \(3, 5\)"):
        read_weights(path, mlp_spec(OBSERVED, ACTED, "gaussian", hidden_sizes=(5, 3)))


def test_tensors_are_found_by_the_names_of_the_policy(tmp_path: Path) -> None:
    assert_same(read_weights(saved(tmp_path / "all.safetensors", TENSORS), SPEC), TENSORS)
    assert_same(read_weights(saved(tmp_path / "layers.safetensors", LAYERS), SPEC), LAYERS)


@pytest.mark.parametrize(("prefix", "step"), [("", 2), ("pi.net.", 2), ("", 3), ("layers.", 2)])
def test_tensors_are_found_by_the_names_of_a_sequential(tmp_path: Path, prefix: str, step: int) -> None:
    path = saved(tmp_path / "w.safetensors", {**sequential(prefix, step), "log_std": TENSORS["log_std"]})
    assert_same(read_weights(path, SPEC), {**LAYERS, "log_std": TENSORS["log_std"]})


def test_a_torch_model_fits(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    net = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    )
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    found = read_weights(tmp_path / "net.safetensors", SPEC)
    np.testing.assert_array_equal(found["layers.2.bias"], net[4].bias.detach().numpy())
    assert len(found) == 6


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({**sequential("pi."), **sequential("vf.")}, "has the networks pi., vf."),
        ({**sequential(), "8.weight": np.zeros((2, 2), np.float32)}, "unknown layers.3.weight"),
        ({name: t for name, t in sequential().items() if name != "4.bias"}, "lacks layers.2.bias"),
        ({**LAYERS, "value": np.zeros(3, np.float32)}, "unknown value"),
        ({"whatever": np.zeros(3, np.float32)}, "lacks layers.0.bias"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, tensors: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_weights(saved(tmp_path / "w.safetensors", tensors), SPEC)


def test_names_of_a_sequential_are_for_perceptrons_only(tmp_path: Path) -> None:
    path = saved(tmp_path / "w.safetensors", sequential())
    with pytest.raises(ConfigError, match="lacks"):
        read_weights(path, replace(SPEC, kind="own"))


@pytest.mark.parametrize("name", ["model.pt", "model.PTH", "a.pkl", "pytorch_model.bin"])
def test_pickles_are_never_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match=r"could run code.*save_file"):
        check_weights_source(tmp_path / name)
    with pytest.raises(ConfigError, match=r"could run code.*save_file"):
        read_weights(tmp_path / name, SPEC)


def test_what_is_no_source_says_so(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "w.safetensors"):
        with pytest.raises(ConfigError, match="neither the folder of a policy"):
            check_weights_source(path)
    (tmp_path / "w.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ConfigError, match="not a safetensors file"):
        read_weights(tmp_path / "w.safetensors", SPEC)
    with (tmp_path / "w.safetensors").open("ab") as file:
        file.truncate(1 << 30)
    with pytest.raises(PolicyFolderError, match="expected at most"):
        read_weights(tmp_path / "w.safetensors", SPEC)


def test_a_dtype_that_numpy_lacks_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    save_file({"layers.0.weight": torch.zeros(5, 3, dtype=torch.bfloat16)}, tmp_path / "w.safetensors")
    with pytest.raises(ConfigError):
        read_weights(tmp_path / "w.safetensors", SPEC)
