"""The small tasks of the learning table: their best returns, their policies, and actors that keep to masks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("torch")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from bench.courier import MOVES  # noqa: E402
from bench.learning_cases import CASES, COURIER, PIXEL_CATCH  # noqa: E402
from rl4sys_zmq import AgentConfig, RL4SysAgent  # noqa: E402
from rl4sys_zmq.actor import FrozenAgent  # noqa: E402
from rl4sys_zmq.algorithms import planned_policy  # noqa: E402
from rl4sys_zmq.config.client import ClientConfig  # noqa: E402
from rl4sys_zmq.learner import Learner, LearnerConfig  # noqa: E402
from rl4sys_zmq.learner.run.stored_policies import newest_policy  # noqa: E402
from rl4sys_zmq.ops.episodes import play_episode  # noqa: E402
from rl4sys_zmq.ops.playing import EpisodeCounts, play  # noqa: E402
from rl4sys_zmq.values import observation_space_from, space_from  # noqa: E402


def test_a_policy_that_looks_gets_ten_less_the_distance() -> None:
    env = gymnasium.make(COURIER)
    check_env(env.unwrapped, skip_render_check=True)
    for seed in range(5):
        seen, info = env.reset(seed=seed)
        distance, total, over = int(np.abs(seen["customer"] - seen["courier"]).sum()), 0.0, False
        while not over:
            move = int((MOVES @ (seen["customer"] - seen["courier"])).argmax())
            assert info["action_mask"]["move"][move] == 1
            seen, reward, over, _, info = env.step({"move": move, "lean": seen["wind"]})
            total += float(reward)
        assert total == pytest.approx(10 - distance)


def test_a_policy_that_looks_catches_every_ball() -> None:
    env = gymnasium.make(PIXEL_CATCH)
    check_env(env.unwrapped, skip_render_check=True)
    image, _ = env.reset(seed=1)
    total, steps, done = 0.0, 0, False
    while not done:
        ball, paddle = (int(image[rows, :, 0].max(axis=0).argmax()) for rows in (slice(0, 9), slice(9, 10)))
        image, reward, done, _, _ = env.step(np.int64(1 + np.sign(ball - paddle)))
        total, steps = total + float(reward), steps + 1
    assert (total, steps) == (5.0, 45)


@pytest.mark.parametrize("name", ["ppo-dict-mask", "ppo-taxi", "ppo-frozenlake", "ppo-pixels", "dqn-pixels"])
def test_the_cases_of_the_table_have_policies(name: str) -> None:
    case = CASES[name]
    env = gymnasium.make(case.env)
    spaces = observation_space_from(env.observation_space), space_from(env.action_space)
    spec = planned_policy(case.algorithm, *spaces, case.values or {})
    assert spec is not None
    convolutions = [layer for layer in spec.document["layers"] if layer["kind"] == "conv"]
    assert bool(convolutions) == name.endswith("pixels")


class Allowed:
    """An environment that counts the moves that its last mask forbids."""

    def __init__(self, env: Any) -> None:
        self.env, self.forbidden = env, 0
        self.mask: Any = None

    def reset(self, **options: Any) -> Any:
        observation, info = self.env.reset(**options)
        self.mask = info["action_mask"]
        return observation, info

    def step(self, action: Any) -> Any:
        mask, move = (self.mask["move"], action["move"]) if isinstance(action, dict) else (self.mask, action)
        self.forbidden += not mask[move]
        *result, info = self.env.step(action)
        self.mask = info["action_mask"]
        return *result, info


@pytest.mark.parametrize(("env_id", "masks"), [(COURIER, True), ("Taxi-v4", True), ("Taxi-v4", False)])
def test_an_actor_keeps_to_the_masks_of_its_environments(tmp_path: Path, env_id: str, masks: bool) -> None:
    envs = [Allowed(gymnasium.make(env_id, max_episode_steps=20)) for _ in range(3)]
    parameters = {"steps_per_update": 64, "minibatch_size": 32, "rollout_length": 8, "hidden_sizes": [8]}
    client = ClientConfig(algorithm_name="PPO", algorithm_parameters=parameters)
    address = f"inproc://{env_id.rpartition(':')[2]}-{masks}"
    with Learner(LearnerConfig(bind=address, run_dir=tmp_path, clients={"courier": client}, seed=1)) as learner:
        spaces = {"observation_space": envs[0].env.observation_space, "action_space": envs[0].env.action_space}
        config = AgentConfig(client_id="courier", train_server_address=address, overflow="wait", seed=1, **spaces)
        with RL4SysAgent(config=config) as agent:
            play(agent, envs, [1, 2, 3], EpisodeCounts(episodes=8), masks=masks)
            agent.flush(20.0)
        learner.drain(timeout_s=20.0)
        status = learner.status()["clients"]["courier"]
    assert sum(env.forbidden for env in envs) == 0 or not masks
    assert (status["verdicts"]["quarantined"], status["verdicts"]["refused"]) == (0, 0)
    assert status["version"] >= 1
    if masks:
        with FrozenAgent(newest_policy(tmp_path, "courier")[0], explore=True, seed=1) as frozen:
            play_episode(frozen, envs[0], 4)
        assert envs[0].forbidden == 0
