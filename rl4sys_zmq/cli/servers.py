"""Commands that run a server in the foreground until Ctrl-C or SIGTERM: a relay, or Gymnasium environments."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rl4sys_zmq.cli.app import configure_logging, print_line, require
from rl4sys_zmq.cli.signals import check_signals, end_with_stdin
from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.logs import get_logger, outlive_output
from rl4sys_zmq.relay import Relay
from rl4sys_zmq.transports import RESERVE, raise_descriptor_limit

if TYPE_CHECKING:
    from rl4sys_zmq.serving import GymEnvServer

log = get_logger(__name__)

POLL_S = 0.25
VERBOSE_S = 5.0
DESCRIPTORS_PER_CHILD, OTHER_DESCRIPTORS = 2, 64
"""The open files of a relay: one connection of each child for requests and one for weights, and files and other peers."""


def relay(options: Mapping[str, object], *, debug: bool) -> None:
    configure_logging(debug)
    outlive_output()
    config = RelayConfig.from_mapping(options)
    wanted = DESCRIPTORS_PER_CHILD * config.max_children + OTHER_DESCRIPTORS + RESERVE
    if (limit := raise_descriptor_limit(wanted)) < wanted:
        children = max(0, limit - OTHER_DESCRIPTORS - min(RESERVE, limit // 4)) // DESCRIPTORS_PER_CHILD
        warning = "the limit of open files is %d, enough for %d children; raise the hard limit to %d, or lower --max-children"
        log.warning(warning, limit, children, wanted)
    with Relay(config) as running:
        print_line(f"relay at {running.address} (weights {running.pub_address}) of {running.config.upstream}")
        _watch(running)


def serve_env(
    *,
    env: str,
    count: int,
    port: int | None,
    bind: str | None,
    render_mode: str | None,
    lease: float,
    no_check: bool,
    keys: Path | None,
    insecure: bool,
    exit_with_stdin: bool,
    verbose: bool,
    debug: bool,
) -> None:
    if port is not None and bind is not None:
        raise click.UsageError("give either --port or --bind")
    require("gym", "gymnasium")
    from rl4sys_zmq.ops.episodes import make_environment
    from rl4sys_zmq.serving.environments import DEFAULT_PORT, GymEnvServer

    configure_logging(debug)
    outlive_output()
    if exit_with_stdin:
        end_with_stdin()
    where = bind if bind is not None else DEFAULT_PORT if port is None else port
    arguments = {"id": env} | ({} if render_mode is None else {"render_mode": render_mode})
    with GymEnvServer(
        lambda: make_environment(arguments),
        count,
        bind=where,
        lease_s=lease,
        check_observations=not no_check,
        keys=keys,
        insecure=insecure,
    ) as server:
        server.start()
        print_line(f"{count} x {env} at {server.address}; Ctrl-C ends it")
        try:
            _watch(server, (lambda: _summary(server)) if verbose else None)
        finally:
            print_line(_summary(server))


def _watch(server: Relay | GymEnvServer, summary: Callable[[], str] | None = None) -> None:
    """Wait for a signal, or for an exception in a thread of the server. Print a summary every few seconds."""
    said_s = time.monotonic()
    while True:
        time.sleep(POLL_S)
        check_signals()
        server.raise_if_dead()
        if summary is not None and time.monotonic() - said_s >= VERBOSE_S:
            said_s = time.monotonic()
            print_line(summary())


def _summary(server: GymEnvServer) -> str:
    report = server.status()
    counts = report["counters"]
    refused = sum(n for name, n in counts.items() if name.startswith("refused."))
    bad = {"calls failed": counts.get("failed", 0), "calls refused": refused}
    tail = "".join(f", {number:,} {words}" for words, number in bad.items() if number)
    done = f"{counts.get('steps', 0):,} steps, {counts.get('episodes', 0):,} episodes"
    return f"{done}, {report['taken']} of {server.count} taken{tail}"
