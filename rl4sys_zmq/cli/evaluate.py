"""The command ``rl4sys-actor evaluate``: the mean return of a policy in a Gymnasium environment, with a 95 % interval."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.cli.act import make_environments
from rl4sys_zmq.cli.app import one_line, print_line, require
from rl4sys_zmq.cli.signals import check_signals
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.run.stored_policies import newest_policy
from rl4sys_zmq.ops.episodes import check_spaces, play_episode

RESAMPLES = 10_000
LEVEL = 0.95


def evaluate(
    *,
    policy: Path | None,
    run: Path | None,
    client: str | None,
    env: str,
    episodes: int,
    seed: int,
    explore: bool,
    json: bool,
    render: bool,
    video: Path | None,
) -> None:
    """Run episodes with a stored policy, and print the mean return and other statistics."""
    folder = policy
    if run is not None:
        folder, _ = newest_policy(run, client)
    assert folder is not None  # the command line has either --policy or --run
    seeds = np.random.SeedSequence(seed).generate_state(episodes)
    with FrozenAgent(folder, explore=explore, seed=seed) as agent:
        environment = _environment(env, render, video)
        try:
            check_spaces(agent, environment, env)
            played = [play_episode(agent, environment, int(number), check_signals) for number in seeds]
        finally:
            environment.close()
    returns = np.array([total for total, _ in played])
    lengths = [length for _, length in played]
    figures: dict[str, Any] = {
        "env": env,
        "policy": str(folder),
        "client_id": agent.origin.client_id,
        "algorithm": agent.origin.algorithm_name,
        "generation": agent.generation,
        "version": agent.version,
        "digest": f"{agent.digest:016x}",
        "explore": explore,
        "seed": seed,
        "episodes": episodes,
        "mean_return": float(returns.mean()),
        "interval": bootstrap_interval(returns, seed),
        "median": float(np.median(returns)),
        "min": float(returns.min()),
        "max": float(returns.max()),
        "mean_length": float(np.mean(lengths)),
        "policies_not_finite": agent.stats()["policies_not_finite"],
        "returns": returns.tolist(),
        "lengths": lengths,
    }
    if json:
        print_line(json_module.dumps(figures))
        return
    _print(figures)
    if video is not None:
        print_line(f"videos in {video}")


def bootstrap_interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float] | None:
    """Return the 95 % percentile bootstrap interval of the mean of `values`, ``[N]``. Return None for a single value.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13.
    """
    if len(values) < 2:
        return None
    rng = np.random.default_rng(seed)
    means = np.array([values[rng.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)])
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _environment(env_id: str, render: bool, video: Path | None) -> Any:
    if video is None:
        [env] = make_environments(env_id, 1, "human" if render else None)
        return env
    require("video", "gymnasium", "moviepy")
    import gymnasium

    [env] = make_environments(env_id, 1, "rgb_array")
    try:
        return gymnasium.wrappers.RecordVideo(
            env, str(video), episode_trigger=lambda _: True, name_prefix="episode", disable_logger=True
        )
    except (gymnasium.error.Error, ValueError, OSError) as exc:
        env.close()
        raise ConfigError(one_line(exc) or type(exc).__name__) from exc


def _print(figures: dict[str, Any]) -> None:
    count, mode = figures["episodes"], "exploring" if figures["explore"] else "most probable actions"
    print_line(
        f"client {figures['client_id']}, {figures['algorithm']}, version {figures['version']}, in {figures['env']}: "
        f"{count} {'episode' if count == 1 else 'episodes'}, {mode}"
    )
    interval = figures["interval"]
    shown = f"95 % interval {interval[0]:.1f} to {interval[1]:.1f}" if interval else "no interval: it needs at least 2 episodes"
    print_line(f"mean return {figures['mean_return']:.1f} ({shown})")
    print_line(
        f"median {figures['median']:.1f}, min {figures['min']:.1f}, max {figures['max']:.1f}, "
        f"mean length {figures['mean_length']:.1f} steps"
    )
    if figures["policies_not_finite"]:
        print_line(f"!! {figures['policies_not_finite']} actions were not finite and were replaced")
