"""The benchmark of data collection: environment steps per second of one actor process, as counted by the learner."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time

from bench.counting import ALGORITHM, CountingLearner
from bench.pairs import PairedFigures, measure_pairs

__all__ = ["missing_for", "measure_collect"]

WARM_STEPS = 4096
PATIENCE_S = 60.0
_BARE = """
import json, time, gymnasium
env = gymnasium.make({env!r}, disable_env_checker=True)
env.reset(seed={seed})
env.action_space.seed({seed})
actions = [env.action_space.sample() for _ in range(4096)]
done, began, until = 0, time.perf_counter(), time.perf_counter() + {seconds}
while time.perf_counter() < until:
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    done += len(actions)
print(json.dumps(done / (time.perf_counter() - began)))
"""


def missing_for(env_id: str) -> str:
    """Return the name of the package that the environment still needs, or "" if all packages are installed."""
    if importlib.util.find_spec("gymnasium") is None:
        return "gymnasium"
    return "gymnasium[box2d]" if env_id.startswith("LunarLander") and importlib.util.find_spec("Box2D") is None else ""


def measure_collect(env_id: str, pairs: int, seconds: float, num_envs: int, seed: int) -> PairedFigures:
    """Measure the steps per second of ``rl4sys-actor run``. The baseline is a loop of ``env.step`` with random actions.

    Both run alternately, each in a separate process. The actor sends to a `CountingLearner`, and the measurement begins after
    its first steps have arrived there.

    Args:
        env_id: Id of the Gymnasium environment.
        pairs: Number of pairs of measurements.
        seconds: Duration of each measurement.
        num_envs: Number of environments in the actor. The baseline has one environment.
        seed: Seed of the environments and the actions.
    """
    return measure_pairs(
        lambda: _collected(env_id, seconds, num_envs, seed), lambda: _bare(env_id, seconds, seed), pairs, warm=False
    )


def _bare(env_id: str, seconds: float, seed: int) -> float:
    code = _BARE.format(env=env_id, seed=seed, seconds=seconds)
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S + 2 * seconds)
    rate: float = json.loads(done.stdout.splitlines()[-1])
    return rate


def _collected(env_id: str, seconds: float, num_envs: int, seed: int) -> float:
    options = ["--env", env_id, "--client-id", "bench-collect", "--algorithm", ALGORITHM]
    options += ["--num-envs", str(num_envs), "--seed", str(seed), "--exit-with-stdin"]
    with CountingLearner() as learner:
        command = [sys.executable, "-W", "ignore", "-m", "rl4sys_zmq.cli.actor", "run", *options, "--learner", learner.address]
        actor = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + PATIENCE_S
            while learner.steps() < max(WARM_STEPS, 2 * 128 * num_envs):
                if actor.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"no data arrived from {' '.join(command)}")
                time.sleep(0.05)
            first, began = learner.steps(), time.perf_counter()
            time.sleep(seconds)
            return (learner.steps() - first) / (time.perf_counter() - began)
        finally:
            actor.terminate()
            actor.wait()
            if actor.stdin is not None:
                actor.stdin.close()
