"""A player for documents: it writes their files and runs their commands, in order, in one shell."""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import rl4sys_zmq

ROOT = Path(__file__).parents[2]
PACKAGE = Path(rl4sys_zmq.__file__).parent.parent
LIMIT_S = 280.0
PATIENT = {
    "RL4SYS_ACTOR_RUN_CONNECT_TIMEOUT": "60",
    "RL4SYS_LEARNER_STATUS_TIMEOUT": "30",
    "RL4SYS_LEARNER_DOCTOR_TIMEOUT": "30",
}
"""Longer timeouts, for a busy machine."""

BLOCK = re.compile(r"^```(sh|python|yaml|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.(?:py|ya?ml|toml))\b")
"""The first line of a block that is a file of the reader's."""


@dataclass(frozen=True)
class Played:
    """The output of a document's commands, and the folder in which they ran."""

    output: str
    folder: Path


def script_of(text: str) -> str:
    """Return the shell script of a document, without the installation, which test_shell_pages.py checks."""
    parts = []
    for language, block in BLOCK.findall(text):
        name = FILE.match(block)
        if language != "sh" and name:
            parts.append(f"cat > {name[1]} <<'END_OF_FILE'\n{block}END_OF_FILE")
        elif language == "sh":
            for line in block.splitlines():
                if not is_installation(line):
                    parts.append(line)
                if served := re.search(r"serve .* > (\S+\.log) &$", line):  # a reader waits for this line too
                    parts.append(f"until grep -qs '^learner at' {served[1]}; do kill -0 $!; sleep 0.1; done")
    return "\n".join(parts)


def is_installation(line: str) -> bool:
    """Return True if a command installs something. Such commands download a gigabyte, so tests only check them."""
    return re.match(r"(pip install|git clone|cd |python3?[.\d]* -m venv|\. )", line) is not None


def free_port() -> int:
    """Return a TCP port that is free now, and the next one too, for weights. The system gives neither to a socket of its own."""
    while True:
        number = random.randrange(10_000, 32_000, 2)
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", number))
            second.bind(("127.0.0.1", number + 1))
            return number


def play(document: Path, folder: Path, shorter: Mapping[str, str] | None = None) -> Played:
    """Run a document in a folder. Every command must succeed. Those in the background end with the shell at the latest.

    Args:
        document: The document.
        folder: Working directory of the commands.
        shorter: Words of the commands, such as ``--episodes 300``, each with the words that replace it.
    """
    text = document.read_text()
    script = script_of(text)
    for words, instead in (shorter or {}).items():
        assert words in script, f"{document.name} has no {words!r}"
        script = script.replace(words, instead)
    for port in sorted(set(re.findall(r"\b(?:5005[12]|5555|5556)\b", script))):
        script = re.sub(rf"\b{port}\b", str(free_port()), script)
    (folder / "examples").symlink_to(ROOT / "examples")  # the reader's working directory is the clone
    prologue = "set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n"
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]
    shell = subprocess.Popen(
        ["bash", "-c", prologue + script],
        cwd=folder,
        env={**os.environ, **PATIENT, "PYTHONPATH": str(PACKAGE), "PATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=LIMIT_S)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.communicate()
    logs = "".join(f"\n== {log.name}\n{log.read_text()[-2000:]}" for log in sorted(folder.glob("*.log")))
    assert shell.returncode == 0, f"{document.name} ended with {shell.returncode}:\n{output[-6000:]}{logs}"
    return Played(output, folder)
