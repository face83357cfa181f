"""The command ``rl4sys-actor run``: an actor with several Gymnasium environments, whose observations form one batch."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rl4sys_zmq.actor import RL4SysAgent
from rl4sys_zmq.actor.inputs import InputValidator
from rl4sys_zmq.actor.segments import new_column
from rl4sys_zmq.cli.app import configure_logging, print_line
from rl4sys_zmq.cli.signals import check_signals, end_with_stdin
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.config.options import check_value
from rl4sys_zmq.config.rl4sys import IGNORED_BY_ACTORS
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.fleet.engine import REPORT_S, ActorReport
from rl4sys_zmq.limits import RECENT_EPISODES
from rl4sys_zmq.logs import outlive_output
from rl4sys_zmq.ops.episodes import make_environment, mask_in
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.values import DiscreteSpace, observation_space_from, space_from
from rl4sys_zmq.values.action_layout import action_layout
from rl4sys_zmq.values.observations import have_same_form

LAST_FLUSH_S = 10.0
SIGNALLED_FLUSH_S = 0.5
CREDIT_WAIT_S = 600.0
"""Longest wait for credit or newer weights. An update of a large network can take minutes, and a learner can start again."""
VERBOSE_S = 5.0
CHECK_STEPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    env_id: str
    learner: str | None
    client_id: str | None
    config_path: Path | None
    num_envs: int
    episodes: int | None
    seed: int | None
    algorithm: str | None
    connect_timeout_s: float | None
    exit_with_stdin: bool
    verbose: bool
    debug: bool
    keys: Path | None = None
    spool: Path | None = None
    sidecar: bool = False
    actor_id: str | None = None
    json: bool = False
    masks: bool = True
    plugin: tuple[str, ...] = ()


def act(run: RunOptions) -> None:
    """Run an actor until the given number of episodes have ended or a signal arrives."""
    configure_logging(run.debug)
    outlive_output()
    tally = EpisodeCounts(run.episodes, VERBOSE_S if run.verbose and not run.json else None)
    if run.exit_with_stdin:
        end_with_stdin(lambda line: tally.drain() if line == "drain" else None)
    seeds = np.random.SeedSequence(run.seed).spawn(2)
    envs = [make_environment({"id": run.env_id}) for _ in range(run.num_envs)]
    try:
        config = agent_config(run, envs[0], _number(seeds[0]))
        library = logging.getLogger("rl4sys_zmq")
        level = library.level
        if not run.debug:
            library.setLevel(logging.ERROR)  # an error while joining is raised; do not log it as well
        try:
            agent = RL4SysAgent(config=config, debug=run.debug)
        finally:
            library.setLevel(level)
        output = _JsonOutput(agent, tally) if run.json else _TextOutput(agent, tally)
        flush_s = SIGNALLED_FLUSH_S
        try:
            output.begin(f"{run.num_envs} x {run.env_id} for client {config.client_id!r} at {config.address}")
            play(agent, envs, [_number(s) for s in seeds[1].spawn(run.num_envs)], tally, masks=run.masks)
            flush_s = LAST_FLUSH_S
        finally:
            agent.close(flush_s)
            output.end()
    finally:
        for env in envs:
            env.close()


class _TextOutput:
    """The output of a run for people: a line at the start and a line at the end."""

    def __init__(self, agent: RL4SysAgent, tally: EpisodeCounts) -> None:
        self._agent, self._tally = agent, tally

    def begin(self, what: str) -> None:
        print_line(f"{what}, acting with version {self._agent.version} as actor {self._agent.actor_id}")

    def end(self) -> None:
        print_line(f"{self._tally.summary()}; last version {self._agent.version}")


class _JsonOutput(Worker):
    """The output of a run for programs: a thread that prints the actor's state and counts each second, as a line of JSON."""

    def __init__(self, agent: RL4SysAgent, tally: EpisodeCounts) -> None:
        super().__init__("rl4sys-report")
        self._agent, self._tally = agent, tally

    def begin(self, _what: str) -> None:
        self.start()

    def end(self) -> None:
        """End the thread, and print a last report."""
        self.stop()
        self.join()
        self._print()

    def run(self) -> None:
        while True:
            self._print()
            if self._stop_asked.wait(REPORT_S):
                return

    def _print(self) -> None:
        stats, tally = self._agent.stats(), self._tally
        returns = tally.returns.copy()
        report = ActorReport(
            actor_id=stats["actor_id"],
            state=stats["state"],
            version=stats["version"],
            uptime_s=round(time.monotonic() - tally.began_s, 3),
            steps=tally.steps,
            episodes=tally.episodes,
            returns=len(returns),
            mean_return=sum(returns) / len(returns) if returns else None,
            credit_wait_s=stats["credit_wait_s"],
            done=tally.done,
        )
        print_line(report.to_json())


def agent_config(run: RunOptions, env: Any, seed: int) -> AgentConfig:
    """Return the configuration of the actor. The command line overrides the file, and the environment sets missing spaces.

    ``overflow``, ``wait_timeout_s`` and ``send_frequency`` have defaults for simulators: wait for the learner, also through a
    long update, and send finished parts of all environments together.
    """
    document = read_mapping(run.config_path) if run.config_path is not None else {}
    known = AgentConfig.from_mapping({"client_id": "?", **document}, source=str(run.config_path or ""))
    document = {key: value for key, value in document.items() if key not in IGNORED_BY_ACTORS}  # they were logged just now
    spaces = environment_spaces(env, run.env_id)
    if "observation_space" not in document and isinstance(spaces["observation_space"], DiscreteSpace):
        known = replace(known, observation_space=None)  # the file has input_size alone, which fits a Discrete space too
    for key, real in spaces.items():
        said = getattr(known, key)
        if said is not None and not have_same_form(said, real):
            raise ConfigError(f"{run.config_path}: {key} is {said}, but {run.env_id} has {real}; correct one of them", key=key)
    overrides: dict[str, Any] = {
        "client_id": run.client_id,
        "actor_id": run.actor_id,
        "train_server_address": run.learner,
        "algorithm_name": run.algorithm,
        "connect_timeout_s": run.connect_timeout_s,
        "keys": run.keys,
        "spool": run.spool,
        "sidecar": run.sidecar or None,
        "seed": seed if known.seed is None or run.seed is not None else None,
        "overflow": None if "overflow" in document else "wait",
        "wait_timeout_s": None if "wait_timeout_s" in document else CREDIT_WAIT_S,
        "send_frequency": None if "send_frequency" in document else run.num_envs,  # segments that are cut together leave together
        "observation_space": env.observation_space if known.observation_space is None else None,
        "action_space": env.action_space if known.action_space is None else None,
    }
    if run.client_id is None and "client_id" not in document:
        raise ConfigError("client_id is missing; give --client-id NAME or set it in the --config file", key="client_id")
    chosen = {k: v for k, v in overrides.items() if v is not None}
    config = AgentConfig.from_mapping(document, source=str(run.config_path or ""), **chosen)
    import_plugins(config.plugins, run.config_path)
    return config


def environment_spaces(env: Any, env_id: str) -> dict[str, Any]:
    observations = check_value(f"{env_id}: observation_space", env.observation_space, observation_space_from)
    return {
        "observation_space": observations,
        "action_space": check_value(f"{env_id}: action_space", env.action_space, space_from),
    }


class EpisodeCounts:
    """The counts of episodes and steps of one run."""

    def __init__(self, episodes: int | None = None, every_s: float | None = None) -> None:
        self.steps = 0
        self.returns: deque[float] = deque(maxlen=RECENT_EPISODES)  # of the last `RECENT_EPISODES`
        self.episodes = 0  # number of episodes that have ended
        self._limit = episodes
        self._every_s = every_s
        self._ended: set[int] | None = None
        self._width = 0
        self.began_s = self._said = time.monotonic()  # the monotonic time of the start

    @property
    def done(self) -> bool:
        """True if the requested number of episodes have ended, or each environment has ended an episode since `drain`."""
        if self._ended is not None and len(self._ended) >= self._width:
            return True
        return self._limit is not None and self.episodes >= self._limit

    def begin(self, environments: int) -> None:
        self._width = environments

    def drain(self) -> None:
        """Let each environment end its episode, and then let the run end. Any thread can call this."""
        if self._ended is None:
            self._ended = set()

    def ended(self, environment: int, total: float) -> None:
        self.episodes += 1
        self.returns.append(total)
        if self._ended is not None:
            self._ended.add(environment)

    def summary(self) -> str:
        seconds = time.monotonic() - self.began_s
        mean = f", mean return of the last {len(self.returns)}: {np.mean(self.returns):.1f}" if self.returns else ""
        rate = self.steps / max(seconds, 1e-9)
        return f"{self.episodes:,} episodes, {self.steps:,} steps in {seconds:.1f} s ({rate:,.0f}/s){mean}"

    def print_progress(self, version: Callable[[], int]) -> None:
        """Print the counts and the policy's version, if the interval between lines has passed."""
        if self._every_s is not None and time.monotonic() - self._said >= self._every_s:
            self._said = time.monotonic()
            print_line(f"{self.summary()}, version {version()}")


def play(agent: RL4SysAgent, envs: Sequence[Any], seeds: Sequence[int], tally: EpisodeCounts, *, masks: bool = True) -> None:
    """Run all environments until `tally.done`. In each turn, one request returns all actions, then each environment steps."""
    request, add = agent.request_for_actions, agent.add_to_trajectory
    indices = range(len(envs))
    steps = [env.step for env in envs]
    spec = agent.spec
    layout = action_layout(spec.action_space)
    check = InputValidator(spec.observation_space, spec.action_space).observation
    shape, dtype = spec.observation_space.shape, np.dtype(spec.observation_space.dtype)

    def read(observation: Any) -> Any:
        fits = type(observation) is np.ndarray and observation.shape == shape and observation.dtype == dtype
        return observation if fits else check(observation)[0]  # `request` checks the numbers in the batch

    every = np.ones(layout.logits, np.bool_)
    batch: Any = new_column(spec.observation_space, len(envs))
    allowed: list[Any] = [None] * len(envs)
    for i, (env, seed) in enumerate(zip(envs, seeds, strict=True)):
        observation, info = env.reset(seed=seed)
        batch[i], allowed[i] = read(observation), mask_in(info, layout) if masks else None
    obs = batch[:]  # views: assigning to a row of the batch changes them
    totals = [0.0] * len(envs)
    trajs: Any = None
    rounds = 0
    tally.begin(len(envs))
    while not tally.done:
        masked = any(mask is not None for mask in allowed)
        trajs, actions = request(trajs, obs, [every if mask is None else mask for mask in allowed] if masked else None)
        for i in indices:
            action = actions[i]
            observation, reward, terminated, truncated, info = steps[i](action.act)
            action.update_reward(reward)
            add(trajs[i], action)
            totals[i] += reward
            if terminated or truncated:
                cut = not terminated
                agent.mark_end_of_trajectory(
                    trajs[i],
                    action,
                    truncated=cut,
                    final_obs=observation if cut else None,
                    final_mask=mask_in(info, layout) if cut and masks else None,
                )
                tally.ended(i, float(totals[i]))
                totals[i] = 0.0
                observation, info = envs[i].reset()
            batch[i], allowed[i] = read(observation), mask_in(info, layout) if masks else None
        tally.steps += len(envs)
        rounds += 1
        if rounds % CHECK_STEPS == 0:
            check_signals()
            tally.print_progress(lambda: agent.version)


def _number(seed: np.random.SeedSequence) -> int:
    return int(seed.generate_state(1)[0])
