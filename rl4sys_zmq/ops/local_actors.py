"""The actors of the demo and of `train`, on the learner's machine: processes, or threads of the learner's process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rl4sys_zmq.actor import RL4SysAgent
from rl4sys_zmq.child_process import ChildProcess, end_text
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.errors import Closed, ConfigError, LearnerUnavailable, RL4SysError
from rl4sys_zmq.fleet.engine import CONFIG_EXIT_CODE
from rl4sys_zmq.fleet.process import actor_environment
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.ops.episodes import make_environment
from rl4sys_zmq.ops.playing import CREDIT_WAIT_S, EpisodeCounts, play, seeds_of
from rl4sys_zmq.private import open_private
from rl4sys_zmq.resource import Resource, Worker

log = get_logger(__name__)

START_TIMEOUT_S = 120.0
PROCESS_END_S = 1.0
THREAD_END_S = 10.0


def client_id_of(name: str) -> str:
    """Return the name of an environment, with ``-`` for characters not allowed in the name of a client."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".")


def await_status(learner: Learner) -> dict[str, Any] | None:
    """Return the learner's status, or None if its gateway is too busy to reply."""
    try:
        learner.raise_if_dead()
        return learner.status()
    except LearnerUnavailable:
        log.warning("the gateway does not reply; the machine may be overloaded")
        return None
    except Closed:
        learner.raise_if_dead()
        raise


@dataclass(frozen=True, slots=True)
class EnvironmentSource:
    """A source of environments: an ID, a function that returns a new one, or a single environment."""

    given: Any

    @property
    def single(self) -> bool:
        """True if there is only one environment, which belongs to the caller."""
        if isinstance(self.given, str):
            return False
        import gymnasium

        return isinstance(self.given, gymnasium.Env)

    @property
    def name(self) -> str:
        given = self.given
        return given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)

    @contextmanager
    def opened(self, count: int) -> Iterator[list[Any]]:
        """Make `count` environments, and close them at the end, unless they belong to the caller."""
        from rl4sys_zmq.serving.environments import make_environments

        given = partial(make_environment, {"id": self.given}) if isinstance(self.given, str) else self.given
        with ExitStack() as stack:
            envs = []
            for env in make_environments(given, count, {}):
                envs.append(env)
                if not self.single:
                    stack.callback(env.close)
            yield envs


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalActors:
    """The actors of one client on this machine."""

    client_id: str
    source: EnvironmentSource
    actors: int
    num_envs: int  # number of environments of each actor
    seed: int | None
    steps: int | None = None  # number of steps of all actors together. None: no limit
    plugins: tuple[str, ...] = ()

    def shares(self) -> list[tuple[int, int | None]]:
        """Return the seed and the number of steps of each actor."""
        seeds = [int(number) for number in np.random.SeedSequence(self.seed).generate_state(self.actors)]
        if self.steps is None:
            return [(seed, None) for seed in seeds]
        each, rest = divmod(self.steps, self.actors)
        return [(seed, each + (i < rest)) for i, seed in enumerate(seeds) if each + (i < rest)]


class ActorProcesses(Resource):
    """Actor processes. Each ends when the pipe at its stdin closes, even if this process is killed."""

    def __init__(self, address: str, plan: LocalActors, folder: Path) -> None:
        shares = plan.shares()
        self._ends = plan.steps is not None
        self._logs = [folder / f"actor-{i}.log" for i in range(len(shares))]
        self._processes: list[ChildProcess] = []
        self._stopped = False
        try:
            for log_file, (seed, steps) in zip(self._logs, shares, strict=True):
                with os.fdopen(open_private(log_file), "wb") as output:
                    self._processes.append(
                        ChildProcess(
                            [
                                *(sys.executable, "-m", "rl4sys_zmq.cli.actor", "run", "--exit-with-stdin", "--verbose"),
                                *("--env", plan.source.name, "--learner", address, "--client-id", plan.client_id),
                                *("--num-envs", str(plan.num_envs), "--seed", str(seed)),
                                *("--connect-timeout", str(START_TIMEOUT_S)),
                                *(() if steps is None else ("--steps", str(steps))),
                                *(word for module in plan.plugins for word in ("--plugin", module)),
                            ],
                            stdin=subprocess.PIPE,
                            stdout=output,
                            stderr=subprocess.STDOUT,
                            env=actor_environment(),
                            start_new_session=True,  # Ctrl-C reaches only this process, which then ends the actors
                        )
                    )
        except BaseException:
            self.close()
            raise

    def running(self) -> bool:
        """Return True until all have taken their steps. Raise an exception with the last output of one that has failed."""
        codes = [process.poll() for process in self._processes]
        for code, log_file in zip(codes, self._logs, strict=True):
            if code is not None and (code or not (self._ends or self._stopped)):
                lines = log_file.read_text(errors="replace").strip().splitlines() or ["nothing"]
                kind = ConfigError if code == CONFIG_EXIT_CODE else RL4SysError
                raise kind(f"an actor process ended ({end_text(code)}); its last output: {lines[-1]} (log file: {log_file})")
        return None in codes

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            for process in self._processes:
                if process.poll() is None:
                    process.terminate()

    def close(self) -> None:
        """End all processes: send SIGTERM, wait up to `PROCESS_END_S`, then kill the rest."""
        self.stop()
        deadline = time.monotonic() + PROCESS_END_S
        for process in self._processes:
            process.end(max(0.0, deadline - time.monotonic()))
            if process.stdin is not None:
                process.stdin.close()


class _ActorThread(Worker):
    """A thread that plays in its environments until its steps are taken."""

    def __init__(self, agent: RL4SysAgent, plan: LocalActors, seeds: list[int], steps: int | None) -> None:
        super().__init__(f"rl4sys-play-{agent.actor_id}")
        self.failure: BaseException | None = None
        self.agent = agent
        self._source, self._seeds, self._tally = plan.source, seeds, EpisodeCounts(steps=steps)

    def run(self) -> None:
        try:
            with self._source.opened(len(self._seeds)) as envs:
                play(self.agent, envs, self._seeds, self._tally)
                self.agent.flush(CREDIT_WAIT_S)
        except BaseException as exc:  # noqa: BLE001 - `ActorThreads.running` raises it, with its traceback
            self.failure = exc

    def stop(self) -> None:
        super().stop()
        self._tally.finish()


class ActorThreads(Resource):
    """Actors as threads of this process, with the methods of `ActorProcesses`."""

    def __init__(self, address: str, plan: LocalActors, spaces: dict[str, Any]) -> None:
        self._threads: list[_ActorThread] = []
        try:
            for seed, steps in plan.shares():
                agent_seed, seeds = seeds_of(seed, plan.num_envs)
                config = AgentConfig(
                    client_id=plan.client_id,
                    train_server_address=address,
                    connect_timeout_s=START_TIMEOUT_S,
                    overflow="wait",
                    wait_timeout_s=CREDIT_WAIT_S,
                    send_frequency=plan.num_envs,
                    seed=agent_seed,
                    **spaces,
                )
                self._threads.append(_ActorThread(RL4SysAgent(config=config), plan, seeds, steps))
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.close()
            raise

    def running(self) -> bool:
        """Return True until all have taken their steps. Raise the exception of one that has failed."""
        alive = [thread.alive for thread in self._threads]
        for thread in self._threads:
            if thread.failure is not None:
                raise thread.failure
        return any(alive)

    def stop(self) -> None:
        """Let each actor end after its current turn."""
        for thread in self._threads:
            thread.stop()

    def close(self) -> None:
        """End all threads. A wait for the learner ends with an error; a step of an environment has `THREAD_END_S` seconds."""
        self.stop()
        for thread in self._threads:
            thread.agent.close(0.0)
        deadline = time.monotonic() + THREAD_END_S
        for thread in self._threads:
            if not thread.join(max(0.0, deadline - time.monotonic())):
                log.error("%s: its environment has not returned within %g s; the thread is left", thread.name, THREAD_END_S)
