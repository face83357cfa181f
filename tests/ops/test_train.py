"""`train`: the steps, the policy and the files that one call gives, and the ways in which it ends."""

import importlib.util
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from kit import PATIENCE_S, raising

from rl4sys_zmq import FrozenAgent, TrainResult, train
from rl4sys_zmq.errors import ClientFailed, ConfigError
from rl4sys_zmq.learner import register_algorithm
from rl4sys_zmq.ops.curves import read_curves
from rl4sys_zmq.testing import FakeAlgorithm

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("torch")
Box, Discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete

SMALL = {"steps_per_update": 64, "rollout_length": 16, "minibatch_size": 64, "update_epochs": 2}


class Line(gymnasium.Env):  # type: ignore[name-defined,misc]
    """An environment whose observation counts the steps of an episode of seven steps. Action 1 has the reward 1."""

    observation_space: Any = Box(0.0, 10.0, (1,))
    action_space: Any = Discrete(2)
    at = 0
    closed = 0

    def _see(self) -> Any:
        return np.array([self.at], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = 0
        return self._see(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return self._see(), float(np.mean(action)), self.at == 7, False, {}

    def close(self) -> None:
        type(self).closed += 1


class Picture(Line):
    """The same with images."""

    observation_space = Box(0, 255, (36, 36, 3), np.uint8)

    def _see(self) -> Any:
        return np.full((36, 36, 3), self.at, np.uint8)


class Tree(Line):
    """The same with a dict of observations."""

    observation_space = gymnasium.spaces.Dict({"a": Box(0.0, 10.0, (1,)), "b": Discrete(8)})

    def _see(self) -> Any:
        return {"a": np.array([self.at], np.float32), "b": self.at}


class Handle(Line):
    """The same with continuous actions."""

    action_space = Box(-1.0, 1.0, (2,))


class Broken(Line):
    """The same, but the fifth step fails."""

    def step(self, action: Any) -> Any:
        if self.at == 4:
            raise ZeroDivisionError("the fifth step")
        return super().step(action)


def small(env: Any = Line, steps: int = 200, **options: Any) -> TrainResult:
    return train(env, **{"steps": steps, "parameters": SMALL, **options})


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (Line, {}),
        (Line, {"actors": 3}),
        (Line, {"steps": 1}),
        (Line, {"steps": 2, "actors": 3}),
        (Picture, {"parameters": {**SMALL, "network": "cnn"}}),
        (Tree, {}),
        (Handle, {}),
        (Handle, {"algorithm": "SAC", "parameters": {"learning_starts": 50, "hidden_sizes": [8]}}),
        ("CartPole-v1", {"steps": 203}),
    ],
)
def test_the_learner_observes_each_step_of_the_actors_once(env: Any, options: dict[str, Any]) -> None:
    steps = options.get("steps", 200)
    result = small(env, **options)
    assert result.status["steps"] == steps and result.status["pending"] == 0
    assert result.status["updates"] > 0 and result.status["version"] > 0
    assert {name for name, count in result.status["verdicts"].items() if count} == {"trained"}
    assert result.run_dir is None


def test_the_returns_of_unfinished_episodes_are_not_counted() -> None:
    result = small(steps=8 * 10)
    assert result.status["episodes"] == 8  # 80 steps in 8 environments: an episode of 7 steps in each, and 3 steps more


def test_one_actor_gives_the_same_policy_again_whatever_runs_beside_it() -> None:
    digests = {small("CartPole-v1", seed=3).status["digest"]}
    with ThreadPoolExecutor(2) as pool:
        digests |= {result.status["digest"] for result in pool.map(lambda _: small("CartPole-v1", seed=3), range(2))}
    assert len(digests) == 1
    assert small("CartPole-v1", seed=4).status["digest"] not in digests


def test_the_policy_is_evaluated_saved_and_read(tmp_path: Path) -> None:
    result = small(steps=2000)
    found = result.evaluate(3)
    assert found.lengths == [7, 7, 7] and found.mean == np.mean(found.returns) and found.std == 0.0
    for _ in range(2):  # the second policy replaces the first
        folder = result.save(tmp_path / "policy")
    with FrozenAgent(folder) as agent:
        assert f"{agent.digest:016x}" == result.status["digest"]
        assert agent.origin.steps == 2000 and agent.origin.client_id == "Line" and agent.origin.algorithm_name == "PPO"
        _, action = agent.request_for_action(None, [0.0])
        assert action.act == result.policy.act(np.zeros(1, np.float32), None, cast(Any, np.random.default_rng(0)), False)[1]


def test_an_environment_that_is_given_stays_open_and_others_are_closed() -> None:
    Line.closed = 0
    small(Line())
    assert Line.closed == 0
    result = small(Line)
    assert Line.closed == 1 + 8  # one to see the spaces, and those of the actor
    result.evaluate(1)
    assert Line.closed == 10


def test_a_run_directory_has_what_the_commands_read_and_a_second_call_continues(tmp_path: Path) -> None:
    small(run_dir=tmp_path)
    result = small(run_dir=tmp_path, steps=100)
    assert result.status["steps"] == 300 and result.run_dir == tmp_path
    (curve,) = read_curves(tmp_path)
    assert curve.client_id == "Line" and curve.returns.size
    assert {path.name for path in tmp_path.iterdir()} >= {"config.json", "log.jsonl", "checkpoints", "tensorboard"}


def test_actors_in_processes_take_the_steps_too(tmp_path: Path) -> None:
    seen: list[Mapping[str, Any]] = []
    options: dict[str, Any] = {"processes": True, "run_dir": tmp_path, "evaluate_every": 50, "callbacks": [seen.append]}
    result = small("CartPole-v1", 203, actors=2, **options)
    assert result.status["steps"] == 203
    assert {path.name for path in tmp_path.glob("actor-*.log")} == {"actor-0.log", "actor-1.log"}
    assert "evaluator" in seen[-1]
    with pytest.raises(ConfigError, match=r"an actor process ended .*Missing-v0|Missing"):
        small("kit:Missing-v0", run_dir=tmp_path, processes=True)


def test_callbacks_see_each_change_and_can_end_the_training() -> None:
    seen: list[int] = []

    def stop(status: Mapping[str, Any]) -> bool:
        seen.append(status["steps"])
        return seen[-1] < 500

    result = small(steps=10**9, callbacks=[stop])
    assert 500 <= result.status["steps"] < 10**6 and seen == sorted(seen)

    def fail(status: Mapping[str, Any]) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        small(steps=10**9, callbacks=[fail])


@pytest.mark.parametrize("actors", [1, 2])
def test_the_error_of_an_environment_comes_out_with_its_traceback(actors: int) -> None:
    with pytest.raises(ZeroDivisionError, match="the fifth step") as caught:
        small(Broken, actors=actors)
    assert caught.traceback[-1].name == "step"


@pytest.mark.parametrize("steps", [12, 10**6])
def test_an_algorithm_that_fails_is_named(steps: int) -> None:
    """With 12 steps, it fails after the actor has ended, in the incomplete batch."""
    register_algorithm("FAILS_ONCE", FakeAlgorithm.factory(steps_per_update=8, fail_after_updates=1))
    with pytest.raises(ClientFailed, match="the fake algorithm fails"):
        train(Line, "FAILS_ONCE", steps=steps)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "PPPO"}, "did you mean 'PPO'"),
        ({"parameters": {"learning_rat": 1}}, "did you mean 'learning_rate'"),
        ({"algorithm": "TD3", "parameters": {}}, "TD3 needs a Box action space"),
        ({"env": "CartPol-v1"}, "CartPole"),
        ({"env": 3}, "expected an ID"),
        ({"env": lambda: 3}, "creates a int"),
        ({"env": gymnasium.make_vec("CartPole-v1", 2)}, "expected an ID"),
        ({"env": Line(), "actors": 2}, "one environment serves one actor"),
        ({"steps": 0}, "steps: expected an integer"),
        ({"seed": -1}, "seed: expected"),
        ({"actors": 0}, "actors: expected"),
        ({"processes": True}, "needs the ID"),
        ({"evaluate_every": 5}, "needs the ID"),
        ({"env": "CartPole-v1", "processes": True}, "give run_dir"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_starts(options: dict[str, Any], words: str) -> None:
    threads = threading.active_count()
    with pytest.raises(ConfigError, match=words):
        small(**{"env": Line, **options})
    assert threading.active_count() == threads


def test_a_factory_that_returns_one_environment_twice_is_refused() -> None:
    one = Line()
    with raising(ConfigError, "returns the same environment twice", key="env"):
        small(lambda: one)


SCRIPT = """
from rl4sys_zmq import train
print("ready", flush=True)
result = train("CartPole-v1", steps=STEPS, seed=1)
print("steps", result.status["steps"], flush=True)
"""


def test_ctrl_c_ends_a_script_without_a_guard(tmp_path: Path) -> None:
    """The script has no ``if __name__ == "__main__"``."""
    script = tmp_path / "script.py"
    told = "callbacks=[lambda status: print('at', status['steps'], flush=True)], "
    script.write_text(SCRIPT.replace("seed=1", f"{told}seed=1").replace("STEPS", "10**9"))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert next(line for line in process.stdout if line.startswith("at"))
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.stderr.read().rstrip().endswith("KeyboardInterrupt")
        assert process.wait(PATIENCE_S) == -signal.SIGINT


def test_a_terminal_shows_the_steps_and_a_pipe_shows_nothing(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("STEPS", "600"))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("steps 600", "")
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen, ThreadPoolExecutor(1) as pool:
        shown = pool.submit(_read_all, screen)
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
        subprocess.run([sys.executable, str(script)], stdout=subprocess.DEVNULL, stderr=theirs, check=True, env=environment)
        os.close(theirs)
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.result(PATIENCE_S).decode())
    assert re.search(r"CartPole-v1 .*600 of 600 steps .*left 0:00:00", text), text


def _read_all(screen: Any) -> bytes:
    data = b""
    while True:
        try:
            part = screen.read(4096)
        except OSError:  # the end of a terminal
            return data
        if not part:
            return data
        data += part


def test_the_benchmark_of_one_call_compares_both_sides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "benchmarks/one_call.py"
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location("one_call", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "one_call", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "run_peer", lambda *arguments, **options: {"seconds": 2.0, "cpu_s": 1.0, "greedy": [3.0]})
    record = tmp_path / "record.json"
    words = ["--tasks", "cartpole", "--seeds", "1", "2", "--steps", "300", "--episodes", "1", "--json", str(record)]
    monkeypatch.setattr(sys, "argv", [str(path), *words])
    module.main()
    (task,) = json.loads(record.read_text())["tasks"]
    assert (
        task["lines"] == [3, 5] and [row["theirs"] for row in task["rows"]] == [{"seconds": 2.0, "cpu_s": 1.0, "return": 3.0}] * 2
    )
    assert all(row["ours"]["seconds"] > 0 for row in task["rows"]) and len(task["seconds"]["pairs"]) == 2
