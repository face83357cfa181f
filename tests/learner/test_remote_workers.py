"""Tests of single parts of remote workers: the thread that keeps checkpoints, the storage of a worker, and the start data."""

import dataclasses
import json
import queue
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit import assignment, manifest

from rl4sys_zmq.counters import Counters
from rl4sys_zmq.errors import CheckpointError, ConfigError
from rl4sys_zmq.learner.engines import checkpoint_thread
from rl4sys_zmq.learner.engines.base import WorkerAssignment
from rl4sys_zmq.learner.engines.checkpoint_thread import MAX_WAITING, CheckpointThread, RemoteWorkerFiles, StorageAnswer
from rl4sys_zmq.learner.engines.remote_start import RemoteWorkerStart
from rl4sys_zmq.learner.engines.worker_link import RemoteWorkerLinks
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore, encode_checkpoint
from rl4sys_zmq.learner.run.worker_storage import SuspectFiles, read_mark
from rl4sys_zmq.learner.training.suspects import CrashSuspectRecord, SegmentInTraining
from rl4sys_zmq.remote import worker_side_storage
from rl4sys_zmq.remote.worker import run_remote_worker
from rl4sys_zmq.remote.worker_side_storage import WorkerSideStorage
from rl4sys_zmq.replay.pieces import make_piece
from rl4sys_zmq.transports import Poller, Socket
from rl4sys_zmq.transports.network import curve
from rl4sys_zmq.version import package_version
from rl4sys_zmq.wire import encode
from rl4sys_zmq.wire.thread_messages import (
    AssignClient,
    CheckpointFound,
    CheckpointPart,
    CheckpointStored,
    FetchCheckpointPart,
    FindCheckpoint,
    QuarantinedSegment,
    RecordSegmentsInTraining,
)

GENERATION = 7
MANIFEST = manifest(client_id="lab", generation=GENERATION)
STATE = {"weights": np.arange(100, dtype=np.float32)}
KEY = ("a", 9)


def assigned(folder: Path, generation: int = GENERATION) -> AssignClient:
    return assignment("X", client_id="lab", generation=generation, checkpoints=str(folder))


class Wire:
    """A worker's storage and the checkpoint thread, connected by a wire that delivers at once."""

    def __init__(self, folder: Path, generation: int = GENERATION) -> None:
        self.assign = assigned(folder, generation)
        self.storage = WorkerSideStorage(self.post)
        self.answers: queue.SimpleQueue[StorageAnswer] = queue.SimpleQueue()
        self.files = RemoteWorkerFiles(self.assign, self.deliver)
        self.thread = CheckpointThread(self.woken)
        self.sent: list[Any] = []
        self.thread.start()

    def post(self, message: Any) -> None:
        self.sent.append(message)
        if not self.thread.request(self.files, message):
            self.storage.deliver(CheckpointStored(0, False, "too many"))

    def deliver(self, answer: StorageAnswer) -> None:
        self.answers.put(answer)
        self.storage.deliver(answer)

    def woken(self) -> None:
        self.thread.deliver_answers()  # in the thread itself, because no other thread reads the answers

    def close(self) -> None:
        self.thread.finish(self.files)
        self.thread.stop()
        assert self.thread.join(5.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "lab"


@pytest.fixture
def wire(folder: Path) -> Iterator[Wire]:
    made = Wire(folder)
    yield made
    made.close()


def answer_of(wire: Wire) -> CheckpointStored:
    """Return the next answer of the thread, which can contain an error."""
    found = wire.answers.get(timeout=5.0)
    assert isinstance(found, CheckpointStored)
    return found


def begun(wire: Wire) -> None:
    """Let the worker request the newest checkpoint, and wait for the answer."""
    wire.storage.checkpoints(wire.assign)
    assert isinstance(wire.answers.get(timeout=5.0), CheckpointFound)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


@pytest.mark.parametrize("part_bytes", [50, 400, 4 << 20])
def test_a_checkpoint_goes_to_the_gateway_and_comes_back(
    part_bytes: int, wire: Wire, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_thread, "PART_BYTES", part_bytes + 7)
    monkeypatch.setattr(worker_side_storage, "PART_BYTES", part_bytes)
    store = wire.storage.checkpoints(wire.assign)
    assert store.load() is None
    assert store.write(MANIFEST, STATE).number == 1
    assert store.write(MANIFEST, STATE).number == 2
    later = Wire(folder, GENERATION + 1)
    found = later.storage.checkpoints(later.assign).load()
    assert found is not None and found[0].number == 2 and np.array_equal(found[1]["weights"], STATE["weights"])
    with pytest.raises(CheckpointError, match="learner thread 8 has replaced this one"):
        store.write(MANIFEST, STATE)
    assert names(folder) == ["00000001", "00000002"]
    later.close()


def test_a_state_with_pieces_goes_to_the_gateway_and_comes_back(wire: Wire, folder: Path) -> None:
    state: dict[str, Any] = {"replay": [make_piece({"rewards": np.arange(9.0)}), make_piece({"rewards": np.ones(3)})]}
    store = wire.storage.checkpoints(wire.assign)
    assert not store.stored_pieces(), "a worker sends all pieces"
    store.write(MANIFEST, state)
    later = Wire(folder, GENERATION + 1)
    for found in (later.storage.checkpoints(later.assign).load(), CheckpointStore(folder).load()):
        assert found is not None
        for mine, theirs in zip(found[1]["replay"], state["replay"], strict=True):
            assert mine.name == theirs.name and np.array_equal(mine.arrays["rewards"], theirs.arrays["rewards"])
    later.close()


def test_a_damaged_checkpoint_is_put_aside_and_named(wire: Wire, folder: Path) -> None:
    store = wire.storage.checkpoints(wire.assign)
    store.write(MANIFEST, STATE)
    store.write(MANIFEST, STATE)
    state = folder / "00000002" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1] + b"?")
    later = Wire(folder, GENERATION + 1)
    again = later.storage.checkpoints(later.assign)
    found = again.load()
    assert found is not None and found[0].number == 1 and "digest" in again.damaged[0]
    assert again.write(dataclasses.replace(MANIFEST, generation=GENERATION + 1), STATE).number == 3
    later.close()


def test_a_fenced_worker_stores_nothing(wire: Wire, folder: Path) -> None:
    store = wire.storage.checkpoints(wire.assign)
    wire.files.fenced = True
    with pytest.raises(CheckpointError, match="replaced"):
        store.write(MANIFEST, STATE)
    assert names(folder) == []


def test_an_unfinished_checkpoint_is_discarded(folder: Path) -> None:
    wire = Wire(folder)
    begun(wire)
    wire.post(CheckpointPart(1, "state.safetensors", 0, False, (b"abc",)))
    assert not answer_of(wire).error
    assert len(names(folder)) == 1
    wire.close()
    assert names(folder) == []


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([("../evil", 0)], "does not begin"),
        ([("state.safetensors", 5)], "a new one has number 1"),
        ([("state.safetensors", 0), ("state.safetensors", 9)], "begins at byte 9; expected 3"),
        ([("state.safetensors", 0), ("state.safetensors", 0)], "begins at byte 0; expected 3"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: list[tuple[str, int]], problem: str, wire: Wire, folder: Path) -> None:
    begun(wire)
    answers = []
    for name, offset in parts:
        wire.post(CheckpointPart(1, name, offset, False, (b"abc",)))
        answers.append(answer_of(wire))
    assert problem in answers[-1].error and not any(one.error for one in answers[:-1])
    assert names(folder) == []


def test_a_state_that_is_not_that_of_the_manifest_is_refused(wire: Wire, folder: Path) -> None:
    begun(wire)
    files = encode_checkpoint(dataclasses.replace(MANIFEST, number=1), STATE)
    wire.post(CheckpointPart(1, "state.safetensors", 0, False, (files["state.safetensors"][:-1] + b"?",)))
    wire.post(CheckpointPart(1, "manifest.json", 0, True, (files["manifest.json"],)))
    assert not answer_of(wire).error
    assert "not the one" in answer_of(wire).error
    assert names(folder) == []


def test_a_checkpoint_without_one_of_its_pieces_is_refused(wire: Wire, folder: Path) -> None:
    begun(wire)
    files = encode_checkpoint(dataclasses.replace(MANIFEST, number=1), {"replay": make_piece({"rewards": np.arange(9.0)})})
    for name in ("state.safetensors", "manifest.json"):
        wire.post(CheckpointPart(1, name, 0, name == "manifest.json", (files[name],)))
        answer = answer_of(wire)
    assert "not the one" in answer.error
    assert names(folder) == []


def test_a_manifest_of_another_generation_is_refused(wire: Wire, folder: Path) -> None:
    store = wire.storage.checkpoints(wire.assign)
    with pytest.raises(CheckpointError, match="expected \\('lab', 7, 1\\)"):
        store.write(dataclasses.replace(MANIFEST, generation=6), STATE)
    assert names(folder) == []


def test_other_files_cannot_be_fetched(wire: Wire) -> None:
    begun(wire)
    wire.post(FetchCheckpointPart(1, "../../secret", 0))
    assert "not needed" in answer_of(wire).error


@pytest.mark.parametrize("message", [FetchCheckpointPart(1, "manifest.json", 1 << 63), FindCheckpoint()])
def test_a_request_that_cannot_be_handled_does_not_end_the_thread_of_all_workers(
    message: FindCheckpoint | FetchCheckpointPart, wire: Wire, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*given: Any) -> Any:
        raise LookupError("a fault")

    store = wire.storage.checkpoints(wire.assign)
    assert store.write(MANIFEST, STATE).number == 1
    while not wire.answers.empty():
        wire.answers.get()
    monkeypatch.setattr(CheckpointStore, "load", fault)
    wire.post(message)
    answer = wire.answers.get(timeout=5.0)
    assert isinstance(answer, CheckpointStored | CheckpointFound) and answer.error
    assert wire.thread.alive


def test_a_checkpoint_thread_that_cannot_be_started_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Poller() as poller:
        links = RemoteWorkerLinks(Counters(), poller, lambda: None)
        task = WorkerAssignment(client_id="lab", key=bytes(8), engine="e", assign=assigned(folder), ended=lambda: None)
        with monkeypatch.context() as patch, pytest.raises(RuntimeError):
            patch.setattr(threading.Thread, "start", full)
            links.open(task, "tcp://127.0.0.1:0")
        link = links.open(task, "tcp://127.0.0.1:0")
        link.finish()
        assert link._files is not None and link._files.closed.is_set(), "the thread has done that"
        links.close()
        assert links.join(5.0)


def test_a_dead_letter_with_many_frames_passes(folder: Path) -> None:
    """A segment with many large columns has a frame for each. A message that is not counted would end its worker."""
    counters = Counters()
    with Poller() as poller:
        links = RemoteWorkerLinks(counters, poller, lambda: None)
        task = WorkerAssignment(client_id="lab", key=b"the key!", engine="e", assign=assigned(folder), ended=lambda: None)
        start = links.open(task, "tcp://127.0.0.1:0").start
        letter = encode(QuarantinedSegment("a", 9, 0, "why", tuple(bytes([n]) for n in range(200))))
        with Socket.push(connect=start.up, secure=curve((start.public, start.secret, start.gateway_public))) as push:
            assert push.send_wait([task.key, *letter], 5.0)
            while not (found := list(links.serve())):
                assert poller.poll(5.0)
        links.close()
        assert links.join(5.0)
    assert [len(frames) for frames in found] == [202] and not counters.under("worker_messages_refused")


def test_the_queue_of_one_worker_is_bounded(folder: Path) -> None:
    """The thread is not started, so every request waits."""
    files = RemoteWorkerFiles(assigned(folder), lambda answer: None)
    thread = CheckpointThread(lambda: None)
    assert [thread.request(files, FindCheckpoint()) for _ in range(MAX_WAITING + 1)] == [True] * MAX_WAITING + [False]
    assert all(thread.request(files, RecordSegmentsInTraining(n, (b"", b""))) for n in range(1, 5000))
    assert len(files.records) <= checkpoint_thread.MAX_RECORDS


def test_a_lost_gateway_fails_the_request_that_waits_and_all_later_ones(folder: Path) -> None:
    storage = WorkerSideStorage(lambda message: None)
    waiting = threading.Timer(0.05, storage.give_up, ("no gateway",))
    waiting.start()
    for _ in range(2):
        with pytest.raises(CheckpointError, match="no gateway"):
            storage.checkpoints(assigned(folder))
    waiting.join()


def held(*numbers: int) -> list[SegmentInTraining]:
    return [SegmentInTraining(None, 0, KEY, seq, False) for seq in numbers]


def suspects_of(wire: Wire) -> CrashSuspectRecord:
    wire.storage.checkpoints(wire.assign)
    return CrashSuspectRecord(wire.storage.suspects(wire.assign))


def test_the_segments_in_training_reach_the_next_worker_and_also_a_local_one(wire: Wire, folder: Path) -> None:
    record = suspects_of(wire)
    record.note(KEY, 1, 3)  # the storage is not careful, so it sends no message
    assert not [m for m in wire.sent if isinstance(m, RecordSegmentsInTraining)]
    record.record(held(3, 4))
    wire.close()
    later = Wire(folder, GENERATION + 1)
    again = suspects_of(later)
    assert "2 segments" in again.finding and again.suspects(KEY, 3) and not again.suspects(KEY, 1)
    again.note(KEY, 4, 5)  # the storage is careful now: the record is on the gateway's disk when this returns
    assert read_mark((folder / "training.mark").read_bytes()) == [(KEY, 4, 5)]
    later.close()
    local = CrashSuspectRecord(SuspectFiles(folder))
    assert local.suspects(KEY, 4) and not local.suspects(KEY, 3) and local.repeated
    local.close()


def test_a_worker_that_was_asked_to_end_is_excused(wire: Wire, folder: Path) -> None:
    record = suspects_of(wire)
    record.record(held(3, 4))
    wire.thread.excuse(wire.files)
    record.record(held(5))
    wire.close()
    later = Wire(folder, GENERATION + 1)
    assert not suspects_of(later).finding
    later.close()


def test_only_the_newest_of_many_records_is_stored(folder: Path) -> None:
    folder.mkdir(parents=True)
    files = RemoteWorkerFiles(assigned(folder), lambda answer: None)
    files.records = deque([RecordSegmentsInTraining(1, (b"suspects", b"one")), RecordSegmentsInTraining(2, (b"", b"two"))])
    answer = files.record()
    assert answer is not None and answer.count == 2 and files.record() is None
    assert (folder / "training.mark").read_bytes() == b"two" and (folder / "suspects.json").read_bytes() == b"suspects"


def start(**changes: Any) -> RemoteWorkerStart:
    keys = {"key": "00", "public": "p", "secret": "s", "gateway_public": "g", "down": "tcp://h:1", "up": "tcp://h:2"}
    more: dict[str, Any] = {"engine": "e", "client_id": "lab", "generation": 1, "plugins": ("x",), "log_level": 20}
    return RemoteWorkerStart(**{**keys, **more, **changes})


def test_the_start_data_survive_json_and_their_text_has_no_secret() -> None:
    assert RemoteWorkerStart.from_json(start().to_json()) == start()
    assert not start().version_error
    assert "secret" not in repr(start(secret="secret")) and "0a0b" not in repr(start(key="0a0b"))


@pytest.mark.parametrize("changes", [{"library": "0.0.1"}, {"wire": "9.0"}])
def test_another_version_is_named_with_this_one(changes: dict[str, str]) -> None:
    error = start(**changes).version_error
    assert next(iter(changes.values())) in error and package_version() in error


def test_fields_of_another_version_are_left_out_and_missing_ones_are_named() -> None:
    document = json.loads(start(library="0.0.1").to_json())
    assert RemoteWorkerStart.from_json(json.dumps({**document, "new": 1})).version_error
    del document["down"]
    with pytest.raises(ConfigError, match=r"down.*0\.0\.1"):
        RemoteWorkerStart.from_json(json.dumps(document))
    assert "0.0.1" in run_remote_worker(json.dumps(document))


@pytest.mark.parametrize("text", ["", "[]", "{}", "{"])
def test_start_data_that_are_none_are_an_error_of_ours(text: str) -> None:
    assert "start data" in run_remote_worker(text)
