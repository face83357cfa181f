"""A description of the machine and the software on which a benchmark runs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("rl4sys-zmq", "numpy", "pyzmq", "msgpack", "gymnasium", "torch")


def machine_record() -> dict[str, Any]:
    """Return this machine and program as JSON values: ``time``, ``command``, ``machine``, ``versions`` and ``commit``."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": _command(),
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": platform.system() + " " + platform.release(),
            "load": [round(x, 2) for x in os.getloadavg()],
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "commit": _commit(),
    }


def _command() -> str:
    program, *arguments = sys.argv
    words = [program] if Path(program).is_absolute() else ["python", program]
    return " ".join(Path(word).name if Path(word).is_absolute() else word for word in [*words, *arguments])


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor())


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10).strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
