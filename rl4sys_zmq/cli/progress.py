"""Progress output of a running learner: a live table on a terminal, plain lines in a pipe or a file."""

from __future__ import annotations

import contextlib
import logging
import sys
import textwrap
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import replace
from time import strftime
from typing import Any

from rl4sys_zmq.cli.app import configure_logging, print_line
from rl4sys_zmq.ops.report import ClientStatusRow, client_rows, span_text
from rl4sys_zmq.resource import Resource

RATE_WINDOW_S = 3.0
TREND_S, LEAST_TREND_S = 15.0, 3.0
REFRESH_S = 0.25
LINES_S = 3.0
FREQUENT_LINES, LATER_LINES_S = 20, 60.0
"""The number of lines about a client at the usual interval, and the interval after them, unless stdout is a terminal."""
LINE_COLUMNS = 100
"""The width at which lines for pipes and files are broken."""


class StatusDisplay(Resource):
    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def show(self, report: Mapping[str, Any], note: str = "") -> None:
        """Show a status report and a note. The display limits how often it prints, so call this at any rate."""
        now = time.monotonic()
        rows = [replace(row, steps_per_s=self._rate(row, now)) for row in client_rows(report)]
        self._show(rows, {row.client_id: _left(row, report["clients"][row.client_id]) for row in rows}, note)

    @abstractmethod
    def _show(self, rows: list[ClientStatusRow], left: Mapping[str, str], note: str) -> None:
        """Show the rows. `left` has the time until the end of a client's schedule, by client; empty if it is unknown."""

    def _rate(self, row: ClientStatusRow, now: float) -> float:
        """Return the steps per second of a client over the last 3 seconds. `now` is the monotonic time."""
        seen = self._seen.setdefault(row.client_id, deque())
        if seen and seen[-1][1] > row.steps:  # the client was restarted
            seen.clear()
        seen.append((now, row.steps))
        while len(seen) > 2 and now - seen[1][0] >= RATE_WINDOW_S:
            seen.popleft()
        (t0, s0), (t1, s1) = seen[0], seen[-1]
        return (s1 - s0) / (t1 - t0) if t1 - t0 > 0.2 else row.steps_per_s

    def close(self) -> None:
        """Do nothing; there is nothing to release."""


def _left(row: ClientStatusRow, client: Mapping[str, Any]) -> str:
    """Return the time until the end of the client's schedule at its present rate, as text; empty if it is unknown."""
    total = client.get("parameters", {}).get("total_steps") or 0
    if row.state != "running" or row.steps >= total or row.steps_per_s <= 0:
        return ""
    return f"about {span_text((total - row.steps) / row.steps_per_s)} to {total:,} steps, the end of its schedule"


class ReturnTrend:
    """An estimate of the time at which a mean return reaches a target, if it goes on as in the last 15 s."""

    def __init__(self, target: float) -> None:
        self._target = target
        self._seen: deque[tuple[float, float]] = deque()

    def left(self, mean_return: float | None, now: float) -> str:
        """Return the time until the target as text; empty if the return does not grow, or for the first 3 s."""
        if mean_return is None:
            return ""
        self._seen.append((now, mean_return))
        while now - self._seen[0][0] > TREND_S:
            self._seen.popleft()
        began, first = self._seen[0]
        if now - began < LEAST_TREND_S or not first < mean_return < self._target:
            return ""
        return f"about {span_text((self._target - mean_return) / (mean_return - first) * (now - began))} at this pace"


def make_progress(*, debug: bool = False, every_s: float = LINES_S) -> StatusDisplay:
    """Configure logging, and return a display: a table if stdout is a terminal and ``rich`` is installed, else lines."""
    if sys.stdout.isatty():
        with contextlib.suppress(ModuleNotFoundError):
            return _TableDisplay(debug)
    configure_logging(debug)
    return _LineDisplay(every_s, every_s if sys.stdout.isatty() else max(every_s, LATER_LINES_S))


class _LineDisplay(StatusDisplay):
    """The display for pipes and files: a line about a client if its state changes, or at intervals if its metrics change."""

    def __init__(self, every_s: float, later_s: float) -> None:
        super().__init__()
        self._every_s, self._later_s = every_s, later_s
        self._said: dict[str, tuple[float, ClientStatusRow]] = {}
        self._lines: Counter[str] = Counter()

    def _show(self, rows: list[ClientStatusRow], left: Mapping[str, str], note: str) -> None:
        now = time.monotonic()
        for row in rows:
            at, last = self._said.get(row.client_id, (0.0, None))
            if last is None and row.state == "starting":
                continue
            urgent = last is None or last.state != row.state
            interval_s = self._every_s if self._lines[row.client_id] < FREQUENT_LINES else self._later_s
            if urgent or (now - at >= interval_s and _news(row) != _news(last)):
                self._said[row.client_id] = now, row
                self._lines[row.client_id] += 1
                stamp = strftime("%Y-%m-%d %H:%M:%S")
                text = "; ".join(filter(None, (f"{stamp} {row.line()}", left[row.client_id], note)))
                if not sys.stdout.isatty():  # `print_line` knows the width of a terminal
                    text = textwrap.fill(text, LINE_COLUMNS, subsequent_indent=" " * 4, break_on_hyphens=False)
                print_line(text)


def _style(row: ClientStatusRow) -> str:
    return "bold red" if row.state == "failed" else ""


def _news(row: ClientStatusRow | None) -> object:
    return row and replace(row, steps_per_s=0.0)


class _TableDisplay(StatusDisplay):
    """The display for terminals: a table that is redrawn in place."""

    def __init__(self, debug: bool) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.logging import RichHandler

        super().__init__()
        self._console = Console()
        handler = RichHandler(console=self._console, show_path=False)
        handler.setFormatter(logging.Formatter("%(message)s"))
        configure_logging(debug, handler)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()
        self._drawn_at = 0.0
        self._last: tuple[list[ClientStatusRow], Mapping[str, str], str] = ([], {}, "")

    def _show(self, rows: list[ClientStatusRow], left: Mapping[str, str], note: str) -> None:
        self._last = rows, left, note
        now = time.monotonic()
        if now - self._drawn_at >= REFRESH_S:
            self._drawn_at = now
            self._draw()

    def _draw(self) -> None:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        rows, left, note = self._last
        cells = [row.cells() for row in rows]
        headings = list(cells[0]) if cells else []
        columns = zip(headings, *(texts.values() for texts in cells), strict=True)
        body: list[Any] = []
        if self._console.width < sum(max(map(len, column)) + 2 for column in columns) - 2:
            body = [Text(line, style=_style(row)) for row in rows for line in row.lines()]
        elif rows:
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
            for i, heading in enumerate(headings):
                table.add_column(heading, justify="left" if i < 3 else "right", no_wrap=True)
            for row, texts in zip(rows, cells, strict=True):
                table.add_row(*map(Text, texts.values()), style=_style(row))
            body = [table]
        errors = [Text(f"{row.client_id} FAILED: {row.error}", style="bold red") for row in rows if row.error]
        spans = [f"{client_id}: {text}" for client_id, text in left.items() if text]
        notes = [Text(text, style="dim") for text in (*spans, note) if text]
        self._live.update(Group(*body, *errors, *notes), refresh=True)

    def close(self) -> None:
        """Draw the last table, and leave the table on the terminal."""
        if self._live.is_started:
            self._draw()
            self._live.stop()
