"""Creation of a new run directory, which no two runs share, and a summary of one after its learner has ended."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rl4sys_zmq.cli.app import print_line
from rl4sys_zmq.cli.signals import StopSignalReceived
from rl4sys_zmq.delivery.journal_marks import marks_path
from rl4sys_zmq.errors import CheckpointError, RunDirectoryError
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore, read_manifest
from rl4sys_zmq.learner.run.resume import CHECKPOINTS, JOURNAL
from rl4sys_zmq.private import make_private, open_private


@contextmanager
def fresh_run_dir(preferred: Path) -> Iterator[Path]:
    """Create a run directory that no other run uses: `preferred`, or if that is in use `preferred`-2, -3, ...

    The creation of ``config.json`` reserves it. If the block raises before anything is logged, the directory is removed.
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


@dataclass(slots=True)
class SavedAtStopData:
    """The data for the message of `print_saved_at_stop`.

    Attributes:
        run_dir: None for a learner without files.
        again: Says how to continue the run.
    """

    run_dir: Path | None = None
    again: str = "the same command continues"


@contextmanager
def print_saved_at_stop() -> Iterator[SavedAtStopData]:
    """Print what was saved where, if a signal ends the ``with`` block, which has that of the learner in it."""
    saved = SavedAtStopData()
    try:
        yield saved
    except StopSignalReceived as exc:
        for line in saved_lines(saved, str(exc)):
            print_line(line)
        raise


def saved_lines(saved: SavedAtStopData, signal: str) -> Iterator[str]:
    """Yield lines about the newest checkpoint of each client in a run directory."""
    if saved.run_dir is None:
        yield f"{signal}: the learner has ended; nothing was saved, because it had no run directory"
        return
    yield f"{signal}: the learner has ended; files in {saved.run_dir}"
    for folder in sorted((saved.run_dir / CHECKPOINTS).glob("*")):
        try:
            newest = next(iter(CheckpointStore(folder).newest()), None)
            manifest = read_manifest(newest) if newest is not None else None
        except CheckpointError as exc:
            yield f"  {exc}"
            continue
        if manifest is not None:
            counts = f"version {manifest.version:,}, {manifest.steps:,} steps, {manifest.episodes:,} episodes"
            yield f"  {manifest.client_id}: checkpoint {manifest.number:,} with {counts}"
    if (saved.run_dir / JOURNAL).exists():
        yield f"  {JOURNAL} has the segments accepted since the checkpoints, if any; {saved.again}"
