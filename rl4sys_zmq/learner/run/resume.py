"""The preparation of a run directory for the start of a learner, as the option ``resume`` demands.

::

    RUN/
      config.json               the learner's configuration after validation
      journal.db                the journal; journal.db-wal and .lock belong to it
      checkpoints/CLIENT/       (`rl4sys_zmq.learner.run.checkpoints`)
      best/CLIENT/policy/       the best evaluated policy (`rl4sys_zmq.learner.run.stored_policies`)
      dead/                     dead letters (`rl4sys_zmq.learner.run.deadletters`)
      log.jsonl, log/           events and metrics (`rl4sys_zmq.learner.run.log_files`)
      tensorboard/CLIENT/       metrics for TensorBoard (`rl4sys_zmq.learner.run.log_files`)
      before-TIME/              files that were moved away by `--resume never` or `move_misplaced`

CLIENT is the client's id, encoded by `rl4sys_zmq.names.folder_name`, in ``tensorboard/`` only where that is needed. No other
name that a peer chooses becomes part of a path, so such a name cannot collide with the library's own files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.delivery.disk_journal import DiskJournal
from rl4sys_zmq.delivery.journal import JournalContent, MemoryJournal
from rl4sys_zmq.delivery.journal_file import JournalLossRules
from rl4sys_zmq.delivery.journal_marks import JournalStateInCheckpoint, marks_path
from rl4sys_zmq.errors import CheckpointError, ConfigError, RunDirectoryError
from rl4sys_zmq.learner.run.checkpoints import CheckpointManifest, CheckpointStore, read_checkpoint, read_manifest
from rl4sys_zmq.learner.run.log_files import LOG, LOG_FOLDER, TENSORBOARD
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import folder_name
from rl4sys_zmq.private import make_private
from rl4sys_zmq.wire.messages import Verdict

log = get_logger(__name__)

JOURNAL = "journal.db"
CHECKPOINTS, BEST = "checkpoints", "best"
AUTO, NEVER, ACCEPT_LOSS = "auto", "never", "accept-loss"
REMEDY = (
    "restore the files, or start once with --resume accept-loss (resume: accept-loss), which continues with the weights of "
    "the checkpoints and counts the lost segments as rolled back, or start from scratch with --resume never"
)


@dataclass(frozen=True, slots=True)
class RollbackSummary:
    """The result of a return to an earlier checkpoint.

    Attributes:
        checkpoint: Number of the earlier checkpoint, which is now the newest one.
        version: Number of the policy version in this checkpoint.
        abandoned: Numbers of the newer checkpoints. Their folders were renamed to ``NUMBER.abandoned``.
        undone_versions: Difference between the versions in the newest abandoned checkpoint and in the earlier checkpoint.
        undone_segments: Difference between these two checkpoints in the number of segments with a verdict. The segments that
            are still in the journal are trained on again; the others count as rolled back.
    """

    client_id: str
    checkpoint: int
    version: int
    abandoned: tuple[int, ...]
    undone_versions: int
    undone_segments: int


def state_dir(checkpoint: Path) -> Path:
    """Return the folder ``RUN`` of a learner, given the folder of a checkpoint, ``RUN/checkpoints/CLIENT/NUMBER``."""
    path = checkpoint.resolve()
    if len(path.parents) < 3 or path.parent.parent.name != CHECKPOINTS or not path.is_dir():
        raise ConfigError(
            f"resume: {checkpoint} is not a checkpoint; expected auto, never, accept-loss, or a folder like "
            f"RUN/{CHECKPOINTS}/CLIENT/00000012",
            key="resume",
        )
    return path.parent.parent.parent


def return_to_checkpoint(config: LearnerConfig) -> RollbackSummary | None:
    """Return the training of one client to the checkpoint that `LearnerConfig.resume` names, by renaming all newer ones.

    Call this while the journal is open, so that no other learner uses the directory.
    """
    if config.resume in (AUTO, NEVER, ACCEPT_LOSS) or config.run_dir is None:
        return None
    path = Path(config.resume)
    if state_dir(path) != config.run_dir.resolve():
        raise ConfigError(f"resume: {path} is not in the run directory {config.run_dir}", key="resume")
    manifest, _ = read_checkpoint(path)
    name = path.resolve().name
    if name != (needed := f"{manifest.number:08d}"):
        raise ConfigError(f"resume: {name} holds checkpoint {manifest.number}; rename it to {needed} first", key="resume")
    store = CheckpointStore(path.resolve().parent)
    newest = newest_manifest(store)
    abandoned = tuple(store.abandon_after(manifest.number))
    return RollbackSummary(
        manifest.client_id,
        manifest.number,
        manifest.version,
        abandoned,
        max(0, newest.version - manifest.version) if newest is not None else 0,
        max(0, sum(newest.verdicts.values()) - sum(manifest.verdicts.values())) if newest is not None else 0,
    )


def newest_manifest(store: CheckpointStore) -> CheckpointManifest | None:
    for path in store.newest():
        try:
            return read_manifest(path)
        except CheckpointError as exc:
            log.warning("%s", exc)
    return None


def open_journal(config: LearnerConfig, wake: Callable[[], None]) -> tuple[DiskJournal | MemoryJournal, JournalContent | None]:
    """Open the journal, on disk or in memory as the configuration demands.

    With ``resume: never``, first move the state of an earlier run to another folder.
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
    recovery = JournalLossRules(config.resume == ACCEPT_LOSS, _checkpoint_records(run_dir), REMEDY)
    journal = DiskJournal(run_dir / JOURNAL, fsync=fsync, max_bytes=config.journal_max_bytes, wake=wake, recovery=recovery)
    content = journal.open()
    for folder in (run_dir / CHECKPOINTS).glob("*/"):
        try:
            CheckpointStore(folder).release()  # no earlier learner runs: this one has the lock of the journal
        except CheckpointError as exc:
            log.warning("%s", exc)
    return journal, content


def has_state(run_dir: Path) -> bool:
    """Return True if a learner has run in this directory."""
    journal = run_dir / JOURNAL
    return journal.exists() or marks_path(journal).exists() or bool(_checkpoint_records(run_dir))


def _checkpoint_records(run_dir: Path) -> list[JournalStateInCheckpoint]:
    """Return, for the newest valid checkpoint of each client, the part of the journal that the checkpoint covers."""
    records = []
    for folder in sorted((run_dir / CHECKPOINTS).glob("*")):
        manifest = newest_manifest(CheckpointStore(folder)) if folder.is_dir() else None
        if manifest is not None:
            judged = sum(manifest.verdicts.get(verdict, 0) for verdict in Verdict.FINAL)
            marks = {(mark.actor_id, mark.origin): mark.next_seq for mark in manifest.marks}
            records.append(JournalStateInCheckpoint(manifest.client_id, manifest.journal_id, judged, marks))
    return records


def aside_folder(run_dir: Path) -> Path:
    """Create a folder ``before-TIME`` in a run directory, for files that are moved out of the way, and return its path."""
    aside = run_dir / f"before-{time.time_ns() // 1_000_000}"
    make_private(aside)
    return aside


def _set_aside(run_dir: Path) -> None:
    """Move journal, checkpoints and best policies of an earlier run to a folder ``before-TIME``."""
    parts = (*run_dir.glob(f"{JOURNAL}*"), marks_path(run_dir / JOURNAL), run_dir / CHECKPOINTS, run_dir / BEST)
    there = [part for part in parts if part.exists()]
    if there:
        aside = aside_folder(run_dir)
        for path in there:
            path.rename(aside / path.name)
        log.warning("%s: the state of an earlier run was moved to %s", run_dir, aside.name)


CONFIG, DEAD = "config.json", "dead"
_OUR_FILES = (CONFIG, LOG, JOURNAL, "journal.marks")
"""The beginnings of the library's own file names. Some names are longer, such as ``journal.db-wal``."""
_OUR_FOLDERS = (CHECKPOINTS, BEST, DEAD, LOG_FOLDER, TENSORBOARD)


def move_misplaced(run_dir: Path) -> list[tuple[str, str]]:
    """Move files in the place of the library's folders, and folders in the place of its files, to ``before-TIME``.

    Nothing is deleted. Return the old and the new path of each, relative to `run_dir`.
    """
    moved: list[tuple[str, str]] = []
    if not run_dir.is_dir():
        return moved
    try:
        for path in sorted(path for path in run_dir.iterdir() if not path.is_symlink()):
            if path.name.startswith(_OUR_FILES) if path.is_dir() else path.name in _OUR_FOLDERS:
                target = aside_folder(run_dir) / folder_name(path.name)
                path.rename(target)
                moved.append((path.name, str(target.relative_to(run_dir))))
    except OSError as exc:
        raise RunDirectoryError(f"{exc.filename or run_dir} cannot be moved: {exc.strerror}; choose another --run-dir") from exc
    for source, target_name in moved:
        log.warning("%s: %s was moved to %s", run_dir, source, target_name)
    return moved
