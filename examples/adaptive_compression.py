"""Compression that follows the link: a policy picks the zstd level of each block, for the most data delivered per second.

    python examples/adaptive_compression.py                          # train, then compare on real sockets: about 20 minutes
    python examples/adaptive_compression.py --train-steps 20000 --seconds 1   # a look at it, in a few minutes

A strong level makes fewer bytes, which helps on a slow link. It also takes more time, which hurts on a fast one. The sender knows
neither the bandwidth nor the next block. It observes its queue, its last sends, its processor and a sample of the block.

Training uses virtual time: measured sizes and times of all blocks at all levels, and a model of the link. The comparison uses
none of that. It sends other blocks through a TCP socket whose receiver reads at a bandwidth that changes. The methods take turns
on each profile of bandwidth: every fixed level, a rule that looks at the queue, the command ``zstd --adapt`` if it is installed,
and the policy. The parts are modules of the folder ``adaptive_zstd``.

Without ``--learner ADDRESS`` the learner runs in this process, which needs the extra `learner`; ``--plot FILE`` needs it too.
"""

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from adaptive_zstd.bandwidth import MB, profiles
from adaptive_zstd.data import BLOCK, LEVELS, Costs, make_blocks
from adaptive_zstd.methods import make_methods
from adaptive_zstd.report import compare, plot
from adaptive_zstd.view import FEATURES
from adaptive_zstd.virtual import train

from rl4sys_zmq import AgentConfig, RL4SysAgent
from rl4sys_zmq.errors import RL4SysError


def learner_address(given: str | None, stack: ExitStack) -> str:
    """Return the address of the learner. Without one, start it in this process."""
    if given:
        return given
    from rl4sys_zmq.learner import Learner, LearnerConfig

    return stack.enter_context(Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, torch_threads=1))).address


def main() -> None:
    parser = argparse.ArgumentParser(description="Pick the zstd level of each block, for the most goodput.")
    parser.add_argument("--learner", help="the learner's address; without it, the learner runs in this process")
    parser.add_argument("--train-steps", type=int, default=200_000, help="blocks of the training (default: 200000)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each profile (default: 6)")
    parser.add_argument("--rounds", type=int, default=1, help="times that each method runs; the median counts (default: 1)")
    parser.add_argument("--blocks", type=int, default=96, help="different blocks for the training, and for the comparison")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", help="keep the policy in this file; with it, --train-steps 0 compares without a learner")
    parser.add_argument("--only", default="", help="compare on the profiles whose names contain this")
    parser.add_argument("--plot", type=Path, help="write a picture to this file")
    parser.add_argument("--json", type=Path, help="write the figures to this file, or add them to it")
    args = parser.parse_args()
    if args.blocks < 1 or args.rounds < 1 or args.seconds < 0.1 or args.train_steps < 0:
        parser.error("--blocks and --rounds must be at least 1, --seconds at least 0.1, and --train-steps at least 0")
    if not args.train_steps and not args.policy:
        parser.error("--train-steps 0 needs --policy FILE")
    chosen = {name: bandwidth for name, bandwidth in profiles(args.seconds).items() if args.only in name}
    if not chosen:
        parser.error(f"no profile has {args.only!r} in its name; there are: {', '.join(profiles(args.seconds))}")
    blocks = make_blocks(2 * args.blocks, args.seed)
    training, others = blocks[: args.blocks], blocks[args.blocks :]
    costs = Costs.measure(training)
    speeds = BLOCK / costs.times_s.mean(axis=0) / MB
    print("speed of each level: " + ", ".join(f"{level}: {speed:.0f} MB/s" for level, speed in zip(LEVELS, speeds, strict=True)))
    parameters = {
        "steps_per_update": 4096, "minibatch_size": 512, "update_epochs": 8, "lr": 1e-3, "gamma": 0.9,
        "ent_coef": 0.001, "seed": args.seed,
    }  # fmt: skip
    config = AgentConfig(
        client_id="compression",
        algorithm_name="PPO",
        algorithm_parameters=parameters,
        input_size=FEATURES,
        act_dim=len(LEVELS),
        train_server_address=args.learner or "localhost:50051",
        policy_cache=args.policy,
        connect_timeout_s=60,
        seed=args.seed,
    )
    with ExitStack() as stack:
        if args.train_steps:
            config = replace(config, train_server_address=learner_address(args.learner, stack))
            with RL4SysAgent(config=replace(config, overflow="wait")) as agent:  # training has no real time to lose
                train(agent, training, costs, args.train_steps, args.seed)
                agent.flush(timeout_s=30)
        with RL4SysAgent(config=replace(config, explore=False, report_returns=False)) as agent:
            table = compare(make_methods(agent, others, costs), chosen, args.rounds)
    if args.json:
        earlier = json.loads(args.json.read_text()) if args.json.exists() else {}
        table = earlier | table
        args.json.write_text(json.dumps({name: {m: round(v) for m, v in row.items()} for name, row in table.items()}, indent=1))
    if args.plot:
        plot(table, args.plot)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except RL4SysError as exc:
        sys.exit(f"adaptive_compression: {exc}")
