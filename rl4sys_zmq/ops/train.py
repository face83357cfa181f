"""Training in one call: `train` runs a learner and its actors on this machine until a number of steps."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rl4sys_zmq.actor import FrozenAgent
from rl4sys_zmq.algorithms import ALGORITHMS, TaskPreset
from rl4sys_zmq.config import ClientConfig, EvaluationConfig, LearnerConfig
from rl4sys_zmq.config.options import check_value, integer, optional
from rl4sys_zmq.errors import ClientFailed, ConfigError, RL4SysError
from rl4sys_zmq.learner import Learner
from rl4sys_zmq.learner.gateway.static_check import check_buildable
from rl4sys_zmq.ops.episodes import check_spaces, play_episode
from rl4sys_zmq.ops.local_actors import (
    ActorProcesses,
    ActorThreads,
    EnvironmentSource,
    LocalActors,
    await_status,
    client_id_of,
)
from rl4sys_zmq.ops.playing import CREDIT_WAIT_S, environment_spaces
from rl4sys_zmq.policies import Policy, StoredPolicy, build_policy
from rl4sys_zmq.policies.folder import encode_policy, write_policy

POLL_S = 0.05
NUM_ENVS = 8

Callback = Callable[[Mapping[str, Any]], object]
"""A function that gets the status of the training. If it returns False, the training ends."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of `TrainResult.evaluate`.

    Attributes:
        mean: The mean of the returns.
        std: Their standard deviation.
        returns: The return of each episode.
        lengths: The number of steps of each episode.
    """

    mean: float
    std: float
    returns: list[float]
    lengths: list[int]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of `train`.

    Attributes:
        status: The last status of the training: the client's entry in `Learner.status`, such as ``steps`` and ``mean_return``.
        run_dir: The run directory; None without one.
    """

    status: Mapping[str, Any] = field(repr=False)
    run_dir: Path | None
    _stored: StoredPolicy = field(repr=False)
    _source: EnvironmentSource = field(repr=False)

    @property
    def policy(self) -> Policy:
        """The trained policy, in numpy."""
        return build_policy(self._stored.spec, self._stored.snapshot)

    def evaluate(self, episodes: int = 20, *, seed: int = 0) -> Evaluation:
        """Play episodes without exploration, in an environment of the training's kind.

        Args:
            episodes: The number of episodes.
            seed: The seed of their initial states.

        Raises:
            ConfigError: If an argument is invalid, or the environment has other spaces than the policy.
        """
        episodes = check_value("episodes", episodes, integer(1))
        seeds = np.random.SeedSequence(seed).generate_state(episodes)
        with (
            tempfile.TemporaryDirectory(prefix="rl4sys-") as folder,
            FrozenAgent(self.save(Path(folder) / "policy"), seed=seed) as agent,
            self._source.opened(1) as (env,),
        ):
            check_spaces(agent, env, self._source.name)
            played = [play_episode(agent, env, int(number)) for number in seeds]
        returns, lengths = [total for total, _ in played], [length for _, length in played]
        return Evaluation(float(np.mean(returns)), float(np.std(returns)), returns, lengths)

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the policy to a folder, for `FrozenAgent` and the commands. An earlier policy there is replaced.

        Raises:
            PolicyFolderError: If the folder has other files, or cannot be written.
        """
        write_policy(Path(folder), encode_policy(self._stored), force=True)
        return Path(folder)


def train(  # noqa: PLR0913 - what a user of another library types
    env: Any,
    algorithm: str = "PPO",
    *,
    steps: int,
    seed: int | None = None,
    actors: int = 1,
    callbacks: Iterable[Callback] = (),
    run_dir: str | os.PathLike[str] | None = None,
    parameters: Mapping[str, object] | None = None,
    evaluate_every: int | None = None,
    progress: bool = True,
    processes: bool = False,
) -> TrainResult:
    """Train a policy on this machine, with a learner and actors that this call starts and ends.

    The learner loses no step, and learns from each. The call works in any thread, and several can run at once.

    Args:
        env: The Gymnasium environment: its ID; a function that returns a new one; or one environment, which stays open.
        algorithm: The name of the algorithm.
        steps: The number of environment steps.
        seed: The seed of all random numbers; None takes one from the operating system. With one actor, without `processes`, an
            on-policy algorithm gives the same policy again. Off-policy algorithms learn while the actor plays, so their runs
            differ.
        actors: The number of actors, each with 8 environments, or as many as the tested settings of the task say. An actor with
            one environment given has that one.
        callbacks: Functions that get the status (see `TrainResult.status`) each time it has changed, in the thread of the caller.
            If one returns False, the training ends early; an exception ends it at once.
        run_dir: The folder for the log, checkpoints and TensorBoard files. An earlier run in it is continued. None writes no
            files.
        parameters: The parameters of the algorithm. None takes the tested settings of the task, or else the defaults.
        evaluate_every: The number of steps from one evaluation to the next, by a process of its own. The status has the results,
            and the run directory the best policy. It needs an ID as `env`.
        progress: True shows a bar with the time left on stderr, if that is a terminal and ``rich`` is installed.
        processes: True runs each actor as a process, which is faster for slow environments. It needs an ID as `env`, and
            `run_dir`, for the logs of the actors.

    Returns:
        The result, with the trained policy.

    Raises:
        ConfigError: If an argument is invalid, an environment cannot be made, or a package is missing.
        ClientFailed: If the algorithm fails.
        Exception: What an environment or a callback raises.
    """
    steps, actors = check_value("steps", steps, integer(1)), check_value("actors", actors, integer(1, 1024))
    source, folder = EnvironmentSource(env), Path(run_dir) if run_dir is not None else None
    _check_source(source, folder, actors, processes=processes, evaluates=evaluate_every is not None)
    entry = ALGORITHMS.get(algorithm)
    preset = entry.presets.get(source.name, TaskPreset({}, num_envs=NUM_ENVS, actors=1, pacing_lag=1, target_return=0.0))
    if parameters is None:
        parameters = {**preset.parameters, **({"total_steps": steps} if "total_steps" in preset.parameters else {})}
    with source.opened(1) as (probe,):
        spaces = environment_spaces(probe, source.name)
    client_id = client_id_of(source.name)
    client = ClientConfig(
        algorithm_name=algorithm,
        algorithm_parameters=parameters,
        pacing_lag=preset.pacing_lag if processes else 0,  # threads share the GIL: collecting ahead gains nothing
        evaluation=EvaluationConfig(env=env, every_steps=evaluate_every) if evaluate_every is not None else None,
        **spaces,
    )
    config = LearnerConfig(
        bind="tcp://127.0.0.1:0" if processes else f"inproc://train-{uuid.uuid4().hex}",
        run_dir=folder,
        clients={client_id: client},
        seed=check_value("seed", seed, optional(integer(0, 2**63 - 1))),
        torch_threads=1,
        engine="process" if entry.isolated else "thread",
    )
    check_buildable(config)
    if config.engine == "thread":
        entry.load()
    plan = LocalActors(
        client_id=client_id,
        source=source,
        actors=actors,
        num_envs=1 if source.single else min(preset.num_envs, steps),
        seed=seed,
        steps=steps,
    )
    with Learner(config) as learner:
        if client_id in learner.resumed_clients:
            learner.wait(client_id=client_id, version=0, timeout_s=CREDIT_WAIT_S)
        before = _client(learner.status(), client_id).get("steps", 0)
        apart = folder if processes else None
        team = ActorProcesses(learner.address, plan, apart) if apart else ActorThreads(learner.address, plan, spaces)
        with team, _bar(client_id, before, steps, shown=progress) as show:
            _follow(learner, team, client_id, [show, *callbacks])
            try:
                learner.drain(timeout_s=CREDIT_WAIT_S)
            except RL4SysError:
                _client(learner.status(), client_id)  # raises if the failure of the training is the cause
                raise
            status = _client(learner.status(), client_id)
            show(status)
        return TrainResult(status, folder, learner.policy(client_id), source)


def _check_source(source: EnvironmentSource, folder: Path | None, actors: int, *, processes: bool, evaluates: bool) -> None:
    if not (isinstance(source.given, str) or callable(source.given) or source.single):
        raise ConfigError(f"env: expected an ID, a function or an environment, not {source.given!r:.60}", key="env")
    if source.single and actors > 1:
        raise ConfigError("actors: one environment serves one actor; give a function that makes environments", key="actors")
    for key, given in (("processes", processes), ("evaluate_every", evaluates)):
        if given and not isinstance(source.given, str):
            raise ConfigError(f"{key}: another process needs the ID of the environment; give it as env", key=key)
    if processes and folder is None:
        raise ConfigError("processes: the actors need a folder for their logs; give run_dir", key="run_dir")


def _client(report: Mapping[str, Any], client_id: str) -> Mapping[str, Any]:
    """Return the client's entry in a status report. Raise `ClientFailed` if its training has failed."""
    client: Mapping[str, Any] = report["clients"].get(client_id, {})
    if client and client["state"] == "failed":
        raise ClientFailed(client_id, client["error"])
    return client


def _follow(learner: Learner, actors: ActorProcesses | ActorThreads, client_id: str, callbacks: Iterable[Callback]) -> None:
    """Wait until the actors have taken their steps, and call the callbacks with each change of the status."""
    seen: object = None
    while actors.running():
        report = await_status(learner)
        client = _client(report, client_id) if report is not None else {}
        now = [client.get(key) for key in ("steps", "episodes", "updates", "version")]
        now.append(client.get("evaluator", {}).get("evaluations"))
        if client and now != seen:
            seen = now
            if [None for callback in callbacks if callback(client) is False]:
                actors.stop()
        time.sleep(POLL_S)


@contextmanager
def _bar(name: str, before: int, steps: int, *, shown: bool) -> Iterator[Callback]:
    """Show a progress bar on stderr in the ``with`` block, if that is a terminal and rich is installed."""
    terminal = shown and sys.stderr is not None and sys.stderr.isatty()
    if not terminal or importlib.util.find_spec("rich") is None:
        yield lambda client: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    texts = ("{task.completed:,} of {task.total:,} steps", "{task.fields[mean]}", "left")
    columns = TextColumn("{task.description}"), BarColumn(), *map(TextColumn, texts), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=steps, mean="")

        def show(client: Mapping[str, Any]) -> None:
            mean = client.get("mean_return")
            bar.update(task, completed=client["steps"] - before, mean="" if mean is None else f"return {mean:.1f}")

        yield show
