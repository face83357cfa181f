"""Tests of checkpoints: a state is restored bit for bit, a crash leaves the old set or the new one, and damage is detected."""

import errno
import fcntl
import json
import math
import os
import random
import resource
import stat
import struct
import subprocess
import sys
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from kit import assert_same_state

from rl4sys_zmq.errors import CheckpointError
from rl4sys_zmq.learner.run import checkpoints
from rl4sys_zmq.learner.run.checkpoints import (
    CheckpointedStreamProgress,
    CheckpointManifest,
    CheckpointStore,
    read_checkpoint,
    read_manifest,
)
from rl4sys_zmq.learner.run.state_tree import pack_state, unpack_state

pytest.importorskip("safetensors")

MARKS = (
    CheckpointedStreamProgress("a1", 3, 17, {"trained": 16, "refused": 1}),
    CheckpointedStreamProgress("ä ctor", 2**63 - 1, 0, {}),
)
MANIFEST = CheckpointManifest(
    client_id="control/ä", journal_id=2**63 - 1, generation=1_700_000_000_000, version=7, digest=2**64 - 1, trained_digest=3,
    algorithm_name="PPO",
    updates=8, steps=1000, verdicts={"trained": 16, "refused": 1}, marks=MARKS,
)  # fmt: skip


def state_of(number: int) -> dict[str, Any]:
    return {"weights": np.full(100, number, np.float32), "number": number}


def store_with(folder: Path, count: int, keep: int = 3) -> CheckpointStore:
    store = CheckpointStore(folder, keep)
    for number in range(1, count + 1):
        assert store.write(replace(MANIFEST, updates=number), state_of(number)).number == number
    return store


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def through_files(state: Any) -> Any:
    """Return a state as another process would read it from the files."""
    files = checkpoints.encode_checkpoint(MANIFEST, {"it": state})
    document = json.loads(files["manifest.json"])
    import safetensors.numpy

    return unpack_state(document["state"], safetensors.numpy.load(files["state.safetensors"]))["it"]


dtypes = st.one_of(
    npst.scalar_dtypes(), npst.unicode_string_dtypes(), npst.byte_string_dtypes(), st.just(np.dtype("float128")),
)  # fmt: skip
arrays = npst.arrays(dtypes, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), arrays,
    st.integers(-(10**5000), 10**5000), st.just("\ud800"), st.lists(st.integers()),
)  # fmt: skip
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.sampled_from(["$array", "a.b", "a", "", "__metadata__"])), inner),
    ),
    max_leaves=8,
)


@given(tree=trees)
@settings(max_examples=150)
def test_a_state_comes_back_to_the_bit(tree: Any) -> None:
    assert_same_state(tree, through_files(tree), ordered=True)


def test_arrays_of_any_layout_come_back_writable_and_their_own() -> None:
    source = np.arange(24, dtype=np.uint64).reshape(4, 6)
    state = {
        "t": source.T,
        "s": source[::2, 1::3],
        "r": np.broadcast_to(source[0], (3, 6)),
        "b": source.astype(">f8"),
        "n": np.uint64(2**64 - 1),
    }
    back = through_files(state)
    assert_same_state(state, back)
    for key in "tsrb":
        back[key][:] = 0
    assert source.any()


def test_numbers_that_json_cannot_say() -> None:
    quiet, negative = struct.unpack("<dd", struct.pack("<QQ", 0x7FF8000000000123, 0xFFF8000000000001))
    state = [math.inf, -math.inf, quiet, negative, -0.0, 5e-324, 2**63, -(2**63), 2**64 - 1, 16**6000, True, 1, 1.0]
    assert_same_state(state, through_files(state))


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int64", "bool", "complex64", "uint16", "uint64"]
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (5,), (2, 3)])
def test_tensors_come_back_to_the_bit(dtype: str, shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.randint(0, 2, shape).to(getattr(torch, dtype))
    if tensor.is_floating_point():
        tensor = tensor / 3
    back = through_files({"x": tensor, "t": tensor.T if len(shape) == 2 else tensor})
    assert_same_state(tensor, back["x"])
    if len(shape) == 2:
        assert_same_state(tensor.T.contiguous(), back["t"])
    back["x"].zero_()


def test_parameters_and_other_mappings_come_back_plain() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "weight": model.weight,
        "seen": OrderedDict(b=1, a=2),
    }
    back = through_files(state)
    assert type(back["model"]) is type(back["seen"]) is dict and list(back["seen"]) == ["b", "a"]
    assert torch.equal(back["weight"], model.weight) and not back["weight"].requires_grad
    again = torch.optim.Adam(torch.nn.Linear(2, 3).parameters())
    again.load_state_dict(back["optimizer"])
    assert_same_state(through_files(again.state_dict()), back["optimizer"])


def test_what_cannot_be_stored_is_named() -> None:
    torch = pytest.importorskip("torch")
    loop: list[Any] = []
    loop.append(loop)
    cases: list[tuple[Any, str]] = [
        ({"a": {"b": [1, object()]}}, r"state\.a\.b\[1\]: a builtins.object cannot be stored"),
        ({"a": ({1, 2},)}, r"state\.a\[0\]: a builtins.set"),
        ({"a": np.array([None])}, r"state\.a: an array of dtype object"),
        ({"a": np.zeros(2, [("x", "f4")])}, r"state\.a: an array of dtype"),
        ({"a": np.ma.masked_array([1, 2])}, r"state\.a: a numpy.ma"),
        ({"a": {True: 1}}, r"state\.a\[True\]: a key must be"),
        ({(1, 2): 1}, r"state\[\(1, 2\)\]: a key must be"),
        ({"a": torch.eye(2).to_sparse()}, r"state\.a: a tensor of"),
        ({"a": torch.empty(2, device="meta")}, r"state\.a: a tensor of"),
        ({"a": lambda: 0}, r"state\.a: a builtins.function"),
        ({"a": loop}, r"nested too deeply or contains itself"),
    ]
    for state, words in cases:
        with pytest.raises(CheckpointError, match=words):
            pack_state(state)


def test_an_unsupported_state_leaves_no_trace(tmp_path: Path) -> None:
    store = store_with(tmp_path / "c", 1)
    with pytest.raises(CheckpointError, match=r"state\.x"):
        store.write(MANIFEST, {"x": object()})
    assert names(store.folder) == ["00000001"]


def test_long_lists_are_no_trouble(tmp_path: Path) -> None:
    keys = [[2**64 - 1 - k, k] for k in range(50_000)]
    store = CheckpointStore(tmp_path / "c")
    store.write(MANIFEST, {"keys": keys, "flat": list(range(200_000))})
    loaded = store.load()
    assert loaded is not None and loaded[1] == {"keys": keys, "flat": list(range(200_000))}


def test_a_checkpoint_comes_back_with_its_manifest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "RUN" / "checkpoints" / "c")
    assert store.load() is None and store.newest() == [] and not store.folder.exists()
    written = store.write(MANIFEST, state_of(5))
    assert replace(written, number=0, saved_unix_s=0.0) == MANIFEST
    assert written.number == 1 and written.saved_unix_s > 1.7e9
    manifest, state = store.load() or pytest.fail("nothing there")
    assert (manifest, store.damaged) == (written, [])
    assert_same_state(state, state_of(5))
    path = store.folder / "00000001"
    assert store.newest() == [path] and read_manifest(path) == written == read_checkpoint(path)[0]


def test_the_state_file_is_an_ordinary_one(tmp_path: Path) -> None:
    import safetensors.numpy

    store = store_with(tmp_path / "c", 1)
    stored = safetensors.numpy.load_file(store.newest()[0] / "state.safetensors")
    assert list(stored) == ["state.weights"] and np.array_equal(stored["state.weights"], state_of(1)["weights"])
    pairs = json.loads((store.newest()[0] / "manifest.json").read_text(), object_pairs_hook=list)
    document = json.loads((store.newest()[0] / "manifest.json").read_text())
    assert len(document) == len(pairs), "no key stands twice"
    assert document["client_id"] == MANIFEST.client_id and document["marks"][0]["next_seq"] == 17


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = store_with(tmp_path / "RUN" / "checkpoints" / "c", 1)
    finally:
        os.umask(before)
    folder = store.newest()[0]
    for path in (store.folder.parent, store.folder, folder):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(names(folder)) == ["manifest.json", "state.safetensors"]


def test_the_newest_few_are_kept(tmp_path: Path) -> None:
    store = store_with(tmp_path / "c", 6)
    assert names(store.folder) == ["00000004", "00000005", "00000006"]
    assert [path.name for path in store.newest()] == ["00000006", "00000005", "00000004"]
    assert names(store_with(tmp_path / "d", 3, keep=1).folder) == ["00000003"]
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointStore(tmp_path, 0)


def test_what_a_crash_left_is_no_checkpoint_and_goes_away(tmp_path: Path) -> None:
    store = store_with(tmp_path / "c", 2)
    for name in (".tmp-00000003", ".tmp-00000001"):
        (store.folder / name).mkdir()
        (store.folder / name / "state.safetensors").write_bytes(b"half")
    (store.folder / "notes.txt").write_text("not ours")
    assert [path.name for path in store.newest()] == ["00000002", "00000001"]
    assert (store.folder / ".tmp-00000003").exists(), "a reader disturbs no writer"
    assert CheckpointStore(store.folder).load() is not None
    assert names(store.folder) == ["00000001", "00000002", "notes.txt"]
    (store.folder / ".tmp-00000003").mkdir()
    assert store.write(MANIFEST, state_of(3)).number == 3


def test_a_damaged_one_is_moved_aside_and_its_number_is_not_used_again(tmp_path: Path) -> None:
    store = store_with(tmp_path / "c", 3)
    (store.folder / "00000003" / "state.safetensors").write_bytes(b"")
    (store.folder / "00000002" / "manifest.json").unlink()
    manifest, state = store.load() or pytest.fail("nothing there")
    assert manifest.number == state["number"] == 1
    assert "00000003/state.safetensors: it has 0 bytes; expected" in store.damaged[0]
    assert "00000002/manifest.json: No such file" in store.damaged[1]
    assert names(store.folder) == ["00000001", "00000002.damaged", "00000003.damaged"]
    assert store.write(MANIFEST, state_of(4)).number == 4


def test_aside_names_do_not_collide(tmp_path: Path) -> None:
    store = store_with(tmp_path / "c", 1)
    (store.folder / "00000001.damaged").mkdir()
    (store.folder / "00000001" / "manifest.json").unlink()
    assert store.load() is None
    assert names(store.folder) == ["00000001.damaged", "00000001.damaged.2"]


def test_going_back_abandons_what_is_newer(tmp_path: Path) -> None:
    store = store_with(tmp_path / "c", 5, keep=5)
    assert store.abandon_after(3) == [5, 4]
    assert store.abandon_after(3) == []
    assert [path.name for path in store.newest()] == ["00000003", "00000002", "00000001"]
    manifest, _ = store.load() or pytest.fail("nothing there")
    assert manifest.number == 3 and store.damaged == []
    assert store.write(MANIFEST, state_of(6)).number == 6
    assert read_manifest(store.folder / "00000005.abandoned").number == 5


def resealed(path: Path, change: Any) -> None:
    """Change a manifest, and compute its seal again, as a program would."""
    document = json.loads((path / "manifest.json").read_text())
    del document["seal"]
    change(document)
    rest = ('",\n' + json.dumps(document)[1:]).encode()
    (path / "manifest.json").write_bytes(b'{"seal": "' + xxhash.xxh3_128_hexdigest(rest).encode() + rest)


def test_a_manifest_sealed_anew_is_read(tmp_path: Path) -> None:
    path = store_with(tmp_path / "c", 1).newest()[0]
    resealed(path, lambda d: d.update(version=99))
    assert read_checkpoint(path)[0].version == 99


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("marks"), "'marks'"),
        (lambda d: d.pop("format"), "format"),
        (lambda d: d.update(version="7"), "version is not int"),
        (lambda d: d.update(steps=True), "steps is not int"),
        (lambda d: d["marks"][0].update(next_seq=None), "next_seq is not int"),
        (lambda d: d["marks"][0].update(other=1), "other"),
        (lambda d: d.pop("files"), "files"),
        (lambda d: d.pop("state"), "state"),
        (lambda d: d["state"]["weights"].update(shape=[7]), "does not match its manifest"),
        (lambda d: d["state"]["weights"].update({"$array": "other"}), "does not match its manifest"),
        (lambda d: d["state"].update(x={"$what": 1}), "does not match its manifest"),
        (lambda d: d["state"].update(x={"$bytes": "!"}), "does not match its manifest"),
    ],
)
def test_a_manifest_that_says_something_else_is_damaged(tmp_path: Path, change: Any, words: str) -> None:
    path = store_with(tmp_path / "c", 1).newest()[0]
    resealed(path, change)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_checkpoint(path)
    assert caught.value.damaged and str(path) in caught.value.path


def test_another_format_is_no_damage(tmp_path: Path) -> None:
    store = store_with(tmp_path / "c", 2)
    resealed(store.newest()[0], lambda d: d.update(format=2, library="9.0"))
    with pytest.raises(
        CheckpointError, match=r"version 9\.0 of this library wrote it in format 2; this version reads format 1"
    ) as caught:
        store.load()
    assert not caught.value.damaged and names(store.folder) == ["00000001", "00000002"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_a_file_that_may_be_read_later_is_not_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    store = store_with(tmp_path / "c", 2)

    def refuse(path: Path) -> bytes:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(CheckpointError, match=os.strerror(code)):
        store.load()
    assert names(store.folder) == ["00000001", "00000002"]


def test_a_file_that_the_disk_has_lost_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with(tmp_path / "c", 2)
    read = Path.read_bytes

    def bad_sector(path: Path) -> bytes:
        if path.match("00000002/state.safetensors"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", bad_sector)
    loaded = store.load()
    assert loaded is not None and loaded[0].number == 1 and "Input/output error" in store.damaged[0]


def test_a_path_with_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere/manifest\.json: No such file"):
        read_checkpoint(tmp_path / "nowhere")


def test_without_safetensors_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(CheckpointError, match=r"rl4sys-zmq\[learner\]"):
        CheckpointStore(tmp_path / "c").write(MANIFEST, {})


def test_no_flipped_bit_goes_unseen(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    store = store_with(tmp_path / "c", 2)
    newest = store.newest()[0]
    originals = {path: path.read_bytes() for path in newest.iterdir()}
    assert len(originals) == 2
    for turn in range(300):
        path = sorted(originals)[turn % 2]
        content = bytearray(originals[path])
        bit = rng.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        manifest, state = store.load() or pytest.fail("nothing there")
        assert manifest.number == 1 and len(store.damaged) == turn + 1, (path.name, bit)
        assert_same_state(state, state_of(1))
        os.rename(store.folder / "00000002.damaged", newest)
        path.write_bytes(originals[path])
    manifest, state = store.load() or pytest.fail("nothing there")
    assert manifest.number == 2 and len(store.damaged) == 300


@given(cut=st.floats(0, 0.999), extra=st.binary(max_size=9), which=st.integers(0, 1))
@settings(max_examples=60)
def test_no_torn_file_goes_unseen(tmp_path_factory: pytest.TempPathFactory, cut: float, extra: bytes, which: int) -> None:
    path = store_with(tmp_path_factory.mktemp("s") / "c", 1).newest()[0]
    file = path / ("manifest.json", "state.safetensors")[which]
    content = file.read_bytes()
    file.write_bytes(content[: int(cut * len(content))] + extra)
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)
    assert caught.value.damaged and caught.value.path == str(file)


CALLS = ("mkdir", "open", "write", "fsync", "rename", "close")


class Saboteur:
    """A recorder of the disk calls of a write. It runs `act` before the call with the index `at`."""

    def __init__(self, at: int, act: Any) -> None:
        self.seen: list[str] = []
        self._at, self._act = at, act

    def attach(self, patch: Any) -> None:
        for name in CALLS:
            patch(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name: str, call: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.seen.append(name)
            if len(self.seen) - 1 == self._at:
                self._act(name, lambda: call(*args, **kwargs))
            return call(*args, **kwargs)

        return wrapped


def calls_of_a_write(folder: Path) -> list[str]:
    """Return the disk calls of a write that also removes the oldest checkpoint."""
    store = store_with(folder, 3)
    counter = Saboteur(-1, None)
    with pytest.MonkeyPatch.context() as patch:
        counter.attach(patch.setattr)
        store.write(MANIFEST, state_of(4))
    return counter.seen


def test_the_order_of_a_write(tmp_path: Path) -> None:
    seen = [name for name in calls_of_a_write(tmp_path / "c") if name != "close"]
    file = ["open", "write", "fsync"]
    assert seen[:13] == ["mkdir", *file, *file, "open", "fsync", "rename", "open", "fsync", "rename"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_whatever_the_disk_refuses_one_set_is_whole(tmp_path: Path, code: int) -> None:
    steps = calls_of_a_write(tmp_path / "count")
    failed = 0

    def refuse(name: str, call: Any) -> None:
        if name == "close":
            call()
        raise OSError(code, os.strerror(code))

    for at in range(len(steps)):
        store = store_with(tmp_path / f"{at:02d}", 3)
        with pytest.MonkeyPatch.context() as patch:
            Saboteur(at, refuse).attach(patch.setattr)
            try:
                store.write(MANIFEST, state_of(4))
                written = True
            except CheckpointError as exc:
                written = False
                failed += 1
                assert os.strerror(code) in str(exc) and str(store.folder) in exc.path and not exc.damaged
        assert not [name for name in names(store.folder) if name.startswith(".tmp")] or written  # pruning can leave one
        later = CheckpointStore(store.folder)
        manifest, state = later.load() or pytest.fail("nothing there")
        assert later.damaged == [] and state["number"] == manifest.number
        assert manifest.number == 4 if written else manifest.number in (3, 4)
        assert manifest.number == 3 or written or at > steps.index("rename")
        assert store.write(MANIFEST, state_of(5)).number == manifest.number + 1
        assert len(store.newest()) == 3 and not [name for name in names(store.folder) if name.startswith(".tmp")]
    assert failed > 8


def test_a_real_disk_that_is_full_is_an_error_of_ours(tmp_path: Path) -> None:
    store = store_with(tmp_path / "c", 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="File too large"):
            store.write(MANIFEST, {"x": np.zeros(1000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(store.folder) == ["00000001"]
    assert store.write(MANIFEST, {"x": np.zeros(1000)}).number == 2


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("in the way")
    store = CheckpointStore(tmp_path / "c" / "d")
    with pytest.raises(CheckpointError, match=r"Not a directory|File exists"):
        store.write(MANIFEST, {})
    with pytest.raises(CheckpointError, match="Not a directory"):
        store.newest()


DYING = """
import os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
import test_checkpoints as t

root, steps = Path(sys.argv[2]), int(sys.argv[3])
for at in range(2 * steps):
    store = t.store_with(root / f"{at:02d}", 3)
    child = os.fork()
    if not child:
        def die(name, call):
            if at % 2:  # after the call rather than before it
                call()
            os._exit(9)
        t.Saboteur(at // 2, die).attach(setattr)
        store.write(t.MANIFEST, t.state_of(4))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, at
"""


def test_whenever_the_process_dies_one_set_is_whole(tmp_path: Path) -> None:
    steps = calls_of_a_write(tmp_path / "count")
    arguments = [sys.executable, "-W", "ignore", "-c", DYING, str(Path(__file__).parent), str(tmp_path), str(len(steps))]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    numbers = []
    for at in range(2 * len(steps)):
        store = CheckpointStore(tmp_path / f"{at:02d}")
        older = {path.name for path in store.newest()}
        assert older >= {"00000002", "00000003"}
        manifest, state = store.load() or pytest.fail("nothing there")
        assert store.damaged == [] and state["number"] == manifest.number
        assert not [name for name in names(store.folder) if name.startswith(".tmp")]
        assert store.write(MANIFEST, state_of(manifest.number + 1)).number == manifest.number + 1
        assert len(store.newest()) == 3
        numbers.append(manifest.number)
    renamed = 2 * steps.index("rename") + 1
    assert numbers == [3] * renamed + [4] * (len(numbers) - renamed)


def test_an_interrupted_load_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with(tmp_path / "c", 2)
    (store.folder / "00000002" / "manifest.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(OSError(errno.EROFS, os.strerror(errno.EROFS))))
        with pytest.raises(CheckpointError, match="Read-only"):
            store.load()
    loaded = store.load()
    assert loaded is not None and loaded[0].number == 1


def test_a_learner_thread_that_was_replaced_can_write_no_checkpoint(tmp_path: Path) -> None:
    old, new = CheckpointStore(tmp_path / "c"), CheckpointStore(tmp_path / "c")
    old.claim(5)
    old.write(MANIFEST, state_of(1))
    new.claim(6)
    with pytest.raises(CheckpointError, match=r"learner thread 6 has replaced this one \(5\)"):
        old.write(MANIFEST, state_of(2))
    with pytest.raises(CheckpointError, match="has replaced this one"):
        old.claim(5)
    assert new.write(MANIFEST, state_of(3)).number == 2
    assert [path.name for path in new.newest()] == ["00000002", "00000001"]
    assert not list((tmp_path / "c").glob(".tmp-*"))


def test_a_replacement_that_comes_while_a_checkpoint_is_written_wins(tmp_path: Path) -> None:
    old, new = CheckpointStore(tmp_path / "c"), CheckpointStore(tmp_path / "c")
    old.claim(5)

    def wanted() -> bool:
        new.claim(6)
        return True

    with pytest.raises(CheckpointError, match="has replaced this one"):
        old.write(MANIFEST, state_of(1), wanted=wanted)
    assert new.newest() == [] and not list((tmp_path / "c").glob(".tmp-*"))


def test_a_claim_waits_for_the_rename_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LOCK_TIMEOUT_S", 0.1)
    store = CheckpointStore(tmp_path / "c")
    store.claim(5)
    with open(tmp_path / "c" / ".writer") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="is its process stopped"):
            store.claim(6)
    store.claim(6)
    store.write(MANIFEST, state_of(1))


def test_a_folder_that_is_released_takes_any_learner_thread(tmp_path: Path) -> None:
    CheckpointStore(tmp_path / "c").release()
    store = CheckpointStore(tmp_path / "c")
    store.claim(6)
    store.write(MANIFEST, state_of(1))
    assert store.abandon_all() == [1]
    again = CheckpointStore(tmp_path / "c")
    again.claim(5)
    assert again.write(MANIFEST, state_of(2)).number == 2
