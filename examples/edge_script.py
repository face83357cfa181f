"""A thermostat that learns while it works: an actor in your own control loop, without gymnasium or torch.

    rl4sys-learner serve --port 50051
    python examples/edge_script.py --steps 40000

The room loses heat to the outside, and the heater has three settings. Stop or kill the learner while this runs: the loop
continues with its current policy, and segments that do not fit into the queue are dropped and counted. Start the learner
again with the same run directory: it continues from its newest checkpoint. With ``spool="spool"`` in the configuration you
could also kill this program, and start it without a learner.
"""

import argparse
import random
import time

from rl4sys_zmq import AgentConfig, RL4SysAgent

WATTS = (0.0, 1000.0, 2000.0)
TARGET_C = 21.0
DAY = 240  # minutes in an episode

parser = argparse.ArgumentParser(description="A room with a heater.")
parser.add_argument("--address", default="localhost:50051", help="the learner's address")
parser.add_argument("--steps", type=int, default=40_000, help="simulated minutes")
parser.add_argument("--period-ms", type=float, default=1.0, help="real time per simulated minute")
args = parser.parse_args()

config = AgentConfig(
    client_id="heating",
    algorithm_name="PPO",
    input_size=2,
    act_dim=len(WATTS),
    algorithm_parameters={"steps_per_update": 960, "lr": 1e-3, "gamma": 0.95},
    train_server_address=args.address,
    overflow="drop_oldest",  # neither the learner nor the network ever pauses the loop
)
weather = random.Random(1)
with RL4SysAgent(config=config) as agent:
    room_c, outside_c, cost, traj = 15.0, 5.0, 0.0, None
    for minute in range(1, args.steps + 1):
        traj, action = agent.request_for_action(traj, [(room_c - TARGET_C) / 5, (outside_c - TARGET_C) / 20])
        agent.add_to_trajectory(traj, action)
        room_c += (WATTS[action.act] - 80.0 * (room_c - outside_c)) * 60 / 400_000
        outside_c = min(15.0, max(-5.0, outside_c + weather.gauss(0.0, 0.3)))
        error = abs(room_c - TARGET_C)
        action.update_reward(-error - 1e-4 * WATTS[action.act])
        cost += error
        if minute % DAY == 0:  # a time limit, not a terminal state: the learner bootstraps from the last reading
            last = [(room_c - TARGET_C) / 5, (outside_c - TARGET_C) / 20]
            agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=last)
        if minute % (10 * DAY) == 0:
            stats = agent.stats()
            words = f"minute {minute}: mean error {cost / (10 * DAY):.2f} K, policy version {stats['version']}, {stats['state']}"
            print(f"{words}, dropped {stats['dropped_at_source']} of {stats['submitted']} segments", flush=True)
            cost = 0.0
        if args.period_ms:
            time.sleep(args.period_ms / 1000)
