"""The figures of processes and machines: read from a log, as a table and as a picture."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.errors import RunDirectoryError
from rl4sys_zmq.ops.system_series import COLUMNS, draw_system, read_system, write_system


def record(t: float, pid: int, host: str = "edge", **fields: Any) -> dict[str, Any]:
    names = {"client_id": "", "name": "", "role": "learner", "host": host, **fields}
    return {"t": t, "event": "system", "pid": pid, **{name: 1.0 for name in COLUMNS if name not in ("t", "pid", *names)}, **names}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    actor = {"role": "actor", "client_id": "luna", "name": "a<1>"}
    rows = [record(float(n), 1) for n in range(5)] + [record(float(n), 2, "far", **actor) for n in (3, 2)] + [record(9.0, 3)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_each_process_has_a_series_in_the_order_of_time(run: Path) -> None:
    series = read_system([run])
    assert {label: [row["t"] for row in rows] for label, rows in series.items()} == {
        "learner (process 1 on edge)": [0, 1, 2, 3, 4],
        "actor luna a<1> (process 2 on far)": [2, 3],
        "learner (process 3 on edge)": [9],
    }


def test_the_picture_and_the_table_have_all_processes(run: Path) -> None:
    pytest.importorskip("matplotlib")
    series = read_system([run])
    draw_system(series, run / "system.svg")
    drawn = (run / "system.svg").read_text()
    for words in ("cores used by the process", "free on the disk, GB", "learner (process 1 on edge)", "minutes since"):
        assert words in drawn
    write_system(series, run / "system.csv")
    with (run / "system.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [*rows[0]] == [*COLUMNS] and [row["pid"] for row in rows] == ["1"] * 5 + ["2"] * 2 + ["3"]
    with pytest.raises(RunDirectoryError, match="cannot be written"):
        write_system(series, run / "nowhere" / "system.csv")
