"""Three weeks of metrics of a busy learner in limited files: all new records, fewer old ones, and all important events."""

import itertools
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.learner.run.recorder import RunDirectoryWriter
from rl4sys_zmq.ops.curves import draw_curves, read_curves
from rl4sys_zmq.wire.thread_messages import TrainingMetrics

from .conftest import Report

pytestmark = pytest.mark.timeout(120)

VERSIONS_PER_S = 4.7
SPAN_S = 21 * 86_400
SCALE = 600
"""One record stands for this many. Each limit is smaller than its default by this factor."""

CLIENTS = ("luna", "Mars")
STEPS_PER_VERSION = 2048
TAGS = tuple(f"losses/figure_{n:02d}" for n in range(12))
BOUNDS: dict[str, Any] = {
    key: getattr(LearnerConfig.from_mapping({}), key) // SCALE for key in ("log_max_bytes", "tensorboard_max_bytes")
}


def records() -> Iterator[tuple[float, int, TrainingMetrics]]:
    count = int(SPAN_S * VERSIONS_PER_S / SCALE)
    for n in range(count):
        version = n * SCALE
        step = version * STEPS_PER_VERSION
        scalars = {tag: float(np.sin(n / 300 + place)) for place, tag in enumerate(TAGS)} | {"dist/version": float(version)}
        yield n * SPAN_S / count, version, TrainingMetrics(step, version, scalars, [[float(step), 500.0 * n / count, 500]], 1, [])


def bytes_of(paths: Iterator[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


class Rooms:
    """The greatest size of a run's files."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self.log = self.curves = 0

    def look(self) -> None:
        """Measure the files, and fail if they exceed a limit."""
        self.log = max(self.log, bytes_of(itertools.chain(self._run_dir.glob("log*"), self._run_dir.glob("log/*"))))
        assert self.log <= BOUNDS["log_max_bytes"]
        for folder in self._run_dir.glob("tensorboard/*"):
            self.curves = max(self.curves, bytes_of(folder.iterdir()))
        assert self.curves <= BOUNDS["tensorboard_max_bytes"]


def test_three_weeks_fit_into_a_fixed_room(tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # the weeks are simulated, and a real fsync would take too long
    run_dir, rooms, began = tmp_path / "run", Rooms(tmp_path / "run"), time.monotonic()
    files = RunDirectoryWriter(run_dir, BOUNDS | {"loggers": ["tensorboard"]})
    files.open(0.0)
    written = 0
    for n, (at, _, metrics) in enumerate(records()):
        if n == 0:
            for client in CLIENTS:
                files.event("actor_joined", {"client_id": client, "actor_id": "a"}, at)
        for client in CLIENTS:
            files.metrics(client, metrics, at)
            written += 1
        if n == 2_000:
            files.event("client_failed", {"client_id": "luna", "error": "ValueError: once"}, at)
        if n == 5_000:
            files.event("gap", {"client_id": "Mars", "actor_id": "a", "segments": 3}, at)
            for refused in range(3_000):  # a flood of one event does not displace others
                files.event("item_refused", {"client_id": "Mars", "actor_id": "a", "reason": str(refused)}, at)
        if n % 50 == 0:
            files.event("quarantined", {"client_id": "luna", "actor_id": "a", "reason": "not finite"}, at)
        if n % 200 == 0:
            files.flush()
            rooms.look()
        if n % 3_000 == 2_999:  # the writer ends and starts again, later as after a kill
            files.close()
            if n > 6_000:
                with (run_dir / "log.jsonl").open("ab") as torn:
                    torn.write(b'{"t": 1.0, "event": "metr')
                newest = max((run_dir / "tensorboard" / "luna").iterdir())
                newest.write_bytes(newest.read_bytes()[:-7])
            files = RunDirectoryWriter(run_dir, BOUNDS | {"loggers": ["tensorboard"]})
            files.open(at)
            rooms.look()
    files.close()
    rooms.look()
    took_s = time.monotonic() - began

    lines = list(log_lines(run_dir))
    events = [line["event"] for line in lines]
    assert events.count("client_failed") == events.count("gap") == 1 and events.count("actor_joined") == 2
    assert events.count("item_refused") >= 10 and events.count("quarantined") >= 10
    expected = [metrics.step for _, _, metrics in records()]
    for client in CLIENTS:
        kept = [line["step"] for line in lines if line["event"] == "metrics" and line["client_id"] == client]
        assert_thinned_with_age(kept, expected)
    for folder in (run_dir / "tensorboard").iterdir():
        accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        accumulator.Reload()
        assert set(accumulator.Tags()["scalars"]) == {*TAGS, "dist/version", "charts/episodic_return", "charts/episodic_length"}
        for tag in (TAGS[3], "charts/episodic_return"):
            assert_thinned_with_age([point.step for point in accumulator.Scalars(tag)], expected)

    curves = read_curves(run_dir)
    assert [curve.client_id for curve in curves] == ["Mars", "luna"]
    for curve in curves:
        assert curve.steps[0] == expected[0] and curve.steps[-1] == expected[-1]
        assert curve.seconds[-1] == pytest.approx(SPAN_S, rel=0.01)
        assert np.interp(expected[len(expected) // 2], curve.steps, curve.returns) == pytest.approx(250.0, abs=25.0)
    draw_curves(curves, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    report(
        weeks=3,
        scale=SCALE,
        records=written,
        log_bytes=rooms.log * SCALE,
        log_bound=BOUNDS["log_max_bytes"] * SCALE,
        tensorboard_bytes=rooms.curves * SCALE,
        tensorboard_bound=BOUNDS["tensorboard_max_bytes"] * SCALE,
        points_kept=[len(curve.steps) for curve in curves],
        took_s=round(took_s, 1),
    )


def log_lines(run_dir: Path) -> Iterator[dict[str, Any]]:
    for path in (*sorted((run_dir / "log").iterdir()), run_dir / "log.jsonl"):
        for line in path.read_text().splitlines():
            yield json.loads(line)


def assert_thinned_with_age(kept: list[int], expected: list[int]) -> None:
    """Check that no record appears twice, the newest are complete, and gaps grow with age only, back to the first record."""
    assert kept == sorted(set(kept)) and set(kept) <= set(expected)
    assert kept[0] == expected[0] and kept[-10:] == expected[-10:]
    assert len(kept) < len(expected) / 4
    end = expected[-1]
    for one, other in itertools.pairwise(kept):
        assert other - one <= 0.25 * (end - one) + 2 * (expected[1] - expected[0])
