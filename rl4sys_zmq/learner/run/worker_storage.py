"""The places where a worker keeps its client's checkpoints and the record of segments in training.

`LocalStorage` uses the folder of the client in the run directory. A worker on another machine sends the files to the gateway
(`rl4sys_zmq.remote.gateway_storage`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rl4sys_zmq.learner.run.checkpoints import CheckpointManifest, CheckpointStore
from rl4sys_zmq.learner.run.suspect_files import SuspectFiles, SuspectStorage
from rl4sys_zmq.policies import StoredPolicy
from rl4sys_zmq.wire.thread_messages import AssignClient


class CheckpointStorage(Protocol):
    """The checkpoints of one client, for its learner thread. `CheckpointStore` is one."""

    @property
    def damaged(self) -> Sequence[str]:
        """One error message for each damaged checkpoint that was renamed since the start of the learner thread."""

    def load(self) -> tuple[CheckpointManifest, dict[str, Any]] | None:
        """Return the newest intact checkpoint, as `CheckpointStore.load` does."""

    def stored_pieces(self) -> Collection[str]:
        """Return the names of the pieces of the state that the next checkpoint need not contain; see `StatePiece`."""

    def write(
        self,
        manifest: CheckpointManifest,
        state: Mapping[str, Any],
        *,
        policy: StoredPolicy | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> CheckpointManifest:
        """Write one checkpoint, as `CheckpointStore.write` does. It survives the loss of this machine when this returns."""


class WorkerStorage(Protocol):
    """The place where a worker keeps its files."""

    def checkpoints(self, assign: AssignClient) -> CheckpointStorage:
        """Return the checkpoints of a client whose assignment names a folder. Workers with lower generations cannot write then.

        Raises:
            CheckpointError: If a worker with a higher generation has claimed the checkpoints, or they cannot be used.
        """

    def folder(self, assign: AssignClient) -> Path | None:
        """Return the folder for data of the algorithm that are larger than memory should be; None: keep them in memory."""

    def suspects(self, assign: AssignClient) -> SuspectStorage:
        """Return the place of the record of segments in training (`CrashSuspectRecord`)."""


class LocalStorage:
    """The storage of a worker that has access to the learner's run directory."""

    def checkpoints(self, assign: AssignClient) -> CheckpointStore:
        store = CheckpointStore(Path(assign.checkpoints))
        store.claim(assign.generation)
        return store

    def folder(self, assign: AssignClient) -> Path | None:
        return Path(assign.checkpoints) if assign.checkpoints else None

    def suspects(self, assign: AssignClient) -> SuspectFiles:
        return SuspectFiles(Path(assign.checkpoints))
