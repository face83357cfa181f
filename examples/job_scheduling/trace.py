"""Jobs of a cluster, and the reader of files in the Standard Workload Format (SWF).

The format is that of the Parallel Workloads Archive (Chapin et al. 1999, "Benchmarks and standards for the evaluation of parallel
job schedulers"): a line per job with 18 numbers, -1 for a number that is unknown; lines that begin with a semicolon are comments.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError

__all__ = ["Jobs", "Repairs", "Trace", "parse_swf", "read_swf"]

SWF_FIELDS = 18
_SUBMIT, _RUN, _ALLOCATED, _REQUESTED_PROCESSORS, _REQUESTED_TIME = 1, 3, 4, 7, 8
"""The positions of the fields in a line, from 0."""
_BYTE_ORDER_MARK = "\xef\xbb\xbf"
"""The mark with which some editors begin a file in UTF-8, read as Latin-1."""
_UTF16_MARKS = ("\xff\xfe", "\xfe\xff")


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """``N`` jobs in the order of their submit times.

    Attributes:
        submit_s: The time at which each job is submitted, in seconds, ``[N]``.
        run_s: The time for which each job runs, in seconds, above 0, ``[N]``. A scheduler does not know it.
        requested_s: The time that the user has requested, in seconds, above 0, ``[N]``.
        processors: The number of processors that each job needs, int64 ``[N]``.
    """

    submit_s: NDArray[np.float64]
    run_s: NDArray[np.float64]
    requested_s: NDArray[np.float64]
    processors: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.submit_s)

    def take(self, rows: slice | NDArray[np.int64]) -> Jobs:
        """Return the jobs of these rows."""
        return Jobs(self.submit_s[rows], self.run_s[rows], self.requested_s[rows], self.processors[rows])


@dataclass(frozen=True, slots=True)
class Repairs:
    """The numbers of lines of a trace that could not be used as they are.

    Attributes:
        without_run_time: Jobs that were left out because their run time is zero or unknown. Most were cancelled.
        without_processors: Jobs that were left out because their number of processors is zero or unknown.
        out_of_order: Jobs that were moved because they were submitted before the job of the line above.
    """

    without_run_time: int = 0
    without_processors: int = 0
    out_of_order: int = 0

    def __str__(self) -> str:
        said = [f"{count} jobs {name.replace('_', ' ')}" for name in self.__slots__ if (count := getattr(self, name))]
        return ", ".join(said) or "none"


@dataclass(frozen=True, slots=True)
class Trace:
    """The jobs of a machine, and the number of its processors.

    Attributes:
        jobs: The jobs.
        processors: The number of processors of the machine. No job needs more.
        repairs: What the reader has left out or moved.
    """

    jobs: Jobs
    processors: int
    repairs: Repairs = Repairs()

    def window(self, index: int, length: int) -> Jobs:
        """Return the jobs ``length * index`` to ``length * (index + 1) - 1``.

        Raises:
            ConfigError: If the trace ends before this window does, or a number is negative.
        """
        if index < 0 or length < 1 or (index + 1) * length > len(self.jobs):
            raise ConfigError(
                f"window {index} of {length} jobs is outside the trace, which has {len(self.jobs)} jobs", key="window"
            )
        return self.jobs.take(slice(index * length, (index + 1) * length))


def read_swf(path: Path, processors: int | None = None) -> Trace:
    """Read a trace from a file in the Standard Workload Format. A file whose name ends in ``.gz`` is decompressed.

    Args:
        path: The file.
        processors: The number of processors of the machine; None for the file's ``MaxProcs``, or else its ``MaxNodes``.

    Raises:
        ConfigError: If the file cannot be read, or as `parse_swf`.
    """
    try:
        with gzip.open(path, "rt", encoding="latin-1") if path.suffix == ".gz" else path.open(encoding="latin-1") as lines:
            return parse_swf(lines, processors, name=str(path))
    except (OSError, EOFError) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}", key="trace") from error


def parse_swf(lines: Iterable[str], processors: int | None = None, *, name: str = "trace") -> Trace:
    """Read a trace from lines in the Standard Workload Format.

    A job whose requested time is unknown has requested its run time. A job without a run time or processors is left out, and a
    job that is out of order is moved: `Trace.repairs` has the numbers.

    Args:
        lines: The lines.
        processors: The number of processors of the machine; None for the ``MaxProcs`` of the header, or else its ``MaxNodes``.
        name: The name of the trace, for errors.

    Raises:
        ConfigError: If a line has too few fields, or a field is not a number; if a time is negative, or a job needs more
            processors than the machine has. The message has the line's number. Also if there are no jobs, or the number of
            processors is unknown.
    """
    header: dict[str, str] = {}
    rows: list[tuple[float, float, float, int]] = []
    numbers: list[int] = []
    without_run_time = without_processors = 0
    for number, line in enumerate(lines, 1):
        if number == 1 and line.startswith(_UTF16_MARKS):
            raise ConfigError(f"{name} is in UTF-16; save it as UTF-8 or ASCII", key="trace")
        text = (line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line).strip()
        if text.startswith(";"):
            key, colon, value = text.lstrip("; ").partition(":")
            if colon:
                header.setdefault(key.strip(), value.strip())
            continue
        if not text:
            continue
        submit_s, run_s, requested_s, count = _fields(text, f"{name}, line {number}")
        without_run_time += run_s <= 0
        without_processors += run_s > 0 and count <= 0
        if run_s > 0 and count > 0:
            rows.append((submit_s, run_s, requested_s if requested_s > 0 else run_s, count))
            numbers.append(number)
    if not rows:
        raise ConfigError(f"{name} has no jobs that can run (left out: {without_run_time + without_processors})", key="trace")
    machine = _machine(header, name) if processors is None else processors
    for row, number in zip(rows, numbers, strict=True):
        if row[3] > machine:
            raise ConfigError(
                f"{name}, line {number}: the job needs {row[3]} processors and the machine has {machine}; give the machine's "
                "number of processors, or remove the job",
                key="processors",
            )
    moved = sum(after[0] < before[0] for before, after in pairwise(rows))
    submit, run, requested, counts = zip(*sorted(rows, key=lambda row: row[0]), strict=True)
    jobs = Jobs(np.array(submit), np.array(run), np.array(requested), np.array(counts, dtype=np.int64))
    return Trace(jobs, machine, Repairs(without_run_time, without_processors, moved))


def _fields(text: str, place: str) -> tuple[float, float, float, int]:
    """Return the submit time, the run time, the requested time and the processors of a line."""
    words = text.split()
    if len(words) < SWF_FIELDS:
        raise ConfigError(f"{place} has {len(words)} fields; a job has {SWF_FIELDS}", key="trace")
    try:
        values = [float(word) for word in words[:SWF_FIELDS]]
    except ValueError as error:
        hint = "; write numbers without a separator of thousands" if "," in text else ""
        raise ConfigError(f"{place}: {error}{hint}", key="trace") from error
    if not all(map(math.isfinite, values)):
        raise ConfigError(f"{place} has a number that is not finite", key="trace")
    if values[_SUBMIT] < 0:
        raise ConfigError(f"{place}: the submit time {values[_SUBMIT]:g} is negative", key="trace")
    count = values[_ALLOCATED] if values[_ALLOCATED] > 0 else values[_REQUESTED_PROCESSORS]
    return values[_SUBMIT], values[_RUN], values[_REQUESTED_TIME], int(count)


def _machine(header: dict[str, str], name: str) -> int:
    """Return the number of processors that the header of a trace says."""
    for key in ("MaxProcs", "MaxNodes"):
        word = header.get(key, "").split(maxsplit=1)
        if word and word[0].isdecimal() and int(word[0]) > 0:
            return int(word[0])
        if word and word[0][0].isdecimal():
            text = f"{name}: its {key} is {word[0]!r}, which is not a number of processors; write it as 1024, or give the number"
            raise ConfigError(text, key="processors")
    raise ConfigError(f"{name} does not say its number of processors (MaxProcs); give it", key="processors")
