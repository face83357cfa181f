"""Messages about alarms to a webhook or a command of the user, sent by a thread of the learner."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from rl4sys_zmq.child_process import ChildProcess, child_environment, end_text, start_error_text
from rl4sys_zmq.config import AlarmsConfig
from rl4sys_zmq.counters import Counters
from rl4sys_zmq.learner.run import webhook
from rl4sys_zmq.learner.run.record_thread import RecordThread
from rl4sys_zmq.learner.run.recorder import NullEventSink
from rl4sys_zmq.logs import get_logger, printable

log = get_logger(__name__)

ALARM: Final = "alarm"
SENT: Final = frozenset(
    {ALARM, "checkpoint_damaged", "checkpoint_failed", "client_failed", "gap", "journal_rescued", "loss_accepted"}
)
"""The events about which messages are sent."""
SEND_S = 10.0
"""Longest time for one message to one receiver, in seconds. Then its process is killed, with those that it has started."""
CLOSE_S = 1.0
"""Time after `AlarmSender.stop` in which messages are still sent, in seconds."""
LOOK_S = 0.1
MAX_CHARS = 1000


def message(event: str, fields: Mapping[str, Any], at_unix_s: float, run_dir: Path | None, left_out: int = 0) -> dict[str, Any]:
    """Return a message as JSON values, with a sentence in ``text`` as chat programs expect."""
    host = socket.gethostname()
    kept = {name: value if isinstance(value, int | float) else str(value)[:MAX_CHARS] for name, value in fields.items()}
    client = f", client {kept['client_id']}" if "client_id" in kept else ""
    what = kept.get("text") or kept.get("error") or kept.get("checkpoint") or ""
    text = f"rl4sys learner on {host} ({run_dir or 'no run directory'}){client}: {kept.get(ALARM, event)}: {what}".rstrip(": ")
    if left_out:
        text += f" ({left_out} more in between)"
    place = {"host": host, "run_dir": str(run_dir) if run_dir is not None else None}
    return {"text": printable(text), "event": event, "t": round(at_unix_s, 3), **place, "left_out": left_out, "fields": kept}


def deliver(
    config: AlarmsConfig, document: Mapping[str, Any], over: Callable[[], bool] = lambda: False
) -> Iterator[tuple[str, str]]:
    """Send a message to each receiver. Yield the receiver and an error, or "" if it took the message.

    After `SEND_S` seconds, or when `over` returns True, the message has failed.
    """
    body = json.dumps(document).encode()
    if config.webhook is not None:
        program = [sys.executable, "-I", "-S", webhook.__file__]
        receiver = f"webhook at {urlsplit(config.webhook).hostname}"  # the rest of the URL is often a secret
        yield receiver, _run(program, f"{config.webhook}\n".encode() + body, over, errors=subprocess.PIPE)
    if config.command is not None:
        yield f"command {config.command}", _run([str(config.command)], body, over)


def _run(command: list[str], text: bytes, over: Callable[[], bool], errors: int = subprocess.DEVNULL) -> str:
    """Run a program with a text as its input. Return its error, or "" if it has ended with the status 0."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        child = ChildProcess(command, stdin=pipe, stdout=null, stderr=errors, start_new_session=True, env=child_environment())
    except OSError as exc:
        return start_error_text(exc)
    deadline = time.monotonic() + SEND_S
    with child:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a program need not read its input, which a pipe holds as a whole
            child.stdin.write(text)
            child.stdin.close()
        while not (ended := child.ends_within(LOOK_S)) and not over() and time.monotonic() < deadline:
            pass
        code = child.end(0.0)
        said = child.stderr.read(MAX_CHARS).decode(errors="replace").strip() if child.stderr is not None else ""
    if not ended:
        return "it took too long, and was killed"
    return (said or end_text(code)) if code else ""


class AlarmSender(NullEventSink, RecordThread):
    """The thread that sends messages, and an event sink.

    Its counters are ``sent`` and ``failed`` (messages, for each receiver), ``left_out`` (by the rate limit of each kind and
    client), and those of `RecordThread`, with the messages that the end of the learner drops.
    """

    def __init__(self, config: AlarmsConfig, run_dir: Path | None) -> None:
        RecordThread.__init__(self, "rl4sys-alarms", "messages about alarms", (OSError,), Counters())
        self._config, self._run_dir = config, run_dir
        self._sent: dict[tuple[str, str], list[float]] = {}  # by kind and client: the Unix time, and how many were left out since
        self._close_at = float("inf")

    def event(self, name: str, /, **fields: Any) -> None:
        """Queue a message about an event if it is one of `SENT`."""
        if name in SENT:
            self.put(partial(self._send, name, fields, time.time()))

    def stop(self) -> None:
        """End the thread within about `CLOSE_S` seconds."""
        self._close_at = min(self._close_at, time.monotonic() + CLOSE_S)
        super().stop()

    def _send(self, name: str, fields: dict[str, Any], at_unix_s: float) -> None:
        if time.monotonic() > self._close_at:
            return self.counters.add("records_dropped")
        key = str(fields.get(ALARM, name)), str(fields.get("client_id", ""))
        last = self._sent.get(key)
        if last is not None and at_unix_s - last[0] < self._config.every_s:
            last[1] += 1
            return self.counters.add("left_out")
        self._sent = {k: v for k, v in self._sent.items() if at_unix_s - v[0] < self._config.every_s or v[1]}
        self._sent[key] = [at_unix_s, 0]
        document = message(name, fields, at_unix_s, self._run_dir, int(last[1]) if last is not None else 0)
        for receiver, error in deliver(self._config, document, lambda: time.monotonic() > self._close_at):
            self.counters.add("failed" if error else "sent")
            if error:
                log.warning("a message about %s was not delivered: %s: %s", key[0], receiver, error)
