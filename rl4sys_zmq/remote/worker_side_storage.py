"""The storage of a worker on another machine: the gateway keeps the worker's checkpoints and its record of segments in
training.

The learner thread waits for the answer of `CheckpointThread` to each request. A checkpoint counts as written when it is on the
gateway's disk.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rl4sys_zmq.errors import CheckpointError
from rl4sys_zmq.learner.engines.checkpoint_thread import PART_BYTES, StorageRequest
from rl4sys_zmq.learner.run.checkpoints import CheckpointManifest, encode_checkpoint, read_checkpoint
from rl4sys_zmq.learner.run.worker_storage import encode_mark
from rl4sys_zmq.policies import StoredPolicy
from rl4sys_zmq.wire.messages import Frame
from rl4sys_zmq.wire.thread_messages import (
    AssignClient,
    CheckpointFound,
    CheckpointPart,
    CheckpointPartReply,
    CheckpointStored,
    FetchCheckpointPart,
    FindCheckpoint,
    RecordSegmentsInTraining,
    RemoteWorkerControl,
    TrainingRecorded,
)

PARTS_ON_THE_WAY = 2
"""Number of parts of a checkpoint that a worker sends before it waits for an answer."""

CAREFUL_S = 60.0
"""Time for which a worker whose predecessor has crashed waits for the answer to each record, in seconds. If it crashes later
than that, it takes one crash more to find the cause.
"""

T = TypeVar("T", bound=RemoteWorkerControl)


class WorkerSideStorage:
    """The object through which a remote worker keeps its files on the gateway's machine. It implements `WorkerStorage`.

    The learner thread uses it. The worker's network thread calls `deliver` and `give_up`.
    """

    def __init__(self, post: Callable[[StorageRequest], None]) -> None:
        self._post = post
        self._answers: queue.SimpleQueue[RemoteWorkerControl | None] = queue.SimpleQueue()
        self._lost = ""
        self._found: CheckpointFound | None = None

    def deliver(self, answer: RemoteWorkerControl) -> None:
        self._answers.put(answer)

    def give_up(self, reason: str) -> None:
        """Fail the request that waits, and all later ones, because the gateway will not answer."""
        self._lost = reason
        self._answers.put(None)

    def checkpoints(self, assign: AssignClient) -> _GatewayCheckpoints:
        """Ask the gateway for the newest checkpoint, and return the client's checkpoints."""
        self.post(FindCheckpoint())
        self._found = found = self.wait(CheckpointFound)
        if found.error:
            raise CheckpointError("on the gateway's machine", found.error)
        return _GatewayCheckpoints(self, found, Path(assign.checkpoints))

    def folder(self, assign: AssignClient) -> None:
        """Return None: this machine has no folder of the client."""

    def suspects(self, assign: AssignClient) -> _GatewaySuspects:
        """Return the record of segments in training. Call this after `checkpoints`."""
        assert self._found is not None
        return _GatewaySuspects(self, self._found)

    def post(self, message: StorageRequest) -> None:
        if self._lost:
            raise CheckpointError("on the gateway's machine", self._lost)
        self._post(message)

    def wait(self, expected: type[T]) -> T:
        while True:
            answer = None if self._lost else self._answers.get()
            if self._lost or answer is None:
                raise CheckpointError("on the gateway's machine", self._lost)
            refused = isinstance(answer, CheckpointStored) and not answer.number
            if isinstance(answer, expected) and not refused:
                return answer
            if isinstance(answer, CheckpointStored) and answer.error:
                raise CheckpointError("on the gateway's machine", answer.error)


class _GatewayCheckpoints:
    """The checkpoints of one client on the gateway's machine. It implements `CheckpointStorage`."""

    def __init__(self, storage: WorkerSideStorage, found: CheckpointFound, folder: Path) -> None:
        self.damaged = [str(problem) for problem in found.damaged]
        self._storage, self._found, self._folder = storage, found, folder
        self._next_number = found.next_number

    def load(self) -> tuple[CheckpointManifest, dict[str, Any]] | None:
        if not self._found.number:
            return None
        return read_checkpoint(self._folder / f"{self._found.number:08d}", self._fetch)

    def stored_pieces(self) -> frozenset[str]:
        """Return no names: each checkpoint is sent as a whole."""
        return frozenset()

    def _fetch(self, file: Path) -> bytes:
        size = self._found.sizes.get(file.name)
        if size is None:
            raise CheckpointError(file, "the gateway has no such file; expected each file that the manifest lists", damaged=True)
        data = bytearray()
        while len(data) < size:
            self._storage.post(FetchCheckpointPart(self._found.number, file.name, len(data)))
            part = self._storage.wait(CheckpointPartReply)
            if not part.body or (part.name, part.offset) != (file.name, len(data)):
                raise CheckpointError(file, f"byte {len(data)} of {size} was not sent; expected the next part")
            data += part.body[0]
        return bytes(data)

    def write(
        self,
        manifest: CheckpointManifest,
        state: Mapping[str, Any],
        *,
        policy: StoredPolicy | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> CheckpointManifest:
        number, self._next_number = self._next_number, self._next_number + 1  # after a failure, a number is left out
        written = replace(manifest, number=number, saved_unix_s=time.time())
        files = encode_checkpoint(written, state, policy)
        waiting = 0
        for part in _parts(number, files):
            if waiting == PARTS_ON_THE_WAY:
                self._taken(number)
                waiting -= 1
            if not wanted():
                raise CheckpointError(f"checkpoint {number}", "another worker has replaced this one, or the client was removed")
            self._storage.post(part)
            waiting += 1
        while not self._taken(number):
            continue
        return written

    def _taken(self, number: int) -> bool:
        """Wait for the answer to a part of checkpoint `number`. Return True if the whole checkpoint is stored."""
        while True:
            answer = self._storage.wait(CheckpointStored)
            if answer.number != number:
                continue  # to a part of an earlier checkpoint that failed
            if answer.error:
                raise CheckpointError(f"checkpoint {number} on the gateway's machine", answer.error)
            return answer.done


def _parts(number: int, files: Mapping[str, bytes]) -> Iterator[CheckpointPart]:
    ends = list(files)[-1]
    for name, data in files.items():
        for offset in range(0, max(1, len(data)), PART_BYTES):
            body: tuple[Frame, ...] = (memoryview(data)[offset : offset + PART_BYTES],) if data else ()
            last = name == ends and offset + PART_BYTES >= len(data)
            yield CheckpointPart(number, name, offset, last, body)


class _GatewaySuspects:
    """The part of a remote worker that sends the list of the segments in training to the gateway, which stores the list.

    It implements `SuspectStorage`. Usually the worker sends this list once for each update. If the previous worker has
    crashed, this worker is *careful* for its first `CAREFUL_S` seconds: it also sends the list before the algorithm observes
    the segments of an actor's message, and waits until the gateway has stored the list. Otherwise, a process that crashes at
    once would end before the list has left it.
    """

    def __init__(self, storage: WorkerSideStorage, found: CheckpointFound) -> None:
        self._storage, self._found = storage, found
        self._careful_until = time.monotonic() + CAREFUL_S if found.careful else 0.0
        self._ranges = bytearray()
        self._count = 0

    @property
    def each_message(self) -> bool:
        return time.monotonic() < self._careful_until

    def read(self) -> tuple[bytes, bytes]:
        suspects, mark = self._found.body
        return bytes(suspects), bytes(mark)

    def begin(self) -> None:
        """Do nothing: the gateway has begun a new ``training.mark`` when it answered `FindCheckpoint`."""

    def write(self, at: int, data: bytes, count: int) -> None:
        self._ranges[at:] = data
        self._send(b"", encode_mark(count, bytes(self._ranges)))

    def excuse(self) -> None:
        """Do nothing: the gateway records that it has asked this worker to end."""

    def save(self, suspects: bytes) -> None:
        self._send(suspects, encode_mark(0, b""))

    def _send(self, suspects: bytes, mark: bytes) -> None:
        self._count += 1
        try:
            self._storage.post(RecordSegmentsInTraining(self._count, (suspects, mark)))
            while self.each_message and self._storage.wait(TrainingRecorded).count < self._count:
                continue
        except CheckpointError:
            return  # the gateway is lost, and this worker ends
