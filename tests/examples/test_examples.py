"""Tests of the examples. Each runs as a user would start it, several of them against a learner of this process."""

import contextlib
import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.learner import Learner, LearnerConfig

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT_S = 90.0


@pytest.fixture
def learner() -> Iterator[Learner]:
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, shutdown_timeout_s=10.0, torch_threads=1)) as learner:
        yield learner


def run(*words: object) -> str:
    """Run Python with these arguments, and return its output. Fail with the output if the program fails."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S, cwd=EXAMPLES.parent, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def start(words: Sequence[object]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=EXAMPLES.parent
    )


def interrupted(copy: subprocess.Popen[str]) -> str:
    """Send Ctrl+C to a program, and return its output. All processes that hold its pipe must end, without a traceback."""
    copy.send_signal(signal.SIGINT)
    try:
        out, err = copy.communicate(timeout=LIMIT_S)
    finally:
        copy.kill()
    assert copy.returncode == 130, err
    assert "Traceback" not in err
    return out


def test_lunar_lander_feeds_the_learner(learner: Learner) -> None:
    pytest.importorskip("Box2D")
    flags = ["--number-of-iterations", 3, "--number-of-moves", 80, "--client-id", "moon", "--address", learner.address]
    flags += ["--render", "False", "--debug"]  # as programs for RL4Sys are started
    out = run(EXAMPLES / "lunar_lander.py", *flags)
    assert "episodes     3" in out
    client = learner.status()["clients"]["moon"]
    assert client["algorithm"] == "PPO"
    assert client["accepted"] >= 3
    assert client["verdicts"]["refused"] == client["verdicts"]["quarantined"] == 0


def test_the_bandit_learns_when_to_compress_and_values_another_rule_from_its_log(learner: Learner) -> None:
    out = run(EXAMPLES / "bandit.py", "--requests", 1200, "--address", learner.address)
    number = r"([+-]\d+\.\d\d)"
    quarters = re.findall(rf"log of the cost {number}; always level 0 {number}", out)
    assert len(quarters) == 4 and float(quarters[-1][0]) < float(quarters[-1][1]), out
    found = re.search(rf"from the log alone: {number} \(standard error (\d+\.\d\d)\).* in truth {number}", out)
    assert found is not None, out
    value, error, truth = map(float, found.groups())
    assert abs(value - truth) < 5 * error, out
    client = learner.status()["clients"]["compression"]
    assert client["verdicts"]["trained"] > 0 and not client["verdicts"]["quarantined"]


@pytest.mark.parametrize(("flags", "clients"), [([], ["agent_0", "agent_1", "agent_2"]), (["--shared"], ["team"])])
def test_agents_of_pettingzoo_have_a_policy_each_or_share_one(learner: Learner, flags: list[str], clients: list[str]) -> None:
    pytest.importorskip("mpe2")
    given = ["--episodes", 10, "--steps-per-update", 100, "--address", learner.address, *flags]
    out = run(EXAMPLES / "pettingzoo_parallel.py", *given)
    assert "episode 10: mean return of an agent" in out
    learner.drain(timeout_s=30.0)
    found = learner.status()["clients"]
    assert sorted(found) == clients
    steps = 25 * 10 * 3 // len(clients)
    for client in found.values():
        assert client["steps"] == steps and client["version"] >= 1
        assert client["verdicts"]["refused"] == client["verdicts"]["quarantined"] == 0


def test_lunar_lander_waits_for_its_learner_and_ctrl_c_ends_it() -> None:
    pytest.importorskip("Box2D")
    copy = start([EXAMPLES / "lunar_lander.py", "--address", "tcp://127.0.0.1:1"])
    assert copy.stdout is not None
    said, asked = copy.stdout.readline(), time.monotonic()
    interrupted(copy)
    assert "waiting for the learner at tcp://127.0.0.1:1" in said
    assert time.monotonic() - asked < 10.0  # two seconds on an idle machine


def test_ctrl_c_ends_a_running_lunar_lander(learner: Learner) -> None:
    pytest.importorskip("Box2D")
    copy = start([EXAMPLES / "lunar_lander.py", "--address", learner.address])
    try:
        learner.wait(client_id="lunar_lander", version=1, timeout_s=LIMIT_S)  # it has sent 4096 steps, and is sending more
    finally:
        out = interrupted(copy)
    assert "episodes" in out  # the last line is a summary


def test_the_lunar_configuration_is_in_rl4syss_form() -> None:
    given = json.loads((EXAMPLES / "luna_conf.json").read_text())
    theirs = {"client_id", "algorithm_name", "algorithm_parameters", "act_limit", "max_traj_length", "type"}
    assert theirs | {"train_server_address", "send_frequency"} <= set(given)
    config = AgentConfig.load(EXAMPLES / "luna_conf.json", client_id="other", seed=7)
    assert (config.client_id, config.seed, config.algorithm_parameters["seed"]) == ("other", 7, 0)
    assert config.overflow == "wait"


WITHOUT_TORCH = """
import runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
heavy = {"torch", "gymnasium", "tensorboard", "matplotlib"} & set(sys.modules)
assert not heavy, heavy
"""


def test_the_edge_script_runs_without_torch_and_gymnasium(learner: Learner) -> None:
    flags = ["--address", learner.address, "--steps", 4800, "--period-ms", 0]
    out = run("-c", WITHOUT_TORCH, EXAMPLES / "edge_script.py", *flags)
    assert len(re.findall(r"mean error \d", out)) == 2
    client = learner.status()["clients"]["heating"]
    assert client["accepted"] >= 1
    assert client["verdicts"]["refused"] == client["verdicts"]["quarantined"] == 0


def test_the_edge_script_goes_on_without_its_learner() -> None:
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, shutdown_timeout_s=10.0, torch_threads=1)) as learner:
        copy = start([EXAMPLES / "edge_script.py", "--address", learner.address, "--steps", 9_600, "--period-ms", 0.1])
        assert copy.stdout is not None
        assert "policy version" in copy.stdout.readline()
    out, err = copy.communicate(timeout=LIMIT_S)
    assert copy.returncode == 0, err
    assert "minute 9600" in out
    assert "joining" in out  # it tried to join the learner meanwhile


def test_the_edge_script_is_short() -> None:
    assert len((EXAMPLES / "edge_script.py").read_text().splitlines()) < 60


def test_remote_environments_feed_the_trainer_with_terminal_transitions_too() -> None:
    pytest.importorskip("gymnasium")
    count = 2
    out = run(EXAMPLES / "remote_envs.py", "--count", count, "--episodes", 12)
    assert f"{count} environments at tcp://" in out
    found = re.search(r"transitions (\d+), of them terminal (\d+), truncated (\d+); updates (\d+)", out)
    assert found is not None, out
    transitions, terminal, truncated, updates = map(int, found.groups())
    assert terminal > 0
    assert terminal + truncated == 12 * count  # the end of every episode of every explorer reached the trainer
    assert updates == max(0, transitions - 127)


@pytest.mark.parametrize("servers", [1, 2])
def test_remote_environments_can_run_elsewhere(servers: int) -> None:
    """One server of two environments, or two servers of one."""
    pytest.importorskip("gymnasium")
    port = free_ports(2)
    serve = ["-m", "rl4sys_zmq.cli.actor", "serve-env", "--env", "CartPole-v1", "--count", 2 // servers, "--port"]
    environments = [start([*serve, port + i]) for i in range(servers)]
    try:
        out = run(EXAMPLES / "remote_envs.py", "--count", 2, "--episodes", 3, "--host", "127.0.0.1", "--port", port)
        assert f"2 environments at tcp://127.0.0.1:{port}, tcp://127.0.0.1:{port + servers - 1}" in out
        assert "episodes 6" in out
    finally:
        for environment in environments:
            environment.send_signal(signal.SIGINT)
            environment.communicate(timeout=LIMIT_S)


def free_ports(count: int) -> int:
    for first in random.sample(range(10_000, 32_000, count), 400):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    pytest.skip("no free ports in a row")


def test_ctrl_c_ends_remote_environments_and_all_of_its_processes() -> None:
    pytest.importorskip("gymnasium")
    copy = start([EXAMPLES / "remote_envs.py", "--count", 2, "--episodes", 100_000])
    assert copy.stdout is not None
    said, out = copy.stdout.readline(), interrupted(copy)
    assert "2 environments at" in said and "transitions" in out
