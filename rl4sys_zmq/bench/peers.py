"""Other people's ways of doing it, which ours is compared with: scripts in ``benchmarks/peers/`` of the repository.

They are not in the package: they need what it does not, and one of them pickles. ``make peers`` installs what they need, in an
environment of their own. Each prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from rl4sys_zmq.errors import RL4SysError

__all__ = ["FOLDER", "PeerMissing", "run_peer"]

_ROOT = Path(__file__).parents[2]
FOLDER = _ROOT / "benchmarks" / "peers"
PYTHON = _ROOT / ".venv-peers" / "bin" / "python"
LIMIT_S = 900.0


class PeerMissing(RL4SysError):
    """A peer can't run here: its script or a package that it needs is not installed."""


def run_peer(name: str, *arguments: object) -> dict[str, Any]:
    """Runs a peer in a process of its own, numpy and torch with one thread each; with this Python if there is none for peers.

    Args:
        name: of the script, without ``.py``.
        arguments: for its command line.

    Returns:
        What it printed.

    Raises:
        PeerMissing: when it can't run here; the message says what would help.
    """
    script = FOLDER / f"{name}.py"
    if not script.exists():
        raise PeerMissing(f"{name} is measured from a clone of the repository, by its benchmarks/peers/{name}.py")
    command = [str(PYTHON) if PYTHON.exists() else sys.executable, str(script), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment, timeout=LIMIT_S
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise PeerMissing(f"{name} does not run here: {last} (`make peers` installs what peers need)")
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record
