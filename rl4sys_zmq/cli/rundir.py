"""Creation of a new run directory. Two runs never share a directory."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl4sys_zmq.delivery.journal_marks import marks_path
from rl4sys_zmq.errors import RunDirectoryError
from rl4sys_zmq.learner.resume import JOURNAL
from rl4sys_zmq.private import make_private, open_private

__all__ = ["fresh_run_dir"]


@contextmanager
def fresh_run_dir(preferred: Path) -> Iterator[Path]:
    """Create a run directory that no other run uses: `preferred`, or if that is in use `preferred`-2, -3, ...

    A process reserves the directory by creating ``config.json`` in it, so that two processes never get the same directory. If the
    ``with`` block raises an exception before anything is logged, the directory is removed.

    Raises:
        RunDirectoryError: If the directory cannot be written.
    """
    for number in itertools.count(1):
        run_dir = preferred if number == 1 else preferred.with_name(f"{preferred.name}-{number}")
        try:
            make_private(run_dir)
            os.close(open_private(run_dir / "config.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            break
        except FileExistsError as exc:
            if not run_dir.is_dir():
                raise RunDirectoryError(f"the run directory {run_dir} is a file; choose another --run-dir") from exc
        except OSError as exc:
            raise RunDirectoryError(
                f"the run directory {run_dir} cannot be written: {exc.strerror}; choose another --run-dir"
            ) from exc
    try:
        yield run_dir
    except BaseException:
        with contextlib.suppress(OSError):
            log = run_dir / "log.jsonl"
            if not log.exists() or not log.stat().st_size:
                log.unlink(missing_ok=True)
                for journal in (*run_dir.glob(f"{JOURNAL}*"), marks_path(run_dir / JOURNAL)):
                    journal.unlink(missing_ok=True)  # created by this start, and still empty
                (run_dir / "config.json").unlink()
                run_dir.rmdir()
        raise
