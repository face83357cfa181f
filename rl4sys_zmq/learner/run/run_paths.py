"""The names of all files in a learner's run directory (folder), and the relocation of files from earlier versions.

::

    RUN/
      config.json               the learner's configuration after validation
      journal.db                the journal (record of accepted segments); journal.db-wal and .lock belong to it
      checkpoints/CLIENT/       (`rl4sys_zmq.learner.run.checkpoints`)
      best/CLIENT/policy/       the best evaluated policy (`rl4sys_zmq.learner.run.best_policy`)
      dead/                     quarantined segments (`rl4sys_zmq.learner.run.deadletters`)
      log.jsonl, log/           events and metrics (`rl4sys_zmq.learner.run.log_files`)
      tensorboard/CLIENT/       metrics for TensorBoard (`rl4sys_zmq.learner.run.log_files`)
      before-TIME/              older files, moved here by `--resume never` or `move_old_files`

CLIENT is the client's id, encoded by `rl4sys_zmq.names.folder_name`. No other name that a peer chooses becomes part of a path,
so such a name cannot collide with the library's own files.
"""

from __future__ import annotations

import time
from pathlib import Path

from rl4sys_zmq.errors import RunDirectoryError
from rl4sys_zmq.learner.run.best_policy import BEST
from rl4sys_zmq.learner.run.log_files import EVENT_FILES, LOG, LOG_FOLDER, TENSORBOARD
from rl4sys_zmq.learner.run.resume import CHECKPOINTS, JOURNAL
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import current_folder_name, folder_name
from rl4sys_zmq.private import make_private

log = get_logger(__name__)

CONFIG, DEAD = "config.json", "dead"
_OUR_FILES = (CONFIG, LOG, JOURNAL, "journal.marks")
"""The beginnings of the library's own file names. Some names are longer, such as ``journal.db-wal``."""
_OUR_FOLDERS = (CHECKPOINTS, BEST, DEAD, LOG_FOLDER, TENSORBOARD)


def aside_folder(run_dir: Path) -> Path:
    """Create a folder ``before-TIME`` among the learner's files, for older files that are moved away, and return its path."""
    aside = run_dir / f"before-{time.time_ns() // 1_000_000}"
    make_private(aside)
    return aside


def move_old_files(run_dir: Path) -> list[tuple[str, str]]:
    """Move the files that an earlier version of this library stored under other names. Nothing is deleted.

    Earlier versions stored a client's TensorBoard files in ``RUN/CLIENT/``, where they could collide with the library's own
    files. The folders of two clients' checkpoints could differ in letter case only, which some file systems ignore. The folder
    of a long name could end inside a character. A file in the place of a folder moves to ``before-TIME``. If the process is
    killed during this call, the next call continues.
    """
    moved: list[tuple[str, str]] = []
    if not run_dir.is_dir():
        return moved
    try:
        for path in sorted(path for path in run_dir.iterdir() if not path.is_symlink()):
            misplaced = path.name in _OUR_FOLDERS
            if path.is_dir():
                _move_events(run_dir, path, moved)  # removes the folder if nothing else is in it
                misplaced = path.name.startswith(_OUR_FILES) and path.exists()
            if misplaced:
                _move(run_dir, path, aside_folder(run_dir) / folder_name(path.name), moved)
        for part in (CHECKPOINTS, BEST, TENSORBOARD):
            for folder in sorted(path for path in (run_dir / part).glob("*") if path.is_dir()):
                target = folder.with_name(current_folder_name(folder.name))
                if (part == CHECKPOINTS or "%-" in folder.name) and not target.exists():
                    _move(run_dir, folder, target, moved)
    except OSError as exc:
        raise RunDirectoryError(f"{exc.filename or run_dir} cannot be moved: {exc.strerror}; choose another --run-dir") from exc
    for source, place in moved:
        log.warning("%s: %s was moved to %s", run_dir, source, place)
    return moved


def _move_events(run_dir: Path, folder: Path, moved: list[tuple[str, str]]) -> None:
    """Move the TensorBoard event files directly inside a folder, and remove the folder if it is empty then."""
    files = sorted(path for path in folder.glob(f"{EVENT_FILES}*") if path.is_file())
    target = run_dir / TENSORBOARD / folder_name(folder.name)
    if not files:
        return
    make_private(target)
    for path in files:
        to, copies = target / path.name, 1
        while to.exists():
            copies += 1
            to = target / f"{path.name}.{copies}"
        path.rename(to)
    moved.append((f"{folder.name}/{EVENT_FILES}*", f"{target.relative_to(run_dir)}/"))
    if not any(folder.iterdir()):
        folder.rmdir()


def _move(run_dir: Path, path: Path, target: Path, moved: list[tuple[str, str]]) -> None:
    path.rename(target)
    moved.append((str(path.relative_to(run_dir)), str(target.relative_to(run_dir))))
