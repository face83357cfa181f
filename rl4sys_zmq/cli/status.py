"""The commands ``rl4sys-learner status`` and ``doctor``."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl4sys_zmq.cli.app import ALARMS, FAILED, print_line
from rl4sys_zmq.cli.signals import check_signals
from rl4sys_zmq.config import AgentConfig
from rl4sys_zmq.config.files import read_mapping
from rl4sys_zmq.errors import ConfigError, LearnerUnavailable, ProtocolError, RefusalReason
from rl4sys_zmq.logs import printable
from rl4sys_zmq.ops.doctor import STAGES, diagnose
from rl4sys_zmq.ops.report import report_lines
from rl4sys_zmq.ops.requests import request_status
from rl4sys_zmq.security.keys import read_user_keys

WATCH_S = 1.0
CLEAR = "\x1b[H\x1b[J"
WIDTH = max(map(len, STAGES))


def show_status(address: str, timeout_s: float, *, keys: Path | None, as_json: bool, watch: bool) -> dict[str, Any]:
    """Print a learner's status once, or with `watch` every second until Ctrl-C. Return the report."""
    ours = read_user_keys(keys)[1] if keys is not None else None
    while True:
        try:
            report = request_status(address, timeout_s, ours)
        except LearnerUnavailable as exc:
            if not watch:
                raise
            print_line(str(exc))
            _pause()
            continue
        if as_json:
            print_line(json.dumps(report, indent=None if watch else 2, sort_keys=True, default=str))
        else:
            is_terminal = sys.stdout.isatty()
            if watch and is_terminal:
                sys.stdout.write(CLEAR)
            print_line("\n".join(_lines(report, shutil.get_terminal_size().columns if is_terminal else None)))
        if not watch:
            return report
        _pause()


def check_code(report: Mapping[str, Any]) -> int:
    """Return the exit code of ``status --check``: that of a failed client, of another problem, or 0."""
    lines = _lines(report)
    if any(client.get("state") == "failed" for client in report["clients"].values()):
        return FAILED
    return ALARMS if any(line.lstrip().startswith("!! ") for line in lines) else 0


def _pause() -> None:
    time.sleep(WATCH_S)
    check_signals()


def _lines(report: Mapping[str, Any], width: int | None = None) -> list[str]:
    try:
        return report_lines(report, time.time(), width)
    except (LookupError, TypeError, ValueError) as exc:
        remedy = "this version cannot read the status; print it with --json, or use the same version on both sides"
        raise ProtocolError(RefusalReason.MALFORMED, remedy) from exc


def doctor(address: str, keys: Path | None, config_path: Path | None, timeout_s: float) -> int:
    """Test the connection in stages, print a line for each, and return the exit code: 1 if a stage fails."""
    document = read_mapping(config_path) if config_path is not None else {}
    # Check the address as an actor does. The configuration may have another address, which is not used.
    config = AgentConfig.from_mapping({"client_id": "doctor", **document}, source=str(config_path or ""), server_address=address)
    if config_path is not None and "client_id" not in document:
        raise ConfigError(
            "client_id is missing; an actor sends it, so add it to the file", key="client_id", source=str(config_path)
        )
    file = keys or config.keys
    ours = read_user_keys(file)[1] if file is not None else None
    code = 0
    for result in diagnose(config.address, keys=ours, config=config if config_path is not None else None, timeout_s=timeout_s):
        print_line(printable(f"{result.stage:<{WIDTH}}  {result.state:<7}  {result.text}".rstrip()))
        if result.remedy:
            print_line(printable(f"{'':<{WIDTH}}           {result.remedy}"))
        code = FAILED if result.state == "FAIL" else code
    return code
