"""The names of all files in a run directory, and the removal of what stands in their way.

::

    RUN/
      config.json               the learner's configuration after validation
      journal.db                the journal; journal.db-wal and .lock belong to it
      checkpoints/CLIENT/       (`rl4sys_zmq.learner.run.checkpoints`)
      best/CLIENT/policy/       the best evaluated policy (`rl4sys_zmq.learner.run.best_policy`)
      dead/                     dead letters (`rl4sys_zmq.learner.run.deadletters`)
      log.jsonl, log/           events and metrics (`rl4sys_zmq.learner.run.log_files`)
      tensorboard/CLIENT/       metrics for TensorBoard (`rl4sys_zmq.learner.run.log_files`)
      before-TIME/              files that were moved away by `--resume never` or `move_misplaced`

CLIENT is the client's id, encoded by `rl4sys_zmq.names.folder_name`. No other name that a peer chooses becomes part of a path,
so such a name cannot collide with the library's own files.
"""

from __future__ import annotations

from pathlib import Path

from rl4sys_zmq.errors import RunDirectoryError
from rl4sys_zmq.learner.run.best_policy import BEST
from rl4sys_zmq.learner.run.log_files import LOG, LOG_FOLDER, TENSORBOARD
from rl4sys_zmq.learner.run.resume import CHECKPOINTS, JOURNAL, aside_folder
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.names import folder_name

log = get_logger(__name__)

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
