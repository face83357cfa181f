"""Loggers: what they get, and that one that fails or hangs costs the learner nothing."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from kit import drained, open_agent, play, python, raising, until

from rl4sys_zmq.config import LearnerConfig
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.interfaces import RunLogger
from rl4sys_zmq.learner import Learner, register_algorithm
from rl4sys_zmq.learner.gateway.static_check import check_buildable
from rl4sys_zmq.learner.run import record_thread
from rl4sys_zmq.learner.run.log_files import TENSORBOARD, _event_folder, read_log
from rl4sys_zmq.learner.run.run_loggers import RunInfo, describe_run
from rl4sys_zmq.learner.run.stored_policies import newest_policy
from rl4sys_zmq.policies import read_policy
from rl4sys_zmq.policies.folder import encode_policy, write_policy
from rl4sys_zmq.testing import FakeAlgorithm

register_algorithm("LOGGED", FakeAlgorithm.factory(steps_per_update=8))


class Kept:
    """A logger that keeps all calls."""

    def __init__(self) -> None:
        self.run: RunInfo | None = None
        self.closed = 0
        self.figures: list[tuple[str, int, Mapping[str, float]]] = []
        self.events: dict[str, Mapping[str, Any]] = {}
        self.versions: dict[str, int] = {}

    def open(self, run: RunInfo) -> None:
        self.run = run

    def scalars(self, client_id: str, step: int, values: Mapping[str, float], at_unix_s: float) -> None:
        self.figures.append((client_id, step, values))

    def event(self, name: str, fields: Mapping[str, Any], at_unix_s: float) -> None:
        self.events[name] = fields

    def artefact(self, client_id: str, path: Path, at_unix_s: float) -> None:
        self.versions[path.name] = read_policy(path).snapshot.version

    def close(self) -> None:
        self.closed += 1


class Raises(Kept):
    """A logger that keeps nothing."""

    def scalars(self, *arguments: Any) -> None:
        raise RuntimeError("the service is down")

    event: Any = scalars
    artefact: Any = scalars


class NeverOpen(Kept):
    """A logger that cannot be opened."""

    def open(self, run: RunInfo) -> None:
        raise PermissionError("log in first")


class Hangs(Kept):
    """A logger whose service does not answer until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def open(self, run: RunInfo) -> None:
        self.go.wait()


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, RunLogger], str]:
    known: dict[str, Any] = {}
    monkeypatch.setattr("rl4sys_zmq.learner.run.run_loggers.LOGGERS", known)

    def add(name: str, logger: RunLogger) -> str:
        known[name] = lambda: logger
        return name

    return add


def config(folder: Path, *loggers: str, **options: Any) -> LearnerConfig:
    return LearnerConfig(bind=f"ipc://{folder}/learner", run_dir=folder / "run", loggers=loggers, **options)


def train(learner: Learner) -> dict[str, Any]:
    """Train the client lab with two episodes, and return the loggers' part of the learner's status."""
    with open_agent(learner, algorithm_name="LOGGED", algorithm_parameters={"steps_per_update": 4}) as agent:
        play(agent, 8)
        play(agent, 4)
        drained(learner, agent)
    loggers: dict[str, Any] = learner.status()["loggers"]
    return loggers


def test_a_logger_gets_the_run_its_figures_events_and_final_policy(tmp_path: Path, named: Any) -> None:
    kept = Kept()
    with Learner(config(tmp_path, named("kept", kept), alarms={"webhook": "http://127.0.0.1:9/secret"})) as learner:
        assert train(learner) == {"kept": {}}
    assert kept.closed == 1 and kept.run is not None
    assert kept.run.name == "run" and kept.run.config["loggers"] == ["kept"] and "alarms" not in kept.run.config
    returns = [(step, values["charts/episodic_return"]) for _, step, values in kept.figures if "charts/episodic_return" in values]
    assert returns == [(8, 8.0), (12, 4.0)]
    logged = [event for event in read_log(tmp_path / "run") if event["event"] == "metrics"]
    scalars = [dict(values) for _, _, values in kept.figures if "charts/episodic_return" not in values]
    assert scalars == [event["scalars"] for event in logged if event["scalars"]]
    ready = kept.events["client_ready"]
    assert (ready["algorithm"], ready["parameters"]["steps_per_update"]) == ("LOGGED", 4)
    assert kept.versions == {"final": max(int(values["dist/version"]) for values in scalars if "dist/version" in values)}
    assert not (tmp_path / "run" / TENSORBOARD).exists(), "only the loggers that are named write"


def test_a_logger_gets_the_best_policy_when_it_is_found(tmp_path: Path, named: Any) -> None:
    kept = Kept()
    with Learner(config(tmp_path, named("kept", kept))) as learner:
        train(learner)
        folder, policy = newest_policy(tmp_path / "run", "lab")
        write_policy(tmp_path / "run/best/lab/policy", encode_policy(policy))
        (thread,) = learner._loggers
        thread.event("best_policy", client_id="lab", generation=1)
        until(lambda: kept.versions)
        assert kept.versions == {"best": policy.snapshot.version} and folder.exists()


def test_the_run_and_its_commit_are_the_same_after_a_restart(tmp_path: Path, named: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    monkeypatch.chdir(source)
    for command in ("init -q", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m first"):
        subprocess.run(["git", *command.split()], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    kept = Kept()
    runs = []
    name = named("kept", kept)
    for _ in range(2):
        with Learner(config(tmp_path, name)):
            until(lambda: kept.run)
        assert kept.run is not None and kept.run.commit == commit
        runs.append(kept.run.run_id)
        kept.run = None
    document = json.loads((tmp_path / "run" / "config.json").read_text())
    assert runs == [document["_comment_run"]["id"]] * 2 and document["_comment_run"]["commit"] == commit
    assert LearnerConfig.load(tmp_path / "run" / "config.json").loggers == ("kept",), "the file is still a configuration"
    assert describe_run(config(tmp_path, resume="never")).run_id != runs[0]
    monkeypatch.setenv("PATH", "")
    assert describe_run(config(tmp_path)).commit == "", "without Git"


def test_a_logger_that_raises_is_counted_and_costs_nothing(tmp_path: Path, named: Any, caplog: pytest.LogCaptureFixture) -> None:
    raises, kept = Raises(), Kept()
    with Learner(config(tmp_path, named("bad", raises), named("good", kept))) as learner:
        train(learner)
        counts = until(lambda: learner.status()["loggers"]["bad"])
    assert counts["write_errors"] >= 1 and kept.figures
    assert raises.closed == 1
    assert "logger bad: RuntimeError: the service is down (write_errors: 1)" in caplog.text
    assert "write_errors: 3)" not in caplog.text, "not each error is logged"


def test_a_logger_that_cannot_be_opened_drops_all(tmp_path: Path, named: Any, caplog: pytest.LogCaptureFixture) -> None:
    never = NeverOpen()
    with Learner(config(tmp_path, named("never", never))) as learner:
        until(lambda: "could not be opened" in caplog.text)
        counts = train(learner)["never"]
    assert counts["write_errors"] == 1 and counts["records_dropped"] > 1 and not never.figures
    assert "log in first" in caplog.text


@pytest.mark.parametrize(
    ("name", "words"), [("json:JSONDecoder", "AttributeError.*no attribute 'open'"), ("json:dumps", "TypeError.*argument: 'obj'")]
)
def test_a_class_that_is_no_logger_costs_nothing(name: str, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Learner(config(tmp_path, name)) as learner:
        until(lambda: "could not be opened" in caplog.text)
        assert learner.status()["loggers"][name]["write_errors"] == 1
    assert re.search(words, caplog.text)


def test_a_logger_that_hangs_costs_nothing(
    tmp_path: Path, named: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(record_thread, "QUEUE_RECORDS", 3)
    monkeypatch.setattr(record_thread, "FLUSH_S", 0.01)
    monkeypatch.setattr("rl4sys_zmq.learner.run.run_loggers.CLOSE_S", 0.0)
    hangs = Hangs()
    with Learner(config(tmp_path, named("hangs", hangs), shutdown_timeout_s=0.5)) as learner:
        assert train(learner)["hangs"]["records_dropped"] >= 1
    assert "logger hangs has not ended" in caplog.text and "it is too slow, or hangs" in caplog.text
    hangs.go.set()
    until(lambda: hangs.closed)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wandbb", "unknown logger 'wandbb'; valid: tensorboard, wandb, mlflow, or package.module:Class"),
        ("no_such_module:Logger", "No module named.*install what is missing"),
        ("json:NoSuchClass", "json.*no attribute 'NoSuchClass'.*correct the entry"),
        ("wandb", r"pip install 'rl4sys-zmq\[wandb\]'"),
        ("mlflow", r"pip install 'rl4sys-zmq\[mlflow\]'"),
    ],
)
def test_a_logger_that_cannot_be_used_is_an_error_before_the_start(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("wandb", "mlflow"):
        for module in [library, *(known for known in sys.modules if known.startswith(f"{library}."))]:
            monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(sys.modules, f"rl4sys_zmq.loggers.{library}_runs", raising=False)
    with raising(ConfigError, words, key="loggers"), Learner(config(tmp_path, name)):
        pass
    assert not (tmp_path / "run").exists()
    with raising(ConfigError, words, key="loggers"):
        check_buildable(config(tmp_path, name))


@pytest.mark.parametrize("value", [3, [3], "a:b:c", ["a b"], ["x:"]])
def test_a_wrong_list_of_loggers_is_refused(value: object) -> None:
    with raising(ConfigError, "loggers: expected a list of loggers, such as tensorboard", key="loggers"):
        LearnerConfig.from_mapping({"loggers": value})
    assert LearnerConfig.from_mapping({"loggers": "a.b:C"}).loggers == ("a.b:C",)


def test_a_learner_without_tensorboard_does_not_import_it(tmp_path: Path) -> None:
    python(
        "-c",
        "import sys\nsys.modules['tensorboard'] = None\nfrom rl4sys_zmq.learner import Learner, LearnerConfig\n"
        f"with Learner(LearnerConfig(bind='inproc://a', run_dir={str(tmp_path / 'run')!r}, loggers=[])): pass",
    )
    assert (tmp_path / "run" / "log.jsonl").exists()


def test_tensorboard_shows_the_names_of_clients(tmp_path: Path) -> None:
    def folder(client_id: str) -> str:
        path = _event_folder(tmp_path, client_id)
        path.mkdir(exist_ok=True)
        return path.name

    first = [folder(name) for name in ("CartPole-v1", "cartpole-v1", "CARTPOLE-v1", "luna", "a b", "..", "x" * 201)]
    assert first[:4] == ["CartPole-v1", "cartpole-v1%~0", "CARTPOLE-v1%~ff", "luna"]
    assert first[4:6] == ["a%20b", "%2E."] and first[6].startswith("xxx") and "%-" in first[6]
    assert [folder(name) for name in ("CartPole-v1", "cartpole-v1", "CARTPOLE-v1", "luna", "a b", "..", "x" * 201)] == first
    assert len({name.lower() for name in first}) == len(first)
    (tmp_path / "Mars%~1").mkdir()
    assert folder("Mars") == "Mars%~1", "the folder of an earlier version is continued"
