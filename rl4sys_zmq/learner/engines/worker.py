"""The program of a worker process, ``python -m rl4sys_zmq.learner.engines.worker FD``.

FD is the descriptor of the socketpair to the learner's process, from which it receives its task. The main thread runs the same
code as a learner thread. The process ends when it is told to, when its algorithm raises, and when the learner's process ends:
then at once on Linux, otherwise within `ORPHAN_S` seconds and without a checkpoint.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import asdict

from rl4sys_zmq.child_process import begin_child
from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.learner.engines import packets
from rl4sys_zmq.learner.engines.remote_start import ProcessStart
from rl4sys_zmq.learner.training.learner_thread import LearnerThread
from rl4sys_zmq.liveness import WORKER_REPORT_S
from rl4sys_zmq.logs import ForwardingHandler, get_logger
from rl4sys_zmq.plugins import import_plugins
from rl4sys_zmq.transports.context import context, open_sockets

log = get_logger(__name__)

ORPHAN_S = 2.0

MAX_LOG_CHARS = 10_000
"""Limit on the text of a log record, in characters. Each takes up to 12 bytes of a packet, which has `MAX_PACKET_BYTES`."""


def _follow_commands(pair: socket.socket, learner: LearnerThread) -> None:
    """Carry out the learner's commands, and send signs of life to the learner. End this process when the learner ends."""
    poll = select.poll()
    poll.register(pair, select.POLLIN)
    commands = {packets.END: learner.expect_end, packets.STOP: learner.stop, packets.REPLACE: learner.replace}
    with suppress(EOFError):
        while True:
            _send(pair, packets.TURN, busy_s=learner.busy_s)
            poll.poll(round(WORKER_REPORT_S * 1000))
            for command, _ in packets.read_packets(pair):
                commands[command]()
    learner.replace()
    threading.Event().wait(ORPHAN_S)
    os._exit(1)


def _send(pair: socket.socket, kind: str, **fields: object) -> None:
    with suppress(OSError):  # the learner has ended, or reads nothing now
        pair.send(packets.encode_packet(kind, **fields), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def main() -> None:
    """Train one client, as the learner's process says, and end this process."""
    begin_child(signal.SIGINT, signal.SIGTERM)  # the learner ends this process in order
    faulthandler.enable()
    pair = socket.socket(fileno=int(sys.argv[1]))
    data = pair.recv(packets.MAX_PACKET_BYTES)
    if not data:
        os._exit(1)
    start = ProcessStart(**json.loads(data))
    sys.path[:] = start.path
    root = logging.getLogger()
    root.addHandler(
        ForwardingHandler(lambda name, level, text: _send(pair, packets.LOG, name=name, level=level, text=text), MAX_LOG_CHARS)
    )
    root.setLevel(start.log_level)
    logging.captureWarnings(True)
    code = 1
    try:
        _train(pair, start)
        code = 0
    except BaseException:
        log.exception("the process that trains client %s ends with an error", start.client_id)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _train(pair: socket.socket, start: ProcessStart) -> None:
    try:
        import_plugins(start.plugins)
    except ConfigError as exc:
        _send(pair, packets.FAILED, error=str(exc)[:1000], trace="", crashed=False)
        return
    name = f"rl4sys-learner-{start.client_id}"
    learner = LearnerThread(name, bytes.fromhex(start.key), start.down, start.up, remote=True)
    threading.Thread(target=_follow_commands, args=(pair, learner), name="rl4sys-commands", daemon=True).start()
    learner.run()
    if not open_sockets():
        context().term()  # this sends the last messages
    if learner.failure is not None:
        _send(pair, packets.FAILED, **asdict(learner.failure))


if __name__ == "__main__":
    main()
