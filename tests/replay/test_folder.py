"""The folder of a data store and the children that its process forks."""

import os
from pathlib import Path

import pytest
from harness.forks import forked_child

from rl4sys_zmq.errors import StoreFileError
from rl4sys_zmq.replay.folder import StoreFolder

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def test_a_forked_child_neither_keeps_the_lock_nor_ends_it(tmp_path: Path) -> None:
    folder = StoreFolder(tmp_path / "store", "test", {})
    with forked_child(folder.close):
        with pytest.raises(StoreFileError, match="has it open"):
            StoreFolder(tmp_path / "store", "test", {})
        assert (tmp_path / "store" / "lock").read_bytes(), "the store is not marked as closed"
        os.close(folder._lock)  # as the kernel does at the end of a process, without an unlock
        folder._lock = -1
        StoreFolder(tmp_path / "store", "test", {}).close()  # while the child still runs
