"""Memory that large messages have freed is used again."""

import errno
import os
import platform
from pathlib import Path

import pytest
from kit import python

from rl4sys_zmq.memory_watch import STATM, resident_bytes

SCRIPT = """
import resource
import numpy as np
from rl4sys_zmq.memory_watch import keep_freed_memory

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        held = [np.ones(1 << 23, np.uint8) for _ in range(4)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

took = keep_freed_memory()
faults(2)
print(took, faults(20))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc")
def test_large_blocks_cost_no_faults_after_the_first() -> None:
    took, faults = python("-c", SCRIPT).split()
    assert took == "True" and int(faults) < 1000  # 20 rounds of 32 MiB are 163,840 pages


def test_an_open_file_gives_the_memory_without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with open(STATM, "rb") as statm:
        monkeypatch.setattr(Path, "read_bytes", exhausted)
        assert resident_bytes(statm) > 1 << 20
