"""``rl4sys-learner status`` and ``plot``: looking at a learner and at its runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl4sys_zmq.cli.app import require, say
from rl4sys_zmq.cli.signals import Signals
from rl4sys_zmq.errors import ConfigError, LearnerUnavailable, ProtocolError, Refusal
from rl4sys_zmq.ops.curves import WINDOW, draw_curves, moving_mean, read_curves
from rl4sys_zmq.ops.report import report_lines
from rl4sys_zmq.ops.status import request_status
from rl4sys_zmq.security import read_user_keys

__all__ = ["plot", "show_status"]

WATCH_S = 1.0
CLEAR = "\x1b[H\x1b[J"


def show_status(address: str, timeout_s: float, *, keys: Path | None, as_json: bool, watch: bool) -> None:
    """Prints a learner's status, once or again and again.

    Raises:
        LearnerUnavailable: when the learner does not answer.
        ProtocolError: when it refuses, our keys for instance.
        ConfigError: when the keys can't be used.
    """
    signals = Signals.current
    ours = read_user_keys(keys)[1] if keys is not None else None
    while True:
        try:
            report = request_status(address, timeout_s, ours)
        except LearnerUnavailable as exc:
            if not watch:
                raise
            say(str(exc))
            _pause(signals)
            continue
        if as_json:
            say(json.dumps(report, indent=None if watch else 2, sort_keys=True, default=str))
        else:
            lead = CLEAR if watch and sys.stdout.isatty() else ""
            say(lead + "\n".join(_lines(report)))
        if not watch:
            return
        _pause(signals)


def _pause(signals: Signals | None) -> None:
    time.sleep(WATCH_S)
    if signals is not None:
        signals.check()


def _lines(report: Mapping[str, Any]) -> list[str]:
    try:
        return report_lines(report, time.time())
    except (LookupError, TypeError, ValueError) as exc:
        words = "its status is not what this version expects; --json shows it, and the same version on both sides reads it"
        raise ProtocolError(Refusal.MALFORMED, words) from exc


def plot(runs: Sequence[Path], output: Path, target: float | None) -> None:
    """Draws runs into one picture and says what is in it.

    Raises:
        RunDirectoryError: when a run has no log, or the picture cannot be written.
        ConfigError: when no run has an episode to draw.
    """
    require("learner", "matplotlib")
    curves = [curve for run in runs for curve in read_curves(run)]
    if not curves:
        raise ConfigError(f"no episode has ended in {', '.join(map(str, runs))}")
    draw_curves(curves, output, target=target)
    for curve in curves:
        mean = moving_mean(curve.returns)[-1]
        last = min(WINDOW, len(curve.returns))
        say(f"{curve.label}: {len(curve.returns):,} episodes, {curve.steps[-1]:,.0f} steps, mean of the last {last}: {mean:.1f}")
    say(str(output))
