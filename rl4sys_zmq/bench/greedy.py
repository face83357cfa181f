"""Greedy episodes with the newest policy of a learner, as the benchmarks of learning judge a training."""

from __future__ import annotations

from typing import Any

import gymnasium

from rl4sys_zmq.actor import AgentConfig, RL4SysAgent
from rl4sys_zmq.ops.episodes import mask_in
from rl4sys_zmq.values import space_from
from rl4sys_zmq.values.action_layout import action_layout

__all__ = ["greedy_returns"]


def greedy_returns(env_id: str, address: str, client_id: str, *, episodes: int, first_seed: int) -> list[float]:
    """Return the returns of episodes without exploration.

    As in the training, actions that the environment forbids by a mask in its ``info`` are not chosen.

    Args:
        env_id: The id of the Gymnasium environment.
        address: The address of the learner.
        client_id: The client (a policy with its learner).
        episodes: The number of episodes.
        first_seed: The seed of the first episode. The next ones have the numbers after it.
    """
    totals = []
    config = AgentConfig(client_id=client_id, train_server_address=address, explore=False, swap="episode", seed=first_seed)
    with gymnasium.make(env_id) as env, RL4SysAgent(config=config) as agent:
        layout = action_layout(space_from(env.action_space))
        for episode in range(episodes):
            observation, info = env.reset(seed=first_seed + episode)
            traj: Any = None
            total, over = 0.0, False
            while not over:
                traj, action = agent.request_for_action(traj, observation, mask_in(info, layout))
                agent.add_to_trajectory(traj, action)  # the state of a recurrent policy moves on with it
                observation, reward, terminated, truncated, info = env.step(action.act)
                action.update_reward(float(reward))
                total += float(reward)
                over = terminated or truncated
            agent.mark_end_of_trajectory(traj, action, truncated=truncated and not terminated, final_obs=observation)
            totals.append(total)
    return totals
