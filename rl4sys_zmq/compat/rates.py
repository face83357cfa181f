"""RL4Sys's record of steps per second, its statistics of such figures, and the CSV files of all its records."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import count
from pathlib import Path

import numpy as np

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.resource import Resource


class SampleFile:
    """A new CSV file in a folder that is named after the time. It is open only while a row is written.

    ``{time}`` in `name` is the time. If there is such a file, the new one has a number.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str, columns: Sequence[str]) -> None:
        stamp = datetime.now().strftime("%Y%m%d_%H%M%S")
        inside, stem = Path(folder) / stamp, name.replace("{time}", stamp)
        self._columns = columns
        try:
            inside.mkdir(parents=True, exist_ok=True)
            self.path = next(path for path in (inside / f"{stem}{n or ''}.csv" for n in count()) if not path.exists())
        except OSError as exc:
            raise ConfigError(f"output_dir: {str(inside)!r} cannot be written: {exc}", key="output_dir") from exc
        self.append(dict(zip(columns, columns, strict=True)))

    def append(self, row: Mapping[str, object]) -> None:
        """Append a row, with a value for each column. Raise ConfigError if the file cannot be written."""
        try:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns).writerow(row)
        except OSError as exc:
            raise ConfigError(f"output_dir: {str(self.path)!r} cannot be written: {exc}", key="output_dir") from exc


class StepPerSecLogger(Resource):
    """The file ``output_dir/TIME/proj_name.csv``, with the columns ``timestamp`` (ISO 8601) and ``steps_per_sec``.

    Raises:
        ConfigError: If the file cannot be created.
    """

    def __init__(self, proj_name: str, output_dir: str | os.PathLike[str] = "speedlog") -> None:
        self._file = SampleFile(output_dir, proj_name, ("timestamp", "steps_per_sec"))

    def log(self, steps_per_sec: float) -> None:
        """Append a row with the present time.

        Raises:
            ConfigError: If the file cannot be written.
        """
        self._file.append({"timestamp": datetime.now().isoformat(), "steps_per_sec": steps_per_sec})

    def get_csv_path(self) -> str:
        """Return the path of the file."""
        return str(self._file.path)

    def close(self) -> None:
        """Do nothing: the file is open only while a row is written."""


def compute_field_statistics(summaries: Iterable[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return, by key, the mean and the standard deviation (of the whole population) of the key's values in all mappings."""
    values: dict[str, list[float]] = {}
    for summary in summaries:
        for key, value in summary.items():
            values.setdefault(key, []).append(float(value))
    return {key: (float(np.mean(samples)), float(np.std(samples))) for key, samples in values.items()}
