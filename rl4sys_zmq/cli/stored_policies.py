"""Commands for a stored policy: ``rl4sys-actor evaluate`` and ``record``, which play episodes, and ``rl4sys-learner export``."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.cli.app import one_line, print_line, require
from rl4sys_zmq.cli.signals import check_signals
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.run.stored_policies import newest_policy
from rl4sys_zmq.learner.training.demonstrating import read_minari
from rl4sys_zmq.logs import outlive_output
from rl4sys_zmq.ops.curves import WINDOW
from rl4sys_zmq.ops.episodes import check_spaces, make_environment, play_episode, record_episode
from rl4sys_zmq.ops.report import byte_text, span_text
from rl4sys_zmq.policies import StoredPolicy, read_policy
from rl4sys_zmq.policies.folder import ONNX, SPEC, encode_policy, write_policy
from rl4sys_zmq.policies.graphs.export import encode_onnx
from rl4sys_zmq.replay.demonstrations import write_demonstrations
from rl4sys_zmq.values.observations import flat_space
from rl4sys_zmq.values.spaces import FlatSpace

T = TypeVar("T")

RESAMPLES = 10_000
LEVEL = 0.95


def evaluate(*, env: str, json: bool, render: bool, video: Path | None, explore: bool, seed: int, **options: Any) -> None:
    """Run episodes with a stored policy, and print the mean return and other statistics."""
    made = partial(_environment, env, render, video)
    folder, agent, played = _play(play_episode, lambda _: made(), env, explore=explore, seed=seed, **options)
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
        "episodes": len(played),
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
        return make_environment({"id": env_id} | ({"render_mode": "human"} if render else {}))
    require("video", "gymnasium", "moviepy")
    import gymnasium

    env = make_environment({"id": env_id, "render_mode": "rgb_array"})
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


def export(run: Path, client_id: str | None, output: Path, *, force: bool) -> None:
    """Write a policy folder from a run directory, and print what it contains."""
    path, policy = stored_policy(run, client_id)
    files = encode_policy(policy)
    skipped = ""
    try:
        files[ONNX] = encode_onnx(policy)
    except ConfigError as exc:
        skipped = str(exc)
    write_policy(output, files, force=force)
    print_line(f"{describe_policy(policy)}, from {path}")
    for name, data in sorted(files.items()):
        print_line(f"  {output / name}  {byte_text(len(data))}")
    if skipped:
        print_line(f"  {ONNX} is left out: {skipped}")


def stored_policy(run: Path, client_id: str | None) -> tuple[Path, StoredPolicy]:
    """Return a policy with its folder, from a run directory or from the folder of a policy or a checkpoint."""
    if not (run / SPEC).exists():
        return newest_policy(run, client_id)
    policy = read_policy(run)
    if client_id not in (None, policy.origin.client_id):
        raise ConfigError(f"{run} has the policy of client {policy.origin.client_id!r}, not of {client_id!r}", key="client")
    return run, policy


def describe_policy(policy: StoredPolicy) -> str:
    """Return one line about a policy: its client, algorithm, version, age and training."""
    origin, snapshot = policy.origin, policy.snapshot
    age = span_text(max(0.0, time.time() - origin.saved_unix_s))
    trained = f"{origin.steps:,} steps, {origin.updates:,} {'update' if origin.updates == 1 else 'updates'}"
    if origin.mean_return is not None:
        trained += f", mean return of the last {min(WINDOW, origin.episodes or 0)} training episodes {origin.mean_return:.1f}"
    return f"client {origin.client_id}, {origin.algorithm_name}, version {snapshot.version}, saved {age} ago ({trained})"


def record(*, minari: str | None, env: str | None, out: Path, **options: Any) -> None:
    """Play episodes with a stored policy, or read a dataset. Write them to a file, and print number, steps and mean return."""
    outlive_output()
    if out.exists():
        raise ConfigError(f"{out} exists; choose another file, or remove it", key="out")
    if minari is not None:
        source = f"the dataset {minari}"
        observation_space, action_space, episodes = read_minari(minari)
    else:
        assert env is not None  # as the command line has checked
        source = env
        _, agent, episodes = _play(record_episode, partial(_flat_environment, env), env, **options)
        observation_space, action_space = agent.spec.observation_space, _flat_actions(agent)
    write_demonstrations(out, observation_space, action_space, episodes)
    steps = sum(len(episode.actions) for episode in episodes)
    mean = float(np.mean([episode.rewards.sum() for episode in episodes if episode.rewards is not None]))
    print_line(f"{len(episodes)} episodes of {source}, {steps:,} steps, mean return {mean:.1f}, in {out}")


def _flat_environment(env_id: str, agent: FrozenAgent) -> Any:
    _flat_actions(agent)  # refuse other actions before an episode is played
    return make_environment({"id": env_id})


def _flat_actions(agent: FrozenAgent) -> FlatSpace:
    return flat_space(agent.spec.action_space, "a file of demonstrations", "action")


def _play(
    play: Callable[[FrozenAgent, Any, int, Callable[[], None]], T],
    make: Callable[[FrozenAgent], Any],
    env_id: str,
    *,
    policy: Path | None,
    run: Path | None,
    client: str | None,
    episodes: int,
    seed: int,
    explore: bool,
) -> tuple[Path, FrozenAgent, list[T]]:
    """Play episodes with a stored policy. Return its folder, the closed agent, and the results of `play`."""
    folder = policy if run is None else newest_policy(run, client)[0]
    assert folder is not None  # the command line has either --policy or --run
    seeds = np.random.SeedSequence(seed).generate_state(episodes)
    with FrozenAgent(folder, explore=explore, seed=seed) as agent:
        env = make(agent)
        try:
            check_spaces(agent, env, env_id)
            return folder, agent, [play(agent, env, int(number), check_signals) for number in seeds]
        finally:
            env.close()
