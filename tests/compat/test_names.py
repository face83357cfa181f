"""The names that programs for RL4Sys import: their files have RL4Sys's columns, and no cell is empty."""

import csv
import io
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl4sys_zmq
from rl4sys_zmq import compat
from rl4sys_zmq.compat import LogLevel, RL4SysLogConfig, StepPerSecLogger, StructuredLogger, compute_field_statistics
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.logs import get_logger

MEMORY = """process_timestamp process_pid process_process_name process_rss process_vms process_uss process_pss
process_memory_percent process_actual_memory_bytes process_system_total_memory process_system_available_memory
process_system_memory_percent system_timestamp system_total_memory system_available_memory system_used_memory
system_free_memory system_memory_percent system_buffers system_cached system_shared system_swap_total system_swap_used
system_swap_free system_swap_percent"""
CPU = """process_timestamp process_pid process_process_name process_cpu_percent process_cpu_percent_per_core
process_logical_cpu_count process_cpu_times_user process_cpu_times_system process_num_threads system_timestamp
system_cpu_percent system_cpu_percent_per_core system_cpu_count system_load_avg_1m"""


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    """Restore the logging of the process after the test, and close the handlers that the test has added."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def rows(path: str | Path) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_agent_is_the_one_of_the_package() -> None:
    for name in ("RL4SysAgent", "RL4SysAction", "RL4SysTrajectory"):
        assert getattr(compat, name) is getattr(rl4sys_zmq, name)


def test_an_import_writes_nothing_and_needs_no_psutil(tmp_path: Path) -> None:
    program = "import sys; sys.modules['psutil'] = None; import rl4sys_zmq.compat as c, logging, threading\n"
    program += "assert not logging.getLogger().handlers and threading.active_count() == 1 and 'torch' not in sys.modules\n"
    program += "try: c.MemoryProfiler('x')\nexcept Exception as exc: print(type(exc).__name__, exc)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("ConfigError a profiler needs psutil") and "rl4sys-zmq[compat]" in done.stdout, done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("name", "columns"), [("MemoryProfiler", MEMORY), ("CPUProfiler", CPU)])
def test_a_profiler_writes_rl4syss_columns(tmp_path: Path, name: str, columns: str) -> None:
    pytest.importorskip("psutil")
    make: Any = getattr(compat, name)
    kind = {"MemoryProfiler": "memory", "CPUProfiler": "cpu"}[name]
    third = threading.Event()
    with make("job main", output_dir=tmp_path / "records", log_interval=0.01) as profiler:
        with pytest.raises(ConfigError, match="no file before the first row"):
            profiler.get_csv_path()
        record, count = profiler.record, iter(range(1000))

        def counted(process: Any) -> None:
            record(process)
            if next(count) == 2:
                third.set()

        profiler.record = counted
        profiler.start_background_profiling()
        with pytest.raises(ConfigError, match="runs already"):
            profiler.start_background_profiling()
        assert third.wait(30.0)
        assert profiler.stop_background_profiling() and profiler.stop_background_profiling()
    path = Path(profiler.get_csv_path())
    assert path.parent.parent == tmp_path / "records" and path.name == f"job main_{kind}_profile_{path.parent.name}.csv"
    found = rows(path)
    assert len(found) >= 3 and [*found[0]] == columns.split()
    assert all(value for row in found for value in row.values())
    assert not any(thread.name.startswith("rl4sys-") and "Profiler" in thread.name for thread in threading.enumerate())
    profiler.start_background_profiling()  # again, into the same file
    profiler.close()
    assert len(rows(path)) > len(found)


def test_a_profiler_without_a_place_for_its_file_ends_with_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("psutil")
    (tmp_path / "file").write_text("")
    with compat.MemoryProfiler("x", output_dir=tmp_path / "file") as profiler:
        profiler.start_background_profiling()
        profiler.stop_background_profiling(None)
    assert caplog.text.count("output_dir") == 1
    with pytest.raises(ConfigError, match="log_interval"):
        compat.CPUProfiler("x", log_interval=0)


def test_steps_per_second(tmp_path: Path) -> None:
    with StepPerSecLogger("job_main", str(tmp_path)) as first, StepPerSecLogger("job_main", str(tmp_path)) as second:
        first.log(1912.2)
        first.log(np.float64(2000.0))
        second.log(1.0)
    assert [row["steps_per_sec"] for row in rows(first.get_csv_path())] == ["1912.2", "2000.0"]
    assert all(row["timestamp"] for row in rows(first.get_csv_path()))
    assert [*rows(second.get_csv_path())[0]] == ["timestamp", "steps_per_sec"] and len(rows(second.get_csv_path())) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="output_dir"):
        StepPerSecLogger("x", str(tmp_path / "file"))


def test_statistics() -> None:
    found = compute_field_statistics([{"steps/s": 1, "env_ms": 0.5}, {"steps/s": 3.0}, {}])
    assert found == {"steps/s": (2.0, 1.0), "env_ms": (0.5, 0.0)}
    assert compute_field_statistics([]) == {} and type(found["steps/s"][1]) is float


def test_the_structured_format_shows_the_context_and_all_other_records(root_logger: logging.Logger, tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    config = RL4SysLogConfig.get_default_config(LogLevel.INFO, str(file), structured_logging=True)
    RL4SysLogConfig.setup_logging(config)
    text = io.StringIO()
    logging.getLogger().handlers[0].stream = text  # type: ignore[attr-defined]
    logger = StructuredLogger("Sim", debug=True)
    logger.info("moved", steps=np.int64(3), reward=np.float32(0.5), where=Path("a"))
    logger.debug("not shown", steps=1)
    logger.warning("late")
    logger.error("failed", error="x")
    logging.getLogger("other.library").warning("plain")
    get_logger("rl4sys_zmq.test").warning("ours")
    lines = text.getvalue().splitlines()
    assert [line.split(" - ", 1)[1] for line in lines] == [
        'Sim - INFO - moved - {"steps": 3, "reward": 0.5, "where": "a"}',
        "Sim - WARNING - late - {}",
        'Sim - ERROR - failed - {"error": "x"}',
        "other.library - WARNING - plain - {}",
        "rl4sys_zmq.test - WARNING - ours - {}",
    ]
    assert file.read_text().splitlines() == lines
    json.dumps(config)


@pytest.mark.parametrize("debug", [False, True])
def test_the_environment_sets_the_level_and_the_file(
    root_logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, debug: bool
) -> None:
    monkeypatch.setenv("RL4SYS_LOG_LEVEL", "error")
    monkeypatch.setenv("RL4SYS_LOG_FILE", str(tmp_path / "log.txt"))
    compat.setup_rl4sys_logging(debug)
    assert root_logger.level == (logging.DEBUG if debug else logging.ERROR)
    assert (tmp_path / "log.txt").exists()
    with pytest.raises(ConfigError, match="log_level"):
        RL4SysLogConfig.setup_logging(log_level="LOUD")
    with pytest.raises(ConfigError, match=r"logging configuration is invalid: .*no/such"):
        RL4SysLogConfig.setup_logging(log_file=str(tmp_path / "no/such"))


def test_a_record_says_the_line_of_the_program(caplog: pytest.LogCaptureFixture) -> None:
    StructuredLogger("Sim").warning("here")
    assert caplog.records[0].filename == "test_names.py"
