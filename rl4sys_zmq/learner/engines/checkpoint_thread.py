"""The threads that work on checkpoints for the gateway. `CheckpointThread` stores the checkpoints of workers on other machines.

A checkpoint arrives in parts, which this thread writes to a temporary folder. After the last part it checks the manifest,
renames the folder into place, and only then answers that the checkpoint is stored. So the loss of the worker's machine loses no
checkpoint that was reported. The thread also sends the newest checkpoint to a new worker, and stores the segments that a worker
has in training.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import assert_never

import xxhash

from rl4sys_zmq.errors import CheckpointError, Closed
from rl4sys_zmq.interfaces import WorkerHandle
from rl4sys_zmq.learner.run.checkpoints import MANIFEST, CheckpointStore, is_state_file, read_manifest, state_files
from rl4sys_zmq.learner.run.worker_storage import SuspectFiles, encode_mark, is_excused
from rl4sys_zmq.learner.training.reporting import plain_text
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.policies.folder import POLICY_FILES
from rl4sys_zmq.private import open_private, sync_folder
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.wire.thread_messages import (
    AssignClient,
    CheckpointFound,
    CheckpointPart,
    CheckpointPartReply,
    CheckpointStored,
    FetchCheckpointPart,
    FindCheckpoint,
    RecordSegmentsInTraining,
    TrainingRecorded,
)

log = get_logger(__name__)

PART_BYTES = 4 << 20

MAX_WAITING = 4
"""Requests of one worker that can wait for this thread. A worker sends at most two parts before an answer."""

MAX_RECORDS = 1000
"""Records of one worker that can wait for this thread, which stores only the newest."""

_LOOK_S = 0.05
_NAMES = frozenset({MANIFEST, *POLICY_FILES})

_CheckpointRequest = FindCheckpoint | FetchCheckpointPart | CheckpointPart
StorageRequest = _CheckpointRequest | RecordSegmentsInTraining
StorageAnswer = CheckpointFound | CheckpointPartReply | CheckpointStored | TrainingRecorded


class _Incoming:
    """A checkpoint that arrives in parts, and the temporary folder for its files."""

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number
        self._name = ""  # of the file that arrives now
        self._digests: dict[str, xxhash.xxh3_128] = {}
        folder.mkdir(mode=0o700)

    def add(self, part: CheckpointPart) -> None:
        """Append a part to its file."""
        if part.name != self._name:
            known = part.name in _NAMES or is_state_file(part.name)
            if part.offset or not known or part.name in self._digests:
                raise CheckpointError(self.folder, f"part {part.offset} of {part.name!r:.80} does not begin a checkpoint's file")
            self._name, self._digests[part.name] = part.name, xxhash.xxh3_128()
        path = self.folder / part.name
        with os.fdopen(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
            if part.offset != file.tell():
                raise CheckpointError(path, f"a part begins at byte {part.offset}; expected {file.tell()}")
            for frame in part.body:
                file.write(frame)
                self._digests[part.name].update(frame)

    def end(self) -> dict[str, tuple[int, str]]:
        """Flush the files to the disk. Return the size and the digest (xxh3-128) of each."""
        content = {}
        for name, digest in self._digests.items():
            with (self.folder / name).open("rb") as file:
                os.fsync(file.fileno())
                content[name] = os.fstat(file.fileno()).st_size, digest.hexdigest()
        sync_folder(self.folder)
        return content


class RemoteWorkerFiles:
    """The files that the learner keeps for one remote worker: the checkpoints and the record of segments in training.

    Only the checkpoint thread uses this object; any thread can set `fenced`.
    """

    def __init__(self, assign: AssignClient, answer: Callable[[StorageAnswer], None]) -> None:
        self.closed = threading.Event()  # set when the thread has finished all work for this worker
        self.waiting = 0  # requests, without records, whose answer was not delivered so far. Only the gateway thread uses it.
        self.records: deque[RecordSegmentsInTraining] = deque(maxlen=MAX_RECORDS)
        self.answer = answer
        self._assign = assign
        self._store = CheckpointStore(Path(assign.checkpoints))
        self._marks = SuspectFiles(Path(assign.checkpoints))
        self._incoming: _Incoming | None = None
        self.fenced = False  # True to refuse all further checkpoints and records. Any thread can set this.
        self._claimed = self._excused = False

    def excuse(self) -> None:
        """Record that the worker was asked to end, so that its segments are not suspected of a crash."""
        self._excused = True
        if self._claimed:
            self._store_mark(encode_mark(0, b"", excused=True))

    def handle(self, message: _CheckpointRequest) -> StorageAnswer:
        """Do one request of the worker, and return the answer. If the request fails, the answer has the error."""
        try:
            match message:
                case FindCheckpoint():
                    return self._find()
                case FetchCheckpointPart():
                    return self._fetch(message)
                case CheckpointPart():
                    return self._receive(message)
                case _:
                    assert_never(message)
        except Exception as exc:
            if not isinstance(exc, CheckpointError | OSError):
                log.exception("a request of a worker could not be handled: %s", type(message).__name__)
            problem = plain_text(str(exc))[:500] or type(exc).__name__
        if isinstance(message, FindCheckpoint):
            return CheckpointFound(0, 0, {}, [], False, problem, (b"", b""))
        if isinstance(message, CheckpointPart):
            self._discard_incoming()
        return CheckpointStored(message.number, False, problem)

    def finish(self) -> None:
        if self._incoming is not None:
            log.warning("client %s: an unfinished checkpoint is discarded: its worker has ended", self._assign.client_id)
        self._discard_incoming()
        self.closed.set()

    def _discard_incoming(self) -> None:
        if self._incoming is not None:
            shutil.rmtree(self._incoming.folder, ignore_errors=True)
            self._incoming = None

    def _find(self) -> CheckpointFound:
        self._store.claim(self._assign.generation)
        loaded = self._store.load()
        suspects, mark = self._marks.read()
        self._store_mark(encode_mark(0, b""))
        self._claimed = True
        number = loaded[0].number if loaded is not None else 0
        folder = self._store.folder / f"{number:08d}"
        names = (MANIFEST, *state_files(folder)) if loaded is not None else ()
        sizes = {name: (folder / name).stat().st_size for name in names}
        next_number = self._store.prepare()
        return CheckpointFound(number, next_number, sizes, self._store.damaged, not is_excused(mark), "", (suspects, mark))

    def _fetch(self, message: FetchCheckpointPart) -> CheckpointPartReply:
        if message.name != MANIFEST and not is_state_file(message.name):
            raise CheckpointError(self._store.folder, f"{message.name!r:.80} is not needed to continue from a checkpoint")
        with open(self._store.folder / f"{message.number:08d}" / message.name, "rb") as file:
            file.seek(message.offset)
            data = file.read(PART_BYTES)
        return CheckpointPartReply(message.number, message.name, message.offset, (data,))

    def _receive(self, part: CheckpointPart) -> CheckpointStored:
        incoming = self._incoming
        if incoming is None or part.number != incoming.number:
            self._discard_incoming()
            least = self._store.prepare()
            if part.number < least or part.offset:
                problem = f"a part of checkpoint {part.number} at byte {part.offset}; a new one has number {least}"
                raise CheckpointError(self._store.folder, problem)
            incoming = self._incoming = _Incoming(self._store.temporary(part.number), part.number)
        incoming.add(part)
        if part.last:
            self._install(incoming)
            self._incoming = None
        return CheckpointStored(part.number, part.last, "")

    def _install(self, incoming: _Incoming) -> None:
        """Check the manifest of a complete checkpoint and the digest of its state, and rename its folder into place."""
        content = incoming.end()
        manifest = read_manifest(incoming.folder)
        wrote = (manifest.client_id, manifest.generation, manifest.number)
        expected = (self._assign.client_id, self._assign.generation, incoming.number)
        if wrote != expected:
            raise CheckpointError(incoming.folder, f"its client, generation and number are {wrote}; expected {expected}")
        if any(content.get(name) != listed for name, listed in state_files(incoming.folder).items()):
            problem = "its state is not the one that its manifest describes; the worker must send the whole checkpoint"
            raise CheckpointError(incoming.folder, problem)
        self._store.install(incoming.folder, incoming.number, lambda: not self.fenced)

    def record(self) -> TrainingRecorded | None:
        """Store the newest list of segments in training that the worker has sent.

        Return the answer to the worker's `RecordSegmentsInTraining` message; None if no such message has arrived.
        """
        suspects, mark, count = b"", b"", 0
        while self.records:
            message = self.records.popleft()
            changed, mark = (bytes(frame) for frame in message.body)
            suspects, count = changed or suspects, message.count
        if not count:
            return None
        if not (self._excused or self.fenced):
            self._store_mark(mark, suspects)
        return TrainingRecorded(count)

    def _store_mark(self, mark: bytes, suspects: bytes = b"") -> None:
        try:
            if suspects:
                self._marks.save(suspects)
            self._marks.store(mark)
        except OSError as exc:
            log.warning("the segments in training of client %s cannot be recorded: %s", self._assign.client_id, exc)


class CheckpointThread(Worker):
    """The thread that reads and writes the checkpoints of all workers on other machines. The gateway thread calls its methods."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__("rl4sys-checkpoints")
        self._wake = wake
        self._requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._answers: deque[tuple[RemoteWorkerFiles, StorageAnswer]] = deque()

    def request(self, files: RemoteWorkerFiles, message: StorageRequest) -> bool:
        """Queue a request of a worker. Return False if `MAX_WAITING` requests of this worker are in the queue already."""
        if isinstance(message, RecordSegmentsInTraining):
            files.records.append(message)
            if len(files.records) == 1:  # otherwise the thread has not taken those before
                self._requests.put(partial(self._answer, files, files.record))
            return True
        if files.waiting >= MAX_WAITING:
            return False
        files.waiting += 1
        self._requests.put(partial(self._answer, files, partial(files.handle, message)))
        return True

    def finish(self, files: RemoteWorkerFiles) -> None:
        """Discard the requests and the unfinished checkpoint of an ended worker, and wait until this thread has done so."""
        self._requests.put(files.finish)
        while not files.closed.wait(_LOOK_S) and self.alive:
            pass

    def excuse(self, files: RemoteWorkerFiles) -> None:
        self._requests.put(files.excuse)

    def deliver_answers(self) -> None:
        while self._answers:
            files, answer = self._answers.popleft()
            if not isinstance(answer, TrainingRecorded):
                files.waiting -= 1
            files.answer(answer)

    def run(self) -> None:
        while (request := self._requests.get()) is not None:
            request()

    def _answer(self, files: RemoteWorkerFiles, handle: Callable[[], StorageAnswer | None]) -> None:
        if not files.closed.is_set() and (answer := handle()) is not None:
            self._answers.append((files, answer))
            self._wake()

    def stop(self) -> None:
        """Ask the thread to end after the requests that wait."""
        self._requests.put(None)


class AbandonCheckpointsThread(Worker):
    """A thread that renames the checkpoints of a removed client to ``NUMBER.abandoned``, after its learner threads have ended.

    The gateway must not wait for a disk. Until the thread renames them, `stop` leaves the checkpoints as they are.

    Attributes:
        count: The number of checkpoints that were renamed, or the error.
    """

    def __init__(self, client_id: str, workers: Sequence[WorkerHandle], folder: Path, wake: Callable[[], None]) -> None:
        super().__init__(f"rl4sys-forget-{client_id}")
        self.count: Future[int] = Future()
        self._workers, self._folder, self._wake = tuple(workers), folder, wake

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set() and not all(worker.join(_LOOK_S) for worker in self._workers):
                pass
            if self._stop_asked.is_set():
                raise Closed("the learner was closed before its checkpoints were put aside")
            self.count.set_result(len(CheckpointStore(self._folder).abandon_all()))
        except Exception as exc:  # noqa: BLE001 - handed to the operator's command
            self.count.set_exception(exc)
        finally:
            self._wake()
