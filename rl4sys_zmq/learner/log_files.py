"""The log of a run: ``RUN/log.jsonl``, one event a line, and what it has become with age in ``RUN/log/``."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rl4sys_zmq.errors import RunDirectoryError
from rl4sys_zmq.learner.record_series import RecordFormat, RecordSeries, list_parts
from rl4sys_zmq.learner.thinning import Record

__all__ = ["LOG", "LOG_FOLDER", "JsonLineFormat", "log_series", "read_log"]

LOG, LOG_FOLDER = "log.jsonl", "log"
THINNED = "thinned"
TRIES = 8
_START = re.compile(rb'\{"t": [0-9.e+-]+, "event": "([a-z_]+)"(?:, "client_id": ("(?:[^"\\]|\\.)*"))?')


class JsonLineFormat(RecordFormat):
    """JSON, one record a line. All events but ``metrics`` are lasting; those of one client and event are a kind."""

    suffix = ".jsonl"
    notice_bytes = 2048

    def read(self, file: BinaryIO) -> Iterator[Record]:
        """The lines, as far as they are whole."""
        for line in file:
            match = _START.match(line)
            if match is not None and line.endswith(b"}\n"):
                event = match[1].decode()
                kind = event if match[2] is None else f"{event} {match[2].decode(errors='replace')}"
                yield Record(kind, line, lasting=event != "metrics")

    def notice(self, dropped: Mapping[str, int]) -> bytes:
        """An event ``thinned`` with the numbers by event."""
        by_event: dict[str, int] = {}
        for kind, count in dropped.items():
            event = kind.partition(" ")[0]
            by_event[event] = by_event.get(event, 0) + count
        return json.dumps({"t": 0.0, "event": THINNED, "dropped": by_event}).encode() + b"\n"

    def earlier(self, record: Record) -> Mapping[str, int] | None:
        """The numbers of an event ``thinned``."""
        if record.kind != THINNED:
            return None
        try:
            return {str(event): int(count) for event, count in json.loads(record.content)["dropped"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}


def log_series(run_dir: Path, max_bytes: int) -> RecordSeries:
    """What writes the log of a run."""
    return RecordSeries(run_dir / LOG_FOLDER, JsonLineFormat(), max_bytes, active=run_dir / LOG)


def read_log(run_dir: Path) -> Iterator[dict[str, Any]]:
    """All events of a run that are still there, oldest first, while a learner writes, too.

    Raises:
        RunDirectoryError: when there is no readable ``log.jsonl``.
    """
    path = run_dir / LOG
    try:
        with contextlib.ExitStack() as stack:
            for file in _opened(run_dir, stack):
                for line in file:
                    if line.endswith(b"\n"):  # the last line of a run that still goes on may be half
                        yield json.loads(line)
    except OSError as exc:
        raise RunDirectoryError(f"{path} cannot be read: {exc.strerror}; is this a run directory?") from exc
    except ValueError as exc:
        raise RunDirectoryError(f"{path} is not a run's log: {exc}") from exc


def _opened(run_dir: Path, stack: contextlib.ExitStack) -> list[BinaryIO]:
    """All files, opened before one is read: a learner may merge them meanwhile, but what is open stays.

    Raises:
        OSError: when they can't be opened, or there are none.
    """
    for tries_left in reversed(range(TRIES)):
        with contextlib.ExitStack() as trying:
            try:
                files = _open_once(run_dir, trying)
            except FileNotFoundError:
                if not tries_left:
                    raise
                continue
            if files:
                stack.push(trying.pop_all())
                return files
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _open_once(run_dir: Path, stack: contextlib.ExitStack) -> list[BinaryIO]:
    """The parts and the newest file; empty when a learner has moved something meanwhile."""
    newest: BinaryIO | None = None
    with contextlib.suppress(FileNotFoundError):  # it has just become a part
        newest = stack.enter_context((run_dir / LOG).open("rb"))
    found = [part.path for part in list_parts(run_dir / LOG_FOLDER, JsonLineFormat())[0]]
    files: list[BinaryIO] = [stack.enter_context(path.open("rb")) for path in found]
    if newest is None:
        return files
    others = [file for file in files if not os.path.sameopenfile(file.fileno(), newest.fileno())]
    moved = len(others) == len(files) and not os.path.samestat(os.fstat(newest.fileno()), os.stat(run_dir / LOG))
    return [] if moved else [*others, newest]
