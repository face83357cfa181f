"""Child processes: their exit status, their process group, and their end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from harness.children import is_there
from kit import until

from rl4sys_zmq.child_process import ChildProcess, end_text

WAIT_S = 30.0
GROUP = "import subprocess, sys, time; print(subprocess.Popen(['sleep', '977']).pid, flush=True); "


@pytest.fixture
def ignored() -> Iterator[None]:
    """This program ignores SIGCHLD."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("pass", 0, "exit status 0"),
        ("import sys; sys.exit(7)", 7, "exit status 7"),
        ("import os; os.kill(os.getpid(), 9)", -9, "signal 9 (SIGKILL)"),
    ],
)
def test_the_exit_status_is_read_before_and_after_the_process_is_collected(code: str, status: int, text: str) -> None:
    process = ChildProcess([sys.executable, "-c", code], start_new_session=True)
    assert process.look(0) == process.look() == process.wait(WAIT_S) == process.poll() == process.end(0.0) == status
    assert end_text(status) == text


@pytest.mark.usefixtures("ignored")
def test_a_lost_exit_status_is_a_failure() -> None:
    process = ChildProcess([sys.executable, "-c", "pass"], start_new_session=True)
    status = process.wait(WAIT_S)
    assert status == process.poll() != 0
    assert end_text(status).startswith("an unknown exit status: this program ignores SIGCHLD")


def test_a_process_that_another_part_of_the_program_collects_is_a_failure() -> None:
    process = ChildProcess([sys.executable, "-c", "pass"])
    os.waitpid(process.pid, 0)
    assert process.poll() == process.wait() != 0


def test_what_a_process_has_started_ends_with_it() -> None:
    process = ChildProcess([sys.executable, "-c", GROUP + "time.sleep(977)"], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    assert is_there(child) and process.end(0.0) == -signal.SIGKILL
    process.stdout.close()
    until(lambda: not is_there(child), "the end of the child", WAIT_S)


def test_the_end_of_a_killed_leader_is_the_end_of_its_group() -> None:
    code = (
        "from rl4sys_zmq.child_process import end_group_with_process; guard = end_group_with_process(); "
        + GROUP
        + "time.sleep(977)"
    )
    process = ChildProcess([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait(WAIT_S)
    process.stdout.close()
    until(lambda: not is_there(child), "the end of the child", WAIT_S)


def test_a_child_undoes_inherited_signals_and_can_lose_its_streams() -> None:
    code = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.close(1); sys.stdout = None
from rl4sys_zmq.child_process import begin_child
begin_child(signal.SIGINT)
print("lost")
assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL and not signal.pthread_sigmask(signal.SIG_BLOCK, ())
assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN and os.fstat(1)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=WAIT_S, check=False).returncode == 0
