"""Tests of the video example in a small form: both roles in one process, and two processes that Ctrl-C ends."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit import free_port

pytest.importorskip("PIL")

SCRIPT = Path(__file__).parents[2] / "examples" / "action_streamer.py"
SMALL = ["--width", "64", "--height", "48", "--fps", "200"]
LIMIT_S = 60.0
ATTEMPTS = 20


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *SMALL, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=SCRIPT.parents[1],
    )


def start_server(*words: str) -> tuple[subprocess.Popen[str], str]:
    """Start the server on a free port and the next one. Return it with the port. Another test can take one of the two first."""
    for _ in range(ATTEMPTS):
        port = str(free_port())
        server = start("--server", "--port", port, *words)
        assert server.stdout is not None
        line = server.stdout.readline()
        if f"streaming at tcp://127.0.0.1:{port}" in line:
            return server, port
        server.kill()
        out, err = server.communicate(timeout=LIMIT_S)
        assert "is already in use" in err, line + out + err
    raise AssertionError(f"no two free ports in {ATTEMPTS} attempts")


def rows(out: str) -> dict[tuple[str, str], list[str]]:
    lines = [line.split() for line in out.splitlines()]
    return {(words[0], words[1]): words for words in lines if words and words[0] in ("obs", "act", "stream")}


def test_both_roles_in_one_process_compare_jpeg_with_raw() -> None:
    streamer = start("--frames", "5")
    out, err = streamer.communicate(timeout=LIMIT_S)
    assert (streamer.returncode, err) == (0, "")
    found = rows(out)
    assert set(found) == {(way, coding) for way in ("obs", "act", "stream") for coding in ("jpeg:80", "raw")}
    assert all(words[2] == "5" for words in found.values())
    raw, jpeg = found["obs", "raw"][-2], found["obs", "jpeg:80"][-2]
    assert (raw, int(jpeg.replace(",", "")) < 9216 / 3) == ("9,216", True)


def test_two_processes_and_ctrl_c() -> None:
    server, port = start_server("--quality", "60")
    try:
        client = start("--client", "--port", port, "--quality", "60", "--frames", "5")
        out, err = client.communicate(timeout=LIMIT_S)
        assert (client.returncode, err) == (0, "")
        assert {way for way, _ in rows(out)} == {"obs", "act", "stream"}
        other = start("--client", "--port", port, "--quality", "61", "--frames", "5")
        _, err = other.communicate(timeout=LIMIT_S)
        assert other.returncode == 1
        assert "image_codecs is ['image=jpeg:61'] at the caller and ['image=jpeg:60'] at the server" in err
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=LIMIT_S)
        assert (server.returncode, err) == (130, "")
    finally:
        server.kill()
        server.communicate(timeout=LIMIT_S)
