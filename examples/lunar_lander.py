"""LunarLander-v3, trained by a learner in another process.

Start any number of copies, before or after the learner::

    rl4sys-learner serve --port 50051
    python examples/lunar_lander.py --client-id lunar_lander --seed 1
    python examples/lunar_lander.py --client-id lunar_lander --seed 2

Copies with the same client id train one policy. Give each copy its own --seed. Another client id creates another policy.
This example needs gymnasium[box2d] and no torch.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import deque
from pathlib import Path

import gymnasium as gym

from rl4sys_zmq import AgentConfig, RL4SysAgent, RL4SysError

REPORT_S = 5.0


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expected True or False, not {text!r}")
    return text.lower() == "true"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="An actor for LunarLander-v3.")
    parser.add_argument("--number-of-iterations", type=int, default=10_000, help="number of episodes (default: 10000)")
    parser.add_argument("--number-of-moves", type=int, default=1000, help="largest number of steps per episode (default: 1000)")
    parser.add_argument("--client-id", default="lunar_lander", help="client to act for and to train (default: lunar_lander)")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of this actor and its environment; the learner has its own (default: 1)"
    )
    parser.add_argument(
        "--conf", default=str(Path(__file__).with_name("luna_conf.json")), help="configuration, JSON or YAML in RL4Sys's form"
    )
    parser.add_argument(
        "--render", type=boolean, nargs="?", const=True, default=False, help="True: show the environment (default: False)"
    )
    parser.add_argument("--debug", action="store_true", help="log also what the library does, at level DEBUG")
    parser.add_argument("--address", help="the learner's address, host:port or a URI, in place of the configuration's")
    return parser.parse_args()


def run(args: argparse.Namespace, agent: RL4SysAgent) -> None:
    env = gym.make("LunarLander-v3", render_mode="human" if args.render else None)
    returns: deque[float] = deque(maxlen=100)
    started, report_at, steps, episode = time.monotonic(), REPORT_S, 0, 0

    def report() -> None:
        seconds = time.monotonic() - started
        mean = sum(returns) / max(1, len(returns))
        print(
            f"{seconds:7.1f} s  episodes {episode:5d}  steps {steps:8d} ({steps / seconds:6.0f}/s)"
            f"  mean return of the last {len(returns):3d}: {mean:7.1f}  policy version {agent.version}",
            flush=True,
        )

    try:
        for episode in range(1, args.number_of_iterations + 1):
            obs, _ = env.reset(seed=args.seed if episode == 1 else None)
            traj, total = None, 0.0
            for move in range(1, args.number_of_moves + 1):
                traj, action = agent.request_for_action(traj, obs)
                agent.add_to_trajectory(traj, action)
                obs, reward, terminated, truncated, _ = env.step(action.act)
                action.update_reward(reward)
                total += float(reward)
                steps += 1
                if terminated:
                    agent.mark_end_of_trajectory(traj, action)
                    break
                if truncated or move == args.number_of_moves:  # the time limit is reached, but the state is not terminal
                    agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=obs)
                    break
            returns.append(total)
            if time.monotonic() - started >= report_at:
                report_at += REPORT_S
                report()
    finally:
        report()
        env.close()


def main() -> int:
    args = parse_arguments()
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
    overrides = {"client_id": args.client_id, "seed": args.seed}
    if args.debug:
        overrides["debug"] = True
    if args.address:
        overrides["train_server_address"] = args.address
    try:
        config = AgentConfig.load(args.conf, **overrides)
        print(f"waiting for the learner at {config.address} (at most {config.connect_timeout_s:g} s)", flush=True)
        agent = RL4SysAgent(config=config)
        try:
            print(f"joined as actor {agent.actor_id}", flush=True)
            run(args, agent)
        finally:
            agent.close(timeout_s=1.0)
    except KeyboardInterrupt:
        return 130
    except RL4SysError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
