"""The learner's memory of its newest records: its bounds and its order, without a socket. What a restart keeps of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.learner.run.history import MAX_EVENTS, MAX_METRICS, MAX_SYSTEM, History, HistorySink
from rl4sys_zmq.learner.run.log_files import newest_records, read_log
from rl4sys_zmq.learner.run.recorder import RunDirectoryWriter
from rl4sys_zmq.wire.thread_messages import QuarantinedSegment, TrainingMetrics


def metrics(step: int, client_id: str = "lab", **changes: Any) -> dict[str, Any]:
    record = {"t": 1e9 + step, "event": "metrics", "client_id": client_id, "step": step, "update": step}
    return {**record, "scalars": {"loss": 0.5}, "episodes": [], "lags": [], **changes}


def read(history: History, since: int = 0, **options: Any) -> list[dict[str, Any]]:
    """Return all records from a number on, as somebody who asks until there are no more."""
    found: list[dict[str, Any]] = []
    while True:
        content, following = history.since(since, **options)
        records = json.loads(content)
        if not records:
            return found
        assert following > since
        found, since = found + records, following


@given(st.integers(1, 3_000), st.integers(1, 40))
def test_metrics_are_bounded_in_order_the_newest_are_whole_and_the_old_ones_thin(count: int, max_bytes_of_100: int) -> None:
    history = History()
    for step in range(count):
        history.add(metrics(step))
    steps = [record["step"] for record in read(history, max_bytes=100 * max_bytes_of_100)]
    assert steps == sorted(set(steps)) and len(steps) <= MAX_METRICS
    assert steps[-MAX_METRICS // 4 :] == list(range(count))[-MAX_METRICS // 4 :]
    assert steps[0] == 0, "thinning keeps the beginning of a curve"
    assert len(steps) == count or len(steps) > MAX_METRICS // 2


def test_a_long_curve_keeps_its_form() -> None:
    history = History()
    for step in range(100_000):
        history.add(metrics(step))
    steps = [record["step"] for record in read(history)]
    tenths = [sum(10_000 * tenth <= step < 10_000 * (tenth + 1) for step in steps) for tenth in range(9)]
    assert min(tenths) >= MAX_METRICS // 50
    assert max(tenths) <= 4 * min(tenths)


def test_records_that_alternate_are_thinned_each_for_itself() -> None:
    history = History()
    for step in range(4 * MAX_METRICS):
        history.add(metrics(step, scalars={"eval/mean_return" if step % 2 else "loss": 1.0}))
        history.add({"t": step, "event": "system", "host": "cache-7", "pid": step % 2, "step": step})
    kept = read(history)
    for of_a_kind in (
        [record for record in kept if "eval/mean_return" in record.get("scalars", ())],
        [record for record in kept if "loss" in record.get("scalars", ())],
    ):
        assert of_a_kind[0]["step"] < 2 and len(of_a_kind) > MAX_METRICS // 4
    system = [record["pid"] for record in kept if record["event"] == "system"]
    assert len(system) <= MAX_SYSTEM and abs(system.count(0) - system.count(1)) <= 1


def test_more_processes_than_records_of_system_stay_bounded() -> None:
    history = History()
    for pid in range(3 * MAX_SYSTEM):
        history.add({"t": pid, "event": "system", "host": "cache-7", "pid": pid})
    pids = [record["pid"] for record in read(history)]
    assert pids == list(range(3 * MAX_SYSTEM))[-MAX_SYSTEM:]


def test_events_of_one_name_do_not_push_out_others() -> None:
    history = History()
    history.add({"t": 1.0, "event": "client_failed", "client_id": "lab", "error": "ValueError"})
    for number in range(2 * MAX_EVENTS):
        history.add({"t": 2.0, "event": "actor_joined", "client_id": "lab", "actor_id": str(number)})
    first, *joined = read(history)
    assert first["error"] == "ValueError"
    assert [int(record["actor_id"]) for record in joined] == list(range(MAX_EVENTS, 2 * MAX_EVENTS))


def test_a_reader_asks_for_what_is_new_and_gets_it_once() -> None:
    history = History()
    history.add(metrics(0))
    _, following = history.since(0)
    assert history.since(following) == (b"[]", following)
    history.add({"t": 1.0, "event": "alarm", "client_id": "lab"})
    history.add(metrics(1, "luna"))
    content, later = history.since(following)
    assert [record["client_id"] for record in json.loads(content)] == ["lab", "luna"]
    assert history.since(later) == (b"[]", later)
    assert history.since(10**9) == (b"[]", later), "one that is ahead has seen another learner, and learns the number"


def test_episodes_become_means_and_numbers_that_are_not_finite_null() -> None:
    history = History()
    history.add(metrics(1, episodes=[[0, 2.0, 10], [1, 4.0, 30]], evaluations=[[1, 5.0, 9]], scalars={"loss": float("nan")}))
    (record,) = read(history)
    assert record["scalars"] == {
        "loss": None,
        "charts/episodic_return": 3.0,
        "charts/episodic_length": 20.0,
        "charts/episodes": 2,
    }
    assert not {"episodes", "evaluations"} & record.keys()


def test_a_record_that_is_too_long_keeps_its_name() -> None:
    history = History()
    history.add({"t": 1.0, "event": "client_failed", "client_id": "lab", "error": "x" * (1 << 20)})
    (record,) = read(history)
    assert (record["event"], record["client_id"], "error" in record) == ("client_failed", "lab", False)
    assert record["too_long_bytes"] > 1 << 20


def test_a_user_of_some_clients_sees_these_and_what_belongs_to_none() -> None:
    history = History()
    history.add({"t": 0.0, "event": "learner_started"})
    for step in range(50):
        history.add(metrics(step, "luna" if step % 2 else "lab"))
        history.add({"t": 0.0, "event": "alarm", "client_id": "luna"})
    seen = read(history, may_see=lambda client_id: client_id == "lab", max_bytes=400)
    assert {record.get("client_id") for record in seen} == {None, "lab"} and len(seen) == 26


@pytest.mark.parametrize("event", ["client_forgotten", "client_expired"])
def test_the_metrics_of_a_forgotten_client_are_forgotten(event: str) -> None:
    history = History()
    history.add(metrics(1))
    history.add(metrics(2, "luna"))
    history.add({"t": 3.0, "event": event, "client_id": "lab"})
    assert [(record["event"], record["client_id"]) for record in read(history)] == [("metrics", "luna"), (event, "lab")]


def written(run_dir: Path, count: int) -> None:
    writer = RunDirectoryWriter(run_dir, LearnerConfig(bind="inproc://nowhere").to_json())
    writer.open(1e9)
    with writer:
        for step in range(count):
            writer.metrics("lab", TrainingMetrics(step, step, {"loss": 0.5}, [[step, 2.0, 3]], step, []), 1e9 + step)


def test_the_history_begins_with_the_end_of_the_log(tmp_path: Path) -> None:
    written(tmp_path, 2_000)
    whole = list(read_log(tmp_path))
    newest = list(newest_records(tmp_path, 10_000))
    assert newest == whole[-len(newest) :] and 20 < len(newest) < 200
    assert list(newest_records(tmp_path, 1 << 30)) == whole
    assert list(newest_records(tmp_path / "none", 1 << 20)) == []
    sink = HistorySink(newest)
    sink.event("client_ready", client_id="lab", steps=2_000)
    sink.dead_letter("lab", QuarantinedSegment("a", 1, 7, "reward of step 3 is nan", ()))
    content, following = sink.since(0, lambda client_id: True)
    *before, started, ready, dead = json.loads(content)
    assert (following, len(before)) == (len(newest) + 3, len(newest))
    assert (started["event"], ready["event"], dead["event"]) == ("learner_started", "client_ready", "dead_letter")
    assert (dead["client_id"], dead["actor_id"], dead["seq"], dead["reason"]) == ("lab", "a", 7, "reward of step 3 is nan")
    assert before[-1]["scalars"]["charts/episodic_return"] == 2.0


def test_the_end_of_the_log_can_be_in_an_older_file(tmp_path: Path) -> None:
    written(tmp_path, 100)
    (tmp_path / "log").mkdir()
    (tmp_path / "log.jsonl").rename(tmp_path / "log" / "1000000000.00000001-00000001.jsonl")
    written(tmp_path, 1)
    assert [record["event"] for record in newest_records(tmp_path, 1 << 20)][-4:] == [
        "metrics",
        "metrics",
        "learner_started",
        "metrics",
    ]


def test_lines_that_are_no_records_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [b"\xff\n", b"[1]\n", b"7\n", b'{"event": "metrics"}\n', b'{"t": 1, "event": "alarm"}\n', b'{"t": 1, "event": "torn']
    (tmp_path / "log.jsonl").write_bytes(b"".join(lines))
    content, _ = HistorySink(newest_records(tmp_path, 1 << 20)).since(0, lambda client_id: True)
    assert [record["event"] for record in json.loads(content)] == ["alarm", "learner_started"]
    assert "4 records in the log cannot be read" in caplog.text
