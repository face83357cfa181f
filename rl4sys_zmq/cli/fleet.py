"""The command ``rl4sys-actor run --num-actors N``: a fleet of actor processes, with one line of output for all of them."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import strftime
from typing import Any

import numpy as np

from rl4sys_zmq.cli.act import RunOptions
from rl4sys_zmq.cli.app import configure_logging, print_line, require
from rl4sys_zmq.cli.signals import SignalHandlers, StopSignalReceived, check_signals, end_with_stdin
from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.config.learner import ray_address
from rl4sys_zmq.config.options import check_value
from rl4sys_zmq.config.rl4sys import expand_sections
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.fleet import ActorEngine, Fleet, FleetConfig, FleetStatus, ProcessEngine, SizeLimits
from rl4sys_zmq.fleet.engine import TERMINATE_S
from rl4sys_zmq.fleet.process import actor_environment
from rl4sys_zmq.logs import outlive_output

POLL_S = 0.1
SHOW_S, JSON_S, VERBOSE_S, LINES_S = 0.25, 1.0, 5.0, 60.0
DRAIN_SLACK_S = {"process": 2.0, "ray": 10.0}
"""The time beyond the grace that a fleet has to end after a signal, by engine. Ray itself needs some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The options of ``rl4sys-actor run`` for a fleet, as its help describes them. `run` has the options of each actor."""

    run: RunOptions
    engine: str
    num_actors: int | None
    min_actors: int | None
    max_actors: int | None
    grace_s: float
    ray_address: str | None = None


def run_fleet(options: FleetOptions) -> None:
    """Run a fleet of actor processes until all have played their episodes, or a signal arrives."""
    configure_logging(options.run.debug)
    outlive_output()
    if options.engine == "process":
        require("gym", "gymnasium")
    config = fleet_config(options)
    options = replace(options, run=shared_options(options.run, resizes=config.limits is not None))
    drain_asked = threading.Event()
    if options.run.exit_with_stdin:
        end_with_stdin(lambda line: drain_asked.set() if line == "drain" else None)
    signals = SignalHandlers.current
    display = _display(options.run)
    engine = ENGINES[options.engine](options, display)
    if signals is not None:
        signals.defers = True
        signals.patience_s = options.grace_s + TERMINATE_S + DRAIN_SLACK_S[options.engine]
    with Fleet(config, engine, display.event) as fleet:
        try:
            while not fleet.done and not drain_asked.is_set():
                fleet.tick(POLL_S)
                display.show(fleet.status())
                check_signals()
            _drain(fleet, display, options.grace_s)
        except StopSignalReceived:
            _drain(fleet, display, options.grace_s)
            display.last(fleet.status())
            raise
        display.last(fleet.status())


def _drain(fleet: Fleet, display: _FleetDisplay, grace_s: float) -> None:
    if fleet.alive:
        display.event(f"draining {fleet.alive} actors, at most {grace_s:g} s")
    fleet.drain()
    while fleet.alive:
        fleet.tick(POLL_S)


def fleet_config(options: FleetOptions) -> FleetConfig:
    low, actors, high = options.min_actors, options.num_actors, options.max_actors
    if (low is None) != (high is None):
        raise ConfigError("give both --min-actors and --max-actors, or neither", key="min_actors")
    limits = None
    if low is not None and high is not None:
        actors = low if actors is None else actors
        if not low <= actors <= high:
            raise ConfigError(
                f"--num-actors {actors} is not between --min-actors {low} and --max-actors {high}", key="num_actors"
            )
        for key in ("episodes", "steps"):
            if getattr(options.run, key) is not None:
                raise ConfigError(f"--{key} needs a fixed number of actors; omit --min-actors and --max-actors", key=key)
        limits = SizeLimits(low, high)
    starting = max(2, os.cpu_count() or 1)
    if options.engine == "ray":  # each actor starts on a CPU of its own
        starting = max(actors or 1, high or 1)
    return FleetConfig(actors=actors or 1, limits=limits, grace_s=options.grace_s, starting=starting)


def shared_options(run: RunOptions, *, resizes: bool) -> RunOptions:
    """Return the options of all actors: `actor_id` is the beginning of their names, `spool` the folder of their spools.

    `resizes` is True if the number of actors can change.
    """
    document: Mapping[str, Any] = expand_sections(read_mapping(run.config_path)) if run.config_path is not None else {}
    if document.get("policy_cache") is not None:
        problem = "policy_cache: the actors of a fleet cannot share a file; use `spool`, which has one for each actor"
        raise ConfigError(f"{run.config_path}: {problem}", key="policy_cache")
    if resizes and (document.get("overflow", "wait") != "wait" or document.get("explore") is False):
        problem = "--min-actors and --max-actors need actors that wait for the learner: set overflow to wait and explore to true"
        raise ConfigError(f"{run.config_path}: {problem}", key="overflow")
    spool = run.spool if run.spool is not None else document.get("spool")
    name = run.actor_id or document.get("actor_id") or f"fleet-{secrets.token_hex(4)}"
    return replace(run, actor_id=str(name), spool=Path(str(spool)) if spool is not None else None)


def actor_command(run: RunOptions, index: int, start: int) -> list[str]:
    """Return the command line of one actor process, from the result of `shared_options`.

    Each start of each actor has a seed of its own, which depends only on ``--seed``, `index` and `start`.
    """
    seed = None if run.seed is None else int(np.random.SeedSequence(run.seed, spawn_key=(index, start)).generate_state(1)[0])
    options: dict[str, object] = {
        "env": run.env_id,
        "learner": run.learner,
        "client-id": run.client_id,
        "actor-id": f"{run.actor_id}-{index}",
        "config": run.config_path,
        "num-envs": run.num_envs,
        "episodes": run.episodes,
        "steps": run.steps,
        "seed": seed,
        "algorithm": run.algorithm,
        "keys": run.keys,
        "spool": run.spool / f"actor-{index}" if run.spool is not None else None,
        "connect-timeout": run.connect_timeout_s,
    }
    flags = [
        "--exit-with-stdin",
        "--json",
        *["--sidecar"] * run.sidecar,
        *["--no-masks"] * (not run.masks),
        *["--debug"] * run.debug,
    ]
    return [
        *(sys.executable, "-m", "rl4sys_zmq.cli.actor", "run", *flags),
        *(word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))),
        *(word for module in run.plugin for word in ("--plugin", module)),
    ]


def _on_output(run: RunOptions, display: _FleetDisplay) -> Callable[[int, str], None]:
    talks = run.verbose or run.debug
    return lambda index, line: display.event(f"actor {index}: {line}") if talks else None


def _processes(options: FleetOptions, display: _FleetDisplay) -> ActorEngine:
    return ProcessEngine(partial(actor_command, options.run), actor_environment(), _on_output(options.run, display))


def _ray_actors(options: FleetOptions, display: _FleetDisplay) -> ActorEngine:
    from rl4sys_zmq.fleet.ray_engine import RayActorEngine

    cluster = None if options.ray_address is None else check_value("ray_address", options.ray_address, ray_address)
    run = options.run

    def absolute(path: Path | None) -> Path | None:
        return None if path is None else path.absolute()

    run = replace(run, config_path=absolute(run.config_path), keys=absolute(run.keys), spool=absolute(run.spool))
    return RayActorEngine(
        lambda index, start: actor_command(run, index, start)[1:], cluster, _on_output(run, display), display.event
    )


ENGINES: Mapping[str, Callable[[FleetOptions, _FleetDisplay], ActorEngine]] = {
    "process": _processes,
    "ray": _ray_actors,
}
"""A function for each name of an engine, which creates the engine without actors."""


class _FleetDisplay:
    """The output of a fleet to a file or a pipe: its metrics every few seconds, and a line for each event."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._shown_at = time.monotonic()

    def show(self, status: FleetStatus) -> None:
        """Write the metrics if the interval has passed since the last time."""
        if time.monotonic() - self._shown_at >= self._every_s:
            self._shown_at = time.monotonic()
            self.write(status)

    def write(self, status: FleetStatus) -> None:
        print_line(f"{strftime('%Y-%m-%d %H:%M:%S')} {status.line()}")

    def event(self, text: str) -> None:
        print_line(f"{strftime('%Y-%m-%d %H:%M:%S')} {text}")

    def last(self, status: FleetStatus) -> None:
        self.write(status)


class _JsonDisplay(_FleetDisplay):
    """The output of a fleet for programs: its metrics each second, as a line of JSON. Events go to stderr."""

    def write(self, status: FleetStatus) -> None:
        print_line(json.dumps(asdict(status)))

    def event(self, text: str) -> None:
        print_line(text, err=True)


class _TerminalDisplay(_FleetDisplay):
    """The output of a fleet on a terminal: a line with its metrics that is written again in place."""

    def write(self, status: FleetStatus) -> None:
        line = status.line()[: shutil.get_terminal_size().columns - 1]
        sys.stdout.write(f"\r\x1b[K{line}")
        sys.stdout.flush()

    def event(self, text: str) -> None:
        sys.stdout.write("\r\x1b[K")
        super().event(text)

    def last(self, status: FleetStatus) -> None:
        sys.stdout.write("\r\x1b[K")
        print_line(status.line())


def _display(run: RunOptions) -> _FleetDisplay:
    if run.json:
        return _JsonDisplay(JSON_S)
    if sys.stdout.isatty():
        return _TerminalDisplay(SHOW_S)
    return _FleetDisplay(VERBOSE_S if run.verbose else LINES_S)
