"""Where a learner goes on from: what its run directory holds, an earlier checkpoint of a client, or nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.delivery import MemoryJournal, Restored
from rl4sys_zmq.delivery.disk_journal import DiskJournal
from rl4sys_zmq.delivery.journal_file import Recovery
from rl4sys_zmq.delivery.journal_loss import Witness
from rl4sys_zmq.delivery.journal_marks import marks_path
from rl4sys_zmq.errors import CheckpointError, ConfigError, RunDirectoryError
from rl4sys_zmq.learner.checkpoints import CheckpointStore, Manifest, read_checkpoint, read_manifest
from rl4sys_zmq.private import make_private
from rl4sys_zmq.wire.messages import Verdict

__all__ = [
    "ACCEPT_LOSS",
    "AUTO",
    "CHECKPOINTS",
    "JOURNAL",
    "NEVER",
    "Rollback",
    "go_back",
    "has_state",
    "open_journal",
    "state_dir",
]

log = logging.getLogger(__name__)

JOURNAL = "journal.db"
CHECKPOINTS = "checkpoints"
AUTO, NEVER, ACCEPT_LOSS = "auto", "never", "accept-loss"
MEND = (
    "bring the files back, or start once with --resume accept-loss (resume: accept-loss), which goes on with the weights of "
    "the checkpoints and counts what is gone as rolled back, or begin anew with --resume never"
)


@dataclass(frozen=True, slots=True)
class Rollback:
    """What going back to a checkpoint undoes.

    Attributes:
        client_id: whose.
        checkpoint: the number of the one gone back to.
        version: of the policy in it.
        abandoned: the numbers of the newer ones, which are put aside.
        undone_versions: how many versions are undone, as far as checkpoints tell.
        undone_segments: how many segments had met their verdict since, as far as checkpoints tell. Those that the journal
            still holds are trained on again; the others are counted as rolled back.
    """

    client_id: str
    checkpoint: int
    version: int
    abandoned: tuple[int, ...]
    undone_versions: int
    undone_segments: int


def state_dir(checkpoint: Path) -> Path:
    """The run directory that a checkpoint's folder (``RUN/checkpoints/CLIENT/NUMBER``) lies in.

    Raises:
        ConfigError: when it does not look like one.
    """
    path = checkpoint.resolve()
    if len(path.parents) < 3 or path.parent.parent.name != CHECKPOINTS or not path.is_dir():
        raise ConfigError(
            f"resume: {checkpoint} is no checkpoint; give auto, never, accept-loss, or a folder like "
            f"RUN/{CHECKPOINTS}/CLIENT/00000012",
            key="resume",
        )
    return path.parent.parent.parent


def go_back(config: LearnerConfig) -> Rollback | None:
    """Makes the checkpoint that `LearnerConfig.resume` names the newest one of its client; None when it names none.

    Call it while the journal is open, so that no other learner uses the directory.

    Raises:
        ConfigError: when it is none of this run directory.
        CheckpointError: when it does not verify, or the newer ones cannot be put aside.
    """
    if config.resume in (AUTO, NEVER, ACCEPT_LOSS) or config.run_dir is None:
        return None
    path = Path(config.resume)
    if state_dir(path) != config.run_dir.resolve():
        raise ConfigError(f"resume: {path} is not in the run directory {config.run_dir}", key="resume")
    manifest, _ = read_checkpoint(path)
    store = CheckpointStore(path.resolve().parent)
    newest = _newest(store)
    abandoned = tuple(store.abandon_after(manifest.number))
    return Rollback(
        manifest.client_id,
        manifest.number,
        manifest.version,
        abandoned,
        max(0, newest.version - manifest.version) if newest is not None else 0,
        max(0, sum(newest.verdicts.values()) - sum(manifest.verdicts.values())) if newest is not None else 0,
    )


def _newest(store: CheckpointStore) -> Manifest | None:
    for path in store.newest():
        try:
            return read_manifest(path)
        except CheckpointError as exc:
            log.warning("%s", exc)
    return None


def open_journal(config: LearnerConfig, wake: Callable[[], None]) -> tuple[DiskJournal | MemoryJournal, Restored | None]:
    """The journal that a configuration asks for, open, and what it remembers.

    Args:
        config: the learner's.
        wake: called, from the journal's thread, when there is something to hear from it.

    Raises:
        JournalLost: when it, or a part of it, is gone, and ``resume`` is not ``accept-loss``.
        JournalError: when the file cannot be used, or another learner uses it.
        RunDirectoryError: when the directory cannot be written.
    """
    if not config.durable or config.run_dir is None:
        return MemoryJournal(), None
    run_dir = config.run_dir
    try:
        make_private(run_dir)
        if config.resume == NEVER:
            _set_aside(run_dir)
    except OSError as exc:
        message = f"the run directory {run_dir} cannot be written: {exc.strerror}; choose another --run-dir"
        raise RunDirectoryError(message) from exc
    fsync = cast(Literal["normal", "always"], config.fsync)
    recovery = Recovery(config.resume == ACCEPT_LOSS, _witnesses(run_dir), MEND)
    journal = DiskJournal(run_dir / JOURNAL, fsync=fsync, max_bytes=config.journal_max_bytes, wake=wake, recovery=recovery)
    return journal, journal.open()


def has_state(run_dir: Path) -> bool:
    """A learner was here: its journal, what tells of one, or checkpoints."""
    journal = run_dir / JOURNAL
    return journal.exists() or marks_path(journal).exists() or bool(_witnesses(run_dir))


def _witnesses(run_dir: Path) -> list[Witness]:
    """What the newest checkpoint of each client says of the journal."""
    found = []
    for folder in sorted((run_dir / CHECKPOINTS).glob("*")):
        manifest = _newest(CheckpointStore(folder)) if folder.is_dir() else None
        if manifest is not None:
            judged = sum(manifest.verdicts.get(verdict, 0) for verdict in (Verdict.TRAINED, Verdict.STALE, Verdict.QUARANTINED))
            marks = {(mark.actor_id, mark.origin): mark.next_seq for mark in manifest.marks}
            found.append(Witness(manifest.client_id, manifest.journal_id, judged, marks))
    return found


def _set_aside(run_dir: Path) -> None:
    """Moves an earlier run's state out of the way; nothing is deleted."""
    there = [p for p in (*run_dir.glob(f"{JOURNAL}*"), marks_path(run_dir / JOURNAL), run_dir / CHECKPOINTS) if p.exists()]
    if there:
        aside = run_dir / f"before-{time.time_ns() // 1_000_000}"
        aside.mkdir(mode=0o700)
        for path in there:
            path.rename(aside / path.name)
        log.warning("%s: the state of an earlier run was moved to %s", run_dir, aside.name)
