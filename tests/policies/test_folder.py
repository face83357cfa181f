"""A policy folder is loaded bit for bit or not at all, appears as a whole, and is not replaced without a request."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rl4sys_zmq.errors import PolicyFolderError
from rl4sys_zmq.policies import StoredPolicy, build_policy, read_policy
from rl4sys_zmq.policies.folder import SPEC, WEIGHTS, encode_policy, read_file, write_policy
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.sealed import seal_document
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySpec, TensorSpec

from .stored import ORIGIN, stored

pytest.importorskip("safetensors")

BOX = BoxSpace((3,), low=(-1.0, float("-inf"), 0.0))
SPEC_OF_MLP = mlp_spec(BOX, DiscreteSpace(4, 2), "categorical", hidden_sizes=(5,), normalise_observations=True)
MIXED = PolicySpec(
    BOX,
    DiscreteSpace(2),
    "own",
    {"depth": 2, "names": ["a", None, True, 0.5]},
    (
        TensorSpec("half", (3,), "float16"),
        TensorSpec("weight", (2, 3)),
        TensorSpec("codes", (5,), "uint8"),
        TensorSpec("table", (2, 2), "int64"),
        TensorSpec("mask", (3,), "bool"),
        TensorSpec("wide", (2,), "float64"),
    ),
    blob=b"a graph" * 100,
)


def same(one: StoredPolicy, other: StoredPolicy) -> bool:
    bits = [(p.snapshot.flat.tobytes(), p.snapshot.others, p.snapshot.digest) for p in (one, other)]
    return bits[0] == bits[1] and (one.spec, one.origin) == (other.spec, other.origin)


def written(folder: Path, policy: StoredPolicy) -> Path:
    write_policy(folder, encode_policy(policy))
    return folder


@pytest.mark.parametrize("spec", [SPEC_OF_MLP, MIXED], ids=["mlp", "other dtypes and a blob"])
def test_a_policy_comes_back_bit_for_bit(tmp_path: Path, spec: PolicySpec) -> None:
    policy = stored(spec)
    policy = replace(policy, origin=replace(ORIGIN, episodes=12, mean_return=1.5))
    folder = written(tmp_path / "a" / "policy", policy)
    found = read_policy(folder)
    assert same(found, policy)
    assert (found.snapshot.generation, found.snapshot.version) == (1_700_000_000_000, 7)
    assert not found.snapshot.flat.flags.writeable
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_weights_are_ordinary_named_tensors(tmp_path: Path) -> None:
    import safetensors.numpy

    policy = stored(MIXED)
    tensors = safetensors.numpy.load_file(written(tmp_path / "p", policy) / WEIGHTS)
    views = policy.spec.views(policy.snapshot.flat, policy.snapshot.others)
    assert tensors.keys() == views.keys()
    for name, view in views.items():
        assert (tensors[name].dtype, tensors[name].tobytes()) == (view.dtype, view.tobytes())
    assert json.loads((tmp_path / "p" / SPEC).read_text())["digest"] == f"{policy.snapshot.digest:016x}"


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    small = mlp_spec(BoxSpace((1,)), DiscreteSpace(2), "categorical", hidden_sizes=())
    folder = written(tmp_path / "p", stored(small))
    for path in folder.iterdir():
        data = path.read_bytes()
        for place in range(0, len(data), 7):
            path.write_bytes(data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :])
            with pytest.raises(PolicyFolderError, match=str(folder)):
                read_policy(folder)
        for wrong in (data[:-1], data + b"\0", b""):
            path.write_bytes(wrong)
            with pytest.raises(PolicyFolderError):
                read_policy(folder)
        path.write_bytes(data)
    read_policy(folder)


@pytest.mark.parametrize("name", [SPEC, WEIGHTS, "policy.blob"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "p", stored(MIXED))
    (folder / name).unlink()
    with pytest.raises(PolicyFolderError, match=f"{name}: No such file"):
        read_policy(folder)


def test_a_folder_in_place_of_a_file_leaves_no_descriptor_open(tmp_path: Path) -> None:
    free = os.dup(2)  # the lowest free descriptor
    os.close(free)
    with pytest.raises(PolicyFolderError, match="Is a directory"):
        read_file(tmp_path, 1 << 20)
    again = os.dup(2)
    os.close(again)
    assert again == free


def test_what_is_no_policy_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(PolicyFolderError, match=r"no such folder.*rl4sys-learner export"):
        read_policy(tmp_path / "nowhere")
    folder = written(tmp_path / "p", stored(SPEC_OF_MLP))
    with (folder / SPEC).open("ab") as file:
        file.truncate(100 << 20)
    with pytest.raises(PolicyFolderError, match="expected at most"):
        read_policy(folder)
    (folder / SPEC).unlink()
    os.mkfifo(folder / SPEC)
    with pytest.raises(PolicyFolderError, match="not a regular file"):
        read_policy(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": 2, "library": "9.0"}, "version 9.0 of this library wrote it in format 2"),
        ({"digest": "0" * 16}, "the digest of the weights differs"),
        ({"version": "7"}, "not an integer"),
        ({"origin": {}}, "'client_id' is missing"),
        ({"origin": {"client_id": 3}}, "origin.client_id is 3"),
        ({"files": {}}, "'policy.safetensors' is missing"),
        ({"spec": {"kind": "mlp"}}, "not a policy spec"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, object], problem: str) -> None:
    folder = written(tmp_path / "p", stored(SPEC_OF_MLP))
    document = json.loads((folder / SPEC).read_text())
    del document["seal"]
    (folder / SPEC).write_bytes(seal_document({**document, **change}))
    with pytest.raises(PolicyFolderError, match=problem):
        read_policy(folder)


def test_a_file_with_a_larger_size_than_the_policy_is_not_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "p", stored(SPEC_OF_MLP))
    document = json.loads((folder / SPEC).read_text())
    del document["seal"]
    document["files"][WEIGHTS]["bytes"] = 1 << 40
    (folder / SPEC).write_bytes(seal_document(document))
    with pytest.raises(PolicyFolderError, match="should have 1099511627776 bytes"):
        read_policy(folder)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    policy = stored(SPEC_OF_MLP, scale=float("inf"))
    with pytest.raises(PolicyFolderError, match="not finite"):
        read_policy(written(tmp_path / "p", policy))


def test_a_folder_is_replaced_only_with_force(tmp_path: Path) -> None:
    folder = written(tmp_path / "p", stored(SPEC_OF_MLP))
    other = stored(SPEC_OF_MLP, seed=1)
    with pytest.raises(PolicyFolderError, match="--force"):
        write_policy(folder, encode_policy(other))
    write_policy(folder, encode_policy(other), force=True)
    assert same(read_policy(folder), other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]


def test_a_folder_with_other_files_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    files = encode_policy(stored(SPEC_OF_MLP))
    with pytest.raises(PolicyFolderError, match=r"thesis\.tex"):
        write_policy(tmp_path / "mine", files, force=True)
    with pytest.raises(PolicyFolderError, match="not a folder"):
        write_policy(tmp_path / "file", files, force=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_a_failed_write_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = stored(SPEC_OF_MLP)
    folder = written(tmp_path / "p", policy)

    def fails(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr("rl4sys_zmq.policies.folder.exchange_paths", fails)
    with pytest.raises(PolicyFolderError, match="No space left"):
        write_policy(folder, encode_policy(stored(SPEC_OF_MLP, seed=1)), force=True)
    assert same(read_policy(folder), policy)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]


def test_reading_and_building_loads_no_torch(tmp_path: Path) -> None:
    folder = written(tmp_path / "p", stored(SPEC_OF_MLP))
    code = (
        f"import sys\nfrom rl4sys_zmq import FrozenAgent\nFrozenAgent({str(folder)!r}).request_for_action(None, [0, 0, 0])\n"
        "sys.exit(' '.join({'torch', 'gymnasium', 'onnx'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_policy_acts_as_before(tmp_path: Path) -> None:
    policy = stored(SPEC_OF_MLP)
    found = read_policy(written(tmp_path / "p", policy))
    observations = np.random.default_rng(1).standard_normal((16, 3)).astype(np.float32)
    from rl4sys_zmq.policies import RandomSource

    one, other = (build_policy(p.spec, p.snapshot).act_batch(observations, None, RandomSource(3), True) for p in (policy, found))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
