"""``rl4sys-learner export`` and ``rl4sys-actor evaluate``: from a run directory to a policy that acts without a learner."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kit import open_agent, play

from rl4sys_zmq import FrozenAgent
from rl4sys_zmq.cli.actor import main as actor
from rl4sys_zmq.cli.learner import main as learner
from rl4sys_zmq.cli.stored_policies import bootstrap_interval
from rl4sys_zmq.learner import Learner, LearnerConfig, register_algorithm
from rl4sys_zmq.learner.run.checkpoints import CheckpointStore
from rl4sys_zmq.policies import read_policy
from rl4sys_zmq.replay.demonstrations import read_demonstrations
from rl4sys_zmq.testing import FakeAlgorithm, fresh_address

from .conftest import invoke, output, refused

pytest.importorskip("safetensors")


@pytest.fixture(autouse=True)
def algorithm() -> None:
    register_algorithm("EXPORTED", FakeAlgorithm.factory(steps_per_update=4, rollout_length=4))


def started(run_dir: str, **options: Any) -> Learner:
    return Learner(LearnerConfig(bind=fresh_address("inproc", Path.cwd()), run_dir=Path(run_dir), **options)).start()


def train(learner: Learner, client_id: str = "lab", episodes: int = 3) -> int:
    """Train the client, and return the digest of the actor's last policy."""
    with open_agent(learner, linger_ms=5_000, client_id=client_id, algorithm_name="EXPORTED", overflow="wait") as agent:
        for _ in range(episodes):
            play(agent, 4, reward=2.5)
        agent.flush(20.0)
        learner.wait(client_id=client_id, version=episodes, timeout_s=20.0)
        agent.wait_version(episodes, 20.0)
        return agent.digest


def test_a_policy_is_exported_while_its_learner_runs(tmp_path: Path) -> None:
    with started("run") as running:
        expected = train(running)
        running.save(timeout_s=20.0)
        lines = output(invoke(learner, "export", "run", "--client", "lab", "-o", "policy")).splitlines()
    assert lines[0].startswith("client lab, EXPORTED, version 3, saved ")
    assert "12 steps, 3 updates" in lines[0]
    with FrozenAgent("policy") as agent:
        assert (agent.digest, agent.version) == (expected, 3)
        agent.request_for_action(None, np.zeros(4, np.float32))
    assert {path.name for path in (tmp_path / "policy").iterdir()} >= {"spec.json", "policy.safetensors"}


def test_the_returns_of_the_training_are_noted(tmp_path: Path) -> None:
    with started("run") as running:
        train(running)
    assert "mean return of the last 3 training episodes 10.0" in output(invoke(learner, "export", "run"))
    origin = read_policy("policy").origin
    assert (origin.episodes, origin.mean_return, origin.steps, origin.updates) == (3, 10.0, 12, 3)


def test_export_writes_an_onnx_file() -> None:
    onnx = pytest.importorskip("onnx")
    with started("run") as running:
        train(running)
    assert "policy/policy.onnx" in output(invoke(learner, "export", "run"))
    onnx.checker.check_model(onnx.load("policy/policy.onnx"))


def test_export_says_what_to_do(tmp_path: Path) -> None:
    assert "no run directory with checkpoints" in refused(invoke(learner, "export", "nowhere"))
    with started("run") as running:
        train(running, "one")
        train(running, "two")
    assert "clients one, two; name one with --client ID" in refused(invoke(learner, "export", "run"))
    assert "it has one, two" in refused(invoke(learner, "export", "run", "--client", "three"))
    assert invoke(learner, "export", "run", "--client", "two").exit_code == 0
    assert "--force" in refused(invoke(learner, "export", "run", "--client", "two"))
    assert invoke(learner, "export", "run", "--client", "one", "--force").exit_code == 0
    assert "of client 'one', not of 'two'" in refused(invoke(learner, "export", "policy", "--client", "two", "-o", "other"))
    assert invoke(learner, "export", "policy", "-o", "other").exit_code == 0
    assert read_policy("policy").snapshot.digest == read_policy("other").snapshot.digest


def test_a_damaged_newest_checkpoint_is_skipped(tmp_path: Path) -> None:
    with started("run") as running:
        train(running)
        running.save(timeout_s=20.0)
        train(running, episodes=5)
        running.save(timeout_s=20.0)
    paths = CheckpointStore(Path("run/checkpoints/lab")).newest()
    (paths[0] / "policy.safetensors").write_bytes(b"")
    assert f"from {paths[1]}" in invoke(learner, "export", "run").stdout
    for path in paths:
        (path / "policy.safetensors").unlink()
    assert "policy.safetensors" in refused(invoke(learner, "export", "run", "--force"))
    for path in paths:
        (path / "spec.json").unlink()
    assert "spec.json" in refused(invoke(learner, "export", "run", "--force"))


def test_an_interval_covers_the_mean() -> None:
    values = np.random.default_rng(0).normal(10.0, 2.0, 400)
    interval = bootstrap_interval(values)
    assert interval is not None
    low, high = interval
    assert low < values.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * 2.0 / 20.0, rel=0.15)
    assert bootstrap_interval(values) == interval
    assert bootstrap_interval(values[:1]) is None
    assert bootstrap_interval(np.full(5, 3.0)) == (3.0, 3.0)


@pytest.fixture
def policy() -> str:
    pytest.importorskip("gymnasium")
    with started("run") as running:
        train(running)
    output(invoke(learner, "export", "run"))
    return "policy"


def test_a_policy_is_evaluated(policy: str) -> None:
    arguments = ("evaluate", "--policy", policy, "--env", "CartPole-v1", "--episodes", "8", "--seed", "3")
    lines = output(invoke(actor, *arguments)).splitlines()
    assert lines[0] == "client lab, EXPORTED, version 3, in CartPole-v1: 8 episodes, most probable actions"
    assert lines[1].startswith("mean return ") and "95 % interval " in lines[1]
    assert lines[2].startswith("median ")
    figures = json.loads(invoke(actor, *arguments, "--json").stdout)
    again = json.loads(invoke(actor, *arguments, "--json").stdout)
    assert figures == again, "the same seed gives the same episodes"
    returns = figures["returns"]
    assert len(returns) == 8 and figures["lengths"] == returns  # CartPole gives 1 for each step
    assert (figures["mean_return"], figures["min"], figures["max"]) == (np.mean(returns), min(returns), max(returns))
    assert figures["interval"][0] <= figures["mean_return"] <= figures["interval"][1]
    of_run = json.loads(invoke(actor, "evaluate", "--run", "run", *arguments[3:], "--json").stdout)
    assert of_run["returns"] == returns


def test_episodes_are_recorded_as_demonstrations(policy: str) -> None:
    arguments = ("record", "--policy", policy, "--env", "CartPole-v1", "--episodes", "2", "--out", "pole.npz")
    said = output(invoke(actor, *arguments))
    found = read_demonstrations(Path("pole.npz"))
    assert said.startswith(f"2 episodes of CartPole-v1, {found.steps} steps, mean return {found.steps / 2:.1f}")
    assert len(found.segments) == 2 and all(segment.ended and (segment.rewards == 1.0).all() for segment in found.segments)
    assert "pole.npz exists" in refused(invoke(actor, *arguments))
    assert "observation_space" in refused(invoke(actor, "record", "--policy", policy, "--env", "Pendulum-v1", "--out", "x"))
    assert "give one of --policy" in refused(invoke(actor, "record", "--env", "CartPole-v1", "--out", "x"))
    assert "--env is required" in refused(invoke(actor, "record", "--policy", policy, "--out", "x"))


def test_the_episodes_of_a_minari_dataset_are_demonstrations(monkeypatch: pytest.MonkeyPatch) -> None:
    gymnasium = pytest.importorskip("gymnasium")

    def load_dataset(name: str) -> Any:
        if name != "pole-v0":
            raise FileNotFoundError(f"Dataset {name} not found locally")
        episode = SimpleNamespace(
            observations=np.zeros((4, 4), np.float32),
            actions=np.array([0, 1, 0]),
            rewards=np.ones(3),
            terminations=np.array([False, False, True]),
        )
        box = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        return SimpleNamespace(
            observation_space=box, action_space=gymnasium.spaces.Discrete(2), iterate_episodes=lambda: iter([episode] * 2)
        )

    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=load_dataset))
    said = output(invoke(actor, "record", "--minari", "pole-v0", "--out", "pole.npz"))
    assert "2 episodes of the dataset pole-v0, 6 steps, mean return 3.0" in said
    found = read_demonstrations(Path("pole.npz"))
    assert [segment.terminated for segment in found.segments] == [True, True] and found.rewarded
    missing = refused(invoke(actor, "record", "--minari", "other-v0", "--out", "other.npz"))
    assert "not found locally" in missing and "minari download other-v0" in missing


@pytest.mark.parametrize("given", [("--episodes", "3"), ("--seed", "0"), ("--explore",)], ids=str)
def test_options_without_an_effect_on_a_dataset_are_refused(given: tuple[str, ...]) -> None:
    done = refused(invoke(actor, "record", "--minari", "pole-v0", "--out", "pole.npz", *given))
    assert f"{given[0]} applies to --policy and --run, not to --minari" in done


def test_evaluate_says_what_to_do(policy: str) -> None:
    env = ("--env", "CartPole-v1")
    assert "either --policy DIR or --run RUN" in refused(invoke(actor, "evaluate", *env))
    assert "--client applies to --run" in refused(invoke(actor, "evaluate", "--policy", policy, "--client", "lab", *env))
    both = ("--render", "--video", "v")
    assert "either --render or --video" in refused(invoke(actor, "evaluate", "--policy", policy, *env, *both))
    assert "observation_space" in refused(invoke(actor, "evaluate", "--policy", policy, "--env", "Pendulum-v1"))
    assert "no such folder" in refused(invoke(actor, "evaluate", "--policy", "nowhere", *env))


def test_videos_need_their_extra(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moviepy", None)
    arguments = ("evaluate", "--policy", policy, "--env", "CartPole-v1", "--episodes", "1", "--video", "videos")
    assert "pip install 'rl4sys-zmq[video]'" in refused(invoke(actor, *arguments))


@pytest.mark.filterwarnings("default")
def test_episodes_are_recorded(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("moviepy")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    output(invoke(actor, "evaluate", "--policy", policy, "--env", "CartPole-v1", "--episodes", "2", "--video", "videos"))
    assert len(list(Path("videos").glob("*.mp4"))) == 2
