"""RL4Sys's utilities: CSV records of steps per second, memory and processor time, statistics of such numbers, and logging."""

from __future__ import annotations

import csv
import importlib
import json
import logging
import logging.config
import os
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rl4sys_zmq.config.options import check_value, log_level, number
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.resource import Resource, Worker

log = get_logger(__name__)


class CsvFile:
    """A new CSV file in a folder that is named after the present time. It is open only while a row is written.

    The time replaces ``{time}`` in `name`. If a file of this name exists, a number is appended to the name of the new file.
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
    """A logger of steps per second to ``output_dir/TIME/proj_name.csv``: columns ``timestamp`` (ISO 8601), ``steps_per_sec``.

    Raises:
        ConfigError: If the file cannot be created.
    """

    def __init__(self, proj_name: str, output_dir: str | os.PathLike[str] = "speedlog") -> None:
        self._file = CsvFile(output_dir, proj_name, ("timestamp", "steps_per_sec"))

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
    """Return the mean and the population standard deviation of each key's values in all mappings, by key."""
    values: dict[str, list[float]] = {}
    for summary in summaries:
        for key, value in summary.items():
            values.setdefault(key, []).append(float(value))
    return {key: (float(np.mean(samples)), float(np.std(samples))) for key, samples in values.items()}


class _Profiler(Resource):
    """The base class of the profilers, which write rows about this process to a CSV file. A profiler can be started again."""

    _kind: ClassVar[str]
    _folder: ClassVar[str]

    def __init__(self, proj_name: str, output_dir: str | os.PathLike[str] | None = None, log_interval: float = 3.0) -> None:
        """Prepare a profiler. The file is created with its first row."""
        try:
            self._psutil: Any = importlib.import_module("psutil")
        except ImportError as exc:
            raise ConfigError(f"a profiler needs psutil ({exc}): pip install 'rl4sys-zmq[compat]'") from exc
        self.proj_name, self.output_dir = proj_name, output_dir or self._folder
        self.log_interval = check_value("log_interval", log_interval, number(0, 1e9, above=True))
        self._file: CsvFile | None = None
        self._thread: _ProfilerThread | None = None

    def start_background_profiling(self) -> None:
        """Append a row about this process now, and one every `log_interval` seconds, in a thread.

        The thread ends with one line in the log if the file cannot be written.
        """
        if self._thread is not None and self._thread.alive:
            raise ConfigError(f"this {type(self).__name__} runs already; call stop_background_profiling first")
        process = self._psutil.Process()
        process.cpu_percent()  # a percentage counts from the call before
        self._psutil.cpu_percent()
        self._psutil.cpu_percent(percpu=True)
        self._thread = _ProfilerThread(self, process)
        self._thread.start()

    def stop_background_profiling(self, timeout: float | None = 5.0) -> bool:
        """End the thread. Return False if it still runs after `timeout` seconds; None waits without end."""
        if self._thread is None:
            return True
        self._thread.stop()
        return self._thread.join(timeout)

    def get_csv_path(self) -> str:
        """Return the path of the file."""
        if self._file is None:
            raise ConfigError("there is no file before the first row; call start_background_profiling first")
        return str(self._file.path)

    def close(self) -> None:
        """End the thread, and wait for its end."""
        self.stop_background_profiling(None)

    def record(self, process: Any) -> None:
        """Append a row with the present values of a process and of the machine."""
        row = self._row(process, datetime.now().isoformat())
        if self._file is None:
            self._file = CsvFile(self.output_dir, f"{self.proj_name}_{self._kind}_profile_{{time}}", [*row])
        self._file.append(row)

    @abstractmethod
    def _row(self, process: Any, now: str) -> dict[str, Any]:
        """Return the present values by column."""


class _ProfilerThread(Worker):
    def __init__(self, profiler: _Profiler, process: Any) -> None:
        super().__init__(f"rl4sys-{type(profiler).__name__}")
        self._profiler, self._process = profiler, process

    def run(self) -> None:
        while not self._stop_asked.is_set():
            try:
                self._profiler.record(self._process)
            except ConfigError as exc:
                log.warning("%s ends: %s", self.name, exc)
                return
            self._stop_asked.wait(self._profiler.log_interval)


class MemoryProfiler(_Profiler):
    """A profiler that writes a process's memory, in bytes, to ``output_dir/TIME/proj_name_memory_profile_TIME.csv``."""

    _kind, _folder = "memory", "memtest"

    def _row(self, process: Any, now: str) -> dict[str, Any]:
        full, machine, swap = process.memory_full_info(), self._psutil.virtual_memory(), self._psutil.swap_memory()
        return {
            "process_timestamp": now,
            "process_pid": process.pid,
            "process_process_name": process.name(),
            **{f"process_{name}": getattr(full, name) for name in ("rss", "vms", "uss", "pss")},
            "process_memory_percent": process.memory_percent(),
            "process_actual_memory_bytes": full.rss,
            "process_system_total_memory": machine.total,
            "process_system_available_memory": machine.available,
            "process_system_memory_percent": machine.percent,
            "system_timestamp": now,
            **{f"system_{name}_memory": getattr(machine, name) for name in ("total", "available", "used", "free")},
            "system_memory_percent": machine.percent,
            **{f"system_{name}": getattr(machine, name) for name in ("buffers", "cached", "shared")},
            **{f"system_swap_{name}": getattr(swap, name) for name in ("total", "used", "free", "percent")},
        }


class CPUProfiler(_Profiler):
    """A profiler that writes a process's processor time to ``output_dir/TIME/proj_name_cpu_profile_TIME.csv``.

    Percentages refer to the time since the previous row. A process that uses more than one processor can be above 100.
    """

    _kind, _folder = "cpu", "cputest"

    def _row(self, process: Any, now: str) -> dict[str, Any]:
        processors, percent, times = self._psutil.cpu_count() or 1, process.cpu_percent(), process.cpu_times()
        return {
            "process_timestamp": now,
            "process_pid": process.pid,
            "process_process_name": process.name(),
            "process_cpu_percent": percent,
            "process_cpu_percent_per_core": percent / processors,
            "process_logical_cpu_count": processors,
            "process_cpu_times_user": times.user,
            "process_cpu_times_system": times.system,
            "process_num_threads": process.num_threads(),
            "system_timestamp": now,
            "system_cpu_percent": self._psutil.cpu_percent(),
            "system_cpu_percent_per_core": self._psutil.cpu_percent(percpu=True),
            "system_cpu_count": processors,
            "system_load_avg_1m": self._psutil.getloadavg()[0],
        }


class LogLevel(Enum):
    """The names of the logging levels."""

    DEBUG, INFO, WARNING, ERROR, CRITICAL = "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"


class StructuredLogger:
    """A logger whose methods take a text and keywords. It wraps the standard library's logger of the same name.

    The attribute ``context`` of a record has the keywords as JSON; other values than JSON's become text. `RL4SysLogConfig` has
    a format that shows this attribute. The program's logging configuration determines the level. As in RL4Sys, the argument
    `debug` does not.
    """

    def __init__(self, name: str, debug: bool = False) -> None:
        self.logger, self.debug_mode = logging.getLogger(name), debug

    def debug(self, msg: str, **context: object) -> None:
        """Log a text and its context at level DEBUG."""
        self._log(logging.DEBUG, msg, context)

    def info(self, msg: str, **context: object) -> None:
        """Log a text and its context at level INFO."""
        self._log(logging.INFO, msg, context)

    def warning(self, msg: str, **context: object) -> None:
        """Log a text and its context at level WARNING."""
        self._log(logging.WARNING, msg, context)

    def error(self, msg: str, **context: object) -> None:
        """Log a text and its context at level ERROR."""
        self._log(logging.ERROR, msg, context)

    def _log(self, level: int, msg: str, context: dict[str, object]) -> None:
        if self.logger.isEnabledFor(level):  # the line of the record is the program's, two calls up
            shown = json.dumps(context, default=lambda value: value.item() if isinstance(value, np.generic) else str(value))
            self.logger.log(level, msg, extra={"context": shown}, stacklevel=3)


class RL4SysLogConfig:
    """The logging configuration of a program, as RL4Sys has it. Nothing is configured before `setup_logging`."""

    DEFAULT_FORMAT = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
    STRUCTURED_FORMAT = f"{DEFAULT_FORMAT} - %(context)s"

    @staticmethod
    def get_default_config(
        log_level: str | LogLevel = "INFO", log_file: str | None = None, structured_logging: bool = False
    ) -> dict[str, Any]:
        """Return a configuration for `logging.config.dictConfig`: all records of the process to the standard output.

        The records are also appended to `log_file`, if it is given. With `structured_logging`, the format shows the context of
        records from `StructuredLogger`; it is empty for other records.

        Raises:
            ConfigError: If `log_level` is not a level.
        """
        level = _level(log_level)
        form = RL4SysLogConfig.STRUCTURED_FORMAT if structured_logging else RL4SysLogConfig.DEFAULT_FORMAT
        handlers: dict[str, dict[str, Any]] = {"console": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout"}}
        if log_file:
            handlers["file"] = {"class": "logging.FileHandler", "filename": log_file, "mode": "a"}
        formatter = {"()": "logging.Formatter", "fmt": form, "datefmt": "%Y-%m-%d %H:%M:%S", "defaults": {"context": "{}"}}
        return {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"rl4sys": formatter},
            "handlers": {name: {**handler, "level": level, "formatter": "rl4sys"} for name, handler in handlers.items()},
            "root": {"level": level, "handlers": [*handlers]},
        }

    @staticmethod
    def setup_logging(
        config_dict: dict[str, Any] | None = None,
        log_level: str | LogLevel = "INFO",
        log_file: str | None = None,
        debug: bool = False,
    ) -> None:
        """Configure the logging of the whole process.

        `config_dict` is for `logging.config.dictConfig`. If it is None, the configuration comes from `get_default_config` with
        the other arguments. The level is DEBUG if `debug` is True.

        Raises:
            ConfigError: If the configuration is invalid, or the file cannot be opened.
        """
        config = config_dict or RL4SysLogConfig.get_default_config("DEBUG" if debug else log_level, log_file)
        try:
            logging.config.dictConfig(config)
        except (ValueError, TypeError, AttributeError, ImportError) as exc:
            raise ConfigError(f"the logging configuration is invalid: {exc.__cause__ or exc}") from exc


def setup_rl4sys_logging(debug: bool = False, log_file: str | None = None) -> None:
    """Configure the logging of the whole process, at level DEBUG if `debug` is True, and also to `log_file` if it is given.

    The environment variables ``RL4SYS_DEBUG`` (true, 1 or yes), ``RL4SYS_LOG_LEVEL`` and ``RL4SYS_LOG_FILE`` apply where no
    argument is given.

    Raises:
        ConfigError: If the level is invalid, or the file cannot be opened.
    """
    debug = debug or os.environ.get("RL4SYS_DEBUG", "").lower() in ("true", "1", "yes")
    level, file = os.environ.get("RL4SYS_LOG_LEVEL", "INFO"), log_file or os.environ.get("RL4SYS_LOG_FILE")
    RL4SysLogConfig.setup_logging(None, level, file, debug)


def _level(value: str | LogLevel) -> str:
    return check_value("log_level", str(value.value if isinstance(value, LogLevel) else value).upper(), log_level)
