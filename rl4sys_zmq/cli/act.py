"""The command ``rl4sys-actor run``: an actor with several Gymnasium environments, whose observations form one batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl4sys_zmq.actor import RL4SysAgent
from rl4sys_zmq.cli.app import configure_logging, print_line
from rl4sys_zmq.cli.signals import check_signals, end_with_stdin
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.config.rl4sys import IGNORED_BY_ACTORS
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.fleet.engine import REPORT_S, ActorReport
from rl4sys_zmq.logs import outlive_output
from rl4sys_zmq.ops.episodes import make_environment
from rl4sys_zmq.ops.playing import CREDIT_WAIT_S, EpisodeCounts, environment_spaces, play, seeds_of
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.resource import Worker
from rl4sys_zmq.values import DiscreteSpace
from rl4sys_zmq.values.observations import have_same_form

LAST_FLUSH_S = 10.0
SIGNALLED_FLUSH_S = 0.5
VERBOSE_S = 5.0


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
    steps: int | None = None
    plugin: tuple[str, ...] = ()


def act(run: RunOptions) -> None:
    """Run an actor until the given number of episodes or steps, or until a signal arrives."""
    configure_logging(run.debug)
    outlive_output()
    tally = EpisodeCounts(run.episodes, run.steps)
    if run.exit_with_stdin:
        end_with_stdin(lambda line: tally.drain() if line == "drain" else None)
    seed, seeds = seeds_of(run.seed, run.num_envs)
    envs = [make_environment({"id": run.env_id}) for _ in range(run.num_envs)]
    try:
        config = agent_config(run, envs[0], seed)
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
            play(agent, envs, seeds, tally, masks=run.masks, check=_checks(run, agent, tally))
            flush_s = LAST_FLUSH_S
        finally:
            agent.close(flush_s)
            output.end()
    finally:
        for env in envs:
            env.close()


def _checks(run: RunOptions, agent: RL4SysAgent, tally: EpisodeCounts) -> Callable[[], None]:
    """Return a function that raises if a signal has arrived, and with ``--verbose`` prints the counts every few seconds."""
    said = time.monotonic()

    def check() -> None:
        nonlocal said
        check_signals()
        if run.verbose and not run.json and time.monotonic() - said >= VERBOSE_S:
            said = time.monotonic()
            print_line(f"{tally.summary()}, version {agent.version}")

    return check


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
