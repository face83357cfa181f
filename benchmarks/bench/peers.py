"""Benchmarks of other libraries (*peers*), for comparison. They are scripts in ``benchmarks/peers/`` of the repository.

The scripts are not in this package, because they need other packages, and one of them uses pickle. ``make peers`` installs their
dependencies in a separate environment. Each script prints one line of JSON.
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
    """Raised if the benchmark of another library cannot run, because its script or a package is not installed."""


def run_peer(name: str, *arguments: object, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run the benchmark of another library in a separate process, with one thread for numpy and torch.

    The process uses the Python of the environment of ``make peers`` if that exists, otherwise the Python of this process.

    Args:
        name: Name of the script, without ``.py``.
        arguments: Arguments of its command line.
        limit_s: Longest time, in seconds.

    Returns:
        The JSON value that the script printed.

    Raises:
        PeerMissing: If the script cannot run. The message says what to do.
    """
    script = FOLDER / f"{name}.py"
    if not script.exists():
        raise PeerMissing(f"{name} needs a clone of the repository with benchmarks/peers/{name}.py")
    command = [str(PYTHON) if PYTHON.exists() else sys.executable, str(script), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, env=environment, timeout=limit_s
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise PeerMissing(f"{name} does not run here: {last} (`make peers` installs the dependencies of peers)")
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record
