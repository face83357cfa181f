"""Tests of a run directory: what stands in the way moves once and whole, and the recorder survives errors of the disk."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.errors import RunDirectoryError
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.learner.run import record_thread
from rl4sys_zmq.learner.run.log_files import read_log
from rl4sys_zmq.learner.run.recorder import NullEventSink, Recorder, RunDirectoryWriter
from rl4sys_zmq.learner.run.resume import move_misplaced
from rl4sys_zmq.wire.thread_messages import QuarantinedSegment, TrainingMetrics

CONFIG = LearnerConfig(bind="inproc://nowhere").to_json()
READY = {"algorithm": "PPO", "parameters": {"learning_rate": 3e-4, "clip": None, "anneal": True, "hidden_sizes": [64, 64]}}


def test_what_stands_in_the_way_is_moved_once_and_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for folder in ("journal.db-wal", "config.json", "own notes"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine").write_text(folder)
    for file in ("dead", "tensorboard", "today.txt"):
        (tmp_path / file).write_text(file)
    (tmp_path / "checkpoints").symlink_to(tmp_path / "today.txt")
    moved = dict(move_misplaced(tmp_path))
    assert moved.keys() == {"journal.db-wal", "config.json", "dead", "tensorboard"}
    for source, target in moved.items():
        place = tmp_path / target
        assert place.parent.name.startswith("before-") and place.name == source and not (tmp_path / source).exists()
        assert (place / "mine" if place.is_dir() else place).read_text() == source
        assert source in caplog.text and target in caplog.text
    assert (tmp_path / "own notes" / "mine").exists() and (tmp_path / "today.txt").exists()
    assert (tmp_path / "checkpoints").is_symlink() and move_misplaced(tmp_path) == []


def test_a_move_that_fails_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dead").write_text("mine")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(RunDirectoryError, match=r"cannot be moved: No space left.*choose another --run-dir"):
        move_misplaced(tmp_path)
    assert (tmp_path / "dead").read_text() == "mine"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_whatever_is_in_a_run_directory_a_learner_starts(kind: str, tmp_path: Path) -> None:
    strange = [
        b"\xff\xfe",
        b"%F0%9F",
        b"%E4%BD",
        b"a\nb",
        b"x" * 255,
        b"%",
        b"%-",
        b"%~zz",
        b"\x1b[31m",
        b"\xed\xa0\x80",
        b".tmp-0",
    ]
    ours = [
        b"checkpoints",
        b"best",
        b"dead",
        b"tensorboard",
        b"log",
        b"log.jsonl",
        b"config.json",
        b"journal.db",
        b"journal.marks",
    ]
    inside = [f"{part}/".encode() + name for part in ("checkpoints", "best", "dead", "tensorboard", "log") for name in strange]
    runs = [[*strange, *inside], *([name] for name in ours)]
    for number, names in enumerate(runs):
        run = tmp_path / str(number)
        for name in names:
            path = run / os.fsdecode(name)
            (path if kind == "folder" else path.parent).mkdir(parents=True, exist_ok=True)
            if kind == "file":
                path.touch()
        with Learner(LearnerConfig(bind="inproc://*", run_dir=run)) as learner:
            assert learner.status()["clients"] == {}


def test_a_recorder_outlives_a_place_that_it_cannot_write(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "tensorboard").write_text("in the way")
    recorder = Recorder(run, CONFIG)
    recorder.open()
    metrics = TrainingMetrics(1, 1, {"a": 1.0}, [[1.0, 2.0, 3]], 1, [])
    recorder.metrics("luna", metrics)
    recorder.dead_letter("luna", QuarantinedSegment("../x", 1, 2, "bad", (b"abc",)))
    recorder.event("gap", client_id="luna")
    recorder.stop()
    recorder.join(10.0)
    recorder.raise_if_dead()
    assert recorder.counters.snapshot()["write_errors"] >= 1
    events = [json.loads(line)["event"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert events == ["learner_started", "metrics", "gap"]
    (letter,) = (run / "dead").glob("*/*.msg")
    assert letter.name == "luna,%2E.%2Fx,1,2.msg"


def test_a_recorder_whose_queue_is_full_at_its_end_writes_it_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_thread, "FLUSH_S", 0.01)
    monkeypatch.setattr(record_thread, "QUEUE_RECORDS", 4)
    recorder = Recorder(tmp_path, CONFIG)
    recorder.open()
    busy, go = threading.Event(), threading.Event()
    write = recorder._files.event

    def slow(*arguments: Any) -> None:
        busy.set()
        go.wait()
        write(*arguments)

    monkeypatch.setattr(recorder._files, "event", slow)
    recorder.event("gap", client_id="luna")
    busy.wait()
    while not recorder.counters.snapshot().get("records_dropped"):
        recorder.event("gap", client_id="luna")
    recorder.stop()
    go.set()
    assert recorder.join(10.0)
    events = [json.loads(line)["event"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert events.count("gap") == 4 + 1


def test_tensorboard_finds_plain_scalars_and_leaves_out_what_was_undone(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with RunDirectoryWriter(tmp_path, CONFIG) as files:
        files.open(99.0)
        for step in (10, 20, 30):
            figures = TrainingMetrics(step, 1, {"losses/policy_loss": step / 10}, [[step, 5.0, 10]], 1, [8, 0, 2] + [0] * 6)
            files.metrics("luna", figures, 100.0 + step)
        files.event("client_ready", {"client_id": "luna", "checkpoint": 2, "steps": 20, "episodes": 2, **READY}, 200.0)
        files.metrics("luna", TrainingMetrics(25, 1, {"losses/policy_loss": 9.0}, [], 2, []), 201.0)
    events = EventAccumulator(str(tmp_path / "tensorboard" / "luna"), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"losses/policy_loss", "charts/episodic_return", "charts/episodic_length"}
    assert [(point.step, point.value) for point in events.Scalars("losses/policy_loss")] == [(10, 1.0), (20, 2.0), (25, 9.0)]
    assert [point.step for point in events.Scalars("charts/episodic_return")] == [10, 20]
    assert [point.step for point in events.Histograms("dist/policy_lags")] == [10, 20]
    histogram = events.Histograms("dist/policy_lags")[0].histogram_value
    assert (
        histogram.num == 10
        and dict(zip(histogram.bucket_limit, histogram.bucket, strict=True)).items() >= {0.5: 8, 2.5: 2}.items()
    )


def test_tensorboards_tab_hparams_has_the_parameters_and_the_commit(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    changed = {**READY, "parameters": {"learning_rate": 1.0}}
    for ready in (READY, changed):  # the second is a restart with another value
        with RunDirectoryWriter(tmp_path, CONFIG | {"_comment_run": {"id": "1", "commit": "c0ffee"}}) as files:
            files.open(99.0)
            files.event("client_ready", {"client_id": "Luna", "checkpoint": 2, "steps": 20, "episodes": 2, **ready}, 100.0)
            files.metrics("Luna", TrainingMetrics(25, 1, {"losses/policy_loss": 9.0}, [], 2, []), 101.0)
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(tmp_path / "tensorboard"))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(tmp_path))
    plugin = backend_context.Context(TBContext(logdir=str(tmp_path), data_provider=provider))
    names = ("learning_rate", "clip", "anneal", "hidden_sizes", "algorithm", "commit")
    columns = [api_pb2.ColParams(hparam=name) for name in names]
    columns.append(api_pb2.ColParams(metric=api_pb2.MetricName(tag="losses/policy_loss")))
    wanted = api_pb2.ListSessionGroupsRequest(slice_size=9, allowed_statuses=[api_pb2.STATUS_UNKNOWN], col_params=columns)
    (group,) = list_session_groups.Handler(RequestContext(), plugin, "", wanted).run().session_groups
    shown = {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}
    values = {"learning_rate": 3e-4, "clip": "null", "anneal": True, "hidden_sizes": "[64, 64]"}
    assert group.name == "Luna" and shown == values | {"algorithm": "PPO", "commit": "c0ffee"}
    assert [figure.value for figure in group.metric_values] == [9.0]


def test_an_event_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The learner logs its alarms itself. Its sinks log only the events that no other part logs."""
    with caplog.at_level("INFO"):
        for sink in (NullEventSink(), Recorder(tmp_path, CONFIG)):
            sink.event("alarm", client_id="luna", alarm="stalled", count=1, text="nothing moves")
            sink.event("actor_joined", client_id="luna", actor_id="a1", first_seq=0)
    assert [record.getMessage().split()[0] for record in caplog.records] == ["actor_joined", "actor_joined"]


def test_a_start_records_how_long_no_learner_ran(tmp_path: Path) -> None:
    for at in (100.0, 400.0, 401.0):
        with RunDirectoryWriter(tmp_path, CONFIG) as files:
            files.open(at)
            files.event("gap", {"client_id": "luna"}, at + 0.5)
        with (tmp_path / "log.jsonl").open("ab") as torn:
            torn.write(b'{"t": 999.0, "event": "metr')
    starts = [event for event in read_log(tmp_path) if event["event"] == "learner_started"]
    assert [event["down_s"] for event in starts] == [0.0, 299.5, 0.5]
