"""The output that an operator sees while a learner runs."""

import io
import re
import sys
from typing import Any

import pytest

from rl4sys_zmq.cli import progress
from rl4sys_zmq.cli.progress import ReturnTrend, make_progress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def report(steps: int = 0, state: str = "running", error: str = "", live: bool = True) -> dict[str, Any]:
    verdicts = dict.fromkeys(("trained", "stale", "quarantined", "refused", "duplicate"), 0)
    client = {
        **{"state": state, "algorithm": "PPO", "episodes": 3, "mean_return": 1.5, "steps": steps, "steps_per_s": 7.0},
        **{"version": 2, "updates": 2, "policy_lag": 0.5, "pending": 4, "actors": {}, "actors_live": int(live)},
        **{"verdicts": verdicts, "error": error},
    }
    return {"clients": {"luna": client}}


def test_lines_come_every_few_seconds_and_only_with_news(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress(every_s=3.0) as shown:
        counts = []
        for at, steps in ((0, 0), (1, 10), (2, 20), (3, 30), (6, 30), (9, 30), (9.5, 40)):
            clock.now = 1000.0 + at
            shown.show(report(steps))
            counts.append(len(capsys.readouterr().out.splitlines()))
    assert counts == [1, 0, 0, 1, 0, 0, 1]


def test_a_file_gets_a_line_a_minute_after_the_first_ones(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress(every_s=3.0) as shown:
        for second in range(3 * progress.FREQUENT_LINES + 300):
            clock.now = 1000.0 + second
            shown.show(report(second))
        assert len(capsys.readouterr().out.splitlines()) == progress.FREQUENT_LINES + 5
        shown.show(report(10_000, "failed"))
        assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_line_begins_with_the_time_and_is_at_most_100_columns_wide(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress() as shown:
        shown.show(report(123_456_789))
        clock.now += 1
        shown.show(report(123_456_789, "failed", "ValueError: " + "it broke in many words " * 20))
    first, *rest = capsys.readouterr().out.splitlines()
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
    assert re.match(stamp + "luna: return 1.5, reward/step -, 123,456,789 steps, 7/s, version 2$", first)
    assert re.match(stamp + "luna: state failed, return 1.5, ", rest[0])
    assert all(len(line) <= 100 for line in (first, *rest))
    assert " ".join(" ".join(rest).split()).count("it broke") == 20


def test_a_client_that_stops_has_no_rate(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress(every_s=1.0) as shown:
        for second in range(4):
            clock.now = 1000.0 + second
            shown.show(report(1000 * second))
        assert ", 1,000/s," in capsys.readouterr().out.splitlines()[-1]
        for second in range(4, 10):
            clock.now = 1000.0 + second
            shown.show(report(3000))
        shown.show(report(3000, "failed"))
    assert ", 0/s," in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("width", [60, 200])
def test_a_table_fits_its_terminal_and_shows_a_failure(monkeypatch: pytest.MonkeyPatch, clock: Clock, width: int) -> None:
    rich = pytest.importorskip("rich.console")
    stream = io.StringIO()
    real = rich.Console
    monkeypatch.setattr(rich, "Console", lambda: real(file=stream, force_terminal=True, width=width, color_system=None))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    with make_progress() as shown:
        shown.show(report(1234))
        clock.now += 1
        shown.show(report(1234, "failed", "ValueError: it broke"), "a note")
    text = stream.getvalue()
    for expected in ("luna", "1,234", "FAILED", "it broke", "a note"):
        assert expected in text
    assert "…" not in text


def test_a_schedule_of_known_length_has_the_time_that_is_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with make_progress(every_s=1.0) as shown:
        for second in range(6):
            clock.now = 1000.0 + second
            known = report(100 * second)
            known["clients"]["luna"]["parameters"] = {"total_steps": 60_500}
            shown.show(known, "a note")
        line = " ".join(capsys.readouterr().out.split("\n")[-3:])
        assert "; about 10 min to 60,500 steps, the end of its schedule; a note" in " ".join(line.split())
        for parameters in ({"total_steps": 500}, {"total_steps": None}, {}):
            clock.now += 1
            known = report(int(100 * (clock.now - 1000)))
            known["clients"]["luna"]["parameters"] = parameters
            shown.show(known)
            assert "about" not in capsys.readouterr().out


def test_a_growing_return_has_an_estimate_of_the_time_to_its_target() -> None:
    trend = ReturnTrend(100.0)
    found = [trend.left(mean, now) for now, mean in ((0.0, None), (1.0, 10.0), (3.0, 20.0), (5.0, 30.0), (11.0, 60.0))]
    assert found == ["", "", "", "about 14 s at this pace", "about 8.0 s at this pace"]
    assert trend.left(60.0, 40.0) == "" and trend.left(50.0, 44.0) == "" and trend.left(100.0, 45.0) == ""
