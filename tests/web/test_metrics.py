"""The figures of learners in Prometheus' format, and the answers of ``/healthz`` and ``/readyz``."""

import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kit import open_agent, play, until

from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.testing import FakeAlgorithm

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed (extra web)")

from prometheus_client.parser import text_string_to_metric_families

from rl4sys_zmq.web.health import ANSWER_S, alive, ready
from rl4sys_zmq.web.metrics import COUNTER, FIGURES, MAX_LABELS, metrics_text
from rl4sys_zmq.web.watcher import LearnerSnapshot

ADDRESS = "tcp://lab:50051"


def answered(report: Mapping[str, Any]) -> LearnerSnapshot:
    return LearnerSnapshot(ADDRESS, report, time.time(), "")


def samples(*snapshots: LearnerSnapshot, **options: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return each sample by its name and its labels, without that of the learner."""
    found = {}
    for family in text_string_to_metric_families(metrics_text(snapshots, **options).decode()):
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "learner"))
            assert (sample.name, labels) not in found or len(snapshots) > 1
            found[sample.name, labels] = sample.value
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of a learner with one client that has trained on one segment, and has refused one."""
    register_algorithm("SCRAPED", FakeAlgorithm.factory(steps_per_update=8))
    folder = tmp_path_factory.mktemp("scraped")
    config = LearnerConfig(bind=f"ipc://{folder}/learner", run_dir=folder / "run")
    with Learner(config) as learner, open_agent(learner, "luna", algorithm_name="SCRAPED") as agent:
        play(agent, 8)
        agent.wait_version(1, timeout_s=60)
        until(lambda: learner.status()["clients"]["luna"]["steps"] == 8, learner.status)
        return learner.status()


def test_the_figures_are_those_of_the_status(report: dict[str, Any]) -> None:
    client, found = report["clients"]["luna"], samples(answered(report))
    luna = ("client", "luna")
    assert found["rl4sys_up", ()] == 1
    assert found["rl4sys_info", (("version", report["version"]),)] == 1
    assert found["rl4sys_problems", ()] == 0
    assert found["rl4sys_segments_accepted_total", (luna,)] == client["accepted"] == 1
    assert found["rl4sys_segments", (luna, ("verdict", "trained"))] == 1
    assert found["rl4sys_client_state", (luna, ("state", "running"))] == 1
    assert found["rl4sys_client_state", (luna, ("state", "failed"))] == 0
    assert found["rl4sys_steps", (luna,)] == 8
    assert found["rl4sys_episode_return_mean", (luna,)] == client["mean_return"]
    assert found["rl4sys_training", (luna, ("tag", "dist/version"))] == 1
    assert found["rl4sys_actors", (luna, ("state", "live"))] == 1
    assert found["rl4sys_journal_limit_bytes", ()] == report["journal"]["max_bytes"]
    assert not [labels for _, labels in found if any(name == "actor" for name, _ in labels)]


def test_each_actor_has_figures_only_on_request(report: dict[str, Any]) -> None:
    (actor,) = report["clients"]["luna"]["actors"]
    labels = (("actor", actor), ("client", "luna"))
    assert samples(answered(report), actors=True)["rl4sys_actor_steps_accepted_total", labels] == 8


def test_equal_reports_give_equal_bytes_whatever_the_order_of_their_keys(report: dict[str, Any]) -> None:
    def turned(value: Any) -> Any:
        return {k: turned(v) for k, v in reversed(value.items())} if isinstance(value, dict) else value

    assert metrics_text([answered(turned(report))], actors=True) == metrics_text([answered(report)], actors=True)


def test_promtool_finds_nothing_to_criticise(report: dict[str, Any]) -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed (Debian's prometheus)")
    system = [{"host": "cache-7", "role": "learner", "pid": 1, "rss_bytes": 2, "threads": 3, "cpu": 0.5, "host_cpu": 0.25}]
    system[0] |= {"host_memory_bytes": 4, "host_memory_free_bytes": 1, "disk_free_bytes": 9, "net_sent_bytes_s": 1.5}
    text = metrics_text([answered({**report, "system": system})], actors=True)
    done = subprocess.run([tool, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_every_figure_has_a_help_and_a_name_of_its_own() -> None:
    names = [figure.full_name for _, figures in FIGURES for figure in figures]
    assert len(names) == len(set(names)) > 40
    for _, figures in FIGURES:
        for figure in figures:
            assert figure.help and not figure.help.endswith(".")
            assert figure.full_name.endswith("_total") == (figure.kind == COUNTER)


def test_processes_and_machines_have_figures_but_those_of_actors_only_on_request() -> None:
    records = [
        {"host": "a", "role": "learner", "cpu": 1.5, "rss_bytes": 10, "host_cpu": 0.5},
        {"host": "a", "role": "worker", "client_id": "luna", "cpu": 0.5, "rss_bytes": 20, "host_cpu": 0.5},
        {"host": "b", "role": "actor", "client_id": "luna", "name": "b.1-0000", "rss_bytes": 30, "host_cpu": 0.75},
    ]
    found = samples(answered({"clients": {}, "system": records}))
    assert found["process_cpu_cores", (("client", ""), ("host", "a"), ("name", ""), ("role", "learner"))] == 1.5
    assert found["process_memory_usage_bytes", (("client", "luna"), ("host", "a"), ("name", ""), ("role", "worker"))] == 20
    assert found["system_cpu_utilization_ratio", (("host", "a"),)] == 0.5
    assert not [labels for _, labels in found if ("host", "b") in labels]
    assert samples(answered({"system": records}), actors=True)["system_cpu_utilization_ratio", (("host", "b"),)] == 0.75


def test_a_learner_that_does_not_answer_has_one_figure_and_those_beside_it_have_all(report: dict[str, Any]) -> None:
    old = LearnerSnapshot("tcp://old:1", report, time.time() - ANSWER_S - 1, "silent")
    never = LearnerSnapshot("tcp://never:1", None, None, "refused")
    families = text_string_to_metric_families(metrics_text([old, answered(report), never]).decode())
    found = [sample for family in families for sample in family.samples]
    assert {s.labels["learner"]: s.value for s in found if s.name == "rl4sys_up"} == {
        old.address: 0,
        ADDRESS: 1,
        never.address: 0,
    }
    assert {s.labels["learner"] for s in found if s.name != "rl4sys_up"} == {ADDRESS}


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        {"clients": 3, "counters": [1], "journal": "x", "system": {"a": 1}, "security": 7},
        {
            "clients": {"luna": None, "mars": {"verdicts": {1: "x"}, "alarms": {"a": 2}}},
        },
        {"clients": {"luna": {"steps": 10**400, "accepted": True, "mean_return": float("nan"), "checkpoint": {"age_s": "1"}}}},
        {"system": [None, 3, {"role": "learner", "host": 5, "cpu": []}], "version": None, "uptime_s": []},
    ],
)
def test_the_report_of_another_version_gives_what_can_be_read(garbage: dict[str, Any]) -> None:
    found = samples(answered(garbage), actors=True)
    assert found["rl4sys_up", ()] == 1
    assert found["rl4sys_problems", ()] == 1
    assert alive([answered(garbage)]) == []
    ready([answered(garbage)])


def test_names_of_peers_stay_inside_their_label_and_a_label_of_a_learner_is_bounded() -> None:
    name = 'luna"} 1\nrl4sys_up{learner="x'
    scalars = {f"custom/{i:05}": float(i) for i in range(10 * MAX_LABELS)}
    refused = {"refused.quota": 2, "refused.no_such_code": 7}
    text = metrics_text([answered({"clients": {name: {"scalars": scalars}, "\ud800": {}}, "counters": refused})]).decode()
    assert sum(line.startswith("rl4sys_up{") for line in text.splitlines()) == 1
    assert text.count("rl4sys_training{") == MAX_LABELS
    assert 'rl4sys_messages_refused_total{code="quota"' in text and "no_such_code" not in text


def test_health_is_about_answers_and_readiness_about_workers() -> None:
    running, failed = {"clients": {"luna": {"state": "running"}}}, {"clients": {"luna": {"state": "failed", "error": "no torch"}}}
    assert alive([answered(running), answered(failed)]) == [] == ready([answered(running)])
    assert ready([answered(failed)]) == [f"{ADDRESS}: client luna is failed: no torch"]
    assert ready([answered({"clients": {"b": {"state": "starting"}}})]) == [f"{ADDRESS}: client b is starting"]
    assert ready([answered({"relay": True, "clients": {"luna": {"version": 3}}})]) == []
    silent = [LearnerSnapshot(ADDRESS, None, None, "refused"), LearnerSnapshot("ipc://b", running, time.time() - 60, "")]
    assert [line.replace(" 61 s", " 60 s") for line in alive(silent)] == [
        f"{ADDRESS}: no answer so far: refused",
        "ipc://b: no answer for 60 s",
    ]
    assert len(ready(silent)) == 2


def test_a_learner_that_continues_a_run_is_not_ready_until_the_workers_of_its_clients_run(tmp_path: Path) -> None:
    algorithm = FakeAlgorithm.factory(steps_per_update=8)
    register_algorithm("READY", algorithm)
    config = LearnerConfig(bind=f"ipc://{tmp_path}/learner", run_dir=tmp_path / "run")
    with Learner(config) as learner, open_agent(learner, "luna", algorithm_name="READY") as agent:
        play(agent, 8)
        agent.wait_version(1, timeout_s=60)
    with Learner(config) as learner:
        first = learner.status()
        assert set(first["clients"]) == {"luna"}
        until(lambda: ready([answered(learner.status())]) == [], learner.status)
        states = {first["clients"]["luna"]["state"], learner.status()["clients"]["luna"]["state"]}
        assert states <= {"starting", "running"}
