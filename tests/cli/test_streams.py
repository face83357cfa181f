"""Commands whose standard streams are lost: the reader has gone, the disk is full, or a stream was closed before the start."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl4sys_zmq.cli.learner import main

from .conftest import PACKAGE, START_S, invoke, refused

PROGRAM = """
import signal, sys
from pathlib import Path
import click
from rl4sys_zmq.cli.app import CommandGroup, configure_logging, print_line
from rl4sys_zmq.logs import get_logger
from rl4sys_zmq.logs import outlive_output

@click.group(cls=CommandGroup)
def main(): pass

def lines(file):
    configure_logging(False)
    for number in range(3):
        print_line(f"line {number}")
        print("a warning", file=sys.stderr)
        get_logger("rl4sys_zmq.work").warning("number %d", number)
    descriptors = [Path(f"/proc/self/fd/{fd}").exists() for fd in range(3)]
    Path(file).write_text(f"{descriptors} {signal.pthread_sigmask(signal.SIG_BLOCK, ())} {signal.getsignal(signal.SIGCHLD).name}")

@main.command()
@click.argument("file")
def work(file):
    outlive_output()
    lines(file)

@main.command()
@click.argument("file")
def result(file):
    lines(file)

main()
"""
OWN = "[True, True, True] set() SIG_DFL"


def run(command: str, redirection: str, folder: Path) -> tuple[int, str, str]:
    """Run a command of the program with redirections of a shell. Return its exit code, its stderr, and the file that it wrote."""
    errors, file = folder / "errors", folder / "file"
    errors.touch()
    shell = f'exec "$0" -c "$1" {command} "$2" 2>"$3" {redirection}'
    process = subprocess.Popen(
        ["sh", "-c", shell, sys.executable, PROGRAM, str(file), str(errors)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
    )
    assert process.stdout is not None
    process.stdout.close()
    return process.wait(START_S), errors.read_text(), file.read_text() if file.exists() else ""


@pytest.mark.parametrize(
    ("redirection", "reason"), [("", "Broken pipe"), (">/dev/full", "No space left on device"), (">&-", "it is closed")]
)
def test_work_goes_on_without_stdout_and_the_log_says_so_once(tmp_path: Path, redirection: str, reason: str) -> None:
    code, errors, file = run("work", redirection, tmp_path)
    assert (code, file) == (0, OWN)
    assert errors.count(f"stdout is lost ({reason}); the process goes on without it") == 1
    assert errors.count("a warning") == 3 and "number 2" in errors


@pytest.mark.parametrize("redirection", [">/dev/full 2>/dev/full", ">&- 2>&-", "2>&1", "<&- >&- 2>&-", "2>&-"])
def test_work_goes_on_without_any_stream(tmp_path: Path, redirection: str) -> None:
    assert run("work", redirection, tmp_path) == (0, "", OWN)


@pytest.mark.parametrize(
    ("redirection", "said"), [("", ""), (">/dev/full", "stdout cannot be written: No space"), (">&-", "it is closed")]
)
def test_a_command_whose_output_is_lost_fails(tmp_path: Path, redirection: str, said: str) -> None:
    code, errors, file = run("result", redirection, tmp_path)
    assert (code, file) == (1, "") and said in errors and "Traceback" not in errors


def test_inherited_signals_are_undone(tmp_path: Path) -> None:
    start = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK, "
    start += "[signal.SIGTERM, signal.SIGINT]); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    file, environment = tmp_path / "file", {**os.environ, "PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-c", start, "-c", PROGRAM, "work", str(file)]
    assert subprocess.run(command, capture_output=True, env=environment, timeout=START_S, check=False).returncode == 0
    assert file.read_text() == OWN


def test_a_learner_trains_after_the_reader_of_its_output_has_gone(tmp_path: Path) -> None:
    for module in ("torch", "tensorboard", "rich", "gymnasium"):
        pytest.importorskip(module)
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-m", "rl4sys_zmq.cli.learner", "serve", "--port", "0", "--run-dir", str(tmp_path / "run")]
    with (tmp_path / "errors").open("w") as errors:
        learner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True)
    assert learner.stdout is not None
    address = learner.stdout.readline().split()[2]
    learner.stdout.close()
    try:
        act = ["-m", "rl4sys_zmq.cli.actor", "run", "--env", "CartPole-v1", "--client-id", "luna", "--learner", address]
        for _ in range(2):  # the first begins the lines of progress
            command = [sys.executable, *act, "--episodes", "20", "--algorithm", "DQN"]
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=START_S, check=True)
        assert learner.poll() is None
    finally:
        learner.terminate()
        assert learner.wait(START_S) == 0
    assert "stdout is lost (Broken pipe)" in (tmp_path / "errors").read_text()


@pytest.mark.parametrize(
    ("arguments", "variable", "value", "option"),
    [
        (["serve"], "RL4SYS_LEARNER_SERVE_PORT", "tcp://10.0.0.1:5555", "--port"),
        (["serve"], "RL4SYS_LEARNER_SERVE_ENGINE", "no_engine", "--engine"),
        (["status", "localhost:1"], "RL4SYS_LEARNER_STATUS_TIMEOUT", "soon", "--timeout"),
    ],
)
def test_an_error_names_the_environment_variable_of_the_option(
    arguments: list[str], variable: str, value: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    words = f"; it comes from the environment variable {variable}: unset it, or give {option}"
    assert words in refused(invoke(main, *arguments))
    assert "environment variable" not in refused(invoke(main, *arguments, option, value))
