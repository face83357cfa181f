"""A linear bandit that chooses the compression level of each message: a problem of one step, with a real loop.

    rl4sys-learner serve --port 50051
    python examples/bandit.py --requests 4000

A message is worth compressing if it shrinks much and the link is slow. The context has what a sender knows before it compresses:
the entropy of the first bytes, the size, and the rate of the link. The cost of a message is the time to compress and send it, in
units of the time to send it as it is. The time to compress comes from a table, so that a run can be repeated on any machine.

Each decision logs its probability. So the log tells afterwards what another rule would have cost (`off_policy_value`). Without
`epsilon`, the bandit would soon not try some actions at all, and the log would say nothing about rules that choose them.
"""

import argparse
import math
import random
import string
import zlib

import numpy as np

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.policies import off_policy_value
from rl4sys_zmq.values import BoxSpace, DiscreteSpace

LEVELS = (0, 1, 6, 9)
NS_PER_BYTE = (0.0, 12.0, 35.0, 90.0)
"""The time to compress one byte at each level."""
MBIT_S = (5.0, 50.0, 500.0, 5000.0)
CHEAP = 1  # the place of level 1

parser = argparse.ArgumentParser(description="A sender that learns when to compress.")
parser.add_argument("--address", default="localhost:50051", help="the learner's address")
parser.add_argument("--requests", type=int, default=4000)
parser.add_argument("--strategy", default="thompson", choices=("thompson", "ucb", "greedy", "softmax"))
parser.add_argument("--client-id", default="compression")
args = parser.parse_args()
rng = random.Random(1)


def message() -> bytes:
    """Return a log, a page of text, or bytes that are compressed already."""
    size = int(2 ** rng.uniform(10.0, 14.0))
    kind = rng.randrange(3)
    if kind == 0:
        return b"".join(b"%09d GET /item/%d 200\n" % (n, rng.randrange(9)) for n in range(size // 26))
    return rng.randbytes(size) if kind == 1 else "".join(rng.choices(string.ascii_lowercase + " ", k=size)).encode()


def context(content: bytes, mbit_s: float) -> np.ndarray:
    """Return the entropy of the first bytes (as a share of 8 bits), the size, the rate of the link, and their products."""
    shares = np.bincount(np.frombuffer(content[:512], np.uint8)) / min(512, len(content))
    entropy = -float(sum(share * math.log2(share) for share in shares if share)) / 8
    size, rate = math.log2(len(content)) / 12 - 1, math.log10(mbit_s / 50) / 2
    return np.array([entropy, size, rate, entropy * rate, rate * rate, entropy * rate * rate], dtype=np.float32)


def relative_cost(content: bytes, mbit_s: float, place: int) -> float:
    """Return the time to compress and send a message, divided by the time to send it as it is."""
    ns_per_byte = 8e3 / mbit_s
    sent = zlib.compress(content, LEVELS[place])
    return (len(content) * NS_PER_BYTE[place] + len(sent) * ns_per_byte) / (len(content) * ns_per_byte)


config = AgentConfig(
    client_id=args.client_id,
    algorithm_name="BANDIT",
    algorithm_parameters={"strategy": args.strategy, "scale": 0.3, "epsilon": 0.1, "steps_per_update": 16},
    observation_space=BoxSpace((6,)),
    action_space=DiscreteSpace(len(LEVELS)),
    train_server_address=args.address,
    overflow="wait",  # so that a run can be repeated; a real sender would never wait
    seed=1,
)
rewards, log_probs, chosen, all_costs = [], [], [], []
every = max(1, args.requests // 4)
with RL4SysAgent(config=config) as agent:
    for number in range(1, args.requests + 1):
        content, mbit_s = message(), rng.choice(MBIT_S)
        traj, action = agent.request_for_action(None, context(content, mbit_s))
        # A cost of 100 and one of 3 are both far too much: the logarithm is closer to linear.
        costs = [math.log(relative_cost(content, mbit_s, place)) for place in range(len(LEVELS))]
        reward = -costs[action.act]
        action.update_reward(reward)
        agent.mark_end_of_trajectory(traj, action)
        rewards.append(reward)
        log_probs.append(action.data["logp_a"])
        chosen.append(int(action.act))
        all_costs.append(costs)
        if number % every == 0:
            part = slice(number - every, number)
            spent = -np.mean(rewards[part])
            fixed = np.mean(all_costs[part], axis=0)
            least = np.min(all_costs[part], axis=1).mean()
            always = ", ".join(f"always level {level} {cost:+.2f}" for level, cost in zip(LEVELS, fixed, strict=True))
            print(f"request {number}: log of the cost {spent:+.2f}; {always}; least possible {least:+.2f}", flush=True)

value = off_policy_value(rewards, log_probs, [float(place == CHEAP) for place in chosen])
truth = -np.mean([costs[CHEAP] for costs in all_costs])
print(
    f"always level {LEVELS[CHEAP]}, from the log alone: {-value.ips:+.2f} (standard error {value.ips_error:.2f}), "
    f"self-normalised {-value.snips:+.2f}; in truth {-truth:+.2f}"
)
