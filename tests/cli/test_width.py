"""The output of each command in a terminal of 80 columns."""

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from rl4sys_zmq.learner.run.deadletters import DeadLetterFolder
from rl4sys_zmq.wire.thread_messages import QuarantinedSegment

from .conftest import PACKAGE, START_S

COLUMNS = 80


def in_terminal(folder: Path, module: str, *arguments: str) -> list[str]:
    """Run a command whose output is a terminal of 80 columns, and return its lines."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), "TERM": "xterm", "COLUMNS": str(COLUMNS)}
    command = [sys.executable, "-m", f"rl4sys_zmq.cli.{module}", *arguments]
    try:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, cwd=folder, env=env) as process:
            os.close(theirs)
            text = b""
            while part := read_some(ours):
                text += part
            assert process.wait(START_S) in (0, 1), text
    finally:
        os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode())
    return plain.replace("\r", "\n").splitlines()


def read_some(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # EIO: the other end is closed
        return b""


def check(lines: list[str]) -> None:
    """Check that each line fits, unless it is one word, such as a path."""
    assert lines
    assert [line for line in lines if len(line) > COLUMNS and len(line.split()) > 1] == []


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run directory with two clients, dead letters, and figures of the machine."""
    clients = [name * 10 for name in ("luna", "mars")]
    rows = [
        {"t": 10.0 * n, "event": "metrics", "client_id": name, "step": n, "update": n, "scalars": {}, "episodes": [[n, 5.0, 9]]}
        for n in range(1, 200)
        for name in clients
    ]
    machine = {"host_memory_bytes": 1, "host_memory_free_bytes": 1, "disk_free_bytes": 1}
    figures = {"role": "actor", "host": "h" * 40, "pid": 7, "cpu": 1.0, "rss_bytes": 1 << 33, "threads": 3, "host_cpu": 0.5}
    rates = {"net_sent_bytes_s": 1, "net_received_bytes_s": 1}
    rows.append({"t": 1.0, "event": "system", "client_id": clients[0], "name": "a" * 40, **figures, **machine, **rates})
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    letters = DeadLetterFolder(folder / "dead")
    for name in clients:
        reason = "a reward is not finite, and this is a long sentence about it that goes on and on"
        letters.write(name, QuarantinedSegment("cache-7.4121-9f3c", 5, 1_234_567, reason, (b"x",)), 1.7e9)
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ["learner", "algorithms"],
        ["learner", "--help"],
        ["learner", "plot", "--help"],
        ["learner", "plot", "run", "--window", "20"],
        ["learner", "plot", "run", "--group", "seed", "--x", "updates", "--csv", "curve.csv"],
        ["learner", "plot", "run", "--what", "system"],
        ["learner", "deadletter", "run"],
        ["learner", "doctor", "127.0.0.1:1"],
        ["learner", "capacity", "--actors", "1000", "--steps-per-s", "100", "--model-bytes", "300kB"],
        ["learner", "config", "check", "luna.json"],
        ["learner", "config", "check", "learner.json"],
        ["learner", "demo", "--max-seconds", "2", "--actors", "1"],
        ["learner", "keys", "keys"],
        ["actor", "--help"],
        ["actor", "run", "--help"],
    ],
    ids=" ".join,
)
def test_each_command_fits_into_80_columns(run: Path, arguments: list[str]) -> None:
    for module in ("torch", "tensorboard", "rich", "matplotlib", "gymnasium"):
        pytest.importorskip(module)
    spaces = {"input_size": 8, "act_dim": 4, "traj_per_epoch": 32, "pi_lr": 3e-4}
    actor = {"client_id": "luna", "algorithm_name": "PPO", "algorithm_parameters": spaces}
    (run.parent / "luna.json").write_text(json.dumps(actor))
    (run.parent / "learner.json").write_text(json.dumps({"clients": {"luna": {"algorithm_name": "DQN"}}, "system_every_s": 5}))
    check(in_terminal(run.parent, *arguments))
