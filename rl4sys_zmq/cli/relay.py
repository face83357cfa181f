"""The command ``rl4sys-learner relay``: runs a relay in the foreground until Ctrl-C or SIGTERM."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rl4sys_zmq.cli.app import configure_logging, print_line
from rl4sys_zmq.cli.signals import check_signals
from rl4sys_zmq.config import RelayConfig
from rl4sys_zmq.logs import get_logger, outlive_output
from rl4sys_zmq.relay import Relay
from rl4sys_zmq.transports import RESERVE, raise_descriptor_limit

log = get_logger(__name__)

POLL_S = 0.25
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
        while True:
            time.sleep(POLL_S)
            check_signals()
            running.raise_if_dead()
