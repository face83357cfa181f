"""Several agents in one PettingZoo environment: a policy for each agent, or one that all agents share.

    pip install -c constraints.txt '.[learner,pettingzoo]'
    rl4sys-learner serve --port 50051 --run-dir runs/zoo > learner.log &
    python examples/pettingzoo_parallel.py --episodes 2000
    python examples/pettingzoo_parallel.py --episodes 2000 --shared

Each policy is a client of the learner, so it has its own algorithm, checkpoints and curves. An agent of the environment has a
trajectory of its own, also where it shares the policy. Agents can leave the episode at different times. Several copies of this
program, on any machine, can train the same policies.

The default is Simple Spread: three agents move to three landmarks without colliding. The reward of all is the same, apart from
collisions; an episode has 25 steps. ``--env`` names another module with a function ``parallel_env``.
"""

import argparse
import importlib
from typing import Any

import numpy as np

from rl4sys_zmq import AgentConfig, RL4SysAgent

parser = argparse.ArgumentParser(description="A PettingZoo environment with a policy for each agent, or a shared one.")
parser.add_argument("--address", default="localhost:50051", help="the learner's address")
parser.add_argument("--env", default="mpe2.simple_spread_v3", help="the module of a parallel environment")
parser.add_argument("--episodes", type=int, default=2000)
parser.add_argument("--shared", action="store_true", help="one policy for all agents, which must have the same spaces")
parser.add_argument("--algorithm", default="PPO")
parser.add_argument("--steps-per-update", type=int, default=1000, help="steps of one policy, of all agents that share it")
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

env = importlib.import_module(args.env).parallel_env()


def client_of(name: str) -> str:
    """Return the id of the client whose policy acts for an agent of the environment."""
    return "team" if args.shared else name


def policy_for(name: str) -> RL4SysAgent:
    """Return an actor of the policy that acts for an agent of the environment. It waits for its learner, as simulators should."""
    parameters = {"steps_per_update": args.steps_per_update, "minibatch_size": 250, "learning_rate": 1e-3, "gamma": 0.95}
    config = AgentConfig(
        client_id=client_of(name),
        algorithm_name=args.algorithm,
        algorithm_parameters={**parameters, "ent_coef": 0.01, "seed": args.seed},
        observation_space=env.observation_space(name),
        action_space=env.action_space(name),
        train_server_address=args.address,
        overflow="wait",
        seed=args.seed,
    )
    return RL4SysAgent(config=config)


names = list(env.possible_agents)
spaces = {(str(env.observation_space(name)), str(env.action_space(name))) for name in names}
if args.shared and len(spaces) > 1:
    parser.error(f"--shared needs equal spaces of all agents; {args.env} has {len(spaces)} different ones")
actors: dict[str, RL4SysAgent] = {}
try:
    for name in names:
        if client_of(name) not in actors:
            actors[client_of(name)] = policy_for(name)
    returns: list[float] = []
    for episode in range(1, args.episodes + 1):
        observations, infos = env.reset(seed=args.seed * 1_000_000 + episode)
        trajectories: dict[str, Any] = dict.fromkeys(names)
        total = 0.0
        while env.agents:
            actions = {}
            for name in env.agents:
                actor = actors[client_of(name)]
                mask = infos[name].get("action_mask")
                trajectories[name], actions[name] = actor.request_for_action(trajectories[name], observations[name], mask)
                actor.add_to_trajectory(trajectories[name], actions[name])
            acts = {name: action.act for name, action in actions.items()}
            observations, rewards, terminations, truncations, infos = env.step(acts)
            for name, action in actions.items():
                action.update_reward(rewards[name])
                total += rewards[name] / len(names)
                if terminations[name] or truncations[name]:  # a time limit is no terminal state
                    cut = not terminations[name]
                    final_mask = infos[name].get("action_mask")
                    actors[client_of(name)].mark_end_of_trajectory(
                        trajectories[name], action, truncated=cut, final_obs=observations[name], final_mask=final_mask
                    )
        returns.append(total)
        if episode % max(1, args.episodes // 10) == 0:
            recent = np.mean(returns[-max(1, args.episodes // 10) :])
            versions = ", ".join(f"{client} {actor.version}" for client, actor in actors.items())
            print(f"episode {episode}: mean return of an agent {recent:.2f}; versions: {versions}", flush=True)
finally:
    for actor in actors.values():
        actor.close()
    env.close()
