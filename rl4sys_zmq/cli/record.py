"""The command ``rl4sys-actor record``: episodes of a stored policy as a file of demonstrations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.cli.app import print_line
from rl4sys_zmq.cli.signals import check_signals
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.run.stored_policies import newest_policy
from rl4sys_zmq.learner.training.minari_episodes import read_minari
from rl4sys_zmq.ops.episodes import check_spaces, make_environment, record_episode
from rl4sys_zmq.replay.demonstrations import Demonstration, write_demonstrations
from rl4sys_zmq.standard_streams import outlive_output
from rl4sys_zmq.values import ObservationSpace
from rl4sys_zmq.values.observations import flat_space
from rl4sys_zmq.values.spaces import FlatSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """The options of ``rl4sys-actor record``; see its help."""

    policy: Path | None
    run: Path | None
    client: str | None
    env: str | None
    minari: str | None
    out: Path
    episodes: int
    seed: int
    explore: bool


def record(options: RecordOptions) -> None:
    """Play episodes with a stored policy, or read a dataset. Write them to a file, and print number, steps and mean return."""
    outlive_output()
    if options.out.exists():
        raise ConfigError(f"{options.out} exists; choose another file, or remove it", key="out")
    if options.minari is not None:
        source = f"the dataset {options.minari}"
        observation_space, action_space, episodes = read_minari(options.minari)
    else:
        assert options.env is not None  # as the command line has checked
        source = options.env
        observation_space, action_space, episodes = _play(options, options.env)
    write_demonstrations(options.out, observation_space, action_space, episodes)
    steps = sum(len(episode.actions) for episode in episodes)
    mean = float(np.mean([episode.rewards.sum() for episode in episodes if episode.rewards is not None]))
    print_line(f"{len(episodes)} episodes of {source}, {steps:,} steps, mean return {mean:.1f}, in {options.out}")


def _play(options: RecordOptions, env_id: str) -> tuple[ObservationSpace, FlatSpace, list[Demonstration]]:
    """Play the episodes. Return the policy's spaces, and the episodes."""
    folder = options.policy
    if options.run is not None:
        folder, _ = newest_policy(options.run, options.client)
    assert folder is not None  # the command line has either --policy or --run
    seeds = np.random.SeedSequence(options.seed).generate_state(options.episodes)
    with FrozenAgent(folder, explore=options.explore, seed=options.seed) as agent:
        action_space = flat_space(agent.spec.action_space, "a file of demonstrations", "action")
        env = make_environment({"id": env_id})
        try:
            check_spaces(agent, env, env_id)
            episodes = [record_episode(agent, env, int(seed), check_signals) for seed in seeds]
        finally:
            env.close()
        return agent.spec.observation_space, action_space, episodes
