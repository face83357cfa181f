"""The command ``rl4sys-learner relay``: runs a relay, which passes weights on, in the foreground until Ctrl-C or SIGTERM."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rl4sys_zmq.cli.app import configure_logging, print_line
from rl4sys_zmq.cli.signals import SignalHandlers
from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.relay import Relay

__all__ = ["relay"]

POLL_S = 0.25


def relay(options: Mapping[str, object], *, debug: bool) -> None:
    """Run a relay until Ctrl-C or SIGTERM.

    Args:
        options: The options of a `RelayConfig`.
        debug: True to log everything.

    Raises:
        ConfigError, TransportError: If the relay cannot start with these options.
        WorkerDied: If a thread of the relay ended with an error.
    """
    configure_logging(debug)
    signals = SignalHandlers.current
    with Relay(RelayConfig.from_mapping(options)) as running:
        print_line(f"relay at {running.address} (weights {running.pub_address}) of {running.config.upstream}")
        while True:
            time.sleep(POLL_S)
            if signals is not None:
                signals.check()
            running.raise_if_dead()
