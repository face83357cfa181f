"""Tests of record series that are thinned out with age: remaining records, crashes, and readers."""

import itertools
import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4sys_zmq.errors import RunDirectoryError
from rl4sys_zmq.learner.run.log_files import JsonLineFormat, TensorBoardFileFormat, event_series, log_series, read_log
from rl4sys_zmq.learner.run.record_series import FileSeriesRecord, RotatingFileWriter, list_parts, thin

BOUND = 1 << 20
WORDS = "x" * 400


def line(n: int, event: str = "metrics", client: str = "luna") -> bytes:
    return json.dumps({"t": float(n), "event": event, "client_id": client, "step": n, "words": WORDS}).encode() + b"\n"


def fill(series: RotatingFileWriter, numbers: Iterable[int], **options: Any) -> None:
    for n in numbers:
        assert series.write(line(n, **options), float(n))


def used(run_dir: Path) -> int:
    return sum(path.stat().st_size for path in run_dir.rglob("*") if path.is_file())


def steps(run_dir: Path, event: str = "metrics") -> list[int]:
    return [record["step"] for record in read_log(run_dir) if record["event"] == event]


@given(
    records=st.lists(
        st.builds(
            lambda kind, size, lasting: FileSeriesRecord(f"{kind}{lasting}", b"x" * size, lasting),
            *(st.sampled_from("abcdef"), st.integers(1, 200), st.booleans()),
        ),
        max_size=200,
    ),
    limit=st.integers(0, 5_000),
)
@settings(max_examples=300)
def test_what_stays_fits_and_is_in_order(records: list[FileSeriesRecord], limit: int) -> None:
    kept = thin(records, limit)
    assert sum(len(record.content) for record in kept) <= limit
    rest = iter(records)
    assert all(any(record is other for other in rest) for record in kept)
    if sum(len(record.content) for record in records) <= limit:
        assert kept == records


def test_a_flood_of_one_kind_leaves_the_others_where_they_are() -> None:
    flood = [FileSeriesRecord("flood", b"x" * 100, lasting=True) for _ in range(10_000)]
    rare = [FileSeriesRecord("rare", b"y" * 100, lasting=True) for _ in range(5)]
    figures = [FileSeriesRecord("metrics", b"z" * 100) for _ in range(10_000)]
    records = [*itertools.chain.from_iterable(zip(flood, figures, strict=True)), *rare]
    kept = thin(records, 100_000)
    counts = Counter(record.kind for record in kept)
    assert counts["rare"] == 5 and 250 <= counts["flood"] <= 500 and 250 <= counts["metrics"] <= 750
    assert kept[0] is records[0]


def test_many_short_lives_lose_nothing_while_there_is_room(tmp_path: Path) -> None:
    form = TensorBoardFileFormat()
    for life in range(60):
        series = event_series(tmp_path, "luna", form, BOUND)
        series.write(form.record(float(life), life, {"a": 1.0}), float(life))
        series.close()
    (folder,) = (tmp_path / "tensorboard").iterdir()
    parts, within = list_parts(folder, form)
    assert len(parts) <= 17 and not within
    found = 0
    for part in parts:
        with part.path.open("rb") as file:
            found += len(list(form.read(file)))
    assert found == 60


def test_a_torn_line_and_what_a_merge_left_over_are_gone_after_the_next_start(tmp_path: Path) -> None:
    series = log_series(tmp_path, BOUND)
    fill(series, range(3_000))
    series.close()
    parts, _ = list_parts(tmp_path / "log", JsonLineFormat())
    before = steps(tmp_path)
    merged = next(part for part in parts if part.last > part.first)
    left = merged.path.with_name(f"{merged.stamp:010d}.{merged.last:08d}-{merged.last:08d}.jsonl")
    left.write_bytes(line(merged.last))  # the merge is complete, and its second part is not removed yet
    half = tmp_path / "log" / ".tmp-00000001-00000002"
    half.write_bytes(b"{")
    with (tmp_path / "log.jsonl").open("ab") as newest:
        newest.write(line(3_000)[:100])
    assert steps(tmp_path) == before
    series = log_series(tmp_path, BOUND)
    fill(series, range(3_000, 3_001))
    series.close()
    assert not left.exists() and not half.exists()
    assert steps(tmp_path) == [*before, 3_000]


def test_a_smaller_bound_holds_from_the_next_start_on(tmp_path: Path) -> None:
    series = log_series(tmp_path, 8 * BOUND)
    fill(series, range(20_000))
    series.close()
    assert used(tmp_path) > 4 * BOUND
    series = log_series(tmp_path, BOUND)
    fill(series, range(20_000, 20_200))
    series.close()
    assert used(tmp_path) <= BOUND and steps(tmp_path)[-200:] == list(range(20_000, 20_200))


def test_a_record_that_is_too_long_is_not_written(tmp_path: Path) -> None:
    series = log_series(tmp_path, BOUND)
    assert not series.write(b"x" * BOUND + b"\n", 0.0) and series.write(line(1), 0.0)
    series.close()
    assert steps(tmp_path) == [1]


def test_a_disk_that_refuses_is_an_error_each_time_and_no_growth(tmp_path: Path) -> None:
    (tmp_path / "log").touch()  # in the place of the folder
    series = log_series(tmp_path, BOUND)
    refused = 0
    for n in range(1_000):
        try:
            series.write(line(n), float(n))
        except OSError:
            refused += 1
    assert refused > 500 and used(tmp_path) <= BOUND // 10
    (tmp_path / "log").unlink()
    fill(series, range(1_000, 1_200))
    series.close()
    assert steps(tmp_path)[-200:] == list(range(1_000, 1_200))


def test_a_merge_that_has_no_room_is_tried_again_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    series, fsync, fails = log_series(tmp_path, BOUND), os.fsync, True

    def full(descriptor: int) -> None:
        if fails:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    (tmp_path / "log").mkdir()  # so that only merges flush
    monkeypatch.setattr(os, "fsync", full)
    written, refused = [], 0
    for n in range(2_400):
        try:
            series.write(line(n), float(n))
            written.append(n)
        except OSError:
            refused += 1
    assert 0 < refused < 20 and not list((tmp_path / "log").glob(".tmp-*"))
    series.flush()
    assert steps(tmp_path) == written
    fails = False
    fill(series, range(2_400, 2_600))
    series.close()
    assert used(tmp_path) <= BOUND and steps(tmp_path)[-200:] == list(range(2_400, 2_600))


def test_a_reader_sees_each_record_once_while_they_are_merged(tmp_path: Path) -> None:
    series = log_series(tmp_path, BOUND)
    series.open()
    over, error = threading.Event(), []

    def write() -> None:
        try:
            fill(series, range(25_000))
        except BaseException as exc:
            error.append(exc)
        finally:
            series.close()
            over.set()

    writer = threading.Thread(target=write, name="log-writer")
    writer.start()
    looks = 0
    while not over.is_set():
        found = steps(tmp_path)
        assert found == sorted(set(found)) and (not found or found[0] == 0)
        looks += 1
    writer.join(30.0)
    assert not error and looks >= 3 and steps(tmp_path)[-1] == 24_999


def test_a_directory_without_a_log_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="is this a run directory"):
        list(read_log(tmp_path))
    series = log_series(tmp_path, BOUND)
    fill(series, range(1_000))
    series.close()
    (tmp_path / "log.jsonl").unlink()  # as at the moment when the log becomes a part
    assert steps(tmp_path)
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(RunDirectoryError, match="is this a run directory"):
        list(read_log(tmp_path))
