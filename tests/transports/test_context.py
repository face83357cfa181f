"""The process raises its limit on open files as far as the system permits, and never lowers it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
from rl4sys_zmq.transports import raise_descriptor_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 200))
print(raise_descriptor_limit(100), raise_descriptor_limit(80), raise_descriptor_limit(1000))
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_limit_on_open_files_is_raised_softly() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["100", "100", "200", "200", "200"]
