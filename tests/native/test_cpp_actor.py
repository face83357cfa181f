"""The C++ actor against a real learner: what the learner gets, and what the actor makes of its answers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.cpp_client import PROGRAMS, ROOT, Driver, DriverError, build
from kit import free_port, until, write_keys

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.learner import Learner, LearnerConfig
from rl4sys_zmq.names import new_actor_id
from rl4sys_zmq.weights import digest

from .conftest import Records

CONFIG: dict[str, Any] = {
    "client_id": "lab", "algorithm_name": "KEEPER", "train_server_address": "127.0.0.1:1",
    "algorithm_parameters": {"input_size": 4, "act_dim": 3},
}  # fmt: skip
ABSENT = "127.0.0.1:9"


def kept(records: Records, driver: Driver, steps: int) -> list[Any]:
    """Deliver the driver's segments, and return what the learner observed."""
    driver("flush", s=20.0)
    until(lambda: sum(segment.steps for segment in records.kept) >= steps)
    assert sum(segment.steps for segment in records.kept) == steps
    return records.kept


def balanced(stats: dict[str, Any]) -> bool:
    return bool(stats["submitted"] == stats["dropped_at_source"] + stats["in_actor"] + stats["refused"] + stats["accepted"])


def test_a_learner_gets_each_step_of_an_episode(driver: Driver, records: Records, address: str) -> None:
    driver.open(address)
    chosen = [driver.step(n / 10, reward=n) for n in range(11)]
    driver("end", a=chosen[-1]["a"])
    first, last = kept(records, driver, 11)
    assert (first.segment_index, last.segment_index, first.steps, last.terminated) == (0, 1, 8, True)
    assert last.episode_return == sum(range(11)) and last.episode_length == 11
    np.testing.assert_array_equal([*first.actions, *last.actions], [action["act"] for action in chosen])
    np.testing.assert_array_equal([*first.rewards, *last.rewards], np.arange(11, dtype=np.float32))
    np.testing.assert_array_equal(first.observations[:, 0], np.arange(9, dtype=np.float32) / np.float32(10))
    np.testing.assert_allclose([*first.log_probs, *last.log_probs], [action["log_prob"] for action in chosen], rtol=1e-6)
    stats = driver("stats")
    assert balanced(stats) and stats["accepted"] == stats["durable"] == 2 and stats["mean_return"] == 55.0


def test_an_end_adds_the_last_action_once(driver: Driver, records: Records, address: str) -> None:
    driver.open(address)
    for added in (True, False):
        action = driver("request", obs=[0.5] * 4)
        driver("reward", a=action["a"], reward=2.0)
        if added:
            driver("add", a=action["a"])
        assert driver("end", a=action["a"])["size"] == 1
    assert [segment.steps for segment in kept(records, driver, 2)] == [1, 1]


def test_weights_are_bit_equal_at_each_version(driver: Driver, records: Records, address: str) -> None:
    driver.open(address, algorithm_parameters={"input_size": 4, "act_dim": 3, "steps_per_update": 16})
    for version in range(1, 31):
        driver("play", steps=16, length=16)
        driver("wait", v=version, s=20.0)
        said = driver("version")
        assert said == {"version": version, "digest": digest(records.published[-1], b"")}


@pytest.mark.parametrize("swap", ["step", "episode"])
def test_new_weights_act_from_the_next_step_or_episode(driver: Driver, records: Records, address: str, swap: str) -> None:
    driver.open(address, swap=swap, algorithm_parameters={"input_size": 4, "act_dim": 3, "steps_per_update": 16})
    driver("request", t=1, obs=[0.0] * 4)
    driver("play", steps=16, length=16)
    driver("wait", v=1, s=20.0)
    assert driver("request", t=1, obs=[0.0] * 4)["version"] == (1 if swap == "step" else 0)
    assert driver("request", t=2, obs=[0.0] * 4)["version"] == 1
    assert driver("rollback") == {"rolled_back": True}
    assert driver("request", t=2, obs=[0.0] * 4)["version"] == 0


def test_masks_are_obeyed_and_recorded(driver: Driver, records: Records, address: str) -> None:
    driver.open(address)
    masks = [[n % 3 == 0, n % 3 == 1, n % 3 == 2] for n in range(6)]
    for n, mask in enumerate(masks):
        assert driver.step(n / 10, mask=list(map(float, mask)))["act"] == n % 3
    driver("end")
    (segment,) = kept(records, driver, 6)
    assert segment.masks is not None
    np.testing.assert_array_equal(segment.masks[:6], masks)
    for bad, words in (([0.0, 0.0, 0.0], "forbids all 3"), ([1.0], "has 1 elements; expected 3"), ([0.5, 1.0, 1.0], "0 and 1")):
        with pytest.raises(DriverError, match=words):
            driver("request", t=1, obs=[0.0] * 4, mask=bad)


def test_rewards_may_come_after_the_end(driver: Driver, records: Records, address: str) -> None:
    driver.open(address)
    chosen = [driver.step(n / 10, reward=None) for n in range(3)]
    driver("end", a=chosen[-1]["a"])
    assert driver("stats")["waiting_for_rewards"] == 1 and not records.kept
    for n, action in enumerate(chosen):
        driver("reward", a=action["a"], reward=n + 0.5)
    (segment,) = kept(records, driver, 3)
    np.testing.assert_array_equal(segment.rewards, [0.5, 1.5, 2.5])
    with pytest.raises(DriverError, match="queued for sending"):
        driver("reward", a=chosen[0]["a"], reward=9.0)


def test_a_segment_without_its_rewards_is_dropped_and_counted(driver: Driver, records: Records, address: str) -> None:
    driver.open(address, reward_timeout_s=0.0)
    driver.step(0.1, reward=None)
    driver("end")
    driver.step(0.2)
    driver("end")
    kept(records, driver, 1)
    stats = driver("stats")
    assert stats["dropped"] == {"reward_timeout": 1} and stats["waiting_for_rewards"] == 0 and balanced(stats)


def test_a_truncated_episode_has_its_final_observation(driver: Driver, records: Records, address: str) -> None:
    driver.open(address)
    action = driver.step(0.1)
    with pytest.raises(DriverError, match="needs finalObs"):
        driver("end", a=action["a"], truncated=True)
    driver("end", a=action["a"], truncated=True, obs=[0.9] * 4)
    (segment,) = kept(records, driver, 1)
    assert segment.truncated and not segment.terminated
    np.testing.assert_array_equal(segment.observations[1], np.full(4, 0.9, np.float32))


def test_a_done_action_ends_its_episode_at_the_next_request(driver: Driver, records: Records, address: str) -> None:
    driver.open(address)
    driver("done", a=driver.step(0.1)["a"])
    driver.step(0.2)
    driver("end")
    assert [segment.terminated for segment in kept(records, driver, 2)] == [True, True]


def test_a_skipped_action_leaves_a_gap(driver: Driver, records: Records, address: str) -> None:
    driver.open(address)
    driver.step(0.1)
    driver("request", obs=[0.2] * 4)
    driver.step(0.3)
    driver("end")
    first, second = kept(records, driver, 2)
    assert (first.segment_index, second.segment_index) == (0, 2)
    np.testing.assert_array_equal(first.observations[1], np.full(4, 0.2, np.float32))
    assert second.episode_return is None and driver("stats")["counters"]["skipped_actions"] == 1


def test_a_trajectory_shows_and_clears_its_open_steps(driver: Driver, records: Records, address: str) -> None:
    driver.open(address)
    chosen = [driver.step(n / 10) for n in range(3)]
    assert [one["act"] for one in driver("actions")] == [one["act"] for one in chosen]
    driver("clear")
    driver.step(0.7)
    driver("end")
    (segment,) = kept(records, driver, 1)
    assert segment.segment_index == 0 and driver("stats")["counters"]["cleared_steps"] == 3


def test_continuous_actions(driver: Driver, records: Records, address: str) -> None:
    driver.open(address, algorithm_parameters={"input_size": 4, "act_dim": 2, "act_limit": 0.5, "continuous": True})
    action = driver.step(0.1)
    assert len(action["floats"]) == 2 and max(map(abs, action["floats"])) <= 0.5
    assert bytes(action["bytes"]) == np.array(action["floats"], "<f4").tobytes()
    driver("end")
    assert kept(records, driver, 1)[0].actions.shape == (1, 2)


def test_equal_seeds_give_the_actions_of_a_python_actor(driver: Driver, records: Records, address: str) -> None:
    driver.open(address, actor_id="one")
    config = AgentConfig(client_id="lab", algorithm_name="KEEPER", train_server_address=address, seed=7, actor_id="two")
    with RL4SysAgent(config=config) as agent:
        traj, theirs = None, []
        for n in range(50):
            traj, action = agent.request_for_action(traj, np.full(4, n / 10, np.float32))
            theirs.append(int(action.act))
        assert [driver("request", obs=[n / 10] * 4)["act"] for n in range(50)] == theirs
        assert agent.digest == driver("version")["digest"]


def test_threads_share_an_agent(driver: Driver, records: Records, address: str) -> None:
    driver.open(address, overflow="wait")
    assert driver("play", steps=500, threads=4) == {"failed": 0}
    segments = kept(records, driver, 2000)
    places = {(segment.episode_id, segment.segment_index) for segment in segments}
    assert len(places) == len(segments) and sum(segment.terminated for segment in segments) == 100


def test_a_step_allocates_nothing(driver: Driver, records: Records, address: str) -> None:
    driver.open(address, rollout_length=4096, algorithm_parameters={"input_size": 4, "act_dim": 3, "rollout_length": 4096})
    assert driver("allocations") == {"allocated": 0}


def test_a_full_queue_drops_the_oldest(driver: Driver, records: Records, address: str) -> None:
    driver.open(ABSENT, fallback="random", connect_timeout_s=0.0)
    driver("play", steps=40)
    assert driver("stats")["submitted"] == 0 and driver("stats")["counters"]["random_actions"] == 40
    driver.open(address, queue_items=1, algorithm_parameters={"input_size": 4, "act_dim": 3, "rollout_length": 8})
    driver("play", steps=400)
    driver("flush", s=20.0)
    stats = driver("stats")
    assert balanced(stats) and stats["submitted"] == 60 and stats["in_actor"] == 0


def test_an_evaluation_sends_returns_only(driver: Driver, records: Records, address: str) -> None:
    driver.open(address, explore=False)
    acts = {driver.step(0.3)["act"] for _ in range(10)}
    driver("end")
    driver("flush", s=20.0)
    stats = driver("stats")
    assert len(acts) == 1 and stats["submitted"] == 1 and not records.kept
    until(lambda: driver("stats")["verdicts"]["evaluated"] == 1)


def test_a_baseline_acts_without_a_learner(driver: Driver) -> None:
    driver.open(ABSENT, baseline=[2.0], connect_timeout_s=0.0)
    action = driver.step(0.1)
    assert (action["act"], action["recorded"]) == (2, False)
    driver.open(ABSENT, baseline_throws=True, connect_timeout_s=0.0)
    assert driver.step(0.1)["act"] == 0
    assert driver("stats")["counters"]["baseline_errors"] == 1
    with pytest.raises(DriverError, match=r"no learner at tcp://127.0.0.1:9 within 0.2 s \(waiting for the learner to answer\)"):
        driver.open(ABSENT, connect_timeout_s=0.2)


def test_an_actor_joins_a_learner_that_comes_later(driver: Driver, records: Records) -> None:
    port = free_port()
    driver.open(f"127.0.0.1:{port}", fallback="random", connect_timeout_s=0.0)
    driver("play", steps=10)
    with Learner(LearnerConfig(bind=f"tcp://127.0.0.1:{port}", run_dir=None)):
        driver("wait", v=0, s=30.0)
        driver.step(0.1)
        driver("end")
        kept(records, driver, 1)
    assert driver("stats")["counters"]["unrecorded_actions"] == 10


def test_a_policy_that_overflows_is_rolled_back(driver: Driver, records: Records, address: str) -> None:
    driver.open(address, algorithm_parameters={"input_size": 4, "act_dim": 3, "steps_per_update": 16})
    records.constant = 3e38
    driver("play", steps=16, length=16)
    driver("wait", v=1, s=20.0)
    assert driver.step(0.1)["version"] == 0
    counters = driver("stats")["counters"]
    assert counters["policies_not_finite"] == counters["rollbacks"] == 1
    assert driver("version")["version"] == 0


def test_a_stale_policy_gives_way_to_the_baseline(driver: Driver, records: Records) -> None:
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:*", run_dir=None)) as learner:
        for how in ("baseline", "raise"):
            driver.open(learner.address, baseline=[1.0], policy_max_age_s=1e-6, on_stale=how)
            if how == "baseline":
                action = driver.step(0.1)
                assert (action["act"], action["recorded"]) == (1, False)
                assert driver("stats")["counters"]["baseline_actions"] == 1
            else:
                with pytest.raises(DriverError, match="silent for"):
                    driver("request", obs=[0.1] * 4)


def test_bad_input(driver: Driver, records: Records, address: str) -> None:
    driver.open(address)
    for observation, words in (([0.0], "has 1 elements; expected 4"), ([0.0, 0.0, 1e39, 0.0], "element 2 is not finite")):
        with pytest.raises(DriverError, match=words):
            driver("request", obs=observation)
    with pytest.raises(DriverError, match="finite in float32"):
        driver("reward", a=driver("request", obs=[0.0] * 4)["a"], reward=1e300)
    driver.open(address, on_bad_input="drop")
    good = driver.step(0.1)["act"]
    bad = driver("request", obs=[0.0])
    assert (bad["act"], bad["recorded"]) == (good, False)
    assert driver("stats")["counters"]["bad_input.ObservationError"] == 1


def test_an_action_of_another_trajectory_is_dropped_or_refused(driver: Driver, records: Records, address: str) -> None:
    for overflow in ("drop_oldest", "wait"):
        driver.open(address, overflow=overflow)
        action = driver("request", t=0, obs=[0.1] * 4)
        driver("request", t=1, obs=[0.1] * 4)
        if overflow == "wait":
            with pytest.raises(DriverError, match="in the order"):
                driver("add", t=1, a=action["a"])
            with pytest.raises(DriverError, match="no reward"):
                driver("end", t=0, a=action["a"])
        else:
            driver("add", t=1, a=action["a"])
            assert driver("stats")["counters"]["late_actions_dropped"] == 1


def test_a_forked_child_becomes_another_actor(driver: Driver, records: Records, address: str) -> None:
    driver.open(address)
    driver.step(0.1)
    child = driver("fork", steps=10)
    assert (child["status"], child["error"]) == (0, "")
    parent = driver("stats")["actor_id"]
    for name in (parent, child["actor_id"]):  # the names of Python's actors, but for process and number
        assert re.sub(r"\d+-[0-9a-f]{8}", "", name) == re.sub(r"\d+-[0-9a-f]{8}", "", new_actor_id())
    assert child["actor_id"] != parent and child["accepted"] == 2 and child["counters"]["forks"] == 1
    assert driver("fork", steps=0)["status"] == 0  # a child that never uses the agent
    driver("end")
    assert driver("stats")["in_doubt"] == 0
    kept(records, driver, 11)


def test_a_policy_cache_serves_both_languages(driver: Driver, records: Records, tmp_path: Path) -> None:
    config = {"client_id": "lab", "algorithm_name": "KEEPER", "policy_cache": str(tmp_path / "policy")}
    spaces = {"algorithm_parameters": {"input_size": 4, "act_dim": 3}}
    with Learner(LearnerConfig(bind="tcp://127.0.0.1:*", run_dir=None)) as learner:
        driver.open(learner.address, policy_cache=config["policy_cache"])
        driver("close")
        known = driver("version")["digest"]
    with RL4SysAgent(config=AgentConfig(**config, **spaces, train_server_address=ABSENT, connect_timeout_s=0.0)) as agent:  # type: ignore[arg-type]
        assert agent.digest == known
    driver.open(ABSENT, policy_cache=config["policy_cache"], connect_timeout_s=0.0)
    assert driver("version") == {"version": 0, "digest": known} and driver.step(0.1)["recorded"]
    content = (tmp_path / "policy").read_bytes()
    model = driver("model", config=json.dumps(CONFIG), bytes=list(content))
    assert model["taken"] and model["version"] == 3 and len(model["act"]) == 8
    (tmp_path / "policy").write_bytes(content[:-1])
    with pytest.raises(DriverError, match="no learner at"):
        driver.open(ABSENT, policy_cache=config["policy_cache"], connect_timeout_s=0.0)
    assert (tmp_path / "policy.refused").exists()


def test_keys(driver: Driver, records: Records, tmp_path: Path) -> None:
    write_keys(tmp_path, {"ann": ("submit", "read_weights"), "eve": ()})
    learner = Learner(LearnerConfig(bind="tcp://127.0.0.1:*", run_dir=None, keys=tmp_path))
    with learner:
        driver.open(learner.address, keys=str(tmp_path / "ann.keys"))
        driver("play", steps=20)
        kept(records, driver, 20)
        with pytest.raises(DriverError, match="refuses this actor"):
            driver.open(learner.address, keys=str(tmp_path / "eve.keys"))
    (tmp_path / "ann.keys").chmod(0o644)
    with pytest.raises(DriverError, match="chmod 600"):
        driver.open(ABSENT, keys=str(tmp_path / "ann.keys"))
    text = (tmp_path / "ann.keys").read_text()
    (tmp_path / "ann.keys").write_text("\n".join("public =" if line.startswith("public") else line for line in text.splitlines()))
    (tmp_path / "ann.keys").chmod(0o600)
    with pytest.raises(DriverError, match="public: missing or invalid"):  # and not the secret on the next line
        driver.open(ABSENT, keys=str(tmp_path / "ann.keys"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spool": "folder"}, "spool: the C\\+\\+ client keeps its queue in memory"),
        ({"relays": ["host:1"]}, "relays: the C\\+\\+ client takes its weights from the learner"),
        ({"inference": "remote"}, "inference: .* give local"),
        ({"sidecar": True}, "sidecar: "),
        ({"report_system": True}, "report_system: "),
        ({"image_codec": "png"}, "image_codec: "),
        ({"overflow": "block"}, "overflow: expected 'drop_oldest' or 'wait', not 'block'"),
        ({"send_frequency": 0}, "send_frequency: expected an integer from 1 to 8192, not 0"),
        ({"explore": "yes"}, "explore: expected true or false, not 'yes'"),
        ({"lingerms": 1}, "lingerms: no such key; did you mean 'linger_ms'"),
        ({"gamma": 0.9}, "put it under 'algorithm_parameters'"),
        ({"timeout": 3, "connect_timeout_s": 4}, "contradicts"),
        ({"train_server_address": "host"}, "train_server_address: expected an address"),
        ({"algorithm_parameters": {"act_dim": 3.5}}, "algorithm_parameters.act_dim: expected an integer"),
        ({"action_space": {"type": "Dict", "spaces": {}}}, "action_space: .* Python actor"),
        ({"client_id": "a/b"}, "client_id: expected 1 to 200 printable"),
        ({"fallback": "random", "overflow": "wait"}, "fallback: "),
    ],
)
def test_configurations_that_are_refused(driver: Driver, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DriverError, match=words):
        driver("config", config=json.dumps(CONFIG | changes))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ('{"a": 1, "a": 2}', "a: given twice"),
        ("[]", "expected a mapping"),
        ("[" * 100 + "]" * 100, "too deeply"),
    ],
)
def test_text_that_is_no_configuration(driver: Driver, text: str, words: str) -> None:
    with pytest.raises(DriverError, match=words):
        driver("config", config=text)


def test_a_configuration_survives_being_written(driver: Driver) -> None:
    full = CONFIG | {"overflow": "wait", "seed": 3, "swap": "episode", "linger_ms": 5, "_comment": "left out", "native": "auto"}
    full["algorithm_parameters"] = {"input_size": 4, "act_dim": 3, "hidden_sizes": [8, 8], "gamma": 0.5, "target_kl": None}
    written = driver("config", config=json.dumps(full))
    assert driver("config", config=json.dumps(written)) == written
    assert written["algorithm_parameters"] == full["algorithm_parameters"] and "_comment" not in written
    AgentConfig.from_mapping(written)


def serve(port: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start a learner of its own process, whose journal survives a kill."""
    command = [sys.executable, "-m", "rl4sys_zmq.cli.learner", "serve", "--port", str(port), "--run-dir", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_nothing_is_lost_when_the_learner_is_killed(driver: Driver, tmp_path: Path) -> None:
    port = free_port()
    learner = serve(port, tmp_path)
    options: dict[str, Any] = {"algorithm_name": "PPO", "overflow": "wait", "connect_timeout_s": 60.0}
    driver.open(f"127.0.0.1:{port}", **options, algorithm_parameters={"input_size": 4, "act_dim": 3, "rollout_length": 32})
    try:
        for _ in range(2):
            driver("play", steps=640, length=40)
            os.kill(learner.pid, signal.SIGKILL)
            learner.wait()
            learner = serve(port, tmp_path)
        driver("play", steps=640, length=40)
        driver("flush", s=60.0)
        stats = driver("stats")
        assert stats["in_actor"] == stats["in_doubt"] == stats["dropped_at_source"] == stats["refused"] == 0
        assert stats["accepted"] == stats["submitted"] and stats["counters"]["joined"] >= 2
        assert "gap_segments" not in stats["counters"]
    finally:
        learner.kill()
        learner.wait()


@pytest.mark.parametrize(
    ("name", "options"), [("cartpole", ["FILE", "600"]), ("lander", ["--episodes", "3", "--config", "FILE"])]
)
def test_an_example(records: Records, address: str, tmp_path: Path, name: str, options: list[str]) -> None:
    program = build(ROOT / "examples" / "native" / f"{name}.cpp")
    config = json.loads((ROOT / "examples" / "native" / f"{name}.json").read_text())
    config |= {"algorithm_name": "KEEPER", "train_server_address": address}
    (tmp_path / "agent.json").write_text(json.dumps(config))
    command = [program, *(tmp_path / "agent.json" if option == "FILE" else option for option in options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.endswith("delivered: all\n")
    until(lambda: records.kept and any(segment.terminated for segment in records.kept))


def test_a_c_program_acts(records: Records, address: str) -> None:
    program = build(PROGRAMS / "c_actor.c")
    config = CONFIG | {"train_server_address": address, "linger_ms": 0}
    done = subprocess.run([program, json.dumps(config)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["accepted"] == 5
    until(lambda: len(records.kept) == 5)
    assert [segment.terminated for segment in records.kept] == [True] * 5
