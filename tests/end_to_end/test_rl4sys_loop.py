"""A program that was written for RL4Sys trains here, with RL4Sys's documented calls, tensors and configuration."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from rl4sys_zmq import RL4SysAgent
from rl4sys_zmq.ops.requests import request_status

from .engine_lab import serving

torch = pytest.importorskip("torch")
gym = pytest.importorskip("gymnasium")

MAX_STEPS = 400_000
CONFIGURATION: dict[str, Any] = {
    "client_id": "cart-pole",
    "algorithm_name": "PPO",
    "algorithm_parameters": {
        "batch_size": 64,
        "act_dim": 2,
        "seed": 0,
        "traj_per_epoch": 16,
        "clip_ratio": 0.2,
        "gamma": 0.99,
        "lam": 0.95,
        "pi_lr": 1e-3,
        "vf_lr": 1e-3,
        "train_pi_iters": 10,
        "train_v_iters": 10,
        "target_kl": None,
        "input_size": 4,
    },
    "act_limit": 1.0,
    "max_traj_length": 1000,
    "type": "onpolicy",
    "send_frequency": 10,
}


def test_a_loop_of_rl4syss_calls_trains_cartpole(tmp_path: Path, seed: int) -> None:
    """By default the agent drops segments and never waits. Segments that are too old are dropped, mostly at the source."""
    with serving("tcp://127.0.0.1:0", torch_threads=1, plugins=[]) as (_, address):
        parameters = {**CONFIGURATION["algorithm_parameters"], "seed": seed}
        configuration = {**CONFIGURATION, "algorithm_parameters": parameters, "train_server_address": address}
        conf_path = tmp_path / "cart_conf.json"
        conf_path.write_text(json.dumps(configuration))

        agent = RL4SysAgent(conf_path=str(conf_path))
        try:
            mean, steps, episodes = train(agent, seed)
            stats = agent.stats()
        finally:
            agent.close()
        client = request_status(address, 60.0)["clients"]["cart-pole"]
    print(f"seed {seed}: mean return {mean:.1f} after {steps} steps, {episodes} episodes, {client['updates']} updates")
    print(f"dropped at the source {stats['dropped']}, verdicts {client['verdicts']}, policy lag {client['policy_lag']:.2f}")
    assert mean >= 195
    assert client["state"] == "running"
    assert stats["submitted"] == stats["dropped_at_source"] + stats["in_actor"] + stats["refused"] + stats["accepted"]
    assert client["verdicts"]["refused"] == client["verdicts"]["quarantined"] == 0


def train(agent: RL4SysAgent, seed: int) -> tuple[float, int, int]:
    """Run RL4Sys's lunar loop with another environment. Return the mean return of 100 episodes, the steps and the episodes."""
    env = gym.make("CartPole-v1")
    returns: deque[float] = deque(maxlen=100)
    steps = episodes = 0
    mean = 0.0
    while steps < MAX_STEPS and mean < 195:
        obs, _ = env.reset(seed=seed % 1_000_000 + episodes)
        obs_tensor = torch.as_tensor(obs, dtype=torch.float32).unsqueeze(0)
        traj, done, cumulative_reward = None, False, 0.0
        while not done:
            traj, action = agent.request_for_action(traj, obs_tensor)
            act = action.act
            act_val = int(act.item()) if hasattr(act, "item") else int(act[0]) if hasattr(act, "__len__") else int(act)
            next_obs, reward, terminated, truncated, _ = env.step(act_val)
            done = terminated or truncated
            action.update_reward(reward)
            agent.add_to_trajectory(traj, action)
            cumulative_reward += float(reward)
            steps += 1
            obs_tensor = torch.as_tensor(next_obs, dtype=torch.float32).unsqueeze(0)
            if done:
                agent.mark_end_of_trajectory(traj, action)
        episodes += 1
        returns.append(cumulative_reward)
        if len(returns) == 100:
            mean = sum(returns) / 100
    env.close()
    return mean, steps, episodes
