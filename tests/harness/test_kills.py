"""Tests of `KillLoop` and `Child`: they wait for progress, check each exit code, and leave no process behind."""

import sys
from pathlib import Path
from typing import Any

import pytest

from harness.children import PYTHONPATH, ProcessFailed
from harness.kills import KillLoop
from harness.trace import TraceTail

WORKER = """
import os, sys, threading
from harness.children import SPARE, TRY_AGAIN
from harness.trace import TraceWriter
if SPARE in os.environ and not sys.stdin.readline():
    sys.exit(0)
writer = TraceWriter(sys.argv[1])
if len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
    open(sys.argv[2], "w").close()
    sys.exit(TRY_AGAIN)
def work():
    number = 0
    while not threading.Event().wait(0.001):
        writer.acked([str(number)])
        number += 1
threading.Thread(target=work, daemon=True).start()
for line in sys.stdin:
    if line.strip().isdigit():
        print("ends with", line.strip(), flush=True)
        os._exit(int(line))
os._exit(0)
"""


class Bench:
    def __init__(self, folder: Path, seed: int = 1) -> None:
        self.loop = KillLoop(seed=seed, folder=folder)
        self.trace = TraceTail(folder / "w.jsonl")
        self.child = self.loop.child("w", [sys.executable, "-c", WORKER, str(folder / "w.jsonl")], env={"PYTHONPATH": PYTHONPATH})

    def acked(self) -> int:
        return self.trace.ids("acked")


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    bench = Bench(tmp_path)
    with bench.loop:
        yield bench


def test_kills_come_after_progress(bench: Bench) -> None:
    bench.child.start()
    bench.loop.run([bench.child], kills=3, progress=bench.acked, least=20, spread_s=0.02)
    assert bench.acked() >= 60
    assert (bench.child.kills, bench.loop.kills, bench.child.codes) == (3, 3, [-9, -9, -9])
    bench.loop.until(lambda: bench.trace.count("life") == 4, 10.0, "the fourth life")
    bench.child.expect(0)
    bench.child.tell("0")
    assert bench.child.wait(10.0) == 0
    bench.loop.check()


def test_a_child_that_ends_by_itself_ends_the_wait(bench: Bench) -> None:
    bench.child.start()
    bench.child.tell("7")
    with pytest.raises(ProcessFailed, match=r"w ended run 1 with code 7; expected to keep running; its output:\nends with 7"):
        bench.loop.until(lambda: False, 20.0, "nothing")
    with pytest.raises(ProcessFailed, match="code 7"):
        bench.loop.check()
    with pytest.raises(ProcessFailed, match="code 7"):
        bench.child.tell("0")


def test_no_progress_is_an_error_in_time(bench: Bench) -> None:
    bench.child.start()
    with pytest.raises(ProcessFailed, match=r"5 more before kill 1 of 1: not within 0.2 s\nw; it has no output"):
        bench.loop.run([bench.child], kills=1, progress=lambda: 0, least=5, timeout_s=0.2)
    with pytest.raises(ProcessFailed, match=r"has not ended within 0\.1 s"):
        bench.child.wait(0.1)


def test_an_address_in_use_is_tried_again(bench: Bench, tmp_path: Path) -> None:
    bench.child.command.append(str(tmp_path / "tried"))
    bench.child.start()
    bench.loop.until(lambda: bench.acked() > 0, 10.0, "the second attempt")
    assert (bench.child.retries, bench.child.codes) == (1, [75])
    bench.loop.check()


def test_nobody_is_left_behind(bench: Bench) -> None:
    bench.child.start()
    bench.child.pause()  # even a stopped process
    bench.child.prepare()
    bench.loop.close()
    assert not bench.child.running
    assert bench.child.codes == [-9]
    bench.loop.check()


def test_a_spare_is_not_used_for_another_command(bench: Bench, tmp_path: Path) -> None:
    bench.child.prepare()
    bench.child.command[-1] = str(tmp_path / "other.jsonl")
    other = TraceTail(tmp_path / "other.jsonl")
    bench.child.start()
    bench.loop.until(lambda: other.ids("acked") > 0, 10.0, "work in the other file")
    assert bench.acked() == 0
