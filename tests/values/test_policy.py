"""Policy specs derive their tensors, and snapshots never change."""

from typing import Any

import numpy as np
import pytest

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot, PolicySpec, TensorSpec, feature_size

FOUR, TWO, ARM = BoxSpace((4,)), DiscreteSpace(2), BoxSpace((3,), low=-1.0, high=1.0)


def shapes(spec: Any) -> Any:
    return {t.name: t.shape for t in spec.tensors}


def test_the_tensors_of_an_mlp_follow_from_its_layers() -> None:
    spec = mlp_spec(FOUR, TWO, "categorical", (8,))
    assert shapes(spec) == {
        "layers.0.weight": (8, 4),
        "layers.0.bias": (8,),
        "layers.1.weight": (2, 8),
        "layers.1.bias": (2,),
    }
    assert spec.size == 8 * 4 + 8 + 2 * 8 + 2
    assert list(shapes(mlp_spec(FOUR, TWO, "categorical", (8,), normalise_observations=True)))[:2] == ["obs_mean", "obs_scale"]
    assert shapes(mlp_spec(FOUR, ARM, "gaussian", ()))["log_std"] == (3,)
    assert shapes(mlp_spec(DiscreteSpace(5), TWO, "q_values", ()))["layers.0.weight"] == (2, 5)
    assert shapes(mlp_spec(FOUR, TWO, "q_values", ()))["epsilon"] == (1,)
    assert (feature_size(BoxSpace((2, 3))), feature_size(DiscreteSpace(5))) == (6, 5)


@pytest.mark.parametrize(
    ("kwargs", "key"),
    [
        ({"head": "other"}, "head"),
        ({"head": "gaussian"}, "head"),
        ({"action_space": ARM}, "head"),
        ({"activation": "other"}, "function"),
        ({"squash": "other"}, "squash"),
        ({"squash": "tanh"}, "squash"),
        ({"hidden_sizes": (0,)}, "units"),
    ],
)
def test_impossible_policies_are_refused(kwargs: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        mlp_spec(**{"observation_space": FOUR, "action_space": TWO, "head": "categorical", **kwargs})
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("kind", "document", "tensors", "key"),
    [
        ("mine", {}, (), "tensors"),
        ("mine", {}, (TensorSpec("w", (2,)), TensorSpec("w", (2,))), "tensors"),
        ("", {}, (TensorSpec("w", (2,)),), "kind"),
        ("mine", {"a": (1,)}, (TensorSpec("w", (2,)),), "document"),
        ("mine", {"a": float("inf")}, (TensorSpec("w", (2,)),), "document"),
    ],
)
def test_impossible_specs_of_other_kinds_are_refused(kind: str, document: dict[str, Any], tensors: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PolicySpec(FOUR, TWO, kind, document, tensors)
    assert caught.value.key == key


def test_wrong_tensors_are_refused() -> None:
    spec = mlp_spec(FOUR, TWO, "categorical", ())
    for bad in (np.zeros(spec.size + 1, np.float32), np.zeros(spec.size, np.float64), np.zeros((spec.size, 1), np.float32)):
        with pytest.raises(ConfigError):
            spec.views(bad)  # type: ignore[arg-type]
    tensors = spec.views(np.zeros(spec.size, np.float32))
    for change in ({"more": np.zeros(1, np.float32)}, {"layers.0.bias": np.zeros(3, np.float32)}):
        with pytest.raises(ConfigError):
            spec.flatten({**tensors, **change})
    with pytest.raises(ConfigError):
        spec.flatten({})


def test_a_snapshot_cannot_be_written_to() -> None:
    snapshot = PolicySnapshot(1, 0, 0, np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="read-only"):
        snapshot.flat[0] = 1
