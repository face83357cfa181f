"""Arrays on disk for a replay that is larger than memory should be."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4sys_zmq.errors import ConfigError
from rl4sys_zmq.private import make_private
from rl4sys_zmq.replay.layout import ArraySpec


class ScratchArrays:
    """A function that creates arrays of zeros in memory-mapped files of a folder. The state of a replay is not in them.

    The files have no names: the kernel frees their space when the arrays are gone, also after SIGKILL. Their space is reserved
    at once, so a full disk is an exception and not a signal.

    Args:
        folder: The folder. It is created with mode 0700 if it does not exist.
        needed: Number of bytes of all arrays together.

    Raises:
        ConfigError: If the disk has less space, or the folder cannot be created.
    """

    def __init__(self, folder: Path, needed: int) -> None:
        self._folder = folder
        try:
            make_private(folder)
            free = shutil.disk_usage(folder).free
        except OSError as exc:
            raise ConfigError(f"the replay cannot use {folder}: {exc.strerror}", key="buffer_size") from exc
        if needed > free:
            problem = f"the replay needs {needed:,} bytes on disk, and {folder} has {free:,} bytes free"
            raise ConfigError(f"{problem}; use a smaller buffer_size, or a run directory on a larger disk", key="buffer_size")

    def __call__(self, leaf: ArraySpec) -> NDArray[Any]:
        size = max(1, leaf.dtype.itemsize * prod(leaf.shape))
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                mapped = mmap.mmap(file.fileno(), size)
        except OSError as exc:
            problem = f"{size:,} bytes of the replay cannot be written to {self._folder}: {exc.strerror}"
            raise ConfigError(f"{problem}; use a smaller buffer_size, or another run directory", key="buffer_size") from exc
        return np.frombuffer(mapped, leaf.dtype, prod(leaf.shape)).reshape(leaf.shape)
