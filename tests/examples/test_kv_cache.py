"""The cache server in C, with a short training."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "build" / "native"


def test_the_server_learns_over_tcp() -> None:
    if shutil.which("cc") is None or not (LIBRARY / "librl4sys_client.so").exists():
        pytest.skip("the C library is not built: run `make native`")
    script = ROOT / "examples" / "native" / "kv_cache" / "compare.py"
    command = [sys.executable, str(script), "--seeds", "1", "--traces", "2", "--tests", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    table = {words[0]: words[1:] for line in done.stdout.splitlines() if len(words := line.split()) == 4}
    assert set(table) >= {"learned", "lru", "lfu", "fifo", "random"}
    scans, moving = ({rule: float(table[rule][kind]) for rule in ("lru", "lfu")} for kind in (1, 2))
    assert scans["lfu"] > scans["lru"] and moving["lru"] > moving["lfu"]
