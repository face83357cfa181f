"""A key-value store whose compaction is tuned by a policy: rewards arrive thirty steps late, over the ends of episodes.

    python examples/store_tuning.py                               # a minute or two; the learner runs in this process
    rl4sys-learner serve --port 50051
    python examples/store_tuning.py --learner localhost:50051

The store keeps new keys in a table in memory. A full table becomes a sorted run. A read searches the runs, so many runs make
reads expensive; to merge them makes writes expensive. The action is the largest number of runs. The best number depends on the
share of reads, which changes all the time.

A monitor reports the work of a step thirty steps later. The order of calls is that of RL4Sys's graph store: actions wait in a
queue, and each is added to its trajectory when its reward is known. By then its episode may have ended. The store never waits
for the learner.

Work is counted, not timed: the keys that reads compare and the keys that merges move. So the figures of a fixed setting are the
same on each machine. The time is printed beside them.
"""

import argparse
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from rl4sys_zmq import AgentConfig, RL4SysAction, RL4SysAgent, RL4SysTrajectory
from rl4sys_zmq.errors import RL4SysError

LATE = 30
"""Steps until the work of a step is reported."""
RUNS = (1, 2, 4, 8, 16, 32)
"""The actions: the store merges its runs when it has more than this number."""
READ_SHARES = (0.0, 0.3, 0.7, 0.9, 1.0)
"""The shares of reads in the phases of the workload."""
OPERATIONS = 200
"""Reads and writes of a step."""
EPISODE = 200
"""Steps of an episode."""
KEYS = 2000
TABLE = 64
"""Keys in memory before they become a run."""


class Store:
    """A store of sorted runs, as in a log-structured merge-tree (O'Neil et al. 1996). It counts its work."""

    def __init__(self) -> None:
        self.runs: list[tuple[list[int], list[int]]] = []
        """Keys and values of each run, the oldest first."""
        self.table: dict[int, int] = {}
        self.most_runs = RUNS[0]
        self.compared = 0
        """Keys that reads have compared."""
        self.moved = 0
        """Keys that merges have written."""

    def put(self, key: int, value: int) -> None:
        """Write a key. Make a run if the table is full, and merge the runs if they are too many."""
        self.table[key] = value
        if len(self.table) >= TABLE:
            keys = sorted(self.table)
            self.runs.append((keys, [self.table[key] for key in keys]))
            self.table = {}
            self.tidy()

    def get(self, key: int) -> int | None:
        """Return the newest value of a key, or None."""
        if key in self.table:
            return self.table[key]
        for keys, values in reversed(self.runs):
            self.compared += len(keys).bit_length()
            place = bisect_left(keys, key)
            if place < len(keys) and keys[place] == key:
                return values[place]
        return None

    def tidy(self) -> None:
        """Make one run of all runs if they are too many."""
        if len(self.runs) <= self.most_runs:
            return
        newest: dict[int, int] = {}
        for keys, values in self.runs:
            newest.update(zip(keys, values, strict=True))
        keys = sorted(newest)
        self.runs = [(keys, [newest[key] for key in keys])]
        self.moved += len(keys)


@dataclass(frozen=True)
class Step:
    """The operations of a step.

    Attributes:
        keys: The keys of the operations. The reads are first.
        reads: How many of them are reads.
        share: The share of reads of this phase. The policy does not see it.
    """

    keys: list[int]
    reads: int
    share: float


def workload(steps: int, seed: int) -> Iterator[Step]:
    """Yield the operations of each step. A phase lasts 100 to 299 steps."""
    rng, left, share = np.random.default_rng(seed), 0, 0.0
    for _ in range(steps):
        if not left:
            left, share = int(rng.integers(100, 300)), float(rng.choice(READ_SHARES))
        left -= 1
        yield Step(rng.integers(0, KEYS, OPERATIONS).tolist(), int(rng.binomial(OPERATIONS, share)), share)


class TunedStore:
    """A store that executes steps, with its observation and its costs."""

    def __init__(self) -> None:
        self.store = Store()
        self.seconds = 0.0
        """Processor time of all steps."""
        self._reads: deque[float] = deque([0.5], maxlen=5)
        """The shares of reads of the last steps."""
        self._work = 0.0

    def observation(self) -> list[float]:
        """Return what the store knows: the share of reads in the last steps, its runs, and the work of the last step."""
        return [float(np.mean(self._reads)) * 2 - 1, float(np.log2(1 + len(self.store.runs))) - 2, self._work / 20 - 1]

    def execute(self, step: Step, action: int) -> float:
        """Execute a step with the chosen number of runs. Return its work per operation."""
        store, began_s, before = self.store, time.thread_time(), self.store.compared + self.store.moved
        store.most_runs = RUNS[action]
        store.tidy()
        for key in step.keys[: step.reads]:
            store.get(key)
        for key in step.keys[step.reads :]:
            store.put(key, key)
        self.seconds += time.thread_time() - began_s
        self._reads.append(step.reads / OPERATIONS)
        self._work = (store.compared + store.moved - before) / OPERATIONS
        return self._work


def learn(agent: RL4SysAgent, steps: int, seed: int) -> None:
    """Run the store while it learns. Each action waits in a queue until the monitor reports its work."""
    store = TunedStore()
    traj: RL4SysTrajectory | None = None
    waiting: deque[tuple[RL4SysTrajectory, RL4SysAction, float]] = deque()

    def add_oldest() -> None:
        its_traj, its_action, work = waiting.popleft()
        its_action.update_reward(-work / 10)
        agent.add_to_trajectory(its_traj, its_action)

    total = 0.0
    for number, step in enumerate(workload(steps, seed), 1):
        traj, action = agent.request_for_action(traj, store.observation())
        waiting.append((traj, action, store.execute(step, int(action.act))))
        total += waiting[-1][2]
        if len(waiting) > LATE:
            add_oldest()
        if number % EPISODE == 0:  # the last thirty actions of this episode have no reward yet
            agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=store.observation())
        if number % (steps // 10) == 0:
            print(f"step {number}: work {total / (steps // 10):.2f} an operation, policy version {agent.version}", flush=True)
            total = 0.0
    if traj is not None and not traj.is_completed():
        agent.mark_end_of_trajectory(traj, action, truncated=True, final_obs=store.observation())
    while waiting:
        add_oldest()


Chooser = Callable[[list[float]], int]
"""A function from an observation to an action."""


def evaluate(name: str, choose: Chooser, steps: int) -> float:
    """Print a row with the mean work of an operation in each phase, over all, and its time. Return the work over all.

    The operations are the same for each row.
    """
    store = TunedStore()
    works: dict[float, list[float]] = {share: [] for share in READ_SHARES}
    for step in workload(steps, seed=1_000_000):
        works[step.share].append(store.execute(step, choose(store.observation())))
    phases = "".join(f"{np.mean(found):7.2f}" if found else "      -" for found in works.values())
    mean = sum(map(sum, works.values())) / steps
    print(f"{name:18}{phases}{mean:12.2f}{store.seconds * 1e6 / (steps * OPERATIONS):8.2f}", flush=True)
    return mean


def fixed(action: int) -> Chooser:
    return lambda observation: action


def compare(agent: RL4SysAgent, steps: int, seed: int) -> float:
    """Print a row for each fixed setting, for random choice, and for the policy. Return the policy's work over the best fixed."""
    print(f"work an operation {''.join(f'{share:7.0%}' for share in READ_SHARES)} reads  mean us each", flush=True)
    best = min(evaluate(f"at most {runs} runs", fixed(index), steps) for index, runs in enumerate(RUNS))
    rng = np.random.default_rng(seed)
    evaluate("random", lambda _: int(rng.integers(len(RUNS))), steps)
    policy = evaluate("policy", lambda observation: int(agent.request_for_action(None, observation)[1].act), steps)
    print(f"policy / best fixed: {policy / best:.3f}", flush=True)
    return policy / best


def learner_address(given: str | None, stack: ExitStack) -> str:
    """Return the address of the learner. Without one, start it in this process."""
    if given:
        return given
    from rl4sys_zmq.learner import Learner, LearnerConfig

    return stack.enter_context(Learner(LearnerConfig(bind="tcp://127.0.0.1:0", run_dir=None, torch_threads=1))).address


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune the compaction of a store, with late rewards.")
    parser.add_argument("--learner", help="the learner's address; without it, the learner runs in this process")
    parser.add_argument("--steps", type=int, default=60_000, help="steps of the training (default: 60000)")
    parser.add_argument("--evaluate", type=int, default=10_000, help="steps of each row of the comparison (default: 10000)")
    parser.add_argument("--seed", type=int, default=1, help="of the workload, the policy and its training (default: 1)")
    args = parser.parse_args()
    if args.steps < 10 or args.evaluate < 1:
        parser.error("--steps must be at least 10, and --evaluate at least 1")
    parameters = {"steps_per_update": 2048, "update_epochs": 5, "lr": 1e-3, "gamma": 0.95, "seed": args.seed}
    with ExitStack() as stack:
        config = AgentConfig(
            client_id="store",
            algorithm_name="PPO",
            algorithm_parameters=parameters,
            input_size=3,
            act_dim=len(RUNS),
            train_server_address=learner_address(args.learner, stack),
            overflow="drop_oldest",  # the store is never paused
            seed=args.seed,
        )
        with RL4SysAgent(config=config) as agent:
            learn(agent, args.steps, args.seed)
            agent.flush(timeout_s=30)
            stats = agent.stats()
            late = stats["counters"].get("late_actions_dropped", 0)
            print(f"{stats['accepted']} of {stats['submitted']} segments accepted, {late} actions came too late")
        with RL4SysAgent(config=replace(config, explore=False, report_returns=False)) as agent:
            compare(agent, args.evaluate, args.seed)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except RL4SysError as exc:
        sys.exit(f"store_tuning: {exc}")
