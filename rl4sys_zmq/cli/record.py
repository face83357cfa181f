"""The command ``rl4sys-actor record``: episodes of a stored policy as a file of demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.cli.app import print_line
from rl4sys_zmq.cli.signals import check_signals
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.run.stored_policies import newest_policy
from rl4sys_zmq.learner.training.minari_episodes import read_minari
from rl4sys_zmq.logs import outlive_output
from rl4sys_zmq.ops.episodes import check_spaces, make_environment, record_episode
from rl4sys_zmq.replay.demonstrations import Demonstration, write_demonstrations
from rl4sys_zmq.values import ObservationSpace
from rl4sys_zmq.values.observations import flat_space
from rl4sys_zmq.values.spaces import FlatSpace


def record(*, minari: str | None, env: str | None, out: Path, **playing: Any) -> None:
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
        observation_space, action_space, episodes = _play(env, **playing)
    write_demonstrations(out, observation_space, action_space, episodes)
    steps = sum(len(episode.actions) for episode in episodes)
    mean = float(np.mean([episode.rewards.sum() for episode in episodes if episode.rewards is not None]))
    print_line(f"{len(episodes)} episodes of {source}, {steps:,} steps, mean return {mean:.1f}, in {out}")


def _play(
    env_id: str, policy: Path | None, run: Path | None, client: str | None, episodes: int, seed: int, explore: bool
) -> tuple[ObservationSpace, FlatSpace, list[Demonstration]]:
    """Play the episodes. Return the policy's spaces, and the episodes."""
    folder = policy
    if run is not None:
        folder, _ = newest_policy(run, client)
    assert folder is not None  # the command line has either --policy or --run
    seeds = np.random.SeedSequence(seed).generate_state(episodes)
    with FrozenAgent(folder, explore=explore, seed=seed) as agent:
        action_space = flat_space(agent.spec.action_space, "a file of demonstrations", "action")
        env = make_environment({"id": env_id})
        try:
            check_spaces(agent, env, env_id)
            played = [record_episode(agent, env, int(number), check_signals) for number in seeds]
        finally:
            env.close()
        return agent.spec.observation_space, action_space, played
