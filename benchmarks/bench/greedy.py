"""Greedy episodes with the policy that a training has saved at its end, as the benchmarks of learning judge it."""

from __future__ import annotations

from pathlib import Path

from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.learner.run.stored_policies import newest_policy
from rl4sys_zmq.ops.episodes import make_environment, play_episode

__all__ = ["greedy_returns"]


def greedy_returns(env_id: str, run_dir: Path, client_id: str, *, episodes: int, first_seed: int) -> list[float]:
    """Return the returns of episodes without exploration. Actions that the environment forbids by a mask are not chosen.

    Args:
        env_id: The id of the Gymnasium environment.
        run_dir: The run directory of a learner that has ended.
        client_id: The client (a policy with its learner).
        episodes: The number of episodes.
        first_seed: The seed with which the environment is reset for the first episode. The next ones have the numbers after it.
    """
    folder, _ = newest_policy(run_dir, client_id)
    with FrozenAgent(folder) as agent:
        env = make_environment({"id": env_id})
        try:
            return [play_episode(agent, env, first_seed + number)[0] for number in range(episodes)]
        finally:
            env.close()
