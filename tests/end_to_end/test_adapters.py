"""Algorithms of other libraries train in worker processes, with actors in real environments."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.children import is_there
from kit import until

from rl4sys_zmq.errors import ConfigError, HandshakeRefused
from rl4sys_zmq.learner import Learner, LearnerConfig

from .conftest import Lab
from .engine_lab import PATIENCE_S, client_of

pytestmark = pytest.mark.timeout(300)

gymnasium: Any = pytest.importorskip("gymnasium")

SOAK = bool(os.environ.get("RL4SYS_SOAK"))
LIBRARIES = {"sb3": "sb3_contrib", "torchrl": "torchrl"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sb3:TRPO": (
        "CartPole-v1",
        {"n_steps": 512, "rollout_length": 64, "learning_rate": 3e-3, "n_critic_updates": 20, "gae_lambda": 0.9, "gamma": 0.98},
    ),
    "torchrl:IQL": (
        "CartPole-v1",
        {"learning_rate": 1e-3, "hidden_sizes": [64, 64], "temperature": 3.0, "expectile": 0.8, "learning_starts": 500}
        | {"train_frequency": 4, "batch_size": 64, "gamma": 0.98, "tau": 0.02},
    ),
}


@pytest.fixture
def lab(ipc_lab: Lab) -> Lab:
    return ipc_lab


def needs(name: str) -> None:
    library = name.partition(":")[0]
    if importlib.util.find_spec(LIBRARIES[library]) is None:
        pytest.skip(f"the extra {library} is not installed")


def spaces_of(environment: Any) -> dict[str, Any]:
    return {"observation_space": environment.observation_space, "action_space": environment.action_space}


def play(agent: Any, environment: Any, steps: int, seed: int) -> list[float]:
    """Play whole episodes of at least `steps` steps in all, and return their returns."""
    returns: list[float] = []
    done = 0
    while done < steps:
        observation, _ = environment.reset(seed=seed + len(returns))
        traj: Any = None
        total, over = 0.0, False
        while not over:
            traj, action = agent.request_for_action(traj, observation)
            observation, reward, terminated, truncated, _ = environment.step(action.act)
            action.update_reward(reward)
            agent.add_to_trajectory(traj, action)
            total, done, over = total + float(reward), done + 1, terminated or truncated
        agent.mark_end_of_trajectory(traj, action, truncated=truncated and not terminated, final_obs=observation)
        returns.append(total)
    return returns


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "sb3:TRPO",
        pytest.param("torchrl:IQL", marks=pytest.mark.skipif(not SOAK, reason="the long tier alone: RL4SYS_SOAK=1")),
    ],
)
def test_it_learns_and_goes_on_after_its_process_was_killed(lab: Lab, tmp_path: Path, name: str) -> None:
    needs(name)
    task, parameters = CASES[name]
    learner = lab.learner(
        bind=f"ipc://{tmp_path}/l", run_dir=tmp_path / "run", engine="process", checkpoint_every_s=0.2, torch_threads=1
    )
    environment = gymnasium.make(task)
    agent = lab.agent(
        learner,
        algorithm_name=name,
        algorithm_parameters={**parameters, "seed": 1},
        overflow="wait",
        connect_timeout_s=PATIENCE_S,
        **spaces_of(environment),
    )
    first = play(agent, environment, 1500, 0)
    play(agent, environment, 6000, 1000)
    learner.save(timeout_s=PATIENCE_S)
    before = client_of(learner)
    assert before["worker"]["engine"] == "process" and before["algorithm"].upper() == name.upper()
    os.kill(before["worker"]["pid"], signal.SIGKILL)
    until(lambda: client_of(learner)["restarts"] == 1 and client_of(learner)["state"] == "running", "another process")
    last = play(agent, environment, 5000, 2000)
    agent.flush(PATIENCE_S)
    after = until(lambda: (c := client_of(learner))["state"] == "running" and c["version"] > before["version"] and c, "training")
    assert after["checkpoint"]["number"] >= 1 and after["gap"] == 0 and not after["verdicts"].get("quarantined")
    assert np.mean(last[-10:]) > 2 * np.mean(first[:10]), (first, last)
    agent.close()
    learner.close()
    assert not is_there(after["worker"]["pid"])
    environment.close()


def test_an_engine_that_shares_a_process_is_refused_in_one_line(inproc_lab: Lab) -> None:
    learner = inproc_lab.learner()
    with pytest.raises((ConfigError, HandshakeRefused), match=r"sb3:TRPO.*process of its own.*set engine: process") as caught:
        inproc_lab.agent(learner, algorithm_name="TRPO")
    assert "\n" not in str(caught.value)


def test_the_gateway_imports_no_library(lab: Lab, tmp_path: Path) -> None:
    """The learner's process lists the client's algorithm and checks its parameters without an import of its library."""
    needs("sb3:TRPO")
    with Learner(LearnerConfig(bind=f"ipc://{tmp_path}/l", run_dir=None, engine="process")) as learner:
        with pytest.raises(HandshakeRefused, match="sb3:TRPO has no such parameter"):
            lab.agent(learner, algorithm_name="sb3:TRPO", algorithm_parameters={"speed": 1})
        code = "import sys; from rl4sys_zmq.cli.learner import main; main(['algorithms'], standalone_mode=False); "
        code += "print('loaded', sorted({'torch', 'stable_baselines3', 'sb3_contrib', 'torchrl'} & set(sys.modules)))"
        shown = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
        ).stdout
    assert "sb3:TRPO" in shown and "Discrete or Box actions" in shown and shown.rstrip().endswith("loaded []")
