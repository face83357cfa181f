"""Tests of the evaluation of a client's policy: its options, its thread and process, and the best policy that it keeps."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.children import is_there

from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.config import EvaluationConfig, LearnerConfig
from rl4sys_zmq.errors import Closed, ConfigError
from rl4sys_zmq.learner import evaluation
from rl4sys_zmq.learner.evaluation import MAX_FAILURES, EvaluationProcess, PolicyEvaluator
from rl4sys_zmq.learner.gateway.evaluators import PolicyEvaluators
from rl4sys_zmq.learner.run import stored_policies
from rl4sys_zmq.learner.run.stored_policies import EVALUATION, BestPolicyFolder, EvaluationRecord
from rl4sys_zmq.ops.episodes import answer
from rl4sys_zmq.policies import PolicyOrigin, StoredPolicy, read_policy
from rl4sys_zmq.policies.folder import encode_policy, write_policy
from rl4sys_zmq.policies.mlp import mlp_spec
from rl4sys_zmq.private import write_folder
from rl4sys_zmq.values import BoxSpace, DiscreteSpace, PolicySnapshot
from rl4sys_zmq.weights import digest

WAIT_S = 60.0


def policy(version: int = 0, size: int = 4, steps: int = 0) -> StoredPolicy:
    """Return a random policy for CartPole, or for observations of another size."""
    spec = mlp_spec(BoxSpace((size,)), DiscreteSpace(2), "categorical", (4,))
    flat = np.random.default_rng(version).normal(size=spec.size).astype(np.float32)
    origin = PolicyOrigin(client_id="pole", algorithm_name="PPO", updates=version, steps=steps, saved_unix_s=0.0)
    return StoredPolicy(spec, PolicySnapshot(7, version, digest(flat, b""), flat, b""), origin)


def record(version: int, mean: float, **changes: Any) -> EvaluationRecord:
    made = EvaluationRecord(
        generation=7,
        version=version,
        steps=100 * version,
        updates=version,
        env={"id": "CartPole-v1"},
        seed=0,
        episodes=2,
        mean_return=mean,
        min_return=mean - 1,
        max_return=mean + 1,
        mean_length=mean,
        evaluated_unix_s=1.0,
    )
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "env"),
        ({"env": 3}, "env: expected text"),
        ({"env": {"gravity": 1.0}}, "env: expected the ID of an environment, or a mapping with id"),
        ({"env": {"id": "CartPole-v1", "since": date(2026, 1, 2)}}, "env: expected arguments .* JSON can hold .*date"),
        ({"env": {"id": "CartPole-v1", "sizes": np.zeros(2)}}, "env: expected arguments .* JSON can hold .*ndarray"),
        ({"env": "CartPole-v1", "every_versions": 2, "every_steps": 2}, "exclude each other"),
        ({"env": "CartPole-v1", "every_versions": 0}, "every_versions: expected an integer from 1"),
        ({"env": "CartPole-v1", "episodes": 0}, "episodes: expected an integer from 1"),
        ({"env": "CartPole-v1", "timeout_s": 0}, "timeout_s: expected a number above 0"),
        ({"env": "CartPole-v1", "period": 3}, "period"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        EvaluationConfig.from_mapping(options)


def test_the_first_version_of_each_period_is_due() -> None:
    options = EvaluationConfig(env={"id": "CartPole-v1", "max_episode_steps": 9})
    assert options.make_arguments == {"id": "CartPole-v1", "max_episode_steps": 9}
    assert [options.period(version, 0) for version in (0, 9, 10, 25)] == [0, 0, 1, 2]
    by_steps = EvaluationConfig(env="CartPole-v1", every_steps=100)
    assert [by_steps.period(1, steps) for steps in (0, 99, 100)] == [0, 0, 1]
    assert EvaluationConfig.from_mapping(by_steps.to_json()) == by_steps


def test_a_tuple_in_the_arguments_is_the_list_that_a_later_start_reads(tmp_path: Path) -> None:
    options = EvaluationConfig(env={"id": "CartPole-v1", "sizes": (1, 2)})
    assert options.make_arguments == {"id": "CartPole-v1", "sizes": [1, 2]}
    BestPolicyFolder(tmp_path, "pole").offer(policy(1), record(1, 500.0, env=options.make_arguments))
    found = BestPolicyFolder(tmp_path, "pole").record
    assert found is not None and found.comparable(record(2, 10.0, env=options.make_arguments))


def test_the_best_policy_is_kept_and_known_to_the_next_start(tmp_path: Path) -> None:
    best = BestPolicyFolder(tmp_path, "pole")
    assert best.offer(policy(1), record(1, 10.0))
    assert not best.offer(policy(2), record(2, 10.0)), "an equal one does not replace it"
    assert best.offer(policy(3), record(3, 11.0))
    again = BestPolicyFolder(tmp_path, "pole")
    assert again.record == best.record == record(3, 11.0)
    assert read_policy(again.policy).snapshot.version == 3
    assert not again.offer(policy(4), record(4, 10.5))
    assert sorted(path.name for path in again.policy.parent.iterdir()) == ["policy"]
    with FrozenAgent(again.policy) as agent:
        assert agent.version == 3


def test_another_evaluation_is_not_compared(tmp_path: Path) -> None:
    best = BestPolicyFolder(tmp_path, "pole")
    best.offer(policy(1), record(1, 500.0))
    assert best.offer(policy(2), record(2, -100.0, env={"id": "Pendulum-v1"}))


def test_an_abandoned_best_policy_is_not_compared_and_not_deleted(tmp_path: Path) -> None:
    best = BestPolicyFolder(tmp_path, "pole")
    best.abandon()
    best.offer(policy(1), record(1, 500.0))
    best.abandon()
    assert BestPolicyFolder(tmp_path, "pole").record is None
    (aside,) = best.policy.parent.iterdir()
    assert read_policy(aside).snapshot.version == 1


@pytest.fixture
def best(tmp_path: Path) -> BestPolicyFolder:
    """Return a folder in which version 1 is the best policy."""
    folder = BestPolicyFolder(tmp_path, "pole")
    folder.offer(policy(1), record(1, 10.0))
    return folder


@pytest.mark.parametrize("function", ["write_folder", "exchange_paths"])
def test_an_end_in_the_middle_leaves_the_old_policy(
    best: BestPolicyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:

    def end(folder: Path, *rest: Any) -> None:
        if function == "write_folder":
            write_folder(folder, {"spec.json": b"half"})
        raise OSError("the process ends here")

    with monkeypatch.context() as patch:
        patch.setattr(stored_policies, function, end)
        with pytest.raises(OSError, match="ends here"):
            best.offer(policy(2), record(2, 20.0))
    again = BestPolicyFolder(tmp_path, "pole")
    assert again.record == record(1, 10.0) and read_policy(again.policy).snapshot.version == 1
    assert again.offer(policy(3), record(3, 30.0)) and read_policy(again.policy).snapshot.version == 3


def test_an_exchange_without_the_system_call_is_completed_at_the_next_start(best: BestPolicyFolder, tmp_path: Path) -> None:
    best.policy.rename(best.policy.with_name(".policy.old"))
    assert BestPolicyFolder(tmp_path, "pole").record == record(1, 10.0)
    assert read_policy(best.policy).snapshot.version == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"seal": "0"}'])
def test_a_damaged_record_counts_as_none(best: BestPolicyFolder, tmp_path: Path, content: bytes) -> None:
    (best.policy / EVALUATION).write_bytes(content)
    again = BestPolicyFolder(tmp_path, "pole")
    assert again.record is None
    assert again.offer(policy(2), record(2, -5.0)) and read_policy(again.policy).snapshot.version == 2


class Results:
    """The results of an evaluator, and the replies of its fake process. The process waits until a reply is available."""

    def __init__(self) -> None:
        self.records: list[tuple[int, float, bool]] = []
        self.failures: list[str] = []
        self.arrived = threading.Semaphore(0)
        self.asked = threading.Semaphore(0)
        self.replies: list[Any] = []
        self.ready = threading.Semaphore(0)

    def on_result(self, client_id: str, found: EvaluationRecord, kept: bool) -> None:
        self.records.append((found.version, found.mean_return, kept))
        self.arrived.release()

    def on_failure(self, client_id: str, text: str) -> None:
        self.failures.append(text)
        self.arrived.release()

    def reply(self, *replies: Any) -> None:
        """Let the process give these replies, one for each request."""
        self.replies += replies
        self.ready.release(len(replies))

    def wait(self) -> None:
        assert self.arrived.acquire(timeout=WAIT_S)


def returns(*values: float) -> dict[str, Any]:
    return {"returns": list(values), "lengths": [1] * len(values), "not_finite": 0}


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Results:
    made = Results()

    class Process:
        def __init__(self, plugins: Any, stopping: threading.Event) -> None:
            self.stopping = stopping

        def ask(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
            read_policy(request["policy"])
            made.asked.release()
            while not made.ready.acquire(timeout=0.01):
                if self.stopping.is_set():
                    raise Closed("stopped")
            reply = made.replies.pop(0)
            if isinstance(reply, Exception):
                raise reply
            return dict(reply)

        def close(self) -> None:
            pass

    monkeypatch.setattr(evaluation, "EvaluationProcess", Process)
    return made


@pytest.fixture
def start(results: Results, tmp_path: Path) -> Iterator[Callable[[], PolicyEvaluator]]:
    started: list[PolicyEvaluator] = []

    def make() -> PolicyEvaluator:
        options = EvaluationConfig(env="CartPole-v1", every_versions=1, episodes=2)
        made = PolicyEvaluator("pole", options, LearnerConfig(run_dir=tmp_path), results.on_result, results.on_failure)
        made.start()
        started.append(made)
        return made

    yield make
    for evaluator in started:
        evaluator.stop()
        assert evaluator.join(WAIT_S)
        evaluator.raise_if_dead()


def test_versions_that_become_due_meanwhile_are_skipped(start: Callable[[], PolicyEvaluator], results: Results) -> None:
    evaluator = start()
    for _ in range(2):
        evaluator.offer(policy(0))  # a version is due once
    assert results.asked.acquire(timeout=WAIT_S)
    for version in (1, 2, 3):
        evaluator.offer(policy(version, steps=10 * version))
    assert evaluator.report()["busy_s"] >= 0.0
    results.reply(returns(4.0, 6.0), returns(3.0, 5.0))
    results.wait()
    results.wait()
    assert results.records == [(0, 5.0, True), (3, 4.0, False)]
    report = evaluator.report()
    assert (report["evaluations"], report["skipped"], report["version"], report["mean_return"]) == (2, 2, 3, 4.0)
    assert (report["best_version"], report["best_return"], report["error"]) == (0, 5.0, "")
    assert read_policy(report["best"]).snapshot.version == 0


def test_failures_in_a_row_end_the_evaluation(start: Callable[[], PolicyEvaluator], results: Results) -> None:
    evaluator = start()
    not_finite = {**returns(float("nan"), 1.0), "not_finite": 0}
    results.reply({"error": "no such environment"}, returns(1.0, 1.0), ConnectionError("its process has ended"), not_finite)
    results.reply(returns(1.0) | {"not_finite": 3})
    for version in range(5):
        evaluator.offer(policy(version))
        results.wait()
        assert results.asked.acquire(timeout=WAIT_S)
    assert len(results.failures) == 4 and results.records == [(1, 1.0, True)]
    assert "no further version is evaluated" in results.failures[MAX_FAILURES]
    assert evaluator.report()["error"] == results.failures[-1]
    evaluator.offer(policy(9))
    assert not results.asked.acquire(timeout=0.05)


def test_an_unexpected_exception_is_a_failure_and_the_thread_goes_on(
    start: Callable[[], PolicyEvaluator], results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: BestPolicyFolder) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "best"))

    with monkeypatch.context() as patched:
        patched.setattr(BestPolicyFolder, "_read", refuse)
        evaluator = start()
        results.wait()
        assert results.failures[0].startswith("PermissionError: ") and "best" in results.failures[0]
    results.reply(TypeError("not of JSON"), returns(1.0, 1.0))
    for version in range(2):
        evaluator.offer(policy(version))
        results.wait()
    assert results.failures[1:] == ["TypeError: not of JSON"] and results.records == [(1, 1.0, True)]
    assert evaluator.alive and evaluator.report()["best_version"] == 1


def test_a_best_policy_that_cannot_be_abandoned_is_a_failure(
    start: Callable[[], PolicyEvaluator], results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: BestPolicyFolder) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(BestPolicyFolder, "abandon", refuse)
    evaluator = start()
    results.reply(returns(1.0, 1.0))
    evaluator.offer(policy(0))
    results.wait()
    evaluator.forget()
    assert evaluator.join(WAIT_S)
    assert "Permission denied" in results.failures[0]


def test_stop_and_forget_end_an_evaluation_in_progress(
    start: Callable[[], PolicyEvaluator], results: Results, tmp_path: Path
) -> None:
    evaluator = start()
    results.reply(returns(1.0, 1.0))
    evaluator.offer(policy(0))
    results.wait()
    assert results.asked.acquire(timeout=WAIT_S)
    evaluator.offer(policy(1))
    assert results.asked.acquire(timeout=WAIT_S)
    evaluator.forget()
    assert evaluator.join(WAIT_S)
    assert BestPolicyFolder(tmp_path, "pole").record is None


@pytest.fixture
def request_with(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Write a policy, and return a function that makes a request to evaluate it."""
    pytest.importorskip("gymnasium")
    write_policy(tmp_path / "policy", encode_policy(policy(1)))
    env = {"id": "CartPole-v1", "max_episode_steps": 20}
    return lambda **changes: {"policy": str(tmp_path / "policy"), "env": env, "episodes": 3, "seed": 5, **changes}


def test_the_same_request_plays_the_same_episodes(request_with: Callable[..., dict[str, Any]]) -> None:
    environments: dict[str, Any] = {}
    first, second = (answer(request_with(), environments) for _ in range(2))
    assert first == second and len(first["returns"]) == 3 and max(first["lengths"]) <= 20
    assert first["returns"] == [float(length) for length in first["lengths"]] and list(environments) == ["CartPole-v1"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": {"id": "NoSuchEnv-v0"}}, "NoSuchEnv"),
        ({"env": {"id": "CartPole-v1", "no_such_argument": 1}}, "no_such_argument"),
        ({"env": {"id": "Pendulum-v1"}}, "the policy has the observation_space"),
        ({"policy": "/nowhere"}, "no such folder"),
    ],
)
def test_a_request_that_cannot_be_played_is_answered_with_the_reason(
    request_with: Callable[..., dict[str, Any]], changes: dict[str, Any], words: str
) -> None:
    assert words in answer(request_with(**changes), {})["error"]


def test_an_environment_that_raised_is_closed_and_made_again(
    request_with: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    environments: dict[str, Any] = {}
    request = request_with()
    good = answer(request, environments)
    broken = environments["CartPole-v1"]
    calls: list[str] = []

    def fail(name: str) -> None:
        calls.append(name)
        raise ValueError(name)

    monkeypatch.setattr(broken, "step", lambda action: fail("step"))
    monkeypatch.setattr(broken, "close", lambda: fail("close"))
    assert answer(request, environments)["error"] == "the environment raised ValueError: step"
    assert calls == ["step", "close"] and environments == {}
    assert answer(request, environments) == good


def test_the_process_answers_and_its_end_is_named(request_with: Callable[..., dict[str, Any]]) -> None:
    with EvaluationProcess((), threading.Event()) as process:
        assert process.ask(request_with(), WAIT_S) == answer(request_with(), {})
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ConnectionError, match="SIGKILL"):
            process.ask(request_with(), WAIT_S)


HANGING = """
import subprocess, time
import gymnasium

class Hanging(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        with open({file!r}, "w") as file:
            print(subprocess.Popen(["sleep", "977"]).pid, file=file)
        time.sleep(977)

gymnasium.register("Hanging-v0", Hanging)
"""


def test_an_evaluation_that_hangs_is_killed_with_what_it_has_started(
    request_with: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path / "started"
    (tmp_path / "hanging_env.py").write_text(HANGING.format(file=str(started)))
    monkeypatch.syspath_prepend(tmp_path)
    request = request_with(env={"id": "Hanging-v0"})
    with EvaluationProcess(("hanging_env",), threading.Event()) as process:
        process._send(request)
        while not (started.exists() and started.read_text().endswith("\n")):
            threading.Event().wait(0.01)
        with pytest.raises(ConnectionError, match=r"3 episodes took more than 0.01 s, and its process was killed"):
            process.ask(request, 0.01)
    while is_there(int(started.read_text())):
        threading.Event().wait(0.01)


def test_the_process_ends_without_a_word_when_the_learner_closes_the_socket_in_an_episode(
    request_with: Callable[..., dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    process = EvaluationProcess((), threading.Event())
    process._send(request_with(episodes=100))
    process.close()
    assert "Traceback" not in capfd.readouterr().err


def test_the_best_policy_of_an_earlier_start_is_put_aside_when_its_client_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The present start has evaluated no version of the client, so it has no evaluator for it."""
    best = BestPolicyFolder(tmp_path, "pole")
    best.policy.mkdir(parents=True)
    sink: Any = None
    evaluators = PolicyEvaluators(LearnerConfig(run_dir=tmp_path), sink, lambda _: None, lambda _: None)

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", refuse)
        evaluators.forget("pole")
    assert "its best policy cannot be renamed" in caplog.text and best.policy.exists()
    evaluators.forget("pole")
    evaluators.forget("another")
    (aside,) = best.policy.parent.iterdir()
    assert aside.name.startswith("policy.abandoned-")
